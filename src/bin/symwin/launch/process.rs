//! One process of ranks as the supervisor has it.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::args::LaunchArgs;
use crate::processes::{Ranks, set_place, show_end, this_program};

/// What is the same for all processes.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) launch: &'a LaunchArgs,
    pub(super) rendezvous: String,
}

#[derive(Debug)]
pub(super) struct Process {
    ranks: Ranks,
    pub(super) pid: Pid,
    /// How it ended. Its number is its own until then, and its group's.
    pub(super) status: Option<ExitStatus>,
}

impl Process {
    /// Starts the `index`-th process. Its output is piped if it is to have prefixes.
    pub(super) fn start(plan: &Plan<'_>, index: usize, ranks: Ranks) -> io::Result<(Self, Child)> {
        let (world, each) = plan.launch.ranks();
        let mut command = this_program("exec-rank");
        command.arg("--parent").arg(std::process::id().to_string()).arg("--");
        command.args(plan.launch.program_and_arguments() as &[OsString]);
        set_place(&mut command, ranks, world, each, &plan.rendezvous);
        command.env("LOCAL_RANK", index.to_string());
        command.env("LOCAL_WORLD_SIZE", plan.launch.processes().len().to_string());
        // A process group of its own is not the terminal's, and would be stopped when it reads from that.
        let has_input = index == 0 && !io::stdin().is_terminal();
        command.stdin(if has_input { Stdio::inherit() } else { Stdio::null() });
        if !plan.launch.no_prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let child = command.process_group(0).spawn()?;
        Ok((Self { ranks, pid: Pid::from_child(&child), status: None }, child))
    }

    pub(super) fn is(&self, pid: Pid) -> bool {
        self.pid == pid && self.runs()
    }

    pub(super) fn runs(&self) -> bool {
        self.status.is_none()
    }

    pub(super) fn failed(&self) -> bool {
        self.status.is_some_and(|status| !status.success())
    }

    /// Signals its process group, if it has not ended.
    pub(super) fn signal(&self, signal: Signal) {
        if self.runs() {
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// `rank 2, pid 4711`.
    pub(super) fn name(&self) -> String {
        format!("{}, pid {}", self.ranks.show(), self.pid.as_raw_nonzero())
    }

    /// `rank 2, pid 4711, was killed by signal 9 (SIGKILL)`.
    pub(super) fn show(&self) -> String {
        let end = self.status.map_or_else(|| "has not ended".to_owned(), show_end);
        format!("{}, {end}", self.name())
    }
}
