//! Points in streams that something waits for.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{DeviceError, Driver, Event, Stream};

/// A stream's end as it was when this was made. It is asked, never waited for. Clones are the same point.
#[derive(Clone, Debug)]
pub(crate) struct Passing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    /// None once the stream has passed it.
    event: Mutex<Option<Event>>,
}

impl Passing {
    /// Marks the stream's present end.
    pub(crate) fn of(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Self, DeviceError> {
        let event = driver.record(stream)?;
        Ok(Self(Arc::new(Inner { driver: Arc::clone(driver), event: Mutex::new(Some(event)) })))
    }

    /// Whether the stream has passed it, asking the device.
    pub(crate) fn has_passed(&self) -> Result<bool, DeviceError> {
        let mut event = self.0.event.lock();
        if let Some(pending) = *event
            && self.0.driver.done(pending)?
        {
            *event = None;
        }
        Ok(event.is_none())
    }

    /// Has another stream wait for it, from here on.
    pub(crate) fn hold_back(&self, stream: Stream) -> Result<(), DeviceError> {
        self.0.event.lock().map_or(Ok(()), |event| self.0.driver.stream_wait(stream, event))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(event) = self.event.get_mut().take()
            && let Err(error) = self.driver.event_destroy(event)
        {
            tracing::error!(%error, "device.undo_failed");
        }
    }
}
