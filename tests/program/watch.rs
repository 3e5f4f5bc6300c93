//! Processes as a test sees them from outside.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The processes that have this parent.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, ppid)| ppid == parent)).collect()
}

/// Whether a process has ended, whoever may still have to collect it.
pub(crate) fn is_gone(pid: u32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == "Z" || state == "X")
}

/// A process's state and parent.
pub(crate) fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Whether thousands of allocations may have a descriptor each.
pub(crate) fn many_descriptors() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.is_none_or(|limit| limit >= 8192)
}

/// Looks again and again until there is something, for a minute.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + MINUTE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited a minute until {what}");
        thread::yield_now();
    }
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
