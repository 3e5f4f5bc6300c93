//! Ends whatever is still there below this process.

use std::fs;
use std::time::Instant;

use crossbeam_channel::Receiver;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use super::signals::Event;

/// Kills and collects children until there are none, those included that this process inherits meanwhile as a
/// subreaper. Says whether all are gone in time.
///
/// Only direct children are killed: their numbers are theirs until they are collected here. What a child leaves
/// becomes a child, and is next.
pub(super) fn end_all(events: &Receiver<Event>, until: Instant) -> bool {
    loop {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(errno) => return errno == Errno::CHILD,
            }
        }
        for child in children() {
            // One that runs with other rights than this process's stays, and the deadline passes.
            let _ = kill_process(child, Signal::KILL);
        }
        // The next end of a child, or another event: then it is looked again.
        if events.recv_deadline(until).is_err() {
            return false;
        }
    }
}

/// This process's children.
fn children() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).filter(|pid| parent(*pid) == Some(getpid())).collect()
}

/// The parent of a process, which stands behind its state and its name in parentheses, that may hold any byte.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
    Pid::from_raw(fields.split_ascii_whitespace().nth(1)?.parse().ok()?)
}
