//! Bells: how a thread that sleeps for words of shared memory is woken, by a system call only if it does sleep.
//!
//! A bell is a word beside the words that its one sleeper waits for. The sleeper sets it to the name of what it waits
//! for, looks once more whether that has come, and sleeps on the bell as long as the bell is unchanged. Who has stored
//! a word looks at the bell, and if what it says has come, clears it and wakes.
//!
//! No wake is lost. Both sides store, fence and load: the sleeper stores the bell and loads the words, the ringer
//! stores a word and loads the bell, each with a sequentially consistent fence in between. These fences have one order.
//! If the ringer's comes first, the sleeper's load sees the word, and it does not sleep. If the sleeper's comes first,
//! the ringer's load sees the bell set (or a later state of it, set or cleared by one who came between: then the
//! sleeper is awake, and fences again before it sleeps). Then the ringer clears the bell before it wakes: a sleeper
//! that is on its way into the system call finds the bell changed there and returns, one that sleeps already is woken.
//!
//! Where several words must come, the ringer that fences last sees all of them, and rings: so of many
//! arrivals one wakes.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::thread::futex;

/// A bell. See the module. It has one sleeper at a time and any number of ringers, in any process.
#[derive(Clone, Copy, Debug)]
pub struct Bell<'k>(&'k AtomicU32);

impl<'k> Bell<'k> {
    /// The bell in this word, which is 0 while nobody sleeps. Any other value wakes more than needed, and no less.
    #[must_use]
    pub const fn new(word: &'k AtomicU32) -> Self {
        Self(word)
    }

    /// Wakes the sleeper if there is one that `awaited` recognises by the name of what it waits for. The caller has
    /// stored, by atomics, what may be awaited.
    pub fn ring(self, awaited: impl FnOnce(u32) -> bool) {
        fence(Ordering::SeqCst);
        let name = self.0.load(Ordering::Relaxed);
        if name == AWAKE || !awaited(name) {
            return;
        }
        // Who clears it wakes; if it has changed, another one did, or the sleeper is awake and will look again.
        if self.0.compare_exchange(name, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // A failed wake can only mean a bad address, and a reference is none.
            let _ = futex::wake(self.0, futex::Flags::empty(), EVERYONE);
        }
    }

    /// The sleeper is about to look once more, and then to sleep while the word is `name`.
    pub(super) fn set(self, name: u32) {
        self.0.store(name, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper sleeps no more.
    pub(super) fn unset(self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    pub(super) const fn word(self) -> &'k AtomicU32 {
        self.0
    }
}

/// What a bell is while nobody sleeps.
const AWAKE: u32 = 0;

/// As many waiters as a futex wake can name.
pub(super) const EVERYONE: u32 = i32::MAX as u32;
