//! Buffers and parts of windows as cudarc's copies and libraries take them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop, sys};
use zerocopy::{FromBytes, IntoBytes};

use super::later::{Keep, drop_later};
use crate::driver::buffers::{Buffer, BufferSlice};
use crate::driver::passing::Passing;
use crate::driver::{Driver, Stream};
use crate::error::{Misuse, Result};
use crate::ids::Rank;
use crate::{Window, WindowSlice};

/// Elements of a buffer, or of a rank's part of a window, on a stream of cudarc's.
///
/// cudarc's copies take it, its wrappers of cuBLAS and NCCL, and its launches as an argument. Made by
/// [`Buffer::device_view`], [`BufferSlice::device_view`], [`WindowSlice::device_view`] and [`Window::device_view`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use symwin::driver::cuda::devices;
/// use symwin::{Communicator, Config, Rank, WindowFlags};
///
/// let comm = Communicator::ranks_from_env_with(&Config::from_env()?.devices(devices(None)))?.remove(0);
/// let buffer = comm.alloc(4096)?;
/// let window = comm.register(&buffer, WindowFlags::empty())?;
///
/// let context = cudarc::driver::CudaContext::new(0)?;
/// let stream = context.new_stream()?;
/// let mut own = buffer.device_view::<f32>(&stream)?;
/// stream.memcpy_htod(&[1.0_f32; 1024], &mut own)?;
/// // What the next rank has there, once it has written it.
/// let theirs = window.device_view::<f32>(Rank::new(1), 0..4096, &stream)?;
/// let seen = stream.clone_dtoh(&theirs)?;
/// # Ok(())
/// # }
/// ```
///
/// # What it keeps
///
/// The memory stays mapped while the view lives, and after that until everything has run that its stream held when
/// it was dropped; dropping it never waits. A window may be closed meanwhile: it is given back when its last view has
/// gone. Closing a communicator waits for views of its windows as it waits for kernels, until its deadline; drop them
/// before.
///
/// # Streams
///
/// Work on the view's own stream is in that stream's order. A copy on another one comes after what the view's stream
/// holds at that time, and is waited for by the thread that queues it, whether or not cudarc manages synchronization:
/// make a view for each stream. Only launches, which are unsafe, are not seen by the view when they are on another
/// stream than its own: whoever launches keeps the view until that has passed.
///
/// One copy is seen on the wrong stream: cudarc's `memcpy_dtod` from another context asks for its source on the
/// source's own stream, and runs on the other one. Keep the source until that has passed, as with cudarc's own slices.
///
/// A graph into which a copy is captured does not keep the view, just as it keeps none of cudarc's slices: whoever
/// launches the graph keeps it.
///
/// # Other ranks
///
/// Nobody has the memory alone, `&mut` or not: another view, another clone of the buffer, other ranks and kernels may
/// touch the same bytes at the same time, as with [`Window::read`] and [`Window::write`]. Only devices do so, so that
/// no reference of Rust's is ever aliased; but a copy from memory that a peer writes meanwhile has old and new bytes
/// mixed. Hence elements are of types of which any bytes are a value (those of `half` too, where the program switches
/// cudarc's feature `f16` on). Barriers order what must not race.
pub struct DeviceView<T> {
    address: sys::CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
    driver: Arc<dyn Driver>,
    /// `None` only while it is dropped.
    keep: Option<Keep>,
    elements: PhantomData<T>,
}

/// What a view is of.
struct Place<'p> {
    what: &'p str,
    address: usize,
    len: usize,
    driver: &'p Arc<dyn Driver>,
}

impl<T> DeviceView<T> {
    fn new(place: &Place<'_>, stream: &Arc<CudaStream>, keep: Keep) -> Result<Self, Misuse> {
        const { assert!(size_of::<T>() > 0, "elements without bytes are nowhere") };
        check_device(place.what, &**place.driver, stream)?;
        let len = elements(place.what, place.address, place.len, size_of::<T>(), align_of::<T>())?;
        Ok(Self {
            address: place.address as sys::CUdeviceptr,
            len,
            stream: Arc::clone(stream),
            driver: Arc::clone(place.driver),
            keep: Some(keep),
            elements: PhantomData,
        })
    }

    /// The device's address of the first element. It may be used as long as the view lives, and by its own stream for
    /// what was queued there before the view was dropped.
    #[must_use]
    pub fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    pub(super) fn address_ref(&self) -> &sys::CUdeviceptr {
        &self.address
    }

    /// Whether this stream is the view's own. That of "the thread's own default stream" is another one on each thread.
    fn is_own(&self, stream: &CudaStream) -> bool {
        *stream == *self.stream && !Stream::from(stream).is_per_thread()
    }

    /// What cudarc asks for before it queues something.
    fn enter<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let number = Stream::from(stream);
        // Nothing runs in a capture, and waiting for it would end it; one that cannot be asked says so itself.
        if self.is_own(stream) || self.driver.is_capturing(number).unwrap_or(true) {
            return (self.address, SyncOnDrop::Record(None));
        }
        // One that is being captured holds nothing that could be waited for.
        if let Err(error) = Passing::later(&self.driver, (&self.stream).into()).hold_back(number) {
            // A context in which this fails is lost: the copy fails too, and says so.
            tracing::error!(target: "symwin::driver", %error, "a view's streams could not be ordered");
        }
        (self.address, SyncOnDrop::sync_stream(stream))
    }
}

impl<T> DeviceSlice<T> for DeviceView<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for DeviceView<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.enter(stream)
    }
}

impl<T> DevicePtrMut<T> for DeviceView<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.enter(stream)
    }
}

impl<T> Drop for DeviceView<T> {
    fn drop(&mut self) {
        let Some(keep) = self.keep.take() else { return };
        drop_later(&self.driver, &self.stream, keep);
    }
}

impl<T> fmt::Debug for DeviceView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceView({:#x} + {} x {})", self.address, self.len, size_of::<T>())
    }
}

impl Buffer {
    /// All of the buffer as elements, for a stream of its GPU.
    ///
    /// # Errors
    /// [`Misuse::WrongDevice`] if the buffer is not of the stream's context, [`Misuse::NotWhole`] if it does not hold a
    /// whole number of elements, [`Misuse::Misaligned`].
    pub fn device_view<T>(&self, stream: &Arc<CudaStream>) -> Result<DeviceView<T>>
    where
        T: DeviceRepr + FromBytes + IntoBytes,
    {
        BufferSlice::from(self).device_view(stream)
    }
}

impl BufferSlice {
    /// The slice as elements, for a stream of its GPU.
    ///
    /// # Errors
    /// As [`Buffer::device_view`].
    pub fn device_view<T>(&self, stream: &Arc<CudaStream>) -> Result<DeviceView<T>>
    where
        T: DeviceRepr + FromBytes + IntoBytes,
    {
        let (address, len, driver) = (self.address(), self.len(), self.buffer().driver());
        let what = &format!("the buffer at {:#x} of {len} bytes", address);
        let place = Place { what, address, len, driver };
        Ok(DeviceView::new(&place, stream, Box::new(self.buffer().clone()))?)
    }
}

impl Window {
    /// Bytes `range` of a rank's part as elements, for a stream of this rank's GPU: of a peer's memory, or of this
    /// rank's own. Talks to nobody.
    ///
    /// # Errors
    /// As [`Window::peer_ptr`] for the whole range, and as [`Buffer::device_view`].
    pub fn device_view<T>(
        &self,
        rank: Rank,
        range: Range<usize>,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceView<T>>
    where
        T: DeviceRepr + FromBytes + IntoBytes,
    {
        let (address, held) = self.hold(rank, &range)?;
        let place = Place { what: &self.name(), address, len: range.len(), driver: self.driver() };
        Ok(DeviceView::new(&place, stream, Box::new(held))?)
    }
}

impl WindowSlice {
    /// The slice, which is of this rank's own part, as elements.
    ///
    /// # Errors
    /// As [`Window::device_view`].
    pub fn device_view<T>(&self, stream: &Arc<CudaStream>) -> Result<DeviceView<T>>
    where
        T: DeviceRepr + FromBytes + IntoBytes,
    {
        self.window.device_view(self.window.rank(), self.range.clone(), stream)
    }
}

/// The stream's context must be that in which the memory's driver works: its events are recorded on the stream.
pub(super) fn check_device(what: &str, driver: &dyn Driver, stream: &CudaStream) -> Result<(), Misuse> {
    let context = driver.cuda_context();
    if context.is_some_and(|context| context == stream.context()) {
        return Ok(());
    }
    let memory = match context {
        Some(context) if context.ordinal() == stream.context().ordinal() => {
            format!("GPU {} in another context", context.ordinal())
        }
        Some(context) => format!("GPU {}", context.ordinal()),
        None => format!("{}, which is no GPU", driver.info().name),
    };
    let stream = format!("GPU {}", stream.context().ordinal());
    Err(Misuse::WrongDevice { what: what.to_owned(), memory, stream })
}

/// How many elements of a size and alignment lie in so many bytes at an address.
fn elements(what: &str, address: usize, len: usize, size: usize, align: usize) -> Result<usize, Misuse> {
    let what = || what.to_owned();
    if !len.is_multiple_of(size) {
        return Err(Misuse::NotWhole { what: what(), len: len as u64, size: size as u64 });
    }
    if !address.is_multiple_of(align) {
        return Err(Misuse::Misaligned { what: what(), address: address as u64, align: align as u64 });
    }
    Ok(len / size)
}

#[cfg(test)]
mod tests {
    use cudarc::driver::{LaunchArgs, PushKernelArg};

    use super::*;
    use crate::device::abi::{DevComm248, KernelComm, LsaBarrierHandle, TeamStruct};

    fn of<T>(address: usize, len: usize) -> Result<usize, Misuse> {
        elements("a buffer", address, len, size_of::<T>(), align_of::<T>())
    }

    #[test]
    fn lengths_and_alignments_are_checked() {
        assert_eq!(of::<f32>(0x1000, 4096), Ok(1024));
        assert_eq!(of::<u8>(0x1001, 3), Ok(3));
        assert_eq!(of::<[f32; 3]>(0x1004, 24), Ok(2));
        assert_eq!(of::<u64>(0x1000, 0), Ok(0));
        let what = || "a buffer".to_owned();
        assert_eq!(of::<f64>(0x1000, 12), Err(Misuse::NotWhole { what: what(), len: 12, size: 8 }));
        assert_eq!(
            of::<f64>(0x1004, 16),
            Err(Misuse::Misaligned { what: what(), address: 0x1004, align: 8 })
        );
        assert_eq!(of::<u16>(0x1001, 2), Err(Misuse::Misaligned { what: what(), address: 0x1001, align: 2 }));
        let text = of::<u32>(0x1002, 4).unwrap_err().to_string();
        assert!(text.contains("0x1002 is no multiple of 4"), "{text}");
        assert!(of::<u32>(0, 6).unwrap_err().to_string().contains("6 bytes are no whole number"));
    }

    /// What must hold of types, not of values: it is enough that this compiles.
    #[test]
    fn cudarc_takes_views_windows_and_device_communicators() {
        fn is_slice<T, V: DeviceSlice<T> + DevicePtr<T> + DevicePtrMut<T> + Send + Sync>() {}
        fn is_value<T: DeviceRepr>() {}
        fn can_be_seen<T: DeviceRepr + FromBytes + IntoBytes>() {}
        fn is_argument<T>()
        where
            LaunchArgs<'static>: PushKernelArg<T>,
        {
        }
        is_slice::<f32, DeviceView<f32>>();
        is_slice::<[u64; 2], DeviceView<[u64; 2]>>();
        is_value::<KernelComm>();
        is_value::<DevComm248>();
        is_value::<TeamStruct>();
        is_value::<LsaBarrierHandle>();
        can_be_seen::<u8>();
        can_be_seen::<i64>();
        can_be_seen::<[f32; 4]>();
        is_argument::<&'static KernelComm>();
        is_argument::<&'static DevComm248>();
        is_argument::<&'static Window>();
        is_argument::<&'static DeviceView<f32>>();
        is_argument::<&'static mut DeviceView<f32>>();
    }
}
