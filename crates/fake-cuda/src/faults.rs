//! Failures on demand: the n-th call of a name in this process gives a chosen code and does nothing.

use std::collections::BTreeMap;

use crate::code::{Code, Done};
use crate::config::CONFIG;

/// How often what was called.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    calls: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Counts a call, which fails if it is the one.
    pub(crate) fn count(&mut self, name: &'static str) -> Done {
        let calls = self.calls.entry(name).or_default();
        *calls += 1;
        let hit = CONFIG.failures.iter().find(|(call, nth, _)| call == name && nth == calls);
        hit.map_or(Ok(()), |(_, _, code)| Err(Code(*code)))
    }
}
