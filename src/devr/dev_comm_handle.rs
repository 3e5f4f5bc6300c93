//! Device communicators: what kernels take to find windows, barriers and buffers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::core::Core;
use super::dev_comm::{DevCommRequirements, LlA2aHandle, Plan, ResourceHandle};
use super::flush::message::MemoryId;
use super::mail::{Closing, CommMsg};
use super::shadow::Slot;
use crate::device::kernel::{SizeLookup, Who};
use crate::device::{self, Claims, Kernel, KernelHandle, abi};
use crate::error::{Misuse, Result};

/// A device communicator: the structs that kernels of this rank take.
///
/// It is open until its last handle is dropped; its resource buffer goes then, once every host kernel of this rank
/// that runs has ended. Clones are handles of the same one.
#[derive(Clone)]
pub struct DevComm(Arc<Inner>);

/// A device communicator's resource buffer.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) memory: MemoryId,
    pub(crate) slot: Slot,
    pub(crate) struct_address: u64,
    pub(crate) bytes: abi::Window,
}

struct Inner {
    core: Arc<Core>,
    plan: Plan,
    resource: Option<Resource>,
    device: device::DevComm,
    /// Where the multicast objects of its team requirements are mapped, in their order.
    multicast: Vec<Option<usize>>,
    closed: AtomicBool,
    /// What sessions of this rank's kernels are on.
    claims: Claims,
    /// Whom errors of its kernels name.
    who: Arc<Who>,
    /// How its kernels find sizes that differ between ranks.
    sizes: SizeLookup,
}

impl DevComm {
    pub(crate) fn open(
        core: &Arc<Core>,
        plan: Plan,
        requirements: &DevCommRequirements,
        resource: Option<Resource>,
        window_table: u64,
        lookup: u64,
    ) -> Self {
        let agreed = &core.agreed;
        let bases = core.multicast_bases.lock();
        let base = |team: &[u32]| bases.get(team).copied();
        let all: Vec<u32> = (0..agreed.lsa_size).collect();
        let multicast = requirements
            .teams()
            .map(|(team, multimem)| multimem.then(|| base(&agreed.lsa_members(team, agreed.rank))).flatten())
            .collect();
        let lsa_multimem = requirements.wants_lsa_multimem().then(|| base(&all)).flatten().unwrap_or(0);
        drop(bases);
        let device = device::DevComm {
            rank: agreed.rank.get(),
            n_ranks: agreed.world_size(),
            lsa_rank: agreed.lsa_rank().get(),
            lsa_size: agreed.lsa_size,
            window_table,
            resource_window: resource.as_ref().map_or(0, |r| r.struct_address),
            resource: resource.as_ref().map_or_else(abi::Window::default, |r| r.bytes),
            resource_bytes: plan.total_bytes,
            lsa_multimem: abi::MultimemHandle { base: lsa_multimem as u64 },
            lsa_barrier: plan.lsa_barrier.map_or_else(Default::default, |barrier| abi::LsaBarrierHandle {
                buffer: barrier.handle.0,
                n_barriers: barrier.count.cast_signed(),
            }),
            ll_a2a: plan.ll_a2a.map_or_else(Default::default, |ll| abi::LlA2aHandle {
                buffer: ll.handle.0,
                n_slots: ll.slots,
            }),
            ll_a2a_blocks: plan.ll_a2a.map_or(0, |ll| ll.blocks),
            lookup,
            abort_flag: core.flag.get().map_or(0, |flag| flag.address()),
            timeout_ns: u64::try_from(core.deadline.as_nanos()).unwrap_or(u64::MAX),
        };
        let who = Who { comm_name: agreed.name.clone(), me: agreed.me().clone(), team: agreed.lsa_peers() };
        let by_address = Arc::clone(core);
        Self(Arc::new(Inner {
            core: Arc::clone(core),
            plan,
            resource,
            device,
            multicast,
            closed: AtomicBool::new(false),
            claims: Claims::default(),
            who: Arc::new(who),
            sizes: Arc::new(move |address| by_address.sizes.read().get(&address).cloned()),
        }))
    }

    /// What kernels read, free of any version; [`device::DevComm::to_248`] gives a layout.
    #[must_use]
    pub fn device(&self) -> &device::DevComm {
        &self.0.device
    }

    /// The handle of the `index`-th buffer of the requirements, in units of 128 bytes.
    #[must_use]
    pub fn buffer(&self, index: usize) -> Option<ResourceHandle> {
        self.0.plan.buffers.get(index).copied()
    }

    /// The LL all-to-all buffers, where they were asked for.
    #[must_use]
    pub fn ll_a2a(&self) -> Option<LlA2aHandle> {
        self.0.plan.ll_a2a
    }

    /// Bytes of the resource buffer of each rank.
    #[must_use]
    pub fn resource_bytes(&self) -> u64 {
        self.0.plan.total_bytes
    }

    /// Where the multicast object of the `index`-th team of the requirements is mapped.
    #[must_use]
    pub fn multicast_base(&self, index: usize) -> Option<usize> {
        self.0.multicast.get(index).copied().flatten()
    }

    /// Starts a host kernel of this rank: `blocks` blocks, each on a thread of its own. Returns at once, so that one
    /// thread can start the kernels of several ranks before it joins any.
    ///
    /// # Errors
    /// [`Misuse::Closed`] if the device communicator or its communicator is closed; the communicator's failure if
    /// it has failed. What the kernel returns comes from [`KernelHandle::join`].
    pub fn launch<T: Send + 'static>(
        &self,
        blocks: u32,
        kernel: impl Fn(&Kernel<'_>) -> Result<T> + Send + Sync + 'static,
    ) -> Result<KernelHandle<T>> {
        Ok(device::launch(self.env()?, blocks, kernel))
    }

    /// Runs a host kernel of one block in this thread.
    ///
    /// # Errors
    /// As [`DevComm::launch`], and what the kernel returns.
    pub fn run<T>(&self, kernel: impl FnOnce(&Kernel<'_>) -> Result<T>) -> Result<T> {
        device::run_here(self.env()?, kernel)
    }

    fn check_open(&self) -> Result<()> {
        let core = &self.0.core;
        if self.0.closed.load(Ordering::Acquire) || core.closed.load(Ordering::Acquire) {
            let what = format!("a device communicator of communicator `{}`", core.agreed.name);
            return Err(Misuse::Closed { what }.into());
        }
        core.watch.error().map_or(Ok(()), Err)
    }

    /// The kernel counts as running before it is known whether it may: a close either sees it or is seen by it.
    fn env(&self) -> Result<device::KernelEnv> {
        let core = &self.0.core;
        let id = core.kernels.begin();
        tracing::debug!(comm = %core.agreed.name, rank = core.agreed.rank.get(), kernel = id, "kernel.begin");
        // The kernel keeps its device communicator, and so its resource buffer, open.
        let this = self.clone();
        let env = device::kernel::of_communicator(
            self.0.device,
            Arc::clone(&core.watch),
            Arc::clone(&self.0.who),
            &self.0.claims,
            Arc::clone(&self.0.sizes),
        )
        .on_end(move || {
            let is_awaited = this.0.core.kernels.end(id);
            let agreed = &this.0.core.agreed;
            tracing::debug!(comm = %agreed.name, rank = agreed.rank.get(), kernel = id, "kernel.end");
            if is_awaited && let Some(actor) = this.0.core.actor.upgrade() {
                let _ = actor.control(CommMsg::KernelEnded);
            }
        });
        self.check_open()?;
        self.0.core.host_access()?;
        Ok(env)
    }
}

impl Inner {
    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(resource) = &self.resource {
            self.core.tell_close(Closing {
                slot: resource.slot,
                entry: None,
                memory: resource.memory,
                struct_address: resource.struct_address,
                hidden: false,
                running: BTreeSet::new(),
                after: Vec::new(),
                keep: None,
            });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for DevComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevComm")
            .field("comm", &self.0.core.agreed.name)
            .field("rank", &self.0.core.agreed.rank)
            .field("plan", &self.0.plan)
            .finish_non_exhaustive()
    }
}
