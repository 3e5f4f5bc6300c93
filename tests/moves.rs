//! All-gather, reduce-scatter, broadcast and all-to-all through a communicator, against their plainest definitions.
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

use std::ops::Range;

use common::*;
use numbers::*;
use proptest::prelude::*;
use symwin::coll::{DType, ReduceOp};
use symwin::device::KernelHandle;
use symwin::error::Misuse;
use symwin::{Buffer, Communicator, Error, Rank, Result, Window, WindowSlice};
use worlds::*;

const BYTES: usize = 1 << 18;

/// Ranks with two windows each.
struct Scene {
    ranks: Vec<Communicator>,
    buffers: [Vec<Buffer>; 2],
    windows: [Vec<Window>; 2],
}

impl Scene {
    fn new(layout: &[u32]) -> Self {
        Self::of(world(layout))
    }

    fn of(ranks: Vec<Communicator>) -> Self {
        let buffers = [buffers(&ranks, BYTES), buffers(&ranks, BYTES)];
        let windows = [symmetric(&ranks, &buffers[0]), symmetric(&ranks, &buffers[1])];
        Self { ranks, buffers, windows }
    }

    /// Bytes of any rank's input, no two blocks of which are alike.
    fn input(rank: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251 * 3 + rank * 59) as u8).collect()
    }

    fn fill(&self, window: usize, at: impl Fn(usize) -> usize, len: usize) {
        for (rank, buffer) in self.buffers[window].iter().enumerate() {
            buffer.write(0, &vec![0xee; BYTES]).unwrap();
            buffer.write(at(rank), &Self::input(rank, len)).unwrap();
        }
    }

    /// What is at this place of every rank; all around it must be as it was.
    fn read(&self, window: usize, at: usize, len: usize, untouched: bool) -> Vec<Vec<u8>> {
        let read = |buffer: &Buffer| {
            let mut bytes = vec![0; BYTES];
            buffer.read(0, &mut bytes).unwrap();
            let around = bytes[..at].iter().chain(&bytes[at + len..]);
            assert!(!untouched || around.clone().all(|byte| *byte == 0xee), "bytes beside the output");
            bytes[at..at + len].to_vec()
        };
        self.buffers[window].iter().map(read).collect()
    }

    fn slice(&self, window: usize, rank: usize, range: Range<usize>) -> WindowSlice {
        self.windows[window][rank].slice(range).unwrap()
    }

    /// Starts it on every rank and waits for all.
    fn run(&self, start: impl Fn(usize, &Communicator) -> Result<KernelHandle<()>>) {
        let running: Vec<_> = self.ranks.iter().enumerate().map(|(rank, comm)| start(rank, comm)).collect();
        running.into_iter().for_each(|handle| drop(handle.unwrap().join().unwrap()));
    }

    fn end(self) {
        drop((self.windows, self.buffers));
        finalize(self.ranks);
    }

    fn all_gather(&self, n: usize, from: usize, to: usize) {
        let expected: Vec<u8> = (0..4).flat_map(|rank| Self::input(rank, n)).collect();
        self.fill(1, |_| 0, 0);
        self.fill(0, |_| from, n);
        self.run(|rank, comm| {
            comm.start_all_gather(&self.slice(0, rank, from..from + n), &self.slice(1, rank, to..to + 4 * n))
        });
        assert!(
            self.read(1, to, 4 * n, true).iter().all(|output| *output == expected),
            "{n} at {from}, {to}"
        );
        // In place.
        let own = |rank: usize| to + rank * n;
        self.fill(1, own, n);
        self.run(|rank, comm| {
            let send = self.slice(1, rank, own(rank)..own(rank) + n);
            comm.start_all_gather(&send, &self.slice(1, rank, to..to + 4 * n))
        });
        assert!(self.read(1, to, 4 * n, true).iter().all(|output| *output == expected), "{n} in place");
    }

    fn all_to_all(&self, n: usize, from: usize, to: usize) {
        self.fill(1, |_| 0, 0);
        self.fill(0, |_| from, 4 * n);
        self.run(|rank, comm| {
            let send = self.slice(0, rank, from..from + 4 * n);
            comm.start_all_to_all(&send, &self.slice(1, rank, to..to + 4 * n))
        });
        for (me, output) in self.read(1, to, 4 * n, true).into_iter().enumerate() {
            let block = |rank| Self::input(rank, 4 * n)[me * n..(me + 1) * n].to_vec();
            assert_eq!(output, (0..4).flat_map(block).collect::<Vec<u8>>(), "{n} at {from}, {to}, rank {me}");
        }
    }

    fn broadcast(&self, n: usize, from: usize, to: usize, root: usize) {
        let start = |comm: &Communicator, send: &WindowSlice, recv: &WindowSlice| {
            comm.start_broadcast(send, recv, Rank::new(root as u32))
        };
        self.fill(1, |_| 0, 0);
        self.fill(0, |_| from, n);
        self.run(|rank, comm| {
            start(comm, &self.slice(0, rank, from..from + n), &self.slice(1, rank, to..to + n))
        });
        assert!(self.read(1, to, n, true).iter().all(|output| *output == Self::input(root, n)));
        self.run(|rank, comm| {
            let place = self.slice(0, rank, from..from + n);
            start(comm, &place, &place)
        });
        assert!(self.read(0, from, n, true).iter().all(|output| *output == Self::input(root, n)), "in place");
    }

    fn reduce_scatter(&self, count: u32, at: usize, dtype: DType, op: ReduceOp, in_place: bool) {
        let size = dtype.size_bytes();
        let len = count as usize * size;
        let integer = is_integer(dtype);
        self.fill(1, |_| 0, 0);
        for (rank, buffer) in self.buffers[0].iter().enumerate() {
            let bytes: Vec<u8> =
                (0..4 * count).flat_map(|i| encode(f64::from(input(rank as u32, i)), dtype)).collect();
            buffer.write(at * size, &bytes).unwrap();
        }
        let own = |rank: usize| at * size + rank * len;
        let place = |rank: usize| if in_place { own(rank) } else { size };
        self.run(|rank, comm| {
            let recv = self.slice(usize::from(!in_place), rank, place(rank)..place(rank) + len);
            comm.start_reduce_scatter(&self.slice(0, rank, own(0)..own(4)), &recv, dtype, op)
        });
        for (rank, buffer) in self.buffers[usize::from(!in_place)].iter().enumerate() {
            let mut output = vec![0; len];
            buffer.read(place(rank), &mut output).unwrap();
            let mine = rank as u32 * count..(rank as u32 + 1) * count;
            let expected: Vec<u8> = mine.flat_map(|i| encode(expected(i, op, integer), dtype)).collect();
            assert_eq!(output, expected, "{op} of {count} {dtype} on rank {rank}");
        }
    }
}

#[test]
fn data_moves_as_defined_at_odd_sizes_and_places() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        for (n, from, to) in [(0, 0, 0), (1, 3, 5), (7, 1, 0), (64, 0, 64), (1_001, 13, 8), (50_003, 6, 1)] {
            scene.all_gather(n, from, to);
            scene.all_to_all(n, from, to);
            scene.broadcast(n, from, to, n % 4);
        }
        scene.end();
    }
}

#[test]
fn every_type_and_operation_is_reduced_and_scattered() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                for in_place in [false, true] {
                    scene.reduce_scatter(75, 3, dtype, op, in_place);
                }
            }
            scene.reduce_scatter(5_003, 1, dtype, ReduceOp::Sum, true);
            scene.reduce_scatter(0, 1, dtype, ReduceOp::Sum, false);
        }
        scene.end();
    }
}

/// The calls that block, on a thread for each rank, one kind after the other over the same barrier.
#[test]
fn calls_that_block_do_the_same() {
    let scene = Scene::new(&[3, 1]);
    scene.fill(1, |_| 0, 0);
    scene.fill(0, |_| 0, 4_000);
    std::thread::scope(|scope| {
        for (rank, comm) in scene.ranks.iter().enumerate() {
            let scene = &scene;
            scope.spawn(move || {
                let (a, b) = (|range| scene.slice(0, rank, range), |range| scene.slice(1, rank, range));
                for _ in 0..20 {
                    comm.all_to_all(&a(0..4_000), &b(0..4_000)).unwrap();
                    comm.all_gather(&a(0..1_000), &b(4_000..8_000)).unwrap();
                    comm.broadcast(&a(0..1_000), &b(8_000..9_000), Rank::new(2)).unwrap();
                    comm.reduce_scatter(&a(0..4_000), &b(9_000..10_000), DType::U8, ReduceOp::Max).unwrap();
                    comm.all_reduce(&a(0..8), &b(10_000..10_008), DType::U8, ReduceOp::Max).unwrap();
                }
            });
        }
    });
    let max = |i: usize| (0..4).map(|rank| Scene::input(rank, 4_000)[i]).max().unwrap();
    for (me, output) in scene.read(1, 0, 10_008, true).into_iter().enumerate() {
        assert_eq!(output[1_000..2_000], Scene::input(1, 4_000)[me * 1_000..(me + 1) * 1_000]);
        assert_eq!(output[6_000..7_000], Scene::input(2, 1_000));
        assert_eq!(output[8_000..9_000], Scene::input(2, 1_000));
        assert!(output[9_000..10_000].iter().enumerate().all(|(i, byte)| *byte == max(me * 1_000 + i)));
        assert!(output[10_000..].iter().enumerate().all(|(i, byte)| *byte == max(i)));
    }
    scene.end();
}

#[test]
fn wrong_lengths_roots_and_overlaps_are_typed_errors() {
    let scene = Scene::new(&[4]);
    let comm = &scene.ranks[0];
    let (a, b) = (|range| scene.slice(0, 0, range), |range| scene.slice(1, 0, range));
    let what = |result: Result<KernelHandle<()>>| match result.and_then(|handle| handle.join().map(drop)) {
        Err(Error::Misuse(Misuse::Other { what })) => what,
        other => panic!("a misuse was expected, not {other:?}"),
    };
    let (sum, f32) = (ReduceOp::Sum, DType::F32);
    assert!(what(comm.start_all_gather(&a(0..8), &b(0..8))).contains("8 bytes in, 8 bytes out"));
    assert!(what(comm.start_all_to_all(&a(0..6), &b(0..6))).contains("equal blocks for all ranks"));
    assert!(what(comm.start_all_to_all(&a(0..8), &b(0..4))).contains("all-to-all takes"));
    assert!(what(comm.start_broadcast(&a(0..8), &b(0..4), Rank::new(1))).contains("as much in as out"));
    assert!(what(comm.start_reduce_scatter(&a(0..8), &b(0..8), f32, sum)).contains("reduce-scatter takes"));
    assert!(what(comm.start_reduce_scatter(&a(0..24), &b(0..6), f32, sum)).contains("elements of 4 bytes"));
    assert!(
        what(comm.start_reduce_scatter(&a(2..18), &b(0..4), f32, sum)).contains("start at bytes 2 and 0")
    );
    let outside = comm.start_broadcast(&a(0..8), &b(0..8), Rank::new(4)).map(drop);
    assert!(matches!(outside, Err(Error::Misuse(Misuse::NotInTeam { .. }))));
    // Outputs that overlap inputs, other than in place: found in the kernel, before it has arrived anywhere.
    assert!(what(comm.start_all_gather(&a(8..16), &a(0..32))).contains("overlaps"));
    assert!(what(comm.start_all_to_all(&a(0..32), &a(0..32))).contains("overlaps"));
    assert!(what(comm.start_broadcast(&a(0..8), &a(4..12), Rank::new(0))).contains("overlaps"));
    assert!(what(comm.start_reduce_scatter(&a(0..32), &a(8..16), f32, sum)).contains("overlaps"));
    // What comes after them runs.
    scene.all_gather(9, 0, 0);
    scene.end();
}

/// All collectives are over the LSA team.
#[test]
fn each_lsa_team_moves_its_own() {
    for layout in layouts(4) {
        let scene = Scene::of(team_world(&layout, 2));
        scene.fill(1, |_| 0, 0);
        scene.fill(0, |_| 0, 10);
        scene.run(|rank, comm| {
            comm.start_all_gather(&scene.slice(0, rank, 0..10), &scene.slice(1, rank, 0..20))
        });
        for (rank, output) in scene.read(1, 0, 20, true).into_iter().enumerate() {
            let first = rank / 2 * 2;
            assert_eq!(output, [Scene::input(first, 10), Scene::input(first + 1, 10)].concat());
        }
        let root = |rank: usize| Rank::new(rank as u32 / 2 * 2 + 1);
        scene.run(|rank, comm| {
            comm.start_broadcast(&scene.slice(0, rank, 0..10), &scene.slice(1, rank, 0..10), root(rank))
        });
        for (rank, output) in scene.read(1, 0, 10, false).into_iter().enumerate() {
            assert_eq!(output, Scene::input(rank / 2 * 2 + 1, 10));
        }
        scene.end();
    }
}

#[test]
fn any_sizes_and_places() {
    let scene = Scene::new(&[2, 2]);
    let config = ProptestConfig { failure_persistence: None, cases: 40, ..ProptestConfig::default() };
    let arguments = (0..9_000_usize, 0..200_usize, 0..200_usize, 0..4_usize);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&arguments, |(n, from, to, root)| {
        scene.all_gather(n, from, to);
        scene.all_to_all(n, from, to);
        scene.broadcast(n, from, to, root);
        scene.reduce_scatter(n as u32 / 8, from, DType::F64, ReduceOp::Sum, to % 2 == 0);
        Ok(())
    });
    outcome.unwrap();
    scene.end();
}
