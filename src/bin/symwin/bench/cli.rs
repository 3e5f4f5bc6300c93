//! The command line of `symwin bench`.

use clap::{Args, Subcommand, ValueEnum};

use super::World;
use crate::cli::Place;
use crate::size::parse_bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What it takes until every rank may use every window.
    ///
    /// Every rank registers all windows in one group. Beside it, in turns and on the same memory: the bare system
    /// calls that this cannot do without; the reference's protocol, one window after the other, with and without
    /// recognising an allocation that is known already; and `MPI_Win_allocate_shared` of Open MPI and MPICH where they
    /// are installed. Times are per window, medians over all samples, from the first rank's begin to the last rank's
    /// end.
    Register(RegisterArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RegisterArgs {
    #[command(flatten)]
    pub(crate) world: WorldArgs,

    /// How many windows every rank registers in one group; several numbers are measured one by one
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: Vec<u32>,

    /// The size of each window, such as 2MiB or 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "2MiB")]
    pub(crate) bytes: u64,

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

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WorldArgs {
    /// How many ranks there are
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ranks: u32,

    #[command(flatten)]
    place: Place,
}

impl WorldArgs {
    pub(crate) fn world(&self, apart: bool) -> World {
        World { ranks: self.ranks, ranks_per_process: self.place.ranks_per_process(self.ranks), apart }
    }
}

#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// How many samples of each figure are taken
    #[arg(long, value_name = "N", default_value = "15", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) samples: u32,

    /// Leave Open MPI and MPICH out even where they are installed
    #[arg(long)]
    pub(crate) no_mpi: bool,

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
