//! What memory the windows are of, the host's or that of GPUs, and which rank has which GPU.

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use symwin::Config;

use crate::cli::refuse;
use crate::memory;

/// What the command line says of it.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DeviceArgs {
    /// What memory the windows are of
    #[arg(long, value_name = "BACKEND", default_value = "host")]
    backend: Backend,

    /// With --backend cuda: how many ranks, one after the other, share a GPU [default: as few as the GPUs allow]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_gpu: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Shared memory of this host
    Host,
    /// GPUs
    Cuda,
}

/// Whose memory it is. It goes to every process of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Device {
    Cuda {
        ranks_per_gpu: u32,
        /// Of the smallest GPU that has a rank.
        memory_bytes: u64,
    },
    Host,
}

impl DeviceArgs {
    pub(crate) fn is_cuda(&self) -> bool {
        self.backend == Backend::Cuda
    }

    /// The devices of so many ranks, which are there. Ends the program if the command line contradicts itself.
    pub(crate) fn device(&self, ranks: u32) -> anyhow::Result<Device> {
        if self.is_cuda() {
            return of_gpus(&gpus()?, ranks, self.ranks_per_gpu);
        }
        if self.ranks_per_gpu.is_some() {
            refuse(ErrorKind::ArgumentConflict, "--ranks-per-gpu is for --backend cuda: add it");
        }
        Ok(Device::Host)
    }
}

impl Device {
    pub(crate) fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda { .. })
    }

    /// As in reports.
    pub(crate) fn backend(self) -> &'static str {
        match self {
            Self::Cuda { .. } => "cuda",
            Self::Host => "host",
        }
    }

    /// Sizes of allocations are rounded up to it.
    pub(crate) fn page_bytes(self) -> u64 {
        match self {
            // That of every GPU so far.
            Self::Cuda { .. } => 2 << 20,
            Self::Host => 4096,
        }
    }

    /// What ranks make their communicator with.
    pub(crate) fn configure(self, config: Config) -> anyhow::Result<Config> {
        match self {
            Self::Cuda { ranks_per_gpu, .. } => with_gpus(config, ranks_per_gpu),
            Self::Host => Ok(config),
        }
    }

    /// Refuses what would need more memory than there is: each of so many ranks needs so many bytes of its device.
    /// `what` says what it is of some of them.
    pub(crate) fn check_memory(
        self,
        what: impl FnOnce(u32) -> String,
        ranks: u32,
        each: Option<u64>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Cuda { ranks_per_gpu, memory_bytes } => {
                let here = ranks.min(ranks_per_gpu);
                let what = format!("{} on one GPU", what(here));
                let need = each.and_then(|each| each.checked_mul(here.into()));
                memory::check_device(&what, need, memory_bytes)
            }
            Self::Host => {
                let need = each.and_then(|each| each.checked_mul(ranks.into()));
                memory::check(&what(ranks), need)
            }
        }
    }
}

/// The ranks on GPUs of these sizes of memory, as few on each as possible if nobody says how many.
fn of_gpus(gpus: &[u64], ranks: u32, ranks_per_gpu: Option<u32>) -> anyhow::Result<Device> {
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    anyhow::ensure!(
        count > 0,
        "--backend cuda: the CUDA driver shows no GPU: ask nvidia-smi, unset CUDA_VISIBLE_DEVICES, or use --backend host"
    );
    let fewest = ranks.div_ceil(count);
    let ranks_per_gpu = ranks_per_gpu.unwrap_or(fewest);
    let needed = ranks.div_ceil(ranks_per_gpu);
    anyhow::ensure!(
        needed <= count,
        "{ranks} ranks with {ranks_per_gpu} on each GPU need {needed} GPUs, and there are {count}: say --ranks-per-gpu \
         {fewest} or more, or have fewer ranks"
    );
    let memory_bytes = gpus.iter().copied().take(needed as usize).min().unwrap_or(0);
    Ok(Device::Cuda { ranks_per_gpu, memory_bytes })
}

#[cfg(not(feature = "cuda"))]
const NOT_BUILT: &str = "this build has no cuda backend: build the program with `cargo build --release --features cuda`, \
                         or use --backend host";

/// The memory of each GPU, in bytes.
#[cfg(not(feature = "cuda"))]
fn gpus() -> anyhow::Result<Vec<u64>> {
    anyhow::bail!(NOT_BUILT)
}

/// The same, asked without making a context: this process may be none of the ranks'.
#[cfg(feature = "cuda")]
fn gpus() -> anyhow::Result<Vec<u64>> {
    use anyhow::Context;
    use cudarc::driver::result::{DriverError, device};

    symwin::driver::cuda::probe().context("--backend cuda (--backend host needs no GPU)")?;
    // An error's own text would call into the driver again: its code says it all.
    let failed = |error: DriverError| {
        anyhow::anyhow!("the CUDA driver does not say what GPUs there are: {:?}; ask nvidia-smi", error.0)
    };
    let memory = |ordinal| {
        let gpu = device::get(ordinal)?;
        #[allow(unsafe_code, reason = "the binding says so of a question about a device")]
        // SAFETY: the driver has just given this device.
        let bytes = unsafe { device::total_mem(gpu) }?;
        Ok(bytes as u64)
    };
    let count = device::get_count().map_err(failed)?;
    (0..count).map(memory).collect::<Result<_, _>>().map_err(failed)
}

#[cfg(not(feature = "cuda"))]
fn with_gpus(_: Config, _: u32) -> anyhow::Result<Config> {
    anyhow::bail!(NOT_BUILT)
}

/// The one place where GPUs become devices of ranks.
#[cfg(feature = "cuda")]
#[allow(clippy::unnecessary_wraps, reason = "a build without GPUs says so")]
fn with_gpus(config: Config, ranks_per_gpu: u32) -> anyhow::Result<Config> {
    Ok(config.devices(symwin::driver::cuda::devices(Some(ranks_per_gpu))))
}

/// Has the CUDA driver serve every stream by a queue of its own, as far as it can: kernels of several ranks on one GPU
/// wait for each other, and a kernel behind another one in a queue is not running. Called before there is any other
/// thread. Not for what starts no such kernels: so many queues take CUDA seconds to make.
#[allow(unsafe_code, reason = "the CUDA driver reads it from the environment")]
pub(crate) fn serve_all_streams() {
    const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: there is no other thread that could read the environment meanwhile.
        unsafe { std::env::set_var(NAME, "32") };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks_per_gpu(gpus: usize, ranks: u32, asked: Option<u32>) -> Result<u32, String> {
        match of_gpus(&vec![1 << 30; gpus], ranks, asked) {
            Ok(Device::Cuda { ranks_per_gpu, .. }) => Ok(ranks_per_gpu),
            Ok(Device::Host) => Err("the host has no GPU".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn ranks_are_spread_over_the_gpus_unless_somebody_says_otherwise() {
        assert_eq!(ranks_per_gpu(1, 8, None), Ok(8));
        assert_eq!(ranks_per_gpu(3, 8, None), Ok(3));
        assert_eq!(ranks_per_gpu(8, 2, None), Ok(1));
        assert_eq!(ranks_per_gpu(8, 2, Some(4)), Ok(4));
    }

    #[test]
    fn too_few_gpus_are_refused_with_what_would_do() {
        let refused = ranks_per_gpu(2, 8, Some(3)).unwrap_err();
        assert!(
            refused.starts_with("8 ranks with 3 on each GPU need 3 GPUs, and there are 2: "),
            "{refused}"
        );
        assert!(refused.contains("--ranks-per-gpu 4"), "{refused}");
        assert!(ranks_per_gpu(0, 1, None).unwrap_err().contains("no GPU"));
    }

    /// The smallest GPU that has a rank counts, and only the ranks on it.
    #[test]
    fn memory_is_counted_on_one_gpu() {
        let device = of_gpus(&[4 << 30, 2 << 30, 1 << 20], 4, Some(2)).unwrap();
        let what = |ranks| format!("{ranks} ranks");
        device.check_memory(what, 4, Some(1 << 30)).unwrap();
        let refused = device.check_memory(what, 4, Some(2 << 30)).unwrap_err().to_string();
        assert!(refused.starts_with("2 ranks on one GPU need 4.0 GiB of GPU memory"), "{refused}");
    }
}
