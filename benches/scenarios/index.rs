//! The index of windows by address.

use std::sync::Arc;

use symwin::devr::index::{Indexed, Node, Reader, WindowIndex};

/// A window that is a number.
pub(crate) struct Window {
    node: Node,
    number: usize,
}

impl Indexed for Window {
    fn node(&self) -> Option<&Node> {
        Some(&self.node)
    }
}

/// An index, and the owner of the windows in it.
pub(crate) struct Filled {
    pub(crate) index: WindowIndex<Window>,
    pub(crate) windows: Vec<Arc<Window>>,
}

/// `count` windows of 4 KiB, each with a gap of the same size behind it, published as one batch.
pub(crate) fn filled(count: usize) -> Filled {
    let windows = windows(0, count);
    let index = WindowIndex::new();
    index.publish(&windows);
    Filled { index, windows }
}

/// `count` windows that are in no index yet, the first of them behind `before` others.
pub(crate) fn windows(before: usize, count: usize) -> Vec<Arc<Window>> {
    let node = |i| Node::new(base(i), BYTES).expect("such addresses exist");
    (before..before + count).map(|number| Arc::new(Window { node: node(number), number })).collect()
}

/// Looks `lookups` windows up, of `count` in an order that is no neighbour's, and adds up what it finds.
pub(crate) fn find(index: &WindowIndex<Window>, count: usize, lookups: usize) -> usize {
    let number = |i: usize| i.wrapping_mul(SCATTER) % count;
    let mut reader = Reader::new();
    let mut find =
        |i| index.find_with(&mut reader, base(number(i)) + BYTES / 2, 16).expect("the window is open").number;
    (0..lookups).map(&mut find).sum()
}

/// Removes the windows.
pub(crate) fn remove(index: &WindowIndex<Window>, windows: &[Arc<Window>]) {
    for window in windows {
        assert!(index.remove(&window.node), "the window was open");
    }
}

fn base(i: usize) -> usize {
    (1 << 32) + i * 2 * BYTES
}

const BYTES: usize = 4096;
/// A prime, so that all windows come up.
const SCATTER: usize = 7_919;
