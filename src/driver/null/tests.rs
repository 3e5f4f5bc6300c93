#![allow(unsafe_code, reason = "ranges are mapped and unmapped")]

use super::*;
use crate::driver::buffers::BufferAllocator;
use crate::driver::multicast::{MulticastBoard, MulticastCounts, MulticastDriver};
use crate::error::Misuse;

mod model;

const PAGE: usize = 4096;

fn small() -> NullOptions {
    NullOptions::new().granularity(PAGE)
}

fn driver() -> Arc<NullDriver> {
    NullDriver::new(small()).unwrap()
}

fn on(fabric: &Arc<NullFabric>) -> Arc<NullDriver> {
    NullDriver::new(small().fabric(Arc::clone(fabric))).unwrap()
}

fn map(driver: &dyn Driver, at: usize, size: usize, handle: Handle) -> Result<(), DeviceError> {
    // SAFETY: the null device checks that the range is its own and vacant.
    unsafe { driver.map(at, size, 0, handle) }
}

fn unmap(driver: &dyn Driver, at: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: there is nothing to use at these addresses.
    unsafe { driver.unmap(at, size) }
}

fn free(driver: &dyn Driver, base: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: there is nothing to use at these addresses.
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
fn it_says_what_it_is() {
    let info = NullDriver::new(NullOptions::new()).unwrap().info().clone();
    assert_eq!((info.name.as_str(), info.backend.as_str()), ("null", "null"));
    assert_eq!((info.memory_bytes, info.granularity), (16 << 30, 2 << 20));
    assert_eq!(info.handle_kind, HandleKind::Fabric);
    assert!(!info.host_access && !info.multicast);
    for bad in [0, 1, PAGE / 2, 3 * PAGE] {
        assert!(is_argument(NullDriver::new(NullOptions::new().granularity(bad)), Call::Create));
    }
}

#[test]
fn a_mapping_holds_the_memory_and_retain_brings_the_same_handle_back() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let base = place(&*driver, PAGE, handle);
    driver.release(handle).unwrap();
    assert_eq!(driver.release(handle), Err(invalid(Call::Release, handle)));
    assert_eq!(driver.counts().bytes, PAGE as u64);
    assert_eq!(driver.retain(base + 17), Ok(handle));
    assert_eq!(driver.address_range(base + 17), Ok(AddressRange { base, size: PAGE }));
    driver.export(handle, HandleKind::Fabric).unwrap();
    driver.release(handle).unwrap();

    unmap(&*driver, base, PAGE).unwrap();
    let address = base as u64;
    let foreign = |call| DeviceError::new(call, DeviceProblem::ForeignAddress { address });
    assert_eq!(driver.retain(base), Err(foreign(Call::Retain)));
    assert_eq!(driver.address_range(base), Err(foreign(Call::AddressRange)));
    assert_eq!(driver.counts(), NullCounts { reservations: 1, ..NullCounts::default() });
    free(&*driver, base, PAGE).unwrap();
    assert!(driver.counts().is_empty());
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
    assert_eq!(driver.export(old, HandleKind::Fabric).map(drop), Err(invalid(Call::Export, old)));
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

    assert!(is_argument(unmap(&*driver, base, 2 * PAGE), Call::Unmap), "a split");
    assert!(is_argument(unmap(&*driver, base + 3 * PAGE, PAGE), Call::Unmap), "nothing there");
    assert!(is_argument(unmap(&*driver, base, 6 * PAGE), Call::Unmap), "beyond the reservation");
    unmap(&*driver, base, 5 * PAGE).unwrap();
    assert_eq!(driver.counts().mappings, 0);
    // The addresses are vacant, and still reserved; access went with the mapping.
    map(&*driver, base + PAGE, 2 * PAGE, two).unwrap();
    let stream = driver.stream_create().unwrap();
    // SAFETY: the null device touches nothing.
    assert!(is_argument(unsafe { driver.fill(stream, base + PAGE, 0, 1) }, Call::Fill));
    driver.stream_destroy(stream).unwrap();
    free(&*driver, base, 5 * PAGE).unwrap();
    driver.release(one).unwrap();
    driver.release(two).unwrap();
    assert!(driver.counts().is_empty());
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
    // SAFETY: the range is vacant and in a reservation.
    let beyond = unsafe { driver.map(base + 3 * PAGE, PAGE, 2 * PAGE, handle) };
    assert!(is_argument(beyond, Call::Map), "beyond the memory");
    // SAFETY: as above.
    unsafe { driver.map(base + 3 * PAGE, PAGE, PAGE, handle) }.unwrap();
    assert!(is_argument(free(&*driver, base, PAGE), Call::Free), "part of a reservation");
    assert!(is_argument(free(&*driver, base + PAGE, 3 * PAGE), Call::Free), "part of a reservation");
    free(&*driver, base, 4 * PAGE).unwrap();
    assert!(is_argument(map(&*driver, base, PAGE, handle), Call::Map), "freed");
    assert!(is_argument(free(&*driver, base, 4 * PAGE), Call::Free), "freed");
    driver.release(handle).unwrap();
    assert!(driver.counts().is_empty());
}

#[test]
fn addresses_are_the_same_on_every_run_and_no_devices_twice() {
    let fabric = NullFabric::new();
    let (first, second) = (on(&fabric), on(&fabric));
    let base = first.reserve(PAGE, 1).unwrap();
    assert_eq!(base, 1 << 48);
    assert_eq!(second.reserve(PAGE, 1), Ok(base + (1 << 47)));
    assert_eq!(first.reserve(PAGE, 1), Ok(base + 2 * PAGE), "a granule is left between");
    assert_eq!(first.reserve(PAGE, 1 << 30), Ok(base + (1 << 30)));
    free(&*first, base, PAGE).unwrap();
    assert_eq!(first.reserve(PAGE, 1), Ok(base + (1 << 30) + 2 * PAGE), "freed ones come last");
    assert!(is_argument(first.reserve(PAGE, 3 * PAGE), Call::Reserve));
    assert!(is_argument(first.reserve(0, PAGE), Call::Reserve));
    assert!(is_argument(first.reserve(PAGE / 2, PAGE), Call::Reserve));
}

#[test]
fn a_large_flat_range_fits_and_lack_of_addresses_is_an_error() {
    let driver = NullDriver::new(NullOptions::new()).unwrap();
    let lack = Err(DeviceError::os(Call::Reserve, rustix::io::Errno::NOMEM));
    assert_eq!(driver.reserve(1 << 47, 1), lack, "there is no room for the granule after it");
    assert_eq!(driver.reserve(0_usize.wrapping_sub(2 << 20), 1), lack);
    let stride = 16 << 30;
    let flat = driver.reserve(4096 * stride, 512 << 20).unwrap();
    let other = driver.reserve(4095 * stride, 512 << 20).unwrap();
    assert_eq!(driver.reserve(stride, 1), lack);
    free(&*driver, flat, 4096 * stride).unwrap();
    assert_eq!(driver.reserve(4096 * stride, 1), Ok(flat));
    free(&*driver, flat, 4096 * stride).unwrap();
    free(&*driver, other, 4095 * stride).unwrap();
    assert!(driver.counts().is_empty());
}

#[test]
fn lack_of_memory_says_what_was_asked_and_what_there_is() {
    let driver = NullDriver::new(small().memory_bytes(3 * PAGE as u64)).unwrap();
    let handle = driver.create(2 * PAGE).unwrap();
    let lack = DeviceProblem::OutOfMemory { need: 2 * PAGE as u64, available: PAGE as u64 };
    assert_eq!(driver.create(2 * PAGE), Err(DeviceError::new(Call::Create, lack)));
    assert_eq!(driver.counts().bytes, 2 * PAGE as u64);
    driver.release(handle).unwrap();
    driver.release(driver.create(3 * PAGE).unwrap()).unwrap();
    assert!(is_argument(driver.create(0), Call::Create));
    assert!(is_argument(driver.create(PAGE + 1), Call::Create));
    assert!(driver.counts().is_empty());
}

#[test]
fn an_import_holds_the_memory_and_what_let_go_cannot_be_imported() {
    let fabric = NullFabric::new();
    let (mine, yours, third) = (on(&fabric), on(&fabric), on(&fabric));
    let handle = mine.create(PAGE).unwrap();
    let exported = mine.export(handle, HandleKind::Fabric).unwrap();
    let (first, second) = (yours.import(&exported, PAGE).unwrap(), yours.import(&exported, 1).unwrap());
    assert_ne!(first, second);
    let own = mine.import(&exported, PAGE).unwrap();
    assert_ne!(own, handle);
    mine.release(own).unwrap();
    assert_eq!(fabric.allocations(), 1);
    assert_eq!(yours.counts(), NullCounts { handles: 2, ..NullCounts::default() });

    // A mapping keeps the exporter's memory alive as well as a handle.
    let base = place(&*mine, PAGE, handle);
    mine.release(handle).unwrap();
    third.release(third.import(&exported, PAGE).unwrap()).unwrap();
    free(&*mine, base, PAGE).unwrap();
    // P-6: the exporter's handle lives until all have imported.
    assert_eq!(third.import(&exported, PAGE), Err(invalid(Call::Import, handle)));
    // The slot is another's now.
    let other = mine.create(PAGE).unwrap();
    assert_eq!(third.import(&exported, PAGE), Err(invalid(Call::Import, handle)));
    mine.release(other).unwrap();

    assert_eq!(mine.counts(), NullCounts { bytes: PAGE as u64, ..NullCounts::default() }, "held by `yours`");
    let again = yours.export(second, HandleKind::Fabric).unwrap();
    let place = place(&*yours, PAGE, first);
    yours.release(first).unwrap();
    assert_eq!(third.import(&again, PAGE).map(|handle| third.release(handle)), Ok(Ok(())));
    free(&*yours, place, PAGE).unwrap();
    yours.release(second).unwrap();
    assert_eq!(fabric.allocations(), 0);
    for driver in [mine, yours, third] {
        assert!(driver.counts().is_empty());
    }
}

#[test]
fn only_whole_exports_of_the_announced_size_are_imported() {
    let fabric = NullFabric::new();
    let (mine, yours) = (on(&fabric), on(&fabric));
    let handle = mine.create(PAGE).unwrap();
    let Exported::Fabric(bytes) = mine.export(handle, HandleKind::Fabric).unwrap() else {
        panic!("no fabric handle")
    };
    let import = |bytes| yours.import(&Exported::Fabric(bytes), PAGE);
    assert!(is_argument(yours.import(&Exported::Fabric(bytes), PAGE + 1), Call::Import), "too small");
    assert!(is_argument(import([0; 64]), Call::Import));
    for at in 0..64 {
        let mut broken = bytes;
        broken[at] ^= 1;
        assert!(is_argument(import(broken), Call::Import), "byte {at}");
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let descriptor = Exported::Descriptor(Arc::new(file.into()));
    assert!(is_argument(yours.import(&descriptor, 0), Call::Import));
    let alone = driver();
    let exported = alone.export(alone.create(PAGE).unwrap(), HandleKind::Fabric).unwrap();
    assert!(is_argument(yours.import(&exported, PAGE), Call::Import), "on no fabric");
    assert_eq!(fabric.allocations(), 1);
}

#[test]
fn a_dropped_device_lets_go_of_its_memory() {
    let fabric = NullFabric::new();
    let (mine, yours) = (on(&fabric), on(&fabric));
    let handle = mine.create(PAGE).unwrap();
    place(&*mine, PAGE, mine.create(PAGE).unwrap());
    let imported = yours.import(&mine.export(handle, HandleKind::Fabric).unwrap(), PAGE).unwrap();
    drop(mine);
    assert_eq!(fabric.allocations(), 1);
    yours.release(imported).unwrap();
    assert_eq!(fabric.allocations(), 0);
}

#[test]
fn copies_and_fills_are_checked_and_their_events_have_passed() {
    let driver = driver();
    let handle = driver.create(PAGE).unwrap();
    let base = driver.reserve(2 * PAGE, PAGE).unwrap();
    map(&*driver, base, PAGE, handle).unwrap();
    let stream = driver.stream_create().unwrap();
    // SAFETY: the null device touches nothing.
    let copy = |stream, to, bytes: &[u8]| unsafe { driver.copy(stream, to, bytes) };
    assert!(is_argument(copy(stream, base, &[1; 16]), Call::Copy), "no access yet");
    driver.set_access(base, PAGE, &[0]).unwrap();
    copy(stream, base + 3, &[1, 2]).unwrap();
    assert!(is_argument(copy(stream, base + PAGE - 8, &[0; 16]), Call::Copy), "beyond the mapping");
    assert!(is_argument(copy(stream, usize::MAX, &[0; 16]), Call::Copy), "beyond all addresses");
    let here = &raw const copy;
    assert!(is_argument(copy(stream, here.addr(), &[0]), Call::Copy), "an address of the process");

    let event = driver.record(stream).unwrap();
    let unasked = driver.record(stream).unwrap();
    assert_eq!(driver.done(event), Ok(true));
    assert_eq!(driver.done(event), Err(invalid(Call::Done, Handle(event.0))));
    driver.stream_destroy(stream).unwrap();
    // It outlives its stream.
    assert_eq!(driver.done(unasked), Ok(true));
    assert_eq!(driver.record(stream), Err(invalid(Call::Record, Handle(stream.0))));
    assert_eq!(driver.stream_destroy(stream), Err(invalid(Call::StreamDestroy, Handle(stream.0))));
    assert_eq!(copy(stream, base, &[1]), Err(invalid(Call::Copy, Handle(stream.0))));
    free(&*driver, base, 2 * PAGE).unwrap();
    driver.release(handle).unwrap();
    assert!(driver.counts().is_empty());
}

#[test]
fn buffers_are_carved_and_zeroed_by_the_device() {
    let driver = driver();
    let allocator = BufferAllocator::new(driver.clone(), 1 << 20);
    let first = allocator.alloc(3 * PAGE).unwrap();
    let (address, held) = (first.address(), driver.counts());
    assert!(matches!(first.write(0, &[1]), Err(Misuse::Other { .. })));
    assert!(matches!(first.read(0, &mut [0]), Err(Misuse::Other { .. })));
    drop(first);
    let again = allocator.alloc(PAGE).unwrap();
    assert_eq!(again.address(), address);
    assert_eq!(driver.counts(), NullCounts { streams: 1, ..held }, "used space was filled with zeroes");
    let large = allocator.alloc_segments(&[PAGE, 2 * PAGE]).unwrap();
    assert_eq!(large.allocations().len(), 2);
    assert_eq!(allocator.undo_failures(), []);
    drop((again, large, allocator));
    assert!(driver.counts().is_empty());
}

/// Two processes of one world: their addresses are apart, as the board asks of devices of one process.
#[test]
fn multicast_goes_over_null_devices() {
    let (fabric, board) = (NullFabric::new(), MulticastBoard::new());
    let nulls = [on(&fabric), on(&fabric)];
    let devices = nulls.clone().map(|null| MulticastDriver::new(null, Arc::clone(&board)));
    let object = devices[0].multicast_create(2 * PAGE, 2).unwrap();
    let exported = devices[0].export(object, HandleKind::Fabric).unwrap();
    assert_eq!(devices[1].import(&exported, 2 * PAGE), Ok(object));
    let memory = devices[0].create(PAGE).unwrap();
    let imported = devices[1].import(&devices[0].export(memory, HandleKind::Fabric).unwrap(), PAGE).unwrap();
    let memories = [memory, imported];
    let mut bases = Vec::new();
    for (device, memory) in devices.iter().zip(memories) {
        device.multicast_add_device(object).unwrap();
        let base = device.reserve(3 * PAGE, PAGE).unwrap();
        map(&**device, base, 2 * PAGE, object).unwrap();
        device.set_access(base, 2 * PAGE, &[0]).unwrap();
        map(&**device, base + 2 * PAGE, PAGE, memory).unwrap();
        device.set_access(base + 2 * PAGE, PAGE, &[0]).unwrap();
        bases.push(base);
    }
    for ((device, memory), base) in devices.iter().zip(memories).zip(bases) {
        device.multicast_bind(object, 0, memory, PAGE).unwrap();
        device.multicast_unbind(object, 0, PAGE).unwrap();
        free(&**device, base, 3 * PAGE).unwrap();
        device.release(memory).unwrap();
        device.release(object).unwrap();
    }
    assert_eq!(board.check_order(), Ok(()));
    assert_eq!(board.counts(), MulticastCounts::default());
    assert!(nulls.iter().all(|null| null.counts().is_empty()));
    assert_eq!(fabric.allocations(), 0);
}
