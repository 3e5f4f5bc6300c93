//! Memory that crosses processes: a memfd whose name says what it is, so that an importer needs nothing but its
//! descriptor.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create, readlink};

use crate::code::{Code, Done};

/// What a memfd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Of memory, its device; of a multicast object, how many devices it is for.
    pub(crate) devices: i32,
    pub(crate) size: usize,
    pub(crate) handle_types: u32,
    pub(crate) multicast: bool,
}

const MEMORY: &str = "fake-cuda-memory";
const MULTICAST: &str = "fake-cuda-multicast";

/// A new memfd of so many bytes, which may be more than the kind's.
pub(crate) fn create(kind: Kind, bytes: usize) -> Done<OwnedFd> {
    let name = if kind.multicast { MULTICAST } else { MEMORY };
    let name = format!("{name}.{}.{}.{}", kind.devices, kind.size, kind.handle_types);
    let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|_| Code::OPERATING_SYSTEM)?;
    ftruncate(&file, bytes as u64).map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(file)
}

/// The exporter's descriptor for somebody else.
pub(crate) fn duplicate(file: &OwnedFd) -> Done<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| Code::OPERATING_SYSTEM)
}

/// The memfd behind a number that a caller gave, if it is one of this library.
pub(crate) fn import(number: RawFd) -> Done<(Kind, OwnedFd)> {
    let kind = kind_of(&format!("/proc/self/fd/{number}"))?;
    // SAFETY: the link was read just now, so the number is an open descriptor; who imports it does not close it meanwhile.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    let own = rustix::io::fcntl_dupfd_cloexec(given, 0).map_err(|_| Code::OPERATING_SYSTEM)?;
    Ok((kind, own))
}

/// Bytes of a fabric handle.
pub(crate) const FABRIC_BYTES: usize = 64;
const FABRIC_MARK: u64 = u64::from_le_bytes(*b"fakefabr");

/// A fabric handle: where the memfd is to be found.
pub(crate) fn to_fabric(file: &OwnedFd) -> [u8; FABRIC_BYTES] {
    let mut bytes = [0; FABRIC_BYTES];
    let words = [FABRIC_MARK, u64::from(std::process::id()), u64::from(file.as_raw_fd().unsigned_abs())];
    for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The memfd of a fabric handle.
pub(crate) fn from_fabric(bytes: &[u8; FABRIC_BYTES]) -> Done<(Kind, OwnedFd)> {
    let word = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..][..8]);
        u64::from_le_bytes(word)
    };
    if word(0) != FABRIC_MARK {
        return Err(Code::INVALID_VALUE);
    }
    let path = format!("/proc/{}/fd/{}", word(1), word(2));
    let kind = kind_of(&path)?;
    let file = File::options().read(true).write(true).open(path).map_err(|_| Code::INVALID_VALUE)?;
    Ok((kind, file.into()))
}

fn kind_of(path: &str) -> Done<Kind> {
    let link = readlink(path, Vec::new()).map_err(|_| Code::INVALID_VALUE)?;
    parse(&link.to_string_lossy()).ok_or(Code::INVALID_VALUE)
}

/// "/memfd:fake-cuda-memory.0.2097152.1 (deleted)"
fn parse(link: &str) -> Option<Kind> {
    let name = link.strip_prefix("/memfd:")?.split(' ').next()?;
    let mut parts = name.split('.');
    let multicast = match parts.next()? {
        MEMORY => false,
        MULTICAST => true,
        _ => return None,
    };
    let (devices, size) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Kind { devices, size, handle_types: parts.next()?.parse().ok()?, multicast })
}
