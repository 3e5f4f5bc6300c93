//! Streams of the program's that the runtime keeps.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::enter::Entered;
use super::view::check_device;
use crate::driver::{Call, Driver, Stream, StreamRef};
use crate::error::Misuse;

/// One of the owners of a stream. It may be the last, on whichever thread, so that its end leaves the thread as it was.
#[derive(Clone, Debug)]
pub(in crate::driver) struct KeptStream(Option<Arc<CudaStream>>);

impl KeptStream {
    /// Its context must be that in which the driver works: the driver's kernels and events go to the stream.
    pub(in crate::driver) fn check(&self, driver: &dyn Driver) -> Result<(), Misuse> {
        let Some(stream) = &self.0 else { return Ok(()) };
        check_device("what a collective works on", driver, stream)
    }
}

impl Drop for KeptStream {
    fn drop(&mut self) {
        let Some(stream) = self.0.take().and_then(Arc::into_inner) else { return };
        // Alive until this has left it.
        let context = Arc::clone(stream.context());
        match Entered::new(context.cu_ctx(), Call::StreamDestroy) {
            Ok(_entered) => drop(stream),
            // The process is ending, and the system destroys it, or the context is lost with all that is in it.
            Err(_) => {
                Box::leak(Box::new((stream, context)));
            }
        }
    }
}

impl From<&Arc<CudaStream>> for StreamRef {
    /// The stream is kept.
    fn from(stream: &Arc<CudaStream>) -> Self {
        Self::kept(Stream::from(stream), KeptStream(Some(Arc::clone(stream))))
    }
}

impl From<&CudaStream> for StreamRef {
    /// The number alone.
    fn from(stream: &CudaStream) -> Self {
        Self::from(Stream::from(stream))
    }
}
