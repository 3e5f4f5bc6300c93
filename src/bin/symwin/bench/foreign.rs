//! Other programs that a benchmark runs: they end with this one, and have a limit.

use std::io::Write;
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use crossbeam_channel::bounded;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::child::{Order, Work};
use crate::processes::this_program;

/// Runs a program to its end, and gives what it wrote to standard output. When it must end it is asked to at first, so
/// that a launcher can end what it has launched; with `kill` it is not.
pub(crate) fn run(command: Vec<String>, kill: bool, limit: Duration) -> anyhow::Result<String> {
    let name = command.first().cloned().unwrap_or_default();
    let output = output(command, kill, limit).with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        bail!("{name} ended with {}: {}", output.status, last.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("what {name} says is no text"))
}

fn output(command: Vec<String>, kill: bool, limit: Duration) -> anyhow::Result<Output> {
    let order = serde_json::to_vec(&Order::new(Work::Become { command, kill }))?;
    let mut child =
        this_program("child").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process without an id")?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty());
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&order)?;
    }
    let (ended, ends) = bounded(1);
    thread::Builder::new().name("ear".to_owned()).spawn(move || ended.send(child.wait_with_output()))?;
    if let Ok(output) = ends.recv_timeout(limit) {
        return Ok(output?);
    }
    let descriptor = descriptor?;
    for signal in [Signal::TERM, Signal::KILL].into_iter().skip(kill.into()) {
        let _ = pidfd_send_signal(&descriptor, signal);
        if ends.recv_timeout(GRACE).is_ok() {
            break;
        }
    }
    bail!("it did not end within {} s and was ended", limit.as_secs());
}

/// How long a program may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);
