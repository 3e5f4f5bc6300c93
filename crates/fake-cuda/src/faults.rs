//! Failures on demand: the n-th call of a name in this process gives a chosen code and does nothing.

use std::collections::BTreeMap;

use crate::code::{Code, Done};
use crate::config::CONFIG;

/// How often what was called, and what shall fail.
#[derive(Debug)]
pub(crate) struct Faults {
    calls: BTreeMap<&'static str, u64>,
    failures: Vec<(String, u64, u32)>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self { calls: BTreeMap::new(), failures: CONFIG.failures.clone() }
    }

    /// Counts a call, which fails if it is the one.
    pub(crate) fn count(&mut self, name: &'static str) -> Done {
        let calls = self.calls.entry(name).or_default();
        *calls += 1;
        let hit = self.failures.iter().find(|(call, nth, _)| call == name && nth == calls);
        hit.map_or(Ok(()), |(_, _, code)| Err(Code(*code)))
    }

    /// The n-th call of this name from now on fails.
    pub(crate) fn arm(&mut self, name: &str, nth: u64, code: u32) {
        let before = self.calls.get(name).copied().unwrap_or(0);
        self.failures.push((name.to_owned(), before + nth, code));
    }

    /// How often it was called.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }
}
