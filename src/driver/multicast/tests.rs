#![allow(unsafe_code, reason = "objects are mapped and unmapped")]

use super::*;
use crate::driver::host::{HostCounts, HostDriver, HostOptions};

const PAGE: usize = 4096;

struct Team {
    host: Arc<HostDriver>,
    board: Arc<MulticastBoard>,
    devices: Vec<Arc<MulticastDriver>>,
}

fn team(devices: usize) -> Team {
    let host = HostDriver::new(HostOptions::new()).unwrap();
    let board = MulticastBoard::new();
    let device = |_| MulticastDriver::new(host.clone(), Arc::clone(&board));
    let devices = (0..devices).map(device).collect();
    Team { host, board, devices }
}

fn is_argument<T: std::fmt::Debug>(result: Result<T, DeviceError>, call: Call) -> bool {
    matches!(result, Err(DeviceError { call: c, problem: DeviceProblem::Argument { .. } }) if c == call)
}

fn map(device: &MulticastDriver, at: usize, size: usize, handle: Handle) -> Result<(), DeviceError> {
    // SAFETY: the devices check that the range is reserved and vacant.
    unsafe { device.map(at, size, 0, handle) }
}

fn unmap(device: &MulticastDriver, at: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: no one uses the addresses.
    unsafe { device.unmap(at, size) }
}

fn free(device: &MulticastDriver, base: usize, size: usize) -> Result<(), DeviceError> {
    // SAFETY: no one uses the addresses.
    unsafe { device.free(base, size) }
}

/// The order in which the flush goes, on two ranks, to the end.
#[test]
fn a_whole_life_leaves_nothing() {
    let Team { host, board, devices } = team(2);
    let (a, b) = (&devices[0], &devices[1]);
    assert!(a.info().multicast);
    assert_eq!((a.device(), b.device()), (0, 1));
    let object = a.multicast_create(4 * PAGE, 2).unwrap();
    let exported = a.export(object, HandleKind::Descriptor).unwrap();
    assert_eq!(b.import(&exported, 4 * PAGE).unwrap(), object);
    let mut ranks = Vec::new();
    for device in &devices {
        device.multicast_add_device(object).unwrap();
        let base = device.reserve(4 * PAGE, PAGE).unwrap();
        map(device, base, 4 * PAGE, object).unwrap();
        device.set_access(base, 4 * PAGE, &[0]).unwrap();
        ranks.push((device, base, device.create(PAGE).unwrap()));
    }
    for (device, _, memory) in &ranks {
        device.multicast_bind(object, 2 * PAGE, *memory, PAGE).unwrap();
    }
    assert_eq!(board.check_order(), Ok(()));
    let all = MulticastCounts { objects: 1, references: 2, bindings: 2, mappings: 2 };
    assert_eq!(board.counts(), all);
    for (device, base, memory) in ranks {
        device.multicast_unbind(object, 2 * PAGE, PAGE).unwrap();
        device.release(memory).unwrap();
        unmap(device, base, 4 * PAGE).unwrap();
        free(device, base, 4 * PAGE).unwrap();
        device.release(object).unwrap();
    }
    assert_eq!(board.counts(), MulticastCounts::default());
    assert_eq!(host.counts(), HostCounts::default());
    let of_b: Vec<_> = board.steps().iter().filter(|step| step.device == 1).map(|step| step.call).collect();
    let want = [
        Call::Import,
        Call::MulticastAddDevice,
        Call::Map,
        Call::SetAccess,
        Call::MulticastBind,
        Call::MulticastUnbind,
        Call::Unmap,
        Call::Release,
    ];
    assert_eq!(of_b, want);
}

#[test]
fn no_bind_before_all_devices_were_added() {
    let Team { board, devices, .. } = team(2);
    let (a, b) = (&devices[0], &devices[1]);
    let object = a.multicast_create(PAGE, 2).unwrap();
    let memory = a.create(PAGE).unwrap();
    a.multicast_add_device(object).unwrap();
    assert!(is_argument(a.multicast_add_device(object), Call::MulticastAddDevice), "added before");
    assert!(is_argument(a.multicast_bind(object, 0, memory, PAGE), Call::MulticastBind));
    let early = board.steps().pop().unwrap();
    assert!(early.refused);
    b.multicast_add_device(object).unwrap();
    a.multicast_bind(object, 0, memory, PAGE).unwrap();
    assert_eq!(board.check_order(), Err(early));
}

#[test]
fn no_device_too_many_and_none_that_was_not_added() {
    let Team { devices, .. } = team(2);
    let (a, b) = (&devices[0], &devices[1]);
    let object = a.multicast_create(PAGE, 1).unwrap();
    a.multicast_add_device(object).unwrap();
    assert!(is_argument(b.multicast_add_device(object), Call::MulticastAddDevice));
    let memory = b.create(PAGE).unwrap();
    assert!(is_argument(b.multicast_bind(object, 0, memory, PAGE), Call::MulticastBind));
    let base = b.reserve(PAGE, PAGE).unwrap();
    assert!(is_argument(map(b, base, PAGE, object), Call::Map));
    free(b, base, PAGE).unwrap();
    b.release(memory).unwrap();
}

#[test]
fn bindings_stay_within_the_object_and_apart() {
    let Team { board, devices, .. } = team(1);
    let a = &devices[0];
    let object = a.multicast_create(4 * PAGE, 1).unwrap();
    a.multicast_add_device(object).unwrap();
    let memory = a.create(2 * PAGE).unwrap();
    let bind = |at, size| a.multicast_bind(object, at, memory, size);
    bind(PAGE, 2 * PAGE).unwrap();
    for (at, size) in [(0, 2 * PAGE), (PAGE, PAGE), (2 * PAGE, 2 * PAGE), (4 * PAGE, PAGE), (0, 0), (0, 1)] {
        assert!(is_argument(bind(at, size), Call::MulticastBind), "{at} + {size}");
    }
    bind(0, PAGE).unwrap();
    let unbind = |at, size| a.multicast_unbind(object, at, size);
    assert!(is_argument(unbind(PAGE, PAGE), Call::MulticastUnbind), "another size");
    assert!(is_argument(unbind(3 * PAGE, PAGE), Call::MulticastUnbind), "nothing there");
    a.release(memory).unwrap();
    let gone = DeviceProblem::InvalidHandle { handle: memory.0 };
    assert_eq!(bind(3 * PAGE, PAGE), Err(DeviceError::new(Call::MulticastBind, gone)));

    assert!(is_argument(a.release(object), Call::Release), "still bound");
    unbind(PAGE, 2 * PAGE).unwrap();
    unbind(0, PAGE).unwrap();
    a.release(object).unwrap();
    let gone = DeviceProblem::InvalidHandle { handle: object.0 };
    assert_eq!(a.release(object), Err(DeviceError::new(Call::Release, gone)));
    assert_eq!(board.counts(), MulticastCounts::default());
}

#[test]
fn mappings_of_objects_and_of_memory_keep_apart() {
    let Team { host, board, devices } = team(1);
    let a = &devices[0];
    let object = a.multicast_create(2 * PAGE, 1).unwrap();
    a.multicast_add_device(object).unwrap();
    let memory = a.create(PAGE).unwrap();
    let base = a.reserve(4 * PAGE, PAGE).unwrap();
    assert!(is_argument(map(a, base + 3 * PAGE, 2 * PAGE, object), Call::Map), "beyond the reservation");
    map(a, base, 2 * PAGE, object).unwrap();
    assert!(is_argument(map(a, base + PAGE, PAGE, object), Call::Map), "over an object");
    assert!(is_argument(map(a, base + PAGE, PAGE, memory), Call::Map), "over an object");
    map(a, base + 2 * PAGE, PAGE, memory).unwrap();
    assert!(is_argument(a.set_access(base, 3 * PAGE, &[0]), Call::SetAccess), "mixed");
    assert!(is_argument(a.set_access(base, PAGE, &[0]), Call::SetAccess), "split");
    assert!(is_argument(unmap(a, base + PAGE, PAGE), Call::Unmap), "split");
    a.set_access(base, 2 * PAGE, &[0]).unwrap();
    a.set_access(base + 2 * PAGE, PAGE, &[0]).unwrap();
    assert_eq!(a.address_range(base + PAGE), Ok(AddressRange { base, size: 2 * PAGE }));

    let stream = a.stream_create().unwrap();
    // SAFETY: a write to an object is refused.
    let written = unsafe { a.copy(stream, base + 8, &[1]) };
    assert!(matches!(written, Err(DeviceError { problem: DeviceProblem::Unsupported { .. }, .. })));
    // SAFETY: the page of memory is mapped with access.
    unsafe { a.fill(stream, base + 2 * PAGE, 1, 8) }.unwrap();
    a.stream_destroy(stream).unwrap();

    // A mapping holds its object; the free gives it up.
    a.release(object).unwrap();
    assert_eq!(a.retain(base), Ok(object));
    a.release(object).unwrap();
    a.release(memory).unwrap();
    free(a, base, 4 * PAGE).unwrap();
    assert_eq!(board.counts(), MulticastCounts::default());
    assert_eq!(host.counts(), HostCounts::default());
}

#[test]
fn exported_objects_mean_nothing_on_another_board() {
    let (here, there) = (team(1), team(1));
    let object = here.devices[0].multicast_create(PAGE, 1).unwrap();
    let exported = here.devices[0].export(object, HandleKind::Descriptor).unwrap();
    assert!(is_argument(there.devices[0].import(&exported, PAGE), Call::Import));
    assert!(is_argument(here.devices[0].import(&exported, 2 * PAGE), Call::Import));
    // Memory still goes by descriptor.
    let memory = here.devices[0].create(PAGE).unwrap();
    let exported = here.devices[0].export(memory, HandleKind::Descriptor).unwrap();
    assert!(there.devices[0].import(&exported, PAGE).is_ok());
}
