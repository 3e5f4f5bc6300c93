//! Where in a sorted list an address would be, without halving the list again and again.

/// The addresses from the first to the last of a sorted list, cut into about as many buckets of one size as the list
/// has addresses, and where in the list each bucket begins. What is searched then is one bucket.
///
/// Addresses that lie close together in places far from each other share few buckets. The worst case is that one
/// bucket holds all of them: then that one is searched by halving, as the list would be.
pub(super) struct Directory {
    /// The least address.
    first: usize,
    /// A bucket has two to the power of this many addresses.
    shift: u32,
    /// `starts[b]` is how many addresses are below bucket `b`. One more than there are buckets.
    starts: Box<[u32]>,
}

impl Directory {
    /// Of sorted addresses.
    pub(super) fn new(addresses: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let count = addresses.len();
        let first = addresses.clone().next().unwrap_or(0);
        let span = addresses.clone().last().unwrap_or(0) - first;
        let shift = (0..usize::BITS).find(|shift| span >> shift <= count).unwrap_or(usize::BITS - 1);
        let mut starts = Vec::with_capacity((span >> shift) + 2);
        for (before, address) in addresses.enumerate() {
            let bucket = (address - first) >> shift;
            let before = u32::try_from(before).expect("fewer than 2^32 - 1 windows");
            starts.resize(starts.len().max(bucket + 1), before);
        }
        starts.push(u32::try_from(count).expect("fewer than 2^32 - 1 windows"));
        Self { first, shift, starts: starts.into_boxed_slice() }
    }

    /// The part of the list in which the first address above this one is, or right behind which it is.
    pub(super) fn around(&self, address: usize) -> (usize, usize) {
        let Some(above) = address.checked_sub(self.first) else { return (0, 0) };
        let bucket = (above >> self.shift).min(self.starts.len() - 2);
        (self.starts[bucket] as usize, self.starts[bucket + 1] as usize)
    }
}
