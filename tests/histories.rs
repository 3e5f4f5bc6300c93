//! P-1, P-3, P-5 over unequal histories: ranks allocate, register and close different things in different order, and
//! batches fail here and there; the pointers of every open window stay right.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "these are tests of four ranks; clippy takes helpers for none"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use symwin::driver::Call;
use symwin::driver::faulty::Faulty;
use symwin::{
    Buffer, BufferSlice, Communicator, DevComm, DevCommRequirements, Error, Group, Pending, Rank,
    Registration, Window,
};

const PAGE: usize = 4096;

/// SplitMix64: the same history for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Says which history failed.
struct Seed<'a>(u64, &'a [u32], u32, usize);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, layout, lsa, step) = self;
            eprintln!("history: seed {seed}, layout {layout:?}, LSA team size {lsa}, step {step}");
        }
    }
}

/// One rank as the test knows it.
struct Side {
    random: Random,
    /// The first ones are made by every rank alike; each rank goes its own way after that.
    buffers: Vec<Buffer>,
    windows: BTreeMap<usize, (Window, BufferSlice)>,
    /// Regions of windows that this rank has closed, with memory that still is what it was.
    ghosts: BTreeMap<usize, BufferSlice>,
    dev_comms: Vec<DevComm>,
}

const COMMON: usize = 4;

/// Calls whose failure fails a batch at most, and no communicator: copies are also what publishes.
const CALLS: [Call; 11] = [
    Call::AddressRange,
    Call::Create,
    Call::Export,
    Call::Fill,
    Call::Import,
    Call::Map,
    Call::Record,
    Call::Release,
    Call::Retain,
    Call::SetAccess,
    Call::Unmap,
];

impl Side {
    fn new(seed: u64, comm: &Communicator) -> Self {
        let buffers = vec![
            comm.alloc_own(16 * PAGE).unwrap(),
            comm.alloc(8 * PAGE).unwrap(),
            comm.alloc(8 * PAGE).unwrap(),
            comm.alloc_segments(&[2 * PAGE, 4 * PAGE, 3 * PAGE]).unwrap(),
        ];
        assert_eq!(buffers.len(), COMMON);
        let random = Random(seed ^ (u64::from(comm.rank().get()) + 1) << 32);
        Self { random, buffers, windows: BTreeMap::new(), ghosts: BTreeMap::new(), dev_comms: Vec::new() }
    }

    /// Between batches: allocate, drop, close.
    fn act(&mut self, comm: &Communicator) {
        for _ in 0..self.random.below(4) {
            let pages = 1 + self.random.below(6);
            match self.random.below(8) {
                0 => self.buffers.push(comm.alloc_own(pages * PAGE).unwrap()),
                1 => self.buffers.push(comm.alloc(pages * PAGE - self.random.below(100)).unwrap()),
                2 => {
                    let sizes: Vec<_> =
                        (0..pages.min(3)).map(|_| (1 + self.random.below(3)) * PAGE).collect();
                    self.buffers.push(comm.alloc_segments(&sizes).unwrap());
                }
                3 if self.buffers.len() > COMMON => {
                    let at = COMMON + self.random.below(self.buffers.len() - COMMON);
                    self.buffers.swap_remove(at);
                }
                4 if !self.dev_comms.is_empty() => {
                    let at = self.random.below(self.dev_comms.len());
                    self.dev_comms.swap_remove(at);
                }
                _ => self.close_one(),
            }
        }
        if self.random.one_in(12) {
            while !self.windows.is_empty() {
                self.close_one();
            }
        }
    }

    fn close_one(&mut self) {
        let ids: Vec<usize> = self.windows.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.random.below(ids.len())];
        let (window, slice) = self.windows.remove(&id).unwrap();
        if self.random.one_in(2) {
            self.ghosts.insert(id, slice);
        }
        if self.random.one_in(2) {
            window.close().unwrap();
        }
    }

    /// Some region of at least `size` bytes. Half of them at places that every rank chooses alike.
    fn region(&mut self, size: usize, common: u64) -> BufferSlice {
        let mut shared = Random(common);
        let alike = shared.one_in(2);
        let random = if alike { &mut shared } else { &mut self.random };
        let count = if alike { COMMON } else { self.buffers.len() };
        let fitting: Vec<_> = self.buffers[..count].iter().filter(|buffer| buffer.len() >= size).collect();
        let buffer = fitting[random.below(fitting.len())];
        let head = random.below((buffer.len() - size) / PAGE + 1) * PAGE;
        buffer.slice(head..head + size).unwrap()
    }
}

struct History<'a> {
    ranks: Vec<Communicator>,
    faults: Vec<Arc<Faulty>>,
    sides: Vec<Side>,
    random: Random,
    lsa: usize,
    next: usize,
    seed: Seed<'a>,
}

type Queued = (Vec<(Pending<Window>, BufferSlice)>, Option<Pending<DevComm>>);

/// A batch under way.
struct Submitted {
    fate: Fate,
    /// The numbers of its windows.
    ids: std::ops::Range<usize>,
    /// By rank.
    queued: Vec<Queued>,
}

/// What becomes of a batch.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Commits,
    /// This rank's stream fails.
    Fails(usize),
    /// Some call of this rank fails, if it comes to that: before the vote, or while something is undone.
    Any(usize),
    /// This rank drops its group.
    Abandoned(usize),
}

impl<'a> History<'a> {
    fn new(seed: u64, layout: &'a [u32], lsa: u32) -> Self {
        let FaultyWorld { ranks, faults, .. } =
            faulty_world(layout, config().stride(64 << 30).lsa_team_size(lsa));
        let sides = ranks.iter().map(|comm| Side::new(seed, comm)).collect();
        let seed_of = Seed(seed, layout, lsa, 0);
        Self { ranks, faults, sides, random: Random(seed), lsa: lsa as usize, next: 0, seed: seed_of }
    }

    fn run(mut self, steps: usize) {
        for step in 0..steps {
            self.seed.3 = step;
            for (side, comm) in self.sides.iter_mut().zip(&self.ranks) {
                side.act(comm);
            }
            // Sometimes several batches are under way before any is awaited.
            let several = self.random.one_in(4);
            let count = if several { 2 + self.random.below(2) } else { 1 };
            let batches: Vec<_> = (0..count).map(|_| self.submit(!several)).collect();
            batches.into_iter().for_each(|batch| self.settle(batch));
            self.faults.iter().for_each(|faulty| faulty.heal());
            self.check();
        }
        for side in &mut self.sides {
            side.windows.clear();
            side.dev_comms.clear();
        }
        sync(&self.ranks);
        for comm in &self.ranks {
            let held = RankHeld::of(comm);
            assert_eq!((held.memories, held.agreed_memories, held.allocations), (0, 0, 0), "P-5");
            assert_eq!((held.shadow_slots, held.table_slots, held.space_bytes), (0, 0, 0), "P-5");
        }
        finalize(std::mem::take(&mut self.ranks));
    }

    /// Devices fail in a batch that is alone only: else it is open which one they fail.
    fn submit(&mut self, faults: bool) -> Submitted {
        let fate = match self.random.below(10) {
            0 if faults => Fate::Fails(self.random.below(4)),
            1 => Fate::Abandoned(self.random.below(4)),
            2 | 3 if faults => Fate::Any(self.random.below(4)),
            _ => Fate::Commits,
        };
        let tasks: Vec<(usize, bool, u64)> = (0..1 + self.random.below(5))
            .map(|_| {
                let size = (1 + self.random.below(4)) * PAGE - self.random.below(50);
                (size, self.random.one_in(3), self.random.next())
            })
            .collect();
        let dev_comm = self.random.one_in(3);
        match fate {
            Fate::Fails(rank) => self.faults[rank].fail(Call::Record, 1),
            Fate::Any(rank) => {
                let call = CALLS[self.random.below(CALLS.len())];
                self.faults[rank].fail(call, 1 + self.random.next() % 4);
            }
            Fate::Commits | Fate::Abandoned(_) => {}
        }
        let mut queued: Vec<Queued> = Vec::new();
        // Ranks come in another order each time.
        let first = self.random.below(4);
        for rank in (0..4).map(|i| (i + first) % 4) {
            let (group, comm, side) = (Group::start(), &self.ranks[rank], &mut self.sides[rank]);
            let windows = tasks.iter().map(|&(size, asymmetric, common)| {
                let size = if asymmetric { 1 + side.random.below(size) } else { size };
                let region = side.region(size, common);
                let registration = Registration::new(&region).label(format!("of {common:x}"));
                let registration = if asymmetric { registration.asymmetric() } else { registration };
                (group.register_with(comm, registration), region)
            });
            let windows = windows.collect();
            let requirements = DevCommRequirements::new().lsa_barriers(3).buffer(5000, 256);
            let dev_comm = dev_comm.then(|| group.create_dev_comm(comm, requirements));
            queued.push((windows, dev_comm));
            if fate == Fate::Abandoned(rank) { drop(group) } else { drop(group.submit()) }
        }
        queued.rotate_right(first);
        let ids = self.next..self.next + tasks.len();
        self.next = ids.end;
        Submitted { fate, ids, queued }
    }

    fn settle(&mut self, Submitted { fate, ids, queued }: Submitted) {
        let mut commits = match fate {
            Fate::Commits => Some(true),
            Fate::Fails(_) | Fate::Abandoned(_) => Some(false),
            Fate::Any(_) => None,
        };
        for (side, (windows, dev_comm)) in self.sides.iter_mut().zip(queued) {
            for (id, (window, region)) in ids.clone().zip(windows) {
                let outcome = window.wait();
                // P-2: all or none, on all ranks.
                assert_eq!(outcome.is_ok(), *commits.get_or_insert(outcome.is_ok()), "P-2: {outcome:?}");
                match outcome {
                    // A window whose buffer the caller has dropped keeps its memory.
                    Ok(window) => drop(side.windows.insert(id, (window, region))),
                    Err(Error::RolledBack(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            side.dev_comms.extend(dev_comm.and_then(|pending| pending.wait().ok()));
        }
    }

    /// P-1, and P-3 by a write through every pointer.
    fn check(&mut self) {
        for team in self.ranks.chunks(self.lsa) {
            check_digests(team);
        }
        for from in 0..4 {
            for (id, (window, own)) in &self.sides[from].windows {
                let comm = &self.ranks[from];
                let found = comm.find_window(std::ptr::without_provenance(own.address()), 1).unwrap();
                assert!(found.is_open() && found.address() <= own.address());
                let team = from / self.lsa * self.lsa;
                for to in team..team + self.lsa {
                    let side = &self.sides[to];
                    let open = side.windows.get(id).map(|(_, region)| region);
                    let Some(region) = open.or_else(|| side.ghosts.get(id)) else { continue };
                    let rank = Rank::new(to as u32);
                    assert_eq!(
                        window.size_of(rank).unwrap(),
                        region.len(),
                        "window {id}, from {from} to {to}"
                    );
                    for at in [0, region.len() - 1, self.random.below(region.len())] {
                        let mark = [self.random.next() as u8];
                        window.write(rank, at, &mark).unwrap();
                        let mut seen = [0];
                        region.read(at, &mut seen).unwrap();
                        assert_eq!(seen, mark, "P-3: window {id}, from {from} to {to}, byte {at}");
                        let back = [!mark[0]];
                        region.write(at, &back).unwrap();
                        window.read(rank, at, &mut seen).unwrap();
                        assert_eq!(seen, back, "P-3: window {id}, from {from} to {to}, byte {at}");
                    }
                    assert!(window.peer_ptr(rank, region.len()).is_err(), "the end of its part is checked");
                }
            }
        }
    }
}

fn histories(layout: &[u32], lsa: u32, seeds: std::ops::Range<u64>) {
    // One seed to look into, or more of them.
    let seeds = match std::env::var("SYMWIN_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    for seed in seeds {
        History::new(seed, layout, lsa).run(40);
    }
}

#[test]
fn p_3_unequal_histories_in_one_process() {
    histories(&[4], 4, 0..8);
}

#[test]
fn p_3_unequal_histories_in_processes() {
    histories(&[1, 1, 1, 1], 4, 100..108);
}

#[test]
fn p_3_unequal_histories_in_mixed_processes() {
    histories(&[3, 1], 4, 200..208);
}

#[test]
fn p_3_unequal_histories_in_two_teams() {
    histories(&[2, 2], 2, 300..304);
    histories(&[1, 3], 2, 304..308);
    histories(&[4], 2, 308..310);
}
