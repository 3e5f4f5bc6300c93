//! P-3: windows are closed at any call of a batch in flight, on any rank; the pointers of every open window stay right.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::sync::Arc;

use common::*;
use parking_lot::Mutex;
use symwin::driver::Call;
use symwin::{Buffer, BufferSlice, Config, Group, Pending, Rank, Window, WindowFlags};

const PAGE: usize = 4096;

/// What the batch is to the memory of the windows that are closed while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Batch {
    /// It takes their memory up again.
    Shares,
    /// It does not touch it.
    Apart,
    /// It takes it up, and is rolled back.
    SharesAndFails,
}

/// A world in which windows are closed while a batch runs.
struct Closing {
    world: FaultyWorld,
    /// Under the windows that are closed.
    victims: Vec<Buffer>,
    /// Under one window that stays open.
    steady: Vec<Buffer>,
    open: Vec<Window>,
    /// Registered by the batch only.
    fresh: Vec<Buffer>,
}

impl Closing {
    fn new(layout: &[u32], config: Config) -> Self {
        let world = faulty_world(layout, config);
        let own = || world.ranks.iter().map(|comm| comm.alloc_own(4 * PAGE).unwrap()).collect::<Vec<_>>();
        let (victims, steady, fresh) = (own(), own(), own());
        let open = windows(&world.ranks, &steady);
        Self { victims, steady, open, fresh, world }
    }

    /// Runs a batch while `during` is done at this call of this rank; gives what the batch made.
    fn batch(&self, kind: Batch) -> Option<Vec<Vec<(Window, BufferSlice)>>> {
        let ranks = &self.world.ranks;
        let group = Group::start();
        let mut queued = Vec::new();
        for (rank, comm) in ranks.iter().enumerate() {
            let mut slices = vec![self.fresh[rank].slice(0..2 * PAGE).unwrap()];
            slices.push(self.steady[rank].slice(PAGE..2 * PAGE).unwrap());
            if kind != Batch::Apart {
                slices.push(self.victims[rank].slice(PAGE..3 * PAGE).unwrap());
            }
            let pending = slices.iter().map(|slice| group.register(comm, slice, WindowFlags::empty()));
            let pending: Vec<_> = pending.collect();
            queued.push((slices, pending));
        }
        drop(group.submit());
        let made: Vec<Vec<_>> = queued
            .into_iter()
            .map(|(slices, pending)| {
                let windows = pending.into_iter().map(Pending::wait);
                windows.zip(slices).filter_map(|(window, slice)| Some((window.ok()?, slice))).collect()
            })
            .collect();
        let fails = kind == Batch::SharesAndFails;
        assert!(made.iter().all(|windows| windows.is_empty() == fails), "all or none: {made:?}");
        (!fails).then_some(made)
    }

    fn check(&self, made: &[Vec<(Window, BufferSlice)>], victims: &[Window]) {
        for (from, windows) in made.iter().enumerate() {
            for (task, (window, _)) in windows.iter().enumerate() {
                for (to, peer) in made.iter().enumerate() {
                    reaches(window, to, &peer[task].1, from);
                }
            }
        }
        for (from, window) in victims.iter().enumerate().filter(|(_, window)| window.is_open()) {
            for to in 0..4 {
                reaches(window, to, &self.victims[to].slice(0..2 * PAGE).unwrap(), from);
            }
        }
        check_pointers(&self.world.ranks, &self.open, &self.steady);
        check_digests(&self.world.ranks);
    }

    fn victims(&self) -> Vec<Window> {
        let group = Group::start();
        let ranks = self.world.ranks.iter().zip(&self.victims);
        let pending: Vec<_> = ranks
            .map(|(comm, buffer)| {
                group.register(comm, buffer.slice(0..2 * PAGE).unwrap(), WindowFlags::empty())
            })
            .collect();
        group.end().unwrap();
        pending.into_iter().map(|window| window.wait().unwrap()).collect()
    }
}

fn reaches(window: &Window, to: usize, slice: &BufferSlice, from: usize) {
    for at in [from, window.size() - 1 - from] {
        let mark = [from as u8 + 1 + 16 * to as u8];
        window.write(Rank::new(to as u32), at, &mark).unwrap();
        let mut seen = [0];
        slice.read(at, &mut seen).unwrap();
        assert_eq!(seen, mark, "P-3: from {from} to {to} at {at}");
    }
}

/// At every call of a batch on one rank, windows of this rank, of another one, or of all are closed.
fn close_at_every_call(layout: &[u32], kind: Batch) {
    let closing = Closing::new(layout, config());
    let Closing { world: FaultyWorld { ranks, faults, .. }, .. } = &closing;
    let cycle = |rank: usize, at: Option<u64>, closers: &[usize]| -> u64 {
        let victims = closing.victims();
        let chosen: Vec<Window> = closers.iter().map(|&closer| victims[closer].clone()).collect();
        let seen = Arc::new(Mutex::new((0, chosen)));
        let state = Arc::clone(&seen);
        if kind == Batch::SharesAndFails {
            faults[3 - rank].fail(Call::Record, 1);
        }
        faults[rank].on_call(Box::new(move |_, _| {
            let mut state = state.lock();
            state.0 += 1;
            if Some(state.0) == at {
                let chosen = std::mem::take(&mut state.1);
                drop(state);
                chosen.iter().for_each(|window| window.close().unwrap());
            }
        }));
        let made = closing.batch(kind);
        faults[rank].on_call(Box::new(|_, _| {}));
        let calls = seen.lock().0;
        closing.check(made.as_deref().unwrap_or_default(), &victims);
        // The next batch hears of it all, and its pointers are right too.
        let next = closing.batch(Batch::Shares).unwrap();
        closing.check(&next, &victims);
        closing.check(made.as_deref().unwrap_or_default(), &victims);
        drop((victims, made, next));
        sync(ranks);
        calls
    };
    cycle(0, None, &[]);
    let before = closing.world.held();
    for rank in [0, 3] {
        let calls = cycle(rank, None, &[]);
        assert!(calls > 10, "{calls}");
        for at in 1..=calls {
            for closers in [&[rank][..], &[3 - rank], &[0, 1, 2, 3]] {
                cycle(rank, Some(at), closers);
                closing
                    .world
                    .expect_held(&before, &format!("{layout:?}, {kind:?}: call {at} of rank {rank}"));
            }
        }
    }
    let Closing { world, victims, steady, open, fresh } = closing;
    drop((victims, steady, open, fresh));
    finalize(world.ranks);
}

#[test]
fn p_3_windows_closed_at_any_call_of_a_batch_that_shares_their_memory() {
    LAYOUTS.iter().for_each(|layout| close_at_every_call(layout, Batch::Shares));
}

#[test]
fn p_3_windows_closed_at_any_call_of_a_batch_apart_from_their_memory() {
    LAYOUTS.iter().for_each(|layout| close_at_every_call(layout, Batch::Apart));
}

#[test]
fn p_3_windows_closed_at_any_call_of_a_batch_that_rolls_back() {
    LAYOUTS.iter().for_each(|layout| close_at_every_call(layout, Batch::SharesAndFails));
}
