//! Processes of a run that die: the run says which, and nothing stays behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::program::run;
use crate::watch::{children, is_gone, kill, until};

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
    let mut run = run(LONG).stdout(Stdio::null()).spawn().unwrap();
    let children = working_children(&run, 2);
    // Stopped, so that they do not end by themselves.
    children.values().for_each(|pid| kill(*pid, Signal::STOP));
    run.kill().unwrap();
    run.wait().unwrap();
    until("the children are gone", || children.values().all(|pid| is_gone(*pid)).then_some(()));
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
