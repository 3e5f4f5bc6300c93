//! The runtime over null devices: everything is made, agreed and given back as on a device with memory, and nothing
//! touches memory that is not there.
#![allow(unsafe_code, reason = "a test gives memory back under the runtime")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::sync::Arc;

use common::*;
use symwin::driver::faulty::Faulty;
use symwin::driver::multicast::{MulticastBoard, MulticastCounts, MulticastDriver};
use symwin::driver::null::{NullCounts, NullDriver, NullFabric, NullOptions};
use symwin::driver::{Call, DeviceProblem, Driver};
use symwin::error::Misuse;
use symwin::{
    Communicator, Config, DevCommRequirements, Error, Group, Pending, Rank, Region, Window, WindowFlags,
};

const MIB: usize = 1 << 20;

/// A null device for each process, all on one fabric.
struct NullWorld {
    ranks: Vec<Communicator>,
    fabric: Arc<NullFabric>,
    nulls: Vec<Arc<NullDriver>>,
}

impl NullWorld {
    fn new(layout: &[u32], device: impl Fn(Rank, Arc<NullDriver>) -> Arc<dyn Driver>) -> Self {
        let fabric = NullFabric::new();
        let null = |_| NullDriver::new(NullOptions::new().fabric(Arc::clone(&fabric))).unwrap();
        let nulls: Vec<_> = layout.iter().map(null).collect();
        let of_rank = layout.iter().zip(&nulls);
        let of_rank = of_rank.flat_map(|(&ranks, null)| std::iter::repeat_n(null, ranks as usize));
        let devices: Vec<_> =
            (0..).map(Rank::new).zip(of_rank).map(|(rank, null)| device(rank, Arc::clone(null))).collect();
        let config = Config::new().workers(2).devices(move |rank| Ok(Arc::clone(&devices[rank.index()])));
        let ranks = Communicator::in_processes_with(layout, &config).unwrap();
        Self { ranks, fabric, nulls }
    }

    /// Ends all ranks; every device is as it was before anything was made on it (P-5).
    fn end(self) {
        finalize(self.ranks);
        until("everything to be given back", || self.nulls.iter().all(|null| null.counts().is_empty()));
        assert_eq!(self.fabric.allocations(), 0);
    }
}

fn plain(_: Rank, null: Arc<NullDriver>) -> Arc<dyn Driver> {
    null
}

#[test]
fn a_group_over_several_processes_leaves_nothing() {
    for layout in [&[2, 2][..], &[4], &[1; 8]] {
        let world = NullWorld::new(layout, plain);
        let ranks = &world.ranks;
        assert_eq!(ranks[0].stride(), 16 << 30, "the device's memory");
        assert!(!ranks[0].device().host_access);
        let carved = buffers(ranks, 3 * MIB);
        let pieces: Vec<_> = ranks.iter().map(|r| r.alloc_segments(&[2 * MIB, 4 * MIB]).unwrap()).collect();
        let group = Group::start();
        let mut pending = Vec::new();
        let mut dev_comms = Vec::new();
        for ((comm, carved), pieces) in ranks.iter().zip(&carved).zip(&pieces) {
            pending.push(group.register(comm, carved, WindowFlags::COLL_SYMMETRIC));
            pending.push(group.register(comm, pieces.slice(MIB..5 * MIB).unwrap(), WindowFlags::empty()));
            dev_comms.push(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(2)));
        }
        group.end().unwrap();
        let windows: Vec<Window> = pending.into_iter().map(|window| window.wait().unwrap()).collect();
        let dev_comms: Vec<_> = dev_comms.into_iter().map(|made| made.wait().unwrap()).collect();
        check_digests(ranks);

        // What would load or store is refused.
        let (window, dev_comm) = (&windows[1], &dev_comms[0]);
        let misuse = |refused: Result<(), Error>| matches!(refused, Err(Error::Misuse(Misuse::Other { .. })));
        let unsupported = |refused: Result<(), Error>| matches!(refused, Err(Error::Device(e)) if matches!(e.problem, DeviceProblem::Unsupported { .. }));
        assert!(unsupported(window.write(Rank::new(1), 0, &[1])));
        assert!(unsupported(window.read(Rank::new(1), 0, &mut [0])));
        assert!(misuse(dev_comm.run(|_| Ok(()))));
        assert!(misuse(dev_comm.launch(2, |_| Ok(())).map(drop)));
        let [mine, peers] = [0, 1].map(|rank| window.peer_ptr(Rank::new(rank), 0).unwrap());
        assert_eq!(peers.addr() - mine.addr(), 16 << 30);

        for window in &windows {
            window.close().unwrap();
        }
        drop((carved, pieces, windows, dev_comms));
        world.end();
    }
}

/// P-6: the exporter's handle lives until all have imported, whatever its user does with the memory meanwhile.
#[test]
fn p6_the_exporters_handle_lives_until_all_have_imported() {
    let fault: std::sync::OnceLock<Arc<Faulty>> = std::sync::OnceLock::new();
    let world = NullWorld::new(&[2, 2], |rank, null| {
        // Rank 2 imports for the second process.
        if rank == Rank::new(2) { fault.get_or_init(|| Faulty::new(null)).clone() } else { null }
    });
    let fault = fault.get().unwrap();
    let exporter = Arc::clone(&world.nulls[0]);
    let size = 2 * MIB;
    let memory = exporter.create(size).unwrap();
    let base = exporter.reserve(size, size).unwrap();
    // SAFETY: the range is the vacant reservation made above.
    unsafe { exporter.map(base, size, 0, memory) }.unwrap();
    exporter.set_access(base, size, &[0]).unwrap();

    let given_back = Arc::new(std::sync::Once::new());
    let once = Arc::clone(&given_back);
    fault.on_call(Box::new(move |call, _| {
        if call == Call::Import {
            once.call_once(|| {
                // SAFETY: there is nothing to use at a null device's addresses.
                unsafe { exporter.free(base, size) }.unwrap();
                exporter.release(memory).unwrap();
            });
        }
    }));
    let others: Vec<_> = world.ranks[1..].iter().map(|comm| comm.alloc_own(size).unwrap()).collect();
    // SAFETY: there is nothing to use at a null device's addresses, so it does not matter that it goes.
    let raw = unsafe { Region::raw(std::ptr::with_exposed_provenance_mut(base), size) };
    let regions = std::iter::once(raw).chain(others.iter().map(Region::from));
    let group = Group::start();
    let pending: Vec<Pending<Window>> =
        world.ranks.iter().zip(regions).map(|(c, r)| group.register(c, r, WindowFlags::empty())).collect();
    group.end().unwrap();
    let windows: Vec<Window> = pending.into_iter().map(|window| window.wait().unwrap()).collect();
    assert!(given_back.is_completed());
    assert!(fault.count(Call::Import) >= 2, "one of each rank of the first process");
    drop((windows, others));
    fault.on_call(Box::new(|_, _| {}));
    world.end();
}

#[test]
fn multicast_objects_over_null_devices() {
    let board = MulticastBoard::new();
    let world = NullWorld::new(&[2, 2], |_, null| MulticastDriver::new(null, Arc::clone(&board)));
    let buffers = buffers(&world.ranks, MIB);
    let windows = windows(&world.ranks, &buffers);
    let dev_comms = dev_comms(&world.ranks, &DevCommRequirements::new().lsa_multimem(true));
    assert_eq!(board.counts().objects, 1);
    assert!(board.counts().bindings >= 4);
    assert_eq!(board.check_order(), Ok(()), "P-6");
    drop((buffers, windows, dev_comms));
    world.end();
    assert_eq!(board.counts(), MulticastCounts::default());
}

/// Communicators come and go on the same devices, of which no address is left taken.
#[test]
fn communicators_come_and_go() {
    let world = NullWorld::new(&[2, 1], plain);
    let before: Vec<NullCounts> = world.nulls.iter().map(|null| null.counts()).collect();
    for round in 0..20 {
        let name = format!("round {round}");
        let duplicates: Vec<_> = std::thread::scope(|scope| {
            let made: Vec<_> =
                world.ranks.iter().map(|comm| scope.spawn(|| comm.duplicate(&name).unwrap())).collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        let buffers = buffers(&duplicates, MIB);
        drop(windows(&duplicates, &buffers));
        drop(buffers);
        finalize(duplicates);
    }
    // The allocators are those of the first communicator: slabs and the stream that zeroes them stay.
    until("ranges to be given back", || {
        let now = world.nulls.iter().map(|null| null.counts());
        now.zip(&before).all(|(now, before)| now.reservations <= before.reservations + 2 && now.events == 0)
    });
    world.end();
}
