//! A tree as bytes: how they are built, and a search of them that reads what a kernel reads.

use std::mem::offset_of;

use zerocopy::IntoBytes;

use crate::device::abi::{LOOKUP_KEYS, LookupLeaf, LookupNode, LookupTree};

/// A node of keys, and the header before the nodes.
pub(super) const LINE: usize = size_of::<LookupNode>();

const _: () = assert!(size_of::<LookupTree>() == LINE && 1 << KEY_BITS == LOOKUP_KEYS);

/// Where everything is in a tree of so many leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    n_leaves: usize,
    levels: u32,
}

impl Shape {
    /// `None` for more leaves than a tree can have.
    pub(super) fn new(n_leaves: usize) -> Option<Self> {
        let mut levels = u32::from(n_leaves > 0);
        while levels <= LEVELS_MAX && n_leaves > 1 << (KEY_BITS * levels) {
            levels += 1;
        }
        (levels <= LEVELS_MAX).then_some(Self { n_leaves, levels })
    }

    /// How many nodes are on a level, 0 being the one above the leaves.
    fn nodes(self, level: u32) -> usize {
        self.n_leaves.div_ceil(1 << (KEY_BITS * (level + 1)))
    }

    /// Where the leaves begin.
    pub(super) fn leaves(self) -> usize {
        LINE * (1 + (0..self.levels).map(|level| self.nodes(level)).sum::<usize>())
    }

    /// How long the tree is. It has a root at least, which a search reads before it knows that there are no leaves.
    pub(super) fn bytes(self) -> usize {
        (self.leaves() + self.n_leaves.max(1) * size_of::<LookupLeaf>()).next_multiple_of(LINE)
    }
}

/// The bytes of the tree of these leaves, each with the address where its piece begins, in order. Each piece ends at or
/// before the beginning of the next.
///
/// # Panics
/// With more than 2^28 leaves.
#[must_use]
pub fn build(leaves: &[(u64, LookupLeaf)]) -> Vec<u8> {
    let shape = Shape::new(leaves.len()).expect("at most 2^28 leaves");
    let n_leaves = u32::try_from(leaves.len()).expect("at most 2^28 leaves");
    let mut bytes = Vec::with_capacity(shape.bytes());
    let header = LookupTree { n_leaves, levels: shape.levels, ..LookupTree::default() };
    bytes.extend_from_slice(header.as_bytes());
    for level in (0..shape.levels).rev() {
        // Each child has so many leaves below it; its key is that of the first.
        let step = 1 << (KEY_BITS * level);
        for node in leaves.chunks(step << KEY_BITS) {
            let mut keys = [u64::MAX; LOOKUP_KEYS];
            for (key, (base, _)) in keys.iter_mut().zip(node.iter().step_by(step)) {
                *key = *base;
            }
            bytes.extend_from_slice(LookupNode { keys }.as_bytes());
        }
    }
    for (_, leaf) in leaves {
        bytes.extend_from_slice(leaf.as_bytes());
    }
    bytes.resize(shape.bytes(), 0);
    bytes
}

/// What a kernel finds for `address` in a tree of which `read` gives the word at an offset: the window's struct, `None`
/// if there is none. Step by step as `search_tree` in `include/symwin.cuh`.
#[must_use]
pub fn search(read: impl Fn(usize) -> u64, address: u64) -> Option<u64> {
    let counts = read(offset_of!(LookupTree, n_leaves));
    let (n_leaves, mut level) = (counts & u64::from(u32::MAX), counts >> 32);
    let index = |number: u64| usize::try_from(number).expect("what is in a tree fits the address space");
    let (mut nodes, mut at) = (LINE, 0);
    loop {
        let node = nodes + index(at) * LINE;
        let children = (0..LOOKUP_KEYS).filter(|key| read(node + 8 * key) <= address).count() as u64;
        let (child, last_leaf) = (children.checked_sub(1)?, n_leaves.checked_sub(1)?);
        level -= 1;
        at = (at * LOOKUP_KEYS as u64 + child).min(last_leaf >> (4 * level));
        nodes += index((last_leaf >> (4 * level + 4)) + 1) * LINE;
        if level == 0 {
            break;
        }
    }
    let leaf = nodes + index(at) * size_of::<LookupLeaf>();
    let end = read(leaf + offset_of!(LookupLeaf, end));
    let window = read(leaf + offset_of!(LookupLeaf, window));
    Some(window).filter(|window| address < end && *window != 0)
}

/// A node has 2 to the power of this many children.
const KEY_BITS: u32 = 4;

/// A tree has at most 2^28 leaves, so that all its numbers are words of 32 bits.
const LEVELS_MAX: u32 = 7;
