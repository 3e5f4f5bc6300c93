//! The cell around an actor: runs one message a step, catches panics, ends the actor once.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3Default;

use super::mailbox::{Item, Mailbox, Settled};
use super::scheduler::{Backlog, Runnable, Step, Time};
use super::{Actor, ActorId, Addr, Cx, Due, Exit, Flow, Runtime, TimerId};

/// A cell, as addresses see it: all but the actor's type.
pub(super) trait Post<M>: Runnable {
    fn mailbox(&self) -> &Mailbox<M>;

    fn runtime(&self) -> &Runtime;

    /// This, to be run. Only for who was told so by the mailbox.
    fn due(&self) -> Due;

    /// Gives this to its scheduler. Only for who was told so by the mailbox.
    fn wake(&self) {
        drop(self.due());
    }
}

pub(super) struct Cell<A: Actor> {
    id: ActorId,
    name: Box<str>,
    runtime: Runtime,
    me: Weak<Self>,
    mailbox: Mailbox<A::Msg>,
    /// Locked by the step in progress. `None` while the actor is made, and after its end.
    body: Mutex<Option<Body<A>>>,
}

struct Body<A: Actor> {
    actor: A,
    timers: Timers<A::Msg>,
}

impl<A: Actor> Cell<A> {
    pub(super) fn spawn(
        runtime: &Runtime,
        name: &str,
        mail_capacity: usize,
        make: impl FnOnce(&Addr<A::Msg>) -> A,
    ) -> Addr<A::Msg> {
        let registry = runtime.scheduler().registry();
        let cell = Arc::new_cyclic(|me: &Weak<Self>| Self {
            id: registry.next_actor(),
            name: name.into(),
            runtime: runtime.clone(),
            me: Weak::clone(me),
            mailbox: Mailbox::new(mail_capacity),
            body: Mutex::new(None),
        });
        let as_runnable: Arc<dyn Runnable> = Arc::clone(&cell) as Arc<dyn Runnable>;
        registry.add(cell.id, Arc::downgrade(&as_runnable));
        let addr = Addr::new(Arc::clone(&cell) as Arc<dyn Post<A::Msg>>);
        let actor = panic::catch_unwind(AssertUnwindSafe(|| make(&addr))).unwrap_or_else(|payload| {
            cell.end(&Exit::Panicked(text_of(&*payload)));
            panic::resume_unwind(payload)
        });
        *cell.body.lock() = Some(Body { actor, timers: Timers::default() });
        tracing::debug!(actor = name, id = cell.id.get(), "actor.spawn");
        if cell.mailbox.is_closed() {
            cell.drop_body(); // Shut down while it was made.
        } else if matches!(cell.mailbox.settle(), Settled::Go(Step::More)) {
            cell.wake();
        }
        addr
    }

    /// Lets the actor handle `item`; says how it ended, if it did.
    fn run(&self, item: Item<A::Msg>, me: &Addr<A::Msg>) -> Option<Exit> {
        let mut body = self.body.lock();
        let Body { actor, timers } = body.as_mut()?;
        let mut cx = Cx { me, timers };
        let handled = panic::catch_unwind(AssertUnwindSafe(|| match item {
            Item::Down(who, exit) => actor.down(who, &exit, &mut cx),
            Item::Message(msg) => actor.handle(msg, &mut cx),
            Item::Timer(id) => match cx.timers.take(id) {
                Some(msg) => actor.handle(msg, &mut cx),
                None => Flow::Continue,
            },
        }));
        match handled {
            Ok(Flow::Continue) => None,
            Ok(Flow::Stop) => Some(Exit::Stopped),
            Err(payload) => {
                let message = text_of(&*payload);
                quietly(|| drop(payload));
                tracing::debug!(actor = &*self.name, id = self.id.get(), message, "actor.panic");
                let mut next = Flow::Stop; // Remains so if this panics too.
                quietly(|| next = actor.panicked(&message, &mut cx));
                (next == Flow::Stop).then_some(Exit::Panicked(message))
            }
        }
    }

    /// Ends the actor, once: its value goes first, then its unread messages, then linked actors hear of it.
    fn end(&self, exit: &Exit) {
        let Some(leavings) = self.mailbox.close(exit) else { return };
        self.drop_body();
        leavings.messages.into_iter().for_each(|item| quietly(|| drop(item)));
        self.runtime.scheduler().registry().remove(self.id);
        tracing::debug!(actor = &*self.name, id = self.id.get(), %exit, "actor.stop");
        for peer in leavings.links.values().filter_map(Weak::upgrade) {
            peer.down(self.id, exit);
        }
    }

    fn drop_body(&self) {
        // In two statements: the actor is dropped after the lock was given back.
        let body = self.body.lock().take();
        let Some(Body { actor, timers }) = body else { return };
        quietly(|| drop(actor));
        for (id, msg) in timers.pending.into_values() {
            self.runtime.scheduler().cancel(id);
            quietly(|| drop(msg));
        }
    }
}

impl<A: Actor> Runnable for Cell<A> {
    fn id(&self) -> ActorId {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self) -> Step {
        if let Some(item) = self.mailbox.next() {
            let cell = self.me.upgrade().expect("whoever steps a cell holds it");
            let me = Addr::new(cell as Arc<dyn Post<A::Msg>>);
            if let Some(exit) = self.run(item, &me) {
                self.end(&exit);
                return Step::Idle;
            }
        }
        match self.mailbox.settle() {
            Settled::Go(step) => step,
            Settled::Unreachable => {
                self.end(&Exit::Shutdown);
                Step::Idle
            }
        }
    }

    fn shutdown(&self) {
        self.end(&Exit::Shutdown);
    }

    fn waits_for(&self) -> (bool, Option<String>) {
        // Never waits: the handler in progress may be the one that asks.
        self.body
            .try_lock()
            .map_or((true, None), |body| (false, body.as_ref().and_then(|body| body.actor.waits_for())))
    }

    fn backlog(&self) -> Backlog {
        self.mailbox.backlog()
    }

    fn fingerprint(&self) -> Option<u64> {
        let body = self.body.try_lock()?;
        let Some(Body { actor, timers }) = body.as_ref() else { return Some(0) };
        let of_message = |msg: &A::Msg| actor.message_fingerprint(msg);
        let waiting = self.mailbox.fingerprint(of_message, |id| timers.pending.get(&id).map(|(_, msg)| msg));
        let mut hash = Xxh3Default::new();
        hash.update(&actor.fingerprint()?.to_le_bytes());
        hash.update(&waiting.to_le_bytes());
        for (id, (_, msg)) in &timers.pending {
            hash.update(&id.at().since(Time::ZERO).as_nanos().to_le_bytes());
            hash.update(&of_message(msg).to_le_bytes());
        }
        Some(hash.digest())
    }

    fn link(&self, id: ActorId, peer: &Weak<dyn Runnable>) -> Result<(), Exit> {
        self.mailbox.link(id, peer)
    }

    fn down(&self, who: ActorId, exit: &Exit) {
        if self.mailbox.push_down(who, exit) {
            self.wake();
        }
    }
}

impl<A: Actor> Post<A::Msg> for Cell<A> {
    fn mailbox(&self) -> &Mailbox<A::Msg> {
        &self.mailbox
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn due(&self) -> Due {
        let cell = self.me.upgrade().expect("whoever wakes a cell holds it");
        Due::new(&self.runtime, cell)
    }
}

impl<A: Actor> Drop for Cell<A> {
    fn drop(&mut self) {
        // Only where a scheduler drops what it was given: then at least its end is heard of.
        self.end(&Exit::Shutdown);
    }
}

/// An actor's pending timers. Messages stay here until they are handled: so a cancelled one is never delivered,
/// and none outlives its actor.
pub(super) struct Timers<M> {
    /// By this actor's number for it: the scheduler's number, and the message.
    pending: BTreeMap<TimerId, (TimerId, M)>,
    next_seq: u64,
}

impl<M: Send + 'static> Timers<M> {
    pub(super) fn set(&mut self, me: &Addr<M>, at: Time, msg: M) -> TimerId {
        let id = TimerId::new(at, self.next_seq);
        self.next_seq += 1;
        let cell = me.weak_cell();
        let ring = move || {
            if let Some(cell) = cell.upgrade()
                && cell.mailbox().push_timer(id)
            {
                cell.wake();
            }
        };
        let scheduled = me.runtime().scheduler().timer(at, Box::new(ring));
        self.pending.insert(id, (scheduled, msg));
        id
    }

    pub(super) fn cancel(&mut self, runtime: &Runtime, id: TimerId) -> Option<M> {
        let (scheduled, msg) = self.pending.remove(&id)?;
        runtime.scheduler().cancel(scheduled);
        Some(msg)
    }

    fn take(&mut self, id: TimerId) -> Option<M> {
        self.pending.remove(&id).map(|(_rung, msg)| msg)
    }
}

impl<M> Default for Timers<M> {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), next_seq: 0 }
    }
}

/// Runs a user's code for which a panic changes nothing, such as drops: the others must still go.
fn quietly(run: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(run)) {
        tracing::debug!(message = text_of(&*payload), "actor.panic_again");
    }
}

/// The text of a panic.
pub(crate) fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
