//! `--procs`: starts the program once for each process, hears what the children say, and sees all of them end. No
//! child outlives this: what is dropped here is killed, and a child asks the kernel to be killed with its parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_channel::{Receiver, Sender, unbounded};
use serde::de::DeserializeOwned;

use crate::child::{Event, Order, Work};
use crate::errors::{RankError, combine};
use crate::processes::{Ranks, ends_within, rendezvous, set_place, show_end, this_program};
use crate::progress::Progress;

/// Does the work with `ranks` ranks in processes of `each`, fewer in the last. `silence` is the longest that no child
/// at all may say anything. Returns what each rank says in the end, by process.
pub(crate) fn run<R: DeserializeOwned + Send + 'static>(
    work: Work,
    ranks: u32,
    each: u32,
    silence: Duration,
    progress: &dyn Progress,
) -> anyhow::Result<Vec<R>> {
    let rendezvous = rendezvous()?;
    let order: Arc<[u8]> = serde_json::to_vec(&Order::new(work))?.into();
    let (said, hears) = unbounded();
    let mut children = Children(Vec::new());
    for (index, here) in Ranks::divide(ranks, each).enumerate() {
        let name = format!("process {index} ({})", here.show());
        let child = start(ranks, here, each, &rendezvous).with_context(|| format!("starting {name}"))?;
        let mut child = ChildProcess { name, child, outcome: None, status: None, ended_here: false };
        let stdin = child.child.stdin.take().expect("standard input was asked to be a pipe");
        let stdout = child.child.stdout.take().expect("standard output was asked to be a pipe");
        children.0.push(child);
        talk(index, Arc::clone(&order), stdin, stdout, said.clone())?;
    }
    drop(said);
    children.follow(&hears, silence, progress);
    children.result()
}

/// One of the processes.
struct ChildProcess<R> {
    name: String,
    child: Child,
    /// What it said of its ranks.
    outcome: Option<Result<Vec<R>, Vec<RankError>>>,
    /// How it ended.
    status: Option<ExitStatus>,
    /// Whether this program ended it.
    ended_here: bool,
}

/// All of them. None survives it.
struct Children<R>(Vec<ChildProcess<R>>);

impl<R> Children<R> {
    /// Hears all children until each has ended. After the first failure the others get [`GRACE`] to notice.
    fn follow(&mut self, hears: &Receiver<(usize, Said<R>)>, silence: Duration, progress: &dyn Progress) {
        let mut grace_until: Option<Instant> = None;
        while self.0.iter().any(|child| child.status.is_none()) {
            let silent_until = Instant::now() + silence;
            let until = grace_until.map_or(silent_until, |grace| grace.min(silent_until));
            let Ok((index, said)) = hears.recv_deadline(until) else {
                self.end_all();
                return;
            };
            let child = &mut self.0[index];
            match said {
                Said::Event(Event::Progress { phase, bytes }) => progress.tell(phase, bytes),
                Said::Event(Event::Done(reports)) => child.outcome = Some(Ok(reports)),
                Said::Event(Event::Failed(errors)) => child.outcome = Some(Err(errors)),
                Said::Nothing => child.reap(),
            }
            if child.failed() && grace_until.is_none() {
                grace_until = Some(Instant::now() + GRACE);
            }
        }
    }

    fn end_all(&mut self) {
        for child in &mut self.0 {
            child.end();
        }
    }

    /// Everyone's reports by process, or one error of all that went wrong.
    fn result(&mut self) -> anyhow::Result<Vec<R>> {
        let deaths: Vec<_> = self.0.iter().filter_map(ChildProcess::death).collect();
        let (mut reports, mut errors) = (Vec::new(), Vec::new());
        for child in &mut self.0 {
            match child.outcome.take() {
                Some(Ok(of_child)) => reports.extend(of_child),
                Some(Err(of_child)) => errors.extend(of_child),
                None => {}
            }
        }
        if deaths.is_empty() && errors.is_empty() { Ok(reports) } else { Err(combine(&deaths, errors)) }
    }
}

impl<R> Drop for Children<R> {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl<R> ChildProcess<R> {
    /// Waits for the end of a child that has closed its output, which is the last thing that one does.
    fn reap(&mut self) {
        if self.status.is_none() && ends_within(self.child.id(), GRACE) {
            self.status = self.child.wait().ok();
        }
        self.end();
    }

    /// Kills it unless it has ended.
    fn end(&mut self) {
        if self.status.is_none() {
            self.ended_here = !matches!(self.child.try_wait(), Ok(Some(_))) && self.child.kill().is_ok();
            // One that was killed ends at once.
            self.status = self.child.wait().ok().or(Some(ExitStatus::default()));
        }
    }

    fn failed(&self) -> bool {
        matches!(self.outcome, Some(Err(_))) || self.death().is_some()
    }

    /// How it ended, if that alone is an error: one with ranks that failed says so and exits with status 1.
    fn death(&self) -> Option<String> {
        let status = self.status?;
        let name = &self.name;
        let pid = self.child.id();
        if self.ended_here {
            return Some(format!("{name}, pid {pid}, did not end by itself and was ended"));
        }
        match (status.code(), &self.outcome) {
            (Some(0), Some(Ok(_))) | (Some(1), Some(Err(_))) => None,
            (Some(0), None) => Some(format!("{name}, pid {pid}, ended without a result")),
            _ => Some(format!("{name}, pid {pid}, {}", show_end(status))),
        }
    }
}

/// What comes from a child.
enum Said<R> {
    Event(Event<R>),
    /// And never will any more.
    Nothing,
}

fn start(world: u32, here: Ranks, each: u32, rendezvous: &str) -> std::io::Result<Child> {
    let mut command = this_program("child");
    set_place(&mut command, here, world, each, rendezvous);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Gives a child its order and reads its lines on a thread of its own, until the child closes its output.
fn talk<R: DeserializeOwned + Send + 'static>(
    index: usize,
    order: Arc<[u8]>,
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    says: Sender<(usize, Said<R>)>,
) -> anyhow::Result<()> {
    let thread = thread::Builder::new().name(format!("ear {index}"));
    let talk = move || {
        // A child that does not take its order is dead or about to be, which is seen by its end.
        let _ = stdin.write_all(&order);
        drop((stdin, order));
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        for event in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
            if says.send((index, Said::Event(event))).is_err() {
                return;
            }
        }
        let _ = says.send((index, Said::Nothing));
    };
    thread.spawn(talk).context("starting a thread that hears a process")?;
    Ok(())
}

/// How long the others may take to notice that one has failed, and a child to end after its last word.
const GRACE: Duration = Duration::from_secs(5);
