//! Windows inside a host kernel, and the lookup through the device's own window table.
#![allow(unsafe_code, reason = "device structs are read where the table says")]

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::abi::{TABLE_ENTRIES, TeamStruct, Window, WindowTable, WindowTableEntry};
use crate::device::kernel::KernelEnv;
use crate::device::pointer;
use crate::device::shared::{Element, Shared};
use crate::error::{Misuse, Result};
use crate::ids::{LsaRank, Rank};

/// A window as a host kernel holds it, for as long as the kernel runs. Offsets are in bytes from its start.
///
/// Pointers are checked to begin inside the window (or at its end); slices are checked whole.
#[derive(Clone)]
pub struct DeviceWindow<'k> {
    env: &'k KernelEnv,
    /// The struct that kernels read.
    bytes: Window,
    /// Its first address as the owner knows it; 0 where that is not known.
    base: u64,
    /// This rank's size in bytes.
    size: u64,
    /// Each LSA rank's size, where they differ.
    sizes: Option<Arc<[u64]>>,
}

impl<'k> DeviceWindow<'k> {
    /// # Safety
    /// For `'k`, `size` bytes of every LSA rank (or as many as `sizes` says) are mapped for reading and writing
    /// where `bytes` puts them.
    pub(super) unsafe fn new(
        env: &'k KernelEnv,
        bytes: Window,
        base: u64,
        size: u64,
        sizes: Option<Arc<[u64]>>,
    ) -> Self {
        Self { env, bytes, base, size, sizes }
    }

    /// The struct that kernels read.
    #[must_use]
    pub fn bytes(&self) -> &Window {
        &self.bytes
    }

    /// The first address of this rank's buffer as its owner knows it (outside the flat range), 0 if not known.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// This rank's size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The size of a peer's buffer in bytes; 0 if there is no such peer.
    #[must_use]
    pub fn size_at(&self, peer: LsaRank) -> u64 {
        if peer.get() >= self.env.dev_comm.lsa_size {
            return 0;
        }
        self.sizes.as_ref().map_or(self.size, |sizes| sizes.get(peer.index()).copied().unwrap_or(0))
    }

    /// A pointer into this rank's own buffer.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn local_ptr(&self, offset: u64) -> Result<*mut u8> {
        self.lsa_ptr(LsaRank::new(self.env.dev_comm.lsa_rank), offset)
    }

    /// A pointer into the buffer of an LSA rank.
    ///
    /// # Errors
    /// `OutOfRange`, `NotInTeam`.
    pub fn lsa_ptr(&self, peer: LsaRank, offset: u64) -> Result<*mut u8> {
        self.checked(peer, offset, 0).map(ptr::with_exposed_provenance_mut)
    }

    /// A pointer into the buffer of a world rank, which must be in the LSA team.
    ///
    /// # Errors
    /// `OutOfRange`, `NotInTeam`.
    pub fn world_ptr(&self, peer: Rank, offset: u64) -> Result<*mut u8> {
        self.lsa_ptr(self.env.lsa_rank_of(i64::from(peer.get()))?, offset)
    }

    /// A pointer into the buffer of a team's rank `peer`, which must be in the LSA team.
    ///
    /// # Errors
    /// `OutOfRange`, `NotInTeam`.
    pub fn team_ptr(&self, team: TeamStruct, peer: u32, offset: u64) -> Result<*mut u8> {
        let distance = (i64::from(peer) - i64::from(team.rank)).saturating_mul(team.stride.into());
        let world = i64::from(self.env.dev_comm.rank).saturating_add(distance);
        self.lsa_ptr(self.env.lsa_rank_of(world)?, offset)
    }

    /// `count` elements of an LSA rank's buffer, from byte `offset` on.
    ///
    /// # Errors
    /// `OutOfRange`, `NotInTeam`, or `Misuse` if the elements are not aligned to their size.
    pub fn slice<T: Element>(&self, peer: LsaRank, offset: u64, count: usize) -> Result<Shared<'k, T>> {
        let len = (count as u64).saturating_mul(size_of::<T>() as u64);
        let address = self.checked(peer, offset, len)?;
        // SAFETY: the whole range is in the peer's buffer, which is mapped for `'k` by the contract of `new`.
        unsafe { Shared::new(address, count) }
    }

    /// `count` elements of this rank's own buffer, from byte `offset` on.
    ///
    /// # Errors
    /// As [`DeviceWindow::slice`].
    pub fn local_slice<T: Element>(&self, offset: u64, count: usize) -> Result<Shared<'k, T>> {
        self.slice(LsaRank::new(self.env.dev_comm.lsa_rank), offset, count)
    }

    /// The address of `offset` at `peer`, if `len` bytes from there on are in its buffer.
    fn checked(&self, peer: LsaRank, offset: u64, len: u64) -> Result<usize> {
        self.env.check_lsa(peer)?;
        let size = self.size_at(peer);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let what = format!("window of {peer}");
            return Err(Misuse::OutOfRange { what, offset, len, size }.into());
        }
        Ok(host_address(pointer::lsa(&self.bytes, offset, peer.get().cast_signed())))
    }
}

impl fmt::Debug for DeviceWindow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWindow")
            .field("bytes", &self.bytes)
            .field("base", &self.base)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The innermost of the table's windows that contain `address`: the smallest, of equal ones the one that starts
/// last. None where there is none; the end of the chain is an end and not a fault.
pub(super) fn find(env: &KernelEnv, address: u64) -> Option<DeviceWindow<'_>> {
    let contains = |entry: &WindowTableEntry| {
        entry.base <= address && address.checked_sub(entry.base).is_some_and(|into| into < entry.size)
    };
    let innermost = entries(env).filter(contains).min_by_key(|entry| (entry.size, !entry.base))?;
    Some(open(env, innermost))
}

/// The table's window whose struct lies at `device_address`.
pub(super) fn at(env: &KernelEnv, device_address: u64) -> Option<DeviceWindow<'_>> {
    entries(env).find(|entry| entry.window == device_address).map(|entry| open(env, entry))
}

fn open(env: &KernelEnv, entry: WindowTableEntry) -> DeviceWindow<'_> {
    let sizes = env.sizes.as_ref().and_then(|sizes| sizes(entry.window));
    open_known(env, entry.window, entry.base, entry.size, sizes)
}

/// The window whose struct lies at `device_address`, with what its entry says. Private to this module and
/// [`Kernel::open_window`](crate::device::Kernel), whose callers know that it is, or was meanwhile, in the table.
pub(super) fn open_known(
    env: &KernelEnv,
    device_address: u64,
    base: u64,
    size: u64,
    sizes: Option<Arc<[u64]>>,
) -> DeviceWindow<'_> {
    let from = ptr::with_exposed_provenance::<Window>(host_address(device_address));
    // SAFETY: a published entry leads to a whole struct that does not change while the kernel runs, by the
    // contract of `KernelEnv::new`; its pointer was loaded with Acquire, or the window is open.
    let bytes = unsafe { from.read() };
    // SAFETY: a published window is mapped on all LSA ranks for `size` or `sizes`, by the same contract.
    unsafe { DeviceWindow::new(env, bytes, base, size, sizes) }
}

/// The used entries of the window table.
fn entries(env: &KernelEnv) -> impl Iterator<Item = WindowTableEntry> {
    let first = Some(env.dev_comm.window_table).filter(|chunk| *chunk != 0);
    std::iter::successors(first, |chunk| {
        let next = load(chunk + std::mem::offset_of!(WindowTable, next) as u64, Ordering::Acquire);
        Some(next).filter(|next| *next != 0)
    })
    .take(CHUNKS_MAX)
    .flat_map(|chunk| (0..TABLE_ENTRIES as u64).map(move |i| chunk + i * ENTRY_BYTES))
    .filter_map(|entry| {
        // The pointer first: it is published last, so base and size are whole where it is set, and it is
        // withdrawn first, and its slot not reused while a kernel runs that may have seen it.
        let window = load(entry + std::mem::offset_of!(WindowTableEntry, window) as u64, Ordering::Acquire);
        let base = load(entry + std::mem::offset_of!(WindowTableEntry, base) as u64, Ordering::Relaxed);
        let size = load(entry + std::mem::offset_of!(WindowTableEntry, size) as u64, Ordering::Relaxed);
        (window != 0).then_some(WindowTableEntry { base, size, window })
    })
}

/// Loads one word of the table. Private to this module, which passes addresses inside of chunks only.
fn load(address: u64, ordering: Ordering) -> u64 {
    let word = ptr::with_exposed_provenance_mut(host_address(address));
    // SAFETY: a word of a chunk that the chain leads to: mapped and aligned to 8 bytes while the kernel runs,
    // written by atomic stores only, by the contract of `KernelEnv::new`.
    let word = unsafe { AtomicU64::from_ptr(word) };
    word.load(ordering)
}

/// A device address of the host device.
pub(super) fn host_address(address: u64) -> usize {
    const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "flat ranges need 64-bit addresses");
    #[allow(clippy::cast_possible_truncation, reason = "equally wide, checked above")]
    let address = address as usize;
    address
}

const ENTRY_BYTES: u64 = size_of::<WindowTableEntry>() as u64;

/// More chunks than any table has: a bound on the walk should a chain be broken.
const CHUNKS_MAX: usize = 1 << 20;
