//! A world for tests of this module and of `coll`: hand-made windows over one memfd, with nothing of the runtime.
//!
//! Rank r's memory is the memfd's bytes `r * bytes..(r + 1) * bytes`, mapped 4 GiB after that of rank r - 1.
//! It begins with the resource buffer. Another process makes the same world from the same memfd.
#![allow(unsafe_code, reason = "a world made by hand")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::device::abi::{
    LlA2aHandle, LsaBarrierHandle, TABLE_ENTRIES, Window, WindowTable, WindowTableEntry,
};
use crate::device::{DevComm, Kernel, KernelEnv, Watch, launch};
use crate::error::{Peer, Result};
use crate::ids::{ProcessId, Rank};

/// Long enough that no test reaches it unless something is broken.
pub(crate) const AGES: Duration = Duration::from_secs(60);

const STRIDE: usize = 1 << 32;
pub(crate) const RESOURCE_BYTES: usize = 1 << 16;
/// Where the LL all-to-all lies, in units of 128 bytes.
pub(crate) const LL_BUFFER: u32 = 16;

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// LSA ranks.
    pub(crate) ranks: u32,
    /// The world rank of LSA rank 0.
    pub(crate) first: u32,
    /// Bytes of each rank after the resource buffer.
    pub(crate) bytes: usize,
    pub(crate) barriers: i32,
    /// Blocks and slots of the LL all-to-all, which lies behind the barriers.
    pub(crate) ll_a2a: (u32, u32),
    pub(crate) deadline: Duration,
    /// Whether waits are cut into slices.
    pub(crate) sliced: bool,
    /// Windows: offset after the resource buffer, size.
    pub(crate) windows: Vec<(usize, usize)>,
}

impl Spec {
    pub(crate) fn new(ranks: u32, bytes: usize) -> Self {
        let windows = vec![(0, bytes)];
        Self { ranks, first: 0, bytes, barriers: 4, ll_a2a: (0, 0), deadline: AGES, sliced: false, windows }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) spec: Spec,
    memfd: File,
    flat: usize,
    devices: Vec<RankDevice>,
}

/// One rank's device structs. Never touched again once made.
#[derive(Debug)]
struct RankDevice {
    watch: Arc<Watch>,
    structs: Vec<Window>,
    chunks: Vec<WindowTable>,
}

impl World {
    pub(crate) fn new(spec: Spec) -> Arc<Self> {
        let memfd = memfd_create("symwin-test", MemfdFlags::CLOEXEC).unwrap();
        let size = (spec.ranks as usize * committed(&spec)) as u64;
        rustix::fs::ftruncate(&memfd, size).unwrap();
        Self::over(spec, memfd)
    }

    /// The same world in another process.
    pub(crate) fn over(spec: Spec, memfd: OwnedFd) -> Arc<Self> {
        let flat = map(&memfd, spec.ranks as usize, committed(&spec));
        let devices = (0..spec.ranks).map(|rank| RankDevice::new(&spec, flat, rank)).collect();
        Arc::new(Self { spec, memfd: File::from(memfd), flat, devices })
    }

    pub(crate) fn memfd(&self) -> OwnedFd {
        self.memfd.try_clone().unwrap().into()
    }

    pub(crate) fn watch(&self, rank: u32) -> &Arc<Watch> {
        &self.devices[rank as usize].watch
    }

    pub(crate) fn peer(&self, lsa_rank: u32) -> Peer {
        Peer::new(Rank::new(self.spec.first + lsa_rank), ProcessId::new(0), "testhost", 1_000 + lsa_rank)
    }

    /// The surroundings of a kernel of this LSA rank. They keep the world alive.
    pub(crate) fn env(self: &Arc<Self>, lsa_rank: u32) -> KernelEnv {
        let world = Arc::clone(self);
        self.env_with(lsa_rank, self.dev_comm(lsa_rank), move || drop(world))
    }

    /// The same with a hook, for those who keep the world alive themselves.
    pub(crate) fn env_with(
        &self,
        lsa_rank: u32,
        dev_comm: DevComm,
        hook: impl FnOnce() + Send + Sync + 'static,
    ) -> KernelEnv {
        let watch = Arc::clone(self.watch(lsa_rank));
        let team = (0..self.spec.ranks).map(|rank| self.peer(rank)).collect();
        // SAFETY: tables and structs are whole, unchanging and of this world, whose memory is mapped until it is
        // dropped and touched through `Shared` or the memfd only.
        let env = unsafe { KernelEnv::new(dev_comm, watch, "test", self.peer(lsa_rank), team) };
        env.on_end(hook)
    }

    pub(crate) fn dev_comm(&self, lsa_rank: u32) -> DevComm {
        let device = &self.devices[lsa_rank as usize];
        DevComm {
            rank: self.spec.first + lsa_rank,
            n_ranks: self.spec.first + self.spec.ranks + 1,
            lsa_rank,
            lsa_size: self.spec.ranks,
            window_table: device.chunks.first().map_or(0, address_of),
            resource: window(&self.spec, self.flat, lsa_rank, 0),
            resource_bytes: RESOURCE_BYTES as u64,
            lsa_barrier: LsaBarrierHandle { buffer: 0, n_barriers: self.spec.barriers },
            ll_a2a: LlA2aHandle { buffer: LL_BUFFER, n_slots: self.spec.ll_a2a.1 },
            ll_a2a_blocks: self.spec.ll_a2a.0,
            ..DevComm::default()
        }
    }

    /// The device address of the rank's i-th window.
    pub(crate) fn window(&self, rank: u32, i: usize) -> u64 {
        address_of(&self.devices[rank as usize].structs[i])
    }

    /// Runs a kernel of one block on every rank, gives the results by rank.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        kernel: impl Fn(&Kernel<'_>) -> Result<T> + Clone + Send + Sync + 'static,
    ) -> Vec<Result<T>> {
        let handles: Vec<_> =
            (0..self.spec.ranks).map(|rank| launch(self.env(rank), 1, kernel.clone())).collect();
        handles.into_iter().map(|handle| handle.join().map(|mut blocks| blocks.remove(0))).collect()
    }

    /// Reads a rank's own memory through the memfd, at an offset after the resource buffer.
    pub(crate) fn peek(&self, rank: u32, offset: usize, to: &mut [u8]) {
        let at = rank as usize * committed(&self.spec) + RESOURCE_BYTES + offset;
        self.memfd.read_exact_at(to, at as u64).unwrap();
    }

    pub(crate) fn poke(&self, rank: u32, offset: usize, from: &[u8]) {
        let at = rank as usize * committed(&self.spec) + RESOURCE_BYTES + offset;
        self.memfd.write_all_at(from, at as u64).unwrap();
    }

    /// Reads a word of a rank's resource buffer.
    pub(crate) fn resource_word(&self, rank: u32, word: usize) -> u32 {
        let mut bytes = [0; 4];
        let at = rank as usize * committed(&self.spec) + 4 * word;
        self.memfd.read_exact_at(&mut bytes, at as u64).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// Sets a word of a rank's resource buffer.
    pub(crate) fn set_resource_word(&self, rank: u32, word: usize, value: u32) {
        let at = rank as usize * committed(&self.spec) + 4 * word;
        self.memfd.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    /// Sets every word of a rank's barriers: all epochs and all inboxes.
    pub(crate) fn set_epochs(&self, rank: u32, epoch: u32) {
        let n = usize::try_from(self.spec.barriers).unwrap();
        for word in 0..3 * n + n * self.spec.ranks as usize {
            let at = rank as usize * committed(&self.spec) + 4 * word;
            self.memfd.write_all_at(&epoch.to_ne_bytes(), at as u64).unwrap();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let size = self.spec.ranks as usize * STRIDE;
        // SAFETY: our own reservation; kernels that use it hold the world.
        let _: io::Result<()> =
            unsafe { munmap(ptr::with_exposed_provenance_mut(self.flat), size) }.map_err(Into::into);
    }
}

impl RankDevice {
    fn new(spec: &Spec, flat: usize, rank: u32) -> Self {
        let watch = if spec.sliced { Watch::sliced(spec.deadline) } else { Watch::new(spec.deadline) };
        let structs: Vec<_> =
            spec.windows.iter().map(|(at, _)| window(spec, flat, rank, RESOURCE_BYTES + at)).collect();
        let entries: Vec<_> =
            spec.windows.iter().zip(&structs).map(|(place, s)| entry(rank, place, s)).collect();
        let mut chunks: Vec<_> = entries
            .chunks(TABLE_ENTRIES)
            .map(|some| {
                let mut chunk = WindowTable::default();
                chunk.entries[..some.len()].copy_from_slice(some);
                chunk
            })
            .collect();
        let nexts: Vec<_> = chunks.iter().skip(1).map(address_of).collect();
        for (chunk, next) in chunks.iter_mut().zip(nexts) {
            chunk.next = next;
        }
        Self { watch, structs, chunks }
    }
}

fn entry(rank: u32, (at, size): &(usize, usize), window: &Window) -> WindowTableEntry {
    WindowTableEntry { base: user_base(rank) + *at as u64, size: *size as u64, window: address_of(window) }
}

/// Where a rank's owner would know its memory: nowhere near the flat range, and never touched.
pub(crate) fn user_base(rank: u32) -> u64 {
    0x10_0000_0000 * u64::from(rank + 1)
}

fn window(spec: &Spec, flat: usize, rank: u32, offset: usize) -> Window {
    Window {
        lsa_flat_base: (flat + offset) as u64,
        lsa_rank: rank.cast_signed(),
        world_rank: (spec.first + rank).cast_signed(),
        stride_4g: u32::try_from(STRIDE >> 32).unwrap(),
        ..Window::default()
    }
}

fn committed(spec: &Spec) -> usize {
    (RESOURCE_BYTES + spec.bytes).next_multiple_of(4_096)
}

fn address_of<T>(value: &T) -> u64 {
    ptr::from_ref(value).expose_provenance() as u64
}

fn map(memfd: &OwnedFd, ranks: usize, bytes: usize) -> usize {
    let anywhere = ptr::null_mut();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing.
    let flat = unsafe { mmap_anonymous(anywhere, ranks * STRIDE, ProtFlags::empty(), flags) }.unwrap();
    let flat = flat.expose_provenance();
    for rank in 0..ranks {
        let at = ptr::with_exposed_provenance_mut(flat + rank * STRIDE);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside our own reservation, where nothing is used yet.
        unsafe { mmap(at, bytes, prot, flags, memfd, (rank * bytes) as u64) }.unwrap();
    }
    flat
}
