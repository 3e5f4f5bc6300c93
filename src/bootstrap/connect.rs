//! How the processes of one host find each other: abstract unix sockets, a check of the peer's user, a hello each way.
//!
//! A process that is connected to may not listen yet. It is another program's start that is awaited then, of
//! which nothing tells; so the attempt is repeated, ever more slowly, within the one wait that all else happens in.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, send,
    socket_with, sockopt,
};
use rustix::process::Pid;
use xxhash_rust::xxh3::xxh3_128;

use crate::bootstrap::frame::VERSION;
use crate::bootstrap::hello::{self, Contents, Hello};
use crate::bootstrap::hub::{UnixOptions, os};
use crate::bootstrap::layout::Layout;
use crate::error::{BootstrapError, Misuse, Result};
use crate::ids::ProcessId;

/// A connection to another process, both sides checked.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) peer: ProcessId,
    pub(crate) pid: Option<i32>,
    pub(crate) socket: OwnedFd,
}

/// Connects this process with all others, by the deadline.
pub(crate) fn connect(options: &UnixOptions, layout: &Arc<Layout>) -> Result<Vec<Connected>> {
    let bad = |name: &str, value: String, why: &str| -> crate::Error {
        Misuse::BadSetting { name: name.to_owned(), value, why: why.to_owned() }.into()
    };
    if !RENDEZVOUS_BYTES.contains(&options.rendezvous.len()) {
        let why = "it is 16 to 80 bytes of text, at least 128 of their bits random";
        return Err(bad("rendezvous", options.rendezvous.clone(), why));
    }
    if !layout.contains(options.process) {
        return Err(bad("process", options.process.get().to_string(), "it is one of the layout's processes"));
    }
    let mut meeting = Meeting::new(options, layout)?;
    let deadline = super::after(Instant::now(), options.deadline);
    while !meeting.missing().is_empty() {
        let now = Instant::now();
        if now >= deadline {
            let missing = meeting.missing().into_iter().map(|process| layout.describe(process)).collect();
            return Err(Arc::new(BootstrapError::Deadline { after: options.deadline, missing }).into());
        }
        meeting.reach_out(now)?;
        meeting.wait(deadline)?;
        meeting.welcome(Instant::now())?;
        meeting.listen_to_all(Instant::now())?;
    }
    Ok(meeting.connected.into_values().collect())
}

struct Meeting<'a> {
    options: &'a UnixOptions,
    layout: &'a Layout,
    secret: u128,
    /// Where some higher process is still missing.
    listener: Option<OwnedFd>,
    /// Lower processes that are not reached yet, with the next attempt and the pause after it.
    attempts: BTreeMap<ProcessId, (Instant, Duration)>,
    greetings: Vec<Greeting>,
    connected: BTreeMap<ProcessId, Connected>,
}

/// A connection whose other side has not said all of its hello.
struct Greeting {
    socket: OwnedFd,
    pid: i32,
    /// What this side reached out for. `None`: the other side came.
    sought: Option<ProcessId>,
    nonce: u64,
    heard: Vec<u8>,
    until: Instant,
}

enum Heard {
    /// Not all yet.
    Part,
    All(Hello),
    /// It ended, or was no hello.
    Nothing(&'static str),
}

impl<'a> Meeting<'a> {
    fn new(options: &'a UnixOptions, layout: &'a Layout) -> Result<Self> {
        let me = options.process;
        let now = Instant::now();
        let listener = if layout.processes().any(|process| process > me) {
            Some(listen_at(&options.rendezvous, me)?)
        } else {
            None
        };
        let lower = layout.processes().filter(|&process| process < me);
        Ok(Self {
            options,
            layout,
            secret: xxh3_128(options.rendezvous.as_bytes()),
            listener,
            attempts: lower.map(|process| (process, (now, PAUSE_FIRST))).collect(),
            greetings: Vec::new(),
            connected: BTreeMap::new(),
        })
    }

    fn missing(&self) -> Vec<ProcessId> {
        let me = self.options.process;
        self.layout.processes().filter(|p| *p != me && !self.connected.contains_key(p)).collect()
    }

    /// Silent strangers must not use up this process's descriptors.
    fn has_room(&self) -> bool {
        self.greetings.len() < self.layout.counts().len() + STRANGERS_MAX
    }

    /// Connects to the lower processes whose turn it is, and says hello.
    fn reach_out(&mut self, now: Instant) -> Result<()> {
        let due: Vec<ProcessId> =
            self.attempts.iter().filter(|(_, (at, _))| *at <= now).map(|(process, _)| *process).collect();
        for process in due {
            let Some(socket) = dial(&self.options.rendezvous, process)? else {
                self.try_later(process, now);
                continue;
            };
            let (pid, stranger) = check_user(&socket)?;
            if let Some(why) = stranger {
                let who = format!("who listens in place of {}, pid {pid},", self.layout.describe(process));
                return Err(Arc::new(BootstrapError::Stranger { who, why }).into());
            }
            let nonce = draw();
            if !self.say_hello(&socket, nonce, 0) {
                self.try_later(process, now);
                continue;
            }
            self.attempts.remove(&process);
            let (sought, heard, until) =
                (Some(process), Vec::new(), super::after(now, self.options.deadline));
            self.greetings.push(Greeting { socket, pid, sought, nonce, heard, until });
        }
        Ok(())
    }

    fn try_later(&mut self, process: ProcessId, now: Instant) {
        let pause = self.attempts.get(&process).map_or(PAUSE_FIRST, |(_, pause)| *pause);
        self.attempts.insert(process, (now + pause, (pause * 2).min(PAUSE_MAX)));
    }

    /// Waits until something comes, an attempt is due, a stranger has been silent for too long, or the deadline.
    fn wait(&self, deadline: Instant) -> Result<()> {
        let listener = self.listener.iter().filter(|_| self.has_room()).map(AsFd::as_fd);
        let sockets = listener.chain(self.greetings.iter().map(|greeting| greeting.socket.as_fd()));
        let mut polled: Vec<PollFd<'_>> =
            sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let attempts = self.attempts.values().map(|(at, _)| *at);
        let silences = self.greetings.iter().map(|greeting| greeting.until);
        let until = attempts.chain(silences).fold(deadline, Instant::min);
        let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(os("waiting for other processes", errno).into()),
        }
    }

    /// Lets in who came. Whether they belong here, their hello tells.
    fn welcome(&mut self, now: Instant) -> Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        while self.has_room() {
            let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(os("accepting a connection", errno).into()),
            };
            let (pid, stranger) = check_user(&socket)?;
            if let Some(why) = stranger {
                tracing::warn!(pid, %why, "bootstrap.stranger");
                continue;
            }
            let (nonce, heard, until) = (draw(), Vec::new(), now + SILENCE_MAX);
            self.greetings.push(Greeting { socket, pid, sought: None, nonce, heard, until });
        }
        Ok(())
    }

    fn listen_to_all(&mut self, now: Instant) -> Result<()> {
        for mut greeting in std::mem::take(&mut self.greetings) {
            let why = match greeting.hear() {
                Heard::Part if now < greeting.until => {
                    self.greetings.push(greeting);
                    continue;
                }
                Heard::Part => "it says nothing",
                Heard::Nothing(why) => why,
                Heard::All(hello) => match self.judge(greeting, &hello)? {
                    Ok(()) => continue,
                    Err((back, why)) => {
                        greeting = back;
                        why
                    }
                },
            };
            match greeting.sought {
                // It may be on its way out, and its successor on its way in.
                Some(process) => self.try_later(process, now),
                None => tracing::warn!(pid = greeting.pid, why, "bootstrap.stranger"),
            }
        }
        if self.missing().iter().all(|&process| process < self.options.process) {
            self.listener = None;
        }
        Ok(())
    }

    /// Takes a peer in, or gives a stranger back with the reason. What differs between members is an error.
    #[allow(clippy::type_complexity, reason = "the outer result ends the meeting, the inner one a greeting")]
    fn judge(&mut self, greeting: Greeting, hello: &Hello) -> Result<Result<(), (Greeting, &'static str)>> {
        let Contents::Ours { nonce, echo, secret, layout } = &hello.contents else {
            self.answer(&greeting, 0);
            let what = "the version of the bootstrap protocol";
            return Err(self.differ(what, VERSION.to_string(), hello, hello.version.to_string()));
        };
        if *secret != self.secret {
            return Ok(Err((greeting, "it does not know the rendezvous")));
        }
        if layout.as_slice() != self.layout.counts() {
            self.answer(&greeting, *nonce);
            let (ours, theirs) = (format!("{:?}", self.layout.counts()), format!("{layout:?}"));
            return Err(self.differ("the number of ranks of each process", ours, hello, theirs));
        }
        let expected = match greeting.sought {
            Some(process) => hello.process == process && *echo == greeting.nonce,
            None => hello.process > self.options.process && self.layout.contains(hello.process),
        };
        if !expected || self.connected.contains_key(&hello.process) {
            return Ok(Err((greeting, "it is not the process that is expected, or it is here already")));
        }
        if !self.answer(&greeting, *nonce) {
            return Ok(Err((greeting, "it went away")));
        }
        let Greeting { socket, pid, .. } = greeting;
        let pid = (pid != 0).then_some(pid);
        self.connected.insert(hello.process, Connected { peer: hello.process, pid, socket });
        Ok(Ok(()))
    }

    /// Who came gets a hello back; who was sought has one already.
    fn answer(&self, greeting: &Greeting, echo: u64) -> bool {
        greeting.sought.is_some() || self.say_hello(&greeting.socket, greeting.nonce, echo)
    }

    /// A hello is far smaller than a new socket's buffer: it goes out whole or the peer is gone.
    fn say_hello(&self, socket: &OwnedFd, nonce: u64, echo: u64) -> bool {
        let hello = hello::encode(self.options.process, nonce, echo, self.secret, self.layout.counts());
        send(socket, &hello, SendFlags::NOSIGNAL) == Ok(hello.len())
    }

    fn differ(&self, what: &str, ours: String, hello: &Hello, theirs: String) -> crate::Error {
        let mut settings = [(self.options.process, ours), (hello.process, theirs)];
        settings.sort();
        let settings =
            settings.into_iter().map(|(process, value)| format!("{process} has {value}")).collect();
        Arc::new(BootstrapError::Differ { what: what.to_owned(), settings }).into()
    }
}

impl Greeting {
    /// Reads no byte beyond the hello: what follows is for the connection's reader.
    fn hear(&mut self) -> Heard {
        loop {
            let Ok(needed) = hello::needed(&self.heard) else {
                return Heard::Nothing("its first bytes are no hello");
            };
            let had = self.heard.len();
            if had == needed {
                let hello = hello::decode(&self.heard);
                return hello.map_or(Heard::Nothing("its hello is damaged"), Heard::All);
            }
            self.heard.resize(needed, 0);
            let read = rustix::io::read(&self.socket, &mut self.heard[had..]);
            self.heard.truncate(had + read.unwrap_or(0));
            match read {
                Ok(0) => return Heard::Nothing("it went away"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Heard::Part,
                Err(_) => return Heard::Nothing("its connection failed"),
            }
        }
    }
}

fn address(rendezvous: &str, process: ProcessId) -> Result<SocketAddrUnix> {
    let name = format!("{rendezvous}.{}", process.get());
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|errno| os("naming a socket", errno))?)
}

fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    Ok(socket.map_err(|errno| os("making a socket", errno))?)
}

fn listen_at(rendezvous: &str, process: ProcessId) -> Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &address(rendezvous, process)?)
        .map_err(|errno| os(&format!("listening at the rendezvous as {process}"), errno))?;
    listen(&socket, BACKLOG).map_err(|errno| os("listening at the rendezvous", errno))?;
    Ok(socket)
}

/// `None` where nobody listens there yet, or too many wait there already.
fn dial(rendezvous: &str, process: ProcessId) -> Result<Option<OwnedFd>> {
    let socket = new_socket()?;
    match rustix::net::connect(&socket, &address(rendezvous, process)?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR | Errno::NOENT) => Ok(None),
        Err(errno) => Err(os(&format!("connecting to {process}"), errno).into()),
    }
}

/// The peer's process, and why it is not allowed in if it is not.
fn check_user(socket: &OwnedFd) -> Result<(i32, Option<String>)> {
    let peer = sockopt::socket_peercred(socket).map_err(|errno| os("asking who the peer is", errno))?;
    let me = rustix::process::geteuid();
    let why = (peer.uid != me)
        .then(|| format!("it runs as user {}, this process as user {}", peer.uid.as_raw(), me.as_raw()));
    // 0 where the peer is in a process name space that this one cannot see into.
    Ok((Pid::as_raw(Some(peer.pid)), why))
}

/// A number that no other hello has; the standard library's hash keys are random.
fn draw() -> u64 {
    RandomState::new().hash_one(std::process::id()) | 1
}

const RENDEZVOUS_BYTES: std::ops::RangeInclusive<usize> = 16..=80;
const BACKLOG: i32 = 4_096;
/// Connections beyond one for each process whose hello is awaited at once.
const STRANGERS_MAX: usize = 64;
/// How long who came may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
