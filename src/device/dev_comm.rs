//! The device communicator, free of any version, and one function for each layout that kernels were compiled
//! for. The newest comes first; older layouts join it as functions of their own.

use crate::device::abi::{
    DevComm248, KERNEL_MAGIC, KERNEL_VERSION, KernelComm, LlA2aHandle, LsaBarrierHandle, MAGIC,
    MultimemHandle, ResourceWindow, Window,
};

/// What a device communicator says, whatever layout its kernels expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "who makes one must say everything; `..default()` says nothing")]
pub struct DevComm {
    /// This rank in the world.
    pub rank: u32,
    /// The size of the world.
    pub n_ranks: u32,
    /// This rank in its LSA team, whose ranks are consecutive in the world.
    pub lsa_rank: u32,
    /// The size of the LSA team.
    pub lsa_size: u32,
    /// The device address of this rank's window table (its first chunk), 0 where there is none.
    pub window_table: u64,
    /// The device address of the window of the resource buffers, 0 where there is none.
    pub resource_window: u64,
    /// The bytes of that window.
    pub resource: Window,
    /// The size of each rank's resource buffer in bytes, 0 where there is none.
    pub resource_bytes: u64,
    /// The multicast object of the LSA team.
    pub lsa_multimem: MultimemHandle,
    /// The LSA barriers.
    pub lsa_barrier: LsaBarrierHandle,
    /// The buffers of the LL all-to-all.
    pub ll_a2a: LlA2aHandle,
    /// How many blocks they are for, 0 where there are none.
    pub ll_a2a_blocks: u32,
    /// The device address of the [lookup tree's head](crate::device::abi::LookupHead), 0 where there is none.
    pub lookup: u64,
    /// The device address of a word that is not 0 once the communicator has failed, 0 where there is none.
    pub abort_flag: u64,
    /// How long a wait in a kernel may take in nanoseconds, 0 if it may for ever.
    pub timeout_ns: u64,
}

impl DevComm {
    /// The layout of symwin's own header, `include/symwin.cuh`.
    #[must_use]
    pub fn to_kernel(&self) -> KernelComm {
        KernelComm {
            magic: KERNEL_MAGIC,
            version: KERNEL_VERSION,
            rank: self.rank.cast_signed(),
            n_ranks: self.n_ranks.cast_signed(),
            lsa_rank: self.lsa_rank.cast_signed(),
            lsa_size: self.lsa_size.cast_signed(),
            window_table: self.window_table,
            lookup: self.lookup,
            resource_window: self.resource_window,
            resource: ResourceWindow::from(&self.resource),
            resource_bytes: self.resource_bytes,
            lsa_multimem: self.lsa_multimem,
            lsa_barrier: self.lsa_barrier,
            ll_a2a: self.ll_a2a,
            ll_a2a_blocks: self.ll_a2a_blocks,
            reserved_0: 0,
            abort_flag: self.abort_flag,
            timeout_ns: self.timeout_ns,
            reserved_1: 0,
        }
    }

    /// The layout of the headers 2.31 and 2.32, marked with the version (as `NCCL_VERSION_CODE` counts) of the
    /// headers that the caller was compiled with.
    #[must_use]
    pub fn to_248(&self, version: u32) -> DevComm248 {
        DevComm248 {
            magic: MAGIC,
            version,
            rank: self.rank.cast_signed(),
            n_ranks: self.n_ranks.cast_signed(),
            n_ranks_reciprocal: reciprocal(self.n_ranks),
            lsa_rank: self.lsa_rank.cast_signed(),
            lsa_size: self.lsa_size.cast_signed(),
            lsa_size_reciprocal: reciprocal(self.lsa_size),
            window_table: self.window_table,
            resource_window: self.resource_window,
            resource: ResourceWindow::from(&self.resource),
            lsa_multimem: self.lsa_multimem,
            lsa_barrier: self.lsa_barrier,
            abort_flag: self.abort_flag,
            ..DevComm248::default()
        }
    }
}

/// The 32-bit fixed-point reciprocal by which kernels divide by a number of ranks: `floor((2^32 - 1) / n)`,
/// plus 1 where `n` is a power of two. Of 1 it is 2^32, which kernels read as 0; of 0 it is 0.
#[must_use]
pub fn reciprocal(n: u32) -> u32 {
    u32::MAX.checked_div(n).map_or(0, |floor| floor.wrapping_add(u32::from(n.is_power_of_two())))
}
