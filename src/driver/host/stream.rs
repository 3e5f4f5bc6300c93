//! Streams of the host device, and of the null device: what is queued runs at once, in the caller.
//!
//! Copies and fills are small (device structs, tables, zeroes), so a queue of their own would cost more than
//! the work. Order follows from that, and every event has passed when it is recorded.

use std::collections::BTreeSet;

use crate::driver::{DeviceProblem, Event, Stream};

/// The streams and events that are alive. Numbers are never used twice.
#[derive(Debug, Default)]
pub(in crate::driver) struct Streams {
    /// The last number handed out, of streams and events together.
    last: u64,
    streams: BTreeSet<u64>,
    /// Recorded and not yet asked for. They outlive their streams, as on GPUs.
    events: BTreeSet<u64>,
}

impl Streams {
    pub(in crate::driver) fn create(&mut self) -> Stream {
        let stream = self.next();
        self.streams.insert(stream);
        Stream(stream)
    }

    pub(in crate::driver) fn destroy(&mut self, stream: Stream) -> Result<(), DeviceProblem> {
        if self.streams.remove(&stream.0) { Ok(()) } else { Err(unknown(stream.0)) }
    }

    pub(in crate::driver) fn check(&self, stream: Stream) -> Result<(), DeviceProblem> {
        if self.streams.contains(&stream.0) { Ok(()) } else { Err(unknown(stream.0)) }
    }

    pub(in crate::driver) fn record(&mut self, stream: Stream) -> Result<Event, DeviceProblem> {
        self.check(stream)?;
        let event = self.next();
        self.events.insert(event);
        Ok(Event(event))
    }

    /// Always yes, once.
    pub(in crate::driver) fn done(&mut self, event: Event) -> Result<bool, DeviceProblem> {
        if self.events.remove(&event.0) { Ok(true) } else { Err(unknown(event.0)) }
    }

    pub(in crate::driver) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub(in crate::driver) fn event_count(&self) -> usize {
        self.events.len()
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn unknown(handle: u64) -> DeviceProblem {
    DeviceProblem::InvalidHandle { handle }
}
