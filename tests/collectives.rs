//! All-reduce through a communicator: every type and operation, parts of windows, order, and typed errors.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "these are tests; clippy takes helpers for none"
)]

mod common;
#[path = "common/numbers.rs"]
mod numbers;
#[path = "common/worlds.rs"]
mod worlds;

use common::*;
use numbers::*;
use symwin::coll::{DType, ReduceOp};
use symwin::driver::Call;
use symwin::error::Misuse;
use symwin::{Communicator, Error, Rank, WindowFlags, WindowSlice};
use worlds::*;

/// All-reduces the same range of every rank's window.
fn reduce(
    ranks: &[Communicator],
    from: &[WindowSlice],
    to: &[WindowSlice],
    dtype: DType,
    op: ReduceOp,
) -> symwin::Result<()> {
    let running: Vec<_> = ranks
        .iter()
        .zip(from.iter().zip(to))
        .map(|(comm, (from, to))| comm.start_all_reduce(from, to, dtype, op))
        .collect::<symwin::Result<_>>()?;
    running.into_iter().try_for_each(|handle| handle.join().map(drop))
}

#[test]
fn every_type_and_operation_in_place_and_not() {
    const COUNT: u32 = 300;
    for layout in LAYOUTS {
        let ranks = world(layout);
        let (ins, outs) = (buffers(&ranks, 8192), buffers(&ranks, 8192));
        let (from, to) = (symmetric(&ranks, &ins), symmetric(&ranks, &outs));
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let len = COUNT as usize * dtype.size_bytes();
                for (comm, buffer) in ranks.iter().zip(&ins) {
                    let me = comm.rank().get();
                    let bytes: Vec<u8> =
                        (0..COUNT).flat_map(|i| encode(f64::from(input(me, i)), dtype)).collect();
                    buffer.write(0, &bytes).unwrap();
                }
                let wanted: Vec<u8> =
                    (0..COUNT).flat_map(|i| encode(expected(i, op, is_integer(dtype)), dtype)).collect();
                reduce(&ranks, &slices(&from, 0..len), &slices(&to, 0..len), dtype, op).unwrap();
                reduce(&ranks, &slices(&from, 0..len), &slices(&from, 0..len), dtype, op).unwrap();
                for buffer in ins.iter().chain(&outs) {
                    let mut bytes = vec![0; len];
                    buffer.read(0, &mut bytes).unwrap();
                    assert_eq!(bytes, wanted, "{layout:?}: {op} of {dtype}");
                }
            }
        }
        drop((from, to));
        finalize(ranks);
    }
}

/// Parts of windows, of other windows, and overlapping ones; nothing beside them is touched.
#[test]
fn parts_of_windows_at_any_aligned_offset() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let windows = symmetric(&ranks, &buffers);
        for (from, to) in [(8..24, 100..116), (8..24, 16..32), (16..32, 8..24), (0..0, 4096..4096)] {
            for (rank, buffer) in (1u8..).zip(&buffers) {
                buffer.write(0, &[rank; 4096]).unwrap();
            }
            reduce(
                &ranks,
                &slices(&windows, from.clone()),
                &slices(&windows, to.clone()),
                DType::U8,
                ReduceOp::Sum,
            )
            .unwrap();
            for (rank, buffer) in (1u8..).zip(&buffers) {
                let mut bytes = [0; 4096];
                buffer.read(0, &mut bytes).unwrap();
                for (at, byte) in bytes.into_iter().enumerate() {
                    assert_eq!(
                        byte,
                        if to.contains(&at) { 10 } else { rank },
                        "{from:?} to {to:?}, byte {at}"
                    );
                }
            }
        }
        drop(windows);
        finalize(ranks);
    }
}

/// On one rank the output is the input's memory, shifted and through another mapping; on the others it is not. No
/// rank may write there before all have read.
#[test]
fn an_overlap_on_one_rank_alone_is_heeded_by_all() {
    const COUNT: u32 = 20_000;
    let len = COUNT as usize * 8;
    for layout in LAYOUTS {
        let ranks = world(layout);
        let ins = buffers(&ranks, len + 8);
        let mut outs = buffers(&ranks, len + 8);
        outs[2] = ins[2].clone();
        let (from, to) = (symmetric(&ranks, &ins), symmetric(&ranks, &outs));
        for shift in [0, 8] {
            for (comm, buffer) in ranks.iter().zip(&ins) {
                let me = comm.rank().get();
                let bytes: Vec<u8> =
                    (0..COUNT).flat_map(|i| encode(f64::from(input(me, i)), DType::F64)).collect();
                buffer.write(0, &bytes).unwrap();
            }
            let to = slices(&to, shift..len + shift);
            reduce(&ranks, &slices(&from, 0..len), &to, DType::F64, ReduceOp::Sum).unwrap();
            let wanted: Vec<u8> =
                (0..COUNT).flat_map(|i| encode(expected(i, ReduceOp::Sum, false), DType::F64)).collect();
            for (rank, buffer) in outs.iter().enumerate() {
                let mut bytes = vec![0; len];
                buffer.read(shift, &mut bytes).unwrap();
                assert!(bytes == wanted, "{layout:?}: rank {rank}, shifted by {shift} bytes");
            }
        }
        drop((from, to, ins, outs));
        finalize(ranks);
    }
}

/// Collectives of one rank run in the order in which they were started, over whatever windows.
#[test]
fn started_collectives_run_in_order() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let (a, b) = (buffers(&ranks, 4096), buffers(&ranks, 4096));
        let (wa, wb) = (symmetric(&ranks, &a), symmetric(&ranks, &b));
        a.iter().for_each(|buffer| buffer.write(0, &1i64.to_le_bytes()).unwrap());
        let (sa, sb) = (slices(&wa, 0..8), slices(&wb, 0..8));
        let mut running = Vec::new();
        for step in 0..8 {
            let (from, to) = if step % 2 == 0 { (&sa, &sb) } else { (&sb, &sa) };
            for (comm, (from, to)) in ranks.iter().zip(from.iter().zip(to)) {
                running.push(comm.start_all_reduce(from, to, DType::I64, ReduceOp::Sum).unwrap());
            }
        }
        running.into_iter().for_each(|handle| drop(handle.join().unwrap()));
        for buffer in &a {
            let mut bytes = [0; 8];
            buffer.read(0, &mut bytes).unwrap();
            assert_eq!(i64::from_le_bytes(bytes), 4i64.pow(8));
        }
        drop((wa, wb, sa, sb));
        finalize(ranks);
    }
}

#[test]
fn wrong_slices_are_typed_errors_before_anyone_waits() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        let (windows, plain) = (symmetric(&ranks, &buffers), windows(&ranks, &buffers));
        let whole = windows[0].whole();
        let misuse = |from: &WindowSlice, to: &WindowSlice, dtype| {
            let result = ranks[0].start_all_reduce(from, to, dtype, ReduceOp::Sum);
            let Err(Error::Misuse(Misuse::Other { what })) = result.map(drop) else { panic!("a misuse") };
            what
        };
        let part = |range: std::ops::Range<usize>| windows[0].slice(range).unwrap();
        assert!(misuse(&part(0..8), &part(0..16), DType::U8).contains("8 bytes in, 16 bytes out"));
        assert!(misuse(&part(0..6), &part(0..6), DType::F32).contains("elements of 4 bytes"));
        assert!(misuse(&part(2..10), &part(0..8), DType::F32).contains("start at bytes 2 and 0"));
        assert!(misuse(&part(0..8), &part(4..12), DType::F64).contains("start at bytes 0 and 4"));
        assert!(misuse(&windows[1].whole(), &whole, DType::U8).contains("another communicator or rank"));
        assert!(misuse(&plain[0].whole(), &plain[0].whole(), DType::U8).contains("COLL_SYMMETRIC"));
        let closed = windows[0].whole();
        // A wrong call takes no turn: what comes after it runs.
        reduce(&ranks, &slices(&windows, 0..8), &slices(&windows, 0..8), DType::F64, ReduceOp::Max).unwrap();
        windows[0].close().unwrap();
        let stale = ranks[0].start_all_reduce(&closed, &closed, DType::U8, ReduceOp::Sum).map(drop);
        assert!(matches!(stale, Err(Error::Misuse(Misuse::Closed { .. }))));
        drop((windows, plain, whole, closed));
        finalize(ranks);
    }
}

/// The first window with the flag brings the collectives' device communicator along, and no other does.
#[test]
fn the_collectives_have_one_device_communicator() {
    for layout in LAYOUTS {
        let ranks = world(layout);
        let buffers = buffers(&ranks, 4096);
        assert!(ranks[0].collectives().is_none());
        let plain = windows(&ranks, &buffers);
        assert!(ranks[0].collectives().is_none());
        let first = symmetric(&ranks, &buffers);
        let own: Vec<_> = ranks.iter().map(|comm| comm.collectives().unwrap()).collect();
        let slots = ranks[0].status().shadow_slots;
        let second = symmetric(&ranks, &buffers);
        assert_eq!(ranks[0].status().shadow_slots, slots + 1, "a window and nothing else");
        assert_eq!(ranks[0].status().rounds, 6, "no round of its own");
        for (comm, own) in ranks.iter().zip(&own) {
            let now = comm.collectives().unwrap();
            assert_eq!(now.device().resource_window, own.device().resource_window);
        }
        // It stays when its first window goes.
        drop(first);
        reduce(&ranks, &slices(&second, 0..8), &slices(&second, 0..8), DType::F32, ReduceOp::Sum).unwrap();
        drop((plain, second, own));
        finalize(ranks);
    }
}

/// It is rolled back with its batch, and made by the next.
#[test]
fn bug_21_a_failed_first_use_leaves_no_half_made_collectives() {
    for layout in LAYOUTS {
        let world = faulty_world(layout, config());
        let (ranks, last) = (&world.ranks, world.faults.last().unwrap());
        let buffers = buffers(ranks, 4096);
        let before: Vec<_> = ranks.iter().map(|comm| comm.status().memories).collect();
        // The resource buffer of the collectives is the only thing that a batch of windows creates.
        for call in [Call::Fill, Call::Create, Call::Map] {
            last.fail(call, 1);
            let results =
                ask(ranks, |g, c| g.register(c, &buffers[c.rank().index()], WindowFlags::COLL_SYMMETRIC));
            assert_eq!(refusers(&agreed_cause(results)), [Rank::new(3)], "{layout:?}: {call}");
            assert!(ranks.iter().all(|comm| comm.collectives().is_none()));
            let after: Vec<_> = ranks.iter().map(|comm| comm.status().memories).collect();
            assert_eq!(after, before);
        }
        let windows = symmetric(ranks, &buffers);
        buffers.iter().for_each(|buffer| buffer.write(0, &[1; 8]).unwrap());
        reduce(ranks, &slices(&windows, 0..8), &slices(&windows, 0..8), DType::U8, ReduceOp::Sum).unwrap();
        let mut bytes = [0; 8];
        buffers[3].read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [4; 8]);
        drop((windows, buffers));
        finalize(world.ranks);
    }
}

/// All-reduce is over the LSA team.
#[test]
fn each_lsa_team_reduces_for_itself() {
    for layout in layouts(4) {
        let ranks = team_world(&layout, 2);
        let buffers = buffers(&ranks, 4096);
        let windows = symmetric(&ranks, &buffers);
        for (rank, buffer) in (1u8..).zip(&buffers) {
            buffer.write(0, &[rank]).unwrap();
        }
        reduce(&ranks, &slices(&windows, 0..1), &slices(&windows, 0..1), DType::U8, ReduceOp::Sum).unwrap();
        for (buffer, sum) in buffers.iter().zip([3, 3, 7, 7]) {
            let mut bytes = [0];
            buffer.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [sum]);
        }
        drop(windows);
        finalize(ranks);
    }
}
