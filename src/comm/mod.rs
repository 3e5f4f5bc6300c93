//! Communicators: the handle that programs hold.

mod config;
pub(crate) mod create;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub use config::Config;
use create::Process;

use crate::actors::{ActorId, Addr, Due, Lost, Runtime, Ticket};
use crate::devr::core::Core;
use crate::devr::dev_comm::DevCommRequirements;
use crate::devr::dev_comm_handle::DevComm;
use crate::devr::flush::message::WindowFlags;
use crate::devr::mail::CommMsg;
use crate::devr::request::Batch;
use crate::devr::status::Status;
use crate::devr::team::Team;
use crate::devr::window::Window;
use crate::driver::buffers::{Buffer, BufferAllocator};
use crate::driver::{DeviceError, DeviceInfo};
use crate::error::{Error, Misuse, Peer, Result};
use crate::group::{Group, Region, Registration};
use crate::ids::{LsaRank, Rank};

/// One rank's handle of a communicator: a set of ranks that register windows and make device communicators
/// together.
///
/// Every method may be called from any thread. Requests outside of a [`Group`] are groups of one and wait for all
/// ranks. A communicator that is dropped without [`Communicator::finalize`] is a lost rank: the peers hear so and
/// theirs fail.
///
/// ```
/// use symwin::{Communicator, Group, WindowFlags};
///
/// # fn main() -> symwin::Result<()> {
/// let ranks = Communicator::in_process(2)?;
/// let buffers = ranks.iter().map(|comm| comm.alloc(1 << 20)).collect::<symwin::Result<Vec<_>>>()?;
/// let group = Group::start();
/// let pending: Vec<_> = ranks
///     .iter()
///     .zip(&buffers)
///     .map(|(comm, buffer)| group.register(comm, buffer, WindowFlags::empty()))
///     .collect();
/// group.end()?;
/// let windows = pending.into_iter().map(|window| window.wait()).collect::<symwin::Result<Vec<_>>>()?;
///
/// windows[0].write(ranks[1].rank(), 0, b"hello")?; // rank 0 writes into rank 1's buffer
/// let mut heard = [0; 5];
/// buffers[1].read(0, &mut heard)?;
/// assert_eq!(&heard, b"hello");
/// for comm in ranks {
///     comm.finalize()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Communicator {
    shared: Arc<Shared>,
    finalized: AtomicBool,
}

/// What a communicator's handles share.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    actor: Addr<CommMsg>,
    process: Arc<Process>,
    buffers: BufferAllocator,
    /// How often each name was used for a duplicate.
    duplicates: Mutex<HashMap<String, u32>>,
}

impl Shared {
    /// Its actor's number.
    pub(crate) fn actor_id(&self) -> ActorId {
        self.actor.id()
    }

    /// Hands a batch to the actor, which comes back if it must be run for it. One that has ended drops the batch, which
    /// answers everyone.
    pub(crate) fn send(&self, batch: Batch) -> Option<Due> {
        self.core.runtime.pause();
        self.actor.queue_due(CommMsg::Batch(batch)).ok().flatten()
    }

    /// See [`Communicator::abort`].
    pub(crate) fn abort(&self, reason: &str) {
        let _ = self.actor.control(CommMsg::Abort(reason.to_owned()));
    }

    /// Ends the actor between two of its steps, and so its job where that waits, for tests of what then holds.
    pub(crate) fn shut_down(&self) {
        self.actor.runnable().shutdown();
    }
}

impl Communicator {
    /// A communicator of `ranks` ranks that are all in this process, as threads use them: one handle for each, by
    /// rank. Its configuration comes from the environment ([`Config::from_env`]).
    ///
    /// # Errors
    /// [`Error::Bootstrap`], [`Error::Device`], or [`Misuse::BadSetting`].
    pub fn in_process(ranks: u32) -> Result<Vec<Self>> {
        create::in_process(&[ranks], &Config::from_env()?)
    }

    /// The same with a configuration.
    ///
    /// # Errors
    /// As [`Communicator::in_process`].
    pub fn in_process_with(ranks: u32, config: &Config) -> Result<Vec<Self>> {
        create::in_process(&[ranks], config)
    }

    /// A communicator whose ranks are in this operating-system process but count as several processes, `layout[i]`
    /// ranks in process i, connected by sockets: what runs across processes can be tested in one.
    ///
    /// # Errors
    /// As [`Communicator::in_process`].
    pub fn in_processes_with(layout: &[u32], config: &Config) -> Result<Vec<Self>> {
        create::in_process(layout, config)
    }

    /// This process's only rank in a communicator of processes on one host, from the environment: `RANK`,
    /// `WORLD_SIZE` and `SYMWIN_RENDEZVOUS`, a name of the launcher's choice with at least 128 random bits that is
    /// equal for all processes and used once. The program `symwin launch` is such a launcher.
    ///
    /// # Errors
    /// As [`Communicator::in_process`], and [`Misuse::BadSetting`] if this process has several ranks.
    pub fn from_env() -> Result<Self> {
        let mut ranks = Self::ranks_from_env()?;
        match (ranks.pop(), ranks.is_empty()) {
            (Some(rank), true) => Ok(rank),
            _ => Err(Misuse::BadSetting {
                name: "SYMWIN_RANKS_PER_PROCESS".to_owned(),
                value: std::env::var("SYMWIN_RANKS_PER_PROCESS").unwrap_or_default(),
                why: "this process has several ranks; take them with `Communicator::ranks_from_env`"
                    .to_owned(),
            }
            .into()),
        }
    }

    /// This process's ranks in a communicator of processes on one host, by rank. As [`Communicator::from_env`], and
    /// with `SYMWIN_RANKS_PER_PROCESS` (1 if it is not set) ranks in each process, fewer in the last; `RANK` is the
    /// process's first.
    ///
    /// # Errors
    /// As [`Communicator::in_process`].
    pub fn ranks_from_env() -> Result<Vec<Self>> {
        create::from_env(&Config::from_env()?)
    }

    /// The same with a configuration.
    ///
    /// # Errors
    /// As [`Communicator::in_process`].
    pub fn ranks_from_env_with(config: &Config) -> Result<Vec<Self>> {
        create::from_env(config)
    }

    /// Another communicator of the same ranks over the same connections. Every rank calls it with the same names in
    /// the same order; none waits for another. It outlives its parent.
    ///
    /// # Errors
    /// [`Misuse::Closed`] or the parent's failure.
    pub fn duplicate(&self, name: &str) -> Result<Self> {
        self.usable()?;
        self.shared.core.runtime.pause();
        let count = {
            let mut duplicates = self.shared.duplicates.lock();
            let count = duplicates.entry(name.to_owned()).or_insert(0);
            *count += 1;
            *count
        };
        let core = &self.shared.core;
        let id = core.id.duplicate(name, count);
        let rank = create::NewRank {
            agreed: core.agreed.renamed(name),
            id,
            driver: Arc::clone(&core.driver),
            buffers: self.shared.buffers.clone(),
            deadline: core.deadline,
        };
        Ok(rank.start(&self.shared.process))
    }

    /// What runs its actor. Threads that a program starts through it ([`Runtime::host`]) are part of the schedule where
    /// this is a simulation.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.shared.core.runtime
    }

    /// The communicator's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.core.agreed.name
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.shared.core.agreed.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.shared.core.agreed.world_size()
    }

    /// Every rank, by rank.
    #[must_use]
    pub fn peers(&self) -> &[Peer] {
        &self.shared.core.agreed.world
    }

    /// This rank's index in its LSA team.
    #[must_use]
    pub fn lsa_rank(&self) -> LsaRank {
        self.shared.core.agreed.lsa_rank()
    }

    /// Number of ranks in an LSA team: those whose memory this rank can load and store, itself included.
    #[must_use]
    pub fn lsa_size(&self) -> u32 {
        self.shared.core.agreed.lsa_size
    }

    /// The team of all ranks.
    ///
    /// # Errors
    /// Never for a communicator's own sizes.
    pub fn world_team(&self) -> Result<Team> {
        Ok(Team::world(self.rank(), self.world_size())?)
    }

    /// The LSA team.
    ///
    /// # Errors
    /// Never for a communicator's own sizes.
    pub fn lsa_team(&self) -> Result<Team> {
        Ok(Team::lsa(self.rank(), self.world_size(), self.lsa_size())?)
    }

    /// Bytes from one LSA rank's part of the flat range to the next; equal on all ranks.
    #[must_use]
    pub fn stride(&self) -> u64 {
        self.shared.core.agreed.stride
    }

    /// What windows' mappings are aligned to on every rank, in bytes.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.shared.core.agreed.granularity
    }

    /// This rank's device.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        self.shared.core.driver.info()
    }

    /// Memory of this rank's device that can be registered, zeroed, carved from a few large allocations.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.shared.buffers.alloc(bytes)?)
    }

    /// The same in an allocation of its own.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn alloc_own(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.shared.buffers.alloc_own(bytes)?)
    }

    /// The same over several allocations side by side, of these sizes in bytes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn alloc_segments(&self, bytes: &[usize]) -> Result<Buffer> {
        Ok(self.shared.buffers.alloc_segments(bytes)?)
    }

    /// Registers a window as a group of one, and waits for all ranks.
    ///
    /// # Errors
    /// Why it could not be made: see [`Error`].
    pub fn register(&self, region: impl Into<Region>, flags: WindowFlags) -> Result<Window> {
        self.register_with(Registration::new(region).flags(flags))
    }

    /// Registers a window with everything that can be said of it, as a group of one.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn register_with(&self, registration: Registration) -> Result<Window> {
        let group = Group::start();
        let window = group.register_with(self, registration);
        drop(group.submit());
        window.wait()
    }

    /// Makes a device communicator as a group of one, and waits for all ranks.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn create_dev_comm(&self, requirements: DevCommRequirements) -> Result<DevComm> {
        let group = Group::start();
        let dev_comm = group.create_dev_comm(self, requirements);
        drop(group.submit());
        dev_comm.wait()
    }

    /// The innermost open window that contains all of `len` bytes at `address`, an address of this rank's own
    /// buffers. Waits for nobody and takes no lock.
    #[must_use]
    pub fn find_window(&self, address: *const u8, len: usize) -> Option<Window> {
        Window::find(&self.shared.core.index, address.addr(), len)
    }

    /// The collectives' own device communicator, once a window with [`WindowFlags::COLL_SYMMETRIC`] has brought it
    /// along.
    #[must_use]
    pub fn collectives(&self) -> Option<DevComm> {
        self.shared.core.collectives.lock().clone()
    }

    /// What this rank's communicator is doing and what it holds. Asks nobody.
    #[must_use]
    pub fn status(&self) -> Status {
        let core = &self.shared.core;
        let waits = core.rounds.waits().map(|waits| waits.missing).unwrap_or_default();
        let missing = waits.into_iter().map(|rank| core.agreed.world[rank.index()].clone()).collect();
        if let Some(endpoint) = core.endpoint() {
            core.board.counters(&endpoint);
        }
        core.board.snapshot(core.runtime.now(), core.index.len(), missing)
    }

    /// Fails the communicator on all ranks, at once and without waiting for anyone: every wait ends with an error that
    /// names this rank and the reason. What it holds is given back when it is finalized or dropped.
    pub fn abort(&self, reason: &str) {
        self.shared.core.runtime.pause();
        self.shared.abort(reason);
    }

    /// Ends this rank's part: waits for what it has queued, says goodbye, waits for its host kernels, and gives
    /// everything back. Waits for no peer otherwise: other ranks may go on with what they have, but no further
    /// batch completes. All handles of this rank are stale after it.
    ///
    /// A failed communicator is finalized just so; that is clean too.
    ///
    /// # Errors
    /// [`Error::Limit`] if host kernels did not end within the deadline (their range stays mapped then), or if the
    /// goodbye did not leave this process; [`Error::Device`] with the first undo call that failed, all others having
    /// been made; [`Error::Failed`] for a panic while closing.
    pub fn finalize(self) -> Result<()> {
        let core = Arc::clone(&self.shared.core);
        core.runtime.pause();
        let ticket = self.begin_finalize()?;
        let errors = match ticket.wait() {
            Ok(outcome) => outcome?,
            Err(Lost) => return Err(self.shared.lost()),
        };
        let drained = self.shared.process.hub.drain(core.deadline);
        closed_with(errors)?;
        if drained {
            return Ok(());
        }
        let what = "this rank's goodbye to leave the process".to_owned();
        Err(Error::Limit { what, waited: core.deadline })
    }

    /// The same for who must not block: nobody waits until the goodbye has left the process.
    pub(crate) async fn finalize_undrained(self) -> Result<()> {
        let ticket = self.begin_finalize()?;
        match ticket.await {
            Ok(outcome) => closed_with(outcome?),
            Err(Lost) => Err(self.shared.lost()),
        }
    }

    fn begin_finalize(&self) -> Result<Ticket<Result<Vec<DeviceError>>>> {
        self.finalized.store(true, Ordering::Relaxed);
        let core = &self.shared.core;
        core.launches.mark();
        let (reply, ticket) = core.runtime.reply();
        if self.shared.actor.queue(CommMsg::Finalize(reply)).is_err() {
            // This handle has not closed it, so its actor was ended: the error says why.
            return Err(self.shared.lost());
        }
        Ok(ticket)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn usable(&self) -> Result<()> {
        let core = &self.shared.core;
        if core.closed.load(Ordering::Acquire) {
            return Err(core.closed());
        }
        core.watch.error().map_or(Ok(()), Err)
    }
}

/// The first undo call that failed in a close.
fn closed_with(errors: Vec<DeviceError>) -> Result<()> {
    errors.into_iter().next().map_or(Ok(()), |error| Err(Error::Device(error)))
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.finalized.load(Ordering::Relaxed) {
            self.shared.core.launches.mark();
            let _ = self.shared.actor.control(CommMsg::Dropped);
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("name", &self.name())
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .finish_non_exhaustive()
    }
}
