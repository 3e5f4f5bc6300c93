//! A hub's I/O: reads every connection, goes on writing where a sender stopped, tells of deaths. Who does it, and when,
//! is for [`duty`](super::duty).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::actors::Due;
use crate::bootstrap::carrier::Carrier;
use crate::bootstrap::exchange::Exchange;
use crate::bootstrap::frame::{Frame, Kind, decode_publication};
use crate::bootstrap::layout::Layout;
use crate::bootstrap::link::{Flushed, Link};
use crate::bootstrap::reader::{Handles, Look, Reader, Violation};
use crate::bootstrap::router::{Arrival, Death, EARLY_BYTES_MAX, EARLY_FRAMES_MAX, Router};
use crate::bootstrap::{Incoming, Notice, SHUTDOWN_DEADLINE, SightingKind};
use crate::ids::{ProcessId, Rank};

/// What a hub's handles and its I/O thread have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) me: ProcessId,
    pub(crate) layout: Arc<Layout>,
    pub(crate) router: Router,
    pub(crate) exchange: Exchange,
    /// To every other process.
    pub(crate) links: BTreeMap<ProcessId, Arc<Link>>,
    pub(crate) wake: Wake,
    /// Takes frames to other processes instead of sockets, in a simulation.
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
}

/// Gets the I/O thread's attention.
#[derive(Debug)]
pub(crate) struct Wake {
    /// `None` where there is no I/O thread.
    event: Option<OwnedFd>,
    /// The last handle is gone.
    closing: AtomicBool,
}

impl Wake {
    pub(crate) fn new(has_thread: bool) -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = if has_thread { Some(eventfd(0, flags)?) } else { None };
        Ok(Self { event, closing: AtomicBool::new(false) })
    }

    /// Cannot fail in a way that matters: a full counter means that the thread is awake already.
    pub(crate) fn wake(&self) {
        if let Some(event) = &self.event {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }
}

/// All connections of a hub, as whoever does its I/O has them.
#[derive(Debug)]
pub(crate) struct Connections {
    shared: Arc<Shared>,
    epoll: Arc<OwnedFd>,
    connections: BTreeMap<ProcessId, Connection>,
    scratch: Vec<u8>,
    /// Set once the last handle is gone.
    closing_until: Option<Instant>,
}

/// What is to do after the connections were served.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The last handle is gone and the queues are written out.
    Over,
    /// Wait for events, at most so long.
    Wait(Option<Timespec>),
}

#[derive(Debug)]
struct Connection {
    link: Arc<Link>,
    reader: Reader,
    /// There may be more to read than was read.
    readable: bool,
    /// How far the queue got at the last flush.
    write: Flushed,
    /// Room in the socket is an event. It is only where it is waited for: each frame that the peer reads makes room,
    /// and would wake this thread.
    awaits_room: bool,
    /// Flushes in a row that the kernel had no room for.
    retries: u32,
    /// Until then no descriptors are tried. (A refused attempt makes the socket writable anew, which is an
    /// event: trying at every event would be a busy loop.)
    retry_at: Option<Instant>,
}

impl Connection {
    /// Flushes. `acknowledged` batches were acknowledged before this turn; more now means room in the kernel.
    fn write_out(&mut self, acknowledged: u64) {
        let now = Instant::now();
        let room = self.link.batches_acknowledged() > acknowledged;
        let due = room || self.retry_at.is_none_or(|at| at <= now);
        self.write = self.link.flush(due);
        match self.write {
            Flushed::Retry if due => {
                self.retry_at = Some(now + RETRY_FIRST * (1 << self.retries.min(RETRY_DOUBLINGS_MAX)));
                self.retries += 1;
            }
            Flushed::Retry => {}
            _ => (self.retry_at, self.retries) = (None, 0),
        }
    }
}

impl Connections {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        epoll: &Arc<OwnedFd>,
        readers: Vec<(ProcessId, Reader)>,
    ) -> Result<Self, Errno> {
        if let Some(event) = &shared.wake.event {
            epoll::add(epoll, event, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        }
        let mut connections = BTreeMap::new();
        for (process, reader) in readers {
            let Some(link) = shared.links.get(&process) else { continue };
            epoll::add(epoll, reader.socket(), token(process), interest(false))?;
            let link = Arc::clone(link);
            // Looked at once without an event: something may have come before.
            let connection = Connection {
                link,
                reader,
                readable: true,
                write: Flushed::Full,
                awaits_room: false,
                retries: 0,
                retry_at: None,
            };
            connections.insert(process, connection);
        }
        let (shared, epoll) = (Arc::clone(shared), Arc::clone(epoll));
        Ok(Self { shared, epoll, connections, scratch: vec![0; SCRATCH_BYTES], closing_until: None })
    }

    /// Serves every connection once. Actors that must be run come back in `due`.
    pub(crate) fn turn(&mut self, events: &[epoll::Event], due: &mut Vec<Due>) -> Turn {
        self.note(events);
        // Read before the flush: what was queued when the last handle went is then seen by it.
        let closing = self.shared.wake.closing.load(Ordering::Acquire);
        for process in self.connections.keys().copied().collect::<Vec<_>>() {
            self.serve(process, due);
        }
        if closing {
            let until = *self.closing_until.get_or_insert_with(|| Instant::now() + SHUTDOWN_DEADLINE);
            let out = |connection: &Connection| connection.write == Flushed::Idle;
            if self.connections.values().all(out) || Instant::now() >= until {
                return Turn::Over;
            }
        }
        Turn::Wait(self.timeout())
    }

    /// Nobody is left who could hear of it.
    pub(crate) fn close(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            connection.link.close();
        }
        tracing::debug!(process = %self.shared.me, "bootstrap.closed");
    }

    /// Ends every connection, by name.
    pub(crate) fn end_all(&mut self, why: &str) {
        for process in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end(process, Death::Lost(why.to_owned()));
        }
    }

    /// How long to wait for events: not at all while something is known to be readable, shortly where no event will
    /// come, and without a limit only when every change is an event.
    fn timeout(&self) -> Option<Timespec> {
        let mut wait: Option<Duration> =
            self.closing_until.map(|until| until.saturating_duration_since(Instant::now()));
        for connection in self.connections.values() {
            let until = match (connection.readable, connection.retry_at) {
                (true, _) => Duration::ZERO,
                (false, Some(at)) => at.saturating_duration_since(Instant::now()),
                (false, None) => continue,
            };
            wait = Some(wait.map_or(until, |wait| wait.min(until)));
        }
        // A duration of seconds at most.
        wait.and_then(|wait| Timespec::try_from(wait).ok())
    }

    fn note(&mut self, events: &[epoll::Event]) {
        for event in events {
            let token = event.data.u64();
            if token == WAKE {
                let mut count = [0; 8];
                // Only resets the counter; not being readable any more is as good.
                let _ = self.shared.wake.event.as_ref().map(|event| rustix::io::read(event, &mut count));
                continue;
            }
            let process = u32::try_from(token).map(ProcessId::new);
            let Some(connection) = process.ok().and_then(|p| self.connections.get_mut(&p)) else { continue };
            let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            // The event is a packed struct: its flags are copied, not borrowed.
            let flags = event.flags;
            connection.readable |= flags.intersects(readable);
        }
    }

    /// Reads a share of what came, then writes what can be written. A death is judged only when nothing is left to
    /// read.
    fn serve(&mut self, process: ProcessId, due: &mut Vec<Due>) {
        let Some(connection) = self.connections.get_mut(&process) else { return };
        let shared = &*self.shared;
        // What the peer sent before it stopped reading may have come after the last look: only an empty socket after
        // that end counts.
        let write_had_ended = connection.write == Flushed::WriteEnded;
        connection.readable |= write_had_ended;
        let acknowledged = connection.link.batches_acknowledged();
        let mut ended = None;
        for _ in 0..LOOKS_A_TURN {
            if !connection.readable {
                break;
            }
            let (link, reader) = (&connection.link, &mut connection.reader);
            match reader.look(&mut self.scratch, |frame, handles| take(shared, link, &frame, handles, due)) {
                Ok(Look::Data) => {}
                Ok(Look::Empty) => connection.readable = false,
                Ok(Look::End) => {
                    ended = Some(lost(link, reader));
                    break;
                }
                Err(violation) => {
                    ended = Some(Death::Broken(violation.to_string()));
                    break;
                }
            }
        }
        connection.link.owe_acks(connection.reader.batches());
        connection.write_out(acknowledged);
        let full = connection.write == Flushed::Full;
        if full != connection.awaits_room {
            // Room that there is by now is an event at once. A socket that cannot be watched has ended, and is read so.
            let socket = connection.reader.socket();
            connection.awaits_room =
                epoll::modify(&self.epoll, socket, token(process), interest(full)).is_ok() && full;
        }
        // The peer reads no more and all that it had sent is read: no event would tell of its end.
        if connection.write == Flushed::WriteEnded && ended.is_none() {
            if write_had_ended && !connection.readable {
                ended = Some(lost(&connection.link, &connection.reader));
            } else {
                connection.readable = true;
            }
        }
        if let Some(death) = ended {
            self.end(process, death);
        }
    }

    /// Closes a connection and tells everyone.
    fn end(&mut self, process: ProcessId, death: Death) {
        let Some(connection) = self.connections.remove(&process) else { return };
        // Closing the last share of the socket removes it from epoll; senders may hold one for a moment.
        let _ = epoll::delete(&self.epoll, connection.reader.socket());
        let _ = shutdown(connection.reader.socket(), Shutdown::Both);
        connection.link.close();
        let who = self.shared.layout.describe(process);
        match &death {
            Death::Broken(detail) => tracing::warn!(peer = %who, %detail, "bootstrap.broken"),
            Death::Lost(detail) => tracing::debug!(peer = %who, %detail, "bootstrap.lost"),
        }
        drop(connection);
        self.shared.router.died(process, &death);
        self.shared.exchange.lost(process, death.detail());
    }
}

/// Edges of a connection that are events.
fn interest(room: bool) -> epoll::EventFlags {
    let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
    if room { events | epoll::EventFlags::OUT } else { events }
}

fn token(process: ProcessId) -> epoll::EventData {
    epoll::EventData::new_u64(process.get().into())
}

fn lost(link: &Link, reader: &Reader) -> Death {
    let pid = link.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let place = if reader.is_within_frame() { " in the middle of a frame" } else { "" };
    Death::Lost(format!("the connection to {}{pid} ended{place}", link.peer))
}

/// One frame of a connection.
fn take(
    shared: &Shared,
    link: &Link,
    frame: &Frame<'_>,
    handles: Handles,
    due: &mut Vec<Due>,
) -> Result<(), Violation> {
    if frame.kind == Kind::Ack {
        let sane = link.acknowledged(frame.tag.seq);
        return if sane { Ok(()) } else { Err(Violation::new("descriptors were acknowledged twice")) };
    }
    accept(shared, link.peer, frame, handles, due)
}

/// One frame of a peer: checked against who may send it, then handed on.
pub(crate) fn accept(
    shared: &Shared,
    peer: ProcessId,
    frame: &Frame<'_>,
    handles: Handles,
    due: &mut Vec<Due>,
) -> Result<(), Violation> {
    let kind = match frame.kind {
        Kind::Publish => {
            let publication = decode_publication(frame.body);
            let (topic, bytes) =
                publication.ok_or_else(|| Violation::new("a publication without a topic"))?;
            let put = shared.exchange.put(peer, topic, bytes, true);
            return put.map_err(|_| Violation::new("more publications than this side keeps"));
        }
        // Used up by the reader, and by the sender's side of the connection.
        Kind::Ack | Kind::Descriptors => return Ok(()),
        Kind::Abort => SightingKind::Abort,
        Kind::Goodbye => SightingKind::Goodbye,
        Kind::Message => SightingKind::Message,
    };
    let here = shared.layout.ranks(shared.me);
    if shared.layout.process_of(frame.from) != Some(peer) {
        return Err(Violation::Other(format!("a frame in the name of {}, which is not there", frame.from)));
    }
    if let Some(stray) = frame.to.iter().find(|rank| !here.contains(&rank.get())) {
        return Err(Violation::Other(format!("a frame for {stray}, which is not here")));
    }
    hand_on(shared, frame, kind, handles, due)
}

fn hand_on(
    shared: &Shared,
    frame: &Frame<'_>,
    kind: SightingKind,
    handles: Handles,
    due: &mut Vec<Due>,
) -> Result<(), Violation> {
    let body: Arc<[u8]> = Arc::from(frame.body);
    let from: Rank = frame.from;
    let (mut attachments, mut lost) = (handles.attachments, handles.lost);
    let arrival =
        Arrival { comm: frame.comm, from, to: &frame.to, kind, tag: frame.tag, bytes: frame.body.len() };
    let make = |index| match kind {
        SightingKind::Abort => Notice::Abort { from, body: Arc::clone(&body) },
        SightingKind::Goodbye => Notice::Goodbye { from, body: Arc::clone(&body) },
        SightingKind::Message => {
            let first = index == 0;
            let handles = if first { std::mem::take(&mut attachments) } else { Vec::new() };
            let lost = if first { lost.take() } else { None };
            Notice::Message(Incoming { from, tag: frame.tag, body: Arc::clone(&body), handles, lost })
        }
    };
    shared.router.deliver_due(arrival, make, due).map_err(|_| {
        Violation::Other(format!(
            "more than {EARLY_FRAMES_MAX} frames or {EARLY_BYTES_MAX} bytes came for communicators that are not \
             joined here"
        ))
    })
}

const WAKE: u64 = u64::MAX;
const SCRATCH_BYTES: usize = 64 << 10;
/// How often one connection is read before the others have their turn.
const LOOKS_A_TURN: usize = 16;
/// The first wait for room in the kernel. Each later one is twice as long, so that a long want costs no processor.
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// Up to 64 ms.
const RETRY_DOUBLINGS_MAX: u32 = 6;
