//! Stream capture: what is added to a graph, and which calls end a capture.
//!
//! Calls that CUDA calls unsafe during capture (allocating, querying events, loading modules) are refused and
//! invalidate captures, by the modes of the capture and of the calling thread, which `cuda.h` describes at
//! `cuThreadExchangeStreamCaptureMode`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use crate::abi::Out;
use crate::code::{Code, Done};
use crate::stream::Op;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

thread_local! {
    /// The thread's mode.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

#[derive(Debug)]
struct Capture {
    origin: u64,
    mode: u32,
    thread: ThreadId,
    ops: Vec<Op>,
    invalidated: bool,
}

/// Captures under way, and graphs.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    next: u64,
    under_way: BTreeMap<u64, Capture>,
    /// Capture by stream.
    streams: BTreeMap<u64, u64>,
    graphs: BTreeMap<u64, Vec<Op>>,
    executables: BTreeMap<u64, Vec<Op>>,
}

impl Captures {
    /// The capture that a stream takes part in.
    pub(crate) fn of(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream).copied()
    }

    fn capture(&mut self, stream: u64) -> Option<&mut Capture> {
        let number = self.of(stream)?;
        self.under_way.get_mut(&number)
    }

    /// Adds work to the stream's capture, if it has one; says whether.
    pub(crate) fn add(&mut self, stream: u64, op: &Op) -> Done<bool> {
        let Some(capture) = self.capture(stream) else { return Ok(false) };
        if capture.invalidated {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        capture.ops.push(op.clone());
        Ok(true)
    }

    /// What a capturing stream cannot do.
    pub(crate) fn refuse(&mut self, stream: u64) -> Done {
        let Some(capture) = self.capture(stream) else { return Ok(()) };
        capture.invalidated = true;
        Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// A capturing stream cannot wait for what is not captured.
    pub(crate) fn isolate(&mut self, stream: u64) -> Done {
        let Some(capture) = self.capture(stream) else { return Ok(()) };
        capture.invalidated = true;
        Err(Code::STREAM_CAPTURE_ISOLATION)
    }

    /// A stream that waits for a captured event takes part in its capture.
    pub(crate) fn join(&mut self, stream: u64, capture: u64) -> Done {
        if !self.under_way.contains_key(&capture) {
            return Err(Code::CAPTURED_EVENT);
        }
        if self.of(stream).is_some_and(|own| own != capture) {
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        self.streams.insert(stream, capture);
        Ok(())
    }

    /// An unsafe call of this thread: refused if a capture forbids it, which that ends.
    pub(crate) fn check_unsafe_call(&mut self) -> Done {
        let (mode, here) = (MODE.get(), thread::current().id());
        let forbids = |capture: &&mut Capture| match mode {
            RELAXED => false,
            GLOBAL => capture.mode == GLOBAL || (capture.thread == here && capture.mode != RELAXED),
            _ => capture.thread == here && capture.mode != RELAXED,
        };
        let mut refused = false;
        for capture in self.under_way.values_mut().filter(forbids) {
            capture.invalidated = true;
            refused = true;
        }
        if refused { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}

entry! {
    [INIT] fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_state| {
        let wanted = mode.input().get()?;
        if wanted > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        mode.put(MODE.replace(wanted))
    }

    [CONTEXT] fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |state| {
        let key = state.stream(stream)?;
        if stream <= 2 || mode > RELAXED {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if state.captures.of(key).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let captures = &mut state.captures;
        captures.next += 1;
        let number = captures.next;
        let capture =
            Capture { origin: key, mode, thread: thread::current().id(), ops: Vec::new(), invalidated: false };
        captures.under_way.insert(number, capture);
        captures.streams.insert(key, number);
        Ok(())
    }

    [CONTEXT] fn cuStreamIsCapturing(stream: u64, status: Out<u32>) |state| {
        let key = state.stream(stream)?;
        let status_of = |capture: &mut Capture| if capture.invalidated { 2 } else { 1 };
        status.put(state.captures.capture(key).map_or(0, status_of))
    }

    [CONTEXT] fn cuStreamEndCapture(stream: u64, graph: Out<u64>) |state| {
        let key = state.stream(stream)?;
        graph.put(0)?;
        let number = state.captures.of(key).ok_or(Code::ILLEGAL_STATE)?;
        let fresh = state.fresh();
        let captures = &mut state.captures;
        let capture = captures.under_way.get(&number).ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != key {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        captures.streams.retain(|_, of| *of != number);
        match captures.under_way.remove(&number) {
            Some(capture) if !capture.invalidated => {
                captures.graphs.insert(fresh, capture.ops);
                graph.put(fresh)
            }
            _ => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    [CONTEXT] fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) |state| {
        let _ = flags;
        let number = state.fresh();
        let ops = state.captures.graphs.get(&graph).cloned().ok_or(Code::INVALID_VALUE)?;
        state.captures.executables.insert(number, ops);
        executable.put(number)
    }

    [CONTEXT] fn cuGraphLaunch(executable: u64, stream: u64) |state| {
        let ops = state.captures.executables.get(&executable).cloned().ok_or(Code::INVALID_VALUE)?;
        ops.into_iter().try_for_each(|op| state.queue(stream, op))
    }

    [CONTEXT] fn cuGraphDestroy(graph: u64) |state| {
        state.captures.graphs.remove(&graph).map(drop).ok_or(Code::INVALID_VALUE)
    }

    [CONTEXT] fn cuGraphExecDestroy(executable: u64) |state| {
        state.captures.executables.remove(&executable).map(drop).ok_or(Code::INVALID_VALUE)
    }
}
