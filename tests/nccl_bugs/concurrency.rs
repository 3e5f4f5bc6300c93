//! D. Concurrency.

use super::*;

/// Registrations, closes, lookups, copies and status from several threads of every rank at once.
#[test]
fn bug_31_everything_at_once_on_one_communicator() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 1 << 16);
        let stable = windows(&ranks, &buffers);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (comm, buffer) in ranks.iter().zip(&buffers) {
                let (tell, closes) = std::sync::mpsc::channel::<Window>();
                workers.push(scope.spawn(move || {
                    for round in 0..30 {
                        let start = 4096 * (1 + round % 7);
                        let slice = buffer.slice(start..start + 4096).unwrap();
                        tell.send(comm.register(slice, WindowFlags::empty()).unwrap()).unwrap();
                        drop(comm.create_dev_comm(DevCommRequirements::new().lsa_barriers(1)).unwrap());
                    }
                }));
                workers.push(scope.spawn(move || closes.iter().for_each(|window| window.close().unwrap())));
                let (done, stable) = (&done, &stable[comm.rank().index()]);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let outer = find(comm, buffer, 0, 1 << 16).expect("it is open throughout");
                        assert_eq!(outer, stable.device_address());
                        stable.write(Rank::new(3 - comm.rank().get()), 60_000, &[1]).unwrap();
                        let _ = comm.status();
                        std::thread::yield_now();
                    }
                });
            }
            let outcomes: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        assert!(ranks.iter().all(|comm| comm.status().digest == ranks[0].status().digest), "P-1");
        check_pointers(&ranks, &stable, &buffers);
        drop(stable);
        finalize(ranks);
    }
}

#[test]
fn bug_32_nobody_binds_before_all_have_added_their_device() {
    for layout in [&[3][..], &[1, 1, 1]] {
        let world = MulticastWorld::new(layout);
        let buffers = buffers(&world.ranks, 4096);
        let windows = windows(&world.ranks, &buffers);
        for culprit in 0..3u32 {
            world.faults[culprit as usize].fail(Call::MulticastAddDevice, 1);
            let cause = agreed_cause(try_dev_comms(&world.ranks, &multimem()));
            assert_eq!(refusers(&cause), [Rank::new(culprit)]);
        }
        let binds = |steps: Vec<symwin::driver::multicast::MulticastStep>| {
            steps.iter().filter(|step| step.call == Call::MulticastBind).count()
        };
        assert_eq!(binds(world.board.steps()), 0, "a bind would have waited in the driver");
        let dev = dev_comms(&world.ranks, &multimem());
        assert_eq!(binds(world.board.steps()), 3);
        assert!(world.ranks.iter().all(|comm| comm.status().activity == Activity::Idle));
        drop((dev, windows, buffers));
        world.close();
    }
}

/// What a kernel got of a window that is closed under it stays that window until the kernel ends, though others come.
#[test]
fn bug_34_a_running_kernel_never_sees_another_window_in_a_closed_ones_place() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let own: Vec<_> = ranks.iter().map(|c| c.alloc_own(4096).unwrap()).collect();
        let mut windows = windows(&ranks, &own);
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        let (handle, address) = (windows[1].device_address(), windows[1].address() as u64);
        let (begun, wait_begun) = std::sync::mpsc::channel();
        let (go, wait_go) = std::sync::mpsc::channel::<()>();
        let wait_go = std::sync::Mutex::new(wait_go);
        let kernel = dev[1].launch(1, move |k| {
            let window = k.window(handle)?;
            let bytes = *window.bytes();
            begun.send(()).unwrap();
            wait_go.lock().unwrap().recv().unwrap();
            (0..4).try_for_each(|peer| window.slice::<u8>(LsaRank::new(peer), 0, 1)?.store(0, 7))?;
            // By now no lookup finds it, and none finds another in its place.
            let gone = k.window(handle).is_err();
            Ok(gone && *window.bytes() == bytes && window.base() == address)
        });
        wait_begun.recv().unwrap();
        windows.clear();
        // Others come, as many as there are slots in a page and more.
        let others: Vec<_> = (0..40).map(|_| parts(&ranks, &own, 0..4096)).collect();
        assert!(others.iter().all(|windows| windows[1].device_address() != handle));
        go.send(()).unwrap();
        assert_eq!(kernel.unwrap().join().unwrap(), [true]);
        for buffer in &own {
            let mut seen = [0];
            buffer.read(0, &mut seen).unwrap();
            assert_eq!(seen, [7]);
        }
        drop((others, dev));
        finalize(ranks);
    }
}
