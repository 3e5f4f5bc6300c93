//! System calls of a group, counted by strace in a run of its own that nobody times.

use std::collections::BTreeMap;
use std::process;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::foreign;
use crate::processes::end_with_parent;

/// How often each call was made by all ranks, from the first rank's begin to the last one's end.
pub(crate) type Counts = BTreeMap<String, u64>;

/// Runs this program with these arguments under strace and counts the calls of its samples. Returns those of the
/// sample with the median number of calls.
pub(crate) fn count(args: Vec<String>, ranks: u32) -> anyhow::Result<Counts> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    let mut command: Vec<String> = ["strace", "-f", "-qq", "-s64", "-o"].map(str::to_owned).into();
    command.push(log.to_string_lossy().into_owned());
    // Another program's link to itself would be another program.
    command.push(format!("/proc/{}/exe", process::id()));
    command.extend(args);
    // Asked to end, strace may hang on a program that is just starting another one; and what it runs ends with it.
    foreign::run(command, true, LIMIT)?;
    let text = std::fs::read_to_string(&log).context("what strace wrote")?;
    let mut samples = parse(&text, ranks);
    ensure!(!samples.is_empty(), "strace has seen no sample");
    samples.sort_by_key(|counts| counts.values().sum::<u64>());
    Ok(samples.swap_remove(samples.len() / 2))
}

/// Makes this process, which strace runs, end with it.
pub(crate) fn end_with_strace() -> anyhow::Result<()> {
    end_with_parent(Signal::KILL)?;
    // It may have ended before the signal was asked for.
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    ensure!(tracer.is_some_and(|pid| pid.trim() != "0"), "--traced is for `symwin bench` itself to use");
    Ok(())
}

/// Tells strace that a rank begins or ends a sample: a look at a file that nobody has.
pub(crate) fn mark(what: Mark) {
    let _ = std::fs::symlink_metadata(what.path());
}

/// A place in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Begin,
    End,
}

impl Mark {
    const fn path(self) -> &'static str {
        match self {
            Self::Begin => "/symwin bench: begin",
            Self::End => "/symwin bench: end",
        }
    }
}

/// The samples of a log. A line is `pid call(arguments) = result`, or the begin or end of one that was interrupted.
fn parse(log: &str, ranks: u32) -> Vec<Counts> {
    let mut samples = Vec::new();
    let (mut counts, mut begun, mut ended) = (Counts::new(), 0, 0);
    for line in log.lines() {
        let Some((_, call)) = line.split_once(char::is_whitespace) else { continue };
        let call = call.trim_start();
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            continue;
        }
        if arguments.contains(Mark::Begin.path()) {
            begun += 1;
        } else if arguments.contains(Mark::End.path()) {
            ended += 1;
            if ended == ranks {
                samples.push(std::mem::take(&mut counts));
                (begun, ended) = (0, 0);
            }
        } else if begun > 0 {
            *counts.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    samples
}

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_ranks_count_from_the_first_begin_to_the_last_end() {
        let log = "\
7 futex(0x1, FUTEX_WAIT) = 0
7 statx(AT_FDCWD, \"/symwin bench: begin\", ...) = -1 ENOENT
7 mmap(NULL, 4096 <unfinished ...>
8 statx(AT_FDCWD, \"/symwin bench: begin\", ...) = -1 ENOENT
7 <... mmap resumed>) = 0x7f
8 --- SIGCHLD {si_signo=SIGCHLD} ---
8 mmap(NULL, 4096) = 0x7f
7 statx(AT_FDCWD, \"/symwin bench: end\", ...) = -1 ENOENT
8 sendmsg(3, {}) = 1
8 statx(AT_FDCWD, \"/symwin bench: end\", ...) = -1 ENOENT
8 futex(0x1, FUTEX_WAIT) = 0
9 +++ exited with 0 +++
";
        let expected = Counts::from([("mmap".to_owned(), 2), ("sendmsg".to_owned(), 1)]);
        assert_eq!(parse(log, 2), [expected]);
    }
}
