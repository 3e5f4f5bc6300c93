//! Windows: one range of every rank's memory, side by side.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::core::Core;
use super::flush::message::{MemoryId, WindowFlags};
#[cfg(any(test, feature = "cuda"))]
use super::held::HeldPart;
use super::index::{Indexed, Node, Reader, WindowIndex};
use super::mail::Closing;
use super::request::WindowRequest;
use super::shadow::Slot;
use super::table::TableSlot;
use super::team::Team;
use super::zoo::Bug;
use crate::device::abi::MultimemHandle;
use crate::device::peer::View;
use crate::device::{DeviceWindow, Kernel};
#[cfg(feature = "cuda")]
use crate::driver::Driver;
use crate::driver::Stream;
use crate::driver::passing::Passing;
use crate::error::{Misuse, Result};
use crate::ids::{LsaRank, Rank};

/// A range of this rank's memory, registered together with the same range on every other rank.
///
/// The window is open until its last handle is dropped or [`Window::close`] is called; both are local and talk to
/// nobody. It keeps its buffer's memory alive. Offsets are in bytes from the window's start, which is the same
/// place on every rank whatever its offset in the rank's allocation.
///
/// Pointers are raw: they may be used until *this rank* closes the window (P-3), and what other ranks do meanwhile
/// is for barriers to order. [`Window::read`] and [`Window::write`] copy safely.
#[derive(Clone)]
pub struct Window(Arc<Counted>);

/// What handles count. Apart from the rest, so that the counts of many windows may lie close together: a lookup
/// touches nothing else of a window. Threads that look up neighbours share a line for that.
#[derive(Debug)]
pub(crate) struct Counted(Box<Inner>);

impl Deref for Counted {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Indexed for Counted {
    fn node(&self) -> Option<&Node> {
        self.0.node.as_ref()
    }
}

thread_local! {
    /// What this thread's lookups have seen, of any communicator.
    static READER: RefCell<Reader<Counted>> = const { RefCell::new(Reader::new()) };
}

/// Where a window is.
#[derive(Debug)]
pub(crate) struct Place {
    /// The memory under it.
    pub(crate) memory: MemoryId,
    /// Its place in every stride.
    pub(crate) offset: u64,
    /// The address of byte 0 of LSA rank 0.
    pub(crate) first: u64,
    /// Its device struct.
    pub(crate) slot: Slot,
    /// Its place in the window table.
    pub(crate) entry: Option<TableSlot>,
    /// The device address of its struct.
    pub(crate) struct_address: usize,
    /// The flat range.
    pub(crate) view: View,
}

pub(crate) struct Inner {
    core: Arc<Core>,
    /// Where lookups find it. `None` of a window without bytes, which prepare has refused.
    node: Option<Node>,
    place: Place,
    request: WindowRequest,
    /// The buffer under it, until it is closed.
    keep: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// Each LSA rank's size where they differ.
    sizes: Option<Arc<[u64]>>,
    closed: AtomicBool,
}

impl Window {
    /// A window that has no handle yet.
    pub(crate) fn make(
        core: &Arc<Core>,
        place: Place,
        mut request: WindowRequest,
        sizes: Option<Arc<[u64]>>,
    ) -> Box<Inner> {
        let keep = Mutex::new(request.keep.take());
        if let Some(sizes) = &sizes {
            core.sizes.write().insert(place.struct_address as u64, Arc::clone(sizes));
        }
        Box::new(Inner {
            core: Arc::clone(core),
            node: Node::new(request.address, request.size),
            place,
            request,
            keep,
            sizes,
            closed: AtomicBool::new(false),
        })
    }

    /// The first handle.
    pub(crate) fn open(inner: Box<Inner>) -> Self {
        Self(Arc::new(Counted(inner)))
    }

    /// The innermost open window that holds all of a range.
    pub(crate) fn find(index: &WindowIndex<Counted>, address: usize, len: usize) -> Option<Self> {
        let with_reader = READER.try_with(|reader| {
            reader.try_borrow_mut().map(|mut reader| index.find_with(&mut reader, address, len))
        });
        // A thread that ends has no reader any more.
        let found = if let Ok(Ok(found)) = with_reader { found } else { index.find(address, len) };
        found.map(Self)
    }

    /// The window's size in bytes on this rank.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.request.size
    }

    /// The window's size in bytes on a rank of this LSA team.
    ///
    /// # Errors
    /// [`Misuse::NotInTeam`].
    pub fn size_of(&self, rank: Rank) -> Result<usize> {
        let lsa = self.lsa(rank)?;
        Ok(self.size_at(lsa))
    }

    /// Its label.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.request.label.as_deref()
    }

    /// Its flags.
    #[must_use]
    pub fn flags(&self) -> WindowFlags {
        self.0.request.flags
    }

    /// The address at which this rank registered it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.request.address
    }

    /// Its place in every rank's stride, in bytes; equal on all ranks of the LSA team.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.place.offset
    }

    /// The device address of its struct, which kernels take as the window's handle.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.0.place.struct_address as u64
    }

    /// Whether it is still open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.0.closed.load(Ordering::Acquire) && !self.0.core.closed.load(Ordering::Acquire)
    }

    /// Where byte `offset` of a rank's part is, in this rank's address space. Talks to nobody.
    ///
    /// # Errors
    /// [`Misuse::Closed`]; [`Misuse::NotInTeam`] if the rank is not in this rank's LSA team;
    /// [`Misuse::OutOfRange`] beyond the rank's part.
    pub fn peer_ptr(&self, rank: Rank, offset: usize) -> Result<*mut u8> {
        let lsa = self.lsa(rank)?;
        self.lsa_ptr(lsa, offset)
    }

    /// The same for a rank of the LSA team by its LSA rank.
    ///
    /// # Errors
    /// As [`Window::peer_ptr`].
    pub fn lsa_ptr(&self, lsa: LsaRank, offset: usize) -> Result<*mut u8> {
        self.check_open()?;
        self.check_range(lsa, offset, 1)?;
        Ok(View::pointer(self.lsa_address(lsa, offset)))
    }

    /// Where byte `offset` of this rank's own part is in the flat range: the same memory as at
    /// [`Window::address`].
    ///
    /// # Errors
    /// [`Misuse::Closed`], [`Misuse::OutOfRange`].
    pub fn local_ptr(&self, offset: usize) -> Result<*mut u8> {
        self.lsa_ptr(self.0.core.agreed.lsa_rank(), offset)
    }

    /// Where byte `offset` is in the multicast object of a team: a store there reaches every member. Talks to nobody:
    /// a team has an object only if a device communicator that asked for one was made.
    ///
    /// # Errors
    /// [`Misuse::Closed`], [`Misuse::OutOfRange`], [`Misuse::NotInTeam`], and [`Misuse::Other`] where the team has
    /// no multicast object.
    pub fn multicast_ptr(&self, team: Team, offset: usize) -> Result<*mut u8> {
        self.check_open()?;
        let agreed = &self.0.core.agreed;
        let mut members = Vec::new();
        for rank in team.members(agreed.rank) {
            let lsa = self.lsa(rank)?;
            self.check_range(lsa, offset, 1)?;
            members.push(lsa.get());
        }
        let base = self.0.core.multicast_bases.lock().get(&members).copied();
        let Some(base) = base else {
            let why = if agreed.multicast {
                "create a device communicator with that multicast team first"
            } else {
                "not every rank's device has multicast"
            };
            let what = format!("the team of LSA ranks {members:?} has no multicast object: {why}");
            return Err(Misuse::Other { what }.into());
        };
        let offset = usize::try_from(self.0.place.offset).unwrap_or(usize::MAX) + offset;
        Ok(View::pointer(base + offset))
    }

    /// Copies bytes from a rank's part. Bytes that the rank writes meanwhile come old or new.
    ///
    /// # Errors
    /// As [`Window::peer_ptr`]; a window that is closed meanwhile ends the copy in between.
    pub fn read(&self, rank: Rank, offset: usize, to: &mut [u8]) -> Result<()> {
        let lsa = self.lsa(rank)?;
        self.check_range(lsa, offset, to.len())?;
        for (index, part) in to.chunks_mut(COPY_BYTES_MAX).enumerate() {
            // Whoever unmaps waits for this: see `Core::copies`.
            let _copying = self.0.core.copies.read();
            self.check_open()?;
            self.0.place.view.read(
                &*self.0.core.driver,
                self.lsa_address(lsa, offset + index * COPY_BYTES_MAX),
                part,
            )?;
        }
        self.check_open()
    }

    /// Copies bytes into a rank's part.
    ///
    /// # Errors
    /// As [`Window::peer_ptr`].
    pub fn write(&self, rank: Rank, offset: usize, from: &[u8]) -> Result<()> {
        let lsa = self.lsa(rank)?;
        self.check_range(lsa, offset, from.len())?;
        for (index, part) in from.chunks(COPY_BYTES_MAX).enumerate() {
            // Whoever unmaps waits for this: see `Core::copies`.
            let _copying = self.0.core.copies.read();
            self.check_open()?;
            self.0.place.view.write(
                &*self.0.core.driver,
                self.lsa_address(lsa, offset + index * COPY_BYTES_MAX),
                part,
            )?;
        }
        self.check_open()
    }

    /// Closes the window on this rank, whatever other handles there are: they are stale from here on. Lookups
    /// forget it at once. Its memory stays mapped until every host kernel of this rank that runs now has ended.
    /// Other ranks' windows are not affected.
    ///
    /// # Errors
    /// [`Misuse::Closed`] if it was closed before.
    pub fn close(&self) -> Result<()> {
        self.check_open()?;
        if self.0.close(None) { Ok(()) } else { Err(self.stale().into()) }
    }

    /// Closes the window as [`Window::close`] does, for kernels that run on a stream of the device: the memory is
    /// unmapped, and the window's places in the device's tables are used again, only when the stream has passed its
    /// present end. So a kernel that was launched before this call never sees another window's data. Lookups forget the
    /// window at once.
    ///
    /// Never waits: the rank's actor asks the stream from time to time. Closing the communicator waits for it, until
    /// its deadline.
    ///
    /// # Errors
    /// [`Misuse::Closed`] if it was closed before; what the device says of the stream (one that is being captured has
    /// no present end), and then the window is open as before.
    pub fn close_after(&self, stream: impl Into<Stream>) -> Result<()> {
        self.check_open()?;
        let passing = Passing::of(&self.0.core.driver, stream.into())?;
        if self.0.close(Some(passing)) { Ok(()) } else { Err(self.stale().into()) }
    }

    /// The address of bytes `range` of a rank's part, which stays mapped while the second value lives, whoever closes
    /// the window meanwhile.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn hold(&self, rank: Rank, range: &Range<usize>) -> Result<(usize, HeldPart)> {
        let lsa = self.lsa(rank)?;
        let len = self.0.length_of(range)?;
        self.check_range(lsa, range.start, len)?;
        // It is counted before it is known whether it may be: a close either sees it or is seen by it.
        let held = HeldPart::new(&self.0.core, self.device_address());
        self.check_open()?;
        Ok((self.lsa_address(lsa, range.start), held))
    }

    /// The device that it is on.
    #[cfg(feature = "cuda")]
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.core.driver
    }

    /// The rank whose handle it is.
    #[cfg(feature = "cuda")]
    pub(crate) fn rank(&self) -> Rank {
        self.0.core.agreed.rank
    }

    /// Where the address of its struct lies, for who passes that to a kernel.
    #[cfg(feature = "cuda")]
    pub(crate) fn struct_address(&self) -> &usize {
        &self.0.place.struct_address
    }

    /// Its name, for errors.
    #[cfg(feature = "cuda")]
    pub(crate) fn name(&self) -> String {
        self.0.name()
    }

    /// What the index holds of it.
    pub(crate) fn counted(&self) -> &Arc<Counted> {
        &self.0
    }

    /// The window inside a host kernel of this rank that has begun.
    pub(crate) fn in_kernel<'k>(&self, kernel: &Kernel<'k>) -> Result<DeviceWindow<'k>> {
        // The kernel counts as running, and a close asks which run after it has marked the window: either it finds
        // this kernel and waits for it, or the mark is found here.
        self.check_open()?;
        let (base, size) = (self.address() as u64, self.size() as u64);
        Ok(kernel.open_window(self.device_address(), base, size, self.0.sizes.clone()))
    }

    /// Whether the window belongs to this rank's communicator.
    pub(crate) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.0.core, core)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { Err(self.stale().into()) }
    }

    fn stale(&self) -> Misuse {
        Misuse::Closed { what: self.0.name() }
    }

    fn lsa(&self, rank: Rank) -> Result<LsaRank, Misuse> {
        let team = || format!("the LSA team of {}", self.0.core.agreed.rank);
        self.0.core.agreed.lsa_rank_of(rank).ok_or_else(|| Misuse::NotInTeam { rank, team: team() })
    }

    fn size_at(&self, lsa: LsaRank) -> usize {
        let sizes = self.0.sizes.as_ref();
        sizes.map_or(self.0.request.size, |sizes| usize::try_from(sizes[lsa.index()]).unwrap_or(usize::MAX))
    }

    fn check_range(&self, lsa: LsaRank, offset: usize, len: usize) -> Result<(), Misuse> {
        let core = &self.0.core;
        if lsa.get() >= core.agreed.lsa_size {
            let team = format!("an LSA team of {} ranks", core.agreed.lsa_size);
            return Err(Misuse::NotInTeam {
                rank: Rank::new(core.agreed.lsa_range().start.saturating_add(lsa.get())),
                team,
            });
        }
        let size = self.size_at(lsa);
        if offset.checked_add(len).is_some_and(|end| end <= size) {
            return Ok(());
        }
        let what = format!("{}, the part of {lsa}", self.0.name());
        Err(Misuse::OutOfRange { what, offset: offset as u64, len: len as u64, size: size as u64 })
    }

    /// What kernels make of the window's struct: see `device/pointer.rs`. Nothing is checked.
    pub(crate) fn lsa_address(&self, lsa: LsaRank, offset: usize) -> usize {
        let first = usize::try_from(self.0.place.first).unwrap_or(usize::MAX);
        let stride = self.0.core.agreed.stride_bytes();
        first + lsa.index() * stride + offset
    }

    /// The same in a multicast object.
    pub(crate) fn multimem_address(&self, object: MultimemHandle, offset: u64) -> u64 {
        object.base.wrapping_add(self.offset()).wrapping_add(offset)
    }
}

impl Inner {
    fn name(&self) -> String {
        match &self.request.label {
            Some(label) => format!("window `{label}` of communicator `{}`", self.core.agreed.name),
            None => format!("a window of communicator `{}`", self.core.agreed.name),
        }
    }

    fn length_of(&self, range: &Range<usize>) -> Result<usize, Misuse> {
        range.end.checked_sub(range.start).ok_or_else(|| {
            let what = format!("{}: the slice {range:?} ends before it starts", self.name());
            Misuse::Other { what }
        })
    }

    /// Closes it once; false if it was closed.
    fn close(&self, after: Option<Passing>) -> bool {
        if self.closed.swap(true, Ordering::AcqRel) && !self.core.has_bug(Bug::ClosesTwice) {
            return false;
        }
        if let Some(node) = &self.node {
            self.core.index.remove(node);
        }
        self.core.launches.mark();
        tracing::trace!(comm = %self.core.agreed.name, rank = self.core.agreed.rank.get(), "window.closed");
        self.core.tell_close(Closing {
            slot: self.place.slot,
            entry: self.place.entry,
            memory: self.place.memory,
            struct_address: self.place.struct_address as u64,
            hidden: false,
            running: BTreeSet::new(),
            after: after.into_iter().collect(),
            keep: self.keep.lock().take(),
        });
        true
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close(None);
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("comm", &self.0.core.agreed.name)
            .field("rank", &self.0.core.agreed.rank)
            .field("label", &self.0.request.label)
            .field("size", &self.0.request.size)
            .field("offset", &self.0.place.offset)
            .field("open", &self.is_open())
            .finish()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A part of a window, for collectives.
#[derive(Clone, Debug)]
pub struct WindowSlice {
    pub(crate) window: Window,
    pub(crate) range: Range<usize>,
}

impl Window {
    /// Bytes `range` of the window.
    ///
    /// # Errors
    /// [`Misuse::OutOfRange`], [`Misuse::Other`] if the range ends before it starts.
    pub fn slice(&self, range: Range<usize>) -> Result<WindowSlice> {
        let len = self.0.length_of(&range)?;
        self.check_range(self.0.core.agreed.lsa_rank(), range.start, len)?;
        Ok(WindowSlice { window: self.clone(), range })
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> WindowSlice {
        WindowSlice { window: self.clone(), range: 0..self.size() }
    }
}

/// The longest copy that can hold off an actor that is about to unmap.
const COPY_BYTES_MAX: usize = 1 << 20;
