//! Streams that collectives are queued on, over `crates/fake-cuda`, where kernels do nothing: when a stream is marked,
//! who waits for whom, and who keeps it. Run by `scripts/fake-gpu`.
#![cfg(feature = "cuda")]
#![allow(unsafe_code, reason = "a stream is held by a function of the host's")]
#![allow(clippy::unwrap_used, reason = "these are tests; clippy takes helpers for none")]

mod common;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, Once, mpsc};
use std::time::Duration;

use common::device::on_gpus;
use common::*;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, result};
use symwin::coll::{DType, ReduceOp};
use symwin::driver::buffers::BufferAllocator;
use symwin::driver::cuda::CudaDriver;
use symwin::driver::faulty::Faulty;
use symwin::driver::{Call, DeviceProblem, Driver, StreamRef};
use symwin::error::Misuse;
use symwin::{Communicator, Error, Window, WindowFlags};

/// One rank, with a window for collectives that some have been queued on.
struct Rank {
    world: FaultyWorld,
    window: Window,
    context: Arc<CudaContext>,
}

impl Rank {
    fn new(config: symwin::Config) -> Self {
        assert!(on_gpus(), "run by scripts/fake-gpu");
        let world = faulty_world(&[1], config);
        let [buffer] = buffers(&world.ranks, 8192).try_into().unwrap();
        let window = world.ranks[0].register(&buffer, WindowFlags::COLL_SYMMETRIC).unwrap();
        Self { world, window, context: CudaContext::new(0).unwrap() }
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    fn all_reduce(&self, stream: impl Into<StreamRef>) -> symwin::Result<()> {
        let slice = self.window.slice(0..4096).unwrap();
        self.world.ranks[0].all_reduce_on(stream, &slice, &slice, DType::F32, ReduceOp::Sum)
    }

    fn count(&self, call: Call) -> u64 {
        self.world.faults[0].count(call)
    }

    fn communicator(self) -> Communicator {
        let [comm] = self.world.ranks.try_into().unwrap();
        comm
    }
}

/// Holds a stream until the sender goes.
fn hold(stream: &Arc<CudaStream>) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    let waiting = Box::into_raw(Box::new(receiver));
    // SAFETY: the function takes the box that it is given, once.
    unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, waiting.cast()) }.unwrap();
    sender
}

unsafe extern "C" fn wait(waiting: *mut c_void) {
    // SAFETY: `hold` gave it away, to this call alone.
    let receiver = unsafe { Box::from_raw(waiting.cast::<mpsc::Receiver<()>>()) };
    // The stream ends when the test does, whatever happens.
    let _waited = receiver.recv_timeout(Duration::from_secs(60));
}

fn begin_capture(stream: &CudaStream) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
}

fn end_capture(stream: &Arc<CudaStream>) {
    drop(
        stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .unwrap(),
    );
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_kept_stream_is_marked_when_somebody_asks_and_a_number_at_once() {
    let rank = Rank::new(config());
    let stream = rank.stream();
    let marks = || rank.count(Call::Record);
    let before = marks();
    for _ in 0..5 {
        rank.all_reduce(&stream).unwrap();
    }
    rank.all_reduce(&*stream).unwrap();
    assert_eq!(marks() - before, 0, "nobody has asked, and the stream is known to live");
    let [buffer] = buffers(&rank.world.ranks, 8192).try_into().unwrap();
    drop(rank.world.ranks[0].register(&buffer, WindowFlags::empty()).unwrap());
    let asked = marks();
    assert!(asked > before, "a window was closed");
    for _ in 0..5 {
        rank.all_reduce(&*stream).unwrap();
    }
    assert_eq!(marks() - asked, 5, "a number may be no stream any more when somebody asks");
}

/// What the program queues behind a collective on one of its streams may depend on another one's.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn who_uses_several_streams_has_each_collective_marked() {
    let rank = Rank::new(config());
    let (stream, other) = (rank.stream(), rank.stream());
    rank.all_reduce(&stream).unwrap();
    let marks = rank.count(Call::Record);
    rank.all_reduce(&other).unwrap();
    assert_eq!(rank.count(Call::Record) - marks, 2, "the first stream's end, and this one");
    let held = hold(&other);
    rank.all_reduce(&stream).unwrap();
    assert_eq!(rank.count(Call::StreamWait), 2);
    stream.synchronize().unwrap();
    held.send(()).expect("the other stream is held still");
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn the_default_streams_of_two_threads_are_two_streams() {
    let rank = Rank::new(config());
    let on_own = || rank.all_reduce(&rank.context.per_thread_stream()).unwrap();
    on_own();
    std::thread::scope(|scope| drop(scope.spawn(on_own)));
    assert_eq!(rank.count(Call::StreamWait), 1);
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_stream_of_another_gpu_is_refused() {
    let rank = Rank::new(config());
    let other = CudaContext::new(1).unwrap();
    for stream in [other.default_stream(), other.new_stream().unwrap()] {
        let error = rank.all_reduce(&stream).unwrap_err();
        assert!(matches!(error, Error::Misuse(Misuse::WrongDevice { .. })), "{error}");
        assert!(error.to_string().contains("GPU 1"), "{error}");
    }
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_closed_window_waits_for_what_was_queued_since_its_stream_was_first_used() {
    let rank = Rank::new(config());
    let stream = rank.stream();
    rank.all_reduce(&stream).unwrap();
    let held = hold(&stream);
    rank.all_reduce(&stream).unwrap();
    rank.window.close().unwrap();
    let polls = rank.count(Call::Done);
    until("the stream to be asked", || rank.count(Call::Done) > polls + 2);
    assert_eq!(rank.world.ranks[0].status().table_slots, 1);
    drop(held);
    until("the window's places to be free", || rank.world.ranks[0].status().table_slots == 0);
}

/// Marked by a close, the stream's end is another one for the next collective.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_collective_behind_a_mark_is_waited_for_too() {
    let rank = Rank::new(config().deadline(Duration::from_millis(300)));
    let [buffer] = buffers(&rank.world.ranks, 8192).try_into().unwrap();
    let other = rank.world.ranks[0].register(&buffer, WindowFlags::empty()).unwrap();
    let stream = rank.stream();
    rank.all_reduce(&stream).unwrap();
    let first = hold(&stream);
    other.close().unwrap();
    until("the stream to be marked", || rank.count(Call::Done) > 2);
    let second = hold(&stream);
    rank.all_reduce(&stream).unwrap();
    drop(first);
    until("the closed window's places to be free", || rank.world.ranks[0].status().table_slots == 1);
    let error = rank.communicator().finalize().unwrap_err();
    assert!(
        matches!(error, Error::Limit { .. }) && error.to_string().contains("1 streams of rank 0 to end"),
        "{error}"
    );
    drop(second);
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn the_runtime_keeps_a_stream_until_it_needs_it_no_more() {
    let rank = Rank::new(config());
    let stream = rank.stream();
    let weak = Arc::downgrade(&stream);
    rank.all_reduce(&stream).unwrap();
    drop(stream);
    assert_eq!(weak.strong_count(), 1, "its end may be asked for yet");
    rank.all_reduce(&rank.stream()).unwrap();
    assert_eq!(weak.strong_count(), 0, "it was marked for the other one");

    let rank = Rank::new(config());
    let stream = rank.stream();
    let weak = Arc::downgrade(&stream);
    rank.all_reduce(&stream).unwrap();
    drop(stream);
    rank.communicator().finalize().unwrap();
    assert_eq!(weak.strong_count(), 0);
}

#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_stream_that_is_captured_is_marked_when_the_capture_has_ended() {
    let rank = Rank::new(config());
    let (stream, other) = (rank.stream(), rank.stream());
    rank.all_reduce(&stream).unwrap();
    begin_capture(&stream);
    rank.all_reduce(&stream).unwrap();
    let Error::Device(error) = rank.all_reduce(&other).unwrap_err() else { panic!("not of the device") };
    assert!(matches!(error.problem, DeviceProblem::Argument { .. }), "{error}");
    assert!(error.to_string().contains("end the capture first"), "{error}");
    let structs = || rank.world.ranks[0].status().shadow_slots;
    let before = structs();
    rank.window.close().unwrap();
    sync(&rank.world.ranks);
    assert_eq!(structs(), before, "its end is not known");
    end_capture(&stream);
    until("the window's places to be free", || structs() < before);
    rank.communicator().finalize().unwrap();
}

/// The program begins to capture while the runtime marks the stream's end.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn a_capture_that_begins_meanwhile_is_waited_for() {
    let rank = Rank::new(config());
    let stream = rank.stream();
    rank.all_reduce(&stream).unwrap();
    let (begun, waits) = mpsc::channel();
    let once = Once::new();
    let captured = Arc::clone(&stream);
    rank.world.faults[0].on_call(Box::new(move |call, _| {
        if call == Call::Record {
            once.call_once(|| {
                begin_capture(&captured);
                begun.send(()).unwrap();
            });
        }
    }));
    let faults = Arc::clone(&rank.world.faults[0]);
    let program = std::thread::spawn(move || {
        waits.recv().unwrap();
        let asked = faults.count(Call::Record);
        until("the stream to be asked for its end", || faults.count(Call::Record) > asked + 2);
        end_capture(&stream);
    });
    rank.communicator().finalize().unwrap();
    program.join().unwrap();
}

/// A program's subscriber may wait for a lock, under which another thread allocates.
#[test]
#[ignore = "needs the fake CUDA driver: scripts/fake-gpu"]
fn undo_that_fails_is_told_of_when_other_threads_may_allocate() {
    let device = CudaDriver::new(0).unwrap();
    let faulty = Faulty::new(Arc::clone(&device) as Arc<dyn Driver>);
    let buffer = BufferAllocator::new(faulty.clone() as Arc<dyn Driver>, 1 << 20).alloc_own(4096).unwrap();
    faulty.fail_always(Call::Unmap);
    let (told, hears) = mpsc::channel();
    let (done, waits) = mpsc::channel();
    let subscriber = Subscriber { told, waits: Mutex::new(waits) };
    let other = std::thread::spawn(move || {
        hears.recv().unwrap();
        let memory = device.create(usize::try_from(device.info().granularity).unwrap()).unwrap();
        // An error once the subscriber has given up.
        let sent = done.send(()).is_ok();
        device.release(memory).unwrap();
        sent
    });
    tracing::subscriber::with_default(subscriber, || drop(buffer));
    assert!(other.join().unwrap(), "an allocation waited for the subscriber");
}

/// Waits at every event, until another thread is done.
struct Subscriber {
    told: mpsc::Sender<()>,
    waits: Mutex<mpsc::Receiver<()>>,
}

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        if self.told.send(()).is_ok() {
            let waits = self.waits.lock().unwrap();
            let _done = waits.recv_timeout(Duration::from_secs(10));
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
