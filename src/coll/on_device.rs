//! All-reduce on devices whose kernels are not host code: which kernel, how many blocks, on which stream.
//!
//! | way | when |
//! | --- | --- |
//! | one shot | every rank reads all inputs: few bytes, where a second exchange would cost more |
//! | two shots | every rank reduces its share and writes it to everyone: all others |
//! | multimem | the switch reduces and replicates: where the LSA team has a multicast object, for sums of floats |
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
use crate::driver::Stream;
use crate::error::{Error, Failure, FailureCause, Misuse, Phase, Result};

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
    pub(super) fn start(&self, stream: Stream) -> Result<()> {
        let Self { core, dev_comm, send, recv, dtype, op } = self;
        check_overlap(send, recv)?;
        let bytes = send.range.len();
        if bytes == 0 {
            return Ok(());
        }
        let (input, output) = (send.window.device_address(), recv.window.device_address());
        let (input_offset, output_offset) = (send.range.start as u64, recv.range.start as u64);
        let alike = (input_offset ^ output_offset).is_multiple_of(VECTOR_BYTES as u64);
        let ranks = core.agreed.lsa_size;
        let shape = Shape::new(bytes, dtype.size_bytes(), alike, ranks);
        let has_multimem = dev_comm.device().lsa_multimem.base != 0;
        let way = if has_multimem && alike && bytes >= MULTIMEM_BYTES_MIN && reduces_in_switch(*dtype, *op) {
            "multimem"
        } else if shape.one_shot {
            "one_shot"
        } else {
            "two_shot"
        };
        let parameter = AllReduce {
            comm: dev_comm.device().to_kernel(),
            input,
            output,
            input_offset,
            output_offset,
            count: (bytes / dtype.size_bytes()) as u64,
            op: *op as u32,
            barrier: 0,
        };
        let kernel = format!("symwin_all_reduce_{way}_{dtype}");
        let size = (shape.blocks, THREADS);
        Ok(builtin::all_reduce(&core.launches, &core.driver, stream, &kernel, size, &parameter)?)
    }

    /// Queues it on the communicator's own stream and waits until this rank's result is there.
    pub(super) fn run(&self) -> Result<()> {
        let Self { core, .. } = self;
        let stream = core.state().objects.as_ref().map(|objects| objects.stream());
        self.start(stream.ok_or_else(|| core.closed())?)?;
        wait(core)
    }
}

/// How the work is divided.
struct Shape {
    one_shot: bool,
    blocks: u32,
}

impl Shape {
    fn new(bytes: usize, element: usize, alike: bool, ranks: u32) -> Self {
        // What a thread moves at a time: a vector, or one element where vectors of input and output cannot be aligned.
        let pieces = if alike { bytes.div_ceil(VECTOR_BYTES) } else { bytes / element };
        let one_shot = bytes <= ONE_SHOT_BYTES && pieces <= (BLOCKS_MAX * THREADS) as usize * HELD;
        let share = if one_shot { pieces } else { pieces.div_ceil(ranks as usize) };
        let blocks = u32::try_from(share.div_ceil(THREADS as usize)).unwrap_or(u32::MAX);
        Self { one_shot, blocks: blocks.clamp(1, BLOCKS_MAX) }
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

/// Input and output are the same or apart.
fn check_overlap(send: &WindowSlice, recv: &WindowSlice) -> Result<()> {
    let address = |slice: &WindowSlice| slice.window.address() + slice.range.start;
    let (from, to, len) = (address(send), address(recv), send.range.len());
    if from == to || from.abs_diff(to) >= len {
        return Ok(());
    }
    let what = format!(
        "an all-reduce of {len} bytes from {from:#x} to {to:#x}: on this device the output is the input or does not \
         overlap it"
    );
    Err(Misuse::Other { what }.into())
}

fn reduces_in_switch(dtype: DType, op: ReduceOp) -> bool {
    op == ReduceOp::Sum && matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// Threads of a block.
const THREADS: u32 = 512;
/// A barrier each: see `DevCommRequirements::of_collectives`.
const BLOCKS_MAX: u32 = 16;
/// What a thread moves at a time.
const VECTOR_BYTES: usize = 16;
/// Results that a thread of the one-shot kernel keeps: `HELD` in `kernels/all_reduce.cu`.
const HELD: usize = 4;
/// The longest message that goes by one shot.
const ONE_SHOT_BYTES: usize = 256 << 10;
/// The shortest one that goes through the switch: below it the barriers are most of it.
const MULTIMEM_BYTES_MIN: usize = 64 << 10;
