//! Lanes: their order, their bounds, what comes back.

use super::stepped::Stepped;
use super::{Do, Log, Probe};
use crate::actors::Rejected;

#[test]
fn control_goes_before_mail_before_queue() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    for what in ["q1", "q2"] {
        probe.queue(Do::Note(what)).unwrap();
    }
    for what in ["m1", "m2"] {
        probe.tell(Do::Note(what)).unwrap();
    }
    for what in ["c1", "c2"] {
        probe.control(Do::Note(what)).unwrap();
    }
    stepped.run();
    assert_eq!(log.all(), ["c1", "c2", "m1", "m2", "q1", "q2"]);
}

#[test]
fn control_overtakes_within_a_turn() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    probe.tell(Do::NoteInLanes { control: "c", mail: "m2", queue: "q2" }).unwrap();
    probe.tell(Do::Note("m1")).unwrap();
    probe.queue(Do::Note("q1")).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["c", "m1", "m2", "q1", "q2"]);
}

#[test]
fn a_full_mailbox_hands_the_message_back_and_the_other_lanes_are_never_full() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |_| Probe::new(&log));
    probe.tell(Do::Note("1")).unwrap();
    probe.tell(Do::Note("2")).unwrap();
    let Err(Rejected::Full(Do::Note(back))) = probe.tell(Do::Note("3")) else { panic!("was not full") };
    assert_eq!(back, "3");
    for _ in 0..1000 {
        probe.queue(Do::Note("q")).unwrap();
        probe.control(Do::Note("c")).unwrap();
    }
    let backlog = rt.actors()[0].backlog;
    assert_eq!((backlog.control, backlog.mail, backlog.queue), (1000, 2, 1000));
    stepped.run();
    assert_eq!(log.all().len(), 2002);
    probe.tell(Do::Note("3")).unwrap();
}

#[test]
fn an_ended_actor_hands_messages_back_on_every_lane() {
    let (stepped, rt) = Stepped::new(0);
    let probe = rt.spawn("probe", 2, |_| Probe::new(&Log::default()));
    assert!(!probe.is_closed());
    probe.tell(Do::Stop).unwrap();
    stepped.run();
    assert!(probe.is_closed());
    assert!(matches!(probe.tell(Do::Note("m")), Err(Rejected::Closed(Do::Note("m")))));
    assert!(matches!(probe.queue(Do::Note("q")), Err(Rejected::Closed(Do::Note("q")))));
    assert!(matches!(probe.control(Do::Note("c")), Err(Rejected::Closed(Do::Note("c")))));
    assert!(rt.actors().is_empty());
}

#[test]
fn messages_sent_while_the_actor_is_made_wait_for_it() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |me| {
        me.tell(Do::Note("early")).unwrap();
        assert!(!stepped.step(), "an actor that is not there cannot run");
        Probe::new(&log)
    });
    stepped.run();
    assert_eq!(log.all(), ["early"]);
    drop(probe);
}
