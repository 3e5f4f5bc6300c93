//! Worlds of real processes: a test starts its own binary again, once for each process, and talks to it in lines.
//!
//! A child plays a role: it reports events, as JSON lines on its standard output, and stops at points where it
//! waits for its parent's word on its standard input. The parent collects the events, lets children go on, or kills
//! them. No child outlives its parent.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use symwin::error::{Cause, FailureCause};
use symwin::{Error, Rank};
use tempfile::TempDir;

/// The name of a copy of the test's binary.
const BINARY: &str = "test";
const ROLE: &str = "SYMWIN_TEST_ROLE";
/// What tells an event from what the test harness prints; it may stand behind that on one line.
const MARK: &str = "@@";
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes to be.
pub struct Job {
    role: String,
    processes: u32,
    ranks: u32,
    env: Vec<(Option<u32>, String, String)>,
    uid: Option<u32>,
    /// Of the binary, where another user finds it.
    folder: Option<TempDir>,
}

impl Job {
    /// Processes that play `role`, see [`play`].
    pub fn new(role: &str) -> Self {
        Self { role: role.to_owned(), processes: 1, ranks: 1, env: Vec::new(), uid: None, folder: None }
    }

    /// How many processes, of how many ranks each.
    pub fn of(mut self, processes: u32, ranks: u32) -> Self {
        (self.processes, self.ranks) = (processes, ranks);
        self
    }

    /// Sets a variable for all.
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((None, name.to_owned(), value.to_string()));
        self
    }

    /// Sets a variable for one process.
    pub fn env_of(mut self, process: u32, name: &str, value: impl ToString) -> Self {
        self.env.push((Some(process), name.to_owned(), value.to_string()));
        self
    }

    /// Runs them as another user, who may not be able to enter the folder that the test was built in.
    pub fn uid(mut self, uid: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        // By another process: what this one has open for writing, a child that another test starts meanwhile has too, and a
        // file that is open for writing cannot be run.
        let mut copy = Command::new("cp");
        copy.arg(std::env::current_exe().unwrap()).arg(folder.path().join(BINARY));
        assert!(copy.status().unwrap().success());
        (self.uid, self.folder) = (Some(uid), Some(folder));
        self
    }

    /// Starts all.
    pub fn start(self) -> Running {
        let all: Vec<u32> = (0..self.processes).collect();
        self.start_only(&all)
    }

    /// Starts some of them; the others never come.
    pub fn start_only(self, processes: &[u32]) -> Running {
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let children = processes.iter().map(|&process| self.spawn(process, uuid.trim())).collect();
        Running { children }
    }

    fn spawn(&self, process: u32, rendezvous: &str) -> Process {
        let binary = match &self.folder {
            Some(folder) => folder.path().join(BINARY),
            None => std::env::current_exe().unwrap(),
        };
        let mut command = Command::new(binary);
        command.args(["--exact", "child", "--include-ignored", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SYMWIN_") {
                command.env_remove(name);
            }
        }
        command
            .env(ROLE, &self.role)
            .env("RANK", (process * self.ranks).to_string())
            .env("WORLD_SIZE", (self.processes * self.ranks).to_string())
            .env("SYMWIN_RANKS_PER_PROCESS", self.ranks.to_string())
            .env("SYMWIN_RENDEZVOUS", rendezvous);
        for (_, name, value) in self.env.iter().filter(|(p, ..)| p.is_none_or(|p| p == process)) {
            command.env(name, value);
        }
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, events) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, event)) = line.split_once(MARK) {
                    let event: Value = serde_json::from_str(event).unwrap();
                    let _ = send.send(event);
                }
            }
        });
        let orders = child.stdin.take();
        Process { number: process, child, orders, events, ended: false }
    }
}

/// Processes that run.
pub struct Running {
    pub children: Vec<Process>,
}

impl Running {
    /// Lets all run to their end. Gives what each reported as its `outcome`.
    pub fn outcomes(&mut self) -> Vec<Value> {
        let outcomes = self.children.iter_mut().filter(|child| !child.ended).map(|child| {
            let outcome = child.expect("outcome");
            child.exits_cleanly();
            outcome
        });
        outcomes.collect()
    }
}

/// One of them.
pub struct Process {
    pub number: u32,
    child: Child,
    orders: Option<ChildStdin>,
    events: Receiver<Value>,
    ended: bool,
}

impl Process {
    /// The next event, which must be this one.
    #[track_caller]
    pub fn expect(&self, event: &str) -> Value {
        let Ok(next) = self.events.recv_timeout(PATIENCE) else {
            panic!("process {} ended or hangs, and never reported `{event}`", self.number);
        };
        assert_eq!(next["event"], event, "process {}: {next}", self.number);
        next["data"].clone()
    }

    /// Lets it go on from its point.
    pub fn go(&mut self) {
        // One that is dead does not hear it.
        let _ = self.orders.as_mut().unwrap().write_all(b"go\n");
    }

    /// Kills it, and waits until it is dead.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(!status.success());
        self.ended = true;
    }

    /// Waits for its end, which must be a success.
    #[track_caller]
    pub fn exits_cleanly(&mut self) {
        // Its output ends with it; the wait below is short then.
        match self.events.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => panic!("process {} does not end", self.number),
            Ok(event) => panic!("process {} also reported {event}", self.number),
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "process {} ended with {status}", self.number);
        self.ended = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The body of the test `child`: plays the role that the parent has given it.
pub fn play(roles: impl FnOnce(&str) -> Value) {
    let Ok(role) = std::env::var(ROLE) else { panic!("started by no test; run those of this file") };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let outcome = roles(&role);
    report("outcome", outcome);
}

/// Tells the parent of something.
pub fn report(event: &str, data: Value) {
    let line = format!("{MARK}{}\n", json!({ "event": event, "data": data }));
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Tells the parent of a point and waits there for its word.
pub fn point(name: &str) {
    point_with(name, Value::Null);
}

/// The same, with what there is to say of it.
pub fn point_with(name: &str, data: Value) {
    report(name, data);
    let read = std::io::stdin().lock().read_line(&mut String::new());
    // A parent that is gone lets nobody go on.
    assert_ne!(read.unwrap(), 0, "the parent is gone");
}

/// A variable that the test has set.
pub fn order(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// An error in terms that a test compares.
pub fn describe(error: &Error) -> Value {
    let ranks = |peers: &[symwin::error::Peer]| -> Vec<u32> { peers.iter().map(|p| p.rank.get()).collect() };
    let (kind, ranks) = match error {
        Error::Failed(failure) => match &failure.cause {
            FailureCause::PeerLost { peers, .. } => ("lost", ranks(peers)),
            FailureCause::Aborted { by, .. } => ("aborted", vec![by.rank.get()]),
            FailureCause::Deadline { missing, .. } => {
                ("deadline", missing.iter().map(|m| m.peer.rank.get()).collect())
            }
            _ => ("failed", Vec::new()),
        },
        Error::RolledBack(rolled_back) => match &rolled_back.cause {
            Cause::Refused { faults } => ("refused", faults.iter().map(|f| f.peer.rank.get()).collect()),
            _ => ("rolled back", Vec::new()),
        },
        Error::Bootstrap(_) => ("bootstrap", Vec::new()),
        Error::Device(_) => ("device", Vec::new()),
        Error::Misuse(_) => ("misuse", Vec::new()),
        _ => ("other", Vec::new()),
    };
    json!({ "kind": kind, "ranks": ranks, "text": error.to_string(), "debug": format!("{error:?}") })
}

/// This process's ranks as numbers.
pub fn numbers(ranks: impl IntoIterator<Item = Rank>) -> Vec<u32> {
    ranks.into_iter().map(Rank::get).collect()
}
