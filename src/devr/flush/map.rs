//! Step 4 of the flush: each rank maps its own allocations into its process's flat range, the lowest rank of each
//! process imports and maps those of other processes, and the device objects are written.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use super::commit::Drafts;
use super::decide::{Decision, NewMemory};
use super::made::{Made, MappedMemory};
use super::message::{AllocationOffer, Offer, Token};
use super::prepare::{Prepared, attachment};
use crate::bootstrap::{Attachment, Incoming, LostHandles};
use crate::device::abi;
use crate::devr::core::Core;
use crate::devr::numbers::NumberMap;
use crate::devr::owned::Held;
use crate::devr::replicated::KeyPart;
use crate::devr::zoo::Bug;
use crate::driver::passing::Passing;
use crate::driver::range::{Reservation, runs};
use crate::driver::{DeviceError, Exported, Handle};
use crate::error::{Fault, Misuse, Phase, Reason};
use crate::ids::LsaRank;

/// What came from peers beside their messages.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// By LSA rank, each in the order of tokens.
    allocations: Vec<Vec<Foreign>>,
    /// Multicast objects by their team.
    pub(crate) objects: HashMap<Vec<u32>, Attachment>,
    lost: Option<LostHandles>,
}

/// An allocation of another rank.
#[derive(Debug)]
struct Foreign {
    token: Token,
    size: u64,
    /// None where it did not come along, or to another rank of this process.
    handle: Option<Attachment>,
}

impl Arrived {
    /// Takes in what came with an offer.
    pub(crate) fn add_offer(&mut self, core: &Core, offer: &Offer, message: Incoming) {
        let Some(from) = core.agreed.lsa_rank_of(message.from) else { return };
        let me = core.agreed.lsa_rank().get();
        self.lost = self.lost.or(message.lost);
        let mut handles = message.handles.into_iter();
        let imports = core.agreed.imports() && core.agreed.process(message.from) != core.agreed.me().process;
        if core.has_bug(Bug::HandlesByOrder) && imports {
            let count = offer.allocations.iter().filter(|allocation| allocation.handle).count();
            handles.as_mut_slice()[..count].reverse();
        }
        let foreign = offer.allocations.iter().map(|&AllocationOffer { token, size, handle }| Foreign {
            token,
            size,
            handle: if handle && imports { handles.next() } else { None },
        });
        let mut foreign: Vec<_> = foreign.collect();
        // They mostly are: a rank counts its tokens upwards.
        foreign.sort_by_key(|allocation| allocation.token);
        if self.allocations.len() <= from.index() {
            self.allocations.resize_with(from.index() + 1, Vec::new);
        }
        self.allocations[from.index()] = foreign;
        let teams = offer.multicast.iter().filter(|team| team.contains(&me)).cloned();
        self.objects.extend(teams.zip(handles));
    }

    /// Takes in what came in the extra round.
    pub(crate) fn add_missing(&mut self, core: &Core, decision: &Decision, message: Incoming) {
        let Some(from) = core.agreed.lsa_rank_of(message.from) else { return };
        self.lost = self.lost.or(message.lost);
        for (&token, handle) in decision.missing[from.index()].iter().zip(message.handles) {
            if let Some(index) = self.position(from, token) {
                self.allocations[from.index()][index].handle = Some(handle);
            }
        }
    }

    fn find(&self, owner: LsaRank, token: Token) -> Option<&Foreign> {
        Some(&self.allocations[owner.index()][self.position(owner, token)?])
    }

    fn position(&self, owner: LsaRank, token: Token) -> Option<usize> {
        let allocations = self.allocations.get(owner.index())?;
        allocations.binary_search_by_key(&token, |allocation| allocation.token).ok()
    }
}

/// Exports what came with no offer and other processes need, for the extra round.
pub(crate) fn missing_handles(
    core: &Core,
    made: &Made,
    prepared: &Prepared,
    decision: &Decision,
    faults: &mut Vec<Fault>,
) -> Vec<Attachment> {
    let mut exports = Vec::new();
    for token in &decision.missing[core.agreed.lsa_rank().index()] {
        let (handle, _) = prepared.own[token];
        debug_assert!(
            made.peek().held.contains_key(&handle),
            "P-6: an exporter's handle lives until all have imported"
        );
        match core.driver.export(handle, core.agreed.handle_kind) {
            Ok(exported) => exports.push(attachment(exported)),
            Err(error) => faults.push(Fault {
                peer: core.agreed.me().clone(),
                phase: Phase::Handles,
                task: None,
                reason: error.into(),
            }),
        }
    }
    exports
}

/// Maps every new memory and writes every device object. Nothing is visible to lookups yet. Returns what a commit
/// publishes, and the event behind the writes.
///
/// # Errors
/// The task, if it is one's, and the reason: this rank's verdict.
pub(crate) fn map(
    core: &Core,
    made: &mut Made,
    prepared: &Prepared,
    decision: &Decision,
    arrived: &Arrived,
) -> Result<(Drafts, Passing), (Option<u32>, Reason)> {
    let all = |reason: Reason| (None, reason);
    if let Some(lost) = arrived.lost {
        let LostHandles { limit, need, got } = lost;
        return Err(all(Reason::Descriptors { limit, need, got }));
    }
    let range = core.flat.range(&core.driver).map_err(|e| all(e.into()))?;
    let (places, imported) = (Vec::new(), NumberMap::default());
    let mut mapper = Mapper { core, made, prepared, decision, arrived, range: &range, places, imported };
    mapper.memories().map_err(all)?;
    mapper.map_all().map_err(|e| all(e.into()))?;
    // Mappings keep the memory. Those left where one fails are given back with everything else.
    while let Some(held) = made.parts().imported.pop() {
        held.release().map_err(|e| all(e.into()))?;
    }
    objects(core, made, prepared, decision, &range)
}

struct Mapper<'a> {
    core: &'a Core,
    made: &'a mut Made,
    prepared: &'a Prepared,
    decision: &'a Decision,
    arrived: &'a Arrived,
    range: &'a Reservation,
    places: Vec<Place>,
    /// What has been imported, by owner and token: two memories may have an allocation in common.
    imported: NumberMap<(u32, Token), Handle>,
}

/// What is to be mapped where.
struct Place {
    /// The index of the new memory that it belongs to.
    memory: usize,
    address: usize,
    size: usize,
    handle: Handle,
}

impl Mapper<'_> {
    /// Says what is to be mapped, and imports it.
    fn memories(&mut self) -> Result<(), Reason> {
        let agreed = &self.core.agreed;
        let here = agreed.me().process;
        let foreign: Vec<LsaRank> = if agreed.imports() {
            (0..agreed.lsa_size)
                .map(LsaRank::new)
                .filter(|&l| agreed.process(agreed.world_rank(l)) != here)
                .collect()
        } else {
            Vec::new()
        };
        let decision = self.decision;
        self.make_room();
        for (index, memory) in decision.new.iter().enumerate() {
            let NewMemory { id, offset, span, .. } = *memory;
            self.check_quarantine(offset, span)?;
            let tokens = &memory.key.0[agreed.lsa_rank().index()].tokens;
            let own = tokens.iter().map(|token| self.prepared.own[token].0).collect();
            self.made.parts().mapped.push(MappedMemory { id, offset, span, own, mapped: Vec::new() });
            self.own(index, memory);
        }
        // Rank by rank, so that neighbours in the flat range are mapped one after the other.
        for owner in foreign {
            for (index, memory) in decision.new.iter().enumerate() {
                self.foreign(index, memory, owner)?;
            }
        }
        Ok(())
    }

    /// Lists that grow step by step touch fresh pages at every step. Most memories have one allocation of each rank.
    fn make_room(&mut self) {
        let came = self.arrived.allocations.iter().map(Vec::len).sum();
        let imports = if self.core.agreed.imports() { came } else { 0 };
        let memories = self.decision.new.len();
        self.places.reserve(memories + imports);
        self.imported.reserve(imports);
        let parts = self.made.parts();
        parts.mapped.reserve(memories);
        parts.imported.reserve(imports);
    }

    /// Maps it and lets this process's devices in, as one batch of calls: ranks that map at once hinder each other.
    fn map_all(&mut self) -> Result<(), DeviceError> {
        if self.places.is_empty() {
            return Ok(());
        }
        let driver = &*self.core.driver;
        let ordinals = self.core.agreed.ordinals_here();
        let parts = self.made.parts();
        let mut spans = Vec::with_capacity(self.places.len());
        let _batch = driver.batch();
        for &Place { memory, address, size, handle } in &self.places {
            let mapped = self.range.map(driver, address, size, handle)?;
            spans.push(mapped.span());
            parts.mapped[memory].mapped.push(mapped);
        }
        runs(spans).into_iter().try_for_each(|(address, size)| driver.set_access(address, size, &ordinals))
    }

    /// What this rank could not unmap since its last offer is not yet out of the space: it must not be used again.
    fn check_quarantine(&self, offset: u64, span: u64) -> Result<(), Reason> {
        let overlaps = |&&(o, s): &&(u64, u64)| o < offset + span && offset < o + s;
        match self.core.state().quarantined.iter().find(overlaps) {
            None => Ok(()),
            Some((o, s)) => Err(Misuse::Other {
                what: format!(
                    "offset {offset:#x} overlaps {s} bytes at {o:#x} that could not be unmapped; try again"
                ),
            }
            .into()),
        }
    }

    fn own(&mut self, index: usize, memory: &NewMemory) {
        let me = self.core.agreed.lsa_rank();
        let part = &memory.key.0[me.index()];
        let mut address = self.core.flat.address(self.range, me, memory.offset + self.shift(part));
        for token in &part.tokens {
            let (handle, size) = self.prepared.own[token];
            self.places.push(Place { memory: index, address, size, handle });
            address += size;
        }
    }

    fn foreign(&mut self, index: usize, memory: &NewMemory, owner: LsaRank) -> Result<(), Reason> {
        let part = &memory.key.0[owner.index()];
        let mut address = self.core.flat.address(self.range, owner, memory.offset + self.shift(part));
        for &token in &part.tokens {
            let came = self.arrived.find(owner, token);
            let size = usize::try_from(came.map_or(0, |came| came.size)).unwrap_or(usize::MAX);
            let handle = self.import((owner.get(), token), came, size)?;
            self.places.push(Place { memory: index, address, size, handle });
            address += size;
        }
        Ok(())
    }

    fn shift(&self, part: &KeyPart) -> u64 {
        if self.core.has_bug(Bug::ShiftForgotten) { 0 } else { part.shift }
    }

    fn import(&mut self, key: (u32, Token), came: Option<&Foreign>, size: usize) -> Result<Handle, Reason> {
        if let Some(&handle) = self.imported.get(&key) {
            return Ok(handle);
        }
        let Some(exported) = came.and_then(|came| exported(came.handle.as_ref()?)) else {
            let what = format!("no handle came for allocation {} of LSA rank {}", key.1.0, key.0);
            return Err(Misuse::Other { what }.into());
        };
        let handle = self.core.driver.import(&exported, size)?;
        self.made.parts().imported.push(Held::new(&self.core.driver, handle));
        self.imported.insert(key, handle);
        Ok(handle)
    }
}

/// Writes window structs and zeroes resource buffers.
fn objects(
    core: &Core,
    made: &mut Made,
    prepared: &Prepared,
    decision: &Decision,
    range: &Reservation,
) -> Result<(Drafts, Passing), (Option<u32>, Reason)> {
    let me = core.agreed.lsa_rank();
    let mut state = core.state();
    let Some(objects) = state.objects.as_mut() else {
        let what = "no device objects, though this rank was prepared".to_owned();
        return Err((None, Misuse::Other { what }.into()));
    };
    let windows = prepared.plans.iter().filter(|plan| plan.is_none()).count();
    let entries = objects.reserve(windows).map_err(|e| (None, e.into()))?;
    made.parts().entries.clone_from(&entries);
    let mut entries = entries.into_iter();
    let mut drafts = Drafts::with_capacity(decision.placements.len());
    for ((task, placement), offered) in (0u32..).zip(&decision.placements).zip(prepared.offer.tasks.iter()) {
        let failed = |e: DeviceError| (Some(task), Reason::from(e));
        let plan = &prepared.plans[task as usize];
        let Some(place) = placement else {
            drafts.push(None, None, abi::Window::poisoned());
            continue;
        };
        let flags = prepared.offer.print(&offered).flags();
        let window = abi::Window::new(
            range.base() as u64 + place.offset,
            me.get(),
            core.agreed.rank.get(),
            core.agreed.stride,
            place.offset,
            flags,
        );
        let slot = objects.windows.alloc(window).map_err(failed)?;
        made.parts().windows.push(slot);
        let entry = if plan.is_none() { entries.next() } else { None };
        if plan.is_some() {
            let size = usize::try_from(offered.size).unwrap_or(usize::MAX);
            let address = core.flat.address(range, me, place.offset);
            range.zero(&*core.driver, objects.stream(), address, size).map_err(failed)?;
        }
        drafts.push(Some(slot), entry, window);
    }
    let event = objects.upload().map_err(|e| (None, e.into()))?;
    Ok((drafts, event))
}

/// What a device can import.
pub(crate) fn exported(attachment: &Attachment) -> Option<Exported> {
    match attachment {
        Attachment::Descriptor(descriptor) => Some(Exported::Descriptor(Arc::clone(descriptor))),
        Attachment::Fabric(bytes) => Some(Exported::Fabric(*bytes)),
        _ => None,
    }
}

/// A reference that a rank of the same process shares.
pub(crate) fn shared(attachment: &Attachment) -> Option<Arc<Held>> {
    let Attachment::Value(value) = attachment else { return None };
    let value: Arc<dyn Any + Send + Sync> = Arc::clone(value);
    value.downcast().ok()
}
