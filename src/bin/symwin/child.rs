//! One process of `symwin run --procs`, as seen from inside: takes its job from standard input, says on standard
//! output what `spawn` reads there, one JSON object a line, and nothing else.

use std::io::{self, Read, Write};
use std::process;

use anyhow::Context;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use symwin::Communicator;

use crate::errors::RankError;
use crate::phases::Phase;
use crate::plan::Job;
use crate::processes::die_with_parent;
use crate::progress::Progress;
use crate::rank::RankReport;
use crate::threads;

/// What a child is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The operating-system process that started it, without which it has no reason to live.
    pub(crate) parent: u32,
    pub(crate) job: Job,
}

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Done(Vec<RankReport>),
    Failed(Vec<RankError>),
    Progress { phase: Phase, bytes: u64 },
}

/// Does its part of the job. What goes wrong with a rank is told on standard output and is no error here.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut order = String::new();
    io::stdin().read_to_string(&mut order)?;
    let order: Order =
        serde_json::from_str(&order).context("this command is only for `symwin run` itself to use")?;
    die_with_parent(order.parent)?;

    let pipe = Pipe(Mutex::new(io::stdout()));
    match threads::run(Communicator::ranks_from_env_with, &order.job, &pipe) {
        Ok(reports) => pipe.say(&Event::Done(reports)),
        Err(errors) => {
            pipe.say(&Event::Failed(errors));
            process::exit(1);
        }
    }
    Ok(())
}

/// Standard output, one event a line.
struct Pipe(Mutex<io::Stdout>);

impl Pipe {
    fn say(&self, event: &Event) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        let mut out = self.0.lock();
        // Whoever does not read any more is about to end this process.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

impl Progress for Pipe {
    fn tell(&self, phase: Phase, bytes: u64) {
        self.say(&Event::Progress { phase, bytes });
    }
}
