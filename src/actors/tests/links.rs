//! Links: both ways, once, on every kind of end.

use super::stepped::Stepped;
use super::{Do, Log, Probe};
use crate::actors::{Addr, Runtime};

fn probe(rt: &Runtime, log: &Log) -> Addr<Do> {
    rt.spawn("probe", 8, |_| Probe::new(log))
}

/// `#0` links `#1`; then `ends` (0 or 1) is told `how`. What did the other one note?
fn heard(ends: usize, how: Do) -> Vec<String> {
    let (stepped, rt) = Stepped::new(0);
    let logs = [Log::default(), Log::default()];
    let probes = [probe(&rt, &logs[0]), probe(&rt, &logs[1])];
    probes[0].tell(Do::Link(probes[1].clone())).unwrap();
    stepped.run();
    probes[ends].tell(how).unwrap();
    stepped.run();
    assert!(probes[ends].is_closed());
    assert!(!probes[1 - ends].is_closed());
    logs[1 - ends].all()
}

#[test]
fn either_end_is_heard_on_stop() {
    assert_eq!(heard(0, Do::Stop), ["#0 stopped"]);
    assert_eq!(heard(1, Do::Stop), ["#1 stopped"]);
}

#[test]
fn either_end_is_heard_on_panic() {
    assert_eq!(heard(0, Do::Panic("boom")), ["#0 panicked: boom"]);
    assert_eq!(heard(1, Do::Panic("boom")), ["#1 panicked: boom"]);
}

#[test]
fn an_end_out_of_reach_is_heard() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let (stays, goes) = (probe(&rt, &log), probe(&rt, &Log::default()));
    stays.tell(Do::Link(goes)).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["#1 shut down"], "a link keeps nobody alive");
    drop(stays);
    stepped.run();
}

#[test]
fn linking_twice_is_heard_once() {
    let (stepped, rt) = Stepped::new(0);
    let logs = [Log::default(), Log::default()];
    let (a, b) = (probe(&rt, &logs[0]), probe(&rt, &logs[1]));
    a.tell(Do::Link(b.clone())).unwrap();
    a.tell(Do::Link(b.clone())).unwrap();
    b.tell(Do::Link(a.clone())).unwrap();
    stepped.run();
    b.tell(Do::Stop).unwrap();
    stepped.run();
    a.tell(Do::Stop).unwrap();
    stepped.run();
    assert_eq!(logs[0].all(), ["#1 stopped", "dropped"]);
    assert_eq!(logs[1].all(), ["dropped"]);
}

#[test]
fn linking_an_ended_actor_is_heard_soon() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let (a, b) = (probe(&rt, &log), probe(&rt, &Log::default()));
    b.tell(Do::Panic("early")).unwrap();
    stepped.run();
    a.tell(Do::Link(b)).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["#1 panicked: early"]);
}

#[test]
fn linking_oneself_is_nothing() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let a = probe(&rt, &log);
    a.tell(Do::Link(a.clone())).unwrap();
    a.tell(Do::Stop).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["dropped"]);
}

#[test]
fn down_is_served_before_mail() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let (a, b) = (probe(&rt, &log), probe(&rt, &Log::default()));
    a.tell(Do::Link(b.clone())).unwrap();
    stepped.run();
    b.tell(Do::Stop).unwrap();
    stepped.run_only(b.id());
    a.tell(Do::Note("mail")).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["#1 stopped", "mail"]);
}
