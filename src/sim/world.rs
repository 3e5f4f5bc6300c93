//! The world of one run: its processes, their communicators, and the programs that drive them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;

use super::engine::Engine;
use super::net::NetCarrier;
use super::oracle::Seen;
use super::process::ProcessRuntime;
use super::random::mix_bytes;
use crate::actors::{Runtime, Time};
use crate::bootstrap::Hub;
use crate::bootstrap::layout::Layout;
use crate::comm::create::{Fleet, Site};
use crate::comm::{Communicator, Config};
use crate::devr::core::Core;
use crate::devr::status::Board;
use crate::devr::zoo::Bugs;
use crate::driver::faulty::Faulty;
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::multicast::{MulticastBoard, MulticastDriver};
use crate::driver::null::{NullDriver, NullFabric, NullOptions};
use crate::driver::{DeviceError, Driver};
use crate::error::{Misuse, Result};
use crate::ids::ProcessId;

/// Where the ranks of a world are: hosts of processes of ranks, all alike. An LSA team is a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "three plain figures")]
pub struct Shape {
    /// Hosts.
    pub hosts: u32,
    /// Processes on each host.
    pub processes: u32,
    /// Ranks in each process.
    pub ranks: u32,
}

impl Shape {
    /// One host with a process for each rank.
    #[must_use]
    pub const fn processes(ranks: u32) -> Self {
        Self { hosts: 1, processes: ranks, ranks: 1 }
    }

    /// The number of ranks.
    #[must_use]
    pub const fn world_size(self) -> u32 {
        self.hosts.saturating_mul(self.processes).saturating_mul(self.ranks)
    }

    /// Whether there can be such a world.
    ///
    /// # Errors
    /// [`Misuse::BadSetting`] for a world of no ranks, or of more than a simulation has room for.
    pub fn check(self) -> Result<()> {
        let processes = self.hosts.saturating_mul(self.processes);
        if (1..=PROCESSES_MAX).contains(&processes) && (1..=RANKS_MAX).contains(&self.world_size()) {
            return Ok(());
        }
        let Self { hosts, processes, ranks } = self;
        let value = format!("{hosts} hosts of {processes} processes of {ranks} ranks");
        let why = format!("a simulated world has 1 to {PROCESSES_MAX} processes and 1 to {RANKS_MAX} ranks");
        Err(Misuse::BadSetting { name: "shape".to_owned(), value, why }.into())
    }

    fn layout(self) -> Vec<u32> {
        vec![self.ranks; (self.hosts * self.processes) as usize]
    }
}

/// What devices a simulated world has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Memory of the host, really mapped: peer pointers can be checked.
    #[default]
    Host,
    /// The same as null, with multicast objects, of which there are books only. Each process has one rank.
    Multicast,
    /// Nothing behind the handles: for scale.
    Null,
}

/// One process's device, as oracles see it.
enum Watched {
    Host(Arc<HostDriver>),
    Null(Arc<NullDriver>),
}

impl Watched {
    /// What it still holds, in words.
    fn held(&self) -> Option<String> {
        match self {
            Self::Host(driver) => {
                let counts = driver.counts();
                (counts != Default::default()).then(|| format!("{counts:?}"))
            }
            Self::Null(driver) => {
                let counts = driver.counts();
                (!counts.is_empty()).then(|| format!("{counts:?}"))
            }
        }
    }
}

/// One rank of one communicator, as oracles see it.
pub(super) struct WatchedRank {
    pub(super) comm: String,
    pub(super) rank: u32,
    pub(super) team: u32,
    pub(super) board: Arc<Board>,
    pub(super) core: Weak<Core>,
}

/// One run's world. See [`check`](super::check).
pub struct World {
    pub(super) engine: Arc<Engine>,
    device: Device,
    deadline: Duration,
    /// What is planted in communicators: nothing in normal builds.
    pub(crate) bugs: Mutex<Bugs>,
    pub(super) inner: Mutex<Inner>,
    fabric: Arc<NullFabric>,
    board: Arc<MulticastBoard>,
}

#[derive(Default)]
pub(super) struct Inner {
    fleets: BTreeMap<Shape, Arc<Fleet>>,
    /// Of communicators: frames are told apart by them, and so are oracles' findings.
    names: BTreeSet<String>,
    devices: Vec<(Watched, Arc<Faulty>)>,
    runtimes: Vec<Arc<ProcessRuntime>>,
    pub(super) ranks: Vec<WatchedRank>,
    /// Where the first rank of each team that told of it saw the window of a task: by communicator, team, task.
    pub(super) placed: BTreeMap<(String, u32, String), Seen>,
    /// What programs reported.
    pub(super) failures: Vec<String>,
    /// Communicators that are still there when the world ends.
    pub(super) kept: Vec<Communicator>,
}

impl World {
    pub(super) fn new(engine: &Arc<Engine>, device: Device, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            device,
            deadline,
            bugs: Mutex::default(),
            inner: Mutex::default(),
            fabric: NullFabric::new(),
            board: MulticastBoard::new(),
        })
    }

    /// A communicator of `ranks` ranks, each a process of its own on one host: one handle for each, by rank.
    ///
    /// # Errors
    /// As [`Communicator::in_process`].
    pub fn communicator(&self, name: &str, ranks: u32) -> Result<Vec<Communicator>> {
        self.communicator_of(name, Shape::processes(ranks))
    }

    /// A communicator over hosts and processes. Communicators of equal shape are over the same processes and
    /// connections; each name is used once.
    ///
    /// # Errors
    /// As [`Communicator::in_process`], `BadSetting` for a shape without ranks or with too many, and for a name that was
    /// used before, among them.
    pub fn communicator_of(&self, name: &str, shape: Shape) -> Result<Vec<Communicator>> {
        shape.check()?;
        if !self.inner.lock().names.insert(name.to_owned()) {
            let (name, value) = ("name".to_owned(), name.to_owned());
            let why = "another communicator of this world has it".to_owned();
            return Err(Misuse::BadSetting { name, value, why }.into());
        }
        let fleet = self.fleet(shape)?;
        let mut config = Config::new().name(name).deadline(self.deadline);
        if shape.hosts > 1 {
            config = config.lsa_team_size(shape.processes * shape.ranks);
        }
        config.bugs = self.bugs.lock().clone();
        let ranks = fleet.communicator(&config)?;
        for comm in &ranks {
            self.watch(comm);
        }
        Ok(ranks)
    }

    /// Has the oracles look at a communicator that the program made itself: a duplicate.
    pub fn watch(&self, comm: &Communicator) {
        let shared = comm.shared();
        let core = &shared.core;
        let agreed = &core.agreed;
        self.inner.lock().ranks.push(WatchedRank {
            comm: format!("{} ({:?})", agreed.name, core.id),
            rank: agreed.rank.get(),
            team: agreed.team(),
            board: Arc::clone(&core.board),
            core: Arc::downgrade(core),
        });
        self.engine.state().plan.comms.push(Arc::downgrade(shared));
    }

    /// Starts a host thread with an ordinary program, which may block. It fails the run if it returns an error or
    /// panics. Between two blocking calls it runs without a switch, but for the moments before it asks a
    /// communicator for something.
    ///
    /// # Errors
    /// [`BootstrapError::Os`](crate::error::BootstrapError::Os) when the thread cannot be started.
    pub fn host<E: fmt::Display>(
        self: &Arc<Self>,
        name: &str,
        program: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<()> {
        let (world, who) = (Arc::downgrade(self), name.to_owned());
        self.engine.host(
            name,
            self.engine.begins(),
            Box::new(move || {
                if let Err(error) = program() {
                    fail(&world, &format!("{who} failed: {error}"));
                }
            }),
        )
    }

    /// Adds a scripted program: one that never blocks and awaits instead, which costs no thread. It fails the run if it
    /// returns an error or panics.
    pub fn script<E: fmt::Display>(
        self: &Arc<Self>,
        name: &str,
        program: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let (world, who) = (Arc::downgrade(self), name.to_owned());
        let program = async move {
            if let Err(error) = program.await {
                fail(&world, &format!("{who} failed: {error}"));
            }
        };
        self.engine.script(name, self.engine.begins(), Box::pin(program));
    }

    /// Ends a script after its communicator, without blocking.
    ///
    /// # Errors
    /// As [`Communicator::finalize`].
    pub async fn finalize(comm: Communicator) -> Result<()> {
        comm.finalize_undrained().await
    }

    /// Lets the other tasks go first: a script's own point between two requests.
    pub async fn give_way() {
        let mut told = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut told, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Keeps communicators until the world ends, which then says no goodbyes: in a world of thousands of ranks these
    /// would be most of the steps. What is left at the end is not looked at.
    pub fn keep(&self, comms: Vec<Communicator>) {
        self.inner.lock().kept.extend(comms);
    }

    /// Kills a process of the world, by its number: its peers hear so behind what it had sent.
    pub fn kill(&self, process: u32) {
        self.engine.kill(process as usize);
    }

    /// Breaks the connection between two processes.
    pub fn cut(&self, a: u32, b: u32) {
        self.engine.sever(a as usize, b as usize);
    }

    /// Holds everything between the processes of a group and the others, until [`World::heal`]: as often as partitions
    /// that part the two.
    pub fn partition(&self, group: &[u32]) {
        self.engine.hold(&numbers(group), true);
    }

    /// Ends a partition of this group.
    pub fn heal(&self, group: &[u32]) {
        self.engine.hold(&numbers(group), false);
    }

    /// The virtual time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.engine.now().since(Time::ZERO)
    }

    /// A number below `bound` from the run's seed; a choice like any other for depth-first.
    #[must_use]
    pub fn draw(&self, bound: u64) -> u64 {
        self.engine.draw(bound)
    }

    /// Adds something to the run's digest, which must be equal whenever the schedule is: no address, no real time.
    pub fn note(&self, what: &str) {
        let mut state = self.engine.state();
        let before = state.digest();
        state.note(mix_bytes(before, what.as_bytes()));
    }

    /// The program that calls this says where it is: what it will do depends on `position` alone, and on what it waits
    /// for. Depth-first then takes two ways to this place as one state.
    pub fn position(&self, position: u64) {
        self.engine.position(position);
    }

    pub(super) fn note_number(&self, what: u64) {
        self.engine.state().note(what);
    }

    /// Whether the faults of this run may make an operation fail.
    pub(super) fn may_fail(&self) -> bool {
        self.engine.state().plan.may_fail
    }

    /// Fails the run.
    pub fn fail(&self, what: impl Into<String>) {
        self.inner.lock().failures.push(what.into());
    }

    /// Whether this run has faults.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        !self.engine.state().plan.drawn.is_empty()
    }

    fn fleet(&self, shape: Shape) -> Result<Arc<Fleet>> {
        let mut inner = self.inner.lock();
        if let Some(fleet) = inner.fleets.get(&shape) {
            return Ok(Arc::clone(fleet));
        }
        let layout = Arc::new(Layout::new(&shape.layout())?);
        let first = self.engine.state().net.processes();
        let processes = shape.layout().len();
        let carrier = Arc::new(NetCarrier { engine: Arc::downgrade(&self.engine), fleet: first });
        let mut sites = Vec::with_capacity(processes);
        for local in 0..processes {
            let number = first + local;
            let me = ProcessId::new(u32::try_from(local).unwrap_or(u32::MAX));
            let hub = Hub::carried(me, &layout, Arc::<NetCarrier>::clone(&carrier))?;
            let runtime = ProcessRuntime::new(&self.engine, number);
            let (watched, device) = self.device(number)?;
            let mut state = self.engine.state();
            state.net.add(hub.clone(), &runtime, first, processes);
            drop(state);
            inner.devices.push((watched, Arc::clone(&device)));
            inner.runtimes.push(Arc::clone(&runtime));
            sites.push(Site {
                hub,
                runtime: Runtime::from_scheduler(runtime),
                devices: vec![device as Arc<dyn Driver>; shape.ranks as usize],
                host: format!("host{}", local / shape.processes as usize),
                pid: PID_FIRST.saturating_add(u32::try_from(number).unwrap_or(u32::MAX)),
            });
        }
        let fleet = Arc::new(Fleet::new(sites));
        inner.fleets.insert(shape, Arc::clone(&fleet));
        Ok(fleet)
    }

    /// The device of all ranks of a process.
    fn device(&self, number: usize) -> Result<(Watched, Arc<Faulty>)> {
        let (watched, device): (Watched, Arc<dyn Driver>) = match self.device {
            Device::Host => {
                let driver = HostDriver::new(HostOptions::new())?;
                (Watched::Host(Arc::clone(&driver)), driver)
            }
            Device::Multicast | Device::Null => {
                let driver = NullDriver::new(NullOptions::new().fabric(Arc::clone(&self.fabric)))?;
                let watched = Watched::Null(Arc::clone(&driver));
                if self.device == Device::Multicast {
                    (watched, MulticastDriver::new(driver, Arc::clone(&self.board)))
                } else {
                    (watched, driver)
                }
            }
        };
        let faulty = Faulty::new(device);
        let state = self.engine.state();
        for (_, call, nth) in state.plan.driver.iter().filter(|(process, ..)| *process == number) {
            faulty.fail(*call, *nth);
        }
        Ok((watched, faulty))
    }

    /// The actors that live, and what they wait for.
    pub(super) fn actors(&self) -> Vec<crate::actors::ActorReport> {
        use crate::actors::Scheduler as _;
        let runtimes = self.inner.lock().runtimes.clone();
        runtimes.iter().flat_map(|runtime| runtime.registry().reports()).collect()
    }

    /// What each process's device holds, in words, where it holds anything.
    pub(super) fn held(&self) -> Vec<(usize, String)> {
        let inner = self.inner.lock();
        let device = |(number, (device, _)): (usize, &(Watched, _))| Some((number, device.held()?));
        let held = inner.devices.iter().enumerate().filter_map(device);
        // Multicast objects are of all processes; the first one stands for them.
        let objects = self.board.counts();
        held.chain((objects != Default::default()).then(|| (0, format!("{objects:?}")))).collect()
    }

    /// Who bound memory to a multicast object before all devices were added to it.
    pub(super) fn bound_early(&self) -> Option<String> {
        let step = self.board.check_order().err()?;
        Some(format!(
            "P-6: process {} bound memory to multicast object {:#x} before all devices were added to it",
            step.device, step.object.0
        ))
    }

    /// What each process's device refused, though no fault asked for that.
    pub(super) fn refused(&self) -> Vec<(usize, DeviceError)> {
        let inner = self.inner.lock();
        let refused = |(number, (_, device)): (usize, &(_, Arc<Faulty>))| {
            device.refused().into_iter().map(move |error| (number, error))
        };
        inner.devices.iter().enumerate().flat_map(refused).collect()
    }

    pub(super) fn runtimes(&self) -> Vec<Arc<ProcessRuntime>> {
        self.inner.lock().runtimes.clone()
    }

    /// Lets go of the processes, for the end of a run.
    pub(super) fn take_fleets(&self) -> impl Sized + use<> {
        let mut inner = self.inner.lock();
        std::mem::take(&mut inner.fleets)
    }
}

/// Process ids of simulated processes count from here: they are of no process of this machine's that means anything.
const PID_FIRST: u32 = 100_000;

/// As many processes as a communicator has at most.
pub(super) const PROCESSES_MAX: u32 = 4096;
/// Room for the ranks of a world: each has an actor for every communicator.
const RANKS_MAX: u32 = 1 << 16;

fn numbers(group: &[u32]) -> Vec<usize> {
    group.iter().map(|&process| process as usize).collect()
}

fn fail(world: &Weak<World>, what: &str) {
    if let Some(world) = world.upgrade() {
        world.fail(what);
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("device", &self.device)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
