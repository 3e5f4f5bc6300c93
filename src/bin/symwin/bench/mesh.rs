//! Connected sockets between all ranks for the baselines: unix stream sockets, as the library's own between processes.
//! Every call blocks until it is done or the peer has been silent for [`LIMIT`].

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// One rank's connections to all others.
#[derive(Debug)]
pub(crate) struct Mesh {
    me: usize,
    /// By rank, none to itself.
    peers: Vec<Option<UnixStream>>,
}

impl Mesh {
    /// Connects all ranks. `name` is one that nobody else knows; `meet` waits until all ranks have called it.
    pub(crate) fn connect(
        name: &str,
        me: u32,
        ranks: u32,
        meet: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let address = |rank| SocketAddr::from_abstract_name(format!("symwin-bench-{name}-{rank}"));
        let listener = UnixListener::bind_addr(&address(me)?).context("a socket for the baselines")?;
        // Everyone listens from here on.
        meet()?;
        let mut peers: Vec<_> = (0..ranks).map(|_| None).collect();
        for peer in 0..me {
            let mut stream = limited(UnixStream::connect_addr(&address(peer)?)?)?;
            stream.write_all(&me.to_ne_bytes())?;
            peers[peer as usize] = Some(stream);
        }
        for _ in me + 1..ranks {
            let mut stream = limited(accept(&listener)?)?;
            let mut peer = [0; 4];
            stream.read_exact(&mut peer)?;
            match peers.get_mut(u32::from_ne_bytes(peer) as usize) {
                Some(place @ None) => *place = Some(stream),
                _ => bail!("a stranger connected to a socket of the baselines"),
            }
        }
        Ok(Self { me: me as usize, peers })
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// The rank so many places after this one.
    pub(crate) fn after(&self, places: usize) -> usize {
        (self.me + places) % self.ranks()
    }

    /// The rank so many places before this one, at most once around.
    pub(crate) fn before(&self, places: usize) -> usize {
        (self.me + self.ranks() - places) % self.ranks()
    }

    pub(crate) fn send(&self, to: usize, bytes: &[u8]) -> io::Result<()> {
        self.peer(to)?.write_all(bytes)
    }

    pub(crate) fn receive(&self, from: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.peer(from)?.read_exact(bytes)
    }

    /// Sends up to [`BATCH_MAX`] descriptors in one message.
    pub(crate) fn send_descriptors(&self, to: usize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(self.peer(to)?, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the descriptors of one message.
    pub(crate) fn receive_descriptors(&self, from: usize) -> io::Result<Vec<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let got = recvmsg(self.peer(from)?, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rights = control.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        Ok(rights.flatten().collect())
    }

    /// Waits until all ranks are here: a dissemination barrier.
    pub(crate) fn barrier(&self) -> io::Result<()> {
        let mut step = 1;
        while step < self.ranks() {
            self.send(self.after(step), &[0; 4])?;
            self.receive(self.before(step), &mut [0; 4])?;
            step *= 2;
        }
        Ok(())
    }

    fn peer(&self, rank: usize) -> io::Result<&UnixStream> {
        self.peers.get(rank).and_then(Option::as_ref).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

fn limited(stream: UnixStream) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn accept(listener: &UnixListener) -> anyhow::Result<UnixStream> {
    let limit = Timespec::try_from(LIMIT)?;
    let ready =
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit)))?;
    if ready == 0 {
        bail!("a rank did not connect to the baselines' sockets within {} s", LIMIT.as_secs());
    }
    Ok(listener.accept()?.0)
}

/// What the kernel takes in one message.
pub(crate) const BATCH_MAX: usize = 253;
/// How long a peer may be silent.
const LIMIT: Duration = Duration::from_secs(60);
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(BATCH_MAX));
