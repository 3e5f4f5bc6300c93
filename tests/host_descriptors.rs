//! The host device at the process's limit of descriptors. Alone in its file: the limit is the whole process's.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

use std::fs::File;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symwin::driver::buffers::BufferAllocator;
use symwin::driver::host::{HostCounts, HostDriver, HostOptions};
use symwin::driver::{Call, DeviceError, DeviceProblem, Driver, HandleKind};

const PAGE: usize = 4096;
const LIMIT: u64 = 64;

#[test]
fn running_out_of_descriptors_is_an_error_that_names_the_limit() {
    let driver = HostDriver::new(HostOptions::new()).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..before }).unwrap();

    let mut handles = Vec::new();
    let error = loop {
        match driver.create(PAGE) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    let problem = DeviceProblem::TooManyDescriptors { limit: LIMIT, need: 1 };
    assert_eq!(error, DeviceError::new(Call::Create, problem));
    assert!(!handles.is_empty() && handles.len() < 64);
    assert_eq!(driver.counts().bytes, (handles.len() * PAGE) as u64, "what failed does not count");
    // Exporting shares the descriptor, so it works even now.
    driver.export(handles[0], HandleKind::Descriptor).unwrap();

    for handle in handles.drain(..) {
        driver.release(handle).unwrap();
    }
    assert_eq!(driver.counts(), HostCounts::default());

    // Ten thousand buffers under the same limit, from few allocations; and room is left for a file.
    let allocator = BufferAllocator::new(Arc::clone(&driver) as Arc<dyn Driver>, 16 << 20);
    let buffers: Vec<_> = (0..10_000).map(|_| allocator.alloc(1).unwrap()).collect();
    assert_eq!(driver.counts().descriptors, 3);
    File::open("/dev/null").unwrap();
    drop((buffers, allocator));
    assert_eq!(driver.counts(), HostCounts::default());
}
