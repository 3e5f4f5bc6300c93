//! Processes of a run that die: the run says which, and nothing stays behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::program::{run, symwin};
use crate::watch::{children, is_gone, kill, many_descriptors, until};

/// Work that goes on for longer than it takes to find its processes.
const LONG: &str = "--ranks 2 --procs --windows 1 --bytes 256MiB";

#[test]
fn a_child_that_is_killed_is_named_and_ends_the_run() {
    for victim in [0, 1] {
        let mut run = run(LONG).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let children = working_children(&run, 2);
        let pid = children[&victim];
        kill(pid, Signal::KILL);
        let status = run.wait().unwrap();
        let (mut out, mut said) = (String::new(), String::new());
        run.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), out.as_str()), (Some(1), ""), "{said}");
        let named = format!("process {victim} (rank {victim}), pid {pid}, was killed by signal 9 (SIGKILL)");
        assert!(said.contains(&named), "{said}");
        assert!(children.values().all(|pid| is_gone(*pid)), "{said}");
    }
}

#[test]
fn no_child_outlives_a_run_that_is_killed() {
    let bench = "bench register --ranks 2 --procs --windows 64 --samples 100000 --no-mpi";
    for mut command in [run(LONG), symwin(bench.split_whitespace())] {
        let mut run = command.stdout(Stdio::null()).spawn().unwrap();
        let children = working_children(&run, 2);
        // Stopped, so that they do not end by themselves.
        children.values().for_each(|pid| kill(*pid, Signal::STOP));
        run.kill().unwrap();
        run.wait().unwrap();
        until("the children are gone", || children.values().all(|pid| is_gone(*pid)).then_some(()));
    }
}

/// Other programs end with the one that runs them, and so do those that they run.
#[test]
fn no_other_program_outlives_a_benchmark_that_is_killed() {
    // Where there is no strace, or may not be one, there is nobody to look for. Shorter work would be over too soon.
    let strace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !strace.is_ok_and(|output| output.status.success()) || !many_descriptors() {
        return;
    }
    let args = "bench register --ranks 2 --procs --windows 512,512,512,512 --bytes 4K --samples 1 --no-mpi";
    // Nobody is left to remove what is made there.
    let directory = tempfile::tempdir().unwrap();
    let mut run = symwin(args.split_whitespace());
    let mut run = run.env("TMPDIR", directory.path()).stdout(Stdio::null()).spawn().unwrap();
    let family = until("strace runs ranks", || {
        let strace = *children(run.id()).iter().find(|pid| name(**pid).as_deref() == Some("strace"))?;
        let traced = *children(strace).first()?;
        let ranks = children(traced);
        (ranks.len() == 2).then(|| [vec![strace, traced], ranks].concat())
    });
    run.kill().unwrap();
    run.wait().unwrap();
    until("they are gone", || family.iter().all(|pid| is_gone(*pid)).then_some(()));
}

/// The name of a process's program.
fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}

/// The run's processes by their first rank, once each has a thread for it.
fn working_children(run: &Child, count: usize) -> BTreeMap<u32, u32> {
    until("all children work", || {
        let children: BTreeMap<u32, u32> =
            children(run.id()).into_iter().filter_map(|pid| Some((rank(pid)?, pid))).collect();
        (children.len() == count).then_some(children)
    })
}

/// The number in the name of a process's first rank's thread.
fn rank(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter_map(|name| name.trim().strip_prefix("rank ")?.parse().ok()).min()
}
