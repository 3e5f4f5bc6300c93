//! One rank's part in one communicator: what its actor owns and what its handles share with it.
//!
//! [`Core`] is shared by the actor, the job that it polls and the handles that users hold. Its [`State`] is the
//! actor's own: it sits behind a lock only because the job, polled by the same actor, needs it too; nobody else
//! takes that lock, so it is never contended, and no guard lives across an await.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::agreed::Agreed;
use super::dev_comm_handle::DevComm;
use super::flat::{FlatRange, KeptBuffer};
use super::flush::made::MulticastRange;
use super::flush::message::{MemoryId, Token};
use super::index::WindowIndex;
use super::mail::{Closing, CommMsg};
use super::numbers::NumberMap;
use super::objects::Objects;
use super::owned::{Binding, Held, release_all};
use super::replicated::Replicated;
use super::rounds::Rounds;
use super::status::Board;
use super::turns::Turns;
use super::window::Counted;
use super::zoo::Bug;
use crate::actors::{Runtime, WeakAddr};
use crate::bootstrap::Endpoint;
use crate::device::Watch;
use crate::driver::launches::Launches;
use crate::driver::{DeviceError, Driver, Flag, Handle};
use crate::error::{Error, Failure, FailureCause, Misuse, Phase, Result};
use crate::ids::CommId;

/// One rank's part in one communicator.
#[derive(Debug)]
pub(crate) struct Core {
    /// What all ranks agreed on.
    pub(crate) agreed: Agreed,
    /// The communicator's identity.
    pub(crate) id: CommId,
    /// This rank's device.
    pub(crate) driver: Arc<dyn Driver>,
    /// The flat range, shared by the ranks of this process.
    pub(crate) flat: Arc<FlatRange>,
    /// How kernels and barriers learn of a failure.
    pub(crate) watch: Arc<Watch>,
    /// How kernels of the device learn of it, once the first batch has made it.
    pub(crate) flag: Arc<OnceLock<Arc<dyn Flag>>>,
    /// The windows of this rank by address.
    pub(crate) index: WindowIndex<Counted>,
    /// What arrived of the rounds.
    pub(crate) rounds: Rounds,
    /// What `status` shows.
    pub(crate) board: Arc<Board>,
    /// The runtime of its actor.
    pub(crate) runtime: Runtime,
    /// The longest that an operation may take.
    pub(crate) deadline: Duration,
    /// The order of this rank's collectives, which share barriers.
    pub(crate) collective: Turns,
    /// Those of its collectives that run on the device.
    pub(crate) launches: Launches,
    /// Safe copies hold it shared; who unmaps takes it alone for a moment, so that a copy never sees an address
    /// that is gone.
    pub(crate) copies: RwLock<()>,
    /// Host kernels of this rank that run.
    pub(crate) kernels: Kernels,
    /// Where multicast objects of this rank's teams are mapped, by their LSA ranks, for the pointer getters.
    pub(crate) multicast_bases: Mutex<HashMap<Vec<u32>, usize>>,
    /// The collectives' own device communicator, once a window with `COLL_SYMMETRIC` has brought it along.
    pub(crate) collectives: Mutex<Option<DevComm>>,
    /// Each LSA rank's size of those windows where they differ, by the device address of their structs.
    pub(crate) sizes: RwLock<HashMap<u64, Arc<[u64]>>>,
    /// The communicator is closed: its handles are stale.
    pub(crate) closed: AtomicBool,
    /// Where its actor is reached, without keeping it alive.
    pub(crate) actor: WeakAddr<CommMsg>,
    endpoint: Mutex<Option<Arc<Endpoint>>>,
    state: Mutex<State>,
}

/// A host kernel's barrier that fails is the communicator's failure, and every failure ends the waits of kernels.
fn failure_hook(
    actor: WeakAddr<CommMsg>,
    flag: Arc<OnceLock<Arc<dyn Flag>>>,
) -> Box<dyn Fn(&Error) + Send + Sync> {
    Box::new(move |error| {
        if let Some(flag) = flag.get() {
            flag.raise();
        }
        if let (Error::Failed(failure), Some(actor)) = (error, actor.upgrade()) {
            let _ = actor.control(CommMsg::Failed(Arc::clone(failure)));
        }
    })
}

impl Core {
    #[allow(clippy::too_many_arguments, reason = "each is one part, made where the communicator is made")]
    pub(crate) fn new(
        agreed: Agreed,
        id: CommId,
        driver: Arc<dyn Driver>,
        flat: Arc<FlatRange>,
        runtime: Runtime,
        deadline: Duration,
        actor: WeakAddr<CommMsg>,
    ) -> Arc<Self> {
        let state = State::new(&agreed);
        let flag = Arc::default();
        Arc::new(Self {
            board: Arc::new(Board::new(&agreed)),
            agreed,
            id,
            driver,
            flat,
            watch: Watch::with_hook(deadline, failure_hook(actor.clone(), Arc::clone(&flag))),
            flag,
            index: WindowIndex::new(),
            rounds: Rounds::default(),
            runtime,
            deadline,
            collective: Turns::default(),
            launches: Launches::default(),
            copies: RwLock::new(()),
            kernels: Kernels::default(),
            multicast_bases: Mutex::new(HashMap::new()),
            collectives: Mutex::new(None),
            sizes: RwLock::new(HashMap::new()),
            closed: AtomicBool::new(false),
            actor,
            endpoint: Mutex::new(None),
            state: Mutex::new(state),
        })
    }

    /// Whether this bug was planted on this rank: never in normal builds.
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.agreed.has_bug(bug)
    }

    /// The actor's own state. Only the actor and its job call this.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// This rank's connection to the others, `None` once the communicator is closed.
    pub(crate) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        self.endpoint.lock().clone()
    }

    /// Connects this rank. Called once, right after its actor is there.
    pub(crate) fn connect(&self, endpoint: Endpoint) {
        *self.endpoint.lock() = Some(Arc::new(endpoint));
    }

    /// Leaves the communicator's connections.
    pub(crate) fn disconnect(&self) {
        if let Some(endpoint) = self.endpoint.lock().take() {
            self.board.counters(&endpoint);
        }
    }

    /// The failure of this communicator, seen by this rank just now, from `cause`.
    pub(crate) fn failure(&self, operation: &str, phase: Phase, cause: FailureCause) -> Arc<Failure> {
        Arc::new(Failure {
            comm: self.agreed.name.clone(),
            me: self.agreed.me().clone(),
            operation: operation.to_owned(),
            phase,
            cause,
        })
    }

    /// Tells the actor that a window or device communicator was closed. An actor that has ended has closed all.
    pub(crate) fn tell_close(&self, closing: Closing) {
        // Who has left has given all back: what the closing keeps goes here and now.
        if let (Some(actor), Some(_)) = (self.actor.upgrade(), self.endpoint()) {
            let _ = actor.queue(CommMsg::Close(closing));
        } else {
            self.keep_buffers([closing]);
        }
    }

    /// Tells the actor to go on with its job. False if it has ended.
    pub(crate) fn tell_arrived(&self) -> bool {
        self.actor.upgrade().is_some_and(|actor| actor.queue(CommMsg::Arrived).is_ok())
    }

    /// Whether host code can touch the device's memory.
    pub(crate) fn host_access(&self) -> Result<()> {
        let info = self.driver.info();
        if info.host_access {
            return Ok(());
        }
        let what =
            format!("host code cannot touch the memory of {}: copy with the device's own calls", info.name);
        Err(Misuse::Other { what }.into())
    }

    /// Lets go of the buffers under closed windows; where a kernel that outlived the close may still write to them,
    /// they stay as long as its range does.
    pub(crate) fn keep_buffers(&self, closings: impl IntoIterator<Item = Closing>) {
        let kernels_run = !self.kernels.running().is_empty();
        for buffer in closings.into_iter().filter_map(|closing| closing.keep) {
            if kernels_run {
                self.flat.keep(Box::new(KeptBuffer(buffer)));
            }
        }
    }

    /// The error of using this communicator after it was closed.
    pub(crate) fn closed(&self) -> Error {
        Misuse::Closed { what: format!("communicator `{}` on {}", self.agreed.name, self.agreed.rank) }.into()
    }
}

/// What a rank's actor owns.
#[derive(Debug)]
pub(crate) struct State {
    /// Equal on all ranks of the team.
    pub(crate) replicated: Replicated,
    /// Device structs, once the first batch has made them.
    pub(crate) objects: Option<Objects>,
    /// The names of this rank's allocations.
    pub(crate) tokens: Tokens,
    /// This rank's part of every memory that it has not retired.
    pub(crate) memories: BTreeMap<MemoryId, LocalMemory>,
    /// This rank's part of multicast objects, by their team's LSA ranks.
    pub(crate) multicast: BTreeMap<Vec<u32>, LocalMulticast>,
    /// Retired since the last offer.
    pub(crate) retired: Vec<MemoryId>,
    /// Quarantined (offset, span) since the last offer.
    pub(crate) quarantined: Vec<(u64, u64)>,
    /// An offer is out and its batch has not ended: nothing is retired.
    pub(crate) offered: bool,
    /// Memories whose last window closed while an offer was out.
    pub(crate) idle: BTreeSet<MemoryId>,
}

impl State {
    fn new(agreed: &Agreed) -> Self {
        Self {
            replicated: Replicated::new(agreed.stride, agreed.lsa_rank().get()),
            objects: None,
            tokens: Tokens::default(),
            memories: BTreeMap::new(),
            multicast: BTreeMap::new(),
            retired: Vec::new(),
            quarantined: Vec::new(),
            offered: false,
            idle: BTreeSet::new(),
        }
    }

    /// One window less on a memory; the last one retires it, at once or when the batch in flight has ended.
    pub(crate) fn unuse(&mut self, id: MemoryId, core: &Core) {
        let Some(memory) = self.memories.get_mut(&id) else { return };
        memory.windows -= 1;
        if memory.windows > 0 {
            return;
        }
        if self.offered && !core.has_bug(Bug::RetiresInFlight) {
            self.idle.insert(id);
        } else {
            self.retire(id, core);
        }
    }

    /// The batch in flight has ended: memories that became idle meanwhile and were not taken up are retired.
    pub(crate) fn batch_ended(&mut self, core: &Core) {
        self.offered = false;
        for id in std::mem::take(&mut self.idle) {
            if self.memories.get(&id).is_some_and(|memory| memory.windows == 0) {
                self.retire(id, core);
            }
        }
    }

    /// Reports a range that could not be undone; the next offer takes it out of the space on every rank.
    pub(crate) fn quarantine(&mut self, offset: u64, span: u64, errors: &[DeviceError], core: &Core) {
        tracing::error!(
            comm = %core.agreed.name,
            rank = core.agreed.rank.get(),
            offset,
            span,
            ?errors,
            "memory.quarantined"
        );
        if !core.has_bug(Bug::QuarantineUntold) {
            self.quarantined.push((offset, span));
        }
        core.board.undo_failures(errors);
        core.board.committed(self);
    }

    /// Bytes of each stride that are out for good: those that all ranks know of, and what this rank's next offer
    /// will tell.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        if self.quarantined.is_empty() {
            return self.replicated.space.quarantined_bytes();
        }
        let mut space = self.replicated.space.clone();
        for &(offset, span) in &self.quarantined {
            // What this rank took out lay in the space.
            let _ = space.quarantine(offset, span);
        }
        space.quarantined_bytes()
    }

    fn retire(&mut self, id: MemoryId, core: &Core) {
        let Some(memory) = self.memories.remove(&id) else { return };
        if core.has_bug(Bug::UnmapsForAll) {
            core.flat.last_to_retire(id);
        }
        let mut errors = core.flat.retire(id, &*core.driver);
        for &handle in &memory.handles {
            self.tokens.unuse(handle);
        }
        errors.extend(release_all(memory.held));
        if !errors.is_empty() {
            self.quarantine(memory.offset, memory.span, &errors, core);
        }
        if core.has_bug(Bug::RetiresAtOnce) {
            return self.replicated.forget_alone(id);
        }
        self.retired.push(id);
    }
}

/// This rank's part of a memory.
#[derive(Debug)]
pub(crate) struct LocalMemory {
    /// Windows (resource buffers included) of this rank on it.
    pub(crate) windows: usize,
    /// Its place in every stride.
    pub(crate) offset: u64,
    /// How much of every stride it takes.
    pub(crate) span: u64,
    /// This rank's allocations in it.
    pub(crate) handles: Vec<Handle>,
    /// References to them.
    pub(crate) held: Vec<Arc<Held>>,
}

/// This rank's part of a multicast object.
#[derive(Debug)]
pub(crate) struct LocalMulticast {
    /// The object.
    pub(crate) object: Arc<Held>,
    /// Where it is mapped.
    pub(crate) place: MulticastRange,
    /// What is bound, by memory. It may outlive this rank's part of the memory: peers may still store to it.
    pub(crate) bound: BTreeMap<MemoryId, Vec<Binding>>,
}

/// The names of this rank's allocations. A token lives while something refers to the allocation; none is used
/// twice.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    next: u64,
    by_handle: NumberMap<Handle, Named>,
    by_token: NumberMap<Token, Handle>,
}

#[derive(Debug)]
struct Named {
    token: Token,
    size: usize,
    references: usize,
}

impl Tokens {
    /// The token of an allocation of `size` bytes, with one more reference.
    pub(crate) fn obtain(&mut self, handle: Handle, size: usize) -> Token {
        if let Some(named) = self.by_handle.get_mut(&handle) {
            named.references += 1;
            return named.token;
        }
        self.next += 1;
        let token = Token(self.next);
        self.by_handle.insert(handle, Named { token, size, references: 1 });
        self.by_token.insert(token, handle);
        token
    }

    /// One reference less; without any the allocation gets a new token next time.
    pub(crate) fn unuse(&mut self, handle: Handle) {
        if let Some(named) = self.by_handle.get_mut(&handle) {
            named.references -= 1;
            if named.references == 0 {
                self.by_token.remove(&named.token);
                self.by_handle.remove(&handle);
            }
        }
    }

    /// The allocation of a token that lives.
    pub(crate) fn handle(&self, token: Token) -> Option<Handle> {
        self.by_token.get(&token).copied()
    }

    /// The size in bytes of an allocation that has a token.
    pub(crate) fn size(&self, handle: Handle) -> usize {
        self.by_handle.get(&handle).map_or(0, |named| named.size)
    }

    /// Tokens that live.
    pub(crate) fn len(&self) -> usize {
        self.by_handle.len()
    }
}

/// The host kernels of a rank that run, and what else uses its windows' addresses until it says that it has ended.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    inner: Mutex<RunningKernels>,
}

#[derive(Debug, Default)]
struct RunningKernels {
    /// How many have begun: the last one's number.
    begun: u64,
    running: Vec<u64>,
    /// How many views there are of windows, by the device address of their structs. Unlike a kernel, a view knows which
    /// window it sees, and holds no other one.
    views: BTreeMap<u64, usize>,
    /// The actor wants to hear of the next one that ends.
    awaited: bool,
}

impl Kernels {
    /// A kernel starts.
    pub(crate) fn begin(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.begun += 1;
        let id = inner.begun;
        inner.running.push(id);
        id
    }

    /// A kernel has ended; whether the actor waits for that, and so is to be told.
    pub(crate) fn end(&self, id: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.running.retain(|running| *running != id);
        inner.awaited
    }

    /// Those that run now. If there are any, the actor hears of each one's end.
    pub(crate) fn running(&self) -> BTreeSet<u64> {
        let mut inner = self.inner.lock();
        inner.awaited |= !inner.running.is_empty();
        inner.running.iter().copied().collect()
    }

    /// Whether the actor is to hear of the next kernel that ends.
    pub(crate) fn await_end(&self, awaited: bool) {
        self.inner.lock().awaited = awaited;
    }

    /// A view of a window is made.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn begin_view(&self, window: u64) {
        *self.inner.lock().views.entry(window).or_insert(0) += 1;
    }

    /// A view of a window is gone; whether the actor waits for that, and so is to be told.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn end_view(&self, window: u64) -> bool {
        let mut inner = self.inner.lock();
        if let Some(count) = inner.views.get_mut(&window) {
            *count -= 1;
            if *count == 0 {
                inner.views.remove(&window);
            }
        }
        inner.awaited
    }

    /// Whether there are views of a window. If there are, the actor hears of each one's end.
    pub(crate) fn is_viewed(&self, window: u64) -> bool {
        let mut inner = self.inner.lock();
        let viewed = inner.views.contains_key(&window);
        inner.awaited |= viewed;
        viewed
    }

    /// How many views there are of any window. If there are any, the actor hears of each one's end.
    pub(crate) fn views(&self) -> usize {
        let mut inner = self.inner.lock();
        inner.awaited |= !inner.views.is_empty();
        inner.views.values().sum()
    }

    /// Whether none of these runs any more.
    pub(crate) fn ended(&self, ids: &BTreeSet<u64>) -> bool {
        self.inner.lock().running.iter().all(|running| !ids.contains(running))
    }
}
