//! A world of its own for exploring symwin itself: every rank drives several communicators, in an order of its own, in
//! groups of registrations, and checks what it gets.

use std::sync::Arc;

use super::random::mix;
use super::world::{Device, Shape, World};
use crate::comm::Communicator;
use crate::devr::dev_comm::DevCommRequirements;
use crate::devr::flush::message::WindowFlags;
use crate::devr::window::Window;
use crate::driver::buffers::Buffer;
use crate::error::{Error, Misuse, Result};
use crate::group::{Group, Pending, Submitted};
use crate::ids::Rank;

/// Ranks x communicators x windows x groups. Rank r begins with communicator r and goes upwards if r is even, else
/// downwards, so that neighbours submit in opposite orders.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "plain figures")]
pub struct Scenario {
    /// Where the ranks are.
    pub shape: Shape,
    /// How many communicators.
    pub comms: u32,
    /// How many windows a group registers in each communicator.
    pub windows: u32,
    /// How many groups each rank runs one after another.
    pub groups: u32,
    /// Whether each rank's program is a host thread with blocking calls, and not a script.
    pub threads: bool,
    /// What the world's devices are.
    pub device: Device,
    /// Whether ranks say goodbye at the end. Without it the world just ends (for worlds of thousands of ranks, where
    /// all the goodbyes would be most of the steps).
    pub finalize: bool,
}

impl Scenario {
    /// Builds the world.
    ///
    /// # Errors
    /// What the world says.
    pub fn build(self, world: &Arc<World>) -> Result<()> {
        self.shape.check()?;
        let mut by_rank: Vec<Vec<Communicator>> = Vec::new();
        by_rank.resize_with(self.shape.world_size() as usize, Vec::new);
        for number in 0..self.comms {
            let comms = world.communicator_of(&format!("comm{number}"), self.shape)?;
            for (rank, comm) in by_rank.iter_mut().zip(comms) {
                rank.push(comm);
            }
        }
        for (rank, comms) in (0_u64..).zip(by_rank) {
            let program = Program { scenario: self, world: Arc::downgrade(world), rank };
            let name = format!("rank {rank}");
            if self.threads {
                world.host(&name, move || program.block(comms))?;
            } else {
                world.script(&name, program.run(comms));
            }
        }
        Ok(())
    }
}

/// One rank's program.
struct Program {
    scenario: Scenario,
    world: std::sync::Weak<World>,
    rank: u64,
}

/// A group's requests in one communicator.
struct Requested {
    comm: usize,
    submitted: Submitted,
    windows: Vec<Pending<Window>>,
    buffers: Vec<Buffer>,
}

/// Bytes of a window.
const BYTES: usize = 4096;

impl Program {
    async fn run(self, comms: Vec<Communicator>) -> Result<()> {
        let mut usable: Vec<bool> = vec![true; comms.len()];
        // What the group before registered: closed while this one's requests are under way.
        let mut kept: Vec<(Vec<Window>, Vec<Buffer>)> = Vec::new();
        for number in 0..self.scenario.groups {
            let mut requested = Vec::new();
            for index in self.order(comms.len()) {
                if usable[index] {
                    requested.push(self.request(index, &comms[index], number)?);
                    self.place(&[number.into(), 1, index as u64], &usable);
                    World::give_way().await;
                }
            }
            kept.clear();
            for Requested { comm, submitted, windows, buffers } in requested {
                let outcome = submitted.await.map_err(Error::from).map(drop);
                let mut ended = Vec::new();
                for window in windows {
                    ended.push(window.await);
                }
                let made;
                (made, usable[comm]) = self.judge(number, &comms[comm], outcome, ended)?;
                self.place(&[number.into(), 2, comm as u64, made.len() as u64], &usable);
                kept.push((made, buffers));
            }
        }
        kept.clear();
        for (comm, left) in self.to_finalize(comms).into_iter().zip(0..) {
            self.place(&[u64::MAX, 3, left], &usable);
            let outcome = World::finalize(comm).await;
            self.tolerate(u64::MAX, outcome)?;
        }
        Ok(())
    }

    /// The same with blocking calls.
    fn block(self, comms: Vec<Communicator>) -> Result<()> {
        let mut usable: Vec<bool> = vec![true; comms.len()];
        let mut kept: Vec<(Vec<Window>, Vec<Buffer>)> = Vec::new();
        for number in 0..self.scenario.groups {
            let mut requested = Vec::new();
            for index in self.order(comms.len()) {
                if usable[index] {
                    requested.push(self.request(index, &comms[index], number)?);
                }
            }
            kept.clear();
            for Requested { comm, submitted, windows, buffers } in requested {
                let outcome = submitted.wait().map_err(Error::from).map(drop);
                let ended = windows.into_iter().map(Pending::wait).collect();
                let made;
                (made, usable[comm]) = self.judge(number, &comms[comm], outcome, ended)?;
                kept.push((made, buffers));
            }
        }
        kept.clear();
        for comm in self.to_finalize(comms) {
            let outcome = comm.finalize();
            self.tolerate(u64::MAX, outcome)?;
        }
        Ok(())
    }

    /// Says where this program is.
    fn place(&self, place: &[u64], usable: &[bool]) {
        if let Some(world) = self.world.upgrade() {
            let usable = usable.iter().map(|usable| u64::from(*usable));
            world.position(place.iter().copied().chain(usable).fold(0, mix));
        }
    }

    fn to_finalize(&self, comms: Vec<Communicator>) -> Vec<Communicator> {
        match self.world.upgrade() {
            Some(world) if !self.scenario.finalize => {
                world.keep(comms);
                Vec::new()
            }
            _ => comms,
        }
    }

    /// The order of this rank's communicators.
    fn order(&self, comms: usize) -> Vec<usize> {
        let first = usize::try_from(self.rank).unwrap_or(0);
        let up = self.rank.is_multiple_of(2);
        (0..comms).map(|step| (first + if up { step } else { comms - step }) % comms).collect()
    }

    fn request(&self, index: usize, comm: &Communicator, number: u32) -> Result<Requested> {
        let group = Group::start();
        let mut buffers = Vec::new();
        let mut windows = Vec::new();
        for window in 0..self.scenario.windows {
            // Every other group takes all its windows from one buffer, and so has one memory.
            if window == 0 || number.is_multiple_of(2) {
                let bytes =
                    if number.is_multiple_of(2) { BYTES } else { BYTES * self.scenario.windows as usize };
                match comm.alloc(bytes) {
                    Ok(buffer) => buffers.push(buffer),
                    // Its peers must not wait for requests that do not come.
                    Err(error) => {
                        self.tolerate(number.into(), Err(error))?;
                        comm.abort("it has no memory for a window");
                        break;
                    }
                }
            }
            let Some(buffer) = buffers.last() else { break };
            let first = if number.is_multiple_of(2) { 0 } else { BYTES * window as usize };
            let slice = buffer.slice(first..first + BYTES)?;
            if self.scenario.device == Device::Host {
                buffer.write(first, &self.pattern(comm.rank(), index, number, window).to_le_bytes())?;
            }
            windows.push(group.register(comm, slice, WindowFlags::empty()));
        }
        if number % 4 == 1 {
            drop(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(2)));
        }
        Ok(Requested { comm: index, submitted: group.submit(), windows, buffers })
    }

    /// Checks what a group came to. Gives its windows, and says whether the communicator can go on.
    fn judge(
        &self,
        number: u32,
        comm: &Communicator,
        outcome: Result<()>,
        ended: Vec<Result<Window>>,
    ) -> Result<(Vec<Window>, bool)> {
        let can_go_on = !matches!(outcome, Err(Error::Failed(_) | Error::Finalized { .. }));
        // A rank that had no memory for a window has asked for fewer, and aborted.
        let whole = ended.len() == self.scenario.windows as usize;
        let windows: Result<Vec<Window>> = ended.into_iter().collect();
        if whole && outcome.is_ok() != windows.is_ok() {
            // Windows of a group are as the group is; a communicator that fails later takes none of them back.
            return Err(wrong(format!(
                "P-4: group {number} ended with {outcome:?}, its windows with {windows:?}"
            )));
        }
        if let (true, Ok(windows)) = (whole, &windows) {
            self.check(number, comm, windows)?;
        }
        self.tolerate(number.into(), outcome)?;
        Ok((windows.unwrap_or_default(), can_go_on))
    }

    /// P-3: byte 0 of each rank's window is what that rank wrote there.
    fn check(&self, number: u32, comm: &Communicator, windows: &[Window]) -> Result<()> {
        if self.scenario.device == Device::Null {
            return Ok(());
        }
        let index: usize = comm.name().trim_start_matches("comm").parse().unwrap_or(0);
        for (window, at) in windows.iter().zip(0..) {
            for rank in comm.lsa_team()?.members(comm.rank()) {
                let mut found = [0; 8];
                // A peer that has gone on and closed its window has not unmapped it here.
                window.read(rank, 0, &mut found)?;
                let wanted = self.pattern(rank, index, number, at);
                if u64::from_le_bytes(found) != wanted {
                    return Err(wrong(format!(
                        "P-3: window {at} of group {number} of {} is not {rank}'s",
                        comm.name()
                    )));
                }
            }
        }
        Ok(())
    }

    /// What a rank writes into a window before it registers it.
    fn pattern(&self, rank: Rank, comm: usize, number: u32, window: u32) -> u64 {
        mix(mix(rank.get().into(), comm as u64), mix(number.into(), window.into()))
    }

    /// An error is right where the run has faults, and if it says what happened; a mistake of the caller's it is not.
    fn tolerate(&self, at: u64, outcome: Result<()>) -> Result<()> {
        let Some(world) = self.world.upgrade() else { return outcome };
        world.note_number(mix(mix(self.rank, at), kind(&outcome)));
        match outcome {
            Err(Error::Misuse(misuse)) => Err(Error::Misuse(misuse)),
            Err(_) if world.may_fail() => Ok(()),
            other => other,
        }
    }
}

fn wrong(what: String) -> Error {
    Misuse::Other { what }.into()
}

/// Which kind of outcome this is, for digests: no text, which may have addresses in it.
fn kind(outcome: &Result<()>) -> u64 {
    match outcome {
        Ok(()) => 0,
        Err(Error::Bootstrap(_)) => 1,
        Err(Error::Device(_)) => 2,
        Err(Error::Failed(_)) => 3,
        Err(Error::Finalized { .. }) => 4,
        Err(Error::Limit { .. }) => 5,
        Err(Error::Misuse(_)) => 6,
        Err(Error::RolledBack(_)) => 7,
        #[cfg(feature = "cuda")]
        Err(Error::NoCuda(_)) => 8,
    }
}
