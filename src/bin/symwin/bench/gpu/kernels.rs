//! The kernels that benchmarks of GPUs compare, and how a sample runs one.
//!
//! A sample queues a kernel many times on a stream of its own, and lasts until the stream has passed an event behind the
//! last one, by the clock of the host. What is compared are the [`Entry`]s of [`entries`]: the library's own first, then
//! a kernel that does the same work without the library, written by hand (`kernels/bench.cu`).
#![allow(unsafe_code, reason = "kernels are started by what they are promised")]

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use symwin::coll::{DType, ReduceOp};
use symwin::device::abi::KernelComm;
use symwin::driver::{Driver, Launch, StreamRef};
use symwin::{Communicator, DevCommRequirements, LsaRank, WindowFlags};
use zerocopy::IntoBytes;

use super::Race;

/// One of those that are compared.
pub(crate) struct Entry {
    /// Among the samples.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// Makes it on one rank; all ranks do so together.
    pub(crate) make: for<'a> fn(&'a Communicator, &'a Queue, Race) -> anyhow::Result<Contestant<'a>>,
}

/// What is compared, the library's first, then the bare one.
pub(crate) const fn entries(race: Race) -> &'static [Entry] {
    match race {
        Race::AllReduce { dtype: DType::F32, .. } => &[ALL_REDUCE, ONE_SHOT_BARE],
        Race::AllReduce { .. } => &[ALL_REDUCE],
        Race::Barrier { .. } => &[BARRIER, BARRIER_BARE],
    }
}

const ALL_REDUCE: Entry = Entry { name: "symwin", title: "symwin", make: all_reduce };
const ONE_SHOT_BARE: Entry = Entry { name: "bare", title: "bare one-shot kernel", make: one_shot_bare };
const BARRIER: Entry = Entry { name: "symwin", title: "symwin", make: barrier };
const BARRIER_BARE: Entry = Entry { name: "bare", title: "bare barrier kernel", make: barrier_bare };

/// A kernel that is ready to be started on one rank, as often as one likes.
pub(crate) struct Contestant<'a> {
    queue: &'a Queue,
    start: Box<Start<'a>>,
}

type Start<'a> = dyn Fn(&StreamRef) -> anyhow::Result<()> + 'a;

impl<'a> Contestant<'a> {
    /// `start` queues it once, and keeps all that it works on.
    fn new(queue: &'a Queue, start: impl Fn(&StreamRef) -> anyhow::Result<()> + 'a) -> Self {
        Self { queue, start: Box::new(start) }
    }

    /// A sample's work.
    pub(crate) fn repeat(&self, launches: u32) -> anyhow::Result<()> {
        for _ in 0..launches {
            (self.start)(&self.queue.stream)?;
        }
        self.queue.finish()
    }
}

impl fmt::Debug for Contestant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant").finish_non_exhaustive()
    }
}

impl Drop for Contestant<'_> {
    fn drop(&mut self) {
        // A launch may have failed behind others that still run.
        if let Err(error) = self.queue.finish() {
            tracing::error!(%error, "bench.undo_failed");
        }
    }
}

fn all_reduce<'a>(comm: &'a Communicator, queue: &'a Queue, race: Race) -> anyhow::Result<Contestant<'a>> {
    let Race::AllReduce { bytes, dtype } = race else { anyhow::bail!("no all-reduce") };
    let bytes = usize::try_from(bytes)?;
    let register = || anyhow::Ok(comm.register(&comm.alloc_own(bytes)?, WindowFlags::COLL_SYMMETRIC)?);
    let (send, recv) = (register()?.slice(0..bytes)?, register()?.slice(0..bytes)?);
    Ok(Contestant::new(queue, move |stream| {
        Ok(comm.all_reduce_on(stream.clone(), &send, &recv, dtype, ReduceOp::Sum)?)
    }))
}

fn one_shot_bare<'a>(comm: &'a Communicator, queue: &'a Queue, race: Race) -> anyhow::Result<Contestant<'a>> {
    let Race::AllReduce { bytes, .. } = race else { anyhow::bail!("no all-reduce") };
    let vectors = bytes / 16;
    ensure!(
        vectors * 16 == bytes,
        "the bare kernel sums vectors of 16 bytes: --bytes must be a multiple of that"
    );
    let blocks = u32::try_from(vectors.div_ceil(512)).unwrap_or(u32::MAX).clamp(1, 16);
    let output = comm.alloc_own(usize::try_from(bytes)?.max(1))?;
    let aux = output.address() as u64;
    // As many warps as have work, as the library does.
    let threads = u32::try_from(vectors).unwrap_or(u32::MAX).clamp(1, 512).next_multiple_of(32);
    let shape = (blocks, threads);
    by_hand((comm, queue), "symwin_bench_one_shot_bare", shape, usize::try_from(bytes)?, vectors, aux, output)
}

fn barrier<'a>(comm: &'a Communicator, queue: &'a Queue, race: Race) -> anyhow::Result<Contestant<'a>> {
    by_hand((comm, queue), "symwin_bench_barrier", (1, 32), 0, race.rounds().into(), 0, ())
}

fn barrier_bare<'a>(comm: &'a Communicator, queue: &'a Queue, race: Race) -> anyhow::Result<Contestant<'a>> {
    by_hand((comm, queue), "symwin_bench_barrier_bare", (1, 32), 0, race.rounds().into(), 0, ())
}

/// A kernel of `kernels/bench.cu` over a window of its own: words of barriers in its first 64 KiB, then `bytes` of data.
fn by_hand<'a>(
    (comm, queue): (&'a Communicator, &'a Queue),
    kernel: &'static str,
    (blocks, threads): (u32, u32),
    bytes: usize,
    count: u64,
    aux: u64,
    keeps: impl Sized + 'a,
) -> anyhow::Result<Contestant<'a>> {
    let buffer = comm.alloc_own((64 << 10) + bytes)?;
    buffer.write(0, &[0; 64 << 10])?;
    let window = comm.register(&buffer, WindowFlags::empty())?;
    let dev_comm = comm.create_dev_comm(DevCommRequirements::new().lsa_barriers(blocks))?;
    let result = comm.alloc_own(8)?;
    let memory = window.lsa_ptr(LsaRank::new(0), 0)?.addr() as u64;
    let words = [memory, comm.stride(), result.address() as u64, count, aux];
    let parameter = [dev_comm.device().to_kernel().as_bytes(), words.as_bytes()].concat();
    let driver = Arc::clone(buffer.driver());
    Ok(Contestant::new(queue, move |stream| {
        // What the kernel works on lives as long as this.
        let _keeps = (&window, &dev_comm, &result, &keeps);
        let launch = Launch { kernel, blocks, threads, parameter: &parameter };
        // SAFETY: the parameter is that of the kernels in `bench.cu`, and what it leads to is kept here; a contestant
        // waits for its stream before it goes.
        Ok(unsafe { driver.launch(stream.number(), &launch) }?)
    }))
}

/// A rank's stream of kernels.
pub(crate) struct Queue {
    driver: Arc<dyn Driver>,
    stream: StreamRef,
}

impl Queue {
    /// A stream that has run a kernel. What a GPU does for the first one of a stream waits for kernels of other streams
    /// that have more behind them (seen on an H200), and these may wait for ours: all ranks make theirs, then begin.
    pub(crate) fn new(comm: &Communicator) -> anyhow::Result<Self> {
        // Memory of its own: a slab would bring a stream with it, for its zeroes.
        let word = comm.alloc_own(size_of::<u32>())?;
        let driver = Arc::clone(word.driver());
        let queue = Self { stream: stream(&*driver)?, driver };
        // No word of the communicator is looked at, and no time is waited.
        let words = [0, 0, 0, 0, word.address() as u64];
        let parameter = [[0; size_of::<KernelComm>()].as_slice(), words.as_bytes()].concat();
        let launch = Launch { kernel: "symwin_bench_spin", blocks: 1, threads: 32, parameter: &parameter };
        // SAFETY: the parameter is that of the kernels in `bench.cu`; the word is kept until it has run.
        unsafe { queue.driver.launch(queue.stream.number(), &launch) }?;
        queue.finish()?;
        Ok(queue)
    }

    /// Waits until everything on the stream has run.
    fn finish(&self) -> anyhow::Result<()> {
        let until = Instant::now() + LIMIT;
        let event = self.driver.record(self.stream.number())?;
        while !self.driver.done(event)? {
            ensure!(
                Instant::now() < until,
                "the kernels of a sample have not ended within {} s: a rank is gone, or the GPU is full of others",
                LIMIT.as_secs()
            );
            // Nothing tells when a device is done; ranks that share a core go on meanwhile.
            thread::yield_now();
        }
        Ok(())
    }
}

/// A stream as programs have them.
#[cfg(feature = "cuda")]
fn stream(driver: &dyn Driver) -> anyhow::Result<StreamRef> {
    let context = cudarc::driver::CudaContext::new(usize::try_from(driver.info().ordinal)?)?;
    Ok((&context.new_stream()?).into())
}

#[cfg(not(feature = "cuda"))]
fn stream(_: &dyn Driver) -> anyhow::Result<StreamRef> {
    anyhow::bail!("this build has no GPUs: build it with --features cuda")
}

/// How long the kernels of a sample may take.
const LIMIT: Duration = Duration::from_secs(60);
