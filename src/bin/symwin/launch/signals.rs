//! Signals as values on a channel.

use std::fs;
use std::thread;

use anyhow::Context;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use signal_hook::iterator::Signals;

use crate::processes::ensure_parent;

/// What front and supervisor wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal to this process; CHILD if a child has ended.
    Signal(Signal),
    /// The process that started this one has ended.
    ParentGone,
}

/// Hears signals from now on, except those that whoever started this program wants ignored (as `nohup` does).
pub(super) fn listen() -> anyhow::Result<Receiver<Event>> {
    let (says, hears) = unbounded();
    hear_signals(says)?;
    Ok(hears)
}

/// The same, and when this process's parent ends.
pub(super) fn listen_to_parent(parent: u32) -> anyhow::Result<Receiver<Event>> {
    let (says, hears) = unbounded();
    hear_signals(says.clone())?;
    let pid = i32::try_from(parent).ok().and_then(Pid::from_raw).context("no process number")?;
    let parent_end = pidfd_open(pid, PidfdFlags::empty()).context("watching the launcher")?;
    // The descriptor is of this process, if it is still there now.
    ensure_parent(parent)?;
    let watch = move || {
        let mut ends = [PollFd::new(&parent_end, PollFlags::IN)];
        while poll(&mut ends, None) == Err(Errno::INTR) {}
        let _ = says.send(Event::ParentGone);
    };
    spawn("launcher's end", watch)?;
    Ok(hears)
}

fn hear_signals(says: Sender<Event>) -> anyhow::Result<()> {
    let ignored = ignored();
    let heard = HEARD.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
    let heard = heard.chain([Signal::CHILD]).map(Signal::as_raw);
    let mut signals = Signals::new(heard).context("asking for signals")?;
    let hear = move || {
        for signal in signals.forever().filter_map(Signal::from_named_raw) {
            if says.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    spawn("signals", hear)
}

/// The set of signals that are ignored, signal 1 being bit 0.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(body).map(drop).context("starting a thread that listens")
}

const HEARD: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];
