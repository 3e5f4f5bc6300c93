//! Real processes, from the environment: layouts of processes and ranks, settings, and what is left behind.
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

use std::time::{Duration, Instant};

use common::device::{Counts, Device};
use common::*;
use processes::*;
use resources::{Process as Resources, until};
use serde_json::{Value, json};
use symwin::coll::{DType, ReduceOp};
use symwin::error::{BootstrapError, Misuse};
use symwin::{
    Buffer, Communicator, Config, DevComm, DevCommRequirements, Error, Group, Pending, Window, WindowFlags,
};

const ELEMENTS: usize = 1024;
const BYTES: usize = 4 * ELEMENTS;

/// All-reduce, barriers and peer pointers in `processes` processes of `ranks` ranks; states agree at the end.
fn works(processes: u32, ranks: u32) {
    let outcomes = Job::new("work").of(processes, ranks).start().outcomes();
    assert_eq!(outcomes.len(), processes as usize);
    for outcome in &outcomes {
        assert_eq!(outcome["rounds"], json!([2, 2, 2]), "A-4, P-8: {outcome}");
        assert_eq!(outcome["digest"], outcomes[0]["digest"], "P-1");
    }
}

#[test]
fn one_two_and_four_processes_of_one_rank() {
    [1, 2, 4].into_iter().for_each(|processes| works(processes, 1));
}

#[test]
fn one_two_and_four_processes_of_two_ranks() {
    [1, 2, 4].into_iter().for_each(|processes| works(processes, 2));
}

#[test]
fn one_two_and_four_processes_of_four_ranks() {
    [1, 2, 4].into_iter().for_each(|processes| works(processes, 4));
}

#[test]
fn sixteen_processes() {
    works(16, 1);
}

/// Nothing is left in the file system, whether processes end well or are killed.
#[test]
fn nothing_is_left_in_the_file_system() {
    // Beside what other programs have there meanwhile: names that speak of the project.
    let ours = || -> Vec<String> {
        let folders = ["/dev/shm".into(), "/run".into(), std::env::temp_dir()];
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path().display().to_string()).collect();
        names.retain(|name| name.contains("symwin") || name.starts_with("/dev/shm"));
        names.sort();
        names
    };
    let before = ours();
    works(2, 2);
    let mut running = Job::new("stay").of(3, 1).start();
    running.children.iter_mut().for_each(|child| drop(child.expect("there")));
    assert_eq!(ours(), before, "while they run");
    running.children.iter_mut().for_each(Process::kill);
    assert_eq!(ours(), before);
}

#[test]
fn every_variable_is_taken_and_a_bad_value_is_named() {
    let good = Job::new("settings")
        .env("SYMWIN_STRIDE", (8_u64 << 30) + 1)
        .env("SYMWIN_LSA_TEAM_SIZE", 2)
        .env("SYMWIN_DEADLINE", "7.5")
        .env("SYMWIN_BOOTSTRAP_DEADLINE", 11)
        .env("SYMWIN_WORKERS", 3)
        .of(1, 4);
    let outcome = &good.start().outcomes()[0];
    assert_eq!(outcome["stride"], 12_u64 << 30, "rounded up to 4 GiB");
    assert_eq!(outcome["lsa_size"], 2);
    assert_eq!(outcome["workers"], 3);
    let config = outcome["config"].as_str().unwrap();
    for part in ["deadline: 7.5s", "bootstrap_deadline: 11s", "workers: 3"] {
        assert!(config.contains(part), "{config}");
    }
    let bad = [
        ("SYMWIN_STRIDE", "much"),
        ("SYMWIN_STRIDE", "-1"),
        ("SYMWIN_LSA_TEAM_SIZE", "0"),
        ("SYMWIN_LSA_TEAM_SIZE", "two"),
        ("SYMWIN_DEADLINE", "0"),
        ("SYMWIN_DEADLINE", "NaN"),
        ("SYMWIN_DEADLINE", "-3"),
        ("SYMWIN_BOOTSTRAP_DEADLINE", "soon"),
        ("SYMWIN_WORKERS", "0"),
        ("SYMWIN_WORKERS", "many"),
        ("SYMWIN_RANKS_PER_PROCESS", "0"),
        ("RANK", "4"),
        ("RANK", "x"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", ""),
        ("SYMWIN_RENDEZVOUS", ""),
    ];
    for (name, value) in bad {
        let outcome = &Job::new("settings").of(1, 4).env(name, value).start().outcomes()[0];
        assert_eq!(outcome["bad"], name, "{name}={value}: {outcome}");
    }
}

#[test]
fn processes_whose_settings_differ_are_told_so_on_all() {
    let cases = [("SYMWIN_STRIDE", 4_u64 << 30, 8_u64 << 30), ("SYMWIN_LSA_TEAM_SIZE", 1, 3)];
    for (name, all, one) in cases {
        let job = Job::new("settings").of(3, 1).env(name, all).env_of(1, name, one);
        for outcome in job.start().outcomes() {
            let what = outcome["differ"].as_str().unwrap_or_else(|| panic!("{outcome}"));
            assert!(what.contains(name), "{what}");
            assert_eq!(outcome["settings"].as_array().unwrap().len(), 3);
        }
    }
}

#[test]
fn a_process_that_never_comes_is_named() {
    let mut running =
        Job::new("settings").of(3, 1).env("SYMWIN_BOOTSTRAP_DEADLINE", "1.5").start_only(&[0, 2]);
    for outcome in running.outcomes() {
        let missing = outcome["missing"].as_array().unwrap_or_else(|| panic!("{outcome}"));
        assert_eq!(missing.len(), 1, "{outcome}");
        assert!(missing[0].as_str().unwrap().contains("process 1"), "{outcome}");
    }
}

#[test]
#[ignore = "started by the other tests of this file"]
fn child() {
    play(|role| match role {
        "settings" => settings(),
        "stay" => stay(),
        "work" => work(),
        other => panic!("no role {other}"),
    });
}

fn settings() -> Value {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => return refusal(&error),
    };
    let begun = Instant::now();
    let outcome = match Communicator::ranks_from_env_with(&config) {
        Ok(ranks) => {
            let (stride, lsa_size) = (ranks[0].stride(), ranks[0].lsa_size());
            // Threads name themselves when they begin to run.
            let expected = order("SYMWIN_WORKERS").parse().unwrap_or(1);
            until("the workers to run", || workers() >= expected);
            let config = format!("{config:?}");
            let outcome =
                json!({ "stride": stride, "lsa_size": lsa_size, "workers": workers(), "config": config });
            finalize(ranks);
            outcome
        }
        Err(error) => refusal(&error),
    };
    assert!(begun.elapsed() < Duration::from_secs(20));
    outcome
}

/// Threads that run actors, by their names.
fn workers() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("symwin-work")).count()
}

fn refusal(error: &Error) -> Value {
    match error {
        Error::Misuse(Misuse::BadSetting { name, .. }) => json!({ "bad": name }),
        Error::Bootstrap(error) => match &**error {
            BootstrapError::Differ { what, settings } => json!({ "differ": what, "settings": settings }),
            BootstrapError::Deadline { missing, .. } => json!({ "missing": missing }),
            other => json!({ "other": other.to_string() }),
        },
        other => describe(other),
    }
}

fn stay() -> Value {
    let ranks = Communicator::ranks_from_env().unwrap();
    let buffers = buffers(&ranks, BYTES);
    let _windows = windows(&ranks, &buffers);
    point("there");
    Value::Null
}

fn work() -> Value {
    let before = Resources::now().descriptors;
    let host = Device::new();
    let device = host.clone();
    let config = config().deadline(Duration::from_secs(50)).workers(1).devices(move |_| Ok(device.driver()));
    let ranks = Communicator::ranks_from_env_with(&config).unwrap();
    drop(config);
    let mut rounds = Vec::new();
    {
        let marked = buffers(&ranks, BYTES);
        let reduced = buffers(&ranks, BYTES);
        let (marked_windows, reduced_windows, devs) = open(&ranks, &marked, &reduced);
        rounds.push(ranks[0].status().rounds);
        peers_reach_each_other(&ranks, &marked_windows, &marked, &devs);
        all_reduce(&ranks, &reduced_windows, &reduced);
        // Kept, so that each rank's allocator has the same history: other heads take a round for handles.
        let mut kept = Vec::new();
        for count in [1, 64] {
            rounds.push(rounds_of(&ranks, count, &mut kept));
        }
        // Nobody says goodbye while another rank reads.
        barrier(&devs);
    }
    let digest = ranks[0].status().digest;
    finalize(ranks);
    until("the device to be vacant", || host.counts() == Counts::default());
    until("the descriptors to be closed", || Resources::now().descriptors <= before);
    json!({ "rounds": rounds, "digest": digest.to_string() })
}

fn open(
    ranks: &[Communicator],
    marked: &[Buffer],
    reduced: &[Buffer],
) -> (Vec<Window>, Vec<Window>, Vec<DevComm>) {
    let group = Group::start();
    let register = |buffers: &[Buffer], flags| -> Vec<Pending<Window>> {
        ranks.iter().zip(buffers).map(|(comm, buffer)| group.register(comm, buffer, flags)).collect()
    };
    let marked = register(marked, WindowFlags::empty());
    let reduced = register(reduced, WindowFlags::COLL_SYMMETRIC);
    let requirements = || DevCommRequirements::new().lsa_barriers(1);
    let devs: Vec<_> = ranks.iter().map(|comm| group.create_dev_comm(comm, requirements())).collect();
    group.end().unwrap();
    let wait = |pending: Vec<Pending<Window>>| pending.into_iter().map(|p| p.wait().unwrap()).collect();
    (wait(marked), wait(reduced), devs.into_iter().map(|dev| dev.wait().unwrap()).collect())
}

/// P-3: each rank writes to every peer; behind a barrier every owner finds all of it.
fn peers_reach_each_other(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer], devs: &[DevComm]) {
    let mark = |from: u32, to: u32| (from * 1000 + to + 1).to_le_bytes();
    for (comm, window) in ranks.iter().zip(windows) {
        for to in 0..comm.world_size() {
            let from = comm.rank().get();
            window.write(symwin::Rank::new(to), 4 * from as usize, &mark(from, to)).unwrap();
        }
    }
    barrier(devs);
    for (comm, buffer) in ranks.iter().zip(buffers) {
        for from in 0..comm.world_size() {
            let mut seen = [0; 4];
            buffer.read(4 * from as usize, &mut seen).unwrap();
            assert_eq!(seen, mark(from, comm.rank().get()), "from rank {from} to {}", comm.rank());
        }
    }
}

fn barrier(devs: &[DevComm]) {
    let kernels: Vec<_> = devs.iter().map(|dev| dev.launch(1, |k| k.barrier(0)?.sync()).unwrap()).collect();
    kernels.into_iter().for_each(|kernel| drop(kernel.join().unwrap()));
}

fn all_reduce(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer]) {
    for (comm, buffer) in ranks.iter().zip(buffers) {
        let value = |i: usize| comm.rank().get() as i32 * 7 + i as i32;
        let bytes: Vec<u8> = (0..ELEMENTS).flat_map(|i| value(i).to_le_bytes()).collect();
        buffer.write(0, &bytes).unwrap();
    }
    let running: Vec<_> = ranks
        .iter()
        .zip(windows)
        .map(|(comm, w)| comm.start_all_reduce(&w.whole(), &w.whole(), DType::I32, ReduceOp::Sum).unwrap())
        .collect();
    running.into_iter().for_each(|handle| drop(handle.join().unwrap()));
    let n = ranks[0].world_size() as i32;
    for buffer in buffers {
        let mut bytes = vec![0; BYTES];
        buffer.read(0, &mut bytes).unwrap();
        for (i, chunk) in bytes.chunks(4).enumerate() {
            let sum = i32::from_le_bytes(chunk.try_into().unwrap());
            assert_eq!(sum, 7 * n * (n - 1) / 2 + n * i as i32, "element {i}");
        }
    }
}

/// How many rounds a group of `count` windows takes.
fn rounds_of(ranks: &[Communicator], count: usize, kept: &mut Vec<Buffer>) -> u64 {
    let before = ranks[0].status().rounds;
    let group = Group::start();
    let mut pending = Vec::new();
    for comm in ranks {
        for _ in 0..count {
            let buffer = comm.alloc(BYTES).unwrap();
            pending.push(group.register(comm, &buffer, WindowFlags::empty()));
            kept.push(buffer);
        }
    }
    group.end().unwrap();
    pending.into_iter().for_each(|window| drop(window.wait().unwrap()));
    ranks[0].status().rounds - before
}
