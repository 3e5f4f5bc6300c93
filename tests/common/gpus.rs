//! Ranks that all share the first GPU, and kernels on it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(unsafe_code, reason = "kernels")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of few ranks; clippy takes helpers for none"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use symwin::driver::cuda::CudaDriver;
use symwin::driver::{Driver, Launch, Stream};
use symwin::{
    Buffer, Communicator, Config, DevComm, DevCommRequirements, Group, LsaRank, Rank, Window, WindowFlags,
};
use zerocopy::IntoBytes;

pub const MIB: usize = 1 << 20;

/// The ranks of this process.
pub struct World {
    pub ranks: Vec<Communicator>,
    pub gpu: Arc<CudaDriver>,
}

/// A world of threads.
pub fn world(ranks: u32) -> World {
    world_with(ranks, Config::new().deadline(Duration::from_secs(20)))
}

pub fn world_with(ranks: u32, config: Config) -> World {
    World::new(config, |config| Communicator::in_process_with(ranks, config))
}

impl World {
    pub fn new(config: Config, make: impl FnOnce(&Config) -> symwin::Result<Vec<Communicator>>) -> Self {
        let gpu = CudaDriver::new(0).unwrap();
        let shared = Arc::clone(&gpu);
        let config = config.devices(move |_| Ok(Arc::clone(&shared) as Arc<dyn Driver>));
        Self { ranks: make(&config).unwrap(), gpu }
    }

    pub fn alloc(&self, bytes: usize) -> Vec<Buffer> {
        self.ranks.iter().map(|comm| comm.alloc_own(bytes).unwrap()).collect()
    }

    pub fn carve(&self, bytes: usize) -> Vec<Buffer> {
        self.ranks.iter().map(|comm| comm.alloc(bytes).unwrap()).collect()
    }

    pub fn register(&self, buffers: &[Buffer], flags: WindowFlags) -> Vec<Window> {
        let group = Group::start();
        let pending: Vec<_> = self
            .ranks
            .iter()
            .zip(buffers)
            .map(|(comm, buffer)| group.register(comm, buffer, flags))
            .collect();
        group.end().unwrap();
        pending.into_iter().map(|window| window.wait().unwrap()).collect()
    }

    pub fn dev_comms(&self) -> Vec<DevComm> {
        let group = Group::start();
        let requirements = || DevCommRequirements::new().lsa_barriers(4);
        let pending: Vec<_> =
            self.ranks.iter().map(|comm| group.create_dev_comm(comm, requirements())).collect();
        group.end().unwrap();
        pending.into_iter().map(|made| made.wait().unwrap()).collect()
    }

    /// A batch that makes nothing on the device: with it all ranks agree on what was closed before, and give it back.
    pub fn settle(&self) {
        let group = Group::start();
        self.ranks.iter().for_each(|comm| drop(group.create_dev_comm(comm, DevCommRequirements::new())));
        group.end().unwrap();
    }

    pub fn streams(&self) -> Vec<Stream> {
        self.ranks.iter().map(|_| self.gpu.stream_create().unwrap()).collect()
    }

    /// Waits for all that was queued.
    pub fn join(&self, streams: &[Stream]) {
        for &stream in streams {
            let event = self.gpu.record(stream).unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            while !self.gpu.done(event).unwrap() {
                assert!(Instant::now() < until, "a kernel has not ended");
                std::thread::yield_now();
            }
        }
    }

    /// A kernel of each rank writes a mark to every rank and reads all of its own behind a barrier.
    pub fn check_peers(&self, buffers: &[Buffer]) {
        let world_size = self.ranks[0].world_size();
        let windows = self.register(buffers, WindowFlags::empty());
        let dev_comms = self.dev_comms();
        let results = self.alloc(8);
        let streams = self.streams();
        for (i, &stream) in streams.iter().enumerate() {
            let stride = self.ranks[i].stride();
            let parameter = parameter(&dev_comms[i], &windows[i], stride, &results[i], 7777, 0);
            launch(&self.gpu, stream, "symwin_bench_peers", (1, 32), &parameter);
        }
        self.join(&streams);
        for (comm, result) in self.ranks.iter().zip(&results) {
            let rank = comm.rank().get();
            assert_eq!(word(result), 0, "rank {rank} of {world_size} saw wrong marks");
            for peer in 0..world_size {
                // The same through the host's copies: what rank wrote to the peer.
                let mut seen = [0; 8];
                windows[0].read(Rank::new(peer), 8 * rank as usize, &mut seen).unwrap();
                assert_eq!(u64::from_le_bytes(seen), 7777 + 100 * u64::from(rank) + u64::from(peer));
            }
        }
        for stream in streams {
            self.gpu.stream_destroy(stream).unwrap();
        }
    }

    pub fn finalize(self) {
        for comm in self.ranks {
            comm.finalize().unwrap();
        }
        let counts = self.gpu.counts();
        assert_eq!((counts.handles, counts.mappings, counts.reservations), (0, 0, 0), "P-5: {counts:?}");
        assert_eq!((counts.streams, counts.events), (0, 0), "P-5: {counts:?}");
    }
}

/// The parameter of the bench kernels.
pub fn parameter(
    dev_comm: &DevComm,
    window: &Window,
    stride: u64,
    result: &Buffer,
    count: u64,
    aux: u64,
) -> Vec<u8> {
    let memory = window.lsa_ptr(LsaRank::new(0), 0).unwrap().addr() as u64;
    let words = [memory, stride, result.address() as u64, count, aux];
    let comm = dev_comm.device().to_kernel();
    [comm.as_bytes(), words.as_bytes()].concat()
}

pub fn launch(
    gpu: &CudaDriver,
    stream: Stream,
    kernel: &str,
    (blocks, threads): (u32, u32),
    parameter: &[u8],
) {
    let launch = Launch { kernel, blocks, threads, parameter };
    // SAFETY: the parameter is the kernel's, and the tests keep what it leads to until its stream has passed.
    unsafe { gpu.launch(stream, &launch) }.unwrap();
}

pub fn word(buffer: &Buffer) -> u64 {
    let mut bytes = [0; 8];
    buffer.read(0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}
