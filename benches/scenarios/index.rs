//! The index of windows by address.

use std::sync::Arc;

use symwin::devr::index::{Node, WindowIndex};

/// An index of numbers, and the nodes in it.
pub(crate) struct Indexed {
    pub(crate) index: WindowIndex<usize>,
    pub(crate) nodes: Vec<Arc<Node<usize>>>,
}

/// `count` windows of 4 KiB, each with a gap of the same size behind it, published as one batch.
pub(crate) fn indexed(count: usize) -> Indexed {
    let nodes = windows(0, count);
    let index = WindowIndex::new();
    index.publish(nodes.clone());
    Indexed { index, nodes }
}

/// `count` windows that are in no index yet, the first of them behind `before` others.
pub(crate) fn windows(before: usize, count: usize) -> Vec<Arc<Node<usize>>> {
    (before..before + count)
        .map(|i| Arc::new(Node::new(base(i), BYTES, i).expect("such addresses exist")))
        .collect()
}

/// Looks `lookups` windows up, of `count` in an order that is no neighbour's, and adds up what it finds.
pub(crate) fn find(index: &WindowIndex<usize>, count: usize, lookups: usize) -> usize {
    let number = |i: usize| i.wrapping_mul(SCATTER) % count;
    (0..lookups).map(|i| index.find(base(number(i)) + BYTES / 2, 16).expect("the window is open")).sum()
}

/// Removes every window of the nodes.
pub(crate) fn remove(index: &WindowIndex<usize>, nodes: &[Arc<Node<usize>>]) {
    for node in nodes {
        assert!(index.remove(node), "the window was open");
    }
}

fn base(i: usize) -> usize {
    (1 << 32) + i * 2 * BYTES
}

const BYTES: usize = 4096;
/// A prime, so that all windows come up.
const SCATTER: usize = 7_919;
