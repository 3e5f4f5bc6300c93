//! The kernels that benchmarks of GPUs compare, and how a sample runs one.
//!
//! A sample queues a kernel many times on a stream of its own ([`Driver::launch`]), and lasts until the stream has passed
//! an event behind the last one, by the clock of the host. What is compared are [`Entry`]s of [`entries`]: the library's
//! own kernel first, then the bare one that does the same work without the library. Which kernels these are and what
//! their parameters hold is all that is open here: an entry's `make` allocates and registers what the kernel needs, and
//! gives a [`Contestant`].
#![allow(unsafe_code, reason = "kernels are started by what they are promised")]
#![cfg_attr(
    not(test),
    expect(dead_code, reason = "no kernel is in this build yet: nothing makes a contestant")
)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use symwin::Communicator;
use symwin::driver::{Driver, Launch, Stream};

use super::Race;

/// One of those that are compared.
pub(crate) struct Entry {
    /// Among the samples.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// Makes it on one rank; all ranks do so together.
    pub(crate) make: fn(&Communicator, Race) -> anyhow::Result<Contestant>,
}

/// What is compared, the library's first, then the bare one. None: the kernels are not in this build.
pub(crate) const fn entries(race: Race) -> &'static [Entry] {
    match race {
        Race::AllReduce { .. } | Race::Barrier => &[],
    }
}

/// Refuses a race without kernels, before any rank starts.
pub(crate) fn check(race: Race) -> anyhow::Result<()> {
    ensure!(
        !entries(race).is_empty(),
        "the kernels that `symwin bench {}` compares on GPUs are not in this build: get a newer one, or measure host \
         memory with --backend host",
        race.name()
    );
    Ok(())
}

/// A kernel that is ready to be started on one rank, as often as one likes.
pub(crate) struct Contestant {
    queue: Queue,
    kernel: &'static str,
    blocks: u32,
    threads: u32,
    parameter: Vec<u8>,
    /// All that the parameter leads to.
    keeps: Option<Box<dyn Any>>,
}

impl Contestant {
    /// # Safety
    /// `parameter` is that of the kernel, which may be started with so many blocks and threads, and everything that it
    /// leads to stays mapped with access while `keeps` lives.
    pub(crate) unsafe fn new(
        driver: Arc<dyn Driver>,
        kernel: &'static str,
        (blocks, threads): (u32, u32),
        parameter: Vec<u8>,
        keeps: Box<dyn Any>,
    ) -> anyhow::Result<Self> {
        Ok(Self { queue: Queue::new(driver)?, kernel, blocks, threads, parameter, keeps: Some(keeps) })
    }

    /// A sample's work.
    pub(crate) fn repeat(&self, launches: u32) -> anyhow::Result<()> {
        let Self { queue, parameter, .. } = self;
        let launch = Launch { kernel: self.kernel, blocks: self.blocks, threads: self.threads, parameter };
        for _ in 0..launches {
            // SAFETY: whoever made this says that the parameter is the kernel's; what it leads to lives as long as this,
            // which waits for the stream before it goes.
            unsafe { queue.driver.launch(queue.stream, &launch) }?;
        }
        queue.finish()
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        // A launch may have failed behind others that still run.
        if let Err(error) = self.queue.finish() {
            tracing::error!(%error, "bench.undo_failed");
            // They may for ever: what they see stays.
            self.keeps.take().map(Box::leak);
        }
    }
}

/// A stream.
struct Queue {
    driver: Arc<dyn Driver>,
    stream: Stream,
}

impl Queue {
    fn new(driver: Arc<dyn Driver>) -> anyhow::Result<Self> {
        Ok(Self { stream: driver.stream_create()?, driver })
    }

    /// Waits until everything on the stream has run.
    fn finish(&self) -> anyhow::Result<()> {
        let until = Instant::now() + LIMIT;
        let event = self.driver.record(self.stream)?;
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

impl Drop for Queue {
    fn drop(&mut self) {
        if let Err(error) = self.driver.stream_destroy(self.stream) {
            tracing::error!(%error, "bench.undo_failed");
        }
    }
}

/// How long the kernels of a sample may take.
const LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use symwin::driver::host::{HostDriver, HostOptions};

    use super::*;

    #[test]
    fn a_device_without_such_kernels_is_an_error_and_nothing_is_left() {
        let host = HostDriver::new(HostOptions::new()).unwrap();
        let driver: Arc<dyn Driver> = Arc::clone(&host) as _;
        // SAFETY: host devices have no such kernel, which could look at anything.
        let contestant =
            unsafe { Contestant::new(driver, "none", (1, 32), vec![0; 8], Box::new(())) }.unwrap();
        contestant.repeat(0).unwrap();
        let error = contestant.repeat(2).unwrap_err().to_string();
        assert!(error.contains("kernels of host are host code"), "{error}");
        drop(contestant);
        assert_eq!((host.counts().streams, host.counts().events), (0, 0));
    }

    #[test]
    fn a_race_without_kernels_is_refused_by_its_name() {
        for race in [Race::AllReduce { bytes: 8, dtype: symwin::coll::DType::F32 }, Race::Barrier] {
            match check(race) {
                Ok(()) => assert_eq!(entries(race).len(), 2),
                Err(error) => assert!(error.to_string().contains("not in this build"), "{error}"),
            }
        }
    }
}
