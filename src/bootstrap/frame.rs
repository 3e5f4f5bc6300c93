//! The frames on a connection: a fixed header, destinations, a table of handles, a body. Little endian.
//!
//! [`decode`] is a pure function over bytes. The header has a checksum of its own, so that a damaged length is refused
//! at once and never waited for; every length is checked against its cap before anything is allocated, and
//! nothing is allocated before all bytes of the frame are there.

use std::mem::size_of;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bootstrap::Tag;
use crate::ids::{CommId, Rank};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// How many batches of descriptors have been received so far, in `seq`.
    Ack,
    Abort,
    /// A batch of descriptors of the next message travels with this frame.
    Descriptors,
    Goodbye,
    Message,
    /// A contribution to an all-gather over processes.
    Publish,
}

impl Kind {
    const fn to_wire(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Goodbye => 2,
            Self::Abort => 3,
            Self::Publish => 4,
            Self::Descriptors => 5,
            Self::Ack => 6,
        }
    }

    const fn from_wire(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Message),
            2 => Some(Self::Goodbye),
            3 => Some(Self::Abort),
            4 => Some(Self::Publish),
            5 => Some(Self::Descriptors),
            6 => Some(Self::Ack),
            _ => None,
        }
    }
}

/// One entry of a message's table of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleSlot {
    /// The next descriptor that came in batches.
    Descriptor,
    /// The handle itself.
    Fabric([u8; 64]),
}

/// A frame, its body borrowed from the bytes that it was decoded from or will be written after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    pub(crate) comm: CommId,
    pub(crate) from: Rank,
    pub(crate) tag: Tag,
    pub(crate) to: Vec<Rank>,
    /// In a message, the descriptors of its table; in `Descriptors`, those of the batch.
    pub(crate) descriptors: u32,
    pub(crate) handles: Vec<HandleSlot>,
    pub(crate) body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame of no communicator.
    pub(crate) const fn control(kind: Kind, seq: u64, descriptors: u32, body: &'a [u8]) -> Self {
        Self {
            kind,
            comm: CommId::from_wire(0),
            from: Rank::new(0),
            tag: Tag::new(seq, 0),
            to: Vec::new(),
            descriptors,
            handles: Vec::new(),
            body,
        }
    }
}

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("not a frame of this protocol: it begins with {found:#010x}")]
    Magic { found: u32 },
    #[error("frames of version {found}, this side speaks version {VERSION}")]
    Version { found: u16 },
    #[error("the header's checksum is wrong")]
    HeaderSum,
    #[error("the checksum of the contents is wrong")]
    PayloadSum,
    #[error("frames of kind {found} are unknown")]
    Kind { found: u8 },
    #[error("{what}: {found} is over the limit, {limit}")]
    TooLong { what: &'static str, found: u64, limit: u64 },
    #[error("the table of handles does not match its counts")]
    Handles,
}

/// Reads the first frame of `bytes`, with its length. `None`: more bytes are needed.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    // A stranger's first bytes are refused even if no whole header ever comes.
    if let Some(first) = bytes.first_chunk::<4>() {
        let found = u32::from_le_bytes(*first);
        if found != MAGIC {
            return Err(FrameError::Magic { found });
        }
    }
    let Ok((header, rest)) = Header::read_from_prefix(bytes) else { return Ok(None) };
    let (kind, lengths) = header.check()?;
    let Some(payload) = rest.get(..lengths.total()) else { return Ok(None) };
    if xxh3_64(payload) != header.payload_sum.get() {
        return Err(FrameError::PayloadSum);
    }
    let (to, payload) = payload.split_at(lengths.destinations * size_of::<u32>());
    let (table, body) = payload.split_at(lengths.table);
    let frame = Frame {
        kind,
        comm: CommId::from_wire(header.comm.get()),
        from: Rank::new(header.from.get()),
        tag: Tag::new(header.seq.get(), header.round),
        to: decode_ranks(to),
        descriptors: header.descriptors.get(),
        handles: decode_handles(table, kind, header.descriptors.get())?,
        body,
    };
    Ok(Some((frame, HEADER_BYTES + lengths.total())))
}

/// The bytes of a frame before its body. The caller keeps the body and writes it after them.
///
/// The caller has checked the limits.
pub(crate) fn encode_head(frame: &Frame<'_>) -> Vec<u8> {
    let table_bytes = frame.handles.len() * FABRIC_SLOT_BYTES;
    let mut head = Vec::with_capacity(HEADER_BYTES + frame.to.len() * 4 + table_bytes);
    // The header comes when the checksum is known.
    head.resize(HEADER_BYTES, 0);
    for rank in &frame.to {
        head.extend_from_slice(&rank.get().to_le_bytes());
    }
    let table = head.len();
    for handle in &frame.handles {
        match handle {
            HandleSlot::Descriptor => head.push(SLOT_DESCRIPTOR),
            HandleSlot::Fabric(bytes) => {
                head.push(SLOT_FABRIC);
                head.extend_from_slice(bytes);
            }
        }
    }
    let payload = &head[HEADER_BYTES..];
    let mut header = Header {
        magic: U32::new(MAGIC),
        version: U16::new(VERSION),
        kind: frame.kind.to_wire(),
        round: frame.tag.round,
        comm: U128::new(frame.comm.get()),
        seq: U64::new(frame.tag.seq),
        from: U32::new(frame.from.get()),
        destinations: U32::new(length(frame.to.len())),
        descriptors: U32::new(frame.descriptors),
        table: U32::new(length(head.len() - table)),
        body: U32::new(length(frame.body.len())),
        reserved: U32::ZERO,
        payload_sum: U64::new(payload_sum(payload, frame.body)),
        header_sum: U64::ZERO,
    };
    header.header_sum = U64::new(header.sum());
    head[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    head
}

/// The checksum of both in a row.
fn payload_sum(payload: &[u8], body: &[u8]) -> u64 {
    if payload.len() + body.len() <= PAYLOAD_SMALL {
        // Most frames: a copy costs less than the state of a checksum in parts.
        let mut both = SmallVec::<[u8; PAYLOAD_SMALL]>::from_slice(payload);
        both.extend_from_slice(body);
        return xxh3_64(&both);
    }
    let mut sum = xxhash_rust::xxh3::Xxh3Default::new();
    sum.update(payload);
    sum.update(body);
    sum.digest()
}

const PAYLOAD_SMALL: usize = 1024;

/// A published contribution as a frame's body.
pub(crate) fn encode_publication(topic: &str, bytes: &[u8]) -> Vec<u8> {
    let mut body = length(topic.len()).to_le_bytes().to_vec();
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(bytes);
    body
}

/// Takes a published contribution apart; `None` if it is not one.
pub(crate) fn decode_publication(body: &[u8]) -> Option<(&str, &[u8])> {
    let (topic_bytes, rest) = body.split_first_chunk::<4>()?;
    let topic_bytes = usize::try_from(u32::from_le_bytes(*topic_bytes)).ok()?;
    let (topic, bytes) = rest.split_at_checked(topic_bytes)?;
    Some((str::from_utf8(topic).ok()?, bytes))
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    version: U16,
    kind: u8,
    round: u8,
    comm: U128,
    seq: U64,
    from: U32,
    destinations: U32,
    descriptors: U32,
    /// Bytes of the table of handles.
    table: U32,
    /// Bytes of the body.
    body: U32,
    reserved: U32,
    /// Over destinations, table and body.
    payload_sum: U64,
    /// Over all of the header before it.
    header_sum: U64,
}

struct Lengths {
    destinations: usize,
    table: usize,
    body: usize,
}

impl Lengths {
    /// Cannot overflow: each is under its cap.
    const fn total(&self) -> usize {
        self.destinations * size_of::<u32>() + self.table + self.body
    }
}

impl Header {
    fn sum(&self) -> u64 {
        let bytes = self.as_bytes();
        xxh3_64(&bytes[..HEADER_BYTES - size_of::<U64>()])
    }

    fn check(&self) -> Result<(Kind, Lengths), FrameError> {
        if self.version.get() != VERSION {
            return Err(FrameError::Version { found: self.version.get() });
        }
        if self.header_sum.get() != self.sum() {
            return Err(FrameError::HeaderSum);
        }
        let kind = Kind::from_wire(self.kind).ok_or(FrameError::Kind { found: self.kind })?;
        capped("descriptors", self.descriptors, DESCRIPTORS_MAX)?;
        let lengths = Lengths {
            destinations: capped("destinations", self.destinations, DESTINATIONS_MAX)?,
            table: capped("table of handles in bytes", self.table, HANDLES_MAX * FABRIC_SLOT_BYTES)?,
            body: capped("body in bytes", self.body, BODY_BYTES_MAX)?,
        };
        Ok((kind, lengths))
    }
}

fn capped(what: &'static str, found: U32, limit: usize) -> Result<usize, FrameError> {
    let found = found.get();
    match usize::try_from(found) {
        Ok(value) if value <= limit => Ok(value),
        _ => Err(FrameError::TooLong { what, found: found.into(), limit: limit as u64 }),
    }
}

fn decode_ranks(bytes: &[u8]) -> Vec<Rank> {
    bytes.as_chunks::<4>().0.iter().map(|rank| Rank::new(u32::from_le_bytes(*rank))).collect()
}

fn decode_handles(mut table: &[u8], kind: Kind, descriptors: u32) -> Result<Vec<HandleSlot>, FrameError> {
    let mut handles = Vec::new();
    let mut found = 0;
    while let Some((&slot, rest)) = table.split_first() {
        table = match slot {
            SLOT_DESCRIPTOR => {
                found += 1;
                handles.push(HandleSlot::Descriptor);
                rest
            }
            SLOT_FABRIC => {
                let (bytes, rest) = rest.split_first_chunk().ok_or(FrameError::Handles)?;
                handles.push(HandleSlot::Fabric(*bytes));
                rest
            }
            _ => return Err(FrameError::Handles),
        };
    }
    // A batch announces descriptors without a table.
    let fits = if kind == Kind::Descriptors { handles.is_empty() } else { found == descriptors };
    if fits && handles.len() <= HANDLES_MAX { Ok(handles) } else { Err(FrameError::Handles) }
}

/// Lengths that were checked against a cap fit in 32 bits.
fn length(of: usize) -> u32 {
    u32::try_from(of).expect("frame lengths are capped before encoding")
}

pub(crate) const HEADER_BYTES: usize = size_of::<Header>();
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;
pub(crate) const DESTINATIONS_MAX: usize = 4_096;
pub(crate) const DESCRIPTORS_MAX: usize = 65_536;
/// Descriptors and fabric handles of one message together.
pub(crate) const HANDLES_MAX: usize = DESCRIPTORS_MAX;
const FABRIC_SLOT_BYTES: usize = 65;
const SLOT_DESCRIPTOR: u8 = 0;
const SLOT_FABRIC: u8 = 1;
/// "SYMF".
const MAGIC: u32 = u32::from_le_bytes(*b"SYMF");
/// Raised with every change of the layout or of what a kind means.
pub(crate) const VERSION: u16 = 1;
