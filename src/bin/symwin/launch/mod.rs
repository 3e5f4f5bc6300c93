//! `symwin launch`: starts a program once for each process of ranks and sees all of them end.
//!
//! Three kinds of processes, so that nothing is left behind whoever is killed:
//!
//! | process | does | if it is killed |
//! | --- | --- | --- |
//! | front: [`run`] | what the user sees: checks the program, passes signals on, has the exit status | the supervisor notices and kills everything |
//! | supervisor: [`supervise`] | starts the ranks' processes, passes on their output, ends all when one fails | the kernel kills the ranks' processes, the front what they had started |
//! | ranks' process: [`exec`] | asks the kernel to end it with the supervisor, then becomes the program | the supervisor ends the others |
//!
//! Front and supervisor are subreapers: a process whose parent has ended becomes their child, wherever it has hidden
//! itself, and is ended by [`leftovers`]. Only if both are killed at the same time, processes that the program has
//! started in turn can stay.

mod args;
mod ends;
pub(crate) mod exec;
mod leftovers;
mod lines;
mod output;
mod process;
mod program;
mod signals;
pub(crate) mod supervise;

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_channel::Receiver;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

pub(crate) use args::{EXAMPLES, ExecArgs, LaunchArgs, SuperviseArgs};
use signals::Event;

use crate::errors::tell;
use crate::processes::{show_end, this_program};

/// Launches, and gives the status that the program is to exit with.
pub(crate) fn run(args: &LaunchArgs) -> anyhow::Result<ExitCode> {
    if let Err(refusal) = program::check(args.program()) {
        tell(&refusal.what);
        return Ok(ExitCode::from(refusal.status));
    }
    let events = signals::listen()?;
    set_child_subreaper(Some(getpid())).context("asking for the children of processes that end")?;
    // The supervisor is waited for below, together with whatever else becomes a child of this process.
    let supervisor = args.to_command(this_program("supervise"), std::process::id()).spawn();
    let supervisor = Pid::from_child(&supervisor.context("starting the supervising process")?);
    let status = follow(supervisor, &events)?;
    let gone = leftovers::end_all(&events, Instant::now() + KILL_DEADLINE);
    if status.signal().is_some() {
        let pid = supervisor.as_raw_nonzero();
        let rest = if gone { "all processes were killed" } else { "not all processes could be killed" };
        tell(format!("the supervising process, pid {pid}, {}; {rest}", show_end(status)));
    }
    Ok(code_of(status))
}

/// Passes signals on until the supervisor has ended, however long the program runs.
fn follow(supervisor: Pid, events: &Receiver<Event>) -> anyhow::Result<ExitStatus> {
    loop {
        while let Some((pid, status)) =
            wait(WaitOptions::NOHANG).context("waiting for the supervising process")?
        {
            if pid == supervisor {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
        }
        match events.recv().context("hearing signals")? {
            Event::Signal(Signal::CHILD) | Event::ParentGone => {}
            Event::Signal(signal) => {
                // It is not collected yet, so that its number is its own.
                let _ = kill_process(supervisor, signal);
                if signal == Signal::TSTP {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
            }
        }
    }
}

/// A process's exit status as this program's own, 128 + signal where a signal ended it.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.signal().map(|signal| 128 + signal).or(status.code());
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// How long processes that were killed may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
