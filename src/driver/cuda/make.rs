//! How a GPU's driver is made: what the GPU must have, what it can do, and what is made ahead.

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use parking_lot::Mutex;

use super::CudaDriver;
use super::absent::{self, Absent, probe};
use super::books::Owner;
use super::enter::Entered;
use super::failures::failed;
use super::kernels::Kernels;
use super::pinned::{FlagPage, Pool};
use super::property::{DESCRIPTORS, FABRIC, fabric_works, granularity, property};
use super::stream::OwnStream;
use crate::device::images::MULTICAST_GENERATION;
use crate::driver::{Call, DeviceInfo, HandleKind};
use crate::error::{Error, Result};

impl CudaDriver {
    /// The GPU of this number, as `CUDA_VISIBLE_DEVICES` lets this process see it, in its primary context.
    ///
    /// # Errors
    /// [`Error::NoCuda`] says what is missing; what the device says.
    pub fn new(ordinal: usize) -> Result<Arc<Self>> {
        probe()?;
        let count = CudaContext::device_count().map_err(|error| failed(Call::Create, error.0))?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(Absent::Device { ordinal, count }.into());
        }
        Self::with_context(CudaContext::new(ordinal).map_err(|error| failed(Call::Create, error.0))?)
    }

    /// The GPU of a context that the program has.
    ///
    /// # Errors
    /// As [`CudaDriver::new`].
    pub fn with_context(context: Arc<CudaContext>) -> Result<Arc<Self>> {
        use sys::CUdevice_attribute as A;
        probe()?;
        let ordinal = context.ordinal();
        let name = context.name().map_err(|error| failed(Call::Create, error.0))?;
        let attribute = |attribute| {
            context.attribute(attribute).map_err(|error| Error::from(failed(Call::Create, error.0)))
        };
        for (needed, what) in [
            (A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"),
            (A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "memory with descriptors"),
        ] {
            if attribute(needed)? == 0 {
                return Err(Absent::Capability { ordinal, name, what }.into());
            }
        }
        let entered = Entered::new(context.cu_ctx(), Call::Create)?;
        let gpu_direct = attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
        let fabric = attribute(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED).unwrap_or(0) != 0;
        let multicast = attribute(A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED).unwrap_or(0) != 0;
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let fabric = fabric && fabric_works(number, gpu_direct);
        let handle_types = DESCRIPTORS | if fabric { FABRIC } else { 0 };
        let memory_bytes = context.total_mem().map_err(|error| failed(Call::Create, error.0))?;
        let granularity = granularity(&property(number, handle_types, gpu_direct))?;
        let mut info = DeviceInfo::new(&name, "cuda", memory_bytes as u64, granularity as u64);
        info.handle_kind = if fabric { HandleKind::Fabric } else { HandleKind::Descriptor };
        info.ordinal = number;
        info.host_access = absent::host_has_access();
        let number_of = |a| attribute(a).map(|value| u32::try_from(value).unwrap_or(0));
        info.multiprocessors = number_of(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let capability = (
            number_of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number_of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        // Kernels choose multicast instructions wherever there is a multicast object.
        let has_instructions = capability.0 >= MULTICAST_GENERATION;
        info.multicast = multicast && has_instructions && absent::multicast_is_allowed();
        let pool = Pool::default();
        let driver = Self {
            info,
            handle_types,
            gpu_direct,
            zeros: pool.take(Call::Create)?,
            pool,
            copies: OwnStream::new()?,
            flags: Mutex::new(vec![FlagPage::new()?]),
            kernels: Kernels::load(capability)?,
            books: Mutex::default(),
            owner: Owner::new(),
            context: Arc::clone(&context),
            last_calls: None,
        };
        drop(entered);
        Ok(Arc::new(driver))
    }
}
