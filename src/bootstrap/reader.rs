//! The receiving side of one connection: bytes and descriptors in, events out. Only who does the I/O has it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::bootstrap::frame::{DESCRIPTORS_MAX, Frame, FrameError, HandleSlot, Kind, decode};
use crate::bootstrap::link::{BATCH_MAX, Batch, receive};
use crate::bootstrap::{Attachment, LostHandles};

/// What one look at the socket found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Bytes came.
    Data,
    /// Nothing is there now.
    Empty,
    /// Nothing will come any more.
    End,
}

/// How a peer broke the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Other(String),
}

impl Violation {
    pub(crate) fn new(what: &str) -> Self {
        Self::Other(what.to_owned())
    }
}

/// The attachments of a message.
#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) lost: Option<LostHandles>,
}

/// Receives and decodes; what frames mean is for the caller.
#[derive(Debug)]
pub(crate) struct Reader {
    socket: Arc<OwnedFd>,
    /// Received and not decoded.
    bytes: Vec<u8>,
    descriptors: Descriptors,
}

impl Reader {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, bytes: Vec::new(), descriptors: Descriptors::default() }
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Batches of descriptors received so far.
    pub(crate) const fn batches(&self) -> u64 {
        self.descriptors.batches
    }

    /// Receives once and hands over every frame that is whole.
    pub(crate) fn look(
        &mut self,
        scratch: &mut [u8],
        mut frame: impl FnMut(Frame<'_>, Handles) -> Result<(), Violation>,
    ) -> Result<Look, Violation> {
        let received = match receive(self.socket.as_fd(), scratch) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Look::Empty),
            // A reset is told once and ends nothing by itself: what the peer had sent is read first.
            Err(Errno::INTR | Errno::CONNRESET) => return Ok(Look::Data),
            Err(_) => return Ok(Look::End),
        };
        if received.bytes == 0 {
            return Ok(Look::End);
        }
        self.descriptors.waiting.extend(received.batch);
        self.bytes.extend_from_slice(&scratch[..received.bytes]);
        let mut used = 0;
        while let Some((next, bytes)) = decode(&self.bytes[used..])? {
            used += bytes;
            match next.kind {
                Kind::Descriptors => self.descriptors.announced(next.descriptors)?,
                Kind::Message => {
                    let handles = self.descriptors.claim(&next)?;
                    frame(next, handles)?;
                }
                _ => frame(next, Handles { attachments: Vec::new(), lost: None })?,
            }
        }
        self.bytes.drain(..used);
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        // One batch may be here whose frame is not whole yet, never two.
        if self.descriptors.waiting.len() > 1 {
            return Err(Violation::new("descriptors came without a frame that announces them"));
        }
        Ok(Look::Data)
    }

    /// Whether the peer stopped in the middle of a frame.
    pub(crate) const fn is_within_frame(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// Descriptors on their way to their message.
#[derive(Debug, Default)]
struct Descriptors {
    /// Received, their frame not decoded yet.
    waiting: VecDeque<Batch>,
    /// Announced, their message not here yet.
    collected: Vec<OwnedFd>,
    /// How many were announced for the next message.
    count: usize,
    /// Set when one of them found no room.
    lost: Option<LostHandles>,
    batches: u64,
}

impl Descriptors {
    fn announced(&mut self, count: u32) -> Result<(), Violation> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let Some(batch) = self.waiting.pop_front() else {
            return Err(Violation::new("descriptors were announced and none came"));
        };
        if count == 0 || count > BATCH_MAX || self.count + count > DESCRIPTORS_MAX {
            return Err(Violation::Other(format!("{count} descriptors were announced in one batch")));
        }
        if !batch.truncated && batch.descriptors.len() != count {
            let came = batch.descriptors.len();
            return Err(Violation::Other(format!("{count} descriptors were announced, {came} came")));
        }
        self.batches += 1;
        self.count += count;
        if self.lost.is_some() {
            return Ok(());
        }
        self.collected.extend(batch.descriptors);
        if batch.truncated {
            let got = self.collected.len() as u64;
            // Closed at once: whatever this process opens next has room again.
            self.collected = Vec::new();
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            self.lost = Some(LostHandles { limit, need: 0, got });
        }
        Ok(())
    }

    /// The attachments of the message that the batches before it were for.
    fn claim(&mut self, message: &Frame<'_>) -> Result<Handles, Violation> {
        let announced = std::mem::take(&mut self.count);
        if usize::try_from(message.descriptors) != Ok(announced) {
            let named = message.descriptors;
            return Err(Violation::Other(format!("a message has {named} descriptors, {announced} came")));
        }
        let mut collected = std::mem::take(&mut self.collected).into_iter();
        if let Some(lost) = self.lost.take() {
            let lost = LostHandles { need: announced as u64, ..lost };
            return Ok(Handles { attachments: Vec::new(), lost: Some(lost) });
        }
        let attach = |slot: &HandleSlot| match slot {
            HandleSlot::Descriptor => collected.next().map(|fd| Attachment::Descriptor(Arc::new(fd))),
            HandleSlot::Fabric(bytes) => Some(Attachment::Fabric(*bytes)),
        };
        Ok(Handles { attachments: message.handles.iter().filter_map(attach).collect(), lost: None })
    }
}

/// A larger buffer is given back after the large frame that it was for.
const KEPT_BYTES_MAX: usize = 1 << 20;
