//! Multicast objects: add this rank's device, bind its memory, unbind what is gone.
//!
//! The order is the point: no bind before every device was added (a real driver waits in the bind for devices that
//! never come), no multicast pointer before all have bound, unbind before the memory goes.

use std::sync::Arc;

use super::decide::Decision;
use super::made::{Bound, Made, MulticastRange};
use super::map::{Arrived, exported, shared};
use super::message::MemoryId;
use crate::devr::core::Core;
use crate::devr::owned::Held;
use crate::devr::replicated::{Key, Memory};
use crate::driver::Handle;
use crate::driver::range::Reservation;
use crate::error::{Misuse, Reason};

/// What `reserve` aligns a multicast range to.
const ALIGN: usize = 512 << 20;

/// Adds this rank's device to every new object of a team that it is in.
pub(crate) fn add_devices(
    core: &Core,
    made: &mut Made,
    decision: &Decision,
    arrived: &Arrived,
) -> Result<(), Reason> {
    let me = core.agreed.lsa_rank().get();
    let size = usize::try_from(core.agreed.stride).unwrap_or(usize::MAX);
    for team in decision.new_teams.iter().filter(|team| team.contains(&me)) {
        if !made.peek().objects.contains_key(team) {
            let came = arrived.objects.get(team);
            let object = if let Some(object) = came.and_then(shared) {
                object
            } else if let Some(exported) = came.and_then(exported) {
                Arc::new(Held::new(&core.driver, core.driver.import(&exported, size)?))
            } else {
                let what = format!("no multicast object came for the team of LSA ranks {team:?}");
                return Err(Misuse::Other { what }.into());
            };
            made.parts().objects.insert(team.clone(), object);
        }
        core.driver.multicast_add_device(made.peek().objects[team].handle())?;
    }
    Ok(())
}

/// Maps the new objects, binds all memories to them, and the new memories to all objects of this rank's teams.
pub(crate) fn bind(core: &Core, made: &mut Made, decision: &Decision) -> Result<(), Reason> {
    let me = core.agreed.lsa_rank().get();
    let size = usize::try_from(core.agreed.stride).unwrap_or(usize::MAX);
    for team in decision.new_teams.iter().filter(|team| team.contains(&me)) {
        let object = Arc::clone(&made.peek().objects[team]);
        let range = Reservation::new(&*core.driver, size, ALIGN)?;
        let base = range.base();
        let place = MulticastRange { range, mapped: None };
        let place = made.parts().multicast_ranges.entry(team.clone()).or_insert(place);
        place.mapped = Some(place.range.map(&*core.driver, base, size, object.handle())?);
        core.driver.set_access(base, size)?;
        let old: Vec<_> = core
            .state()
            .memories
            .iter()
            .map(|(&id, memory)| (id, memory.held.iter().map(|held| held.handle()).collect::<Vec<_>>()))
            .collect();
        for (id, handles) in old {
            let placed = core.state().replicated.memories.get(&id).map(|m| (m.offset, Arc::clone(&m.key)));
            let Some((offset, key)) = placed else { continue };
            bind_memory(core, made, team, &object, id, offset, &key, &handles)?;
        }
    }
    let existing: Vec<_> = core
        .state()
        .multicast
        .iter()
        .map(|(team, local)| (team.clone(), Arc::clone(&local.object)))
        .collect();
    let new: Vec<_> = decision
        .new_teams
        .iter()
        .filter(|team| team.contains(&me))
        .map(|team| (team.clone(), Arc::clone(&made.peek().objects[team])))
        .collect();
    for (team, object) in existing.iter().chain(&new) {
        for memory in &decision.new {
            let handles = own_handles(core, &memory.key);
            bind_memory(core, made, team, object, memory.id, memory.offset, &memory.key, &handles)?;
        }
    }
    Ok(())
}

/// Unbinds this rank's part of memories that every rank has retired. What fails is tried again at the close, since the
/// object cannot go before.
pub(crate) fn unbind_gone(core: &Core, gone: &[(MemoryId, Memory)]) {
    let mut state = core.state();
    let mut failed = Vec::new();
    for local in state.multicast.values_mut() {
        for (id, memory) in gone {
            let mut left = Vec::new();
            for (at, size) in local.bound.remove(id).unwrap_or_default() {
                if let Err(error) = core.driver.multicast_unbind(local.object.handle(), at, size) {
                    failed.push((memory.offset, memory.span, error));
                    left.push((at, size));
                }
            }
            if !left.is_empty() {
                local.bound.insert(*id, left);
            }
        }
    }
    for (offset, span, error) in failed {
        state.quarantine(offset, span, &[error], core);
    }
}

#[allow(clippy::too_many_arguments, reason = "a binding has an object, a memory and a place for it")]
fn bind_memory(
    core: &Core,
    made: &mut Made,
    team: &[u32],
    object: &Arc<Held>,
    memory: MemoryId,
    offset: u64,
    key: &Key,
    handles: &[Handle],
) -> Result<(), Reason> {
    let part = &key.0[core.agreed.lsa_rank().index()];
    let mut at = usize::try_from(offset + part.shift).unwrap_or(usize::MAX);
    for &handle in handles {
        let size = core.state().tokens.size(handle);
        core.driver.multicast_bind(object.handle(), at, handle, size)?;
        let bound = Bound { team: team.to_vec(), memory, object: Arc::clone(object), at, size };
        made.parts().bound.push(bound);
        at += size;
    }
    Ok(())
}

/// This rank's handles in a new memory, in order of address.
pub(crate) fn own_handles(core: &Core, key: &Key) -> Vec<Handle> {
    let state = core.state();
    let tokens = &key.0[core.agreed.lsa_rank().index()].tokens;
    tokens.iter().filter_map(|&token| state.tokens.handle(token)).collect()
}
