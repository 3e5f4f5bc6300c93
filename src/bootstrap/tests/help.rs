//! A thread that waits does the I/O and runs its actor.

use std::path::PathBuf;
use std::pin::Pin;
use std::thread::{self, ThreadId};

use super::*;
use crate::actors::{Actor, Addr, Cx, Due, Flow, Reply, Runtime, Ticket};

/// An actor that does this at each message.
struct Does(Box<dyn FnMut() + Send>);

impl Actor for Does {
    type Msg = ();

    fn handle(&mut self, (): (), _cx: &mut Cx<'_, ()>) -> Flow {
        (self.0)();
        Flow::Continue
    }
}

/// Tells the actor of each notice.
struct ToActor(Addr<()>);

impl Inbox for ToActor {
    fn deliver(&self, notice: Notice) {
        drop(self.deliver_due(notice));
    }

    fn deliver_due(&self, _: Notice) -> Option<Due> {
        self.0.tell_due(()).ok().flatten()
    }
}

fn join_actor(hub: &Hub, rank: u32, members: &[Rank], actor: &Addr<()>) -> Endpoint {
    let inbox = Arc::new(ToActor(actor.clone()));
    hub.join(CommId::root("world"), "world", Rank::new(rank), members, inbox)
}

/// An actor that answers with what `work` gives, once.
pub(super) fn answers<T: Send + 'static>(
    rt: &Runtime,
    mut work: impl FnMut() -> T + Send + 'static,
) -> (Addr<()>, Ticket<T>) {
    let (reply, ticket) = rt.reply();
    let mut reply: Option<Reply<T>> = Some(reply);
    let does = Box::new(move || {
        let answer = work();
        drop(reply.take().map(|reply| reply.send(answer)));
    });
    (rt.spawn("does", 8, |_| Does(does)), ticket)
}

#[test]
fn a_message_is_handled_by_the_thread_that_waits_for_it() {
    let hubs = Hub::in_process(&[1, 1]).unwrap();
    let rt = Runtime::threads(1).unwrap();
    let members = ranks(0..2);
    let (actor, mut ticket) = answers(&rt, || thread::current().id());
    let endpoint = join_actor(&hubs[0], 0, &members, &actor);
    let peer = join(&hubs[1], "world", 1, &members);
    let mut asked = false;
    let answer = endpoint.help(actor.id(), None, |cx| {
        // It has the I/O by now.
        if !std::mem::replace(&mut asked, true) {
            peer.endpoint.send(Tag::new(0, 0), &body("x"), &[Parcel::plain(ranks(0..1))]);
            let again = endpoint.help(actor.id(), None, |_| std::task::Poll::Ready(()));
            assert_eq!(again, None, "one helps at a time");
        }
        Pin::new(&mut ticket).poll(cx)
    });
    assert_eq!(answer, Some(Ok(thread::current().id())));
    // The I/O is the I/O thread's again, and actors are the workers'.
    let (actor, ticket) = answers(&rt, || thread::current().id());
    let _again = join_actor(&hubs[0], 0, &members, &actor);
    peer.endpoint.send(Tag::new(1, 0), &body("y"), &[Parcel::plain(ranks(0..1))]);
    let other: ThreadId = ticket.wait().unwrap();
    assert_ne!(other, thread::current().id());
}

#[test]
fn an_actor_that_hangs_in_the_waiting_thread_holds_up_no_messages() {
    let hubs = Hub::in_process(&[2, 1]).unwrap();
    let rt = Runtime::threads(1).unwrap();
    let members = ranks(0..3);
    let neighbour = join(&hubs[0], "world", 1, &members);
    let peer = Arc::new(join(&hubs[1], "world", 2, &members));
    let (log, sender) = (Arc::clone(&neighbour.log), Arc::clone(&peer));
    let (actor, mut ticket) = answers(&rt, move || {
        // Nobody but the I/O thread can bring this to the neighbour.
        sender.endpoint.send(Tag::new(0, 1), &body("y"), &[Parcel::plain(ranks(1..2))]);
        log.messages(1).len()
    });
    let endpoint = join_actor(&hubs[0], 0, &members, &actor);
    let mut asked = false;
    let answer = endpoint.help(actor.id(), None, |cx| {
        if !std::mem::replace(&mut asked, true) {
            peer.endpoint.send(Tag::new(0, 0), &body("x"), &[Parcel::plain(ranks(0..1))]);
        }
        Pin::new(&mut ticket).poll(cx)
    });
    assert_eq!(answer, Some(Ok(1)));
}

#[test]
fn an_answer_from_elsewhere_ends_the_wait() {
    let hubs = Hub::in_process(&[1, 1]).unwrap();
    let rt = Runtime::threads(1).unwrap();
    let (reply, mut ticket) = rt.reply();
    let (actor, _ticket) = answers(&rt, || ());
    let endpoint = join_actor(&hubs[0], 0, &ranks(0..2), &actor);
    let mut reply = Some(reply);
    let answer = endpoint.help(actor.id(), None, |cx| {
        let poll = Pin::new(&mut ticket).poll(cx);
        if let Some(reply) = reply.take() {
            thread::spawn(move || reply.send(7).unwrap());
        }
        poll
    });
    assert_eq!(answer, Some(Ok(7)));
}

/// The I/O thread wakes as a lease ends. Should it take the event that tells the helper of its answer, nothing else
/// would.
#[test]
fn an_answer_that_comes_as_a_lease_ends_is_heard() {
    let (done, all) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let hubs = Hub::in_process(&[1; 6]).unwrap();
        let rt = Runtime::threads(1).unwrap();
        for round in 0..200_u64 {
            let (reply, mut ticket) = rt.reply();
            let (actor, _worked) = answers(&rt, || ());
            let endpoint = join_actor(&hubs[0], 0, &ranks(0..6), &actor);
            let mut reply = Some(reply);
            let due = actor.tell_due(()).ok().flatten();
            let answer = endpoint.help(actor.id(), due, |cx| {
                let poll = Pin::new(&mut ticket).poll(cx);
                if let Some(reply) = reply.take() {
                    let started = Instant::now();
                    let after = Duration::from_micros(4_900 + round);
                    thread::spawn(move || {
                        // At that moment, and not when the system is done with a sleep.
                        while started.elapsed() < after {
                            thread::yield_now();
                        }
                        reply.send(round).unwrap();
                    });
                }
                poll
            });
            assert_eq!(answer, Some(Ok(round)));
        }
        done.send(()).unwrap();
    });
    assert_eq!(all.recv_timeout(Duration::from_secs(20)), Ok(()));
}

/// How often the thread of this name has gone to sleep.
fn sleeps(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let is_it =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let task = tasks.map(|task| task.unwrap().path()).find(is_it).unwrap();
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn what_the_peer_reads_wakes_nobody_here() {
    in_own_process("help::what_the_peer_reads_wakes_nobody_here", || {
        const MESSAGES: u64 = 200;
        let hubs = Hub::in_process(&[1, 1]).unwrap();
        let members = join_all(&hubs, "world");
        // Its thread runs, and has its name.
        members[1].endpoint.send(Tag::new(0, 0), &body("x"), &[Parcel::plain(ranks(0..1))]);
        members[0].log.messages(1);
        let before = sleeps("symwin-io-0");
        for i in 0..MESSAGES {
            members[0].endpoint.send(Tag::new(i, 0), &body("x"), &[Parcel::plain(ranks(1..2))]);
            members[1].log.messages(usize::try_from(i).unwrap() + 1);
        }
        let woken = sleeps("symwin-io-0") - before;
        assert!(woken < MESSAGES / 10, "woken {woken} times for {MESSAGES} messages to the peer");
    });
}
