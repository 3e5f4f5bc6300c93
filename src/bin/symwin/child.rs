//! One process of `--procs`, as seen from inside: takes its job from standard input, says on standard
//! output what `spawn` reads there, one JSON object a line, and nothing else.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process;

use anyhow::Context;
use parking_lot::Mutex;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use symwin::Communicator;

use crate::backend::Device;
use crate::bench;
use crate::errors::RankError;
use crate::phases::Phase;
use crate::plan::Job;
use crate::processes::{die_with_parent, end_with_parent};
use crate::progress::Progress;
use crate::rank;
use crate::threads;

/// What a child is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The operating-system process that started it, without which it has no reason to live.
    parent: u32,
    work: Work,
}

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// Runs a part of the ranks of a benchmark.
    Bench { device: Device, job: bench::Job },
    /// Becomes another program.
    Become {
        command: Vec<String>,
        /// Whether it is killed if the parent ends. If not, it is asked to end, so that it can end others first.
        kill: bool,
    },
    /// Runs a part of the ranks of a run.
    Run(Job),
}

impl Order {
    /// An order from this process.
    pub(crate) fn new(work: Work) -> Self {
        Self { parent: process::id(), work }
    }
}

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event<R> {
    Done(Vec<R>),
    Failed(Vec<RankError>),
    Progress { phase: Phase, bytes: u64 },
}

/// Does its part of the job. What goes wrong with a rank is told on standard output and is no error here.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut order = String::new();
    io::stdin().read_to_string(&mut order)?;
    let order: Order =
        serde_json::from_str(&order).context("this command is only for `symwin` itself to use")?;
    die_with_parent(order.parent)?;

    let pipe = Pipe(Mutex::new(io::stdout()));
    let make = Communicator::ranks_from_env_with;
    match order.work {
        Work::Bench { device, job } => pipe.end(bench::ranks(device, make, &job, &pipe)),
        Work::Become { command, kill } => become_program(&command, kill)?,
        Work::Run(job) => {
            pipe.end(threads::run(job.device, make, |comm, bootstrap| {
                rank::run(comm, &job, bootstrap, &pipe)
            }));
        }
    }
    Ok(())
}

/// Replaces this process.
fn become_program(command: &[String], kill: bool) -> anyhow::Result<()> {
    if !kill {
        end_with_parent(Signal::TERM)?;
    }
    let (program, args) = command.split_first().context("an order without a program")?;
    let error = process::Command::new(program).args(args).exec();
    Err(anyhow::Error::new(error).context(format!("starting {program}")))
}

/// Standard output, one event a line.
struct Pipe(Mutex<io::Stdout>);

impl Pipe {
    /// The last word.
    fn end<R: Serialize>(&self, outcome: Result<Vec<R>, Vec<RankError>>) {
        match outcome {
            Ok(reports) => self.say(&Event::Done(reports)),
            Err(errors) => {
                self.say(&Event::<()>::Failed(errors));
                process::exit(1);
            }
        }
    }

    fn say<R: Serialize>(&self, event: &Event<R>) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        let mut out = self.0.lock();
        // Whoever does not read any more is about to end this process.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

impl Progress for Pipe {
    fn tell(&self, phase: Phase, bytes: u64) {
        self.say(&Event::<()>::Progress { phase, bytes });
    }
}
