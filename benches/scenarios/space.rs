//! The allocator of offsets.

use symwin::devr::space::Space;

/// A space with `count` allocations of 2 MiB, each of which has a hole of the same size behind it, and room after them.
pub(crate) fn with_holes(count: usize) -> Space {
    let mut space = Space::new(1 << 46);
    let offsets: Vec<u64> = (0..2 * count).map(|_| allocate(&mut space, BLOCK)).collect();
    for offset in offsets.into_iter().skip(1).step_by(2) {
        space.free(offset, BLOCK).expect("it was allocated");
    }
    space
}

/// Takes `count` blocks one after the other and gives all of them back, the first one first.
pub(crate) fn fill_and_drain(mut space: Space, count: usize) -> Space {
    let offsets: Vec<u64> = (0..count).map(|_| allocate(&mut space, BLOCK)).collect();
    for offset in offsets {
        space.free(offset, BLOCK).expect("it was allocated");
    }
    space
}

/// Takes and gives back a block that fits into none of the holes, so that the search passes all of them.
pub(crate) fn past_all_holes(mut space: Space) -> Space {
    let offset = allocate(&mut space, 2 * BLOCK);
    space.free(offset, 2 * BLOCK).expect("it was allocated");
    space
}

fn allocate(space: &mut Space, size: u64) -> u64 {
    space.alloc(size, BLOCK).expect("the space has room")
}

const BLOCK: u64 = 2 << 20;
