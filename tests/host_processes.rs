//! Memory of the host device in two processes: the test starts itself again, with the descriptor as its
//! standard input. Alone in its file: it also looks at the process's map of addresses.
#![allow(unsafe_code, reason = "what the test maps, it touches")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use symwin::driver::host::{HostDriver, HostOptions};
use symwin::driver::{Driver, Exported, Handle, HandleKind};

const PAGE: usize = 4096;
const NAME: &str = "memory_is_shared_between_processes";
const CHILD: &str = "SYMWIN_TEST_HOST_CHILD";

#[test]
fn memory_is_shared_between_processes() {
    let driver = HostDriver::new(HostOptions::new()).unwrap();
    if std::env::var_os(CHILD).is_some() {
        return child(&driver);
    }
    reservations_leave_no_trace_around(&driver);

    let handle = driver.create(2 * PAGE).unwrap();
    let base = place(&*driver, handle);
    write(&*driver, base, b"question");
    let Exported::Descriptor(fd) = driver.export(handle, HandleKind::Descriptor).unwrap() else {
        panic!("a descriptor")
    };
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::from(fd.try_clone().unwrap()))
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(read(base + PAGE), *b"response");
}

fn child(driver: &HostDriver) {
    let fd: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let exported = Exported::Descriptor(Arc::new(fd));
    driver.import(&exported, 2 * PAGE + 1).unwrap_err();
    let handle = driver.import(&exported, 2 * PAGE).unwrap();
    let base = place(driver, handle);
    assert_eq!(read(base), *b"question");
    write(driver, base + PAGE, b"response");
}

/// A large alignment reserves more than asked at first: none of that stays.
fn reservations_leave_no_trace_around(driver: &HostDriver) {
    let base = driver.reserve(PAGE, 1 << 30).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let exact = format!("{base:x}-{:x} ---p", base + PAGE);
    assert!(maps.lines().any(|line| line.starts_with(&exact)), "no {exact} in\n{maps}");
    // SAFETY: nobody uses the reservation.
    unsafe { driver.free(base, PAGE) }.unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.lines().any(|line| line.starts_with(&exact)));
}

fn place(driver: &dyn Driver, handle: Handle) -> usize {
    let base = driver.reserve(2 * PAGE, PAGE).unwrap();
    // SAFETY: the range is the vacant reservation made above.
    unsafe { driver.map(base, 2 * PAGE, 0, handle) }.unwrap();
    driver.set_access(base, 2 * PAGE, &[0]).unwrap();
    base
}

fn write(driver: &dyn Driver, to: usize, bytes: &[u8]) {
    let stream = driver.stream_create().unwrap();
    // SAFETY: the range is mapped with access.
    unsafe { driver.copy(stream, to, bytes) }.unwrap();
    driver.stream_destroy(stream).unwrap();
}

fn read(from: usize) -> [u8; 8] {
    let word: *const [u8; 8] = std::ptr::with_exposed_provenance(from);
    // SAFETY: the range is mapped with access, and the other process does not write to it meanwhile.
    unsafe { word.read_volatile() }
}
