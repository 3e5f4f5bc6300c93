//! A point in a stream that something waits for.

use std::sync::Arc;

use crate::driver::{DeviceError, Driver, Event, Stream};

/// A stream's end as it was when this was made. It is asked, never waited for.
#[derive(Debug)]
pub(crate) struct Passing {
    driver: Arc<dyn Driver>,
    /// None once the stream has passed it.
    event: Option<Event>,
}

impl Passing {
    /// Marks the stream's present end.
    pub(crate) fn of(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Self, DeviceError> {
        let event = driver.record(stream)?;
        Ok(Self { driver: Arc::clone(driver), event: Some(event) })
    }

    /// Whether the stream has passed it, asking the device.
    pub(crate) fn has_passed(&mut self) -> Result<bool, DeviceError> {
        if let Some(event) = self.event
            && self.driver.done(event)?
        {
            self.event = None;
        }
        Ok(self.event.is_none())
    }

    /// Whether it had not passed when it was asked last.
    pub(crate) fn is_pending(&self) -> bool {
        self.event.is_some()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(event) = self.event.take()
            && let Err(error) = self.driver.event_destroy(event)
        {
            tracing::error!(%error, "device.undo_failed");
        }
    }
}
