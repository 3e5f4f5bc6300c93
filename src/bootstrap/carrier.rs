//! The way of frames between the processes of a simulated world.
//!
//! What goes between simulated processes is encoded, checksummed, decoded and checked like what goes over a socket; a
//! [`Carrier`] decides when it arrives, if it does, and in what state.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::Attachment;
use crate::bootstrap::frame::{Frame, HandleSlot, decode};
use crate::bootstrap::link::Outgoing;
use crate::bootstrap::reader::{Handles, Violation};
use crate::ids::ProcessId;

/// Takes frames from process to process. It keeps the order of each (sender, receiver) pair (B-2).
pub(crate) trait Carrier: fmt::Debug + Send + Sync {
    /// Takes a frame. Must neither block nor call into a hub: senders hold locks.
    fn carry(&self, from: ProcessId, to: ProcessId, packet: Packet);

    /// The clock that sightings are dated by.
    fn now(&self) -> Duration;
}

/// One frame on its way, with its descriptors.
#[derive(Debug)]
pub(crate) struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<Arc<OwnedFd>>,
}

impl Packet {
    pub(crate) const fn new(bytes: Vec<u8>, descriptors: Vec<Arc<OwnedFd>>) -> Self {
        Self { bytes, descriptors }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, for a carrier that damages them.
    pub(crate) const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Decodes it as the receiving side of a connection does.
    ///
    /// # Errors
    /// How it breaks the protocol.
    pub(crate) fn open<T>(
        &self,
        take: impl FnOnce(Frame<'_>, Handles) -> Result<T, Violation>,
    ) -> Result<T, Violation> {
        let Some((frame, length)) = decode(&self.bytes)? else {
            return Err(Violation::new("the connection ended in the middle of a frame"));
        };
        if length != self.bytes.len() {
            return Err(Violation::new("bytes follow a frame"));
        }
        let mut descriptors = self.descriptors.iter();
        let mut attachments = Vec::with_capacity(frame.handles.len());
        for slot in &frame.handles {
            attachments.push(match slot {
                HandleSlot::Fabric(bytes) => Attachment::Fabric(*bytes),
                HandleSlot::Descriptor => match descriptors.next() {
                    Some(descriptor) => Attachment::Descriptor(Arc::clone(descriptor)),
                    None => return Err(Violation::new("a message came without its descriptors")),
                },
            });
        }
        take(frame, Handles { attachments, lost: None })
    }
}

impl From<Outgoing> for Packet {
    fn from(outgoing: Outgoing) -> Self {
        outgoing.into_packet()
    }
}
