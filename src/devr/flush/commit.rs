//! Step 6 of the flush: the one place where a batch changes what outlives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decide::{Decision, NewMemory, Placement};
use super::made::{Made, Parts, release_held};
use super::message::Fingerprint;
use crate::device::abi;
use crate::device::peer::View;
use crate::devr::core::{Core, LocalMemory, LocalMulticast, State};
use crate::devr::dev_comm_handle::{DevComm, Resource};
use crate::devr::flush::prepare::Prepared;
use crate::devr::numbers::NumberMap;
use crate::devr::objects::Objects;
use crate::devr::request::{Request, WindowRequest, Work};
use crate::devr::shadow::Slot;
use crate::devr::table::{TableEntry, TableSlot};
use crate::devr::window::{Counted, Inner, Place, Window};
use crate::driver::DeviceError;
use crate::error::{Misuse, Reason};

/// What a task becomes.
#[derive(Debug)]
pub(crate) enum Output {
    /// A window.
    Window(Window),
    /// A device communicator.
    DevComm(DevComm),
}

/// The device objects of the batch's tasks, written and not yet visible.
#[derive(Debug, Default)]
pub(crate) struct Drafts(Vec<Draft>);

/// The device objects of one task.
#[derive(Debug)]
struct Draft {
    /// The window's struct; none without a memory.
    slot: Option<Slot>,
    /// Its place in the table; resource buffers have none.
    entry: Option<TableSlot>,
    bytes: abi::Window,
}

impl Drafts {
    /// Those of so many tasks.
    pub(crate) fn with_capacity(tasks: usize) -> Self {
        Self(Vec::with_capacity(tasks))
    }

    /// Adds the next task's.
    pub(crate) fn push(&mut self, slot: Option<Slot>, entry: Option<TableSlot>, bytes: abi::Window) {
        self.0.push(Draft { slot, entry, bytes });
    }
}

/// Makes the batch real on this rank and gives its handles out, one for each task of `work`.
///
/// # Errors
/// Why it could not be published: the communicator has failed then, since other ranks may have committed.
pub(crate) fn commit(
    core: &Arc<Core>,
    made: &mut Made,
    prepared: &Prepared,
    decision: &Decision,
    work: Work,
    drafts: Drafts,
) -> Result<Vec<Output>, Reason> {
    let mut state = core.state();
    state.replicated.commit(decision);
    let parts = made.take();
    let failed = take_over(core, &mut state, decision, parts);
    core.board.undo_failures(&failed);
    let view = View::of(&*core.flat.range(&core.driver)?);
    let mut entries = Vec::with_capacity(work.requests.len());
    let mut results = Vec::with_capacity(work.requests.len());
    let mut drafts = drafts.0.into_iter();
    for (task, request) in work.requests.into_iter().enumerate() {
        let (Some(draft), place) = (drafts.next(), decision.placements[task]) else {
            return Err(Misuse::Other { what: "fewer device objects than tasks".to_owned() }.into());
        };
        results.push(match request {
            Request::Window(request) => {
                let sizes = decision.sizes[task].clone();
                Real::Window(window(core, &mut state, view, sizes, request, &draft, place, &mut entries)?)
            }
            Request::DevComm(_) => Real::DevComm(dev_comm(core, &mut state, prepared, task, &draft, place)?),
        });
    }
    if prepared.collectives
        && let Some(draft) = drafts.next()
    {
        let task = decision.placements.len() - 1;
        let own = dev_comm(core, &mut state, prepared, task, &draft, decision.placements[task])?;
        *core.collectives.lock() = Some(own);
    }
    if let Some(objects) = state.objects.as_mut() {
        objects.publish(&entries)?;
    }
    // All at once, so that what lookups count lies close together.
    let outputs: Vec<_> = results.into_iter().map(Real::open).collect();
    let windows: Vec<_> = outputs.iter().filter_map(Output::counted).collect();
    core.index.publish(&windows);
    core.board.committed(&state);
    Ok(outputs)
}

/// What a task has become, before it has a handle.
enum Real {
    Window(Box<Inner>),
    DevComm(DevComm),
}

impl Real {
    fn open(self) -> Output {
        match self {
            Self::Window(window) => Output::Window(Window::open(window)),
            Self::DevComm(dev_comm) => Output::DevComm(dev_comm),
        }
    }
}

impl Output {
    fn counted(&self) -> Option<Arc<Counted>> {
        match self {
            Self::Window(window) => Some(Arc::clone(window.counted())),
            Self::DevComm(_) => None,
        }
    }
}

/// The new memories and multicast objects become the rank's.
fn take_over(core: &Core, state: &mut State, decision: &Decision, parts: Parts) -> Vec<DeviceError> {
    let me = core.agreed.lsa_rank().index();
    let mut mapped: NumberMap<_, _> =
        parts.mapped.into_iter().map(|memory| (memory.id, memory.mapped)).collect();
    for NewMemory { id, key, offset, span, .. } in &decision.new {
        let handles: Vec<_> =
            key.0[me].tokens.iter().filter_map(|&token| state.tokens.handle(token)).collect();
        for &handle in &handles {
            let size = state.tokens.size(handle);
            state.tokens.obtain(handle, size);
        }
        let held = handles.iter().filter_map(|handle| parts.held.get(handle).cloned()).collect();
        state.memories.insert(*id, LocalMemory { windows: 0, offset: *offset, span: *span, handles, held });
        core.flat.commit(*id, mapped.remove(id).unwrap_or_default());
    }
    let mut objects = parts.objects;
    for (team, place) in parts.multicast_ranges {
        core.multicast_bases.lock().insert(team.clone(), place.base());
        if let Some(object) = objects.remove(&team) {
            state.multicast.insert(team, LocalMulticast { object, place, bound: BTreeMap::new() });
        }
    }
    for bound in parts.bound {
        if let Some(local) = state.multicast.get_mut(&bound.team) {
            local.bound.entry(bound.memory).or_default().push(bound.binding);
        }
    }
    release_held(state, parts.held)
}

#[allow(clippy::too_many_arguments, reason = "a window has a request, a place and device objects")]
fn window(
    core: &Arc<Core>,
    state: &mut State,
    view: View,
    sizes: Option<Arc<[u64]>>,
    request: WindowRequest,
    draft: &Draft,
    place: Option<Placement>,
    entries: &mut Vec<(TableSlot, TableEntry)>,
) -> Result<Box<Inner>, Reason> {
    let (Some(place), Some(slot)) = (place, draft.slot) else {
        return Err(Misuse::Other { what: "a window without a place".to_owned() }.into());
    };
    let struct_address = take_up(state, place, slot)?;
    if let Some(entry) = draft.entry {
        let (base, size) = (request.address as u64, request.size as u64);
        entries.push((entry, TableEntry { base, size, window: struct_address as u64 }));
    }
    let place = Place {
        memory: place.memory,
        offset: place.offset,
        first: draft.bytes.lsa_flat_base,
        slot,
        entry: draft.entry,
        struct_address,
        view,
    };
    Ok(Window::make(core, place, request, sizes))
}

fn dev_comm(
    core: &Arc<Core>,
    state: &mut State,
    prepared: &Prepared,
    task: usize,
    draft: &Draft,
    place: Option<Placement>,
) -> Result<DevComm, Reason> {
    let resource = match (place, draft.slot) {
        (Some(place), Some(slot)) => {
            let struct_address = take_up(state, place, slot)?;
            Some(Resource {
                memory: place.memory,
                slot,
                struct_address: struct_address as u64,
                bytes: draft.bytes,
            })
        }
        _ => None,
    };
    let objects = state.objects.as_ref();
    let table = objects.map_or(0, |objects| objects.table.head() as u64);
    let lookup = objects.map_or(0, Objects::lookup);
    let Some(plan) = prepared.plans[task].clone() else {
        return Err(Misuse::Other { what: "a device communicator without a plan".to_owned() }.into());
    };
    let requirements = match prepared.offer.tasks.get(task).map(|task| prepared.offer.print(&task)) {
        Some(Fingerprint::DevComm { requirements }) => requirements,
        Some(Fingerprint::Window { .. }) | None => {
            return Err(
                Misuse::Other { what: "a window with a device communicator's plan".to_owned() }.into()
            );
        }
    };
    Ok(DevComm::open(core, plan, requirements, resource, table, lookup))
}

/// One window more on a memory; gives the address of its struct.
fn take_up(state: &mut State, place: Placement, slot: Slot) -> Result<usize, Reason> {
    let lost = || Misuse::Other { what: "a window's memory or struct is not there".to_owned() };
    state.memories.get_mut(&place.memory).ok_or_else(lost)?.windows += 1;
    let address = state.objects.as_ref().and_then(|objects| objects.windows.address(slot));
    Ok(address.ok_or_else(lost)?)
}
