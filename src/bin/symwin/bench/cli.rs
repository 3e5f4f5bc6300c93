//! The command line of `symwin bench`.

use clap::{Args, Subcommand, ValueEnum};
use symwin::coll::DType;

use super::World;
use super::mpi::Mpis;
use crate::backend::DeviceArgs;
use crate::cli::Place;
use crate::size::parse_bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What it takes until every rank may use every window.
    ///
    /// Every rank registers all windows in one group. Beside it, in turns and on the same memory: the bare system
    /// calls that this cannot do without; the reference's protocol, one window after the other, with and without
    /// recognising an allocation that is known already; and `MPI_Win_allocate_shared` of Open MPI and MPICH where they
    /// are installed. With --backend cuda: the bare CUDA driver, with 1, 4 and 16 threads, with new allocations for each
    /// sample. Times are per window, medians over all samples, from the first rank's begin to the last rank's
    /// end.
    Register(RegisterArgs),
    /// All-reduce: the blocking call, and a kernel that repeats it.
    ///
    /// Beside them, in turns: plain loops with the reads and writes of the one-shot and of the two-shot algorithm, over
    /// memory that nobody shares, and MPI_Allreduce of Open MPI and MPICH where they are installed. With --backend cuda:
    /// the library's kernel, and a bare kernel that does the same without the library. Times are of one
    /// all-reduce by sum, medians over all samples, each the mean of many repetitions for small sizes.
    Allreduce(AllreduceArgs),
    /// The barrier of kernels, one round of all ranks.
    ///
    /// Beside it, in turns: std::sync::Barrier where all ranks are threads of one process, and MPI_Barrier of Open MPI
    /// and MPICH where they are installed. With --backend cuda: a bare kernel with the same barrier.
    Barrier(BarrierArgs),
    /// Finding a window by an address, among many.
    ///
    /// Beside it, in turns: a plain binary search over the same keys; all of it again while another thread registers
    /// and closes windows.
    Lookup(LookupArgs),
}

impl BenchCommand {
    /// Whether it starts kernels of several ranks that wait for each other.
    pub(crate) fn has_waiting_kernels(&self) -> bool {
        match self {
            Self::Allreduce(args) => args.world.is_cuda(),
            Self::Barrier(args) => args.world.is_cuda(),
            Self::Register(_) | Self::Lookup(_) => false,
        }
    }
}

fn some_bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .and_then(|bytes| if bytes == 0 { Err("a window has at least 1 byte".to_owned()) } else { Ok(bytes) })
}

#[derive(Args, Debug)]
pub(crate) struct AllreduceArgs {
    #[command(flatten)]
    pub(crate) world: WorldArgs,

    /// The sizes that are reduced, such as 8,64K,16MiB; whole elements
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "8,64K,16MiB", value_parser = parse_bytes)]
    pub(crate) bytes: Vec<u64>,

    /// The type of the elements: f32, f64, i32, i64, u8, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(crate) dtype: DType,

    #[command(flatten)]
    pub(crate) mpi: MpiArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BarrierArgs {
    #[command(flatten)]
    pub(crate) world: WorldArgs,

    #[command(flatten)]
    pub(crate) mpi: MpiArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LookupArgs {
    /// How many windows are open
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: u32,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RegisterArgs {
    #[command(flatten)]
    pub(crate) world: WorldArgs,

    /// How many windows every rank registers in one group; several numbers are measured one by one
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: Vec<u32>,

    /// The size of each window, such as 2MiB or 64K [default: 2MiB; of GPUs 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    bytes: Option<u64>,

    /// Carve all windows of a rank from one allocation
    #[arg(long)]
    pub(crate) arena: bool,

    /// Give each window an allocation of its own; so it is without --arena
    #[arg(long, conflicts_with = "arena")]
    pub(crate) own: bool,

    /// With threads: whether ranks share one range of addresses, or each maps everything for itself
    #[arg(long, value_name = "HOW", default_value = "shared", conflicts_with = "procs")]
    pub(crate) maps: Maps,

    /// Take samples of symwin only, and show strace where they begin and end
    #[arg(long, hide = true)]
    pub(crate) traced: bool,

    /// Measure as on GPUs: beside the bare driver, with new allocations for each sample
    #[arg(long, hide = true)]
    floor: bool,

    #[command(flatten)]
    pub(crate) mpi: MpiArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl RegisterArgs {
    /// Of each window.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(if self.world.is_cuda() { 4 << 20 } else { 2 << 20 })
    }

    /// Whether symwin is measured beside the bare driver, and not beside what the host has.
    pub(crate) fn floor(&self) -> bool {
        self.floor || self.world.is_cuda()
    }
}

#[derive(Args, Debug)]
pub(crate) struct WorldArgs {
    /// How many ranks there are
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: u32,

    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    device: DeviceArgs,
}

impl WorldArgs {
    pub(crate) fn is_cuda(&self) -> bool {
        self.device.is_cuda()
    }

    /// The ranks' places and devices; ends the program if there is no such division.
    pub(crate) fn world(&self, apart: bool) -> anyhow::Result<World> {
        let ranks_per_process = self.place.ranks_per_process(self.ranks);
        let device = self.device.device(self.ranks)?;
        Ok(World { ranks: self.ranks, ranks_per_process, device, apart })
    }
}

#[derive(Args, Debug)]
pub(crate) struct MpiArgs {
    /// Leave Open MPI and MPICH out even where they are installed
    #[arg(long)]
    no_mpi: bool,
}

impl MpiArgs {
    pub(crate) fn find(&self) -> anyhow::Result<Mpis> {
        if self.no_mpi { Ok(Mpis::none()) } else { Mpis::find() }
    }
}

#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// How many samples of each figure are taken
    #[arg(long, value_name = "N", default_value = "15", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,

    /// Print JSON, one object a line, instead of tables, and no progress bar
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Maps {
    /// A window costs a process one mapping for each rank
    Shared,
    /// A window costs each rank one mapping for each rank, as if it were a process of its own
    Each,
}
