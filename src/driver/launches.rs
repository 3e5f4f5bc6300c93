//! The kernels that a rank has started on streams of its device, one after another whatever their streams.
#![allow(unsafe_code, reason = "what a kernel is led to is the caller's promise")]

use std::sync::Arc;

use parking_lot::Mutex;

use super::passing::Passing;
use super::{Call, DeviceError, DeviceProblem, Driver, Launch, Stream, StreamRef};

/// The last one.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    point: Option<(Stream, Passing)>,
    /// The program uses several streams: what it queues behind a kernel on one may depend on the next one on another,
    /// so that each is marked at once.
    on_several: bool,
}

impl Launches {
    /// Queues a kernel behind those that were queued before, on whichever stream: they share barriers. Into a graph
    /// that is being captured it goes without that order, and nothing is known of when the graph runs.
    ///
    /// # Safety
    /// As [`Driver::launch`], until the point that [`Launches::last`] gives, or the graph's last run, has passed.
    pub(crate) unsafe fn launch(
        &self,
        driver: &Arc<dyn Driver>,
        stream: StreamRef,
        launch: &Launch<'_>,
    ) -> Result<(), DeviceError> {
        let mut last = self.last.lock();
        let number = stream.number();
        if let Some((before, passing)) = &last.point
            && *before == number
            && passing.is_end()
        {
            // SAFETY: the caller's promise.
            unsafe { driver.launch(number, launch) }?;
            // Else it was marked meanwhile, and before this kernel perhaps.
            if !passing.is_end() {
                last.point = Some((number, Passing::of_end(driver, stream)?));
            }
            return Ok(());
        }
        let is_captured = driver.is_capturing(number)?;
        let is_other = last.point.as_ref().is_some_and(|(before, _)| !stream.is(*before));
        if let Some((_, passing)) = &last.point
            && is_other
            && !is_captured
        {
            hold_back(passing, number)?;
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(number, launch) }?;
        if !is_captured {
            last.on_several |= is_other;
            let point = Passing::of_end(driver, stream)?;
            if last.on_several {
                point.mark();
            }
            last.point = Some((number, point));
        }
        Ok(())
    }

    /// The point behind the last one, if there was any.
    pub(crate) fn last(&self) -> Option<Passing> {
        self.last.lock().point.as_ref().map(|(_, passing)| passing.clone())
    }

    /// Marks that point, if it can be: see [`Passing::mark`].
    pub(crate) fn mark(&self) {
        if let Some(last) = self.last() {
            last.mark();
        }
    }

    /// Forgets it.
    pub(crate) fn clear(&self) {
        self.last.lock().point = None;
    }
}

fn hold_back(last: &Passing, stream: Stream) -> Result<(), DeviceError> {
    if last.hold_back(stream)? {
        return Ok(());
    }
    let what = "the stream of the collective before this one is being captured, so that this one, on another stream, \
                cannot be queued behind it: end the capture first"
        .to_owned();
    Err(DeviceError::new(Call::StreamWait, DeviceProblem::Argument { what }))
}
