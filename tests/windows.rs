//! Windows: where they may start, how they may share memory, what each rank may reach, and what keeps them alive.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use common::device::{Counts, on_gpus};
use common::*;
use symwin::driver::Driver;
use symwin::driver::host::{HostDriver, HostOptions};
use symwin::error::{Cause, Misuse, Reason};
use symwin::{
    Buffer, Communicator, DevCommRequirements, Error, LsaRank, Rank, Region, Registration, Window,
    WindowFlags,
};
use worlds::*;

/// Writes through every rank's pointer to every rank's part at `at`, and looks for it in the owners' buffers, where
/// the window starts `heads[r]` bytes in.
fn check_part(ranks: &[Communicator], windows: &[Window], buffers: &[Buffer], heads: &[usize], at: usize) {
    for (from, window) in ranks.iter().zip(windows) {
        for to in ranks {
            let (to, mark) = (to.rank(), [from.rank().get() as u8 + 1, to.rank().get() as u8 + 50]);
            window.write(to, at, &mark).unwrap();
            let mut seen = [0; 2];
            buffers[to.index()].read(heads[to.index()] + at, &mut seen).unwrap();
            assert_eq!(seen, mark, "P-3: {} wrote to {to}", from.rank());
            let mut back = [0; 2];
            window.read(to, at, &mut back).unwrap();
            assert_eq!(back, mark);
        }
    }
}

fn register_slices(ranks: &[Communicator], buffers: &[Buffer], range: std::ops::Range<usize>) -> Vec<Window> {
    all_ok(ask(ranks, |group, comm| {
        let slice = buffers[comm.rank().index()].slice(range.clone()).unwrap();
        group.register(comm, slice, WindowFlags::empty())
    }))
}

#[test]
fn sub_windows_and_overlapping_windows_share_one_memory() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 1 << 16);
        let parts = [0..1 << 16, 0..4096, 4096..12_288, 8192..40_960, 4096..12_288];
        let windows: Vec<_> =
            parts.iter().map(|part| register_slices(&ranks, &buffers, part.clone())).collect();
        for comm in &ranks {
            let status = comm.status();
            assert_eq!((status.memories, status.windows), (1, 5), "one memory, no mapping for each");
        }
        for (part, windows) in parts.iter().zip(&windows) {
            check_part(&ranks, windows, &buffers, &[part.start; 4], 100);
            check_part(&ranks, windows, &buffers, &[part.start; 4], part.len() - 2);
            assert!(windows.iter().all(|w| w.offset() == windows[0].offset() && w.size() == part.len()));
        }
        // The innermost that holds all of the range, of equal ones the one registered last.
        let at = buffers[1].address();
        let find = |offset: usize, len: usize| ranks[1].find_window((at + offset) as *const u8, len);
        let size = |found: Option<Window>| found.map(|w| (w.address() - at, w.size()));
        assert_eq!(size(find(100, 1)), Some((0, 4096)));
        assert_eq!(size(find(100, 8192)), Some((0, 1 << 16)));
        assert_eq!(size(find(9000, 10)), Some((8192, 32_768)));
        assert_eq!(size(find(5000, 10)), Some((4096, 8192)));
        assert_eq!(find(5000, 10).unwrap().device_address(), windows[4][1].device_address());
        assert_eq!(size(find(65_535, 2)), None, "the whole range is checked");
        drop(windows);
        finalize(ranks);
    }
}

/// Registered twice, each is a window of its own; closing one leaves the other.
#[test]
fn one_buffer_registered_twice_is_two_windows() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 8192);
        let (first, second) = (windows(&ranks, &buffers), windows(&ranks, &buffers));
        for (a, b) in first.iter().zip(&second) {
            assert_ne!(a.device_address(), b.device_address());
            assert_eq!(a.offset(), b.offset());
        }
        first.iter().for_each(|window| window.close().unwrap());
        check_pointers(&ranks, &second, &buffers);
        for (comm, buffer) in ranks.iter().zip(&buffers) {
            let found = comm.find_window(buffer.as_ptr(), 1).unwrap();
            assert_eq!(found.device_address(), second[comm.rank().index()].device_address());
        }
        for window in &first {
            assert!(matches!(window.close(), Err(Error::Misuse(Misuse::Closed { .. }))));
            assert!(matches!(window.local_ptr(0), Err(Error::Misuse(Misuse::Closed { .. }))));
            assert!(matches!(
                window.read(Rank::new(0), 0, &mut [0]),
                Err(Error::Misuse(Misuse::Closed { .. }))
            ));
        }
        drop((first, second));
        finalize(ranks);
    }
}

#[test]
fn a_window_over_several_adjacent_allocations() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let segments: Vec<_> =
            ranks.iter().map(|c| c.alloc_segments(&[8192, 4096, 16_384]).unwrap()).collect();
        // All of it, a part across two of them, and one by its bare address.
        let whole = windows(&ranks, &segments);
        let part = register_slices(&ranks, &segments, 4096..12_288);
        let raw = all_ok(ask(&ranks, |group, comm| {
            let pointer = segments[comm.rank().index()].as_ptr().wrapping_add(8192);
            // SAFETY: the buffer outlives the window, and all accesses are by copies.
            #[allow(unsafe_code, reason = "a bare address is what is tested")]
            let region = unsafe { Region::raw(pointer, 20_480) };
            group.register(comm, region, WindowFlags::empty())
        }));
        for at in [0, 8190, 8192, 12_287, 28_670] {
            check_part(&ranks, &whole, &segments, &[0; 4], at);
        }
        check_part(&ranks, &part, &segments, &[4096; 4], 4095);
        check_part(&ranks, &raw, &segments, &[8192; 4], 4095);
        assert_eq!(raw[0].address(), segments[0].address() + 8192);
        drop((whole, part, raw));
        finalize(ranks);
    }
}

/// Ranks whose memory is cut up differently, but as long.
#[test]
fn ranks_may_cut_their_memory_up_differently() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let cuts: [&[usize]; 4] = [&[16_384], &[4096, 12_288], &[8192, 8192], &[4096; 4]];
        let buffers: Vec<_> = ranks.iter().zip(cuts).map(|(c, cut)| c.alloc_segments(cut).unwrap()).collect();
        let windows = windows(&ranks, &buffers);
        for at in [0, 4095, 8191, 16_382] {
            check_part(&ranks, &windows, &buffers, &[0; 4], at);
        }
        drop(windows);
        finalize(ranks);
    }
}

/// Byte 0 is at the same place on every rank, wherever it lies in each rank's allocation.
#[test]
fn p3_heads_may_differ_between_ranks() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers: Vec<_> = ranks.iter().map(|c| c.alloc_own(1 << 16).unwrap()).collect();
        for heads in [[0, 4096, 8192, 40_960], [40_960, 8192, 4096, 0], [4096; 4], [0, 0, 0, 57_344]] {
            let windows = all_ok(ask(&ranks, |group, comm| {
                let rank = comm.rank().index();
                let slice = buffers[rank].slice(heads[rank]..heads[rank] + 8192).unwrap();
                group.register(comm, slice, WindowFlags::empty())
            }));
            assert!(windows.iter().all(|w| w.offset() == windows[0].offset()));
            check_part(&ranks, &windows, &buffers, &heads, 0);
            check_part(&ranks, &windows, &buffers, &heads, 8190);
            for (comm, window) in ranks.iter().zip(&windows) {
                assert_eq!(comm.status().digest, ranks[0].status().digest, "P-1");
                assert_eq!(
                    window.address(),
                    buffers[comm.rank().index()].address() + heads[comm.rank().index()]
                );
            }
        }
        finalize(ranks);
    }
}

/// A world on devices that map at multiples of 64 KiB only.
fn coarse_world(layout: &[u32]) -> Vec<Communicator> {
    let mut hosts = Vec::new();
    for &ranks in layout {
        let host = HostDriver::new(HostOptions::new().granularity(64 << 10)).unwrap();
        (0..ranks).for_each(|_| hosts.push(host.clone()));
    }
    let config =
        config().devices(move |rank: Rank| Ok(hosts[rank.index()].clone() as std::sync::Arc<dyn Driver>));
    Communicator::in_processes_with(layout, &config).unwrap()
}

#[test]
fn heads_that_cannot_be_brought_together_are_refused_with_every_base_and_offset() {
    for layout in LAYOUTS {
        let ranks = coarse_world(layout);
        assert_eq!(ranks[0].granularity(), 64 << 10);
        let buffers: Vec<_> = ranks.iter().map(|c| c.alloc_own(1 << 18).unwrap()).collect();
        let heads: [usize; 4] = [65_536, 4096, 131_072, 0];
        let request = |heads: [usize; 4]| {
            ask(&ranks, |group, comm| {
                let rank = comm.rank().index();
                let slice = buffers[rank].slice(heads[rank]..heads[rank] + 4096).unwrap();
                group.register(comm, slice, WindowFlags::empty())
            })
        };
        let cause = agreed_cause(request(heads));
        assert_eq!(refusers(&cause), [Rank::new(1)], "the others could be mapped");
        let text = cause.to_string();
        let Cause::Refused { faults } = cause else { unreachable!() };
        let Reason::Shift { bases, heads: said, granularity } = &faults[0].reason else {
            panic!("{}", faults[0])
        };
        assert_eq!(said, &heads.map(|head| head as u64));
        assert_eq!(bases, &buffers.iter().map(|b| b.address() as u64).collect::<Vec<_>>());
        assert_eq!((*granularity, faults[0].task), (64 << 10, Some(0)));
        assert!(text.contains(&format!("LSA rank 1: 4096 from {:#x}", bases[1])), "{text}");
        // Equal heads, and heads that differ by the granularity, are no trouble.
        for heads in [[4096; 4], [65_536 + 4096, 4096, 131_072 + 4096, 4096]] {
            let windows = all_ok(request(heads));
            check_part(&ranks, &windows, &buffers, &heads, 4000);
        }
        finalize(ranks);
    }
}

#[test]
fn asymmetric_sizes_are_known_to_every_rank() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let sizes = [4096, 100, 70_000, 8192];
        let buffers: Vec<_> = ranks.iter().zip(sizes).map(|(c, size)| c.alloc_own(size).unwrap()).collect();
        let windows = all_ok(ask(&ranks, |group, comm| {
            let registration = Registration::new(&buffers[comm.rank().index()]).asymmetric().label("uneven");
            group.register_with(comm, registration)
        }));
        for (comm, window) in ranks.iter().zip(&windows) {
            assert_eq!((window.size(), window.label()), (sizes[comm.rank().index()], Some("uneven")));
            for (peer, size) in (0..).map(Rank::new).zip(sizes) {
                assert_eq!(window.size_of(peer).unwrap(), size);
                window.write(peer, size - 1, &[9]).unwrap();
                let mut last = [0];
                buffers[peer.index()].read(size - 1, &mut last).unwrap();
                assert_eq!(last, [9]);
                let Err(Error::Misuse(Misuse::OutOfRange { size: said, .. })) = window.peer_ptr(peer, size)
                else {
                    panic!("beyond {peer}'s end");
                };
                assert_eq!(said, size as u64);
                assert!(
                    window.write(peer, size - 1, &[1, 2]).is_err()
                        && window.read(peer, size, &mut [0]).is_err()
                );
            }
        }
        // Kernels know them too, and forget them with the window.
        let dev = dev_comms(&ranks, &DevCommRequirements::new().lsa_barriers(1));
        let handles: Vec<u64> = windows.iter().map(Window::device_address).collect();
        let out = launch_all(&dev, 1, move |k| {
            let window = k.window(handles[k.rank() as usize])?;
            let sizes = (0..4).map(|peer| window.size_at(LsaRank::new(peer))).collect::<Vec<_>>();
            let fits = window.slice::<u8>(LsaRank::new(1), 0, 100).is_ok();
            let beyond = window.slice::<u8>(LsaRank::new(1), 1, 100).is_err();
            k.barrier(0)?.sync()?;
            Ok((sizes, fits && beyond))
        });
        assert!(out.iter().all(|o| o[0] == (sizes.map(|s| s as u64).to_vec(), true)), "{out:?}");
        // Without leave to differ they may not.
        let results = register_all(&ranks, &buffers);
        assert!(
            matches!(agreed_cause(results), Cause::Mismatch { what, .. } if what == "the size of task 0")
        );
        drop((windows, dev));
        finalize(ranks);
    }
}

/// A kernel that has found a window knows each rank's size of it, and reaches its memory, whoever closes it meanwhile.
#[test]
fn bug_34_a_window_closed_under_a_kernel_keeps_its_sizes_and_memory_until_the_kernel_ends() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let sizes = [8192, 4096, 16_384, 4096];
        let buffers: Vec<_> = ranks.iter().zip(sizes).map(|(c, size)| c.alloc_own(size).unwrap()).collect();
        let windows = all_ok(ask(&ranks, |group, comm| {
            group.register_with(comm, Registration::new(&buffers[comm.rank().index()]).asymmetric())
        }));
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        drop(buffers);
        let handle = windows[0].device_address();
        let (begun, wait_begun) = std::sync::mpsc::channel();
        let (go, wait_go) = std::sync::mpsc::channel::<()>();
        let wait_go = std::sync::Mutex::new(wait_go);
        let kernel = dev[0].launch(1, move |k| {
            let window = k.window(handle)?;
            begun.send(()).unwrap();
            wait_go.lock().unwrap().recv().unwrap();
            let beyond = window.slice::<u8>(LsaRank::new(1), 0, 8192).is_err();
            window.slice::<u8>(LsaRank::new(2), 0, 16_384)?.store(16_383, 5)?;
            window.local_slice::<u8>(0, 8192)?.store(8191, 6)?;
            Ok(beyond)
        });
        wait_begun.recv().unwrap();
        windows[0].close().unwrap();
        // Another batch: the close has been taken in by then, and nothing of it is reused.
        let other = dev_comms(&ranks, &DevCommRequirements::new());
        assert_eq!((ranks[0].status().memories, ranks[0].status().shadow_slots), (1, 1));
        go.send(()).unwrap();
        assert_eq!(kernel.unwrap().join().unwrap(), [true]);
        drop((windows, dev, other));
        finalize(ranks);
    }
}

#[test]
fn labels_are_agreed_and_tell_equal_shapes_apart() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let results = ask(&ranks, |group, comm| {
            let swapped = comm.rank().get() == 3;
            let [a, b] = if swapped { ["v", "k"] } else { ["k", "v"] };
            let buffer = &buffers[comm.rank().index()];
            drop(group.register_with(comm, Registration::new(buffer).label(a)));
            group.register_with(comm, Registration::new(buffer).label(b))
        });
        let Cause::Mismatch { what, requests } = agreed_cause(results) else { panic!("a mismatch") };
        assert_eq!(what, "the label of task 0");
        assert!(requests[3].1.contains("labelled `v`") && requests[0].1.contains("labelled `k`"));
        finalize(ranks);
    }
}

#[test]
fn bounds_of_every_getter() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 5000);
        let windows = windows(&ranks, &buffers);
        let (window, me) = (&windows[2], ranks[2].rank());
        assert_eq!(window.size(), 5000);
        assert_eq!(window.local_ptr(17).unwrap(), window.peer_ptr(me, 17).unwrap());
        assert_eq!(window.local_ptr(17).unwrap(), window.lsa_ptr(LsaRank::new(2), 17).unwrap());
        let step = window.lsa_ptr(LsaRank::new(3), 0).unwrap().addr() - window.local_ptr(0).unwrap().addr();
        assert_eq!(step as u64, ranks[2].stride());
        // What the host works out for kernels is what they would make of the window's struct.
        let dev = dev_comms(&ranks, &DevCommRequirements::new());
        let (address, of_host) = (window.device_address(), |rank| window.lsa_ptr(rank, 17).unwrap().addr());
        for rank in (0..4).map(LsaRank::new) {
            let of_kernel = dev[2].run(|k| Ok(k.window(address)?.lsa_ptr(rank, 17)?.addr())).unwrap();
            assert_eq!(of_kernel, of_host(rank));
        }
        drop(dev);
        let out =
            |result: symwin::Result<()>| matches!(result, Err(Error::Misuse(Misuse::OutOfRange { .. })));
        assert!(window.peer_ptr(me, 4999).is_ok());
        for offset in [5000, 5001, usize::MAX] {
            assert!(out(window.peer_ptr(me, offset).map(drop)) && out(window.local_ptr(offset).map(drop)));
        }
        window.read(me, 5000, &mut []).unwrap();
        assert!(out(window.read(me, 4999, &mut [0; 2])) && out(window.write(me, usize::MAX, &[0; 2])));
        let strange =
            |result: symwin::Result<()>| matches!(result, Err(Error::Misuse(Misuse::NotInTeam { .. })));
        assert!(strange(window.peer_ptr(Rank::new(4), 0).map(drop)));
        assert!(strange(window.lsa_ptr(LsaRank::new(4), 0).map(drop)));
        assert!(strange(window.lsa_ptr(LsaRank::new(u32::MAX), 0).map(drop)));
        assert!(out(window.slice(0..5001).map(drop)) && out(window.slice(5001..5001).map(drop)));
        #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
        let reversed = window.slice(10..5);
        assert!(matches!(reversed, Err(Error::Misuse(Misuse::Other { .. }))));
        drop(windows);
        finalize(ranks);
    }
}

#[test]
fn a_window_keeps_its_buffers_memory() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let own: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(1 << 20).unwrap()).collect();
        let windows = windows(&world.ranks, &own);
        windows[0].write(Rank::new(3), 77, b"still here").unwrap();
        drop(own);
        // What is allocated now gets other memory.
        let others: Vec<_> = world.ranks.iter().map(|c| c.alloc_own(1 << 20).unwrap()).collect();
        others.iter().for_each(|other| other.write(0, &[0xee; 4096]).unwrap());
        let mut seen = [0; 10];
        windows[1].read(Rank::new(3), 77, &mut seen).unwrap();
        assert_eq!(&seen, b"still here");
        let held: u64 = world.hosts.iter().map(|host| host.counts().bytes).sum();
        // GPUs do not tell.
        assert!(held >= 8 << 20 || on_gpus());
        drop((windows, others));
        finalize(world.ranks);
        world.hosts.iter().for_each(|host| assert_eq!(host.counts(), Counts::default(), "P-5"));
    }
}

#[test]
fn bug_11_a_communicator_of_one_rank_works() {
    let ranks = world(&[1]);
    let buffers = buffers(&ranks, 4096);
    let group = symwin::Group::start();
    let window = group.register(&ranks[0], &buffers[0], WindowFlags::COLL_SYMMETRIC);
    let dev = group.create_dev_comm(&ranks[0], DevCommRequirements::new().lsa_barriers(1).buffer(64, 64));
    group.end().unwrap();
    let (window, dev) = (window.wait().unwrap(), dev.wait().unwrap());
    window.write(ranks[0].rank(), 0, &2.5f32.to_le_bytes()).unwrap();
    let slice = window.slice(0..4).unwrap();
    ranks[0].all_reduce(&slice, &slice, symwin::coll::DType::F32, symwin::coll::ReduceOp::Sum).unwrap();
    let mut bytes = [0; 4];
    buffers[0].read(0, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 2.5);
    dev.run(|k| k.barrier(0)?.sync()).unwrap();
    drop((window, dev));
    finalize(ranks);
}
