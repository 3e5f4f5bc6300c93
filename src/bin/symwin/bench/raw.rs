//! Address ranges for the baselines' mappings. Nothing ever looks into them.
#![allow(unsafe_code, reason = "the baselines are bare mmaps")]

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A reserved range in which files are mapped. It gives out no pointer, so mappings come and go at any time.
#[derive(Debug)]
pub(crate) struct Range {
    base: usize,
    size: usize,
}

impl Range {
    /// Reserves `size` bytes.
    pub(crate) fn reserve(size: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses addresses that nothing uses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), size, ProtFlags::empty(), flags) }?;
        Ok(Self { base: base.expose_provenance(), size })
    }

    /// Maps `size` bytes of a file at `at`, to read and to write.
    pub(crate) fn map(&self, at: usize, size: usize, file: impl AsFd, offset: usize) -> io::Result<()> {
        if at.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the place is in this range, where nobody reads or writes.
        unsafe { mmap(self.place(at), size, access, flags, file, offset as u64) }?;
        Ok(())
    }

    /// Unmaps all files; the range stays reserved.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: all of this is this range's, where nobody reads or writes.
        unsafe { mmap_anonymous(self.place(0), self.size, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    fn place(&self, at: usize) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.base + at)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range goes with its only handle.
        let _ = unsafe { munmap(self.place(0), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_lies_in_the_range() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let range = Range::reserve(16_384).unwrap();
        range.map(8192, 8192, &file, 0).unwrap();
        range.map(0, 4096, &file, 4096).unwrap();
        for (at, size) in [(12_288, 8192), (usize::MAX - 4095, 4096)] {
            assert_eq!(range.map(at, size, &file, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        range.clear().unwrap();
    }
}
