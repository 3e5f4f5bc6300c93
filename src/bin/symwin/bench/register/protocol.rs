//! What symwin's registration is compared with: the bare calls, and the reference's protocol, which registers one
//! window after the other.
//!
//! Both map the very allocations that symwin registers. The reference is NCCL's device runtime; the steps are those of
//! its window registration with descriptors. Everything here is kinder than it: connections stand before a sample
//! begins, where the reference makes new ones for every all-gather and barrier; a descriptor is asked for and sent over
//! those same sockets, where the reference makes two sockets for each and one thread of the owner answers all; each
//! owner answers while it waits for its own answer; a mapping is one call; nothing is written to a device. As in the
//! reference every window waits for the one before, and every descriptor for the one before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::mesh::{BATCH_MAX, Mesh};
use super::super::raw::Range;

/// What each rank has of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) windows: usize,
    /// Of each window, in whole pages.
    pub(crate) bytes: usize,
    /// Whether all windows are in one allocation.
    pub(crate) arena: bool,
}

/// A part of an allocation, and its place in its rank's part of the range.
struct Piece {
    allocation: usize,
    offset: usize,
    at: usize,
    size: usize,
}

impl Shape {
    /// Bytes of one rank's part of a range.
    pub(crate) fn stride(&self) -> usize {
        self.windows * self.bytes
    }

    fn window(&self, index: usize) -> Piece {
        let (at, size) = (index * self.bytes, self.bytes);
        if self.arena {
            Piece { allocation: 0, offset: at, at, size }
        } else {
            Piece { allocation: index, offset: 0, at, size }
        }
    }

    fn allocation(&self, index: usize) -> Piece {
        let size = if self.arena { self.stride() } else { self.bytes };
        Piece { allocation: index, offset: 0, at: index * size, size }
    }

    fn map(&self, range: &Range, rank: usize, piece: &Piece, file: impl AsFd) -> io::Result<()> {
        range.map(rank * self.stride() + piece.at, piece.size, file, piece.offset)
    }
}

/// Who exchanges descriptors with whom in the bare calls.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The ranks that map what this rank sends: one of each other process.
    pub(crate) to: Vec<usize>,
    /// The ranks whose memory this rank maps beside its own: all of the other processes, if it is the one of its
    /// process.
    pub(crate) from: Vec<usize>,
}

impl Exchange {
    /// By the process of each rank.
    pub(crate) fn new(processes: &[u32], me: usize) -> Self {
        let first = |rank: usize| processes.iter().position(|process| *process == processes[rank]);
        let others = |rank: &usize| processes[*rank] != processes[me];
        let all = 0..processes.len();
        let from = if first(me) == Some(me) { all.clone().filter(others).collect() } else { Vec::new() };
        Self { to: all.filter(others).filter(|rank| first(*rank) == Some(*rank)).collect(), from }
    }
}

/// The calls that no registration can do without: descriptors in as few messages as they fit in, and one mmap for each
/// allocation and rank in each process.
pub(crate) fn bare(
    mesh: &Mesh,
    range: &Range,
    own: &[Arc<OwnedFd>],
    shape: &Shape,
    exchange: &Exchange,
) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = own.iter().map(|file| file.as_fd()).collect();
    for peer in &exchange.to {
        for batch in descriptors.chunks(BATCH_MAX) {
            mesh.send_descriptors(*peer, batch)?;
        }
    }
    for (index, file) in own.iter().enumerate() {
        shape.map(range, mesh.me(), &shape.allocation(index), file)?;
    }
    for peer in &exchange.from {
        let mut index = 0;
        while index < own.len() {
            let batch = mesh.receive_descriptors(*peer)?;
            if batch.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for file in batch {
                shape.map(range, *peer, &shape.allocation(index), &file)?;
                index += 1;
            }
        }
    }
    Ok(())
}

/// The reference's protocol. With `dedup`, a window in an allocation that all have mapped costs its last barrier only.
pub(crate) fn per_window(
    mesh: &Mesh,
    range: &Range,
    own: &[Arc<OwnedFd>],
    shape: &Shape,
    dedup: bool,
) -> io::Result<()> {
    for window in 0..shape.windows {
        let is_known = dedup && shape.arena && window > 0;
        if !is_known {
            let piece = if dedup && shape.arena { shape.allocation(0) } else { shape.window(window) };
            all_gather(mesh)?;
            map_all(mesh, range, own, shape, &piece)?;
            mesh.barrier()?;
        }
        mesh.barrier()?;
    }
    Ok(())
}

/// A record of 64 bytes of each rank to every rank, around a ring.
fn all_gather(mesh: &Mesh) -> io::Result<()> {
    let mut record = [0; 64];
    for _ in 1..mesh.ranks() {
        mesh.send(mesh.after(1), &record)?;
        mesh.receive(mesh.before(1), &mut record)?;
    }
    Ok(())
}

/// Each rank's part of a window: a request to its owner, the descriptor, the mapping.
fn map_all(mesh: &Mesh, range: &Range, own: &[Arc<OwnedFd>], shape: &Shape, piece: &Piece) -> io::Result<()> {
    let file = &own[piece.allocation];
    shape.map(range, mesh.me(), piece, file)?;
    for step in 1..mesh.ranks() {
        let (owner, asker) = (mesh.after(step), mesh.before(step));
        mesh.send(owner, &(piece.allocation as u64).to_ne_bytes())?;
        let mut asked = [0; 8];
        mesh.receive(asker, &mut asked)?;
        mesh.send_descriptors(asker, &[file.as_fd()])?;
        let answer = mesh.receive_descriptors(owner)?;
        let file = answer.first().ok_or(io::ErrorKind::UnexpectedEof)?;
        shape.map(range, owner, piece, file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_of_each_process_maps_what_other_processes_have() {
        let exchange = |me| Exchange::new(&[0, 0, 1, 2, 2], me);
        assert_eq!((exchange(0).to, exchange(0).from), (vec![2, 3], vec![2, 3, 4]));
        assert_eq!((exchange(1).to, exchange(1).from), (vec![2, 3], vec![]));
        assert_eq!((exchange(2).to, exchange(2).from), (vec![0, 3], vec![0, 1, 3, 4]));
        assert_eq!((exchange(4).to, exchange(4).from), (vec![0, 2], vec![]));
        let alone = Exchange::new(&[0, 0], 1);
        assert!(alone.to.is_empty() && alone.from.is_empty());
    }
}
