//! The supervisor: starts the processes of ranks, and ends all when one fails or when its own end is asked for.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, Select, TryRecvError};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, getpid, set_child_subreaper, setsid, wait};

use super::args::{LaunchArgs, SuperviseArgs};
use super::ends::Ends;
use super::output::Output;
use super::process::{Plan, Process};
use super::signals::{self, Event};
use super::{KILL_DEADLINE, code_of, leftovers};
use crate::errors::{note, tell};
use crate::processes::rendezvous;

/// Launches, and gives the status that the program is to exit with.
pub(crate) fn run(args: &SuperviseArgs) -> anyhow::Result<ExitCode> {
    // First of all: a signal that comes before kills this process, which has started nothing yet.
    let events = signals::listen_to_parent(args.parent)?;
    set_child_subreaper(Some(getpid())).context("asking for the children of processes that end")?;
    // Without a terminal: what its keys send is for the front alone, which passes it on once.
    let _ = setsid();
    let output = Output::new();
    let mut supervisor = Supervisor {
        processes: Vec::new(),
        ends: Ends::new().context("watching processes")?,
        ended: Vec::new(),
        stage: Stage::Running,
        first: None,
        interrupted: false,
    };
    let followed =
        supervisor.start(&args.launch, &output).and_then(|()| supervisor.follow(args.launch.grace, &events));
    let gone = leftovers::end_all(&events, Instant::now() + KILL_DEADLINE);
    let passed = finish_output(&output.into_done(), &events, gone);
    followed?;
    let failed = || supervisor.processes.iter().position(Process::failed);
    if let Some(first) = supervisor.first.or_else(failed) {
        tell(supervisor.processes[first].show());
        return Ok(code_of(supervisor.processes[first].status.unwrap_or_default()));
    }
    match passed {
        // Whoever read the output has seen enough. The programs may not know, but a shell does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok(code_of(ExitStatus::from_raw(Signal::PIPE.as_raw())));
        }
        passed => passed?,
    }
    if !gone {
        bail!("processes that the program has left running could not be killed: they run with other rights");
    }
    Ok(ExitCode::SUCCESS)
}

struct Supervisor {
    processes: Vec<Process>,
    ends: Ends,
    /// Processes that have ended and are not collected yet, the first to end first.
    ended: Vec<usize>,
    stage: Stage,
    /// Which process failed first.
    first: Option<usize>,
    /// SIGINT came once.
    interrupted: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    Running,
    /// All were asked to end, and will be killed then.
    Ending(Instant),
    /// All were killed, and must be gone then.
    Killed(Instant),
}

impl Supervisor {
    /// From the main thread, since a process is killed with the thread that has started it.
    fn start(&mut self, launch: &LaunchArgs, output: &Output) -> anyhow::Result<()> {
        let plan = Plan { launch, rendezvous: rendezvous()? };
        for (index, ranks) in launch.processes().enumerate() {
            let started = Process::start(&plan, index, ranks);
            let (process, mut child) = started.with_context(|| {
                let limits = "(limits of processes, ulimit -u, and descriptors, ulimit -n, may be too low)";
                format!("starting {} {limits}", ranks.show())
            })?;
            self.ends.watch(process.pid).context("watching a process")?;
            self.processes.push(process);
            output.pass_on(index, ranks, &mut child)?;
        }
        Ok(())
    }

    /// Waits until all processes have ended, however long they run: only their end has deadlines.
    fn follow(&mut self, grace: Duration, events: &Receiver<Event>) -> anyhow::Result<()> {
        loop {
            self.collect(grace)?;
            if !self.processes.iter().any(Process::runs) {
                return Ok(());
            }
            let event = match self.stage {
                Stage::Running => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Stage::Ending(until) | Stage::Killed(until) => events.recv_deadline(until),
            };
            match (event, self.stage) {
                (Ok(Event::Signal(Signal::CHILD)), _) => {}
                (Ok(Event::Signal(signal)), _) => self.forward(signal),
                (Err(RecvTimeoutError::Timeout), Stage::Killed(_)) => return Err(self.stuck()),
                (Err(RecvTimeoutError::Timeout), _) => {
                    let late = self.show_running();
                    note(format!("not ended on SIGTERM within {} s, killing: {late}", grace.as_secs_f64()));
                    self.kill();
                }
                (Ok(Event::ParentGone) | Err(RecvTimeoutError::Disconnected), _) => self.kill(),
            }
        }
    }

    /// Collects processes that have ended, orphans that became children of this process included.
    fn collect(&mut self, grace: Duration) -> anyhow::Result<()> {
        loop {
            let (pid, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Ok(None) | Err(Errno::CHILD) => break,
                Err(errno) => return Err(errno).context("waiting for the processes"),
            };
            if let Some(process) = self.processes.iter_mut().find(|process| process.is(pid)) {
                process.status = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
        self.ended.extend(self.ends.since_last().context("watching processes")?);
        let first = self.ended.iter().copied().find(|index| self.processes[*index].failed());
        self.ended.retain(|index| self.processes[*index].runs());
        if let (None, Some(first)) = (self.first, first) {
            self.first = Some(first);
            self.end_others(first, grace);
        }
        Ok(())
    }

    fn end_others(&mut self, first: usize, grace: Duration) {
        let others = self.processes.iter().filter(|process| process.runs()).count();
        if others == 0 || !matches!(self.stage, Stage::Running) {
            return;
        }
        let what = if others == 1 {
            "the other process".to_owned()
        } else {
            format!("the other {others} processes")
        };
        note(format!("{}: ending {what}", self.processes[first].show()));
        self.signal(Signal::TERM);
        // Those that are stopped hear nothing until they go on.
        self.signal(Signal::CONT);
        self.stage = Stage::Ending(Instant::now() + grace);
    }

    fn forward(&mut self, signal: Signal) {
        if signal == Signal::INT && std::mem::replace(&mut self.interrupted, true) {
            self.kill();
            return;
        }
        // No process of a group without a terminal is stopped by TSTP.
        self.signal(if signal == Signal::TSTP { Signal::STOP } else { signal });
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.stage = Stage::Killed(Instant::now() + KILL_DEADLINE);
    }

    fn signal(&self, signal: Signal) {
        self.processes.iter().for_each(|process| process.signal(signal));
    }

    fn stuck(&self) -> anyhow::Error {
        let (late, seconds) = (self.show_running(), KILL_DEADLINE.as_secs());
        anyhow::anyhow!(
            "killed, but still there after {seconds} s: {late}; a device or file system may hold them"
        )
    }

    fn show_running(&self) -> String {
        let running: Vec<_> =
            self.processes.iter().filter(|process| process.runs()).map(Process::name).collect();
        running.join("; ")
    }
}

/// Waits until all output is passed on. Nobody can write any more if all processes are `gone`, but who reads it may
/// take as long as he likes; a signal to end ends that.
fn finish_output(done: &Receiver<io::Result<()>>, events: &Receiver<Event>, gone: bool) -> io::Result<()> {
    let until = Instant::now() + KILL_DEADLINE;
    let mut passed = Ok(());
    let mut select = Select::new();
    select.recv(done);
    select.recv(events);
    loop {
        match done.try_recv() {
            Ok(stream) => {
                passed = passed.and(stream);
                continue;
            }
            Err(TryRecvError::Disconnected) => return passed,
            Err(TryRecvError::Empty) => {}
        }
        if events.try_iter().any(asks_to_end) {
            return passed;
        }
        if gone {
            select.ready();
        } else if select.ready_deadline(until).is_err() {
            return passed;
        }
    }
}

fn asks_to_end(event: Event) -> bool {
    match event {
        Event::ParentGone => true,
        Event::Signal(signal) => [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal),
    }
}
