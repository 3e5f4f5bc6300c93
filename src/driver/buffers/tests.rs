use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::driver::faulty::Faulty;
use crate::driver::host::{HostCounts, HostDriver, HostOptions};
use crate::driver::{Call, DeviceInfo};
use crate::error::Misuse;

mod model;

const PAGE: usize = 4096;
const SLAB: usize = 8 * PAGE;

fn host() -> Arc<HostDriver> {
    HostDriver::new(HostOptions::new()).unwrap()
}

fn is_zero(buffer: &Buffer) -> bool {
    let mut bytes = vec![1; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes.iter().all(|&byte| byte == 0)
}

#[test]
fn buffers_share_a_slab_and_return_to_it() {
    let host = host();
    let allocator = BufferAllocator::new(host.clone(), SLAB);
    let (a, b) = (allocator.alloc(1).unwrap(), allocator.alloc(PAGE + 1).unwrap());
    assert_eq!((a.len(), b.len()), (1, PAGE + 1));
    assert_eq!(b.address(), a.address() + PAGE);
    assert_eq!(a.allocations(), b.allocations());
    assert_eq!(a.allocations()[0], host.address_range(b.address()).unwrap());
    assert_eq!(host.counts().descriptors, 1);

    a.write(0, &[7]).unwrap();
    let (address, clone) = (a.address(), a.clone());
    drop(a);
    assert_ne!(allocator.alloc(1).unwrap().address(), address, "a clone keeps the memory");
    drop(clone);
    let again = allocator.alloc(2 * PAGE).unwrap();
    assert_ne!(again.address(), address, "too large for the gap");
    let again = allocator.alloc(1).unwrap();
    assert_eq!(again.address(), address);
    assert!(is_zero(&again));
}

#[test]
fn large_requests_and_those_that_say_so_get_their_own() {
    let host = host();
    let allocator = BufferAllocator::new(host.clone(), SLAB);
    let half = allocator.alloc(SLAB / 2).unwrap();
    let large = allocator.alloc(SLAB / 2 + 1).unwrap();
    let small = allocator.alloc_own(1).unwrap();
    assert_eq!(host.counts().reservations, 3);
    assert_eq!(half.allocations()[0].size, SLAB);
    assert_eq!(large.allocations()[0].size, SLAB / 2 + PAGE);
    assert_eq!(small.allocations()[0].size, PAGE);
    drop((large, small));
    assert_eq!(host.counts().reservations, 1);
}

#[test]
fn segments_are_adjacent_allocations_of_one_buffer() {
    let host = host();
    let allocator = BufferAllocator::new(host.clone(), SLAB);
    let buffer = allocator.alloc_segments(&[PAGE, 2 * PAGE]).unwrap();
    assert_eq!(buffer.len(), 3 * PAGE);
    let [first, second] = buffer.allocations()[..] else { panic!("two allocations") };
    assert_eq!((first.base, first.size), (buffer.address(), PAGE));
    assert_eq!((second.base, second.size), (buffer.address() + PAGE, 2 * PAGE));
    assert_ne!(host.retain(first.base).unwrap(), host.retain(second.base).unwrap());
    // One copy over the seam.
    buffer.write(PAGE - 5, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    let mut bytes = [0; 4];
    buffer.read(PAGE - 2, &mut bytes).unwrap();
    assert_eq!(bytes, [4, 5, 6, 7]);
    for bad in [&[][..], &[0], &[PAGE, 1]] {
        let refused = allocator.alloc_segments(bad).unwrap_err();
        assert!(matches!(refused.problem, DeviceProblem::Argument { .. }));
    }
}

#[test]
fn one_empty_slab_is_kept_and_all_go_at_the_end() {
    let host = host();
    let allocator = BufferAllocator::new(host.clone(), SLAB);
    let buffers: Vec<_> = (0..6).map(|_| allocator.alloc(SLAB / 2).unwrap()).collect();
    assert_eq!(host.counts().handles, 3);
    drop(buffers);
    assert_eq!(host.counts().handles, 1);
    let last = allocator.alloc(PAGE).unwrap();
    assert_eq!(host.counts().handles, 1);
    drop(allocator);
    last.write(0, &[1]).unwrap();
    drop(last);
    assert_eq!(host.counts(), HostCounts::default());
}

#[test]
fn sizes_that_cannot_be_are_errors_with_figures() {
    let device = HostDriver::new(HostOptions::new().memory_bytes(SLAB as u64)).unwrap();
    let allocator = BufferAllocator::new(device, SLAB);
    let problem = |size| allocator.alloc(size).unwrap_err().problem;
    assert!(matches!(problem(0), DeviceProblem::Argument { .. }));
    let lack = |need| DeviceProblem::OutOfMemory { need, available: SLAB as u64 };
    assert_eq!(problem(usize::MAX), lack(u64::MAX));
    assert_eq!(problem(2 * SLAB), lack(2 * SLAB as u64));
    let huge = usize::MAX / 2 / PAGE * PAGE;
    assert!(matches!(
        allocator.alloc_segments(&[huge, huge, huge]).unwrap_err().problem,
        DeviceProblem::OutOfMemory { .. }
    ));
    allocator.alloc(1).unwrap();
}

#[test]
fn accesses_beyond_the_end_are_refused() {
    let allocator = BufferAllocator::new(host(), SLAB);
    let buffer = allocator.alloc(10).unwrap();
    let out = |what: &str, offset, len, size| Misuse::OutOfRange { what: what.to_owned(), offset, len, size };
    assert_eq!(buffer.write(8, &[0; 3]), Err(out("buffer", 8, 3, 10)));
    assert_eq!(buffer.read(usize::MAX, &mut [0]), Err(out("buffer", u64::MAX, 1, 10)));
    assert_eq!(buffer.slice(3..11).map(drop), Err(out("buffer", 3, 8, 10)));
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let reversed = buffer.slice(4..3);
    assert!(matches!(reversed, Err(Misuse::Other { .. })));

    let slice = buffer.slice(2..6).unwrap();
    assert_eq!((slice.len(), slice.offset(), slice.address()), (4, 2, buffer.address() + 2));
    assert_eq!(slice.write(2, &[0; 3]), Err(out("slice", 2, 3, 4)));
    slice.write(1, &[9]).unwrap();
    assert_eq!(BufferSlice::from(&buffer).len(), 10);
    drop(buffer);
    let mut byte = [0];
    slice.buffer().read(3, &mut byte).unwrap();
    assert_eq!(byte, [9], "a slice keeps its buffer");
}

#[test]
fn a_coarse_granularity_places_buffers_apart() {
    const MIB: usize = 1 << 20;
    let driver = HostDriver::new(HostOptions::new().granularity(2 * MIB)).unwrap();
    let allocator = BufferAllocator::new(driver, 8 * MIB);
    let (a, b) = (allocator.alloc(1).unwrap(), allocator.alloc(1).unwrap());
    assert_eq!(a.address() % (2 * MIB), 0);
    assert_eq!(b.address(), a.address() + 2 * MIB);
}

/// whichever call fails, nothing remains, and the next request is served.
#[test]
fn a_failure_at_any_step_leaves_nothing() {
    for call in [Call::Create, Call::Reserve, Call::Map, Call::SetAccess] {
        for nth in 1..=2 {
            let host = host();
            let faulty = Faulty::new(host.clone());
            let allocator = BufferAllocator::new(faulty.clone(), SLAB);
            faulty.fail(call, nth);
            let segments = allocator.alloc_segments(&[PAGE, PAGE]);
            let single = matches!(call, Call::Reserve | Call::SetAccess);
            assert_eq!(segments.is_err(), nth == 1 || !single, "{call} {nth}");
            drop(segments);
            assert_eq!(host.counts(), HostCounts::default(), "{call} {nth}");
            faulty.heal();
            allocator.alloc(1).unwrap();
            assert!(allocator.undo_failures().is_empty());
        }
    }
}

#[test]
fn a_failure_of_zeroing_gives_no_dirty_buffer() {
    let host = host();
    let faulty = Faulty::new(host.clone());
    let allocator = BufferAllocator::new(faulty.clone(), SLAB);
    for call in [Call::StreamCreate, Call::Fill, Call::Record, Call::Done] {
        let dirty = allocator.alloc(PAGE).unwrap();
        dirty.write(0, &[1; PAGE]).unwrap();
        drop(dirty);
        faulty.fail(call, 1);
        assert_eq!(allocator.alloc(PAGE).unwrap_err().call, call);
        assert!(is_zero(&allocator.alloc(PAGE).unwrap()));
    }
    drop(allocator);
    assert_eq!(host.counts(), HostCounts::default());
}

#[test]
fn failures_of_undoing_are_kept_and_the_rest_is_given_back() {
    let left = [
        (
            Call::Unmap,
            HostCounts { mappings: 1, reservations: 1, descriptors: 1, bytes: PAGE as u64, ..none() },
        ),
        (Call::Free, HostCounts { reservations: 1, ..none() }),
        (Call::Release, HostCounts { handles: 1, descriptors: 1, bytes: PAGE as u64, ..none() }),
    ];
    for (call, left) in left {
        let host = host();
        let faulty = Faulty::new(host.clone());
        let allocator = BufferAllocator::new(faulty.clone(), SLAB);
        let buffer = allocator.alloc_own(PAGE).unwrap();
        faulty.fail(call, 1);
        drop(buffer);
        let injected = DeviceError::new(call, DeviceProblem::Injected { nth: 1 });
        assert_eq!(allocator.undo_failures(), [injected]);
        assert_eq!(host.counts(), left, "{call}");
    }
}

fn none() -> HostCounts {
    HostCounts::default()
}

/// Memory which the host may not touch is not touched.
#[test]
fn without_host_access_copies_are_refused() {
    let info = DeviceInfo { host_access: false, ..host().info().clone() };
    let allocator = BufferAllocator::new(Arc::new(model::Closed { inner: host(), info }), SLAB);
    let buffer = allocator.alloc(8).unwrap();
    assert!(matches!(buffer.write(0, &[1]), Err(Misuse::Other { .. })));
    assert!(matches!(buffer.read(0, &mut [1]), Err(Misuse::Other { .. })));
}

#[test]
fn threads_get_buffers_apart() {
    let host = host();
    let allocator = BufferAllocator::new(host.clone(), SLAB);
    thread::scope(|scope| {
        for id in 1..=4_u8 {
            let allocator = allocator.clone();
            scope.spawn(move || {
                for round in 0..50 {
                    let buffer = allocator.alloc(PAGE * (1 + round % 3)).unwrap();
                    assert!(is_zero(&buffer));
                    buffer.write(0, &vec![id; buffer.len()]).unwrap();
                    let mut bytes = vec![0; buffer.len()];
                    buffer.read(0, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == id));
                }
            });
        }
    });
    assert!(host.counts().handles <= 1, "one empty slab at most");
    drop(allocator);
    assert_eq!(host.counts(), HostCounts::default());
}

/// What is in the memory of the live buffers, by their number.
type Live = BTreeMap<u32, Buffer>;
