//! Streams that programs give to the runtime.

use super::Stream;
#[cfg(feature = "cuda")]
use super::cuda::KeptStream;

/// A stream that a program gives. Made from a [`Stream`], which is a number and nothing more, or with feature `cuda` from
/// cudarc's `Arc<CudaStream>`, which the runtime then keeps as long as it may want to ask how far the stream is.
///
/// What is kept can be marked later, if at all; behind a number the runtime marks the stream at once, while it is known
/// to live. On an H200 that mark costs about 2 microseconds for each kernel.
#[derive(Clone, Debug)]
pub struct StreamRef {
    number: Stream,
    #[cfg(feature = "cuda")]
    kept: Option<KeptStream>,
}

impl StreamRef {
    /// One that lives as long as this.
    #[cfg(feature = "cuda")]
    pub(super) fn kept(number: Stream, kept: KeptStream) -> Self {
        Self { number, kept: Some(kept) }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> Stream {
        self.number
    }

    /// Whether it lives as long as this.
    pub(super) fn is_kept(&self) -> bool {
        #[cfg(feature = "cuda")]
        let is_kept = self.kept.is_some();
        #[cfg(not(feature = "cuda"))]
        let is_kept = false;
        is_kept
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
