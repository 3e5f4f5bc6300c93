//! Address ranges: reserving, mapping and protecting, by mmap.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::with_exposed_provenance_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::code::{Code, Done};

/// A range of addresses with nothing behind, at a multiple of `align`.
pub(crate) fn reserve(size: usize, align: usize) -> Done<usize> {
    let whole = size.checked_add(align).ok_or(Code::OUT_OF_MEMORY)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) };
    let start = start.map_err(|_| Code::OUT_OF_MEMORY)?.expose_provenance();
    let base = start.next_multiple_of(align);
    give_back(start..base)?;
    give_back(base + size..start + whole)?;
    Ok(base)
}

/// Gives addresses back to the process. What was mapped there is gone.
pub(crate) fn give_back(range: Range<usize>) -> Done {
    if range.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is one of this library's, by its books, and its callers do not use it any more.
    unsafe { munmap(pointer(range.start), range.len()) }.map_err(|_| Code::OPERATING_SYSTEM)
}

/// Puts a file's bytes into a reserved range; nobody may touch them yet.
pub(crate) fn map(at: usize, size: usize, file: BorrowedFd<'_>) -> Done {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range lies in a reservation, where nothing is mapped, by the books.
    unsafe { mmap(pointer(at), size, ProtFlags::empty(), flags, file, 0) }.map_err(|_| Code::MAP_FAILED)?;
    Ok(())
}

/// Makes a range reserved again.
pub(crate) fn unmap(at: usize, size: usize) -> Done {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the range lies in a reservation, by the books, and its callers do not use it any more.
    let done = unsafe { mmap_anonymous(pointer(at), size, ProtFlags::empty(), flags) };
    done.map(drop).map_err(|_| Code::UNMAP_FAILED)
}

/// Says who may touch a mapped range: bit 1 is reading, bit 2 is writing.
pub(crate) fn protect(at: usize, size: usize, access: u32) -> Done {
    let mut flags = MprotectFlags::empty();
    flags.set(MprotectFlags::READ, access & 1 != 0);
    flags.set(MprotectFlags::WRITE, access & 2 != 0);
    // SAFETY: the range is mapped, by the books; who loses access has asked for that.
    unsafe { mprotect(pointer(at), size, flags) }.map_err(|_| Code::OPERATING_SYSTEM)
}

/// Memory of the host's: zeroed, at a page.
pub(crate) fn allocate(size: usize) -> Done<usize> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE) };
    start.map(|start| start.expose_provenance()).map_err(|_| Code::OUT_OF_MEMORY)
}

/// A file's bytes from `offset`, at an address of the kernel's choice.
pub(crate) fn map_anywhere(size: usize, file: BorrowedFd<'_>, offset: usize) -> Done<usize> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as above.
    let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, offset as u64) };
    start.map(|start| start.expose_provenance()).map_err(|_| Code::MAP_FAILED)
}

fn pointer(address: usize) -> *mut c_void {
    with_exposed_provenance_mut(address)
}
