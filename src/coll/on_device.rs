//! All-reduce on devices whose kernels are not host code: which kernel, how many blocks, on which stream.
//!
//! | way | when |
//! | --- | --- |
//! | one shot | every rank reads all inputs: few bytes, where a second exchange would cost more |
//! | two shots | every rank reduces its share and writes it to everyone: all others |
//! | multimem | the switch adds and replicates: where the LSA team has a multicast object, for sums from 64 KiB on |
//!
//! The switch adds in any order, so that sums of floats may differ from those of the other ways in their last bits.
//! All ranks still get the same, as each element is added once.
//!
//! Every rank takes the same way, as all that decides is equal on all ranks.

use std::sync::Arc;
use std::time::Instant;

use crate::coll::dtype::DType;
use crate::coll::reduce::ReduceOp;
use crate::device::builtin::{self, AllReduce};
use crate::devr::core::Core;
use crate::devr::dev_comm_handle::DevComm;
use crate::devr::window::WindowSlice;
use crate::driver::StreamRef;
use crate::error::{Error, Failure, FailureCause, Misuse, Phase, Result};
use crate::ids::LsaRank;

/// What is reduced.
pub(super) struct Call<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) dev_comm: &'a DevComm,
    pub(super) send: &'a WindowSlice,
    pub(super) recv: &'a WindowSlice,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

impl Call<'_> {
    /// Queues the kernel on a stream.
    pub(super) fn start(&self, stream: StreamRef) -> Result<()> {
        let Self { core, dev_comm, send, recv, dtype, op } = self;
        let is_in_place = is_in_place(send, recv)?;
        let bytes = send.range.len();
        if bytes == 0 {
            return Ok(());
        }
        let of_all =
            |slice: &WindowSlice, object| slice.window.multimem_address(object, slice.range.start as u64);
        let (input, output) = (first(send), first(recv));
        // As the kernels see it.
        let alike = (input ^ output).is_multiple_of(VECTOR_BYTES);
        let multimem = dev_comm.device().lsa_multimem;
        let Shape { way, blocks, threads } = Shape::new(
            bytes,
            (*dtype, *op),
            alike,
            (core.agreed.lsa_size, core.agreed.blocks),
            multimem.base != 0,
        );
        let parameter = AllReduce {
            comm: dev_comm.device().to_kernel(),
            input: input as u64,
            output: output as u64,
            input_multimem: of_all(send, multimem),
            output_multimem: of_all(recv, multimem),
            count: (bytes / dtype.size_bytes()) as u64,
            op: *op as u32,
            barrier: 0,
            is_in_place: is_in_place.into(),
            reserved: 0,
        };
        let kernel = way.kernel(*dtype);
        let size = (blocks, threads);
        Ok(builtin::all_reduce(&core.launches, &core.driver, stream, kernel, size, &parameter)?)
    }

    /// Queues it on the communicator's own stream and waits until this rank's result is there.
    pub(super) fn run(&self) -> Result<()> {
        let Self { core, .. } = self;
        let stream = core.state().objects.as_ref().map(|objects| objects.stream());
        self.start(stream.ok_or_else(|| core.closed())?.into())?;
        wait(core)
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OneShot,
    TwoShot,
    Multimem,
}

macro_rules! kernel_of {
    ($way:literal, $dtype:expr) => {
        match $dtype {
            DType::F32 => concat!("symwin_all_reduce_", $way, "_f32"),
            DType::F64 => concat!("symwin_all_reduce_", $way, "_f64"),
            DType::I32 => concat!("symwin_all_reduce_", $way, "_i32"),
            DType::I64 => concat!("symwin_all_reduce_", $way, "_i64"),
            DType::U8 => concat!("symwin_all_reduce_", $way, "_u8"),
            DType::F16 => concat!("symwin_all_reduce_", $way, "_f16"),
            DType::Bf16 => concat!("symwin_all_reduce_", $way, "_bf16"),
        }
    };
}

impl Way {
    /// Put together when this is compiled: to do so for each call would take as long as all else of it.
    fn kernel(self, dtype: DType) -> &'static str {
        match self {
            Self::OneShot => kernel_of!("one_shot", dtype),
            Self::TwoShot => kernel_of!("two_shot", dtype),
            Self::Multimem => kernel_of!("multimem", dtype),
        }
    }
}

/// How the work is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    way: Way,
    blocks: u32,
    /// Of each block.
    threads: u32,
}

impl Shape {
    /// `alike`: vectors of input and output can both be aligned. `blocks_max`: so many of each rank run at once.
    /// `has_multimem`: the LSA team has a multicast object, which it has only on devices with multicast instructions.
    fn new(
        bytes: usize,
        (dtype, op): (DType, ReduceOp),
        alike: bool,
        (ranks, blocks_max): (u32, u32),
        has_multimem: bool,
    ) -> Self {
        let blocks_max = blocks_max.clamp(1, BLOCKS_MAX);
        // What a thread moves at a time: a vector, or one element where vectors cannot be aligned.
        let pieces = bytes.div_ceil(if alike { VECTOR_BYTES } else { dtype.size_bytes() });
        let way = if has_multimem && alike && bytes >= MULTIMEM_BYTES_MIN && reduces_in_switch(dtype, op) {
            Way::Multimem
        } else if bytes <= ONE_SHOT_BYTES && pieces <= (blocks_max * THREADS) as usize * HELD {
            Way::OneShot
        } else {
            Way::TwoShot
        };
        let share = if way == Way::OneShot { pieces } else { pieces.div_ceil(ranks as usize) };
        let blocks = u32::try_from(share.div_ceil(THREADS as usize)).unwrap_or(u32::MAX);
        // Warps without work would only make a small call's barriers slower.
        let threads = u32::try_from(share).unwrap_or(u32::MAX).clamp(1, THREADS).next_multiple_of(WARP);
        Self { way, blocks: blocks.clamp(1, blocks_max), threads }
    }
}

/// Waits for the last kernel of this rank, and looks whether its waits have ended well.
fn wait(core: &Arc<Core>) -> Result<()> {
    let Some(passing) = core.launches.last() else { return Ok(()) };
    // Kernels end their waits by themselves; this is for a stream that is stuck behind something else.
    let until = Instant::now().checked_add(core.deadline.saturating_mul(2));
    while !passing.has_passed()? {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(fail(core));
        }
        // The device tells nobody when it is done: asking costs a microsecond, and others run meanwhile.
        std::thread::yield_now();
    }
    check(core)
}

/// What kernels have left in the communicator's flag.
pub(super) fn check(core: &Arc<Core>) -> Result<()> {
    if let Some(error) = core.watch.error() {
        return Err(error);
    }
    let timed_out = core.flag.get().is_some_and(|flag| flag.value() != 0);
    if timed_out { Err(fail(core)) } else { Ok(()) }
}

/// A collective that is not completed on one rank would pair the next one with another of its peers': the communicator
/// ends here, on all ranks.
fn fail(core: &Arc<Core>) -> Error {
    let cause = FailureCause::Deadline { after: core.deadline, missing: Vec::new(), blocked: Vec::new() };
    let failure: Arc<Failure> = core.failure("an all-reduce on the device", Phase::Barrier, cause);
    core.watch.fail(Error::Failed(failure));
    core.watch.error().unwrap_or_else(|| core.closed())
}

/// The address of LSA rank 0's part in the flat range.
fn first(slice: &WindowSlice) -> usize {
    slice.window.lsa_address(LsaRank::new(0), slice.range.start)
}

/// Input and output are the same or apart: which of them. Asked of the addresses of the buffers and of those in the flat
/// range, as one memory may have several of either.
fn is_in_place(send: &WindowSlice, recv: &WindowSlice) -> Result<bool> {
    let owned = |slice: &WindowSlice| slice.window.address() + slice.range.start;
    let len = send.range.len();
    let mut is_in_place = false;
    for (from, to) in [(owned(send), owned(recv)), (first(send), first(recv))] {
        is_in_place |= from == to;
        if from != to && from.abs_diff(to) < len {
            let what = format!(
                "an all-reduce of {len} bytes from {from:#x} to {to:#x}: on this device the output is the input or \
                 does not overlap it"
            );
            return Err(Misuse::Other { what }.into());
        }
    }
    Ok(is_in_place)
}

/// Whether there is a kernel for it, with the result that the other ways have but for the order of additions.
///
/// The instruction adds all types but bytes. Its sums are of the elements' type, so means are made of them only where
/// that is what means are made of: a sum of halves is rounded, or too large for them, and one of integers wraps. It has
/// no minimum and maximum of f32 and f64, and those of halves do not say what becomes of a NaN.
fn reduces_in_switch(dtype: DType, op: ReduceOp) -> bool {
    match op {
        ReduceOp::Sum => dtype != DType::U8,
        ReduceOp::Mean => matches!(dtype, DType::F32 | DType::F64),
        ReduceOp::Min | ReduceOp::Max => false,
    }
}

/// Most threads of a block.
const THREADS: u32 = 512;
const WARP: u32 = 32;
/// A barrier each: see `DevCommRequirements::of_collectives`.
const BLOCKS_MAX: u32 = 16;
/// What a thread moves at a time.
const VECTOR_BYTES: usize = 16;
/// Results that a thread of the one-shot kernel keeps: `HELD` in `kernels/all_reduce.cu`.
const HELD: usize = 2;
/// The longest message that goes by one shot.
const ONE_SHOT_BYTES: usize = 256 << 10;
/// The shortest one that goes through the switch: below it the barriers are most of it.
const MULTIMEM_BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::images;
    use crate::group::Region;

    fn way(bytes: usize, dtype: DType, op: ReduceOp, alike: bool, has_multimem: bool) -> Way {
        Shape::new(bytes, (dtype, op), alike, (8, u32::MAX), has_multimem).way
    }

    #[test]
    fn the_switch_adds_what_it_can_where_there_is_a_multicast_object_and_enough_to_do() {
        use DType::{Bf16, F16, F32, F64, I32, I64};
        let much = 16 << 20;
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let wanted = match op {
                    ReduceOp::Sum => matches!(dtype, F32 | F64 | I32 | I64 | F16 | Bf16),
                    ReduceOp::Mean => matches!(dtype, F32 | F64),
                    ReduceOp::Min | ReduceOp::Max => false,
                };
                for bytes in [MULTIMEM_BYTES_MIN, ONE_SHOT_BYTES, much] {
                    let is = way(bytes, dtype, op, true, true) == Way::Multimem;
                    assert_eq!(is, wanted, "{dtype} {op}, {bytes} bytes");
                }
                for (bytes, alike, has_multimem) in
                    [(MULTIMEM_BYTES_MIN - 8, true, true), (much, false, true), (much, true, false)]
                {
                    let way = way(bytes, dtype, op, alike, has_multimem);
                    let wanted = if bytes < much { Way::OneShot } else { Way::TwoShot };
                    assert_eq!(way, wanted, "{dtype} {op}, {bytes} bytes, {alike}, {has_multimem}");
                }
            }
        }
    }

    #[test]
    fn every_device_has_a_kernel_for_every_choice_and_no_kernel_is_never_chosen() {
        for major in 8..=13 {
            let mut unused: Vec<&str> =
                images::for_capability((major, 0)).into_iter().flat_map(|image| image.kernels).collect();
            let kernels = unused.clone();
            unused.retain(|kernel| kernel.starts_with("symwin_all_reduce_"));
            // Only devices with the instructions have the objects: `CudaDriver`.
            for has_multimem in [false, major >= images::MULTICAST_GENERATION] {
                for (dtype, op) in DType::ALL.into_iter().flat_map(|d| ReduceOp::ALL.map(|op| (d, op))) {
                    for bytes in [8, 64 << 10, 1 << 20] {
                        let kernel = way(bytes, dtype, op, true, has_multimem).kernel(dtype);
                        assert!(kernels.contains(&kernel), "{kernel} on generation {major}");
                        unused.retain(|other| *other != kernel);
                    }
                }
            }
            assert!(unused.is_empty(), "{unused:?} on generation {major}");
        }
    }

    #[test]
    fn a_kernel_of_one_shot_holds_all_elements() {
        let source = include_str!("../../kernels/all_reduce.cu");
        assert!(source.contains(&format!("HELD = {HELD} }}")));
        assert!(source.contains(&format!("__launch_bounds__({THREADS})")));
        for (dtype, blocks_max) in DType::ALL.into_iter().flat_map(|d| [1, 7, u32::MAX].map(|max| (d, max))) {
            for alike in [false, true] {
                for bytes in (8..=1024).step_by(8).chain((4096..=ONE_SHOT_BYTES + 4096).step_by(4096)) {
                    let Shape { way, blocks, threads } =
                        Shape::new(bytes, (dtype, ReduceOp::Max), alike, (8, blocks_max), false);
                    assert!((1..=blocks_max.min(BLOCKS_MAX)).contains(&blocks), "{dtype}, {bytes} bytes");
                    let pieces = bytes.div_ceil(if alike { VECTOR_BYTES } else { dtype.size_bytes() });
                    let most = (blocks_max.min(BLOCKS_MAX) * THREADS) as usize * HELD;
                    let is_one_shot = way == Way::OneShot;
                    assert_eq!(
                        is_one_shot,
                        pieces <= most && bytes <= ONE_SHOT_BYTES,
                        "{dtype}, {bytes} bytes"
                    );
                    // Edges too: vectors have fewer than two of theirs before and behind them.
                    let held = (blocks * threads) as usize * HELD;
                    assert!(!is_one_shot || held >= pieces.max(2 * VECTOR_BYTES), "{dtype}, {bytes} bytes");
                    assert!(threads <= THREADS && threads.is_multiple_of(WARP), "{dtype}, {bytes} bytes");
                }
            }
        }
    }

    /// One memory by two addresses of its owner, at one place of the flat range.
    #[test]
    fn a_window_over_another_windows_mapping_is_in_place() {
        let config = crate::Config::new().stride(1 << 32).workers(1);
        let comm = crate::Communicator::in_process_with(1, &config).unwrap().remove(0);
        let buffer = comm.alloc_own(4096).unwrap();
        let flags = crate::WindowFlags::COLL_SYMMETRIC;
        let window = comm.register(&buffer, flags).unwrap();
        let mapped = Region { address: window.local_ptr(0).unwrap().addr(), size: 4096, keep: None };
        let other = comm.register(mapped, flags).unwrap();
        assert!(is_in_place(&window.whole(), &other.whole()).unwrap());
        let overlapping = is_in_place(&window.slice(0..2048).unwrap(), &other.slice(1024..3072).unwrap());
        assert!(matches!(overlapping, Err(Error::Misuse(Misuse::Other { .. }))), "{overlapping:?}");
        assert!(!is_in_place(&window.slice(0..2048).unwrap(), &other.slice(2048..4096).unwrap()).unwrap());
    }
}
