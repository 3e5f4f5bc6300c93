//! GPUs as devices of ranks, and cudarc's streams as theirs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::failures::failed;
use super::{CudaDriver, probe};
use crate::driver::{Call, Driver, Stream};
use crate::error::{Misuse, Result};
use crate::ids::Rank;

/// Devices for [`Config::devices`](crate::Config::devices): `ranks_per_gpu` consecutive ranks on each GPU that the process
/// sees, or in turns where that is not said. Ranks of one process on one GPU share its driver.
pub fn devices(
    ranks_per_gpu: Option<u32>,
) -> impl Fn(Rank) -> Result<Arc<dyn Driver>> + Send + Sync + 'static {
    let made: Mutex<HashMap<usize, Weak<CudaDriver>>> = Mutex::default();
    move |rank| {
        probe()?;
        let count = CudaContext::device_count().map_err(|error| failed(Call::Create, error.0))?;
        let count = u32::try_from(count).unwrap_or(0);
        let ordinal = match ranks_per_gpu {
            Some(0) => {
                let (name, why) = ("ranks per GPU".to_owned(), "at least 1".to_owned());
                return Err(Misuse::BadSetting { name, value: "0".to_owned(), why }.into());
            }
            Some(ranks) => rank.get() / ranks,
            None => rank.get() % count.max(1),
        } as usize;
        let mut made = made.lock();
        if let Some(driver) = made.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(driver);
        }
        let driver = CudaDriver::new(ordinal)?;
        made.insert(ordinal, Arc::downgrade(&driver));
        Ok(driver)
    }
}

impl From<&CudaStream> for Stream {
    /// A stream that the program has. It must live as long as it is used by this number.
    fn from(stream: &CudaStream) -> Self {
        Self(stream.cu_stream() as u64)
    }
}

impl From<&Arc<CudaStream>> for Stream {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self::from(&**stream)
    }
}
