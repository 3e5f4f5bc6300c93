//! Multicast objects: add this rank's device, bind its memory, unbind what is gone.
//!
//! The order is the point: no bind before every device was added (a real driver waits in the bind for devices that
//! never come), no multicast pointer before all have bound, unbind before the memory goes.

use std::sync::Arc;

use super::decide::Decision;
use super::made::{Bound, Made, MulticastRange};
use super::map::{Arrived, exported, shared};
use super::message::MemoryId;
use crate::devr::core::{Core, LocalMemory};
use crate::devr::owned::{Binding, Held};
use crate::devr::replicated::{Key, Memory};
use crate::driver::Handle;
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
    let size = core.agreed.stride_bytes();
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
    let size = core.agreed.stride_bytes();
    let mut objects: Vec<(Vec<u32>, Arc<Held>)> = core
        .state()
        .multicast
        .iter()
        .map(|(team, local)| (team.clone(), Arc::clone(&local.object)))
        .collect();
    for team in decision.new_teams.iter().filter(|team| team.contains(&me)) {
        let object = Arc::clone(&made.peek().objects[team]);
        let range =
            MulticastRange::new(&core.driver, object.handle(), size, ALIGN).map_err(|(error, undo)| {
                made.parts().undo.extend(undo);
                error
            })?;
        made.parts().multicast_ranges.insert(team.clone(), range);
        for old in old_memories(core) {
            bind_memory(core, made, team, &object, &old)?;
        }
        objects.push((team.clone(), object));
    }
    for memory in &decision.new {
        let handles = own_handles(core, &memory.key);
        let held = handles.iter().filter_map(|handle| made.peek().held.get(handle).cloned()).collect();
        let at = memory.offset + memory.key.0[core.agreed.lsa_rank().index()].shift;
        let new = Bindable { id: memory.id, at, held };
        for (team, object) in &objects {
            bind_memory(core, made, team, object, &new)?;
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
            for binding in local.bound.remove(id).unwrap_or_default() {
                let errors = binding.unbind().unwrap_or_else(|(left, error)| {
                    local.bound.entry(*id).or_default().push(left);
                    vec![error]
                });
                if !errors.is_empty() {
                    failed.push((memory.offset, memory.span, errors));
                }
            }
        }
    }
    for (offset, span, errors) in failed {
        state.quarantine(offset, span, &errors, core);
    }
}

/// This rank's part of a memory, as it is bound.
struct Bindable {
    id: MemoryId,
    /// Where its first allocation lies in every object.
    at: u64,
    /// Its allocations in order of address.
    held: Vec<Arc<Held>>,
}

/// What this rank had before the batch and has not retired.
fn old_memories(core: &Core) -> Vec<Bindable> {
    let state = core.state();
    let me = core.agreed.lsa_rank().index();
    let placed = |(&id, local): (&MemoryId, &LocalMemory)| {
        let memory = state.replicated.memories.get(&id)?;
        Some(Bindable { id, at: memory.offset + memory.key.0[me].shift, held: local.held.clone() })
    };
    state.memories.iter().filter_map(placed).collect()
}

fn bind_memory(
    core: &Core,
    made: &mut Made,
    team: &[u32],
    object: &Arc<Held>,
    memory: &Bindable,
) -> Result<(), Reason> {
    let mut at = usize::try_from(memory.at).unwrap_or(usize::MAX);
    for held in &memory.held {
        let size = core.state().tokens.size(held.handle());
        let binding = Binding::new(&core.driver, object, held, at, size)?;
        made.parts().bound.push(Bound { team: team.to_vec(), memory: memory.id, binding });
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
