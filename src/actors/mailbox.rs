//! Lanes and addresses.
//!
//! The three lanes of an actor are deques under one lock, not channels: that one lock decides in one step which lane
//! goes first, whether the actor must be scheduled, whether it has ended and who must hear of it, and it hands a
//! refused message back. It is held for a few instructions, and never while a user's value is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3Default;

use super::cell::Post;
use super::scheduler::{Backlog, Runnable, Step};
use super::{ActorId, Due, Exit, Runtime, TimerId};

/// A message that was not accepted; here it is back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected<M> {
    /// The actor has ended.
    #[error("the actor has ended")]
    Closed(M),
    /// The mail lane is full.
    #[error("the actor's mailbox is full")]
    Full(M),
}

impl<M> Rejected<M> {
    /// The message.
    #[must_use]
    pub fn into_inner(self) -> M {
        match self {
            Self::Closed(msg) | Self::Full(msg) => msg,
        }
    }
}

impl<M> fmt::Debug for Rejected<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "Closed(..)",
            Self::Full(_) => "Full(..)",
        })
    }
}

/// An actor's address. Keeps the actor and its runtime alive: see the [module](super).
pub struct Addr<M> {
    /// Its mailbox counts this address.
    cell: Arc<dyn Post<M>>,
}

impl<M> Addr<M> {
    /// Sends on the mail lane, which is bounded.
    ///
    /// # Errors
    /// [`Rejected::Full`] or [`Rejected::Closed`] with the message.
    pub fn tell(&self, msg: M) -> Result<(), Rejected<M>> {
        self.send(Lane::Mail, msg)
    }

    /// Sends on the control lane, which has no bound and is served before the others.
    ///
    /// # Errors
    /// [`Rejected::Closed`] with the message.
    pub fn control(&self, msg: M) -> Result<(), Rejected<M>> {
        self.send(Lane::Control, msg)
    }

    /// Sends on the lane of callers' requests, which has no bound and is served after the others.
    ///
    /// # Errors
    /// [`Rejected::Closed`] with the message, never [`Rejected::Full`].
    pub fn queue(&self, msg: M) -> Result<(), Rejected<M>> {
        self.send(Lane::Queue, msg)
    }

    /// As [`Addr::tell`]; gives the actor back if it must be run for it.
    ///
    /// # Errors
    /// As [`Addr::tell`].
    pub fn tell_due(&self, msg: M) -> Result<Option<Due>, Rejected<M>> {
        self.send_due(Lane::Mail, msg)
    }

    /// As [`Addr::queue`]; gives the actor back if it must be run for it.
    ///
    /// # Errors
    /// As [`Addr::queue`].
    pub fn queue_due(&self, msg: M) -> Result<Option<Due>, Rejected<M>> {
        self.send_due(Lane::Queue, msg)
    }

    /// The actor's number.
    #[must_use]
    pub fn id(&self) -> ActorId {
        self.cell.id()
    }

    /// The actor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.cell.name()
    }

    /// Whether the actor has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.cell.mailbox().is_closed()
    }

    /// An address that does not keep the actor alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakAddr<M> {
        WeakAddr { id: self.id(), cell: Arc::downgrade(&self.cell) }
    }

    /// Counts a new address of this cell, which may have none left while it handles its last messages.
    pub(super) fn new(cell: Arc<dyn Post<M>>) -> Self {
        cell.mailbox().addrs.fetch_add(1, Ordering::Relaxed);
        Self { cell }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.cell.runtime()
    }

    pub(crate) fn runnable(&self) -> Arc<dyn Runnable>
    where
        M: 'static,
    {
        Arc::clone(&self.cell) as Arc<dyn Runnable>
    }

    pub(super) fn weak_cell(&self) -> Weak<dyn Post<M>> {
        Arc::downgrade(&self.cell)
    }

    fn send(&self, lane: Lane, msg: M) -> Result<(), Rejected<M>> {
        self.send_due(lane, msg).map(drop)
    }

    fn send_due(&self, lane: Lane, msg: M) -> Result<Option<Due>, Rejected<M>> {
        let is_due = self.cell.mailbox().push(lane, msg)?;
        Ok(is_due.then(|| self.cell.due()))
    }
}

impl<M> Clone for Addr<M> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.cell))
    }
}

impl<M> Drop for Addr<M> {
    fn drop(&mut self) {
        let mailbox = self.cell.mailbox();
        // Release, so that whoever sees no address left (`settle`, under the lock) sees all that was done with them.
        if mailbox.addrs.fetch_sub(1, Ordering::AcqRel) == 1 && mailbox.schedule() {
            self.cell.wake();
        }
    }
}

impl<M> fmt::Debug for Addr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addr({} {})", self.name(), self.id())
    }
}

/// An address that keeps nothing alive.
pub struct WeakAddr<M> {
    id: ActorId,
    cell: Weak<dyn Post<M>>,
}

impl<M> WeakAddr<M> {
    /// The address, unless all addresses of the actor are gone.
    #[must_use]
    pub fn upgrade(&self) -> Option<Addr<M>> {
        let cell = self.cell.upgrade()?;
        let one_more = |count: usize| (count > 0).then(|| count + 1);
        let counted =
            cell.mailbox().addrs.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
        // Lazily: an address that was not counted must not be dropped either.
        counted.then(|| Addr { cell })
    }

    /// The actor's number.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.id
    }
}

impl<M> Clone for WeakAddr<M> {
    fn clone(&self) -> Self {
        Self { id: self.id, cell: Weak::clone(&self.cell) }
    }
}

impl<M> fmt::Debug for WeakAddr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakAddr({})", self.id)
    }
}

#[derive(Clone, Copy, Debug)]
enum Lane {
    Control,
    Mail,
    Queue,
}

/// What a step takes out of the lanes.
pub(super) enum Item<M> {
    Down(ActorId, Exit),
    Message(M),
    /// This timer of the actor rang; its message is with the actor unless it was cancelled.
    Timer(TimerId),
}

/// What is to do after a step.
pub(super) enum Settled {
    Go(Step),
    /// Nothing waits and nobody can send any more.
    Unreachable,
}

/// What an ended actor leaves behind. Drop it outside of locks.
pub(super) struct Leavings<M> {
    pub(super) messages: Vec<Item<M>>,
    pub(super) links: BTreeMap<ActorId, Weak<dyn Runnable>>,
}

/// The lanes of one actor.
pub(super) struct Mailbox<M> {
    capacity: usize,
    /// How many [`Addr`] there are.
    addrs: AtomicUsize,
    lanes: Mutex<Lanes<M>>,
}

struct Lanes<M> {
    control: VecDeque<Item<M>>,
    /// At most `capacity`.
    mail: VecDeque<M>,
    queue: VecDeque<M>,
    /// Who hears of this actor's end; in order, so that a simulation repeats.
    links: BTreeMap<ActorId, Weak<dyn Runnable>>,
    /// How the actor ended. Nothing is in a lane then.
    closed: Option<Exit>,
    /// The actor is being made, is with its scheduler, or has ended: no need to schedule it.
    scheduled: bool,
}

impl<M> Mailbox<M> {
    /// Counted as scheduled until the actor is made: [`Mailbox::settle`].
    pub(super) fn new(capacity: usize) -> Self {
        let lanes = Lanes {
            control: VecDeque::new(),
            mail: VecDeque::new(),
            queue: VecDeque::new(),
            links: BTreeMap::new(),
            closed: None,
            scheduled: true,
        };
        Self { capacity, addrs: AtomicUsize::new(0), lanes: Mutex::new(lanes) }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lanes.lock().closed.is_some()
    }

    pub(super) fn backlog(&self) -> Backlog {
        let lanes = self.lanes.lock();
        Backlog { control: lanes.control.len(), mail: lanes.mail.len(), queue: lanes.queue.len() }
    }

    /// A number of what waits in the lanes, in order, given one for each message. `timer` finds the message of one.
    pub(super) fn fingerprint<'t>(
        &self,
        of_message: impl Fn(&M) -> u64,
        timer: impl Fn(TimerId) -> Option<&'t M>,
    ) -> u64
    where
        M: 't,
    {
        let lanes = self.lanes.lock();
        let mut hash = Xxh3Default::new();
        let mut add = |lane: u64, print: u64| {
            hash.update(&lane.to_le_bytes());
            hash.update(&print.to_le_bytes());
        };
        for item in &lanes.control {
            match item {
                Item::Down(who, _) => add(1, who.get()),
                Item::Message(msg) => add(2, of_message(msg)),
                Item::Timer(id) => add(3, timer(*id).map_or(0, &of_message)),
            }
        }
        lanes.mail.iter().for_each(|msg| add(4, of_message(msg)));
        lanes.queue.iter().for_each(|msg| add(5, of_message(msg)));
        add(6, u64::from(lanes.closed.is_some()));
        hash.digest()
    }

    /// Adds a message; says whether the actor must be scheduled.
    fn push(&self, lane: Lane, msg: M) -> Result<bool, Rejected<M>> {
        let mut lanes = self.lanes.lock();
        if lanes.closed.is_some() {
            return Err(Rejected::Closed(msg));
        }
        match lane {
            Lane::Control => lanes.control.push_back(Item::Message(msg)),
            Lane::Mail if lanes.mail.len() >= self.capacity => return Err(Rejected::Full(msg)),
            Lane::Mail => lanes.mail.push_back(msg),
            Lane::Queue => lanes.queue.push_back(msg),
        }
        Ok(lanes.schedule())
    }

    /// A timer rang; says whether the actor must be scheduled.
    pub(super) fn push_timer(&self, id: TimerId) -> bool {
        self.push_news(Item::Timer(id))
    }

    /// A linked actor ended; says whether this one must be scheduled.
    pub(super) fn push_down(&self, who: ActorId, exit: &Exit) -> bool {
        self.lanes.lock().links.remove(&who);
        self.push_news(Item::Down(who, exit.clone()))
    }

    /// Adds to the control lane. `news` holds nothing of a user's, so it may be dropped under the lock.
    fn push_news(&self, news: Item<M>) -> bool {
        let mut lanes = self.lanes.lock();
        if lanes.closed.is_some() {
            return false;
        }
        lanes.control.push_back(news);
        lanes.schedule()
    }

    /// Has the actor looked at, though nothing was sent; says whether it must be scheduled.
    fn schedule(&self) -> bool {
        self.lanes.lock().schedule()
    }

    /// Takes the next message: control before mail before queue.
    pub(super) fn next(&self) -> Option<Item<M>> {
        let mut lanes = self.lanes.lock();
        if let Some(item) = lanes.control.pop_front() {
            return Some(item);
        }
        lanes.mail.pop_front().or_else(|| lanes.queue.pop_front()).map(Item::Message)
    }

    /// After a step: is there more? Otherwise the next message schedules again.
    pub(super) fn settle(&self) -> Settled {
        let mut lanes = self.lanes.lock();
        if lanes.closed.is_some() {
            return Settled::Go(Step::Idle);
        }
        if !(lanes.control.is_empty() && lanes.mail.is_empty() && lanes.queue.is_empty()) {
            return Settled::Go(Step::More);
        }
        // The last address may go right after this look; then it finds the actor unscheduled and schedules it.
        if self.addrs.load(Ordering::Acquire) == 0 {
            return Settled::Unreachable;
        }
        lanes.scheduled = false;
        Settled::Go(Step::Idle)
    }

    /// Ends it, once.
    pub(super) fn close(&self, exit: &Exit) -> Option<Leavings<M>> {
        let mut lanes = self.lanes.lock();
        if lanes.closed.is_some() {
            return None;
        }
        lanes.closed = Some(exit.clone());
        lanes.scheduled = true;
        let mut messages: Vec<_> = lanes.control.drain(..).collect();
        messages.extend(lanes.mail.drain(..).map(Item::Message));
        messages.extend(lanes.queue.drain(..).map(Item::Message));
        Some(Leavings { messages, links: std::mem::take(&mut lanes.links) })
    }

    /// Has `peer` told of this actor's end; if it has ended, returns how.
    pub(super) fn link(&self, id: ActorId, peer: &Weak<dyn Runnable>) -> Result<(), Exit> {
        let mut lanes = self.lanes.lock();
        if let Some(exit) = &lanes.closed {
            return Err(exit.clone());
        }
        lanes.links.insert(id, Weak::clone(peer));
        Ok(())
    }
}

impl<M> Lanes<M> {
    fn schedule(&mut self) -> bool {
        !std::mem::replace(&mut self.scheduled, true)
    }
}
