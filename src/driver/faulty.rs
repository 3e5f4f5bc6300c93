//! A device that fails on demand, or is late: it wraps another one, counts calls of each kind, fails those that a
//! test asked for, and holds back the events that it asked for.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    AddressRange, Batch, Call, DeviceError, DeviceInfo, DeviceProblem, Driver, Event, Exported, Flag, Handle,
    HandleKind, Launch, Stream,
};

/// What is told of every call before it is made: its kind, and which of its kind it is, from 1.
pub type Hook = Box<dyn Fn(Call, u64) + Send + Sync>;

/// Wraps a driver. See the module. [`Driver::info`] is not a call.
///
/// A call that fails on demand does not reach the inner driver. To count multicast calls too, wrap the
/// [`MulticastDriver`](super::multicast::MulticastDriver), not what that one wraps.
pub struct Faulty {
    inner: Arc<dyn Driver>,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// Calls made so far, failed ones included.
    counts: BTreeMap<Call, u64>,
    /// Which calls are to fail, by their number.
    once: BTreeMap<Call, Vec<u64>>,
    /// Kinds that fail always.
    always: Vec<Call>,
    /// How late the next events are to be, in order of their records.
    late: VecDeque<Late>,
    /// Recorded events that are late still.
    held: BTreeMap<u64, Late>,
    /// What the inner driver refused.
    refused: VecDeque<DeviceError>,
    hook: Option<Arc<Hook>>,
}

/// How long an event is held back.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// For so many answers of [`Driver::done`].
    Polls(u64),
    /// Until [`Faulty::heal`].
    Stuck,
}

impl Faulty {
    /// A driver that does as `inner` does until it is told otherwise.
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Mutex::default() })
    }

    /// Fails the `nth` call of this kind from now, once; 1 is the next one. Several may be planned.
    pub fn fail(&self, call: Call, nth: u64) {
        let mut plan = self.plan.lock();
        let number = plan.count(call) + nth;
        plan.once.entry(call).or_default().push(number);
    }

    /// Fails all calls of this kind until [`Self::heal`].
    pub fn fail_always(&self, call: Call) {
        self.plan.lock().always.push(call);
    }

    /// Has the next event that is recorded pass late: [`Driver::done`] says so many times that it has not. Calls
    /// add up, one event each, with those of [`Self::stuck`].
    pub fn late(&self, polls: u64) {
        self.plan.lock().late.push_back(Late::Polls(polls));
    }

    /// Has the next event that is recorded not pass before [`Self::heal`].
    pub fn stuck(&self) {
        self.plan.lock().late.push_back(Late::Stuck);
    }

    /// Forgets all planned failures; late events pass. Counts and hook stay.
    pub fn heal(&self) {
        let mut plan = self.plan.lock();
        plan.once.clear();
        plan.always.clear();
        plan.late.clear();
        plan.held.clear();
    }

    /// Calls of this kind so far, failed ones included.
    #[must_use]
    pub fn count(&self, call: Call) -> u64 {
        self.plan.lock().count(call)
    }

    /// Calls of each kind so far; kinds without any are left out.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Call, u64> {
        self.plan.lock().counts.clone()
    }

    /// Calls that the inner driver itself refused, the latest ones first (at most 64). [`Driver::address_range`] is left
    /// out: it is a question.
    #[must_use]
    pub fn refused(&self) -> Vec<DeviceError> {
        self.plan.lock().refused.iter().cloned().collect()
    }

    /// Calls `hook` before every call, in the caller's thread, without any lock of this driver; it may call
    /// this driver itself. Replaces an earlier hook.
    pub fn on_call(&self, hook: Hook) {
        self.plan.lock().hook = Some(Arc::new(hook));
    }

    fn pass<T>(
        &self,
        call: Call,
        inner: impl FnOnce(&dyn Driver) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let (nth, fails, hook) = self.plan.lock().begin(call);
        if let Some(hook) = hook {
            hook(call, nth);
        }
        if fails {
            return Err(DeviceError::new(call, DeviceProblem::Injected { nth }));
        }
        let outcome = inner(&*self.inner);
        if let Err(error) = &outcome
            && call != Call::AddressRange
        {
            let mut plan = self.plan.lock();
            plan.refused.truncate(REFUSED_MAX - 1);
            plan.refused.push_front(error.clone());
        }
        outcome
    }
}

/// How many refusals are kept.
const REFUSED_MAX: usize = 64;

impl Plan {
    fn count(&self, call: Call) -> u64 {
        self.counts.get(&call).copied().unwrap_or(0)
    }

    /// Counts a call. Returns its number, whether it is to fail, and whom to tell.
    fn begin(&mut self, call: Call) -> (u64, bool, Option<Arc<Hook>>) {
        let count = self.counts.entry(call).or_default();
        *count += 1;
        let nth = *count;
        let mut fails = self.always.contains(&call);
        if let Some(planned) = self.once.get_mut(&call) {
            let before = planned.len();
            planned.retain(|&number| number != nth);
            fails |= planned.len() < before;
        }
        (nth, fails, self.hook.clone())
    }

    /// Holds an event back, if it is one of those to be late.
    fn recorded(&mut self, event: Event) {
        if let Some(late) = self.late.pop_front() {
            self.held.insert(event.0, late);
        }
    }

    /// Whether an event has not passed yet, at one more poll of it.
    fn holds(&mut self, event: Event) -> bool {
        match self.held.get_mut(&event.0) {
            Some(Late::Stuck) => true,
            Some(Late::Polls(left)) if *left > 0 => {
                *left -= 1;
                true
            }
            Some(Late::Polls(_)) => {
                self.held.remove(&event.0);
                false
            }
            None => false,
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[allow(unsafe_code, reason = "the trait's unsafe methods, whose promises are passed on")]
// SAFETY: every call that succeeds was made on the inner device, which promises the same.
unsafe impl Driver for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn batch(&self) -> Batch {
        self.inner.batch()
    }

    #[cfg(feature = "cuda")]
    fn cuda_context(&self) -> Option<&Arc<cudarc::driver::CudaContext>> {
        self.inner.cuda_context()
    }

    fn create(&self, size: usize) -> Result<Handle, DeviceError> {
        self.pass(Call::Create, |inner| inner.create(size))
    }

    fn release(&self, handle: Handle) -> Result<(), DeviceError> {
        self.pass(Call::Release, |inner| inner.release(handle))
    }

    fn retain(&self, address: usize) -> Result<Handle, DeviceError> {
        self.pass(Call::Retain, |inner| inner.retain(address))
    }

    fn address_range(&self, address: usize) -> Result<AddressRange, DeviceError> {
        self.pass(Call::AddressRange, |inner| inner.address_range(address))
    }

    fn export(&self, handle: Handle, kind: HandleKind) -> Result<Exported, DeviceError> {
        self.pass(Call::Export, |inner| inner.export(handle, kind))
    }

    fn import(&self, exported: &Exported, size: usize) -> Result<Handle, DeviceError> {
        self.pass(Call::Import, |inner| inner.import(exported, size))
    }

    fn reserve(&self, size: usize, align: usize) -> Result<usize, DeviceError> {
        self.pass(Call::Reserve, |inner| inner.reserve(size, align))
    }

    unsafe fn free(&self, base: usize, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Free, |inner| unsafe { inner.free(base, size) })
    }

    unsafe fn map(
        &self,
        address: usize,
        size: usize,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Map, |inner| unsafe { inner.map(address, size, offset, handle) })
    }

    fn set_access(&self, address: usize, size: usize, ordinals: &[i32]) -> Result<(), DeviceError> {
        self.pass(Call::SetAccess, |inner| inner.set_access(address, size, ordinals))
    }

    unsafe fn unmap(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Unmap, |inner| unsafe { inner.unmap(address, size) })
    }

    fn stream_create(&self) -> Result<Stream, DeviceError> {
        self.pass(Call::StreamCreate, |inner| inner.stream_create())
    }

    fn stream_destroy(&self, stream: Stream) -> Result<(), DeviceError> {
        self.pass(Call::StreamDestroy, |inner| inner.stream_destroy(stream))
    }

    unsafe fn copy(&self, stream: Stream, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Copy, |inner| unsafe { inner.copy(stream, to, bytes) })
    }

    unsafe fn fill(&self, stream: Stream, to: usize, byte: u8, size: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Fill, |inner| unsafe { inner.fill(stream, to, byte, size) })
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let event = self.pass(Call::Record, |inner| inner.record(stream))?;
        self.plan.lock().recorded(event);
        Ok(event)
    }

    fn done(&self, event: Event) -> Result<bool, DeviceError> {
        self.pass(
            Call::Done,
            |inner| if self.plan.lock().holds(event) { Ok(false) } else { inner.done(event) },
        )
    }

    fn event_destroy(&self, event: Event) -> Result<(), DeviceError> {
        self.pass(Call::EventDestroy, |inner| {
            self.plan.lock().held.remove(&event.0);
            inner.event_destroy(event)
        })
    }

    unsafe fn load(&self, from: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Load, |inner| unsafe { inner.load(from, bytes) })
    }

    unsafe fn store(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Store, |inner| unsafe { inner.store(to, bytes) })
    }

    fn flag(&self) -> Result<Option<Arc<dyn Flag>>, DeviceError> {
        self.pass(Call::Flag, |inner| inner.flag())
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        // A question, which changes nothing.
        self.inner.is_capturing(stream)
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.pass(Call::StreamWait, |inner| inner.stream_wait(stream, event))
    }

    unsafe fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the one that the inner driver asks for.
        self.pass(Call::Launch, |inner| unsafe { inner.launch(stream, launch) })
    }

    fn multicast_create(&self, size: usize, devices: usize) -> Result<Handle, DeviceError> {
        self.pass(Call::MulticastCreate, |inner| inner.multicast_create(size, devices))
    }

    fn multicast_add_device(&self, multicast: Handle) -> Result<(), DeviceError> {
        self.pass(Call::MulticastAddDevice, |inner| inner.multicast_add_device(multicast))
    }

    fn multicast_bind(
        &self,
        multicast: Handle,
        at: usize,
        memory: Handle,
        size: usize,
    ) -> Result<(), DeviceError> {
        self.pass(Call::MulticastBind, |inner| inner.multicast_bind(multicast, at, memory, size))
    }

    fn multicast_unbind(&self, multicast: Handle, at: usize, size: usize) -> Result<(), DeviceError> {
        self.pass(Call::MulticastUnbind, |inner| inner.multicast_unbind(multicast, at, size))
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "every method of the trait is called once")]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::multicast::{MulticastBoard, MulticastDriver};

    const PAGE: usize = 4096;

    fn injected(call: Call, nth: u64) -> DeviceError {
        DeviceError::new(call, DeviceProblem::Injected { nth })
    }

    #[test]
    fn what_the_inner_driver_refuses_is_kept_and_injected_failures_are_not() {
        let faulty = Faulty::new(HostDriver::new(HostOptions::new()).unwrap());
        let handle = faulty.create(PAGE).unwrap();
        faulty.fail(Call::Release, 1);
        assert!(faulty.release(handle).is_err());
        assert_eq!(faulty.refused(), []);
        faulty.release(handle).unwrap();
        let refused = faulty.release(handle).unwrap_err();
        assert!(faulty.address_range(PAGE).is_err(), "a question");
        assert_eq!(faulty.refused(), [refused]);
    }

    #[test]
    fn the_nth_call_from_now_fails_once_and_is_not_made() {
        let host = HostDriver::new(HostOptions::new()).unwrap();
        let faulty = Faulty::new(host.clone());
        let first = faulty.create(PAGE).unwrap();
        faulty.fail(Call::Create, 2);
        let second = faulty.create(PAGE).unwrap();
        assert_eq!(faulty.create(PAGE), Err(injected(Call::Create, 3)));
        assert_eq!(host.counts().handles, 2);
        let third = faulty.create(PAGE).unwrap();
        assert_eq!(faulty.count(Call::Create), 4);
        for handle in [first, second, third] {
            faulty.release(handle).unwrap();
        }
        assert_eq!(faulty.counts(), BTreeMap::from([(Call::Create, 4), (Call::Release, 3)]));
    }

    #[test]
    fn always_lasts_until_healed_and_planned_failures_go_with_it() {
        let faulty = Faulty::new(HostDriver::new(HostOptions::new()).unwrap());
        faulty.fail_always(Call::Reserve);
        faulty.fail(Call::StreamCreate, 1);
        for nth in 1..=3 {
            assert_eq!(faulty.reserve(PAGE, PAGE), Err(injected(Call::Reserve, nth)));
        }
        faulty.heal();
        faulty.stream_create().unwrap();
        let base = faulty.reserve(PAGE, PAGE).unwrap();
        // SAFETY: the reservation was made above and nobody uses it.
        unsafe { faulty.free(base, PAGE) }.unwrap();
    }

    #[test]
    fn the_hook_runs_before_each_call_and_may_call_the_driver() {
        let faulty = Faulty::new(HostDriver::new(HostOptions::new()).unwrap());
        let seen = Arc::new(AtomicU64::new(0));
        let (weak, log): (Weak<Faulty>, _) = (Arc::downgrade(&faulty), Arc::clone(&seen));
        faulty.on_call(Box::new(move |call, nth| {
            if call == Call::Create {
                log.fetch_add(nth, Ordering::Relaxed);
                weak.upgrade().unwrap().fail(Call::Release, 1);
            }
        }));
        let handle = faulty.create(PAGE).unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        assert_eq!(faulty.release(handle), Err(injected(Call::Release, 1)));
        faulty.release(handle).unwrap();
    }

    #[test]
    fn a_late_event_passes_after_so_many_polls_and_a_stuck_one_when_healed() {
        let host = HostDriver::new(HostOptions::new()).unwrap();
        let faulty = Faulty::new(host.clone());
        let stream = faulty.stream_create().unwrap();
        faulty.late(2);
        faulty.stuck();
        let [late, stuck, prompt] = [(); 3].map(|()| faulty.record(stream).unwrap());
        assert_eq!(faulty.done(prompt), Ok(true));
        assert_eq!([(); 3].map(|()| faulty.done(late).unwrap()), [false, false, true]);
        for _ in 0..100 {
            assert_eq!(faulty.done(stuck), Ok(false));
        }
        // A planned failure is still one, and is no poll.
        faulty.fail(Call::Done, 1);
        assert_eq!(faulty.done(stuck), Err(injected(Call::Done, 105)));
        faulty.late(1);
        faulty.heal();
        assert_eq!(faulty.done(stuck), Ok(true));
        let healed = faulty.record(stream).unwrap();
        assert_eq!(faulty.done(healed), Ok(true));
        assert_eq!(faulty.count(Call::Done), 107);
        faulty.stream_destroy(stream).unwrap();
        assert_eq!(host.counts(), crate::driver::host::HostCounts::default());
    }

    /// Every method is named in [`Call`], counted under its own name, and can fail.
    #[test]
    fn every_kind_of_call_can_fail() {
        let host = HostDriver::new(HostOptions::new()).unwrap();
        let faulty = Faulty::new(MulticastDriver::new(host.clone(), MulticastBoard::new()));
        for call in Call::ALL {
            faulty.fail_always(call);
        }
        let (handle, stream) = (Handle(1), Stream(1));
        // SAFETY: the call fails before it reaches a device, as do all below.
        let free = unsafe { faulty.free(0, 0) };
        // SAFETY: as above.
        let map = unsafe { faulty.map(0, 0, 0, handle) };
        // SAFETY: as above.
        let unmap = unsafe { faulty.unmap(0, 0) };
        // SAFETY: as above.
        let copy = unsafe { faulty.copy(stream, 0, &[]) };
        // SAFETY: as above.
        let fill = unsafe { faulty.fill(stream, 0, 0, 0) };
        let nothing = Launch { kernel: "", blocks: 1, threads: 1, parameter: &[] };
        // SAFETY: as above.
        let launch = unsafe { faulty.launch(stream, &nothing) };
        // SAFETY: as above.
        let load = unsafe { faulty.load(0, &mut []) };
        // SAFETY: as above.
        let store = unsafe { faulty.store(0, &[]) };
        let failed = [
            faulty.address_range(0).map(drop),
            copy,
            faulty.create(PAGE).map(drop),
            faulty.done(Event(1)).map(drop),
            faulty.event_destroy(Event(1)),
            faulty.export(handle, HandleKind::Descriptor).map(drop),
            fill,
            faulty.flag().map(drop),
            free,
            faulty.import(&Exported::Fabric([0; 64]), 0).map(drop),
            launch,
            load,
            map,
            faulty.multicast_add_device(handle),
            faulty.multicast_bind(handle, 0, handle, 0),
            faulty.multicast_create(PAGE, 1).map(drop),
            faulty.multicast_unbind(handle, 0, 0),
            faulty.record(stream).map(drop),
            faulty.release(handle),
            faulty.reserve(PAGE, PAGE).map(drop),
            faulty.retain(0).map(drop),
            faulty.set_access(0, 0, &[]),
            store,
            faulty.stream_create().map(drop),
            faulty.stream_destroy(stream),
            faulty.stream_wait(stream, Event(1)),
            unmap,
        ];
        assert_eq!(failed.to_vec(), Call::ALL.map(|call| Err(injected(call, 1))).to_vec());
        assert_eq!(host.counts(), crate::driver::host::HostCounts::default());
    }
}
