//! The structs that kernels read, with NCCL's own layouts, so that kernels written for its device headers run
//! on symwin's windows as they are.
//!
//! Layouts are fixed by compile-time checks at the end of the file. Addresses are `u64`, so that a struct is
//! plain bytes that can be copied to a device. A boolean is a `u8`, 0 or 1. What symwin does not fill (network
//! contexts, logical endpoints) is zero, which kernels read as "there is none".
#![allow(clippy::exhaustive_structs, reason = "a layout is all of its fields")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of one chunk of the window table.
pub const TABLE_ENTRIES: usize = 32;

/// Resource handles count in units of this many bytes.
pub const RESOURCE_UNIT_BYTES: u64 = 128;

/// What a versioned struct begins with.
pub const MAGIC: u32 = 0xcafe_beef;

/// A window as kernels read it: a superset that serves kernels compiled against any NCCL from 2.28 on. It
/// must not change while a kernel runs (kernels read it through non-coherent loads).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Window {
    /// The host's own object; kernels pass it through.
    pub host: u64,
    /// Where LSA rank 0's byte 0 of the window is mapped.
    pub lsa_flat_base: u64,
    /// The rank in its LSA team for which this struct was made.
    pub lsa_rank: i32,
    /// The same rank in the world.
    pub world_rank: i32,
    /// The distance between the ranks' copies, in units of 4 GiB.
    pub stride_4g: u32,
    /// The window's offset in any multicast object of its communicator, in units of 4 KiB.
    pub mc_offset_4k: u32,
    /// The window's offset in the network's registration, in units of 4 KiB.
    pub net_offset_4k: u32,
    /// The flags it was registered with.
    pub flags: u32,
    /// The window at each network backend.
    pub net_windows: [u64; 4],
    /// The table of the segments' network windows.
    pub net_segments: u64,
    /// How many physical segments it spans.
    pub segments: i32,
    /// The rank in the flat team of logical endpoints.
    pub endpoint_rank: i32,
    /// The first logical endpoint of the unicast team.
    pub endpoint_base: u32,
    /// Padding.
    pub reserved: u32,
}

impl Window {
    /// The struct of a window that lies `offset` bytes into every rank's stride, LSA rank 0's part at `first`.
    #[must_use]
    pub fn new(first: u64, lsa_rank: u32, world_rank: u32, stride: u64, offset: u64, flags: u32) -> Self {
        Self {
            lsa_flat_base: first,
            lsa_rank: lsa_rank.cast_signed(),
            world_rank: world_rank.cast_signed(),
            stride_4g: u32::try_from(stride >> 32).unwrap_or(u32::MAX),
            mc_offset_4k: u32::try_from(offset >> 12).unwrap_or(u32::MAX),
            flags,
            segments: 1,
            ..Self::default()
        }
    }

    /// What is left in the place of a window that was closed: it leads nowhere, and a kernel that still uses it is
    /// seen to.
    #[must_use]
    pub fn poisoned() -> Self {
        Self { lsa_rank: -1, world_rank: -1, ..Self::default() }
    }
}

/// The window of the resource buffers, packed into the device communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ResourceWindow {
    /// As in [`Window`].
    pub lsa_flat_base: u64,
    /// As in [`Window`].
    pub stride_4g: u32,
    /// As in [`Window`].
    pub mc_offset_4k: u32,
}

impl From<&Window> for ResourceWindow {
    fn from(window: &Window) -> Self {
        Self {
            lsa_flat_base: window.lsa_flat_base,
            stride_4g: window.stride_4g,
            mc_offset_4k: window.mc_offset_4k,
        }
    }
}

/// A team of ranks: `ranks` of them, `stride` apart in the world, of which this rank is number `rank`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct TeamStruct {
    /// How many ranks.
    pub n_ranks: i32,
    /// This rank's index.
    pub rank: i32,
    /// The distance of neighbours in the world.
    pub stride: i32,
}

/// Where a multicast object is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct MultimemHandle {
    /// Its first address, 0 where there is none.
    pub base: u64,
}

/// The LSA barriers of a device communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LsaBarrierHandle {
    /// The resource buffer that holds their words, in units of [`RESOURCE_UNIT_BYTES`].
    pub buffer: u32,
    /// How many barriers.
    pub n_barriers: i32,
}

/// The buffers of a low-latency all-to-all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LlA2aHandle {
    /// The resource buffer, in units of [`RESOURCE_UNIT_BYTES`].
    pub buffer: u32,
    /// Slots of 8 bytes of payload.
    pub n_slots: u32,
}

/// The handle of a network or logical-endpoint barrier. symwin makes none: zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct OtherBarrierHandle {
    /// Its two words.
    pub words: [u32; 2],
}

/// One window of the window table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct WindowTableEntry {
    /// The window's first address, as its owner knows it.
    pub base: u64,
    /// Its size in bytes (a length, not an end).
    pub size: u64,
    /// Its [`Window`], 0 in a free entry. Written last and cleared first.
    pub window: u64,
}

/// A chunk of the window table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct WindowTable {
    /// Its entries, used and free ones.
    pub entries: [WindowTableEntry; TABLE_ENTRIES],
    /// The next chunk, 0 in the last.
    pub next: u64,
}

/// The device communicator of 248 bytes, that of the headers 2.31 and 2.32, passed to kernels by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
#[allow(
    missing_docs,
    reason = "fields of parts that symwin does not fill are zero and say it in their names"
)]
pub struct DevComm248 {
    /// [`MAGIC`].
    pub magic: u32,
    /// The version of the headers that it is made for.
    pub version: u32,
    /// This rank in the world.
    pub rank: i32,
    /// The size of the world.
    pub n_ranks: i32,
    /// See [`reciprocal`](super::dev_comm::reciprocal).
    pub n_ranks_reciprocal: u32,
    /// This rank in its LSA team.
    pub lsa_rank: i32,
    /// The size of the LSA team.
    pub lsa_size: i32,
    /// See [`reciprocal`](super::dev_comm::reciprocal).
    pub lsa_size_reciprocal: u32,
    /// The first chunk of the window table.
    pub window_table: u64,
    /// The [`Window`] of the resource buffers.
    pub resource_window: u64,
    /// The part of it that pointers need.
    pub resource: ResourceWindow,
    pub net_hybrid_barrier: OtherBarrierHandle,
    /// The multicast object of the LSA team.
    pub lsa_multimem: MultimemHandle,
    /// The LSA barriers.
    pub lsa_barrier: LsaBarrierHandle,
    pub net_rail_barrier: OtherBarrierHandle,
    pub net_connections: u8,
    pub net_backend: u8,
    pub net_device_types: [u8; 4],
    pub reserved_0: [u8; 2],
    pub net_handles: [u64; 4],
    pub net_signals: i32,
    pub net_counters: i32,
    pub net_signal_shadows: u64,
    pub net_contexts: u32,
    pub net_connection_stride: i32,
    pub net_context_stride: i32,
    pub net_strong_signals: u8,
    pub reserved_1: [u8; 3],
    /// A word that is not 0 once the communicator has been aborted; 0 where there is none.
    pub abort_flag: u64,
    /// The LSA part of a barrier over the world.
    pub hybrid_lsa_barrier: LsaBarrierHandle,
    pub net_hybrid_rail_barrier: OtherBarrierHandle,
    pub net_world_barrier: OtherBarrierHandle,
    pub net_connection_stride_reciprocal: u32,
    pub endpoint_rank: i32,
    pub endpoint_size: i32,
    pub endpoint_multimem_rank: i32,
    pub endpoint_multimem_size: i32,
    pub endpoint_multimem_size_reciprocal: u32,
    pub endpoint_unicast: u32,
    pub endpoint_multicast: u32,
    pub endpoint_barrier: OtherBarrierHandle,
    pub endpoint_multimem_barrier: OtherBarrierHandle,
}

/// The device communicator of symwin's own header, `include/symwin.cuh`, where it is `symwin::DevComm`. Passed to
/// kernels by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct KernelComm {
    /// [`KERNEL_MAGIC`].
    pub magic: u32,
    /// [`KERNEL_VERSION`].
    pub version: u32,
    /// This rank in the world.
    pub rank: i32,
    /// The size of the world.
    pub n_ranks: i32,
    /// This rank in its LSA team.
    pub lsa_rank: i32,
    /// The size of the LSA team.
    pub lsa_size: i32,
    /// The first chunk of the window table.
    pub window_table: u64,
    /// The [`LookupHead`], 0 where there is none.
    pub lookup: u64,
    /// The [`Window`] of the resource buffers.
    pub resource_window: u64,
    /// The part of it that pointers need.
    pub resource: ResourceWindow,
    /// The size of each rank's resource buffers in bytes.
    pub resource_bytes: u64,
    /// The multicast object of the LSA team.
    pub lsa_multimem: MultimemHandle,
    /// The LSA barriers.
    pub lsa_barrier: LsaBarrierHandle,
    /// The buffers of the LL all-to-all.
    pub ll_a2a: LlA2aHandle,
    /// How many blocks they are for.
    pub ll_a2a_blocks: u32,
    /// Padding.
    pub reserved_0: u32,
    /// A 32-bit word that is not 0 once the communicator has failed; 0 where there is none.
    pub abort_flag: u64,
    /// How long a wait may take in nanoseconds, 0 if it may for ever.
    pub timeout_ns: u64,
    /// Padding.
    pub reserved_1: u64,
}

/// What a [`KernelComm`] begins with: `symw` in memory.
pub const KERNEL_MAGIC: u32 = u32::from_le_bytes(*b"symw");

/// The version of [`KernelComm`]'s layout.
pub const KERNEL_VERSION: u32 = 1;

/// Where the lookup of a window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LookupHead {
    /// Counts publications; written before one begins.
    pub sequence: u64,
    /// The [`LookupTree`] to search, 0 before the first one; written when that is whole.
    pub tree: u64,
}

/// What a lookup tree begins with. Its nodes follow, level by level from the root down, then its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LookupTree {
    /// How many leaves.
    pub n_leaves: u32,
    /// How many levels of nodes.
    pub levels: u32,
    /// Padding, so that nodes are cache lines.
    pub reserved: [u32; 30],
}

/// Children of a node of a lookup tree.
pub const LOOKUP_KEYS: usize = 16;

/// A node of a lookup tree: one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LookupNode {
    /// The first address of each child in order; all ones where there is no child.
    pub keys: [u64; LOOKUP_KEYS],
}

/// A leaf of a lookup tree: what is found in one piece of the addresses. Its key is where the piece begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LookupLeaf {
    /// The address behind the piece, 0 where no window is left there.
    pub end: u64,
    /// The device address of the window's [`Window`], 0 where no window is left.
    pub window: u64,
}

/// Checks a struct's size and the offsets of its fields at compile time.
macro_rules! layout {
    ($type:ty, $size:literal, { $($field:ident @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}

layout!(Window, 96, {
    host @ 0, lsa_flat_base @ 8, lsa_rank @ 16, world_rank @ 20, stride_4g @ 24, mc_offset_4k @ 28,
    net_offset_4k @ 32, flags @ 36, net_windows @ 40, net_segments @ 72, segments @ 80, endpoint_rank @ 84,
    endpoint_base @ 88,
});
layout!(ResourceWindow, 16, { lsa_flat_base @ 0, stride_4g @ 8, mc_offset_4k @ 12 });
layout!(TeamStruct, 12, { n_ranks @ 0, rank @ 4, stride @ 8 });
layout!(MultimemHandle, 8, { base @ 0 });
layout!(LsaBarrierHandle, 8, { buffer @ 0, n_barriers @ 4 });
layout!(LlA2aHandle, 8, { buffer @ 0, n_slots @ 4 });
layout!(OtherBarrierHandle, 8, { words @ 0 });
layout!(WindowTableEntry, 24, { base @ 0, size @ 8, window @ 16 });
layout!(WindowTable, 776, { entries @ 0, next @ 768 });
layout!(DevComm248, 248, {
    magic @ 0, version @ 4, rank @ 8, n_ranks @ 12, n_ranks_reciprocal @ 16, lsa_rank @ 20, lsa_size @ 24,
    lsa_size_reciprocal @ 28, window_table @ 32, resource_window @ 40, resource @ 48, net_hybrid_barrier @ 64,
    lsa_multimem @ 72, lsa_barrier @ 80, net_rail_barrier @ 88, net_connections @ 96, net_backend @ 97,
    net_device_types @ 98, net_handles @ 104, net_signals @ 136, net_counters @ 140,
    net_signal_shadows @ 144, net_contexts @ 152, net_connection_stride @ 156, net_context_stride @ 160,
    net_strong_signals @ 164, abort_flag @ 168, hybrid_lsa_barrier @ 176, net_hybrid_rail_barrier @ 184,
    net_world_barrier @ 192, net_connection_stride_reciprocal @ 200, endpoint_rank @ 204,
    endpoint_size @ 208, endpoint_multimem_rank @ 212, endpoint_multimem_size @ 216,
    endpoint_multimem_size_reciprocal @ 220, endpoint_unicast @ 224, endpoint_multicast @ 228,
    endpoint_barrier @ 232, endpoint_multimem_barrier @ 240,
});
layout!(KernelComm, 128, {
    magic @ 0, version @ 4, rank @ 8, n_ranks @ 12, lsa_rank @ 16, lsa_size @ 20, window_table @ 24, lookup @ 32,
    resource_window @ 40, resource @ 48, resource_bytes @ 64, lsa_multimem @ 72, lsa_barrier @ 80, ll_a2a @ 88,
    ll_a2a_blocks @ 96, reserved_0 @ 100, abort_flag @ 104, timeout_ns @ 112, reserved_1 @ 120,
});
layout!(LookupHead, 16, { sequence @ 0, tree @ 8 });
layout!(LookupTree, 128, { n_leaves @ 0, levels @ 4 });
layout!(LookupNode, 128, { keys @ 0 });
layout!(LookupLeaf, 16, { end @ 0, window @ 8 });
