//! What `symwin run --procs` and `symwin launch` share: how a process of ranks is told its place, how it lives no
//! longer than its parent, and how its end is told.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use signal_hook::low_level::signal_name;

/// The ranks of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ranks {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Ranks {
    /// `world` ranks in processes of `each`, fewer in the last.
    pub(crate) fn divide(world: u32, each: u32) -> impl ExactSizeIterator<Item = Self> {
        let division = move |index| {
            let first = index * each;
            Self { first, count: each.min(world - first) }
        };
        (0..world.div_ceil(each)).map(division)
    }

    /// `rank 3`, `ranks 4 to 7`.
    pub(crate) fn show(self) -> String {
        let Self { first, count } = self;
        if count == 1 { format!("rank {first}") } else { format!("ranks {first} to {}", first + count - 1) }
    }
}

/// This same program again, even if its file has been replaced meanwhile.
pub(crate) fn this_program(subcommand: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("symwin").arg(subcommand);
    command
}

/// Tells a process its place, as `Communicator::ranks_from_env` reads it.
pub(crate) fn set_place(command: &mut Command, ranks: Ranks, world: u32, each: u32, rendezvous: &str) {
    command
        .env("RANK", ranks.first.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("SYMWIN_RANKS_PER_PROCESS", each.to_string())
        .env("SYMWIN_RENDEZVOUS", rendezvous);
}

/// A name that nobody can guess, under which the processes find each other: 256 random bits.
pub(crate) fn rendezvous() -> anyhow::Result<String> {
    let mut random = [0; 32];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).context("/dev/urandom")?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Asks to be killed when the thread ends that started this process, and makes sure that it is still there.
pub(crate) fn die_with_parent(parent: u32) -> anyhow::Result<()> {
    end_with_parent(Signal::KILL)?;
    ensure_parent(parent)
}

/// Asks for a signal when the thread ends that started this process.
pub(crate) fn end_with_parent(signal: Signal) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(signal)).context("asking to end with the program that started this")
}

/// It may have ended before anybody asked for word of its end.
pub(crate) fn ensure_parent(parent: u32) -> anyhow::Result<()> {
    let is = getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    ensure!(is == Some(parent), "the program that started this is gone");
    Ok(())
}

/// Whether a process has ended or does so in time.
pub(crate) fn ends_within(pid: u32, limit: Duration) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Where there is no such descriptor, the wait that follows is for a process that is about to end anyway.
    let Some(Ok(descriptor)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return true };
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// `was killed by signal 9 (SIGKILL)`, `ended with exit status 3`.
pub(crate) fn show_end(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("was killed by {}", show_signal(signal)),
        None => format!("ended with exit status {}", status.code().unwrap_or(-1)),
    }
}

fn show_signal(signal: i32) -> String {
    let name = signal_name(signal).map_or_else(String::new, |name| format!(" ({name})"));
    format!("signal {signal}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_divided_without_a_gap() {
        let divide = |world, each| Ranks::divide(world, each).map(Ranks::show).collect::<Vec<_>>();
        assert_eq!(divide(3, 1), ["rank 0", "rank 1", "rank 2"]);
        assert_eq!(divide(5, 2), ["ranks 0 to 1", "ranks 2 to 3", "rank 4"]);
        assert_eq!(divide(2, 7), ["ranks 0 to 1"]);
    }

    #[test]
    fn ends_are_told_with_the_signals_name() {
        assert_eq!(show_end(ExitStatus::from_raw(3 << 8)), "ended with exit status 3");
        for (signal, name) in [(9, " (SIGKILL)"), (11, " (SIGSEGV)"), (15, " (SIGTERM)"), (6, " (SIGABRT)")] {
            assert_eq!(
                show_end(ExitStatus::from_raw(signal)),
                format!("was killed by signal {signal}{name}")
            );
        }
        assert_eq!(show_signal(40), "signal 40");
    }

    #[test]
    fn every_rendezvous_is_new_and_long() {
        let (one, other) = (rendezvous().unwrap(), rendezvous().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
    }
}
