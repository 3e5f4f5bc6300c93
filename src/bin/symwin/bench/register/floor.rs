//! The bare driver: the calls that no registration on a device can do without, with nothing around them.
//!
//! Every allocation of every rank is mapped once in each process, in a range that the process's ranks share; one
//! set-access call spans what an owner has. Between processes each allocation is exported once, its descriptor goes with
//! as many others as a message takes, and it is imported once in each process. The leader of a process does the work of
//! all its ranks, with as many threads as asked; a rank that is not the leader exports. All allocations are new: the
//! second export of one is ten times as cheap as the first on a GPU.
#![allow(unsafe_code, reason = "the bare calls are those of the driver's contract")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use symwin::Buffer;
use symwin::driver::{Driver, Exported, Handle, HandleKind};

use super::super::mesh::{BATCH_MAX, Mesh};
use super::super::pool::{Pool, Task};
use super::protocol::Exchange;

/// One rank's part of the bare calls.
#[derive(Debug)]
pub(crate) struct Floor<'a> {
    exchange: Exchange,
    /// The ranks of this process, which lead it if this rank does.
    here: Vec<usize>,
    desk: &'a Desk,
    pool: Pool,
}

/// Where the ranks of a process lay their allocations for its leader.
#[derive(Debug, Default)]
pub(crate) struct Desk(Mutex<Vec<(usize, Vec<Arc<Memory>>)>>);

/// What a sample has made. It goes when the sample is over, outside of the time that is measured.
#[derive(Debug)]
pub(crate) struct Mapped {
    _range: Option<Arc<Range>>,
    /// All that were sent or came. To close them takes a GPU's driver long, and nobody waits for that.
    _descriptors: Vec<Arc<OwnedFd>>,
}

impl<'a> Floor<'a> {
    /// `processes` are those of the ranks.
    pub(crate) fn new(processes: &[u32], me: usize, desk: &'a Desk, threads: usize) -> anyhow::Result<Self> {
        let here = (0..processes.len()).filter(|rank| processes[*rank] == processes[me]).collect();
        Ok(Self {
            exchange: Exchange::new(processes, me),
            here,
            desk,
            pool: Pool::new(threads.saturating_sub(1))?,
        })
    }

    /// Lays the allocations of this rank where the leader finds them; to be done before a sample begins.
    pub(crate) fn lay(&self, me: usize, buffers: &[Buffer]) -> anyhow::Result<Vec<Arc<Memory>>> {
        let own: Vec<_> =
            buffers.iter().map(|buffer| Memory::of(buffer).map(Arc::new)).collect::<Result<_, _>>()?;
        self.desk.0.lock().push((me, own.clone()));
        Ok(own)
    }

    /// What the leader maps in, if this rank is it: reserved before a sample begins.
    pub(crate) fn range(&self, mesh: &Mesh, own: &[Arc<Memory>]) -> anyhow::Result<Option<Arc<Range>>> {
        if self.here.first() != Some(&mesh.me()) {
            return Ok(None);
        }
        let first = own.first().context("a rank has at least one window")?;
        let range = Range::reserve(&first.driver, mesh.ranks() * own.len(), first.size)?;
        Ok(Some(Arc::new(range)))
    }

    /// The calls.
    pub(crate) fn run(
        &self,
        mesh: &Mesh,
        own: &[Arc<Memory>],
        range: Option<Arc<Range>>,
        threads: usize,
    ) -> anyhow::Result<Mapped> {
        let mut descriptors =
            if self.exchange.to.is_empty() { Vec::new() } else { self.send(mesh, own, threads)? };
        let Some(range) = range else { return Ok(Mapped { _range: None, _descriptors: descriptors }) };
        let laid = std::mem::take(&mut *self.desk.0.lock());
        ensure!(laid.len() == self.here.len(), "a rank of this process has laid nothing to map");
        let ordinals: Vec<i32> = self.ordinals(&laid);
        let of_here =
            laid.into_iter().map(|(rank, memories)| (rank, memories.into_iter().map(Source::Own).collect()));
        self.map(&range, own.len(), of_here.collect(), &ordinals, threads)?;
        let of_others: Vec<_> = self
            .exchange
            .from
            .iter()
            .map(|peer| {
                let came = receive(mesh, *peer, own)?;
                descriptors.extend(came.iter().cloned());
                let exported = came.into_iter().map(Exported::Descriptor);
                Ok((*peer, exported.map(Source::Other).collect()))
            })
            .collect::<anyhow::Result<_>>()?;
        self.map(&range, own.len(), of_others, &ordinals, threads)?;
        Ok(Mapped { _range: Some(range), _descriptors: descriptors })
    }

    /// All devices of this process that load and store here, each once.
    fn ordinals(&self, laid: &[(usize, Vec<Arc<Memory>>)]) -> Vec<i32> {
        let of_ranks = laid.iter().filter_map(|(_, memories)| memories.first());
        let mut ordinals: Vec<i32> = of_ranks.map(|memory| memory.driver.info().ordinal).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        ordinals
    }

    /// Exports everything and sends it to one rank of each other process. Returns what was sent.
    fn send(&self, mesh: &Mesh, own: &[Arc<Memory>], threads: usize) -> anyhow::Result<Vec<Arc<OwnedFd>>> {
        let exported: Arc<Vec<Mutex<Option<Arc<OwnedFd>>>>> =
            Arc::new((0..own.len()).map(|_| Mutex::default()).collect());
        let (own, places, next) = (own.to_vec(), Arc::clone(&exported), AtomicUsize::new(0));
        let task: Task = Arc::new(move || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (Some(memory), Some(place)) = (own.get(index), places.get(index)) else { return Ok(()) };
                let descriptor = memory.export()?;
                *place.lock() = Some(descriptor);
            }
        });
        self.pool.run(threads, &task)?;
        let descriptors: Vec<_> = exported.iter().filter_map(|place| place.lock().take()).collect();
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        for peer in &self.exchange.to {
            for batch in borrowed.chunks(BATCH_MAX) {
                mesh.send_descriptors(*peer, batch)?;
            }
        }
        Ok(descriptors)
    }

    /// Maps what owners have, and lets devices into each owner's part when the last of it is mapped.
    fn map(
        &self,
        range: &Arc<Range>,
        each: usize,
        owners: Vec<(usize, Vec<Source>)>,
        ordinals: &[i32],
        threads: usize,
    ) -> anyhow::Result<()> {
        if owners.is_empty() {
            return Ok(());
        }
        ensure!(
            owners.iter().all(|(_, sources)| sources.len() == each),
            "an owner has not all of its windows"
        );
        let left: Vec<_> = owners.iter().map(|_| AtomicUsize::new(each)).collect();
        let (range, ordinals, next) = (Arc::clone(range), ordinals.to_vec(), AtomicUsize::new(0));
        let task: Task = Arc::new(move || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                let Some((rank, sources)) = owners.get(piece / each) else { return Ok(()) };
                let slot = rank * each;
                match &sources[piece % each] {
                    Source::Own(memory) => range.map(slot + piece % each, memory)?,
                    Source::Other(exported) => {
                        let memory = range.import(exported)?;
                        range.map(slot + piece % each, &memory)?;
                    }
                }
                // Whoever maps the last one has seen all others mapped.
                if left[piece / each].fetch_sub(1, Ordering::AcqRel) == 1 {
                    range.access(slot, each, &ordinals)?;
                }
            }
        });
        self.pool.run(threads, &task)
    }
}

/// Where the memory of a mapping comes from.
enum Source {
    Other(Exported),
    Own(Arc<Memory>),
}

/// As many descriptors as a rank has.
fn receive(mesh: &Mesh, peer: usize, own: &[Arc<Memory>]) -> anyhow::Result<Vec<Arc<OwnedFd>>> {
    let mut came = Vec::with_capacity(own.len());
    while came.len() < own.len() {
        let batch = mesh.receive_descriptors(peer)?;
        if batch.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        came.extend(batch.into_iter().map(Arc::new));
    }
    Ok(came)
}

/// A reference to an allocation.
#[derive(Debug)]
pub(crate) struct Memory {
    driver: Arc<dyn Driver>,
    handle: Handle,
    size: usize,
}

impl Memory {
    /// The allocation of a buffer that has one of its own.
    fn of(buffer: &Buffer) -> anyhow::Result<Self> {
        let driver = Arc::clone(buffer.driver());
        let size = driver.address_range(buffer.address())?.size;
        Ok(Self { handle: driver.retain(buffer.address())?, driver, size })
    }

    fn export(&self) -> anyhow::Result<Arc<OwnedFd>> {
        match self.driver.export(self.handle, HandleKind::Descriptor)? {
            Exported::Descriptor(descriptor) => Ok(descriptor),
            _ => bail!("{} gave no descriptor for its memory", self.driver.info().name),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = self.driver.release(self.handle) {
            tracing::error!(%error, "bench.undo_failed");
        }
    }
}

/// A reserved range of slots, each for a mapping. It gives out no address, so nobody ever uses one.
#[derive(Debug)]
pub(crate) struct Range {
    driver: Arc<dyn Driver>,
    base: usize,
    slot_bytes: usize,
    /// Whether something is, or is about to be, mapped there.
    taken: Vec<AtomicBool>,
}

impl Range {
    fn reserve(driver: &Arc<dyn Driver>, slots: usize, slot_bytes: usize) -> anyhow::Result<Self> {
        let size = slots.checked_mul(slot_bytes).context("the range is larger than any address")?;
        let base = driver.reserve(size, usize::try_from(driver.info().granularity)?)?;
        let taken = (0..slots).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { driver: Arc::clone(driver), base, slot_bytes, taken })
    }

    fn import(&self, exported: &Exported) -> anyhow::Result<Memory> {
        let handle = self.driver.import(exported, self.slot_bytes)?;
        Ok(Memory { driver: Arc::clone(&self.driver), handle, size: self.slot_bytes })
    }

    /// Maps all of an allocation, without access yet.
    fn map(&self, slot: usize, memory: &Memory) -> anyhow::Result<()> {
        ensure!(memory.size == self.slot_bytes, "an allocation has another size than the first one's");
        let taken = self.taken.get(slot).context("a slot beyond the range")?;
        ensure!(!taken.swap(true, Ordering::Relaxed), "something is mapped there");
        let address = self.base + slot * self.slot_bytes;
        // SAFETY: the slot lies in this reservation, and this is the first mapping in it: a slot is taken once.
        unsafe { self.driver.map(address, self.slot_bytes, 0, memory.handle) }?;
        Ok(())
    }

    /// Lets devices in, all slots from `first` on with one call.
    fn access(&self, first: usize, slots: usize, ordinals: &[i32]) -> anyhow::Result<()> {
        let address = self.base + first * self.slot_bytes;
        Ok(self.driver.set_access(address, slots * self.slot_bytes, ordinals)?)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let size = self.taken.len() * self.slot_bytes;
        // SAFETY: these are the base and size of the reservation; its addresses were given to nobody.
        if let Err(error) = unsafe { self.driver.free(self.base, size) } {
            tracing::error!(%error, "bench.undo_failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use symwin::driver::host::{HostDriver, HostOptions};

    use super::*;

    #[test]
    fn a_slot_is_taken_once_and_all_is_given_back() {
        let host = HostDriver::new(HostOptions::new()).unwrap();
        let driver: Arc<dyn Driver> = Arc::clone(&host) as _;
        let size = usize::try_from(driver.info().granularity).unwrap();
        let memory = Memory { handle: driver.create(size).unwrap(), driver: Arc::clone(&driver), size };
        let range = Range::reserve(&driver, 3, size).unwrap();
        range.map(1, &memory).unwrap();
        range.map(2, &memory).unwrap();
        range.access(1, 2, &[0]).unwrap();
        for slot in [1, 3] {
            range.map(slot, &memory).unwrap_err();
        }
        // Not all of it is mapped.
        range.access(0, 3, &[0]).unwrap_err();
        let exported = Exported::Descriptor(memory.export().unwrap());
        range.map(0, &range.import(&exported).unwrap()).unwrap();
        range.access(0, 3, &[0]).unwrap();
        drop((memory, exported, range));
        let counts = host.counts();
        assert_eq!((counts.handles, counts.mappings, counts.reservations), (0, 0, 0), "{counts:?}");
    }
}
