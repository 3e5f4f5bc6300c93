//! Making communicators: who the ranks are, what they agree on, and an actor for each.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::config::{Config, variable};
use super::{Communicator, Shared};
use crate::actors::{Due, Rejected, Runtime, WeakAddr};
use crate::bootstrap::{Hub, Inbox, Notice, Tag, UnixOptions};
use crate::devr::actor::CommActor;
use crate::devr::agreed::{Agreed, Introduction, PROTOCOL};
use crate::devr::core::Core;
use crate::devr::flat::FlatRange;
use crate::devr::mail::CommMsg;
use crate::devr::zoo::Bug;
use crate::driver::buffers::BufferAllocator;
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::{DeviceInfo, Driver, Exported, Handle, HandleKind};
use crate::error::{BootstrapError, Error, Misuse, Result};
use crate::ids::{CommId, ProcessId, Rank};

/// What the ranks of one process share, for all communicators over the same connections.
pub(crate) struct Process {
    pub(super) hub: Hub,
    runtime: Runtime,
    /// The flat range of each communicator and LSA team.
    flats: Mutex<HashMap<(CommId, u32), Weak<FlatRange>>>,
}

impl Process {
    fn flat(&self, id: CommId, agreed: &Agreed) -> Arc<FlatRange> {
        let mut flats = self.flats.lock();
        flats.retain(|_, flat| flat.strong_count() > 0);
        let flat = flats.entry((id, agreed.team())).or_default();
        flat.upgrade().unwrap_or_else(|| {
            let new = FlatRange::new(agreed.stride, agreed.lsa_size, agreed.team_here().len());
            *flat = Arc::downgrade(&new);
            new
        })
    }
}

/// All ranks in this operating-system process, as `layout.len()` processes.
pub(super) fn in_process(layout: &[u32], config: &Config) -> Result<Vec<Communicator>> {
    let hubs = Hub::in_process(layout)?;
    let runtime = runtime(config)?;
    let mut parts = Vec::new();
    for hub in hubs {
        parts.push(Part::introduce(hub, &runtime, config)?);
    }
    let known: Vec<_> = parts.into_iter().map(|part| part.meet(config)).collect::<Result<_>>()?;
    let mut ranks = Vec::new();
    for part in known {
        ranks.extend(part.agree(config)?);
    }
    Ok(ranks)
}

/// The ranks of this process among the processes of one host.
pub(super) fn from_env(config: &Config) -> Result<Vec<Communicator>> {
    let number = "a number";
    let world: u32 = required("WORLD_SIZE", number)?;
    let rank: u32 = required("RANK", number)?;
    let per_process: u32 =
        variable("SYMWIN_RANKS_PER_PROCESS", "a number of ranks, at least 1")?.unwrap_or(1);
    let rendezvous: String = required("SYMWIN_RENDEZVOUS", "a name")?;
    let bad = |name: &str, value: u32, why: String| {
        Error::from(Misuse::BadSetting { name: name.to_owned(), value: value.to_string(), why })
    };
    if rendezvous.is_empty() {
        let (name, why) = ("SYMWIN_RENDEZVOUS".to_owned(), "a name that the launcher chooses".to_owned());
        return Err(Misuse::BadSetting { name, value: rendezvous, why }.into());
    }
    if per_process == 0 {
        return Err(bad("SYMWIN_RANKS_PER_PROCESS", 0, "at least 1".to_owned()));
    }
    if world == 0 {
        return Err(bad("WORLD_SIZE", 0, "at least 1".to_owned()));
    }
    if rank >= world {
        return Err(bad("RANK", rank, format!("less than WORLD_SIZE, {world}")));
    }
    if !rank.is_multiple_of(per_process) {
        let why =
            format!("the first rank of its process, a multiple of SYMWIN_RANKS_PER_PROCESS, {per_process}");
        return Err(bad("RANK", rank, why));
    }
    let processes = world.div_ceil(per_process);
    let layout = (0..processes).map(|p| per_process.min(world - p * per_process)).collect();
    let options = UnixOptions {
        rendezvous,
        layout,
        process: ProcessId::new(rank / per_process),
        deadline: config.bootstrap_deadline,
    };
    let hub = Hub::unix(&options)?;
    Part::introduce(hub, &runtime(config)?, config)?.meet(config)?.agree(config)
}

/// One process on its way into a communicator.
struct Part {
    process: Arc<Process>,
    drivers: Vec<Arc<dyn Driver>>,
    /// What the others import to see whether fabric handles cross.
    probe: Option<Probe>,
}

/// The same once it knows the others.
struct Known {
    process: Arc<Process>,
    drivers: Vec<Arc<dyn Driver>>,
    introductions: Vec<Introduction>,
    /// It lives until all have said whether they could import it.
    _probe: Option<Probe>,
}

impl Part {
    /// Makes the devices and tells the other processes of them. Waits for nobody.
    fn introduce(hub: Hub, runtime: &Runtime, config: &Config) -> Result<Self> {
        let drivers: Vec<_> = match &config.devices {
            Some(devices) => hub.ranks_here().map(|rank| devices(Rank::new(rank))).collect::<Result<_>>()?,
            None => {
                let device: Arc<dyn Driver> = HostDriver::new(HostOptions::new())?;
                hub.ranks_here().map(|_| Arc::clone(&device)).collect()
            }
        };
        let devices: Vec<DeviceInfo> = drivers.iter().map(|driver| driver.info().clone()).collect();
        let alone = hub.layout().len() == 1;
        let probe = drivers.first().filter(|_| !alone && all_fabric(&devices)).and_then(Probe::new);
        let introduction = Introduction {
            protocol: PROTOCOL,
            name: config.name.clone(),
            stride: config.stride,
            lsa_team_size: config.lsa_team_size,
            host: host_name(),
            boot_id: boot_id(),
            pid: std::process::id(),
            devices,
            fabric: probe.as_ref().map(|probe| probe.handle.to_vec()),
        };
        // These types have no map and no sequence of unknown length, so they are always encodable.
        let bytes = postcard::to_stdvec(&introduction).expect("an introduction is always encodable");
        hub.publish(TOPIC, &bytes)?;
        let process = Process { hub, runtime: runtime.clone(), flats: Mutex::new(HashMap::new()) };
        Ok(Self { process: Arc::new(process), drivers, probe })
    }

    /// Hears of all processes, and tells them whether it can import their fabric handles if all have some. Waits for
    /// their introductions only.
    fn meet(self, config: &Config) -> Result<Known> {
        let introductions = self
            .process
            .hub
            .collect(TOPIC, config.bootstrap_deadline)?
            .iter()
            .enumerate()
            .map(|(process, bytes)| {
                postcard::from_bytes(bytes).map_err(|error| {
                    Error::Bootstrap(Arc::new(BootstrapError::Protocol {
                        who: format!("process {process}"),
                        detail: format!("its introduction cannot be decoded: {error}"),
                    }))
                })
            })
            .collect::<Result<Vec<Introduction>>>()?;
        check_layout(self.process.hub.layout(), &introductions)?;
        let Self { process, drivers, probe } = self;
        if needs_proof(&introductions) {
            // Ranks that follow each other mostly share a device.
            let mut devices: Vec<_> = drivers.iter().collect();
            devices.dedup_by(|a, b| Arc::ptr_eq(a, b));
            let handles = introductions.iter().filter_map(|introduction| introduction.fabric.as_deref());
            let all =
                handles.into_iter().all(|handle| devices.iter().all(|device| imports(&***device, handle)));
            process.hub.publish(FABRIC, &[u8::from(all)])?;
        }
        Ok(Known { process, drivers, introductions, _probe: probe })
    }
}

impl Known {
    /// Starts the ranks of this process.
    fn agree(self, config: &Config) -> Result<Vec<Communicator>> {
        let fabric = if needs_proof(&self.introductions) {
            let said = self.process.hub.collect(FABRIC, config.bootstrap_deadline)?;
            said.iter().all(|all| all[..] == [1])
        } else {
            // In one process nothing crosses.
            self.introductions.iter().all(|introduction| all_fabric(&introduction.devices))
                && self.introductions.len() == 1
        };
        let Some(first) = self.process.hub.ranks_here().next() else { return Ok(Vec::new()) };
        let agreed = Agreed::new(Rank::new(first), &self.introductions, fabric)?;
        Ok(start_all(&self.process, &self.drivers, &agreed, config, BufferAllocator::SLAB_BYTES))
    }
}

/// A small allocation that stays importable while this lives.
struct Probe {
    driver: Arc<dyn Driver>,
    memory: Handle,
    handle: [u8; 64],
}

impl Probe {
    /// `None` where it cannot be made: then there are no fabric handles.
    fn new(driver: &Arc<dyn Driver>) -> Option<Self> {
        let size = usize::try_from(driver.info().granularity).ok()?;
        let memory = driver.create(size).ok()?;
        match driver.export(memory, HandleKind::Fabric) {
            Ok(Exported::Fabric(handle)) => Some(Self { driver: Arc::clone(driver), memory, handle }),
            _ => {
                release(&**driver, memory);
                None
            }
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        release(&*self.driver, self.memory);
    }
}

/// Whether the device can import this fabric handle of another process.
fn imports(driver: &dyn Driver, handle: &[u8]) -> bool {
    let (Ok(handle), Ok(size)) = (handle.try_into(), usize::try_from(driver.info().granularity)) else {
        return false;
    };
    let imported = driver.import(&Exported::Fabric(handle), size);
    imported.inspect(|&memory| release(driver, memory)).is_ok()
}

fn release(driver: &dyn Driver, memory: Handle) {
    if let Err(error) = driver.release(memory) {
        tracing::error!(%error, "device.undo_failed");
    }
}

/// Whether every process has shown a fabric handle, which all must then import.
fn needs_proof(introductions: &[Introduction]) -> bool {
    introductions.len() > 1 && introductions.iter().all(|introduction| introduction.fabric.is_some())
}

fn all_fabric(devices: &[DeviceInfo]) -> bool {
    devices.iter().all(|device| device.handle_kind == HandleKind::Fabric)
}

/// Starts the ranks of one process.
fn start_all(
    process: &Arc<Process>,
    drivers: &[Arc<dyn Driver>],
    agreed: &Agreed,
    config: &Config,
    slab_bytes: usize,
) -> Vec<Communicator> {
    let ranks = process.hub.ranks_here().zip(drivers).map(|(rank, driver)| NewRank {
        agreed: agreed.of(Rank::new(rank)),
        id: CommId::root(&config.name),
        driver: Arc::clone(driver),
        buffers: BufferAllocator::new(Arc::clone(driver), slab_bytes),
        deadline: config.deadline,
    });
    ranks.map(|rank| rank.start(process)).collect()
}

/// For simulated worlds with memory that is there: they are made by the thousand, and a slab is committed as a whole.
const SMALL_SLAB_BYTES: usize = 1 << 20;

/// One process of a simulated world.
pub(crate) struct Site {
    /// Its connections.
    pub(crate) hub: Hub,
    /// What runs its actors.
    pub(crate) runtime: Runtime,
    /// The device of each of its ranks.
    pub(crate) devices: Vec<Arc<dyn Driver>>,
    /// What it says of itself.
    pub(crate) host: String,
    /// The same.
    pub(crate) pid: u32,
}

/// The processes of a simulated world, whose connections are made.
pub(crate) struct Fleet {
    processes: Vec<(Arc<Process>, Site)>,
}

impl Fleet {
    pub(crate) fn new(sites: Vec<Site>) -> Self {
        let process = |site: &Site| Process {
            hub: site.hub.clone(),
            runtime: site.runtime.clone(),
            flats: Mutex::new(HashMap::new()),
        };
        Self { processes: sites.into_iter().map(|site| (Arc::new(process(&site)), site)).collect() }
    }

    /// A communicator of all ranks of the processes, by rank: what [`Communicator::ranks_from_env`] gives each process,
    /// without the exchange of introductions.
    pub(crate) fn communicator(&self, config: &Config) -> Result<Vec<Communicator>> {
        let introduce = |(_, site): &(Arc<Process>, Site)| Introduction {
            protocol: PROTOCOL,
            name: config.name.clone(),
            stride: config.stride,
            lsa_team_size: config.lsa_team_size,
            host: site.host.clone(),
            boot_id: "simulated".to_owned(),
            pid: site.pid,
            devices: site.devices.iter().map(|device| device.info().clone()).collect(),
            fabric: None,
        };
        let introductions: Vec<_> = self.processes.iter().map(introduce).collect();
        let fabric = introductions.iter().all(|introduction| all_fabric(&introduction.devices));
        let mut agreed = Agreed::new(Rank::new(0), &introductions, fabric)?;
        agreed.bugs = config.bugs.clone();
        let ranks = |(process, site): &(Arc<Process>, Site)| {
            let there = site.devices.iter().any(|device| device.info().host_access);
            let slab_bytes = if there { SMALL_SLAB_BYTES } else { BufferAllocator::SLAB_BYTES };
            start_all(process, &site.devices, &agreed, config, slab_bytes)
        };
        Ok(self.processes.iter().flat_map(ranks).collect())
    }
}

/// Every process introduces as many ranks as the layout gives it: ranks are indices from here on.
fn check_layout(layout: &[u32], introductions: &[Introduction]) -> Result<()> {
    for (process, (&ranks, introduction)) in layout.iter().zip(introductions).enumerate() {
        let devices = introduction.devices.len();
        if devices != ranks as usize {
            return Err(Error::Bootstrap(Arc::new(BootstrapError::Protocol {
                who: format!("process {process} (host {}, pid {})", introduction.host, introduction.pid),
                detail: format!("it introduces {devices} devices for {ranks} ranks"),
            })));
        }
    }
    Ok(())
}

/// What the exchange of introductions is called.
const TOPIC: &str = "introduction";

/// What the exchange of who could import the others' fabric handles is called.
const FABRIC: &str = "fabric";

/// One rank of a communicator that everything is known of.
pub(super) struct NewRank {
    pub(super) agreed: Agreed,
    pub(super) id: CommId,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) buffers: BufferAllocator,
    pub(super) deadline: Duration,
}

impl NewRank {
    /// Starts the rank's actor and connects it.
    pub(super) fn start(self, process: &Arc<Process>) -> Communicator {
        let Self { agreed, id, driver, buffers, deadline } = self;
        let flat = process.flat(id, &agreed);
        let (rank, name) = (agreed.rank, agreed.name.clone());
        let members: Vec<Rank> = (0..agreed.world_size()).map(Rank::new).collect();
        // The protocol bounds what can be under way: a peer is at most one batch ahead, with a handful of rounds each.
        let capacity = 64 + 16 * members.len();
        let mut made = None;
        let actor = process.runtime.spawn(&format!("{name}.{}", rank.get()), capacity, |me| {
            let runtime = process.runtime.clone();
            let core = Core::new(agreed, id, driver, flat, runtime, deadline, me.downgrade());
            made = Some(Arc::clone(&core));
            CommActor::new(core)
        });
        let core = made.expect("spawn makes the actor before it returns");
        let inbox = Arc::new(ActorInbox { actor: actor.downgrade(), core: Arc::downgrade(&core) });
        core.connect(process.hub.join(id, &name, rank, &members, inbox));
        tracing::debug!(comm = %name, rank = rank.get(), world = members.len(), "comm.created");
        let shared = Shared {
            core,
            actor,
            process: Arc::clone(process),
            buffers,
            duplicates: Mutex::new(HashMap::new()),
        };
        Communicator { shared: Arc::new(shared), finalized: AtomicBool::new(false) }
    }
}

/// The bootstrap's way to an actor. It does not keep the actor alive.
struct ActorInbox {
    actor: WeakAddr<CommMsg>,
    core: Weak<Core>,
}

impl Inbox for ActorInbox {
    fn deliver(&self, notice: Notice) {
        drop(self.deliver_due(notice));
    }

    fn deliver_due(&self, notice: Notice) -> Option<Due> {
        let actor = self.actor.upgrade()?;
        let core = self.core.upgrade()?;
        let message = match notice {
            Notice::Message(mut incoming) => {
                if core.has_bug(Bug::RoundsMixed) {
                    incoming.tag = Tag::new(core.rounds.seq(), incoming.tag.round);
                }
                let from = incoming.from;
                match core.rounds.deliver(incoming) {
                    Ok(true) => CommMsg::Arrived,
                    Ok(false) => return None,
                    Err(detail) => CommMsg::Notice(Notice::Broken { ranks: vec![from], detail }),
                }
            }
            other => CommMsg::Notice(other),
        };
        // An abort is heard at once; everything else stays in the order in which the peer sent it.
        if matches!(message, CommMsg::Notice(Notice::Abort { .. })) {
            let _ = actor.control(message);
            return None;
        }
        match actor.tell_due(message) {
            Ok(due) => due,
            Err(Rejected::Full(last)) => {
                let detail = format!("more messages than the protocol allows; the last one was {last:?}");
                let _ = actor.control(CommMsg::Overflow(detail));
                None
            }
            Err(Rejected::Closed(_)) => None,
        }
    }
}

fn runtime(config: &Config) -> Result<Runtime> {
    config.runtime.clone().map_or_else(|| Runtime::threads(config.workers), Ok)
}

fn required<T: std::str::FromStr>(name: &str, why: &str) -> Result<T> {
    variable(name, why)?.ok_or_else(|| {
        Misuse::BadSetting {
            name: name.to_owned(),
            value: String::new(),
            why: format!("it must be set to {why}; whoever starts the processes sets it"),
        }
        .into()
    })
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What tells this host from others, also in containers that share a host name.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| host_name(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_introduces_another_number_of_ranks_is_named() {
        let device = DeviceInfo::new("d", "host", 1 << 30, 4096);
        let introduction = |devices| Introduction {
            protocol: PROTOCOL,
            name: "world".to_owned(),
            stride: None,
            lsa_team_size: None,
            host: "h".to_owned(),
            boot_id: "b".to_owned(),
            pid: 7,
            devices: vec![device.clone(); devices],
            fabric: None,
        };
        assert_eq!(check_layout(&[2, 1], &[introduction(2), introduction(1)]), Ok(()));
        let error = check_layout(&[2, 1], &[introduction(2), introduction(3)]).unwrap_err();
        assert!(error.to_string().starts_with("process 1 (host h, pid 7)"), "{error}");
    }
}
