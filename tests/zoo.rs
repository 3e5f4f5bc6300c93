//! The bug zoo: bugs that symwin could have had are planted and must be found by exploration, each within a stated number
//! of runs at a fixed seed, by the oracle that is there for it. The same runs without the bug must find nothing.
//!
//! `cargo nextest run --features bug-zoo --test zoo`; `docs/bug_zoo.md` says what each bug is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use symwin::error::{Cause, Error, FailureCause};
use symwin::sim::{Bug, Device, Faults, Policy, Shape, Sim, World};
use symwin::{
    BufferSlice, Communicator, DevCommRequirements, Group, Rank, Registration, Result, Window, WindowFlags,
};

/// Builds a world.
type Build = fn(&Arc<World>) -> Result<()>;

/// One bug, or one with the net under it cut, and how it is found.
struct Case {
    bugs: &'static [Bug],
    /// The only rank that has the bug; all of them without it.
    on: Option<u32>,
    world: Build,
    device: Device,
    faults: Faults,
    policy: Policy,
    /// What the failure must say: the right oracle found it.
    by: &'static str,
}

impl Case {
    /// A bug of all ranks on the null device, without faults, to be found in so many random runs.
    const fn new(bugs: &'static [Bug], world: Build, runs: u64, by: &'static str) -> Self {
        let policy = Policy::random(SEED).runs(runs);
        Self { bugs, on: None, world, device: Device::Null, faults: Faults::empty(), policy, by }
    }

    const fn on(mut self, rank: u32) -> Self {
        self.on = Some(rank);
        self
    }

    const fn with(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    const fn on_host(mut self) -> Self {
        self.device = Device::Host;
        self
    }

    const fn on_multicast(mut self) -> Self {
        self.device = Device::Multicast;
        self
    }

    fn sim(&self) -> Sim {
        Sim::new().device(self.device).faults(self.faults, 4, 4).verify_every(0)
    }

    /// A line of the summary.
    fn check(&self) -> Result<String, String> {
        let names = self.bugs.iter().map(|bug| format!("{bug:?}")).collect::<Vec<_>>().join(" + ");
        let clean = self.sim().explore(&self.policy, self.world);
        let clean =
            clean.map_err(|failure| format!("{names}: without the bug there is a failure\n{failure}"))?;
        let planted = self.sim().explore(&self.policy, |world| {
            for &bug in self.bugs {
                match self.on {
                    Some(rank) => world.plant_on(Rank::new(rank), bug),
                    None => world.plant(bug),
                }
            }
            (self.world)(world)
        });
        let Err(failure) = planted else { return Err(format!("{names}: not found in {} runs", clean.runs)) };
        let Some(found) = failure.broken.iter().find(|what| what.contains(self.by)) else {
            return Err(format!("{names}: nothing says `{}`\n{failure}", self.by));
        };
        let found: String = found.chars().take(100).collect();
        Ok(format!("{names:34} {:>4} of {:>4}  {found}", failure.run + 1, clean.runs))
    }
}

const SEED: u64 = 1;

/// What ends jobs and communicators.
const ENDS: Faults = Faults::ABORT.union(Faults::CUT).union(Faults::DROP).union(Faults::KILL);

fn cases() -> Vec<Case> {
    use Bug::*;
    vec![
        Case::new(&[AbandonedRuns], abandons, 5, "though rank 0 dropped its group"),
        Case::new(&[AbortUntold], aborts, 5, "no answer within"),
        Case::new(&[BindsEarly], multicasts, 20, "P-6").on_multicast(),
        Case::new(&[ClosesTwice], closes, 5, "P-5"),
        Case::new(&[CommitsEarly], closes, 5, "broke the protocol").on(1),
        Case::new(&[DamageUnheard], damages, 100, "no answer within").with(Faults::CORRUPT),
        Case::new(&[DropLeaks], fails, 500, "P-5").with(ENDS),
        Case::new(&[DropUndoes], fails, 2_000, "P-3").with(ENDS),
        Case::new(&[ExtraRoundAlone], shares, 5, "no answer within"),
        Case::new(&[GoodbyeEarly], leaves, 20, "has finalized"),
        Case::new(&[GoodbyeUnheard], goes, 20, "no answer within"),
        Case::new(&[GroupNameIgnored], two_threads, 50, "P-3"),
        Case::new(&[HandlesByOrder], stamps, 2, "P-3").on_host(),
        Case::new(&[HidesFault], retries_on_one_host, 200, "P-2").with(Faults::DRIVER),
        Case::new(&[LossUnheard], kills, 20, "no answer within"),
        Case::new(&[MappingsLeft], retries, 200, "the third try failed too").with(Faults::DRIVER),
        Case::new(&[NoDeadline], absence, 5, "stuck"),
        Case::new(&[OwnSizes], sizes, 5, "have parted"),
        Case::new(&[OwnSizes, DigestUnchecked], sizes, 5, "P-1"),
        Case::new(&[PrintsIgnored], swaps, 5, "P-3"),
        Case::new(&[QuarantineUntold], retries, 500, "the third try failed too").with(Faults::DRIVER),
        Case::new(&[QueueAsleep], kills, 20, "stuck"),
        Case::new(&[ReferenceLeft], retries, 200, "P-5").with(Faults::DRIVER),
        Case::new(&[RefusesAlone], refuses, 5, "broke the protocol"),
        Case::new(&[ReleasesTwice], retries, 200, "P-5").with(Faults::DRIVER),
        Case::new(&[RetiresAtOnce], closes_meanwhile, 50, "P-1"),
        Case::new(&[RetiresInFlight], closes_shared, 50, "publishing"),
        Case::new(&[RoundsMixed], rounds, 50, "no answer within"),
        Case::new(&[ShiftForgotten], stamps, 2, "P-3").on_host(),
        Case::new(&[SlotLeft], retries, 200, "P-5").with(Faults::DRIVER),
        Case::new(&[TeamUnheard], retries, 200, "P-2").with(Faults::DRIVER),
        Case::new(&[TokenLeft], retries, 200, "P-5").with(Faults::DRIVER),
        Case::new(&[UnmapsForAll], neighbours, 20, "P-3"),
    ]
}

#[test]
fn every_planted_bug_is_found_and_nothing_else() {
    let cases = cases();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(vec![None; cases.len()]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((index, case)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(index).map(|case| (index, case))
                } {
                    let start = std::time::Instant::now();
                    let line =
                        case.check().map(|line| format!("{:>5} ms  {line}", start.elapsed().as_millis()));
                    lines.lock().unwrap()[index] = Some(line);
                }
            });
        }
    });
    let mut missed = Vec::new();
    for line in lines.into_inner().unwrap().into_iter().flatten() {
        match line {
            Ok(line) => println!("{line}"),
            Err(why) => missed.push(why),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

/// The same worlds under more faults and for longer, with nothing planted: for now and then.
#[test]
#[ignore = "takes a minute"]
fn nothing_is_found_where_nothing_is_planted() {
    let world = |shape: Shape, device| {
        let processes = (shape.hosts * shape.processes) as usize;
        Sim::new().device(device).verify_every(0).faults(
            Faults::all(),
            processes,
            shape.world_size() as usize,
        )
    };
    let quiet = Faults::all().difference(Faults::DRIVER);
    let cases: [(&str, Sim, Build); 4] = [
        ("retries", world(TWO_HOSTS, Device::Null), retries),
        ("retries on one host", world(Shape::processes(4), Device::Multicast), retries_on_one_host),
        ("failures", world(TWO_EACH, Device::Null).faults(quiet, 2, 4), fails),
        ("multicasts", world(THREE, Device::Multicast), multicasts),
    ];
    std::thread::scope(|scope| {
        for (name, sim, build) in cases {
            scope.spawn(move || {
                for policy in [Policy::random(SEED).runs(20_000), Policy::pct(SEED, 3).runs(20_000)] {
                    let report =
                        sim.explore(&policy, build).unwrap_or_else(|failure| panic!("{name}: {failure}"));
                    println!("{name}: {} runs, {} with faults", report.runs, report.faulty);
                }
            });
        }
    });
}

/// A script for each rank.
fn scripts<F>(world: &Arc<World>, shape: Shape, program: impl Fn(Arc<World>, Communicator) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    for comm in world.communicator_of("world", shape)? {
        let name = comm.rank().to_string();
        world.script(&name, program(Arc::clone(world), comm));
    }
    Ok(())
}

const TWO_HOSTS: Shape = Shape { hosts: 2, processes: 2, ranks: 1 };
const TWO_EACH: Shape = Shape { hosts: 1, processes: 2, ranks: 2 };
const THREE: Shape = Shape { hosts: 1, processes: 3, ranks: 1 };

/// Registers one window in a group of this name.
async fn register(comm: &Communicator, group: &str, what: impl Into<BufferSlice>) -> Result<Window> {
    let group = Group::named(group);
    let window = group.register(comm, what.into(), WindowFlags::empty());
    drop(group.submit());
    window.await
}

/// A few rounds on two hosts.
fn rounds(world: &Arc<World>) -> Result<()> {
    scripts(world, TWO_HOSTS, |world, comm| async move {
        for round in 0..3 {
            let buffer = comm.alloc(4096)?;
            let window = register(&comm, &format!("round {round}"), &buffer).await?;
            world.placed(&comm, &format!("round {round}"), &window);
        }
        World::finalize(comm).await
    })
}

/// A call of some device may fail. What was rolled back is tried again, and must then succeed.
fn retries(world: &Arc<World>) -> Result<()> {
    retries_in(world, TWO_HOSTS)
}

/// The same in one LSA team, where no leader speaks for the others.
fn retries_on_one_host(world: &Arc<World>) -> Result<()> {
    retries_in(world, Shape::processes(4))
}

fn retries_in(world: &Arc<World>, shape: Shape) -> Result<()> {
    scripts(world, shape, |world, comm| async move {
        let ended = retry(&world, &comm).await;
        let closed = World::finalize(comm).await;
        if world.has_faults() { Ok(()) } else { ended.and(closed) }
    })
}

async fn retry(world: &World, comm: &Communicator) -> Result<()> {
    for round in 0..4 {
        for attempt in 1.. {
            // One call fails, once.
            let buffer = comm.alloc_own(4096).or_else(|_| comm.alloc_own(4096))?;
            match register(comm, &format!("round {round}"), &buffer).await {
                Ok(window) => {
                    world.placed(comm, &format!("round {round}, try {attempt}"), &window);
                    break;
                }
                Err(Error::RolledBack(_)) if attempt < 3 => {}
                Err(Error::RolledBack(why)) => {
                    world.fail(format!("the third try failed too: {why}"));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Each rank's part has another size.
fn sizes(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let mut windows = Vec::new();
        for round in 0..2 {
            let buffer = comm.alloc_own((2 << 20) * (comm.rank().index() + 1))?;
            let group = Group::named(format!("round {round}"));
            let window = group.register_with(&comm, Registration::new(&buffer).asymmetric());
            drop(group.submit());
            let window = window.await?;
            world.placed(&comm, &format!("round {round}"), &window);
            windows.push(window);
        }
        drop(windows);
        World::finalize(comm).await
    })
}

/// Two allocations in a batch, each rank's window somewhere else in its own: does every rank reach every other's?
fn stamps(world: &Arc<World>) -> Result<()> {
    scripts(world, TWO_EACH, |world, comm| async move {
        let step = usize::try_from(comm.granularity()).expect("a granularity is a length");
        let start = comm.rank().index() * step;
        let group = Group::named("both");
        let mut pending = Vec::new();
        for number in 0..2 {
            let buffer = comm.alloc_own(8 * step)?;
            let slice = buffer.slice(start..start + 4096)?;
            World::stamp(&comm, &slice, number)?;
            pending.push(group.register(&comm, &slice, WindowFlags::empty()));
        }
        drop(group.submit());
        for (number, pending) in (0..).zip(pending) {
            let window = pending.await?;
            world.placed(&comm, &format!("window {number}"), &window);
            world.check_stamps(&comm, &window, number)?;
        }
        World::finalize(comm).await
    })
}

/// Rank 0 registers what its peers know already, together with something new of theirs.
fn shares(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let (a, b) = (comm.alloc_own(4096)?, comm.alloc_own(4096)?);
        let first = register(&comm, "first", &a).await?;
        let second = register(&comm, "second", if comm.rank().get() == 0 { &a } else { &b }).await?;
        world.placed(&comm, "second", &second);
        drop(first);
        World::finalize(comm).await
    })
}

/// Rank 1 asks for what cannot be; the others hear of it, and the next group succeeds.
fn refuses(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let buffer = comm.alloc(4096)?;
        let start = if comm.rank().get() == 1 { 100 } else { 0 };
        match register(&comm, "odd", buffer.slice(start..start + 100)?).await {
            Err(Error::RolledBack(why)) if matches!(why.cause, Cause::Refused { .. }) => {}
            Ok(_) => world.fail("a misaligned window was made"),
            Err(error) => return Err(error),
        }
        drop(register(&comm, "even", &buffer).await?);
        World::finalize(comm).await
    })
}

/// Rank 0 drops its group before its end; the others hear of it, and the next group succeeds.
fn abandons(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let buffer = comm.alloc(4096)?;
        let group = Group::named("dropped");
        let window = group.register(&comm, &buffer, WindowFlags::empty());
        if comm.rank().get() == 0 {
            drop(group);
        } else {
            drop(group.submit());
        }
        match window.await {
            Err(Error::RolledBack(why)) if matches!(why.cause, Cause::Abandoned { .. }) => {}
            Ok(_) => {
                world.fail(format!("{} has a window though rank 0 dropped its group", comm.rank()));
            }
            Err(error) => return Err(error),
        }
        drop(register(&comm, "next", &buffer).await?);
        World::finalize(comm).await
    })
}

/// Rank 0 aborts; every other rank must hear its reason.
fn aborts(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let buffer = comm.alloc(4096)?;
        let first = register(&comm, "first", &buffer).await;
        if comm.rank().get() == 0 {
            comm.abort("enough");
            first?;
        } else {
            // Rank 0 may abort before this one has seen the end of the first batch.
            let second = register(&comm, "second", &buffer).await;
            for outcome in [first.map(|_| true), second.map(|_| false)] {
                match outcome {
                    Err(Error::Failed(failure)) if matches!(failure.cause, FailureCause::Aborted { .. }) => {}
                    Ok(true) => {}
                    Ok(false) => world.fail("a window without rank 0"),
                    Err(error) => return Err(error),
                }
            }
        }
        World::finalize(comm).await
    })
}

/// Process 2 dies while two groups of every rank are under way; both must end, at once and by its name.
fn kills(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let buffer = comm.alloc(4096)?;
        if comm.rank().get() == 2 {
            drop(register(&comm, "first", &buffer).await?);
            world.kill(2);
            return Ok(());
        }
        // It may be dead before the others have seen the end of the first batch.
        drop(register(&comm, "first", &buffer).await);
        let groups = [Group::named("second"), Group::named("third")];
        let pending: Vec<_> =
            groups.iter().map(|group| group.register(&comm, &buffer, WindowFlags::empty())).collect();
        groups.into_iter().for_each(|group| drop(group.submit()));
        for window in pending {
            match window.await {
                Err(Error::Failed(failure)) if !matches!(failure.cause, FailureCause::Deadline { .. }) => {}
                Ok(_) => world.fail("a window without rank 2"),
                Err(error) => return Err(error),
            }
        }
        World::finalize(comm).await
    })
}

/// Rank 2 does nothing at all until the others have given up.
fn absence(world: &Arc<World>) -> Result<()> {
    let mut ranks = world.communicator_of("world", THREE)?;
    let mut absent = ranks.pop();
    for comm in ranks {
        let (world, absent) = (Arc::clone(world), absent.take());
        world.clone().script(&comm.rank().to_string(), async move {
            let buffer = comm.alloc(4096)?;
            match register(&comm, "alone", &buffer).await {
                Err(Error::Failed(_)) => {}
                Ok(_) => world.fail("a window without rank 2"),
                Err(error) => return Err(error),
            }
            drop(absent);
            World::finalize(comm).await
        });
    }
    Ok(())
}

/// What is queued when finalize is called still completes.
fn leaves(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |_, comm| async move {
        let buffer = comm.alloc(4096)?;
        let group = Group::named("last");
        let window = group.register(&comm, &buffer, WindowFlags::empty());
        drop(group.submit());
        World::finalize(comm).await?;
        drop(window.await?);
        Ok(())
    })
}

/// Rank 1 registers in another order: what is made must be what was meant.
fn swaps(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let labels = if comm.rank().get() == 1 { ["b", "a"] } else { ["a", "b"] };
        let group = Group::start();
        let mut pending = Vec::new();
        for label in labels {
            let buffer = comm.alloc_own(4096)?;
            pending.push((label, group.register_with(&comm, Registration::new(&buffer).label(label))));
        }
        drop(group.submit());
        let mut windows = Vec::new();
        for (label, pending) in pending {
            match pending.await {
                Ok(window) => {
                    world.placed(&comm, label, &window);
                    windows.push(window);
                }
                Err(Error::RolledBack(why)) if matches!(why.cause, Cause::Mismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        drop(windows);
        World::finalize(comm).await
    })
}

/// Two scripts on each rank, each with a group of its own, in whatever order.
fn two_threads(world: &Arc<World>) -> Result<()> {
    for comm in world.communicator_of("world", THREE)? {
        let comm = Arc::new(comm);
        for (index, group) in ["left", "right"].into_iter().enumerate() {
            let (world, comm) = (Arc::clone(world), Arc::clone(&comm));
            let name = format!("{}, {group}", comm.rank());
            world.clone().script(&name, async move {
                let buffer = comm.alloc_own(4096 * (index + 1))?;
                let request = Group::named(group);
                let window = request.register_with(&comm, Registration::new(&buffer).asymmetric());
                drop(request.submit());
                match window.await {
                    Ok(window) => world.placed(&comm, group, &window),
                    Err(Error::RolledBack(why)) if matches!(why.cause, Cause::Mismatch { .. }) => {}
                    Err(error) => return Err(error),
                }
                match Arc::into_inner(comm) {
                    Some(comm) => World::finalize(comm).await,
                    None => Ok(()),
                }
            });
        }
    }
    Ok(())
}

/// A window is closed by name while other handles of it live.
fn closes(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |_, comm| async move {
        let buffer = comm.alloc(4096)?;
        let other = register(&comm, "first", &buffer).await?;
        let window = register(&comm, "second", &buffer).await?;
        window.close()?;
        drop(window);
        drop(register(&comm, "third", &buffer).await?);
        drop(other);
        World::finalize(comm).await
    })
}

/// A window is closed by another script at any time, while this one registers something else.
fn closes_meanwhile(world: &Arc<World>) -> Result<()> {
    closing(world, false)
}

/// The same, while this one registers the same memory again.
fn closes_shared(world: &Arc<World>) -> Result<()> {
    closing(world, true)
}

fn closing(world: &Arc<World>, shared: bool) -> Result<()> {
    scripts(world, THREE, move |world, comm| async move {
        let (a, b) = (comm.alloc_own(4096)?, comm.alloc_own(4096)?);
        let first = register(&comm, "first", &a).await?;
        world.script(&format!("closer {}", comm.rank()), async move {
            drop(first);
            Ok::<(), Error>(())
        });
        let second = register(&comm, "second", if shared { &a } else { &b }).await?;
        world.placed(&comm, "second", &second);
        drop(second);
        World::finalize(comm).await
    })
}

/// A device communicator with a multicast object.
fn multicasts(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let ended = multicast(&comm).await;
        let closed = World::finalize(comm).await;
        if world.has_faults() { Ok(()) } else { ended.and(closed) }
    })
}

async fn multicast(comm: &Communicator) -> Result<()> {
    let first = register(comm, "first", &comm.alloc_own(4096)?).await?;
    let group = Group::named("multicast");
    let dev_comm = group.create_dev_comm(comm, DevCommRequirements::new().lsa_multimem(true));
    drop(group.submit());
    let dev_comm = dev_comm.await?;
    drop(first);
    drop(register(comm, "second", &comm.alloc_own(4096)?).await?);
    drop(dev_comm);
    drop(register(comm, "third", &comm.alloc_own(4096)?).await?);
    Ok(())
}

/// Frames may be damaged: whoever is hurt hears of it, and waits for no deadline.
fn damages(world: &Arc<World>) -> Result<()> {
    scripts(world, TWO_HOSTS, |world, comm| async move {
        for round in 0..3 {
            let buffer = comm.alloc(4096)?;
            match register(&comm, &format!("round {round}"), &buffer).await {
                Ok(window) => drop(window),
                Err(Error::Failed(why)) if matches!(why.cause, FailureCause::Deadline { .. }) => {
                    return Err(Error::Failed(why));
                }
                Err(_) if world.has_faults() => break,
                Err(error) => return Err(error),
            }
        }
        World::finalize(comm).await
    })
}

/// Two processes of two ranks each, whose communicator may fail at any time. What was committed on a rank is there until
/// that rank closes it, whatever became of the others.
fn fails(world: &Arc<World>) -> Result<()> {
    scripts(world, TWO_EACH, |world, comm| async move {
        let mut windows = Vec::new();
        for round in 0..4 {
            let buffer = comm.alloc_own(4096)?;
            match register(&comm, &format!("round {round}"), &buffer).await {
                Ok(window) => windows.push(window),
                Err(_) if world.has_faults() => break,
                Err(error) => return Err(error),
            }
        }
        for window in &windows {
            world.check_reach(&comm, window);
        }
        drop(windows);
        let closed = World::finalize(comm).await;
        if world.has_faults() { Ok(()) } else { closed }
    })
}

/// Of two ranks in a process one closes its window; the other one's stays.
fn neighbours(world: &Arc<World>) -> Result<()> {
    scripts(world, TWO_EACH, |world, comm| async move {
        let buffer = comm.alloc_own(4096)?;
        let mut first = Some(register(&comm, "first", &buffer).await?);
        if comm.rank().get() % 2 == 1 {
            first = None;
        }
        drop(register(&comm, "second", &comm.alloc_own(4096)?).await?);
        if let Some(window) = &first {
            world.check_reach(&comm, window);
        }
        drop(first);
        World::finalize(comm).await
    })
}

/// Rank 0 leaves; the others hear so at once when they go on.
fn goes(world: &Arc<World>) -> Result<()> {
    scripts(world, THREE, |world, comm| async move {
        let buffer = comm.alloc(4096)?;
        drop(register(&comm, "first", &buffer).await?);
        if comm.rank().get() != 0 {
            match register(&comm, "second", &buffer).await {
                Err(Error::Finalized { .. }) => {}
                Ok(_) => world.fail("a window without rank 0"),
                Err(error) => return Err(error),
            }
        }
        World::finalize(comm).await
    })
}
