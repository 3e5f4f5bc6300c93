//! A process dies at each step of a batch, between batches, and in a kernel's barrier. Every survivor hears of it by
//! name long before any deadline, may go on using what it has, and ends cleanly.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/resources.rs"]
mod resources;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::device::{Counts, Device};
use common::*;
use processes::*;
use resources::{Process as Resources, until};
use serde_json::{Value, json};
use symwin::device::KernelHandle;
use symwin::driver::faulty::Faulty;
use symwin::driver::{Call, Driver};
use symwin::error::Phase;
use symwin::{
    Activity, Buffer, Communicator, DevComm, DevCommRequirements, Error, Group, Rank, Window, WindowFlags,
};

const PAGE: usize = 4096;
/// Of three processes the first survives and does nothing special, the second dies, and the third holds its part
/// back where the second is to die waiting.
const VICTIM: usize = 1;
const HELPER: usize = 2;
/// A deadline is 60 s; what a death leads to must come far earlier, however busy the machine.
const SOON: Duration = Duration::from_secs(20);

/// Where the victim is when it dies.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// It never arrives at a barrier where the kernels of all others wait.
    Barrier,
    /// In its own device's call, at the first of these that comes in the batch.
    Call(Call),
    /// In the first copy of its commit.
    Commit,
    Idle,
    /// Its kernels and those of the first wait in a barrier to which the third's never come.
    InBarrier,
    /// It waits for the helper, whose device stops at this call.
    Waiting(Phase, Call),
}

fn at(name: &str) -> At {
    match name {
        "prepare" => At::Call(Call::AddressRange),
        "offer" => At::Waiting(Phase::Offer, Call::AddressRange),
        "handles" => At::Call(Call::Export),
        "map" => At::Call(Call::Map),
        "vote" => At::Waiting(Phase::Vote, Call::Map),
        "commit" => At::Commit,
        "idle" => At::Idle,
        "barrier" => At::Barrier,
        "in a barrier" => At::InBarrier,
        other => panic!("no phase {other}"),
    }
}

/// Three processes of `ranks` ranks each, all of them one LSA team; the second dies in `phase`.
fn dies_in(phase: &str, ranks: u32) {
    dies_in_teams_of(3 * ranks, phase, ranks);
}

/// The same with LSA teams of `team` ranks.
fn dies_in_teams_of(team: u32, phase: &str, ranks: u32) {
    let job = Job::new("kill").of(3, ranks).env("SYMWIN_TEST_PHASE", phase);
    let mut running = job.env("SYMWIN_TEST_TEAM", team.to_string()).start();
    let [first, victim, helper] = &mut running.children[..] else { panic!("three processes") };
    for process in [&*first, &*victim, &*helper] {
        process.expect("ready");
    }
    let holds = matches!(at(phase), At::Waiting(..));
    if holds {
        helper.expect("holding");
    }
    if at(phase) == At::Barrier {
        first.expect("in the barrier");
        helper.expect("in the barrier");
    }
    if at(phase) == At::InBarrier {
        first.expect("in the barrier");
        victim.expect("in the barrier");
    }
    let stopped_in = victim.expect("stopped");
    if !matches!(at(phase), At::Barrier | At::Idle | At::InBarrier) {
        assert_eq!(stopped_in, phase, "it dies where this test says");
    }
    victim.kill();
    if holds {
        helper.go();
    }
    let dead: Vec<u32> = (ranks..2 * ranks).collect();
    for outcome in running.outcomes() {
        for error in outcome["errors"].as_array().unwrap() {
            assert_eq!(error["kind"], "lost", "{phase}: {error}");
            assert_eq!(error["ranks"], json!(dead), "{phase}: {error}");
        }
    }
}

#[test]
fn a_process_killed_in_prepare_is_named_by_all() {
    dies_in("prepare", 1);
}

#[test]
fn a_process_killed_while_it_waits_for_offers_is_named_by_all() {
    dies_in("offer", 1);
}

#[test]
fn a_process_killed_while_it_sends_missing_handles_is_named_by_all() {
    dies_in("handles", 1);
}

#[test]
fn a_process_killed_while_it_maps_is_named_by_all() {
    dies_in("map", 1);
}

#[test]
fn a_process_killed_while_it_waits_for_votes_is_named_by_all() {
    dies_in("vote", 1);
}

#[test]
fn a_process_killed_while_it_commits_is_named_by_all() {
    dies_in("commit", 1);
}

#[test]
fn a_process_killed_between_batches_is_named_by_all() {
    dies_in("idle", 1);
}

#[test]
fn a_process_killed_before_a_barrier_is_named_by_all_that_wait_in_it() {
    dies_in("barrier", 1);
}

#[test]
fn a_process_killed_in_a_barrier_is_named_by_all() {
    dies_in("in a barrier", 1);
}

#[test]
fn a_process_of_several_ranks_is_named_with_all_of_them() {
    for phase in ["prepare", "offer", "handles", "map", "vote", "commit", "idle", "barrier", "in a barrier"] {
        dies_in(phase, 2);
    }
}

/// Each process is a team, so that teams wait for each other in the merge of their verdicts ("vote").
#[test]
fn a_process_of_another_lsa_team_is_named_by_all_teams() {
    for ranks in [1, 2] {
        for phase in ["prepare", "map", "vote", "commit", "idle"] {
            dies_in_teams_of(ranks, phase, ranks);
        }
    }
}

#[test]
#[ignore = "started by the other tests of this file"]
fn child() {
    play(|role| match role {
        "kill" => live(at(&order("SYMWIN_TEST_PHASE"))),
        other => panic!("no role {other}"),
    });
}

/// One process of a world, and what it has open.
struct Life {
    host: Device,
    faults: Vec<Arc<Faulty>>,
    ranks: Vec<Arc<Communicator>>,
    process: usize,
    open: Vec<(Vec<Window>, Vec<Buffer>)>,
    devs: Vec<DevComm>,
}

impl Life {
    fn begin() -> Self {
        let host = Device::new();
        let here: u32 = order("SYMWIN_RANKS_PER_PROCESS").parse().unwrap();
        let faults: Vec<_> = (0..here).map(|_| Faulty::new(host.driver())).collect();
        let devices = faults.clone();
        let team = order("SYMWIN_TEST_TEAM").parse().unwrap();
        let config = config()
            .lsa_team_size(team)
            .deadline(Duration::from_secs(60))
            .devices(move |rank: Rank| Ok(devices[rank.index() % devices.len()].clone() as Arc<dyn Driver>));
        let ranks = Communicator::ranks_from_env_with(&config).unwrap();
        let ranks: Vec<_> = ranks.into_iter().map(Arc::new).collect();
        let process = ranks[0].rank().index() / ranks.len();
        Self { host, faults, ranks, process, open: Vec::new(), devs: Vec::new() }
    }

    /// Registers buffers of the ranks here, with a device communicator beside them the first time.
    fn register(&mut self, buffers: Vec<Buffer>) -> Vec<Result<Window, Error>> {
        let group = Group::start();
        let pending: Vec<_> = self
            .ranks
            .iter()
            .zip(&buffers)
            .map(|(comm, buffer)| group.register(comm, buffer, WindowFlags::empty()))
            .collect();
        let devs: Vec<_> = self
            .ranks
            .iter()
            .filter(|_| self.devs.is_empty())
            .map(|comm| group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1)))
            .collect();
        drop(group.submit());
        let windows: Vec<_> = pending.into_iter().map(|window| window.wait()).collect();
        if windows.iter().all(Result::is_ok) {
            let opened = windows.iter().flatten().cloned().collect();
            self.open.push((opened, buffers));
        }
        self.devs.extend(devs.into_iter().flat_map(|dev| dev.wait()));
        windows
    }

    fn buffers(&self) -> Vec<Buffer> {
        self.ranks.iter().map(|comm| comm.alloc_own(4 * PAGE).unwrap()).collect()
    }

    /// Stops the first rank's device here: at the first call of a kind, or at the first copy after the event
    /// that ends the map phase.
    fn stop_at(&self, call: Option<Call>, name: &'static str) {
        let comm = Arc::downgrade(&self.ranks[0]);
        let (recorded, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        self.faults[0].on_call(Box::new(move |made, _| {
            let here = match call {
                Some(call) => made == call,
                None => made == Call::Copy && recorded.load(Ordering::Relaxed),
            };
            recorded.fetch_or(made == Call::Record, Ordering::Relaxed);
            if here && !stopped.swap(true, Ordering::Relaxed) {
                point_with(name, json!(comm.upgrade().map(|comm| running_phase(&comm))));
            }
        }));
    }

    /// Writes to the memory of every rank of the team and reads it back, the dead ranks' included, in every open
    /// window.
    fn touch_all(&self) {
        for (windows, _) in &self.open {
            for (comm, window) in self.ranks.iter().zip(windows) {
                for peer in comm.peers().iter().filter(|peer| window.size_of(peer.rank).is_ok()) {
                    let at = PAGE + 8 * comm.rank().index();
                    window.write(peer.rank, at, &[7; 8]).unwrap();
                    let mut seen = [0; 8];
                    window.read(peer.rank, at, &mut seen).unwrap();
                    assert_eq!(seen, [7; 8]);
                }
            }
        }
    }
}

/// In which phase of a batch this rank is, in words.
fn running_phase(comm: &Communicator) -> String {
    match comm.status().activity {
        Activity::Running { phase, .. } => phase.to_string(),
        other => format!("{other:?}"),
    }
}

fn live(at: At) -> Value {
    let before = Resources::now();
    let mut life = Life::begin();
    let buffers = life.buffers();
    let kept = buffers.clone();
    life.register(buffers).into_iter().for_each(|window| drop(window.unwrap()));
    life.touch_all();
    let victim = life.process == VICTIM;
    // By value: what is not used later is given back now.
    let kept =
        Some(kept).filter(|_| !matches!(at, At::Barrier | At::Idle | At::InBarrier)).unwrap_or_default();
    // Who dies between batches dies when all have committed the first one.
    report("ready", Value::Null);
    let mut errors = match at {
        At::Barrier => in_a_barrier(&life, victim),
        At::InBarrier if life.process == HELPER => Vec::new(),
        At::InBarrier => beside_the_victim(&life, victim),
        At::Idle => {
            if victim {
                point("stopped");
            }
            Vec::new()
        }
        _ => in_a_batch(&mut life, at, kept),
    };
    let begun = Instant::now();
    for comm in &life.ranks {
        until("the communicator to fail", || match comm.status().activity {
            Activity::Failed(error) => {
                errors.push(error);
                true
            }
            _ => false,
        });
    }
    assert!(begun.elapsed() < SOON);
    let late = life.buffers();
    errors.extend(life.register(late).into_iter().map(|window| window.unwrap_err()));
    life.touch_all();
    let errors: Vec<Value> = errors.iter().map(describe).collect();
    end(life, before);
    json!({ "errors": errors })
}

/// The batch in which the victim dies. Who has committed it before it heard of the death has windows.
fn in_a_batch(life: &mut Life, at: At, kept: Vec<Buffer>) -> Vec<Error> {
    let (victim, helper) = (life.process == VICTIM, life.process == HELPER);
    // Where all others know the victim's allocation from before, it has to send its handle again.
    let again = victim && at == At::Call(Call::Export);
    let buffers = if again { kept } else { life.buffers() };
    match at {
        At::Call(call) if victim => life.stop_at(Some(call), "stopped"),
        At::Commit if victim => life.stop_at(None, "stopped"),
        At::Waiting(phase, _) if victim => {
            let group = Group::start();
            let _pending: Vec<_> = life
                .ranks
                .iter()
                .zip(&buffers)
                .map(|(comm, buffer)| group.register(comm, buffer, WindowFlags::empty()))
                .collect();
            let _submitted = group.submit();
            let first = HELPER * life.ranks.len();
            // With teams, members wait for their leader, and only it for other processes.
            let waiting =
                if life.ranks[0].lsa_size() < life.ranks[0].world_size() { 1 } else { life.ranks.len() };
            for comm in &life.ranks[..waiting] {
                until("the victim to wait for the helper alone", || match comm.status().activity {
                    Activity::Running { phase: now, waits_for, .. } => {
                        now == phase && waits_for.iter().any(|peer| peer.rank.index() == first)
                    }
                    _ => false,
                });
            }
            point_with("stopped", json!(phase.to_string()));
        }
        At::Waiting(_, call) if helper => life.stop_at(Some(call), "holding"),
        _ => {}
    }
    let begun = Instant::now();
    let windows = life.register(buffers);
    assert!(begun.elapsed() < SOON);
    windows.into_iter().filter_map(Result::err).collect()
}

fn in_a_barrier(life: &Life, victim: bool) -> Vec<Error> {
    if victim {
        point("stopped");
    }
    let kernels = wait_in_barriers(life);
    report("in the barrier", Value::Null);
    kernels.into_iter().map(|kernel| kernel.join().unwrap_err()).collect()
}

/// The victim dies with its kernels in the barrier: they have arrived, and wait.
fn beside_the_victim(life: &Life, victim: bool) -> Vec<Error> {
    let kernels = wait_in_barriers(life);
    report("in the barrier", Value::Null);
    if victim {
        point("stopped");
    }
    kernels.into_iter().map(|kernel| kernel.join().unwrap_err()).collect()
}

/// A kernel of each rank here that waits in a barrier, and has arrived there.
fn wait_in_barriers(life: &Life) -> Vec<KernelHandle<()>> {
    let launch = |dev: &DevComm| {
        let (arrived, heard) = std::sync::mpsc::channel();
        let kernel = dev.launch(1, move |kernel| {
            let mut barrier = kernel.barrier(0)?;
            barrier.arrive()?;
            let _ = arrived.send(());
            barrier.wait()
        });
        let kernel = kernel.unwrap();
        heard.recv().unwrap();
        kernel
    };
    life.devs.iter().map(launch).collect()
}

/// Closes everything and sees that nothing is left of it.
fn end(mut life: Life, before: Resources) {
    life.open.clear();
    life.devs.clear();
    let ranks = std::mem::take(&mut life.ranks);
    finalize(ranks.into_iter().map(|comm| Arc::into_inner(comm).unwrap()).collect());
    life.faults.clear();
    // The last of the runtime's threads lets go of the device a moment after the close.
    until("the device to be vacant", || life.host.counts() == Counts::default());
    until("the descriptors to be closed", || Resources::now().descriptors <= before.descriptors);
}
