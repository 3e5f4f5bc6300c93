//! Streams that programs give to the runtime.

#[cfg(feature = "cuda")]
use super::cuda::KeptStream;
use super::{Driver, Stream};
use crate::error::Misuse;

/// A stream that a program gives. Made from a [`Stream`], which is a number and nothing more, or with feature `cuda`
/// from cudarc's `Arc<CudaStream>`, which the runtime then keeps as long as it may want to ask how far the stream is.
///
/// What is kept can be marked later, if at all; behind a number the runtime marks the stream at once, while it is known
/// to live, and so behind the default streams. On an H200 that mark costs 1 to 2 microseconds for each kernel. Give an
/// `Arc<CudaStream>` that does not own its stream (`wrap_borrowed_stream`) by number.
#[derive(Clone, Debug)]
pub struct StreamRef {
    number: Stream,
    #[cfg(feature = "cuda")]
    kept: Option<KeptStream>,
}

impl StreamRef {
    /// One that is there as long as this.
    #[cfg(feature = "cuda")]
    pub(super) fn kept(number: Stream, kept: KeptStream) -> Self {
        Self { number, kept: Some(kept) }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> Stream {
        self.number
    }

    /// Whether it can be marked later, by any thread, without regard of other streams' captures.
    pub(super) fn is_kept(&self) -> bool {
        #[cfg(feature = "cuda")]
        let is_kept = self.kept.is_some() && !self.is_default();
        #[cfg(not(feature = "cuda"))]
        let is_kept = false;
        is_kept
    }

    /// Whether it is the stream of this number, as far as a number tells.
    pub(super) fn is(&self, number: Stream) -> bool {
        self.number == number && !self.number.is_per_thread()
    }

    /// Whether kernels of this driver can be queued on it.
    pub(crate) fn check(&self, driver: &dyn Driver) -> Result<(), Misuse> {
        #[cfg(feature = "cuda")]
        if let Some(kept) = &self.kept {
            return kept.check(driver);
        }
        let _ = driver;
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn is_default(&self) -> bool {
        self.number.0 <= PER_THREAD
    }
}

impl Stream {
    /// Whether it is "the thread's own default stream", another one on each thread.
    pub(super) fn is_per_thread(self) -> bool {
        self.0 == PER_THREAD
    }
}

impl From<Stream> for StreamRef {
    fn from(number: Stream) -> Self {
        Self {
            number,
            #[cfg(feature = "cuda")]
            kept: None,
        }
    }
}

/// `CU_STREAM_PER_THREAD`; below it are the numbers of the context's default stream.
const PER_THREAD: u64 = 2;
