//! What the tests of the whole runtime share: worlds of ranks, driven from one thread or from one each.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests; clippy takes helpers for none"
)]

use std::sync::Arc;
use std::time::Duration;

use symwin::driver::Driver;
use symwin::driver::faulty::Faulty;
use symwin::driver::host::{HostDriver, HostOptions};
use symwin::{Buffer, Communicator, Config, Error, Group, Pending, Rank, Window, WindowFlags};

/// How the ranks of a world are spread over processes: all in one, one each, and mixed.
pub const LAYOUTS: [&[u32]; 3] = [&[4], &[1, 1, 1, 1], &[3, 1]];

/// A configuration whose deadline a test never meets unless it means to.
pub fn config() -> Config {
    Config::new().stride(4 << 30).deadline(Duration::from_secs(30)).workers(2)
}

/// The ranks of a world.
pub fn world(layout: &[u32]) -> Vec<Communicator> {
    Communicator::in_processes_with(layout, &config()).unwrap()
}

/// A world whose devices fail on demand, with each process's host device.
pub struct FaultyWorld {
    pub ranks: Vec<Communicator>,
    pub faults: Vec<Arc<Faulty>>,
    pub hosts: Vec<Arc<HostDriver>>,
}

/// One host device for each process, one faulty wrapper for each rank.
pub fn faulty_world(layout: &[u32], config: Config) -> FaultyWorld {
    let hosts: Vec<_> = layout.iter().map(|_| HostDriver::new(HostOptions::new()).unwrap()).collect();
    let faults: Vec<_> = layout
        .iter()
        .zip(&hosts)
        .flat_map(|(&ranks, host)| (0..ranks).map(move |_| Faulty::new(host.clone() as Arc<dyn Driver>)))
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
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Every host device is as it was before anything was made on it (P-5).
pub fn assert_empty(hosts: &[Arc<HostDriver>]) {
    until("everything to be given back", || {
        hosts.iter().all(|host| host.counts() == symwin::driver::host::HostCounts::default())
    });
}

/// Ranks whose devices the test can look at, of a configuration.
pub fn watched_world(layout: &[u32], config: Config) -> (Vec<Communicator>, Vec<Arc<HostDriver>>) {
    let FaultyWorld { ranks, hosts, .. } = faulty_world(layout, config);
    (ranks, hosts)
}
