//! How actors end: reach, stop, shutdown, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::stepped::Stepped;
use super::{Do, Log, Probe};
use crate::actors::{Actor, Addr, Cx, Flow, Lost, Registry, Scheduler};

#[test]
fn an_actor_out_of_reach_handles_what_waits_and_ends() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |_| Probe::new(&log));
    probe.tell(Do::Note("last")).unwrap();
    let weak = probe.downgrade();
    let clone = probe.clone();
    drop(probe);
    stepped.run();
    assert_eq!(log.all(), ["last"], "a clone keeps it alive");
    clone.queue(Do::Note("very last")).unwrap();
    drop(clone);
    assert!(weak.upgrade().is_none());
    assert!(weak.upgrade().is_none(), "a failed upgrade changes nothing");
    stepped.run();
    assert_eq!(log.all(), ["last", "very last", "dropped"]);
    assert!(rt.actors().is_empty());
}

#[test]
fn an_upgraded_address_keeps_the_actor_alive() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |_| Probe::new(&log));
    let upgraded = probe.downgrade().upgrade().unwrap();
    assert_eq!((upgraded.id(), upgraded.name()), (probe.id(), "probe"));
    drop(probe);
    stepped.run();
    assert!(log.all().is_empty());
    drop(upgraded);
    stepped.run();
    assert_eq!(log.all(), ["dropped"]);
}

#[test]
fn a_handler_may_hand_out_its_address_when_nobody_has_one_left() {
    struct Shy(std::sync::Arc<parking_lot::Mutex<Option<Addr<()>>>>);
    impl Actor for Shy {
        type Msg = ();
        fn handle(&mut self, (): (), cx: &mut Cx<'_, ()>) -> Flow {
            *self.0.lock() = Some(cx.me().clone());
            Flow::Continue
        }
    }
    let (stepped, rt) = Stepped::new(0);
    let found = std::sync::Arc::default();
    let shy = rt.spawn("shy", 1, |_| Shy(std::sync::Arc::clone(&found)));
    shy.tell(()).unwrap();
    drop(shy);
    stepped.run();
    let shy = found.lock().take().unwrap();
    assert!(!shy.is_closed());
    drop(shy);
    stepped.run();
    assert!(rt.actors().is_empty());
}

#[test]
fn stopping_drops_the_value_once_then_unread_messages() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |_| Probe::new(&log));
    let (reply, ticket) = rt.reply();
    probe.control(Do::Stop).unwrap();
    probe.tell(Do::Note("unread")).unwrap();
    probe.queue(Do::Answer(reply, 1)).unwrap();
    assert_eq!(ticket.wait(), Err(Lost));
    assert_eq!(log.all(), ["dropped"]);
    drop(probe);
    stepped.run();
    assert_eq!(log.all(), ["dropped"]);
}

#[test]
fn shutdown_ends_an_actor_from_outside() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 2, |_| Probe::new(&log));
    probe.tell(Do::Note("unread")).unwrap();
    for actor in stepped.registry().actors() {
        actor.shutdown();
        actor.shutdown();
    }
    stepped.run();
    assert_eq!(log.all(), ["dropped"]);
    assert!(probe.is_closed());
}

#[test]
fn a_panic_ends_the_actor_and_loses_its_replies() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 4, |_| Probe::new(&log));
    let (kept, kept_ticket) = rt.reply();
    let (unread, unread_ticket) = rt.reply();
    probe.tell(Do::Keep(kept)).unwrap();
    probe.tell(Do::Panic("on purpose")).unwrap();
    probe.tell(Do::Answer(unread, 1)).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["asked after: on purpose", "dropped"]);
    assert_eq!((kept_ticket.wait(), unread_ticket.wait()), (Err(Lost), Err(Lost)));
    assert!(probe.is_closed());
}

#[test]
fn an_actor_may_go_on_after_a_panic_but_not_after_a_second_one_in_panicked() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("tough", 4, |_| Probe::after_panic(&log, Some(Flow::Continue)));
    probe.tell(Do::Panic("one")).unwrap();
    probe.tell(Do::Note("still here")).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["asked after: one", "still here"]);
    assert!(!probe.is_closed());
    let again = rt.spawn("again", 4, |_| Probe::after_panic(&Log::default(), None));
    again.tell(Do::Panic("two")).unwrap();
    stepped.run();
    assert!(again.is_closed());
}

#[test]
fn a_panic_in_make_goes_on_and_closes_the_address() {
    let (stepped, rt) = Stepped::new(0);
    let (reply, ticket) = rt.reply();
    let mut leaked = None;
    let spawned = catch_unwind(AssertUnwindSafe(|| {
        rt.spawn("unborn", 4, |me| -> Probe {
            me.tell(Do::Answer(reply, 1)).unwrap();
            leaked = Some(me.clone());
            panic!("not made")
        })
    }));
    assert!(spawned.is_err());
    assert!(leaked.unwrap().is_closed());
    assert_eq!(ticket.wait(), Err(Lost));
    stepped.run();
    assert!(rt.actors().is_empty());
}

#[test]
fn a_panicking_drop_does_not_keep_others_from_hearing() {
    struct Bomb;
    impl Actor for Bomb {
        type Msg = Reply;
        fn handle(&mut self, _: Reply, _: &mut Cx<'_, Reply>) -> Flow {
            Flow::Stop
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    type Reply = crate::actors::Reply<()>;
    let (_stepped, rt) = Stepped::new(0);
    let bomb = rt.spawn("bomb", 4, |_| Bomb);
    let (first, _first) = rt.reply();
    let (unread, ticket) = rt.reply();
    bomb.tell(first).unwrap();
    bomb.tell(unread).unwrap();
    assert_eq!(ticket.wait(), Err(Lost));
}

#[test]
fn timers_go_in_order_of_time_and_cancelled_ones_do_not() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    for (after, what) in [(30, "third"), (10, "first"), (20, "second"), (20, "second too"), (15, "cancelled")]
    {
        probe.tell(Do::Later(Duration::from_millis(after), what)).unwrap();
    }
    probe.tell(Do::Cancel).unwrap();
    stepped.run();
    assert_eq!(log.all(), ["first", "second", "second too", "third"]);
    assert_eq!(rt.now().since(crate::actors::Time::ZERO), Duration::from_millis(30));
}

#[test]
fn a_timer_that_rang_can_still_be_cancelled_before_its_message_is_handled() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    probe.tell(Do::Later(Duration::ZERO, "cancelled")).unwrap();
    assert!(stepped.step());
    // Ahead of the ring in the control lane, so the cancel is handled while the ring waits behind it.
    probe.control(Do::Cancel).unwrap();
    assert!(stepped.ring());
    stepped.run();
    assert!(log.all().is_empty());
}

#[test]
fn an_actors_timers_end_with_it_and_do_not_keep_it() {
    let (stepped, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    probe.tell(Do::Later(Duration::from_secs(60), "never")).unwrap();
    assert!(stepped.step());
    assert_eq!(stepped.pending_timers(), 1);
    drop(probe);
    assert!(stepped.step());
    assert_eq!(stepped.pending_timers(), 0);
    assert_eq!(log.all(), ["dropped"]);
}

#[test]
fn reports_say_who_waits_for_what() {
    let (stepped, rt) = Stepped::new(0);
    let probe = rt.spawn("probe", 8, |_| Probe::new(&Log::default()));
    let idle = rt.spawn("idle", 8, |_| Probe::new(&Log::default()));
    let (reply, _ticket) = rt.reply();
    probe.tell(Do::Keep(reply)).unwrap();
    stepped.run();
    idle.tell(Do::Note("unread")).unwrap();
    let reports: Vec<_> = rt.actors().iter().map(ToString::to_string).collect();
    assert_eq!(
        reports,
        [
            "probe #0: 1 replies to be due (control 0, mail 0, queue 0)",
            "idle #1: idle (control 0, mail 1, queue 0)"
        ]
    );
    assert!(Registry::default().reports().is_empty());
    drop((probe, idle));
    stepped.run();
}
