//! The threaded runtime.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::{Do, Log, Probe};
use crate::actors::threads::Threads;
use crate::actors::{Actor, Addr, Cx, Flow, Lost, Reply, Runtime, Scheduler, Ticket, Time};
use crate::error::{Error, Misuse};

/// A hang is a failure: nothing here takes a fraction of this.
const LIMIT: Duration = Duration::from_secs(20);

fn wait<T>(rt: &Runtime, mut ticket: Ticket<T>) -> Result<T, Lost> {
    let limit = rt.now() + LIMIT;
    ticket.wait_until(limit).map(|answer| answer.expect("no answer before the limit"))
}

/// Asks until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < limit, "{what} did not come about");
        std::thread::yield_now();
    }
}

#[test]
fn no_workers_is_a_mistake() {
    let Err(Error::Misuse(Misuse::BadSetting { name, value, .. })) = Runtime::threads(0) else {
        panic!("was accepted")
    };
    assert_eq!((&*name, &*value), ("workers", "0"));
}

#[test]
fn a_worker_survives_a_panic() {
    let rt = Runtime::threads(1).unwrap();
    let log = Log::default();
    let (bad, good) = (rt.spawn("bad", 8, |_| Probe::new(&log)), rt.spawn("good", 8, |_| Probe::new(&log)));
    let (lost, lost_ticket) = rt.reply();
    bad.tell(Do::Keep(lost)).unwrap();
    bad.tell(Do::Panic("on purpose")).unwrap();
    assert_eq!(wait(&rt, lost_ticket), Err(Lost));
    let (reply, ticket) = rt.reply();
    good.tell(Do::Answer(reply, 9)).unwrap();
    assert_eq!(wait(&rt, ticket), Ok(9));
}

#[test]
fn a_blocked_host_gives_up_at_its_limit() {
    let rt = Runtime::threads(1).unwrap();
    let (reply, mut ticket) = rt.reply();
    assert_eq!(ticket.wait_until(rt.now() + Duration::from_millis(1)), Ok(None));
    reply.send(1).unwrap();
    assert_eq!(ticket.wait_until(Time::ZERO), Ok(Some(1)));
}

#[test]
fn a_host_may_block_before_the_answer() {
    let rt = Runtime::threads(1).unwrap();
    let (reply, ticket) = rt.reply();
    let host = std::thread::spawn({
        let rt = rt.clone();
        move || wait(&rt, ticket)
    });
    let probe = rt.spawn("probe", 8, |_| Probe::new(&Log::default()));
    probe.queue(Do::Answer(reply, 4)).unwrap();
    assert_eq!(host.join().unwrap(), Ok(4));
}

/// Passes a token to the next one until it has been passed often enough.
struct Passer {
    next: Option<Addr<Pass>>,
}

enum Pass {
    Next(Addr<Self>),
    Token(u32, Reply<()>),
}

impl Actor for Passer {
    type Msg = Pass;

    fn handle(&mut self, msg: Pass, _cx: &mut Cx<'_, Pass>) -> Flow {
        match msg {
            Pass::Next(next) => self.next = Some(next),
            Pass::Token(0, reply) => {
                // Breaks the ring of addresses, so that all of it ends.
                self.next = None;
                reply.send(()).unwrap();
            }
            Pass::Token(left, reply) => {
                let sent = self.next.as_ref().unwrap().tell(Pass::Token(left - 1, reply));
                assert!(sent.is_ok());
            }
        }
        Flow::Continue
    }
}

#[test]
fn one_worker_runs_256_actors() {
    let rt = Runtime::threads(1).unwrap();
    let ring: Vec<_> = (0..256).map(|_| rt.spawn("passer", 8, |_| Passer { next: None })).collect();
    for (i, passer) in ring.iter().enumerate() {
        passer.control(Pass::Next(ring[(i + 1) % ring.len()].clone())).unwrap();
    }
    let (reply, ticket) = rt.reply();
    ring[0].tell(Pass::Token(256 * 20, reply)).unwrap();
    assert_eq!(wait(&rt, ticket), Ok(()));
    drop(ring);
    until("the end of the ring", || rt.actors().is_empty());
}

/// Looks whether a handler of its own runs at the same time.
struct Alone {
    inside: Arc<AtomicBool>,
    overlaps: Arc<AtomicUsize>,
    handled: usize,
}

enum Visit {
    Enter,
    Count(Reply<usize>),
}

impl Actor for Alone {
    type Msg = Visit;

    fn handle(&mut self, msg: Visit, _cx: &mut Cx<'_, Visit>) -> Flow {
        if self.inside.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        std::thread::yield_now();
        match msg {
            Visit::Enter => self.handled += 1,
            Visit::Count(reply) => reply.send(self.handled).unwrap(),
        }
        self.inside.store(false, Ordering::SeqCst);
        Flow::Continue
    }
}

#[test]
fn handlers_of_one_actor_never_overlap() {
    let rt = Runtime::threads(4).unwrap();
    let overlaps = Arc::new(AtomicUsize::new(0));
    let actors: Vec<_> = (0..3)
        .map(|_| {
            let (inside, overlaps) = (Arc::default(), Arc::clone(&overlaps));
            rt.spawn("alone", 8, |_| Alone { inside, overlaps, handled: 0 })
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..3000 {
                    let actor = &actors[i % actors.len()];
                    let sent =
                        if i % 2 == 0 { actor.queue(Visit::Enter) } else { actor.control(Visit::Enter) };
                    assert!(sent.is_ok());
                }
            });
        }
    });
    for actor in &actors {
        let (reply, ticket) = rt.reply();
        actor.queue(Visit::Count(reply)).unwrap();
        assert_eq!(wait(&rt, ticket), Ok(4 * 1000), "each message is handled once");
    }
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
}

/// Sets four timers out of order, cancels the soonest, and notes what rings.
struct Alarms(Log);

#[derive(Clone, Copy)]
enum Alarm {
    Rings(&'static str),
    Set,
}

impl Actor for Alarms {
    type Msg = Alarm;

    fn handle(&mut self, msg: Alarm, cx: &mut Cx<'_, Alarm>) -> Flow {
        match msg {
            Alarm::Rings(what) => self.0.note(what),
            Alarm::Set => {
                let mut ahead = Duration::from_millis(10);
                while !set_before(cx.now() + ahead, cx) {
                    ahead *= 2; // A busy machine: none must ring before all are set.
                }
            }
        }
        Flow::Continue
    }
}

/// Sets the timers for times after `start`; or none, where that has come meanwhile.
fn set_before(start: Time, cx: &mut Cx<'_, Alarm>) -> bool {
    let times = [(3, "second"), (2, "first"), (4, "third"), (1, "cancelled")];
    let set = times.map(|(ms, what)| cx.timer(start + Duration::from_millis(ms), Alarm::Rings(what)));
    cx.cancel(set[3]);
    let in_time = cx.now() < start;
    if !in_time {
        set.into_iter().for_each(|id| cx.cancel(id));
    }
    in_time
}

#[test]
fn timers_ring_in_order_and_cancelled_ones_do_not() {
    let rt = Runtime::threads(2).unwrap();
    let log = Log::default();
    let alarms = rt.spawn("alarms", 8, |_| Alarms(log.clone()));
    alarms.tell(Alarm::Set).unwrap();
    until("the third timer", || log.all().len() == 3);
    assert_eq!(log.all(), ["first", "second", "third"]);
}

#[test]
fn cancelled_timers_leave_nothing_behind() {
    let threads = Threads::start(1).unwrap();
    let held = Arc::new(());
    for i in 0..1_000_000 {
        let holds = Arc::clone(&held);
        let id = threads.timer(threads.now() + Duration::from_secs(60), Box::new(move || drop(holds)));
        threads.cancel(id);
        if i % 100_000 == 0 {
            assert_eq!(threads.pending_timers(), 0);
        }
    }
    assert_eq!((threads.pending_timers(), Arc::strong_count(&held)), (0, 1));
}

#[test]
fn a_busy_actor_lets_others_run() {
    struct Busy(Arc<AtomicBool>, Option<Reply<()>>);
    impl Actor for Busy {
        type Msg = Option<Reply<()>>;
        fn handle(&mut self, msg: Self::Msg, cx: &mut Cx<'_, Self::Msg>) -> Flow {
            self.1 = msg.or(self.1.take());
            if self.0.load(Ordering::SeqCst) {
                return Flow::Stop;
            }
            assert!(cx.me().control(None).is_ok());
            Flow::Continue
        }
    }
    let rt = Runtime::threads(1).unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let busy = rt.spawn("busy", 1, |_| Busy(Arc::clone(&enough), None));
    let probe = rt.spawn("probe", 1, |_| Probe::new(&Log::default()));
    let ((ended, ended_ticket), (reply, ticket)) = (rt.reply(), rt.reply());
    busy.tell(Some(ended)).unwrap();
    probe.queue(Do::Answer(reply, 1)).unwrap();
    assert_eq!(wait(&rt, ticket), Ok(1));
    enough.store(true, Ordering::SeqCst);
    assert_eq!(wait(&rt, ended_ticket), Err(Lost));
}

/// Every value is dropped and every reply answered, whoever wins the race between the last address, the handler and
/// the one who waits.
#[test]
fn short_lives_end() {
    let rt = Runtime::threads(4).unwrap();
    let value = Arc::new(());
    struct Brief {
        _value: Arc<()>,
    }
    impl Actor for Brief {
        type Msg = (bool, Reply<u32>);
        fn handle(&mut self, (stop, reply): Self::Msg, _cx: &mut Cx<'_, Self::Msg>) -> Flow {
            let _gone = reply.send(1);
            if stop { Flow::Stop } else { Flow::Continue }
        }
    }
    for i in 0..5000 {
        let brief = rt.spawn("brief", 2, |_| Brief { _value: Arc::clone(&value) });
        let weak = brief.downgrade();
        let ((first, first_ticket), (second, second_ticket)) = (rt.reply(), rt.reply());
        brief.tell((i % 2 == 0, first)).unwrap();
        // Handled, lost with the end of the actor, or handed back and lost here.
        drop(brief.queue((false, second)));
        drop(brief);
        assert_eq!(wait(&rt, first_ticket), Ok(1));
        if i % 3 == 0 {
            let second = wait(&rt, second_ticket);
            assert!(second == Err(Lost) || (i % 2 == 1 && second == Ok(1)));
        }
        drop(weak.upgrade());
    }
    until("the end of all", || Arc::strong_count(&value) == 1 && rt.actors().is_empty());
}

/// Sends the operating system's id of the thread that it runs on, when as many others do so as there are workers.
struct Where(Arc<Barrier>);

impl Actor for Where {
    type Msg = Reply<PathBuf>;

    fn handle(&mut self, reply: Reply<PathBuf>, _cx: &mut Cx<'_, Reply<PathBuf>>) -> Flow {
        self.0.wait();
        reply.send(this_thread()).unwrap();
        Flow::Continue
    }
}

/// Is there while the thread is.
fn this_thread() -> PathBuf {
    let tid = rustix::thread::gettid().as_raw_nonzero();
    PathBuf::from(format!("/proc/self/task/{tid}"))
}

/// The threads of a runtime of three workers, with an actor on it.
fn threads_of(rt: &Runtime, threads: &Threads) -> Vec<PathBuf> {
    let barrier = Arc::new(Barrier::new(3));
    let actors: Vec<_> = (0..3).map(|_| rt.spawn("where", 1, |_| Where(Arc::clone(&barrier)))).collect();
    let (timer, timer_ticket) = rt.reply();
    threads.timer(Time::ZERO, Box::new(move || timer.send(this_thread()).unwrap()));
    let mut tickets = vec![timer_ticket];
    for actor in &actors {
        let (reply, ticket) = rt.reply();
        actor.tell(reply).unwrap();
        tickets.push(ticket);
    }
    let mut found: Vec<_> = tickets.into_iter().map(|ticket| wait(rt, ticket).unwrap()).collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 4, "three workers and a timer thread");
    found
}

#[test]
fn threads_end_after_the_last_handle() {
    let threads = Threads::start(3).unwrap();
    let rt = Runtime::from_scheduler(Arc::<Threads>::clone(&threads));
    let found = threads_of(&rt, &threads);
    let log = Log::default();
    let probe = rt.spawn("probe", 8, |_| Probe::new(&log));
    let weak = Arc::downgrade(&threads);
    drop((rt, threads));
    assert!(found.iter().all(|thread| thread.exists()));
    probe.tell(Do::Note("an address keeps the runtime")).unwrap();
    until("the note", || log.all().len() == 1);
    probe.tell(Do::Note("queued before the end")).unwrap();
    drop(probe);
    until("the end of all threads", || found.iter().all(|thread| !thread.exists()));
    assert!(weak.upgrade().is_none());
    assert_eq!(log.all(), ["an address keeps the runtime", "queued before the end", "dropped"]);
}

/// Holds the last handle of its runtime until it is told to let go.
struct Holder(Option<Runtime>);

impl Actor for Holder {
    type Msg = ();

    fn handle(&mut self, (): (), _cx: &mut Cx<'_, ()>) -> Flow {
        self.0 = None;
        Flow::Stop
    }
}

#[test]
fn the_last_handle_may_go_on_a_worker() {
    let threads = Threads::start(3).unwrap();
    let rt = Runtime::from_scheduler(Arc::<Threads>::clone(&threads));
    let found = threads_of(&rt, &threads);
    drop(threads);
    let holder = rt.spawn("holder", 1, |_| Holder(None));
    let holds = rt.spawn("holds", 1, |_| Holder(Some(rt.clone())));
    drop(rt);
    for actor in [holder, holds] {
        actor.queue(()).unwrap();
    }
    until("the end of all threads", || found.iter().all(|thread| !thread.exists()));
}

#[test]
fn who_holds_a_due_actor_runs_it_or_leaves_it_to_a_worker() {
    let rt = Runtime::threads(1).unwrap();
    let actor = rt.spawn("where", 8, |_| Where(Arc::new(Barrier::new(1))));
    let (reply, mut ticket) = rt.reply();
    let due = actor.queue_due(reply).unwrap().expect("it was idle");
    assert_eq!(due.id(), Some(actor.id()));
    let (second, mut second_ticket) = rt.reply();
    assert!(actor.tell_due(second).unwrap().is_none(), "it is due already, in one pair of hands");
    due.run();
    assert_eq!(ticket.poll(), Some(Ok(this_thread())));
    assert_eq!(second_ticket.poll(), Some(Ok(this_thread())));
    let (reply, ticket) = rt.reply();
    drop(actor.queue_due(reply).unwrap());
    assert_ne!(wait(&rt, ticket), Ok(this_thread()));
}

#[test]
fn deadlines_that_come_and_go_leave_the_timers_thread_asleep() {
    const DEADLINES: u64 = 200;
    let threads = Threads::start(1).unwrap();
    let rt = Runtime::from_scheduler(Arc::<Threads>::clone(&threads));
    let (reply, ticket) = rt.reply();
    threads.timer(Time::ZERO, Box::new(move || reply.send(this_thread()).unwrap()));
    let thread = wait(&rt, ticket).unwrap();
    let sleeps = || -> u64 {
        let status = std::fs::read_to_string(thread.join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    let before = sleeps();
    for i in 0..DEADLINES {
        let id = threads.timer(rt.now() + Duration::from_secs(60 + i), Box::new(|| {}));
        // Looking takes long enough for a thread that was woken to sleep again.
        sleeps();
        threads.cancel(id);
    }
    let woken = sleeps() - before;
    assert!(woken < DEADLINES / 10, "woken {woken} times");
    // One that comes sooner is still rung in time.
    let (reply, ticket) = rt.reply();
    threads.timer(rt.now() + Duration::from_millis(1), Box::new(move || reply.send(5).unwrap()));
    assert_eq!(wait(&rt, ticket), Ok(5));
}
