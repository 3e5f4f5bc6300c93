//! The first bytes on a connection, in both directions. A pure codec.
//!
//! The prefix (magic, version, process, length) is the same in every version, so that versions can name each other.

use crate::bootstrap::frame::VERSION;
use crate::bootstrap::layout::PROCESSES_MAX;
use crate::ids::ProcessId;
use xxhash_rust::xxh3::xxh3_64;

/// Who a side is, and which set of processes it wants to be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) process: ProcessId,
    pub(crate) contents: Contents,
}

/// What a version decides the form of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Ours {
        /// Drawn for this connection.
        nonce: u64,
        /// The nonce of the hello that this one answers; 0 in the first.
        echo: u64,
        /// A digest of the rendezvous.
        secret: u128,
        layout: Vec<u32>,
    },
    /// Of another version.
    Foreign,
}

/// Why bytes are no hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its first bytes are no greeting of this protocol")]
pub(crate) struct NoHello;

/// How many bytes the hello that begins with `bytes` has in all, as far as can be told; at least the prefix.
pub(crate) fn needed(bytes: &[u8]) -> Result<usize, NoHello> {
    let mut reader = Bytes(bytes);
    let Some(magic) = reader.u32() else { return Ok(PREFIX_BYTES) };
    if magic != MAGIC {
        return Err(NoHello);
    }
    let (Some(_version), Some(_process), Some(length)) = (reader.u32(), reader.u32(), reader.u32()) else {
        return Ok(PREFIX_BYTES);
    };
    match usize::try_from(length) {
        Ok(length) if length <= CONTENTS_BYTES_MAX => Ok(PREFIX_BYTES + length),
        _ => Err(NoHello),
    }
}

/// Reads a whole hello, as long as [`needed`] said.
pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, NoHello> {
    if needed(bytes)? != bytes.len() {
        return Err(NoHello);
    }
    let mut reader = Bytes(bytes);
    let _magic = reader.u32().ok_or(NoHello)?;
    let version = reader.u32().ok_or(NoHello)?;
    let process = ProcessId::new(reader.u32().ok_or(NoHello)?);
    let _length = reader.u32().ok_or(NoHello)?;
    if version != u32::from(VERSION) {
        return Ok(Hello { version, process, contents: Contents::Foreign });
    }
    let (signed, sum) = bytes.split_last_chunk::<8>().ok_or(NoHello)?;
    if u64::from_le_bytes(*sum) != xxh3_64(signed) {
        return Err(NoHello);
    }
    let contents = decode_contents(&mut reader).ok_or(NoHello)?;
    if reader.0.len() == sum.len() { Ok(Hello { version, process, contents }) } else { Err(NoHello) }
}

/// This version's hello.
pub(crate) fn encode(process: ProcessId, nonce: u64, echo: u64, secret: u128, layout: &[u32]) -> Vec<u8> {
    let mut contents = Vec::new();
    contents.extend_from_slice(&nonce.to_le_bytes());
    contents.extend_from_slice(&echo.to_le_bytes());
    contents.extend_from_slice(&secret.to_le_bytes());
    contents.extend_from_slice(&length(layout.len()));
    layout.iter().for_each(|count| contents.extend_from_slice(&count.to_le_bytes()));
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend_from_slice(&u32::from(VERSION).to_le_bytes());
    bytes.extend_from_slice(&process.get().to_le_bytes());
    bytes.extend_from_slice(&length(contents.len() + 8));
    bytes.append(&mut contents);
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode_contents(reader: &mut Bytes<'_>) -> Option<Contents> {
    let (nonce, echo) = (reader.u64()?, reader.u64()?);
    let secret = u128::from_le_bytes(*reader.chunk::<16>()?);
    let count = usize::try_from(reader.u32()?).ok().filter(|&count| count <= PROCESSES_MAX)?;
    let layout = (0..count).map(|_| reader.u32()).collect::<Option<Vec<u32>>>()?;
    Some(Contents::Ours { nonce, echo, secret, layout })
}

fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).expect("a layout has few processes").to_le_bytes()
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(chunk)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// "SYMH".
const MAGIC: u32 = u32::from_le_bytes(*b"SYMH");
const PREFIX_BYTES: usize = 16;
/// Nonce, echo, secret, layout, checksum.
const CONTENTS_BYTES_MAX: usize = 8 + 8 + 16 + 4 + 4 * PROCESSES_MAX + 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_back_and_no_damaged_one_is_taken_for_ours() {
        let bytes = encode(ProcessId::new(3), 7, 9, 11, &[2, 2, 1, 4]);
        let hello = decode(&bytes).unwrap();
        let contents = Contents::Ours { nonce: 7, echo: 9, secret: 11, layout: vec![2, 2, 1, 4] };
        assert_eq!(hello, Hello { version: u32::from(VERSION), process: ProcessId::new(3), contents });
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = decode(&damaged);
            assert!(read.is_err() || read.unwrap().contents == Contents::Foreign, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Err(NoHello), "{cut} bytes");
        }
    }

    #[test]
    fn a_length_that_is_too_large_is_refused_at_once() {
        let mut bytes = encode(ProcessId::new(0), 1, 2, 3, &[1]);
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(needed(&bytes[..16]), Err(NoHello));
    }
}
