//! Points in streams that something waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{DeviceError, DeviceProblem, Driver, Event, Stream, StreamRef};

/// A stream's end as it was when this was made, or later. It is asked, never waited for. Clones are the same point.
#[derive(Clone, Debug)]
pub(crate) struct Passing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    point: Mutex<Point>,
    /// Nobody has begun to mark it. Beside the lock, since each launch of a kernel asks twice.
    is_end: AtomicBool,
}

#[derive(Debug)]
enum Point {
    /// The stream's end, wherever that is when somebody asks first: a mark behind each kernel costs a third of what a
    /// small one takes. The stream lives as long.
    End(StreamRef),
    Marked(Event),
    Passed,
}

impl Passing {
    /// Marks the stream's present end.
    pub(crate) fn of(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Self, DeviceError> {
        let event = driver.record(stream)?;
        Ok(Self::new(driver, Point::Marked(event)))
    }

    /// The stream's present end or a later one: it is marked when somebody asks first, if it is kept until then.
    pub(crate) fn of_end(driver: &Arc<dyn Driver>, stream: StreamRef) -> Result<Self, DeviceError> {
        if stream.is_kept() { Ok(Self::later(driver, stream)) } else { Self::of(driver, stream.number()) }
    }

    /// The stream's end when somebody asks first, whatever becomes of the stream until then.
    pub(crate) fn later(driver: &Arc<dyn Driver>, stream: StreamRef) -> Self {
        Self::new(driver, Point::End(stream))
    }

    fn new(driver: &Arc<dyn Driver>, point: Point) -> Self {
        let is_end = AtomicBool::new(matches!(point, Point::End(_)));
        Self(Arc::new(Inner { driver: Arc::clone(driver), point: Mutex::new(point), is_end }))
    }

    /// The same for clones, and for no other one that lives.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Marks it now, if it can be: recording may wait until there is room in the stream, so that who calls the runtime
    /// does it, and no worker if that can be helped.
    pub(crate) fn mark(&self) {
        // Whoever asks for it hears of an error.
        let _ = self.0.mark(&mut self.0.point.lock());
    }

    /// Whether nobody has begun to mark it, so that it will be behind whatever was queued before this call.
    pub(crate) fn is_end(&self) -> bool {
        self.0.is_end.load(Ordering::SeqCst)
    }

    /// Whether the stream has passed it, asking the device. It has not while it is captured: there is no mark then.
    pub(crate) fn has_passed(&self) -> Result<bool, DeviceError> {
        let mut point = self.0.point.lock();
        self.0.mark(&mut point)?;
        if let Point::Marked(event) = *point
            && self.0.driver.done(event)?
        {
            *point = Point::Passed;
        }
        Ok(matches!(*point, Point::Passed))
    }

    /// Has another stream wait for it, from here on. `false`, and nothing done, if it is not marked and its own stream
    /// is being captured.
    pub(crate) fn hold_back(&self, stream: Stream) -> Result<bool, DeviceError> {
        let mut point = self.0.point.lock();
        self.0.mark(&mut point)?;
        if let Point::Marked(event) = *point {
            self.0.driver.stream_wait(stream, event)?;
        }
        Ok(!matches!(*point, Point::End(_)))
    }
}

impl Inner {
    /// Marks the end, unless its stream is being captured.
    fn mark(&self, point: &mut Point) -> Result<(), DeviceError> {
        let Point::End(stream) = &*point else { return Ok(()) };
        // Before it is recorded: what is queued from here on may be behind the mark.
        self.is_end.store(false, Ordering::SeqCst);
        match self.driver.record(stream.number()) {
            Ok(event) => *point = Point::Marked(event),
            Err(error) => {
                self.is_end.store(true, Ordering::SeqCst);
                if !matches!(error.problem, DeviceProblem::Capturing) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Point::Marked(event) = *self.point.get_mut()
            && let Err(error) = self.driver.event_destroy(event)
        {
            tracing::error!(%error, "device.undo_failed");
        }
    }
}
