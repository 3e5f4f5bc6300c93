#![allow(unsafe_code, reason = "what is mapped is loaded and stored")]

use std::fs::File;
use std::io::Write;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const PAGE: usize = 4096;

fn driver() -> Arc<HostDriver> {
    HostDriver::new(HostOptions::new()).unwrap()
}

fn word(address: usize) -> &'static AtomicU64 {
    // SAFETY: the tests ask for words that are mapped with access and that only these atomics touch.
    unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) }
}

fn map(driver: &dyn Driver, at: usize, size: usize, handle: Handle) -> Result<(), DeviceError> {
    // SAFETY: the host device checks that the range is its own and vacant.
    unsafe { driver.map(at, size, 0, handle) }
}

fn unmap(driver: &dyn Driver, at: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: the tests keep no reference into what they unmap.
    unsafe { driver.unmap(at, size) }
}

fn free(driver: &dyn Driver, base: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: the tests keep no reference into what they free.
    unsafe { driver.free(base, size) }
}

/// A reservation that holds one mapping of the memory, with access.
fn place(driver: &dyn Driver, size: usize, handle: Handle) -> usize {
    let base = driver.reserve(size, PAGE).unwrap();
    map(driver, base, size, handle).unwrap();
    driver.set_access(base, size, &[0]).unwrap();
    base
}

fn is_argument<T: std::fmt::Debug>(result: Result<T, DeviceError>, call: Call) -> bool {
    matches!(result, Err(DeviceError { call: c, problem: DeviceProblem::Argument { .. } }) if c == call)
}

fn invalid(call: Call, handle: Handle) -> DeviceError {
    DeviceError::new(call, DeviceProblem::InvalidHandle { handle: handle.0 })
}

#[test]
fn two_mappings_of_one_memory_see_each_others_writes() {
    let driver = driver();
    let handle = driver.create(2 * PAGE).unwrap();
    let (a, b) = (place(&*driver, 2 * PAGE, handle), place(&*driver, 2 * PAGE, handle));
    assert_eq!(word(a + PAGE).load(Ordering::Relaxed), 0);
    word(a + PAGE).store(7, Ordering::Relaxed);
    assert_eq!(word(b + PAGE).load(Ordering::Relaxed), 7);
    for base in [a, b] {
        free(&*driver, base, 2 * PAGE).unwrap();
    }
    driver.release(handle).unwrap();
    assert_eq!(driver.counts(), HostCounts::default());
}

#[test]
fn an_exported_descriptor_reaches_the_same_memory_and_costs_nothing_twice() {
    let (mine, yours) = (driver(), driver());
    let handle = mine.create(PAGE).unwrap();
    let exported = mine.export(handle, HandleKind::Descriptor).unwrap();
    let again = mine.export(handle, HandleKind::Descriptor).unwrap();
    assert_eq!(mine.counts().descriptors, 1);
    let (first, second) = (yours.import(&exported, PAGE).unwrap(), yours.import(&again, PAGE).unwrap());
    assert_ne!(first, second);
    let (a, b) = (place(&*mine, PAGE, handle), place(&*yours, PAGE, first));
    word(b).store(9, Ordering::Relaxed);
    assert_eq!(word(a).load(Ordering::Relaxed), 9);
    assert_eq!(yours.counts().bytes, 0);

    mine.release(handle).unwrap();
    free(&*mine, a, PAGE).unwrap();
    // What was exported keeps the descriptor, and the count says so.
    assert_eq!(mine.counts(), HostCounts { descriptors: 1, ..HostCounts::default() });
    free(&*yours, b, PAGE).unwrap();
    yours.release(first).unwrap();
    yours.release(second).unwrap();
    drop((exported, again));
    assert_eq!(mine.counts(), HostCounts::default());
    assert_eq!(yours.counts(), HostCounts::default());
}

#[test]
fn only_sealed_memory_of_the_announced_size_is_imported() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let exported = driver.export(handle, HandleKind::Descriptor).unwrap();
    assert!(is_argument(driver.import(&exported, PAGE + 1), Call::Import));
    assert!(is_argument(driver.import(&Exported::Fabric([0; 64]), 0), Call::Import));

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0; PAGE]).unwrap();
    let import = |fd: OwnedFd| driver.import(&Exported::Descriptor(Arc::new(fd)), PAGE);
    assert!(is_argument(import(file.into()), Call::Import));
    assert!(is_argument(import(File::open("/dev/null").unwrap().into()), Call::Import));

    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create(c"test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, PAGE as u64).unwrap();
    assert!(is_argument(import(unsealed), Call::Import));
    driver.release(handle).unwrap();
}

#[test]
fn memory_that_may_only_be_read_is_not_mapped() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let Exported::Descriptor(fd) = driver.export(handle, HandleKind::Descriptor).unwrap() else {
        panic!("no descriptor")
    };
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*fd));
    let reading = Exported::Descriptor(Arc::new(File::open(path).unwrap().into()));
    let imported = driver.import(&reading, PAGE).unwrap();
    let base = driver.reserve(PAGE, PAGE).unwrap();
    // SAFETY: the range was reserved right here, and nobody uses it.
    assert!(is_argument(unsafe { driver.map(base, PAGE, 0, imported) }, Call::Map));
    // SAFETY: as above.
    unsafe { driver.free(base, PAGE) }.unwrap();
    driver.release(imported).unwrap();
    driver.release(handle).unwrap();
    drop((fd, reading));
    assert_eq!(driver.counts(), HostCounts::default());
}

#[test]
fn the_memory_cannot_shrink_under_a_mapping() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let Exported::Descriptor(fd) = driver.export(handle, HandleKind::Descriptor).unwrap() else {
        panic!("no descriptor")
    };
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fd, 2 * PAGE as u64), Err(rustix::io::Errno::PERM));
    driver.release(handle).unwrap();
}

#[test]
fn a_mapping_holds_the_memory_and_retain_brings_the_same_handle_back() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let base = place(&*driver, PAGE, handle);
    driver.release(handle).unwrap();
    assert_eq!(driver.release(handle), Err(invalid(Call::Release, handle)));
    assert_eq!(driver.counts().descriptors, 1);
    assert_eq!(driver.retain(base + 17), Ok(handle));
    assert_eq!(driver.address_range(base + 17), Ok(AddressRange { base, size: PAGE }));
    driver.export(handle, HandleKind::Descriptor).unwrap();
    driver.release(handle).unwrap();

    unmap(&*driver, base, PAGE).unwrap();
    let address = base as u64;
    let foreign = |call| DeviceError::new(call, DeviceProblem::ForeignAddress { address });
    assert_eq!(driver.retain(base), Err(foreign(Call::Retain)));
    assert_eq!(driver.address_range(base), Err(foreign(Call::AddressRange)));
    assert_eq!(driver.counts(), HostCounts { reservations: 1, ..HostCounts::default() });
    free(&*driver, base, PAGE).unwrap();
}

#[test]
fn a_released_handle_is_never_anothers_memory() {
    let driver = driver();
    let old = driver.create(PAGE).unwrap();
    driver.release(old).unwrap();
    let new = driver.create(PAGE).unwrap();
    assert_eq!(old.0 & 0xffff_ffff, new.0 & 0xffff_ffff, "the slot is used again");
    let base = driver.reserve(PAGE, PAGE).unwrap();
    assert_eq!(driver.release(old), Err(invalid(Call::Release, old)));
    assert_eq!(driver.export(old, HandleKind::Descriptor).map(drop), Err(invalid(Call::Export, old)));
    assert_eq!(map(&*driver, base, PAGE, old), Err(invalid(Call::Map, old)));
    assert_eq!(map(&*driver, base, PAGE, Handle(u64::MAX)), Err(invalid(Call::Map, Handle(u64::MAX))));
    driver.release(new).unwrap();
    free(&*driver, base, PAGE).unwrap();
}

#[test]
fn access_spans_mappings_in_one_call_but_no_hole() {
    let driver = driver();
    let (one, two) = (driver.create(PAGE).unwrap(), driver.create(2 * PAGE).unwrap());
    let base = driver.reserve(5 * PAGE, PAGE).unwrap();
    map(&*driver, base, PAGE, one).unwrap();
    map(&*driver, base + PAGE, 2 * PAGE, two).unwrap();
    map(&*driver, base + 4 * PAGE, PAGE, one).unwrap();
    assert!(is_argument(driver.set_access(base, 5 * PAGE, &[0]), Call::SetAccess), "a hole");
    assert!(is_argument(driver.set_access(base, 2 * PAGE, &[0]), Call::SetAccess), "a split at the end");
    assert!(
        is_argument(driver.set_access(base + 2 * PAGE, PAGE, &[0]), Call::SetAccess),
        "a split at the start"
    );
    assert!(is_argument(driver.set_access(base, PAGE / 2, &[0]), Call::SetAccess), "no multiple");
    driver.set_access(base, 3 * PAGE, &[0]).unwrap();
    driver.set_access(base + 4 * PAGE, PAGE, &[0]).unwrap();
    word(base + 3 * PAGE - 8).store(5, Ordering::Relaxed);
    word(base).store(6, Ordering::Relaxed);
    assert_eq!(word(base + 4 * PAGE).load(Ordering::Relaxed), 6);

    assert!(is_argument(unmap(&*driver, base, 2 * PAGE), Call::Unmap), "a split");
    assert!(is_argument(unmap(&*driver, base + 3 * PAGE, PAGE), Call::Unmap), "nothing there");
    assert!(is_argument(unmap(&*driver, base, 6 * PAGE), Call::Unmap), "beyond the reservation");
    unmap(&*driver, base, 5 * PAGE).unwrap();
    assert_eq!(driver.counts().mappings, 0);
    // The addresses are vacant, and still reserved.
    map(&*driver, base + PAGE, 2 * PAGE, two).unwrap();
    free(&*driver, base, 5 * PAGE).unwrap();
    driver.release(one).unwrap();
    driver.release(two).unwrap();
    assert_eq!(driver.counts(), HostCounts::default());
}

#[test]
fn mapping_outside_a_reservation_or_over_another_mapping_is_refused() {
    let driver = driver();
    let handle = driver.create(2 * PAGE).unwrap();
    let base = driver.reserve(4 * PAGE, PAGE).unwrap();
    map(&*driver, base + PAGE, 2 * PAGE, handle).unwrap();
    for at in [base, base + PAGE, base + 2 * PAGE] {
        assert!(is_argument(map(&*driver, at, 2 * PAGE, handle), Call::Map), "over another");
    }
    assert!(is_argument(map(&*driver, base + 3 * PAGE, 2 * PAGE, handle), Call::Map), "beyond the end");
    assert!(is_argument(map(&*driver, base + 3 * PAGE, 0, handle), Call::Map), "nothing");
    assert!(is_argument(map(&*driver, base + 17, PAGE, handle), Call::Map), "no multiple");
    let foreign = driver.reserve(PAGE, PAGE).unwrap();
    free(&*driver, foreign, PAGE).unwrap();
    assert!(is_argument(map(&*driver, foreign, PAGE, handle), Call::Map), "not reserved");
    // SAFETY: the range is vacant and in a reservation.
    let beyond = unsafe { driver.map(base + 3 * PAGE, PAGE, 2 * PAGE, handle) };
    assert!(is_argument(beyond, Call::Map), "beyond the memory");
    // SAFETY: as above.
    unsafe { driver.map(base + 3 * PAGE, PAGE, PAGE, handle) }.unwrap();
    assert!(is_argument(free(&*driver, base, PAGE), Call::Free), "part of a reservation");
    assert!(is_argument(free(&*driver, base + PAGE, 3 * PAGE), Call::Free), "part of a reservation");
    free(&*driver, base, 4 * PAGE).unwrap();
    driver.release(handle).unwrap();
    assert_eq!(driver.counts(), HostCounts::default());
}

#[test]
fn reservations_are_aligned() {
    let driver = driver();
    let align = 1 << 30;
    let base = driver.reserve(PAGE, align).unwrap();
    assert_eq!(base % align, 0);
    free(&*driver, base, PAGE).unwrap();
    assert!(is_argument(driver.reserve(PAGE, 3 * PAGE), Call::Reserve));
    assert!(is_argument(driver.reserve(0, PAGE), Call::Reserve));
    let huge = driver.reserve(usize::MAX - PAGE + 1, PAGE);
    let errno = rustix::io::Errno::NOMEM.raw_os_error();
    assert_eq!(huge, Err(DeviceError::new(Call::Reserve, DeviceProblem::Os { errno })));
}

#[test]
fn a_coarse_granularity_is_imitated() {
    const MIB: usize = 1 << 20;
    let driver = HostDriver::new(HostOptions::new().granularity(2 * MIB)).unwrap();
    assert_eq!(driver.info().granularity, 2 * MIB as u64);
    assert!(is_argument(driver.create(MIB), Call::Create));
    assert!(is_argument(driver.create(0), Call::Create));
    let handle = driver.create(2 * MIB).unwrap();
    let base = driver.reserve(4 * MIB, 1).unwrap();
    assert_eq!(base % (2 * MIB), 0);
    assert!(is_argument(map(&*driver, base + MIB, 2 * MIB, handle), Call::Map));
    map(&*driver, base, 2 * MIB, handle).unwrap();
    free(&*driver, base, 4 * MIB).unwrap();
    driver.release(handle).unwrap();
    for bad in [0, 1, PAGE / 2, 3 * PAGE] {
        assert!(is_argument(HostDriver::new(HostOptions::new().granularity(bad)), Call::Create));
    }
}

#[test]
fn lack_of_memory_says_what_was_asked_and_what_there_is() {
    let small = HostDriver::new(HostOptions::new().memory_bytes(3 * PAGE as u64)).unwrap();
    assert_eq!(small.info().memory_bytes, 3 * PAGE as u64);
    let handle = small.create(2 * PAGE).unwrap();
    let lack = |need, available| {
        let (need, available) = (need as u64, available as u64);
        DeviceError::new(Call::Create, DeviceProblem::OutOfMemory { need, available })
    };
    assert_eq!(small.create(2 * PAGE), Err(lack(2 * PAGE, PAGE)));
    assert_eq!(small.counts().bytes, 2 * PAGE as u64);
    small.release(handle).unwrap();
    let handle = small.create(3 * PAGE).unwrap();
    small.release(handle).unwrap();

    // More than the machine has, on a device that claims to have it.
    let large = HostDriver::new(HostOptions::new().memory_bytes(u64::MAX)).unwrap();
    let need = usize::MAX / PAGE / 2 * PAGE;
    match large.create(need) {
        Err(DeviceError { problem: DeviceProblem::OutOfMemory { need: n, available }, .. }) => {
            assert_eq!(n, need as u64);
            assert!(available < n);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(large.counts(), HostCounts::default());
}

#[test]
fn copies_and_fills_run_at_once_and_their_events_have_passed() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let base = driver.reserve(2 * PAGE, PAGE).unwrap();
    map(&*driver, base, PAGE, handle).unwrap();
    let stream = driver.stream_create().unwrap();
    // SAFETY: no access is needed to be refused.
    let early = unsafe { driver.copy(stream, base, &[1; 16]) };
    assert!(is_argument(early, Call::Copy), "no access yet");
    driver.set_access(base, PAGE, &[0]).unwrap();
    // SAFETY: the page is mapped with access.
    unsafe { driver.fill(stream, base, 0xff, 16) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.copy(stream, base + 3, &[1, 2]) }.unwrap();
    assert_eq!(word(base).load(Ordering::Acquire).to_ne_bytes(), [255, 255, 255, 1, 2, 255, 255, 255]);
    // SAFETY: the range is refused as it passes the end of the mapping.
    let beyond = unsafe { driver.fill(stream, base + PAGE - 8, 0, 16) };
    assert!(is_argument(beyond, Call::Fill), "beyond the mapping");

    let event = driver.record(stream).unwrap();
    let unasked = driver.record(stream).unwrap();
    assert_eq!(driver.done(event), Ok(true));
    assert_eq!(driver.done(event), Err(invalid(Call::Done, Handle(event.0))));
    driver.stream_destroy(stream).unwrap();
    // It outlives its stream.
    assert_eq!(driver.done(unasked), Ok(true));
    assert_eq!(driver.record(stream), Err(invalid(Call::Record, Handle(stream.0))));
    assert_eq!(driver.stream_destroy(stream), Err(invalid(Call::StreamDestroy, Handle(stream.0))));
    // SAFETY: the page is mapped with access.
    let gone = unsafe { driver.copy(stream, base, &[1]) };
    assert_eq!(gone, Err(invalid(Call::Copy, Handle(stream.0))));
    free(&*driver, base, 2 * PAGE).unwrap();
    driver.release(handle).unwrap();
    assert_eq!(driver.counts(), HostCounts::default());
}

#[test]
fn multicast_is_a_typed_absence() {
    let driver = driver();
    assert!(!driver.info().multicast);
    let made = driver.multicast_create(PAGE, 2);
    assert!(matches!(made, Err(DeviceError { problem: DeviceProblem::Unsupported { .. }, .. })));
}
