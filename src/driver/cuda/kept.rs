//! Streams of the program's that the runtime keeps.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::enter::Entered;
use super::view::is_per_thread;
use crate::driver::{Call, Stream, StreamRef};

/// One of the owners of a stream. It may be the last, on whichever thread, so that its end leaves the thread as it was.
#[derive(Clone, Debug)]
pub(in crate::driver) struct KeptStream(Option<Arc<CudaStream>>);

impl Drop for KeptStream {
    fn drop(&mut self) {
        let Some(stream) = self.0.take().and_then(Arc::into_inner) else { return };
        let context = Arc::clone(stream.context());
        match Entered::new(context.cu_ctx(), Call::StreamDestroy) {
            Ok(_entered) => drop((stream, context)),
            // The process is ending: the system destroys it.
            Err(_) => {
                Box::leak(Box::new(stream));
            }
        }
    }
}

impl From<&Arc<CudaStream>> for StreamRef {
    /// The stream is kept, unless it is "the thread's own default stream", which is another one on each thread.
    fn from(stream: &Arc<CudaStream>) -> Self {
        let number = Stream::from(stream);
        if is_per_thread(stream) {
            return Self::from(number);
        }
        Self::kept(number, KeptStream(Some(Arc::clone(stream))))
    }
}

impl From<&CudaStream> for StreamRef {
    /// The number alone.
    fn from(stream: &CudaStream) -> Self {
        Self::from(Stream::from(stream))
    }
}
