//! Replies and tickets.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::stepped::Stepped;
use super::{Do, Log, Probe};
use crate::actors::{Lost, Reply, Runtime, Ticket, Time};

fn pair() -> (Runtime, Reply<u32>, Ticket<u32>) {
    let (_, rt) = Stepped::new(0);
    let (reply, ticket) = rt.reply();
    (rt, reply, ticket)
}

#[test]
fn a_value_sent_is_waited_for_once() {
    let (_rt, reply, mut ticket) = pair();
    assert_eq!(ticket.poll(), None);
    reply.send(7).unwrap();
    assert_eq!(ticket.wait_until(Time::ZERO), Ok(Some(7)));
    assert_eq!(ticket.poll(), Some(Err(Lost)));
    assert_eq!(ticket.wait(), Err(Lost));
}

#[test]
fn a_dropped_reply_is_lost() {
    let (_rt, reply, mut ticket) = pair();
    drop(reply);
    assert_eq!(ticket.wait_until(Time::ZERO), Err(Lost));
    assert_eq!(ticket.wait(), Err(Lost));
}

#[test]
fn a_reply_without_a_ticket_gives_the_value_back() {
    let (_rt, reply, ticket) = pair();
    drop(ticket);
    assert_eq!(reply.send(7), Err(7));
    let (_rt, reply, ticket) = pair();
    drop(ticket);
    drop(reply);
}

#[test]
fn an_answer_nobody_takes_is_dropped_with_its_ticket() {
    let (_, rt) = Stepped::new(0);
    let (reply, ticket) = rt.reply();
    let value = Arc::new(());
    reply.send(Arc::clone(&value)).unwrap();
    drop(ticket);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn wait_until_gives_up_and_the_answer_still_comes() {
    let (_, rt) = Stepped::new(0);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    probe.tell(Do::Later(Duration::from_secs(5), "later")).unwrap();
    let (reply, mut ticket) = rt.reply();
    let limit = rt.now() + Duration::from_secs(1);
    assert_eq!(ticket.wait_until(limit), Ok(None));
    assert_eq!((rt.now(), log.all().len()), (limit, 0));
    probe.tell(Do::Answer(reply, 3)).unwrap();
    assert_eq!(ticket.wait_until(limit + Duration::from_secs(1)), Ok(Some(3)));
    drop(probe);
}

#[test]
fn waiting_under_a_scheduler_that_gave_up_is_lost() {
    let (_rt, reply, ticket) = pair();
    assert_eq!(ticket.wait(), Err(Lost));
    assert_eq!(reply.send(1), Err(1));
}

#[derive(Default)]
struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<T>(ticket: Pin<&mut Ticket<T>>, wakes: &Arc<CountWakes>) -> Poll<Result<T, Lost>> {
    ticket.poll(&mut Context::from_waker(&Waker::from(Arc::clone(wakes))))
}

#[test]
fn a_ticket_is_a_future_that_wakes_its_last_waker_once() {
    let (_rt, reply, ticket) = pair();
    let mut ticket = pin!(ticket);
    let (first, last) = (Arc::default(), Arc::default());
    assert_eq!(poll(ticket.as_mut(), &first), Poll::Pending);
    assert_eq!(poll(ticket.as_mut(), &last), Poll::Pending);
    reply.send(5).unwrap();
    assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(poll(ticket.as_mut(), &last), Poll::Ready(Ok(5)));
    assert_eq!(poll(ticket.as_mut(), &last), Poll::Ready(Err(Lost)));
    assert_eq!(last.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_lost_reply_wakes_the_future() {
    let (_rt, reply, ticket) = pair();
    let mut ticket = pin!(ticket);
    let wakes = Arc::default();
    assert_eq!(poll(ticket.as_mut(), &wakes), Poll::Pending);
    drop(reply);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(poll(ticket.as_mut(), &wakes), Poll::Ready(Err(Lost)));
}
