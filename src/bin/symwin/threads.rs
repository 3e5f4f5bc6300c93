//! The ranks of one process, each on a thread.

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use symwin::{Communicator, Config};

use crate::backend::Device;
use crate::errors::RankError;
use crate::phases::Phase;

/// Makes the communicator on these devices and lets all its ranks of this process do their work, which is told how long the making took.
/// Every wait of a rank has a deadline, so this has one. Errors are of all ranks that have one.
pub(crate) fn run<R: Send>(
    device: Device,
    make: impl FnOnce(&Config) -> symwin::Result<Vec<Communicator>>,
    work: impl Fn(Communicator, Duration) -> Result<R, RankError> + Sync,
) -> Result<Vec<R>, Vec<RankError>> {
    let began = Instant::now();
    let ranks =
        communicator(device, make).map_err(|error| vec![RankError::new(None, Phase::Bootstrap, &error)])?;
    let bootstrap = began.elapsed();
    let work = &work;
    let results: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let rank = comm.rank().get();
                let builder = thread::Builder::new().name(format!("rank {rank}"));
                // A rank whose thread does not start drops its communicator, and so is lost to the others.
                (rank, builder.spawn_scoped(scope, move || work(comm, bootstrap)))
            })
            .collect();
        started.into_iter().map(|(rank, thread)| join(rank, thread)).collect()
    });
    let (mut reports, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(report) => reports.push(report),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(reports) } else { Err(errors) }
}

fn communicator(
    device: Device,
    make: impl FnOnce(&Config) -> symwin::Result<Vec<Communicator>>,
) -> anyhow::Result<Vec<Communicator>> {
    Ok(make(&device.configure(Config::from_env()?)?)?)
}

fn join<R>(
    rank: u32,
    thread: std::io::Result<ScopedJoinHandle<'_, Result<R, RankError>>>,
) -> Result<R, RankError> {
    let thread = thread.context("its thread did not start; fewer ranks, or more processes, may do");
    let thread = thread.map_err(|error| RankError::new(Some(rank), Phase::Bootstrap, &error))?;
    thread.join().unwrap_or_else(|panic| Err(RankError::panicked(rank, panic.as_ref())))
}
