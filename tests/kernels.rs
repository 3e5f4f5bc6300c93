//! Host kernels against what happens to their communicator, and against each other.

mod common;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use common::*;
use symwin::error::Misuse;
use symwin::{DevCommRequirements, Error};

#[test]
fn a_communicator_dropped_under_a_running_kernel_closes_when_the_kernel_has_ended() {
    for layout in LAYOUTS {
        let (ranks, hosts) = watched_world(layout, config());
        let buffers = buffers(&ranks, 4096);
        let windows = windows(&ranks, &buffers);
        let dev = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(1)).swap_remove(0);
        let (release, released) = sync_channel::<()>(1);
        let (began, begun) = sync_channel::<()>(1);
        let released = parking(released);
        let address = windows[0].device_address();
        let kernel = dev
            .launch(1, move |kernel| {
                let window = kernel.window(address)?;
                began.send(()).ok();
                released.lock().unwrap().recv().ok();
                // Still mapped, though every handle is gone.
                window.local_slice::<u8>(0, 4096)?.store(0, 7)
            })
            .unwrap();
        begun.recv().unwrap();
        drop((dev, windows, buffers, ranks));
        assert_ne!(hosts[0].counts().mappings, 0, "{layout:?}: nothing goes under a kernel");
        release.send(()).unwrap();
        kernel.join().unwrap();
        assert_empty(&hosts);
    }
}

#[test]
fn two_kernels_of_a_device_communicator_cannot_be_on_one_barrier() {
    let ranks = world(&[1]);
    let dev = ranks[0].create_dev_comm(DevCommRequirements::new().lsa_barriers(2)).unwrap();
    let other = dev.clone();
    dev.run(move |kernel| {
        let _first = kernel.barrier(0)?;
        let refused = other.run(|second| second.barrier(0).map(drop));
        assert!(matches!(refused, Err(Error::Misuse(Misuse::Other { .. }))), "{refused:?}");
        other.run(|second| second.barrier(1)?.sync())
    })
    .unwrap();
    // The session has ended with its kernel.
    dev.run(|kernel| kernel.barrier(0)?.sync()).unwrap();
    drop(dev);
    finalize(ranks);
}

/// A receiver that a kernel, which may have several blocks, can share.
fn parking<T>(value: T) -> Arc<std::sync::Mutex<T>> {
    Arc::new(std::sync::Mutex::new(value))
}
