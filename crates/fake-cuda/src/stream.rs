//! Streams, events, copies and host functions.
//!
//! A stream's work is done in order by whoever queues it, at once, until a host function or an event that has not
//! passed comes up: then it is queued. A host function runs on a thread of its own, without the lock; tests hold a stream
//! by one that waits.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::abi::{In, Out};
use crate::code::{Code, Done};
use crate::entry::Guard;
use crate::state::{self, State};
use crate::words;

/// A piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// From device memory or pinned memory to the same.
    Copy {
        to: Place,
        from: Place,
        len: usize,
    },
    /// What was in memory of the host's that is not pinned when the copy was queued.
    Store {
        to: usize,
        bytes: Arc<[u8]>,
    },
    Record {
        passed: Arc<AtomicU64>,
        generation: u64,
    },
    Wait {
        passed: Arc<AtomicU64>,
        generation: u64,
    },
    Call {
        call: extern "C" fn(usize),
        data: usize,
    },
}

/// An address and whose memory it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Device(usize),
    Pinned(usize),
}

#[derive(Debug)]
struct Stream {
    device: i32,
    queue: VecDeque<Op>,
    /// Its host function runs.
    is_calling: bool,
    is_destroyed: bool,
}

impl Stream {
    fn new(device: i32) -> Self {
        Self { device, queue: VecDeque::new(), is_calling: false, is_destroyed: false }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_calling
    }
}

#[derive(Debug, Default)]
struct Event {
    /// The last record's number.
    recorded: u64,
    /// The last one that its stream has passed.
    passed: Arc<AtomicU64>,
    /// Recorded by a capture.
    capture: Option<u64>,
}

/// All streams and events. A device's default stream has the device's number.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: BTreeMap<u64, Stream>,
    events: BTreeMap<u64, Event>,
}

impl State {
    /// The stream of a handle; 0, 1 and 2 are the default one.
    pub(crate) fn stream(&mut self, handle: u64) -> Done<u64> {
        if handle <= 2 {
            let device = self.contexts.current()?;
            let key = u64::from(device.unsigned_abs());
            self.streams.streams.entry(key).or_insert_with(|| Stream::new(device));
            return Ok(key);
        }
        let found = self.streams.streams.get(&handle).filter(|stream| !stream.is_destroyed);
        found.map(|_| handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Queues work on a stream, or adds it to what the stream captures.
    pub(crate) fn queue(&mut self, stream: u64, op: Op) -> Done {
        let key = self.stream(stream)?;
        if self.captures.add(key, &op)? {
            return Ok(());
        }
        if let Some(stream) = self.streams.streams.get_mut(&key) {
            stream.queue.push_back(op);
        }
        self.pump();
        Ok(())
    }

    /// Does what can be done.
    fn pump(&mut self) {
        let keys: Vec<u64> = self.streams.streams.keys().copied().collect();
        // Passing an event may let another stream on.
        while keys.iter().fold(false, |any, &key| self.advance(key) | any) {}
        self.streams.streams.retain(|_, stream| !(stream.is_destroyed && stream.is_idle()));
        state::changed();
    }

    /// Whether a stream got on.
    fn advance(&mut self, key: u64) -> bool {
        let mut any = false;
        while let Some(stream) = self.streams.streams.get_mut(&key).filter(|stream| !stream.is_calling) {
            let device = stream.device;
            let Some(op) = stream.queue.pop_front() else { break };
            match op {
                Op::Wait { ref passed, generation } if passed.load(Acquire) < generation => {
                    stream.queue.push_front(op);
                    break;
                }
                Op::Wait { .. } => {}
                Op::Record { passed, generation } => passed.store(generation, Release),
                Op::Call { call, data } => {
                    stream.is_calling = true;
                    std::thread::spawn(move || {
                        call(data);
                        let mut state = state::lock();
                        if let Some(stream) = state.streams.streams.get_mut(&key) {
                            stream.is_calling = false;
                        }
                        state.pump();
                    });
                }
                Op::Copy { to, from, len } => {
                    let done = self.read(device, from, len).and_then(|bytes| self.write(device, to, &bytes));
                    self.conclude(device, done);
                }
                Op::Store { to, bytes } => {
                    let done = self.write(device, Place::Device(to), &bytes);
                    self.conclude(device, done);
                }
            }
            any = true;
        }
        any
    }

    /// A copy that failed ends the context, as on a real device.
    fn conclude(&mut self, device: i32, done: Done) {
        if let Err(code) = done {
            self.contexts.end(device, code);
        }
    }

    fn check_place(&self, device: i32, place: Place, len: usize, access: u32) -> Done<usize> {
        let (at, may) = match place {
            Place::Device(at) => {
                let range: Range<usize> = at..at.checked_add(len).ok_or(Code::INVALID_VALUE)?;
                (at, self.memory.is_accessible(device, range, access))
            }
            Place::Pinned(at) => (at, self.host.has(at, len)),
        };
        if may { Ok(at) } else { Err(Code::ILLEGAL_ADDRESS) }
    }

    fn read(&self, device: i32, from: Place, len: usize) -> Done<Vec<u8>> {
        let at = self.check_place(device, from, len, 1)?;
        let mut bytes = vec![0; len];
        // SAFETY: the range is mapped and readable, by the books, which do not change meanwhile.
        unsafe { words::load(at, &mut bytes) };
        Ok(bytes)
    }

    fn write(&self, device: i32, to: Place, bytes: &[u8]) -> Done {
        let at = self.check_place(device, to, bytes.len(), 2)?;
        // SAFETY: the range is mapped and writable, by the books, which do not change meanwhile.
        unsafe { words::store(at, bytes) };
        Ok(())
    }

    fn event(&mut self, event: u64) -> Done<&mut Event> {
        self.streams.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)
    }
}

/// Waits until a device has done all that it was given.
pub(crate) fn await_device(state: &mut Guard, device: i32) -> Done {
    loop {
        let mut streams = state.streams.streams.values();
        if streams.all(|stream| stream.device != device || stream.is_idle()) {
            return state.contexts.current().map(drop);
        }
        state::wait(state);
    }
}

/// Waits until a stream has.
fn await_stream(state: &mut Guard, key: u64) -> Done {
    state.captures.refuse(key)?;
    while state.streams.streams.get(&key).is_some_and(|stream| !stream.is_idle()) {
        state::wait(state);
    }
    state.contexts.current().map(drop)
}

/// Copies between device memory and the caller's.
fn store(state: &mut Guard, to: usize, from: In<u8>, len: usize, stream: u64) -> Done {
    let pinned = state.host.has(from.address(), len);
    let op = if pinned {
        Op::Copy { to: Place::Device(to), from: Place::Pinned(from.address()), len }
    } else {
        Op::Store { to, bytes: from.get_all(len)?.into() }
    };
    state.queue(stream, op)
}

fn load(state: &mut Guard, to: Out<u8>, from: usize, len: usize, stream: u64) -> Done {
    let pinned = state.host.has(to.address(), len);
    if pinned {
        let (to, from) = (Place::Pinned(to.address()), Place::Device(from));
        return state.queue(stream, Op::Copy { to, from, len });
    }
    // Memory that is not pinned is written before the call returns.
    let key = state.stream(stream)?;
    await_stream(state, key)?;
    let device = state.contexts.current()?;
    let bytes = state.read(device, Place::Device(from), len)?;
    to.put_all(&bytes, len)
}

fn copy(state: &mut Guard, to: usize, from: usize, len: usize, stream: u64) -> Done {
    state.queue(stream, Op::Copy { to: Place::Device(to), from: Place::Device(from), len })
}

fn fill(state: &mut Guard, to: usize, byte: u8, len: usize, stream: u64) -> Done {
    state.queue(stream, Op::Store { to, bytes: vec![byte; len].into() })
}

fn create(state: &mut Guard, stream: Out<u64>, flags: u32) -> Done {
    stream.check()?;
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let device = state.contexts.current()?;
    let number = state.fresh();
    state.streams.streams.insert(number, Stream::new(device));
    stream.put(number)
}

entry! {
    [CONTEXT] fn cuStreamCreate(stream: Out<u64>, flags: u32) |state| {
        create(state, stream, flags)
    }

    [CONTEXT] fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |state| {
        let _ = priority;
        create(state, stream, flags)
    }

    // What it holds still runs.
    [CONTEXT] fn cuStreamDestroy_v2(stream: u64) |state| {
        let key = state.stream(stream)?;
        state.captures.refuse(key)?;
        if let Some(stream) = state.streams.streams.get_mut(&key) {
            stream.is_destroyed = true;
        }
        state.pump();
        Ok(())
    }

    [CONTEXT_NO_CAPTURE] fn cuStreamQuery(stream: u64) |state| {
        let key = state.stream(stream)?;
        state.captures.refuse(key)?;
        let is_idle = state.streams.streams.get(&key).is_none_or(Stream::is_idle);
        if is_idle { Ok(()) } else { Err(Code::NOT_READY) }
    }

    [CONTEXT_NO_CAPTURE] fn cuStreamSynchronize(stream: u64) |state| {
        let key = state.stream(stream)?;
        await_stream(state, key)
    }

    [CONTEXT] fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |state| {
        let _ = flags;
        let key = state.stream(stream)?;
        let Event { recorded, ref passed, capture } = *state.event(event)?;
        let passed = Arc::clone(passed);
        if let Some(capture) = capture {
            return state.captures.join(key, capture);
        }
        state.captures.isolate(key)?;
        state.queue(stream, Op::Wait { passed, generation: recorded })
    }

    [CONTEXT] fn cuLaunchHostFunc(stream: u64, call: Option<extern "C" fn(usize)>, data: usize) |state| {
        state.queue(stream, Op::Call { call: call.ok_or(Code::INVALID_VALUE)?, data })
    }

    [CONTEXT] fn cuEventCreate(event: Out<u64>, flags: u32) |state| {
        event.check()?;
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        let number = state.fresh();
        state.streams.events.insert(number, Event::default());
        event.put(number)
    }

    [CONTEXT] fn cuEventDestroy_v2(event: u64) |state| {
        state.streams.events.remove(&event).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    [CONTEXT] fn cuEventRecord(event: u64, stream: u64) |state| {
        let key = state.stream(stream)?;
        let capture = state.captures.of(key);
        let found = state.event(event)?;
        found.capture = capture;
        if capture.is_some() {
            return Ok(());
        }
        found.recorded += 1;
        let (passed, generation) = (Arc::clone(&found.passed), found.recorded);
        state.queue(stream, Op::Record { passed, generation })
    }

    [CONTEXT_NO_CAPTURE] fn cuEventQuery(event: u64) |state| {
        let found = state.event(event)?;
        if found.capture.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        if found.passed.load(Acquire) >= found.recorded { Ok(()) } else { Err(Code::NOT_READY) }
    }

    [CONTEXT_NO_CAPTURE] fn cuEventSynchronize(event: u64) |state| {
        let found = state.event(event)?;
        if found.capture.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        let (passed, generation) = (Arc::clone(&found.passed), found.recorded);
        while passed.load(Acquire) < generation {
            state::wait(state);
        }
        Ok(())
    }

    [CONTEXT] fn cuMemcpyHtoDAsync_v2(to: usize, from: In<u8>, len: usize, stream: u64) |state| {
        store(state, to, from, len, stream)
    }

    [CONTEXT] fn cuMemcpyDtoHAsync_v2(to: Out<u8>, from: usize, len: usize, stream: u64) |state| {
        load(state, to, from, len, stream)
    }

    [CONTEXT] fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, len: usize, stream: u64) |state| {
        copy(state, to, from, len, stream)
    }

    [CONTEXT] fn cuMemsetD8Async(to: usize, byte: u8, len: usize, stream: u64) |state| {
        fill(state, to, byte, len, stream)
    }

    [CONTEXT_NO_CAPTURE] fn cuMemcpyHtoD_v2(to: usize, from: In<u8>, len: usize) |state| {
        store(state, to, from, len, 0)?;
        let key = state.stream(0)?;
        await_stream(state, key)
    }

    [CONTEXT_NO_CAPTURE] fn cuMemcpyDtoH_v2(to: Out<u8>, from: usize, len: usize) |state| {
        load(state, to, from, len, 0)?;
        let key = state.stream(0)?;
        await_stream(state, key)
    }

    [CONTEXT_NO_CAPTURE] fn cuMemcpyDtoD_v2(to: usize, from: usize, len: usize) |state| {
        copy(state, to, from, len, 0)?;
        let key = state.stream(0)?;
        await_stream(state, key)
    }

    [CONTEXT_NO_CAPTURE] fn cuMemsetD8_v2(to: usize, byte: u8, len: usize) |state| {
        fill(state, to, byte, len, 0)?;
        let key = state.stream(0)?;
        await_stream(state, key)
    }
}
