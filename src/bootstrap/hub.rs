//! One process's connections.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::actors::{ActorId, Due};
use crate::bootstrap::carrier::{Carrier, Packet};
use crate::bootstrap::connect::{self, Connected};
use crate::bootstrap::duty::Duty;
use crate::bootstrap::exchange::Exchange;
use crate::bootstrap::frame::{BODY_BYTES_MAX, Frame, Kind, encode_publication};
use crate::bootstrap::io::{self, Shared, Wake};
use crate::bootstrap::layout::Layout;
use crate::bootstrap::link::{Flushed, Link, Outgoing};
use crate::bootstrap::reader::Reader;
use crate::bootstrap::router::{Clock, Death, Router};
use crate::bootstrap::{Endpoint, Inbox};
use crate::error::{BootstrapError, Misuse, Result};
use crate::ids::{CommId, ProcessId, Rank};

/// One process's set of connections. Clones are handles of the same one.
///
/// The connections close when the last handle and the last [`Endpoint`] are gone and the queues are
/// written out, which no one waits for: call [`Hub::drain`] before the operating-system process ends.
/// The hub holds every joined [`Inbox`]; an inbox that holds the hub or its endpoint is never dropped.
#[derive(Clone, Debug)]
pub struct Hub {
    handle: Arc<Handle>,
}

/// How processes of one host find each other.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a plain argument that launchers fill in")]
pub struct UnixOptions {
    /// The stem of the abstract socket names: at least 128 random bits, chosen by the launcher, at most 80
    /// bytes of text. The same for all processes, and used once.
    pub rendezvous: String,
    /// How many ranks each process has; the same for all processes.
    pub layout: Vec<u32>,
    /// Which process this is.
    pub process: ProcessId,
    /// How long all processes together may take to connect.
    pub deadline: Duration,
}

impl Hub {
    /// Hubs of several processes in one operating-system process, `layout[i]` ranks in process i, in order of
    /// process. Each two are joined by a socket pair, so that what goes between them takes the wire path; the ranks
    /// of one process hand each other values.
    ///
    /// # Errors
    /// `Misuse` for a layout without processes or with an empty one, or what the system says.
    pub fn in_process(layout: &[u32]) -> Result<Vec<Self>> {
        let layout = Arc::new(Layout::new(layout)?);
        let mut sockets: BTreeMap<ProcessId, Vec<Connected>> = BTreeMap::new();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for a in layout.processes() {
            sockets.entry(a).or_default();
            for b in layout.processes().filter(|&b| b > a) {
                let (at_a, at_b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .map_err(|errno| os("making a socket pair", errno))?;
                sockets.entry(a).or_default().push(Connected { peer: b, pid: None, socket: at_a });
                sockets.entry(b).or_default().push(Connected { peer: a, pid: None, socket: at_b });
            }
        }
        sockets.into_iter().map(|(process, connected)| Self::start(process, &layout, connected)).collect()
    }

    /// Connects the processes of one host: process p listens on an abstract name made of the stem and p, and connects
    /// to all lower ones. Both sides check that the other runs as the same user. Nothing is made in the file system.
    /// The names do not cross network namespaces: all processes are in one. A stranger is turned away without
    /// disturbing the others.
    ///
    /// # Errors
    /// `Deadline` names the processes that did not come; `Differ` where versions or layouts differ, naming
    /// both; `Stranger` where another user listens on the name; or what the system says.
    pub fn unix(options: &UnixOptions) -> Result<Self> {
        let layout = Arc::new(Layout::new(&options.layout)?);
        let connected = connect::connect(options, &layout)?;
        Self::start(options.process, &layout, connected)
    }

    /// Which process this is.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.handle.shared.me
    }

    /// How many ranks each process has.
    #[must_use]
    pub fn layout(&self) -> &[u32] {
        self.handle.shared.layout.counts()
    }

    /// The indices of this process's ranks.
    #[must_use]
    pub fn ranks_here(&self) -> Range<u32> {
        self.handle.shared.layout.ranks(self.handle.shared.me)
    }

    /// The process of a rank; for a rank beyond the world, the one past the last process.
    #[must_use]
    pub fn process_of(&self, rank: Rank) -> ProcessId {
        let layout = &self.handle.shared.layout;
        let beyond =
            || u32::try_from(layout.counts().len()).map_or_else(|_| ProcessId::default(), ProcessId::new);
        layout.process_of(rank).unwrap_or_else(beyond)
    }

    /// The number of ranks of all processes.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.handle.shared.layout.world_size()
    }

    /// This process's contribution to an all-gather over processes. Never blocks. `topic` tells exchanges
    /// apart; under one topic, the n-th contributions of all processes belong together.
    ///
    /// # Errors
    /// `Misuse` where topic and bytes together are longer than 64 MiB.
    pub fn publish(&self, topic: &str, bytes: &[u8]) -> Result<()> {
        let shared = &self.handle.shared;
        if topic.len() + bytes.len() + 4 > BODY_BYTES_MAX {
            let what = format!("{} bytes to publish as `{topic}` are over the limit", bytes.len());
            return Err(Misuse::Other { what }.into());
        }
        // Cannot be full: this process is not bounded.
        let _ = shared.exchange.put(shared.me, topic, bytes, false);
        if !shared.links.is_empty() {
            let body: Arc<[u8]> = encode_publication(topic, bytes).into();
            let frame = Frame::control(Kind::Publish, 0, 0, &body);
            for process in shared.links.keys() {
                self.post(*process, Outgoing::new(&frame, &body, Vec::new()));
            }
        }
        Ok(())
    }

    /// Waits for every process's contribution; index = process, this one's included.
    ///
    /// # Errors
    /// `Deadline` names the processes whose contribution is missing; `Protocol` names one whose connection ended
    /// before it came.
    pub fn collect(&self, topic: &str, deadline: Duration) -> Result<Vec<Vec<u8>>> {
        let shared = &self.handle.shared;
        shared.exchange.collect(topic, &shared.layout, deadline).map_err(|error| Arc::new(error).into())
    }

    /// Puts a rank of this process into a communicator of these members. Frames that came early for it are delivered
    /// first, in order, then the losses of processes that are gone already.
    pub fn join(
        &self,
        comm: CommId,
        comm_name: &str,
        rank: Rank,
        members: &[Rank],
        inbox: Arc<dyn Inbox>,
    ) -> Endpoint {
        debug_assert!(self.ranks_here().contains(&rank.get()), "only ranks of this process join here");
        let stay = self.handle.shared.router.join(comm, comm_name, rank, members, inbox);
        Endpoint::new(self.clone(), comm, rank, stay, members)
    }

    /// Waits until everything queued for other processes is in the kernel, from where it reaches them even if
    /// this process ends; false if the deadline came first. A connection that has ended has nothing queued.
    #[must_use]
    pub fn drain(&self, deadline: Duration) -> bool {
        let deadline = super::after(Instant::now(), deadline);
        self.shared().links.values().all(|link| link.drain(deadline))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// See [`Duty::help`].
    pub(crate) fn help<T>(
        &self,
        mine: ActorId,
        due: Option<Due>,
        answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        match &self.handle.duty {
            Some(duty) => duty.help(mine, due, answer),
            None => {
                due.into_iter().for_each(Due::run);
                None
            }
        }
    }

    /// Queues a frame for another process.
    pub(crate) fn post(&self, process: ProcessId, outgoing: Outgoing) {
        if let Some(carrier) = &self.shared().carrier {
            return carrier.carry(self.process(), process, outgoing.into());
        }
        let Some(link) = self.shared().links.get(&process) else { return };
        // Where no event of the socket will wake the I/O thread, it is told.
        if matches!(link.send(outgoing), Flushed::Full | Flushed::Retry | Flushed::WriteEnded) {
            self.shared().wake.wake();
        }
    }

    /// A hub of a simulated process: a carrier takes its frames, and hands over what comes with [`Hub::receive`].
    pub(crate) fn carried(me: ProcessId, layout: &Arc<Layout>, carrier: Arc<dyn Carrier>) -> Result<Self> {
        let wake = Wake::new(false).map_err(|errno| os("making an event descriptor", errno))?;
        let clock = Arc::clone(&carrier);
        let router = Router::new(me, layout, Clock(Box::new(move || clock.now())));
        let layout = Arc::clone(layout);
        let (exchange, links) = (Exchange::default(), BTreeMap::new());
        let shared = Shared { me, layout, router, exchange, links, wake, carrier: Some(carrier) };
        Ok(Self { handle: Arc::new(Handle { shared: Arc::new(shared), duty: None }) })
    }

    /// Takes in what a carrier brought from another process. False if that breaks the protocol: then the connection
    /// has ended, as one of sockets would.
    pub(crate) fn receive(&self, from: ProcessId, packet: &Packet) -> bool {
        // Whoever is due after it goes to its runtime when this is dropped.
        let mut due = Vec::new();
        let broken =
            packet.open(|frame, handles| io::accept(self.shared(), from, &frame, handles, &mut due)).err();
        drop(due);
        let Some(violation) = broken else { return true };
        tracing::warn!(peer = %from, detail = %violation, "bootstrap.broken");
        self.end_connection(from, &Death::Broken(violation.to_string()));
        false
    }

    /// A carrier's connection to another process has ended.
    pub(crate) fn lost(&self, peer: ProcessId, detail: &str) {
        self.end_connection(peer, &Death::Lost(detail.to_owned()));
    }

    fn end_connection(&self, peer: ProcessId, death: &Death) {
        self.shared().router.died(peer, death);
        self.shared().exchange.lost(peer, death.detail());
    }

    /// A hub over connections that are made already.
    pub(crate) fn start(me: ProcessId, layout: &Arc<Layout>, connected: Vec<Connected>) -> Result<Self> {
        let has_thread = !connected.is_empty();
        let wake = Wake::new(has_thread).map_err(|errno| os("making an event descriptor", errno))?;
        let (mut links, mut readers) = (BTreeMap::new(), Vec::new());
        for Connected { peer, pid, socket } in connected {
            let socket: Arc<OwnedFd> = Arc::new(socket);
            links.insert(peer, Arc::new(Link::new(peer, pid, &socket)));
            readers.push((peer, Reader::new(socket)));
            tracing::debug!(process = %me, peer = %layout.describe(peer), pid, "bootstrap.connected");
        }
        let layout = Arc::clone(layout);
        let start = Instant::now();
        let router = Router::new(me, &layout, Clock(Box::new(move || start.elapsed())));
        let exchange = Exchange::default();
        let shared = Arc::new(Shared { me, layout, router, exchange, links, wake, carrier: None });
        let mut duty = None;
        if has_thread {
            let io = Duty::new(&shared, readers).map_err(|errno| os("preparing epoll", errno))?;
            let io = Arc::clone(duty.insert(Arc::new(io)));
            let name = format!("symwin-io-{}", me.get());
            thread::Builder::new()
                .name(name)
                .spawn(move || io.run())
                .map_err(|error| {
                    let errno = error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error());
                    BootstrapError::Os { what: "starting the I/O thread".to_owned(), errno }
                })
                .map_err(Arc::new)?;
        }
        Ok(Self { handle: Arc::new(Handle { shared, duty }) })
    }
}

/// Held by hubs and endpoints, not by the I/O thread.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// `None` where there are no connections.
    duty: Option<Arc<Duty>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.wake.close();
    }
}

/// What the operating system refused.
pub(crate) fn os(what: &str, errno: Errno) -> Arc<BootstrapError> {
    Arc::new(BootstrapError::Os { what: what.to_owned(), errno: errno.raw_os_error() })
}
