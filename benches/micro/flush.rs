//! A group of registrations on all ranks of one process, from its begin until every rank has its windows.

use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput};
use rustix::process::{Resource, getrlimit, setrlimit};
use symwin::{BufferSlice, Communicator, Group, Window, WindowFlags};

pub(crate) fn bench(criterion: &mut Criterion) {
    // 4 x 1,024 allocations have a descriptor each.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a limit may be raised up to its maximum");
    let mut group = criterion.benchmark_group("flush");
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    for ranks in [1, 4] {
        for windows in [1, 64, 1024] {
            for (of, memory) in [("one allocation", one as MemoryOf), ("own allocations", own)] {
                let name = format!("{ranks} ranks, {windows} windows of {of}");
                group.throughput(Throughput::Elements(windows as u64));
                // Made within, so that what is not asked for is not made.
                group.bench_function(name, |bencher| {
                    let comms = Communicator::in_process(ranks).expect("ranks can be made");
                    let memory: Vec<_> = comms.iter().map(|comm| memory(comm, windows)).collect();
                    // The first batch makes the flat range.
                    drop(register(&comms, &memory).1);
                    bencher.iter_custom(|times| (0..times).map(|_| register(&comms, &memory).0).sum());
                    drop(memory);
                    for comm in comms {
                        comm.finalize().expect("nothing is open any more");
                    }
                });
            }
        }
    }
    group.finish();
}

/// How long one group took, and what it made. To drop that closes it, outside the time.
fn register(comms: &[Communicator], memory: &[Vec<BufferSlice>]) -> (Duration, Vec<Window>) {
    let begin = Instant::now();
    let group = Group::start();
    let mut pending = Vec::new();
    for (comm, memory) in comms.iter().zip(memory) {
        pending.extend(memory.iter().map(|part| group.register(comm, part, WindowFlags::empty())));
    }
    group.end().expect("all ranks ask for the same");
    let windows =
        pending.into_iter().map(|window| window.wait().expect("the group has ended well")).collect();
    (begin.elapsed(), windows)
}

/// What a rank's windows lie in, made of its communicator for so many windows.
type MemoryOf = fn(&Communicator, usize) -> Vec<BufferSlice>;

fn one(comm: &Communicator, windows: usize) -> Vec<BufferSlice> {
    let arena = comm.alloc_own(windows * BYTES).expect("there is memory");
    (0..windows).map(|i| arena.slice(i * BYTES..(i + 1) * BYTES).expect("it is in the arena")).collect()
}

fn own(comm: &Communicator, windows: usize) -> Vec<BufferSlice> {
    (0..windows).flat_map(|_| one(comm, 1)).collect()
}

/// Of a window. Nobody touches it: how large it is costs nothing.
const BYTES: usize = 4096;
