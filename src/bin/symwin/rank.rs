//! What one rank does, from its first buffer to its goodbye.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use symwin::{Buffer, Communicator, DevComm, DevCommRequirements, Group, Window, WindowFlags};
use xxhash_rust::xxh3::Xxh3;

use crate::errors::RankError;
use crate::npy::Header;
use crate::pattern;
use crate::phases::{Lap, Phase, Stopwatch};
use crate::plan::{Data, Input, Job, PART_BYTES};
use crate::progress::Progress;

/// What one rank has to say in the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub(crate) rank: u32,
    pub(crate) lsa_size: u32,
    /// What its device is called.
    pub(crate) device: String,
    pub(crate) laps: Vec<Lap>,
    /// Of the bytes of its result: equal on all ranks of an LSA team.
    pub(crate) digest: u64,
}

/// Does all of it. On an error the communicator is dropped, so the peers hear of it.
pub(crate) fn run(
    comm: Communicator,
    job: &Job,
    bootstrap: Duration,
    progress: &dyn Progress,
) -> Result<RankReport, RankError> {
    let rank = comm.rank().get();
    let watch = Stopwatch::start(bootstrap, comm.status().rounds);
    let mut run = Run { job, rank, progress, watch };
    run.all(comm).map_err(|error| RankError::new(Some(rank), run.watch.phase(), &error))
}

struct Run<'a> {
    job: &'a Job,
    rank: u32,
    progress: &'a dyn Progress,
    watch: Stopwatch,
}

impl Run<'_> {
    fn all(&mut self, comm: Communicator) -> anyhow::Result<RankReport> {
        let (lsa_size, device) = (comm.lsa_size(), comm.device().name.clone());
        if matches!(self.job.data, Data::Arrays { .. }) && lsa_size < comm.world_size() {
            bail!(
                "each LSA team of {lsa_size} ranks would reduce its own files only, and there is one output: unset \
                 SYMWIN_LSA_TEAM_SIZE"
            );
        }
        let buffers = self.allocate(&comm)?;
        self.next(&comm, Phase::Fill);
        self.fill(&buffers)?;
        self.next(&comm, Phase::Register);
        let (windows, dev_comm) = register(&comm, &buffers)?;
        self.next(&comm, Phase::AllReduce);
        self.all_reduce(&comm, &windows)?;
        self.next(&comm, Phase::Check);
        let digest = self.check(&comm, &buffers)?;
        if let Data::Arrays { inputs, result } = &self.job.data {
            self.next(&comm, Phase::Write);
            if self.rank == 0 {
                write(&buffers[0], &inputs[0].header, self.job.bytes(), result)
                    .with_context(|| format!("writing {}", result.display()))?;
            }
        }
        self.next(&comm, Phase::Deregister);
        for window in &windows {
            window.close()?;
        }
        drop((windows, dev_comm, buffers));
        self.next(&comm, Phase::Finalize);
        comm.finalize()?;
        let watch = std::mem::replace(&mut self.watch, Stopwatch::start(Duration::ZERO, 0));
        Ok(RankReport { rank: self.rank, lsa_size, device, laps: watch.end(), digest })
    }

    /// Ends a phase.
    fn next(&mut self, comm: &Communicator, phase: Phase) {
        self.watch.next(comm.status().rounds, phase);
        self.progress.tell(phase, 0);
    }

    /// A buffer for each window. One without elements still has a byte, as a window must.
    fn allocate(&self, comm: &Communicator) -> anyhow::Result<Vec<Buffer>> {
        let bytes = usize::try_from(self.job.bytes())?.max(1);
        (0..self.job.windows()).map(|_| Ok(comm.alloc(bytes)?)).collect()
    }

    fn fill(&self, buffers: &[Buffer]) -> anyhow::Result<()> {
        match &self.job.data {
            Data::Arrays { inputs, .. } => {
                let input = &inputs[self.rank as usize];
                self.load(input, &buffers[0]).with_context(|| input.path.display().to_string())
            }
            Data::Pattern { .. } => {
                let mut part = vec![0; PART_BYTES.min(usize::try_from(self.job.bytes())?)];
                for (buffer, window) in buffers.iter().zip(0..) {
                    let row = pattern::row_of(self.rank, window);
                    for (at, len) in parts(self.job.bytes()) {
                        let part = &mut part[..len];
                        pattern::fill(part, at / size_of::<f32>(), &row);
                        buffer.write(at, part)?;
                        self.progress.tell(Phase::Fill, len as u64);
                    }
                }
                Ok(())
            }
        }
    }

    /// Reads the rank's file into its buffer. The file may have changed since it was looked at.
    fn load(&self, input: &Input, buffer: &Buffer) -> anyhow::Result<()> {
        let mut file = File::open(&input.path)?;
        ensure!(Header::read(&mut file)? == input.header, "the file has changed since this run began");
        file.seek(SeekFrom::Start(input.header.data_offset))?;
        let mut part = vec![0; PART_BYTES.min(buffer.len())];
        for (at, len) in parts(self.job.bytes()) {
            let part = &mut part[..len];
            file.read_exact(part)?;
            input.header.swap_to_native(part);
            buffer.write(at, part)?;
            self.progress.tell(Phase::Fill, len as u64);
        }
        Ok(())
    }

    /// Every window in place, part by part.
    fn all_reduce(&self, comm: &Communicator, windows: &[Window]) -> anyhow::Result<()> {
        for window in windows {
            for (at, len) in parts(self.job.bytes()) {
                let slice = window.slice(at..at + len)?;
                comm.all_reduce(&slice, &slice, self.job.dtype(), self.job.op)?;
                self.progress.tell(Phase::AllReduce, len as u64);
            }
        }
        Ok(())
    }

    /// Compares every element with what it must be, where that is known, and gives the digest of all bytes.
    fn check(&self, comm: &Communicator, buffers: &[Buffer]) -> anyhow::Result<u64> {
        let first = self.rank / comm.lsa_size() * comm.lsa_size();
        let team = first..first + comm.lsa_size();
        let mut digest = Xxh3::new();
        let mut part = vec![0; PART_BYTES.min(usize::try_from(self.job.bytes())?)];
        for (buffer, window) in buffers.iter().zip(0..) {
            let expected = match self.job.data {
                Data::Pattern { .. } => Some(pattern::expected(team.clone(), window, self.job.op)),
                Data::Arrays { .. } => None,
            };
            for (at, len) in parts(self.job.bytes()) {
                let part = &mut part[..len];
                buffer.read(at, part)?;
                digest.update(part);
                if let Some(expected) = &expected {
                    compare(part, at, expected)
                        .with_context(|| format!("window {window} of rank {}", self.rank))?;
                }
                self.progress.tell(Phase::Check, len as u64);
            }
        }
        Ok(digest.digest())
    }
}

/// All windows and one device communicator in one group.
fn register(comm: &Communicator, buffers: &[Buffer]) -> anyhow::Result<(Vec<Window>, DevComm)> {
    let group = Group::named("symwin run");
    let pending: Vec<_> =
        buffers.iter().map(|buffer| group.register(comm, buffer, WindowFlags::COLL_SYMMETRIC)).collect();
    let dev_comm = group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1));
    group.end().map_err(symwin::Error::from)?;
    let windows = pending.into_iter().map(|window| window.wait()).collect::<symwin::Result<_>>()?;
    Ok((windows, dev_comm.wait()?))
}

/// `part` is the bytes of a result from byte `at` on.
fn compare(part: &[u8], at: usize, expected: &[f32]) -> anyhow::Result<()> {
    let first = at / size_of::<f32>();
    let (elements, _) = part.as_chunks();
    for (bytes, element) in elements.iter().zip(first..) {
        let (is, should) = (f32::from_ne_bytes(*bytes), expected[element % expected.len()]);
        ensure!(
            is.to_bits() == should.to_bits(),
            "element {element} is {is} but must be {should}: the reduction is wrong, please report it"
        );
    }
    Ok(())
}

/// Writes the result as a new .npy file, down to the disk.
fn write(buffer: &Buffer, like: &Header, bytes: u64, path: &Path) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    file.write_all(&like.to_bytes())?;
    let mut part = vec![0; PART_BYTES.min(buffer.len())];
    for (at, len) in parts(bytes) {
        let part = &mut part[..len];
        buffer.read(at, part)?;
        like.swap_to_native(part);
        file.write_all(part)?;
    }
    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

/// A window's parts: offset and length, each [`PART_BYTES`] but the last.
fn parts(bytes: u64) -> impl Iterator<Item = (usize, usize)> {
    // A window of this size was allocated, so it fits.
    let bytes = usize::try_from(bytes).expect("sizes of allocations fit in usize");
    (0..bytes).step_by(PART_BYTES).map(move |at| (at, PART_BYTES.min(bytes - at)))
}

#[cfg(test)]
mod tests {
    use symwin::coll::ReduceOp;

    use super::*;
    use crate::backend::Device;

    /// Nobody looks at it.
    struct Nobody;

    impl Progress for Nobody {
        fn tell(&self, _: Phase, _: u64) {}
    }

    fn job() -> Job {
        Job {
            ranks: 1,
            device: Device::Host,
            op: ReduceOp::Sum,
            data: Data::Pattern { windows: 3, bytes: 40_000 },
        }
    }

    /// What the check says of results that are right but for `bytes` at `at` of window 2.
    fn checked(at: usize, bytes: &[u8]) -> anyhow::Result<u64> {
        let config = symwin::Config::new().stride(1 << 30);
        let comm = Communicator::in_process_with(1, &config).unwrap().remove(0);
        let job = job();
        let run = Run { job: &job, rank: 0, progress: &Nobody, watch: Stopwatch::start(Duration::ZERO, 0) };
        let buffers = run.allocate(&comm).unwrap();
        // Of one rank the sum is what it began with.
        run.fill(&buffers).unwrap();
        buffers[2].write(at, bytes).unwrap();
        run.check(&comm, &buffers)
    }

    #[test]
    fn a_wrong_element_is_named_with_its_rank_and_window() {
        let right = checked(0, &[]).unwrap();
        assert_eq!(checked(0, &[]).unwrap(), right);
        let should = pattern::expected(std::iter::once(0), 2, ReduceOp::Sum);
        for element in [0, 4093, 9999] {
            let (is, should) = (-77.5f32, should[element % should.len()]);
            let error = checked(element * 4, &is.to_ne_bytes()).unwrap_err();
            let said = format!("{error:#}");
            let expected = format!("window 2 of rank 0: element {element} is {is} but must be {should}: ");
            assert!(said.starts_with(&expected), "{said}");
        }
    }

    /// Bits count, not values: a zero of the other sign is another result.
    #[test]
    fn compare_tells_zeroes_apart_and_counts_from_the_parts_place() {
        let expected = [0.0, 1.0, 2.0];
        let part = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        compare(&part(&[1.0, 2.0, 0.0]), 16, &expected).unwrap();
        let error = compare(&part(&[1.0, 2.0, -0.0]), 16, &expected).unwrap_err();
        assert!(error.to_string().starts_with("element 6 is -0 but must be 0: "), "{error}");
    }
}
