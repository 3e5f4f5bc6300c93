//! What the tests of the whole runtime share: worlds of ranks, driven from one thread or from one each.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests; clippy takes helpers for none"
)]

pub mod device;
pub mod scene;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::device::{Counts, Device};
use symwin::driver::Driver;
use symwin::driver::faulty::Faulty;
use symwin::error::RolledBack;
use symwin::{
    Buffer, Communicator, Config, DevComm, DevCommRequirements, Error, Group, Pending, Rank, Window,
    WindowFlags,
};

/// How the ranks of a world are spread over processes: all in one, one each, and mixed.
pub const LAYOUTS: [&[u32]; 3] = [&[4], &[1, 1, 1, 1], &[3, 1]];

/// A configuration whose deadline a test never meets unless it means to.
pub fn config() -> Config {
    device::of_ranks(Config::new().stride(4 << 30).deadline(Duration::from_secs(30)).workers(2))
}

/// The ranks of a world.
pub fn world(layout: &[u32]) -> Vec<Communicator> {
    Communicator::in_processes_with(layout, &config()).unwrap()
}

/// A world whose devices fail on demand, with each process's own one.
pub struct FaultyWorld {
    pub ranks: Vec<Communicator>,
    pub faults: Vec<Arc<Faulty>>,
    pub hosts: Vec<Device>,
}

/// One device for each process, one faulty wrapper for each rank.
pub fn faulty_world(layout: &[u32], config: Config) -> FaultyWorld {
    faulty_world_of(layout, config, |host| host)
}

/// The same with something between the device and the faulty wrapper of each rank.
pub fn faulty_world_of(
    layout: &[u32],
    config: Config,
    device: impl Fn(Arc<dyn Driver>) -> Arc<dyn Driver>,
) -> FaultyWorld {
    let hosts: Vec<_> = layout.iter().map(|_| Device::new()).collect();
    let faults: Vec<_> = layout
        .iter()
        .zip(&hosts)
        .flat_map(|(&ranks, host)| std::iter::repeat_n(host, ranks as usize))
        .map(|host| Faulty::new(device(host.driver())))
        .collect();
    let devices = faults.clone();
    let config = config.devices(move |rank: Rank| Ok(devices[rank.index()].clone() as Arc<dyn Driver>));
    let ranks = Communicator::in_processes_with(layout, &config).unwrap();
    FaultyWorld { ranks, faults, hosts }
}

/// A buffer of `bytes` on every rank.
pub fn buffers(ranks: &[Communicator], bytes: usize) -> Vec<Buffer> {
    ranks.iter().map(|comm| comm.alloc(bytes).unwrap()).collect()
}

/// Registers one region of every rank in one group that this thread ends.
pub fn register_all(ranks: &[Communicator], buffers: &[Buffer]) -> Vec<Result<Window, Error>> {
    let group = Group::start();
    let pending: Vec<Pending<Window>> = ranks
        .iter()
        .zip(buffers)
        .map(|(comm, buffer)| group.register(comm, buffer, WindowFlags::empty()))
        .collect();
    drop(group.submit());
    pending.into_iter().map(Pending::wait).collect()
}

/// The same where all must succeed.
pub fn windows(ranks: &[Communicator], buffers: &[Buffer]) -> Vec<Window> {
    register_all(ranks, buffers).into_iter().map(Result::unwrap).collect()
}

/// Every rank writes to every peer through its window; every owner finds it in its buffer (P-3).
pub fn check_pointers(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer]) {
    for (from, window) in ranks.iter().zip(windows) {
        for to in ranks {
            let mark = [from.rank().get() as u8 + 1, to.rank().get() as u8 + 101];
            let at = from.rank().index() * 2;
            window.write(to.rank(), at, &mark).unwrap();
            let mut seen = [0; 2];
            buffers[to.rank().index()].read(at, &mut seen).unwrap();
            assert_eq!(seen, mark, "{} wrote to {}", from.rank(), to.rank());
        }
    }
}

/// Finalizes all.
pub fn finalize(ranks: Vec<Communicator>) {
    for comm in ranks {
        comm.finalize().unwrap();
    }
}

/// Polls until `done` says so; fails the test after 30 s. For what another thread is about to do.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Every device is as it was before anything was made on it (P-5).
pub fn assert_empty(hosts: &[Device]) {
    let left = || hosts.iter().map(Device::counts).find(|counts| *counts != Counts::default());
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Some(counts) = left() {
        assert!(Instant::now() < deadline, "this was never given back: {counts:?}");
        std::thread::yield_now();
    }
}

/// Ranks whose devices the test can look at, of a configuration.
pub fn watched_world(layout: &[u32], config: Config) -> (Vec<Communicator>, Vec<Device>) {
    let FaultyWorld { ranks, hosts, .. } = faulty_world(layout, config);
    (ranks, hosts)
}

/// What a world holds, to be compared before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub hosts: Vec<Counts>,
    pub ranks: Vec<RankHeld>,
}

/// What one rank holds, by its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankHeld {
    pub windows: usize,
    pub memories: usize,
    pub agreed_memories: usize,
    pub allocations: usize,
    pub shadow_slots: usize,
    pub table_slots: usize,
    pub space_bytes: u64,
    pub quarantined_bytes: u64,
}

impl RankHeld {
    pub fn of(comm: &Communicator) -> Self {
        let status = comm.status();
        Self {
            windows: status.windows,
            memories: status.memories,
            agreed_memories: status.agreed_memories,
            allocations: status.allocations,
            shadow_slots: status.shadow_slots,
            table_slots: status.table_slots,
            space_bytes: status.space_bytes,
            quarantined_bytes: status.quarantined_bytes,
        }
    }
}

impl FaultyWorld {
    pub fn held(&self) -> Held {
        Held {
            hosts: self.hosts.iter().map(|host| host.counts()).collect(),
            ranks: self.ranks.iter().map(RankHeld::of).collect(),
        }
    }

    /// Waits until the world holds this: a sender's descriptors go a moment after their receivers have them.
    pub fn expect_held(&self, expected: &Held, what: &str) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.held() != *expected {
            assert!(Instant::now() < until, "{what}: {:#?}\nexpected: {expected:#?}", self.held());
            std::thread::yield_now();
        }
    }
}

/// A batch that makes nothing: after it every window that was closed before it is retired on all ranks.
pub fn sync(ranks: &[Communicator]) {
    drop(dev_comms(ranks, &DevCommRequirements::new()));
}

/// What every rank asks of one group that this thread submits, and what becomes of it on each.
pub fn ask<T: Send + 'static>(
    ranks: &[Communicator],
    request: impl Fn(&Group, &Communicator) -> Pending<T>,
) -> Vec<Result<T, Error>> {
    let group = Group::start();
    let pending: Vec<_> = ranks.iter().map(|comm| request(&group, comm)).collect();
    drop(group.submit());
    pending.into_iter().map(Pending::wait).collect()
}

/// A device communicator on every rank.
pub fn try_dev_comms(
    ranks: &[Communicator],
    requirements: &DevCommRequirements,
) -> Vec<Result<DevComm, Error>> {
    ask(ranks, |group, comm| group.create_dev_comm(comm, requirements.clone()))
}

/// The same where all must succeed.
pub fn dev_comms(ranks: &[Communicator], requirements: &DevCommRequirements) -> Vec<DevComm> {
    try_dev_comms(ranks, requirements).into_iter().map(Result::unwrap).collect()
}

/// After a batch all ranks have the same agreed state (P-1).
pub fn check_digests(ranks: &[Communicator]) {
    let digests: Vec<u64> = ranks.iter().map(|comm| comm.status().digest).collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "P-1: {digests:x?}");
}

/// Why the batch was rolled back.
pub fn rolled_back<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Arc<RolledBack> {
    match outcome {
        Err(Error::RolledBack(rolled_back)) => rolled_back,
        other => panic!("a batch rolled back was expected, not {other:?}"),
    }
}

/// A wait that ended by a deadline would show as another kind of error.
pub fn slow() -> Config {
    config().deadline(Duration::from_secs(20))
}

/// The communicator is usable: all ranks register, and the pointers are right (P-3).
pub fn usable(ranks: &[Communicator]) {
    let buffers = buffers(ranks, 8192);
    let windows = windows(ranks, &buffers);
    check_pointers(ranks, &windows, &buffers);
    check_digests(ranks);
    drop(windows);
    sync(ranks);
}
