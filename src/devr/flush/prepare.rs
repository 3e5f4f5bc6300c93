//! Step 1 of the flush, local: find the allocations under every range, check the requests, take references.
//!
//! What cannot be done becomes a refusal that rides with the offer, so that every rank hears of it: a request never
//! fails on one rank alone.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::decide::wanted_teams;
use super::made::Made;
use super::message::{AllocationOffer, Fingerprint, Offer, RangeOffer, TaskOffer, Token, WindowFlags};
use super::tasks::Tasks;
use crate::bootstrap::{Attachment, Parcel};
use crate::devr::core::{Core, State};
use crate::devr::dev_comm::{DevCommRequirements, Plan};
use crate::devr::numbers::NumberMap;
use crate::devr::objects::Objects;
use crate::devr::owned::Held;
use crate::devr::request::{Request, WindowRequest, Work};
use crate::driver::{AddressRange, DeviceError, DeviceProblem, Driver, Exported, Handle};
use crate::error::{Fault, Misuse, Phase, Reason};

/// A window's start is a multiple of this many bytes from its allocation's base: device structs count in 4 KiB.
pub(crate) const WINDOW_ALIGN: u64 = 4096;

/// What a rank goes into the offer round with.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What all ranks hear.
    pub(crate) offer: Arc<Offer>,
    /// For each device communicator task its plan.
    pub(crate) plans: Vec<Option<Plan>>,
    /// This rank's allocations by token.
    pub(crate) own: NumberMap<Token, (Handle, usize)>,
    /// The last task is symwin's own: the collectives' device communicator.
    pub(crate) collectives: bool,
    exports: Vec<Attachment>,
    multicast: Vec<(Vec<u32>, Arc<Held>, Option<Attachment>)>,
}

/// Prepares a batch. Takes in what was retired and quarantined since the last offer.
pub(crate) fn prepare(core: &Arc<Core>, work: &Work, made: &mut Made) -> Prepared {
    let mut state = core.state();
    // From here on what this rank retires waits for the end of the batch.
    state.offered = true;
    let retired = std::mem::take(&mut state.retired);
    let quarantined = std::mem::take(&mut state.quarantined);
    let mut draft = Draft::new(core, &mut state, made, work.requests.len());
    if let Err(reason) = draft.first_use() {
        draft.refuse(None, reason);
    }
    for request in &work.requests {
        draft.task(request);
    }
    let wants_collectives = work.requests.iter().any(
        |request| matches!(request, Request::Window(w) if w.flags.contains(WindowFlags::COLL_SYMMETRIC)),
    );
    let collectives = wants_collectives && core.collectives.lock().is_none();
    if collectives {
        draft.task(&Request::DevComm(DevCommRequirements::of_collectives(core.agreed.lsa_size)));
    }
    draft.multicast_objects();
    let Draft { tasks, prints, ranges, allocations, refused, plans, own, exports, multicast, .. } = draft;
    let offer = Offer {
        group: work.group.clone(),
        abandoned: work.abandoned,
        tasks,
        prints,
        ranges,
        allocations,
        retired,
        quarantined,
        refused,
        multicast: multicast.iter().map(|(team, ..)| team.clone()).collect(),
    };
    Prepared { offer: Arc::new(offer), plans, own, collectives, exports, multicast }
}

impl Prepared {
    /// The handles that went with its offer.
    pub(crate) fn into_exports(self) -> impl Iterator<Item = Attachment> {
        let objects = self.multicast.into_iter().filter_map(|(_, _, exported)| exported);
        self.exports.into_iter().chain(objects)
    }

    /// What goes to whom: the handles of allocations to the lowest rank of every other process of the team, those of
    /// multicast objects to every member.
    pub(crate) fn parcels(&self, core: &Core) -> Vec<Parcel> {
        let me = core.agreed.rank;
        let here = core.agreed.process(me);
        let mut parcels = Vec::new();
        for (process, ranks) in core.agreed.team_processes() {
            let first = ranks[0];
            let others: Vec<_> = ranks.into_iter().filter(|&rank| rank != me).collect();
            let handles = |rank| {
                let exports =
                    if process != here && rank == first { self.exports.clone() } else { Vec::new() };
                let lsa = core.agreed.lsa_rank_of(rank).map(|lsa| lsa.get());
                let objects =
                    self.multicast.iter().filter(|(team, ..)| lsa.is_some_and(|l| team.contains(&l)));
                let objects = objects.filter_map(|(_, held, exported)| {
                    let value: Arc<dyn Any + Send + Sync> = Arc::clone(held) as _;
                    if process == here { Some(Attachment::Value(value)) } else { exported.clone() }
                });
                exports.into_iter().chain(objects).collect::<Vec<_>>()
            };
            if self.multicast.is_empty() {
                let Some(&to) = others.first() else { continue };
                parcels.push(Parcel { handles: handles(to), to: others });
            } else {
                parcels.extend(others.into_iter().map(|to| Parcel { to: vec![to], handles: handles(to) }));
            }
        }
        parcels
    }
}

struct Draft<'a> {
    core: &'a Core,
    state: &'a mut State,
    made: &'a mut Made,
    /// Other processes are in the team, so handles must be exported.
    foreign: bool,
    tasks: Tasks,
    prints: Vec<Fingerprint>,
    ranges: Vec<RangeOffer>,
    allocations: Vec<AllocationOffer>,
    index: NumberMap<Token, u32>,
    refused: Vec<Fault>,
    plans: Vec<Option<Plan>>,
    own: NumberMap<Token, (Handle, usize)>,
    exports: Vec<Attachment>,
    multicast: Vec<(Vec<u32>, Arc<Held>, Option<Attachment>)>,
    /// The allocation that was held last.
    latest: Option<(AddressRange, Handle)>,
    /// The one that was last put into the offer, and its index there.
    latest_index: Option<(Handle, u32)>,
}

impl<'a> Draft<'a> {
    fn new(core: &'a Core, state: &'a mut State, made: &'a mut Made, tasks: usize) -> Self {
        Self {
            core,
            state,
            made,
            foreign: core.agreed.team_processes().len() > 1,
            tasks: Tasks::default(),
            prints: Vec::new(),
            ranges: Vec::new(),
            allocations: Vec::new(),
            index: NumberMap::default(),
            refused: Vec::new(),
            plans: Vec::with_capacity(tasks),
            own: NumberMap::default(),
            exports: Vec::new(),
            multicast: Vec::new(),
            latest: None,
            latest_index: None,
        }
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.core.driver
    }

    fn refuse(&mut self, task: Option<usize>, reason: Reason) {
        self.refused.push(Fault {
            peer: self.core.agreed.me().clone(),
            phase: Phase::Prepare,
            task: task.and_then(|task| u32::try_from(task).ok()),
            reason,
        });
    }

    /// The flat range, the stream and the table are made by the first batch that comes.
    fn first_use(&mut self) -> Result<(), Reason> {
        self.core.flat.range(self.driver())?;
        if self.state.objects.is_none() {
            if self.core.flag.get().is_none()
                && let Some(flag) = self.driver().flag()?
            {
                // Only this rank's batches set it, one after another.
                let _ = self.core.flag.set(flag);
            }
            let has_lookup = self.driver().info().has_lookup();
            let objects = Objects::new(self.driver(), has_lookup).map_err(|(error, undo)| {
                self.made.parts().undo.extend(undo);
                error
            })?;
            self.state.objects = Some(objects);
        }
        Ok(())
    }

    fn task(&mut self, request: &Request) {
        let index = self.plans.len();
        let (ranges, plan) = match request {
            Request::Window(window) => (self.window(window), None),
            Request::DevComm(requirements) => match self.dev_comm(requirements) {
                Ok((range, plan)) => (Ok(range), Some(plan)),
                Err(reason) => (Err(reason), None),
            },
        };
        let Range { allocations, base, head, size } = ranges.unwrap_or_else(|reason| {
            self.refuse(Some(index), reason);
            Range::default()
        });
        let allocations =
            allocations.into_iter().map(|(handle, size)| self.allocation(index, handle, size)).collect();
        let print = last_or_new(&mut self.prints, request.fingerprint());
        let range = last_or_new(&mut self.ranges, RangeOffer { allocations, base });
        self.tasks.push(TaskOffer { print, range, head, size });
        self.plans.push(plan);
    }

    /// The allocations under a window.
    fn window(&mut self, window: &WindowRequest) -> Result<Range, Reason> {
        let (start, len) = (window.address, window.size);
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else {
            let what = format!("a window of {len} bytes at {start:#x}: its size must be at least 1 byte");
            return Err(Misuse::Other { what }.into());
        };
        let first = self.range(start)?;
        let head = (start - first.base) as u64;
        if !head.is_multiple_of(WINDOW_ALIGN) {
            return Err(Reason::Misaligned { base: first.base as u64, offset: head, align: WINDOW_ALIGN });
        }
        let mut allocations = SmallVec::new();
        let mut covered = first.base;
        let mut next = first;
        loop {
            allocations.push((self.hold(next.base, next.size)?, next.size));
            covered += next.size;
            if covered >= end {
                break;
            }
            next = match self.driver().address_range(covered) {
                Ok(range) if range.base == covered => range,
                Err(DeviceError { problem: DeviceProblem::ForeignAddress { .. }, .. }) | Ok(_) => {
                    return Err(Misuse::OutOfRange {
                        what: format!("the window at {start:#x}, in the allocation at {:#x}", first.base),
                        offset: head,
                        len: len as u64,
                        size: (covered - first.base) as u64,
                    }
                    .into());
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(Range { allocations, base: first.base as u64, head, size: len as u64 })
    }

    /// A device communicator's plan and its resource buffer.
    fn dev_comm(&mut self, requirements: &DevCommRequirements) -> Result<(Range, Plan), Reason> {
        let agreed = &self.core.agreed;
        let multimem =
            requirements.wants_lsa_multimem() || requirements.teams().any(|(_, multimem)| multimem);
        if multimem && !agreed.multicast {
            return Err(Reason::Unsupported {
                what: "a multicast team".to_owned(),
                why: "not every rank's device has multicast".to_owned(),
            });
        }
        for (team, _) in requirements.teams() {
            team.validate(agreed.rank, agreed.world_size())?;
            if let Some(rank) = team.members(agreed.rank).find(|&r| agreed.lsa_rank_of(r).is_none()) {
                return Err(Misuse::NotInTeam { rank, team: "this rank's LSA team".to_owned() }.into());
            }
        }
        let plan = Plan::new(requirements, agreed.lsa_size, agreed.granularity)?;
        let size = plan.total_bytes;
        let mut allocations = SmallVec::new();
        if size > 0 {
            let bytes = usize::try_from(size).unwrap_or(usize::MAX);
            let handle = self.driver().create(bytes)?;
            self.keep(handle, bytes);
            allocations.push((handle, bytes));
        }
        Ok((Range { allocations, base: 0, head: 0, size }, plan))
    }

    /// The allocation at an address. Windows come mostly in rows from the same one, which the batch then holds, so
    /// that the device need not be asked again.
    fn range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        match self.latest {
            Some((range, _)) if address.checked_sub(range.base).is_some_and(|at| at < range.size) => {
                Ok(range)
            }
            _ => self.driver().address_range(address),
        }
    }

    /// One reference to the allocation at `base`, held once in this batch.
    fn hold(&mut self, base: usize, size: usize) -> Result<Handle, DeviceError> {
        if let Some((range, handle)) = self.latest
            && range.base == base
        {
            return Ok(handle);
        }
        let handle = self.driver().retain(base)?;
        if self.made.peek().held.contains_key(&handle) {
            self.driver().release(handle)?;
        } else {
            self.keep(handle, size);
        }
        self.latest = Some((AddressRange { base, size }, handle));
        Ok(handle)
    }

    fn keep(&mut self, handle: Handle, size: usize) {
        let held = Arc::new(Held::new(self.driver(), handle));
        self.made.parts().held.insert(handle, held);
        self.state.tokens.obtain(handle, size);
    }

    /// The index of an allocation in the offer; it is exported on first sight, if peers cannot have it.
    fn allocation(&mut self, task: usize, handle: Handle, size: usize) -> u32 {
        if let Some((latest, index)) = self.latest_index
            && latest == handle
        {
            return index;
        }
        let index = self.new_or_known(task, handle, size);
        self.latest_index = Some((handle, index));
        index
    }

    fn new_or_known(&mut self, task: usize, handle: Handle, size: usize) -> u32 {
        let token = self.state.tokens.obtain(handle, size);
        self.state.tokens.unuse(handle);
        if let Some(&index) = self.index.get(&token) {
            return index;
        }
        let mut allocation = AllocationOffer { token, size: size as u64, handle: false };
        if self.foreign && !self.state.replicated.knows(token) {
            match self.driver().export(handle, self.core.agreed.handle_kind) {
                Ok(exported) => {
                    self.exports.push(attachment(exported));
                    allocation.handle = true;
                }
                Err(error) => self.refuse(Some(task), error.into()),
            }
        }
        let index = u32::try_from(self.allocations.len()).unwrap_or(u32::MAX);
        self.allocations.push(allocation);
        self.index.insert(token, index);
        self.own.insert(token, (handle, size));
        index
    }

    /// The first rank of every multicast team that is not in the state creates its object.
    fn multicast_objects(&mut self) {
        if !self.core.agreed.multicast || !self.refused.is_empty() {
            return;
        }
        let me = self.core.agreed.lsa_rank().get();
        let mut seen = HashSet::new();
        let prints: Vec<u32> = self.tasks.iter().map(|task| task.print).collect();
        for (task, print) in prints.into_iter().enumerate() {
            let print = &self.prints[print as usize];
            for (team, multimem) in wanted_teams(&self.core.agreed, me, print) {
                let known = self.state.replicated.multicast.contains(&team);
                if multimem
                    && team.first() == Some(&me)
                    && !known
                    && seen.insert(team.clone())
                    && let Err(error) = self.multicast_object(&team)
                {
                    self.refuse(Some(task), error.into());
                }
            }
        }
    }

    fn multicast_object(&mut self, team: &[u32]) -> Result<(), DeviceError> {
        let stride = self.core.agreed.stride_bytes();
        let driver = Arc::clone(self.driver());
        let object = Arc::new(Held::new(&driver, driver.multicast_create(stride, team.len())?));
        let exported = if self.foreign {
            Some(attachment(driver.export(object.handle(), self.core.agreed.handle_kind)?))
        } else {
            None
        };
        self.made.parts().objects.insert(team.to_vec(), Arc::clone(&object));
        self.multicast.push((team.to_vec(), object, exported));
        Ok(())
    }
}

/// The index of the last one if it is equal, else of this one, added.
fn last_or_new<T: PartialEq>(list: &mut Vec<T>, value: T) -> u32 {
    if list.last() != Some(&value) {
        list.push(value);
    }
    u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
}

/// The allocations under a task, where the first is and where in it the task starts, and how long it is.
#[derive(Default)]
struct Range {
    allocations: SmallVec<[(Handle, usize); 2]>,
    base: u64,
    head: u64,
    size: u64,
}

/// An exported handle as it travels.
pub(crate) fn attachment(exported: Exported) -> Attachment {
    match exported {
        Exported::Descriptor(descriptor) => Attachment::Descriptor(descriptor),
        Exported::Fabric(bytes) => Attachment::Fabric(bytes),
    }
}
