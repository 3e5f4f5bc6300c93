//! The devices of worlds: the host's, or GPUs where `SYMWIN_TEST_DEVICE=cuda` says so, so that one suite runs on both.
//! CI does so over a fake CUDA driver.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

use std::sync::Arc;

use symwin::Config;
use symwin::driver::Driver;
#[cfg(feature = "cuda")]
use symwin::driver::cuda::CudaDriver;
use symwin::driver::host::{HostCounts, HostDriver, HostOptions};

/// What is alive in a device. A GPU counts neither descriptors nor bytes: those are 0.
pub type Counts = HostCounts;

/// A device of a test's process.
#[derive(Clone, Debug)]
pub enum Device {
    Host(Arc<HostDriver>),
    #[cfg(feature = "cuda")]
    Gpu(Arc<CudaDriver>),
}

/// Whether worlds are made of GPUs.
pub fn on_gpus() -> bool {
    match std::env::var("SYMWIN_TEST_DEVICE").as_deref() {
        Ok("cuda") if cfg!(feature = "cuda") => true,
        Ok("cuda") => panic!("SYMWIN_TEST_DEVICE=cuda needs the feature cuda"),
        Ok("host") | Err(_) => false,
        Ok(other) => panic!("SYMWIN_TEST_DEVICE={other}: host or cuda"),
    }
}

impl Device {
    /// The first device of the kind.
    pub fn new() -> Self {
        Self::numbered(0)
    }

    /// A device for so many-th rank: ranks take turns on the GPUs that there are.
    pub fn numbered(number: usize) -> Self {
        #[cfg(feature = "cuda")]
        if on_gpus() {
            let count = cudarc::driver::CudaContext::device_count().unwrap();
            return Self::Gpu(CudaDriver::new(number % usize::try_from(count).unwrap()).unwrap());
        }
        let _ = number;
        Self::Host(HostDriver::new(HostOptions::new()).unwrap())
    }

    pub fn driver(&self) -> Arc<dyn Driver> {
        match self {
            Self::Host(host) => host.clone(),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => gpu.clone(),
        }
    }

    pub fn counts(&self) -> Counts {
        match self {
            Self::Host(host) => host.counts(),
            #[cfg(feature = "cuda")]
            Self::Gpu(gpu) => {
                let counts = gpu.counts();
                let mut same = Counts::default();
                same.handles = counts.handles;
                same.mappings = counts.mappings;
                same.reservations = counts.reservations;
                same.streams = counts.streams;
                same.events = counts.events;
                same
            }
        }
    }
}

/// A configuration's own devices: on GPUs each rank has a driver of its own, so that one process has several.
pub fn of_ranks(config: Config) -> Config {
    if on_gpus() { config.devices(|rank| Ok(Device::numbered(rank.index()).driver())) } else { config }
}
