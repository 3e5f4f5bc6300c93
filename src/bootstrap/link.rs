//! The sending side of one connection: a queue that any thread may add to and nobody waits for.
//!
//! A sender writes at once while the kernel takes it; the I/O thread goes on when the socket has room again, when the
//! peer acknowledges descriptors, or when the kernel may let more descriptors be in flight.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::bootstrap::carrier::Packet;
use crate::bootstrap::frame::{Frame, Kind, encode_head};
use crate::ids::ProcessId;

/// One frame on its way out, its descriptors before it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    head: Vec<u8>,
    body: Arc<[u8]>,
    descriptors: Vec<Arc<OwnedFd>>,
    /// How many of the descriptors have been sent.
    descriptors_sent: usize,
    /// How many bytes of head and body have been sent.
    written: usize,
}

impl Outgoing {
    /// `frame.body` must be `body`.
    pub(crate) fn new(frame: &Frame<'_>, body: &Arc<[u8]>, descriptors: Vec<Arc<OwnedFd>>) -> Self {
        let head = encode_head(frame);
        Self { head, body: Arc::clone(body), descriptors, descriptors_sent: 0, written: 0 }
    }

    /// The same in one piece, for a simulated network.
    pub(crate) fn into_packet(self) -> Packet {
        let mut bytes = self.head;
        bytes.extend_from_slice(&self.body);
        Packet::new(bytes, self.descriptors)
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// How far a queue was written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The connection is closed.
    Closed,
    /// The kernel refuses more bytes; the socket's becoming writable is an event, for who asked for it.
    Full,
    /// All is in the kernel.
    Idle,
    /// Others wait before it; who wrote them last knows why.
    Queued,
    /// The kernel has no room for descriptors in flight or for memory: try again soon. No event tells when.
    Retry,
    /// The peer has to acknowledge descriptors first.
    Unacknowledged,
    /// The peer no longer reads. Whether it is dead is for the reading side to say.
    WriteEnded,
}

/// One connection, as senders see it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// The peer's operating-system process, as far as this side's name space shows it.
    pub(crate) pid: Option<i32>,
    writer: Mutex<Writer>,
    /// Signalled when a queue has become empty.
    emptied: Condvar,
}

impl Link {
    pub(crate) fn new(peer: ProcessId, pid: Option<i32>, socket: &Arc<OwnedFd>) -> Self {
        let writer = Writer { socket: Some(Arc::clone(socket)), ..Writer::default() };
        Self { peer, pid, writer: Mutex::new(writer), emptied: Condvar::new() }
    }

    /// Queues a frame, and writes it at once if nothing is before it. Dropped where the connection has ended: the
    /// loss is told to everyone by the I/O thread.
    pub(crate) fn send(&self, outgoing: Outgoing) -> Flushed {
        let mut writer = self.writer.lock();
        if writer.socket.is_none() || writer.ended {
            return Flushed::Closed;
        }
        let first = writer.is_empty();
        writer.queue.push_back(outgoing);
        if first { writer.flush(true) } else { Flushed::Queued }
    }

    /// Writes out what the kernel takes; descriptors only if `descriptors` says so.
    pub(crate) fn flush(&self, descriptors: bool) -> Flushed {
        let mut writer = self.writer.lock();
        let flushed = writer.flush(descriptors);
        if writer.is_empty() || writer.ended {
            self.emptied.notify_all();
        }
        flushed
    }

    /// Owes the peer acknowledgement of so many batches in all. It goes with the next frame, or with the next flush
    /// once the peer may soon wait for it.
    pub(crate) fn owe_acks(&self, batches: u64) {
        self.writer.lock().acks_due = batches;
    }

    /// The peer has so many batches in all. False if it was never sent so many.
    pub(crate) fn acknowledged(&self, batches: u64) -> bool {
        let mut writer = self.writer.lock();
        let sane = (writer.batches_acked..=writer.batches_sent).contains(&batches);
        if sane {
            writer.batches_acked = batches;
        }
        sane
    }

    /// How many batches the peer has acknowledged.
    pub(crate) fn batches_acknowledged(&self) -> u64 {
        self.writer.lock().batches_acked
    }

    /// How often the kernel had no room for descriptors or memory.
    #[cfg(test)]
    pub(crate) fn refusals(&self) -> u64 {
        self.writer.lock().refusals
    }

    /// Waits until all is in the kernel or the connection has ended; false if the deadline came first.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        let mut writer = self.writer.lock();
        while !writer.is_empty() && !writer.ended {
            if self.emptied.wait_until(&mut writer, deadline).timed_out() {
                return writer.is_empty() || writer.ended;
            }
        }
        true
    }

    /// Drops the queue and this side's share of the socket.
    pub(crate) fn close(&self) {
        let last = std::mem::replace(&mut *self.writer.lock(), Writer { ended: true, ..Writer::default() });
        self.emptied.notify_all();
        drop(last);
    }
}

/// What one `recvmsg` brought.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// At most one batch: the kernel never joins two.
    pub(crate) batch: Option<Batch>,
}

/// Descriptors as they came.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Some found no room and are gone.
    pub(crate) truncated: bool,
}

/// Receives what is there, never waiting.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut iov = [IoSliceMut::new(into)];
    let message = match recvmsg(socket, &mut iov, &mut control, flags) {
        // A kernel that refuses the whole call for want of descriptors: take the bytes, lose the descriptors.
        Err(Errno::MFILE | Errno::NFILE) => {
            control = RecvAncillaryBuffer::default();
            recvmsg(socket, &mut iov, &mut control, flags)?
        }
        other => other?,
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    let truncated = message.flags.contains(ReturnFlags::CTRUNC);
    let batch = (truncated || !descriptors.is_empty()).then_some(Batch { descriptors, truncated });
    Ok(Received { bytes: message.bytes, batch })
}

#[derive(Debug, Default)]
struct Writer {
    socket: Option<Arc<OwnedFd>>,
    /// The peer no longer reads, or the connection is closed.
    ended: bool,
    queue: VecDeque<Outgoing>,
    /// What remains of a control frame that the kernel took in part.
    control: Vec<u8>,
    batches_sent: u64,
    batches_acked: u64,
    acks_due: u64,
    acks_sent: u64,
    /// How often the kernel had no room for descriptors or memory.
    refusals: u64,
}

enum Step {
    Done,
    Stop(Flushed),
}

impl Writer {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.control.is_empty()
    }

    fn flush(&mut self, descriptors: bool) -> Flushed {
        let Some(socket) = self.socket.clone() else { return Flushed::Closed };
        if self.ended {
            return Flushed::WriteEnded;
        }
        loop {
            match self.step(socket.as_fd(), descriptors) {
                Ok(Step::Done) | Err(Errno::INTR) => {}
                Ok(Step::Stop(flushed)) => return flushed,
                Err(Errno::AGAIN) => return Flushed::Full,
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    self.refusals += 1;
                    return Flushed::Retry;
                }
                Err(_) => {
                    self.ended = true;
                    self.queue.clear();
                    self.control.clear();
                    return Flushed::WriteEnded;
                }
            }
        }
    }

    /// Writes one thing, in one call: what is left of control frames and, if it may go, the frame at the front. Each
    /// call wakes the peer. Acknowledgements overtake whatever waits, between two frames: neither side's descriptors
    /// may wait for those of the other.
    fn step(&mut self, socket: BorrowedFd<'_>, descriptors: bool) -> Result<Step, Errno> {
        let between = self.queue.front().is_none_or(|front| front.written == 0);
        if between && self.control.is_empty() && self.owes_acks() {
            self.acks_sent = self.acks_due;
            self.control = encode_head(&Frame::control(Kind::Ack, self.acks_due, 0, &[]));
        }
        let Some(front) = self.queue.front_mut() else {
            if self.control.is_empty() {
                return Ok(Step::Stop(Flushed::Idle));
            }
            let written = write(socket, &[IoSlice::new(&self.control)], &[])?;
            self.control.drain(..written);
            return Ok(Step::Done);
        };
        if front.descriptors_sent < front.descriptors.len() {
            // A batch goes with the first byte of the frame that announces it, so nothing may be before that.
            if !self.control.is_empty() {
                let written = write(socket, &[IoSlice::new(&self.control)], &[])?;
                self.control.drain(..written);
                return Ok(Step::Done);
            }
            if self.batches_sent - self.batches_acked >= BATCHES_UNACKNOWLEDGED_MAX {
                return Ok(Step::Stop(Flushed::Unacknowledged));
            }
            if !descriptors {
                return Ok(Step::Stop(Flushed::Retry));
            }
            let rest = &front.descriptors[front.descriptors_sent..];
            let batch: Vec<BorrowedFd<'_>> = rest.iter().take(BATCH_MAX).map(|fd| fd.as_fd()).collect();
            let count = u32::try_from(batch.len()).expect("a batch is small");
            let mut announcement = encode_head(&Frame::control(Kind::Descriptors, 0, count, &[]));
            let last = batch.len() == rest.len();
            let (head, body): (&[u8], &[u8]) = if last { (&front.head, &front.body) } else { (&[], &[]) };
            let bytes = [IoSlice::new(&announcement), IoSlice::new(head), IoSlice::new(body)];
            // If the kernel takes only a part, the rest goes without the descriptors.
            let written = write(socket, &bytes, &batch)?;
            front.descriptors_sent += batch.len();
            self.batches_sent += 1;
            front.written = written.saturating_sub(announcement.len());
            self.control = announcement.split_off(written.min(announcement.len()));
        } else {
            let head = front.head.get(front.written..).unwrap_or_default();
            let body = &front.body[front.written.saturating_sub(front.head.len())..];
            let bytes = [IoSlice::new(&self.control), IoSlice::new(head), IoSlice::new(body)];
            let written = write(socket, &bytes, &[])?;
            front.written += written.saturating_sub(self.control.len());
            self.control.drain(..written.min(self.control.len()));
        }
        if front.written == front.len() {
            self.queue.pop_front();
        }
        Ok(Step::Done)
    }

    /// Whether an acknowledgement is due: at once when the peer may soon wait for it, else with the next frame.
    fn owes_acks(&self) -> bool {
        let owed = self.acks_due - self.acks_sent;
        owed >= BATCHES_UNACKNOWLEDGED_MAX / 2 || (owed > 0 && !self.queue.is_empty())
    }
}

fn write(
    socket: BorrowedFd<'_>,
    bytes: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the control buffer holds a whole batch");
    }
    sendmsg(socket, bytes, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// What the kernel takes in one message.
pub(crate) const BATCH_MAX: usize = 253;
/// 1,012 descriptors in flight: under the usual limit of 1,024 for users without privileges.
pub(crate) const BATCHES_UNACKNOWLEDGED_MAX: u64 = 4;
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(BATCH_MAX));
