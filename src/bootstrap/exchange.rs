//! The all-gather over processes that communicators are made with.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::bootstrap::layout::Layout;
use crate::error::BootstrapError;
use crate::ids::ProcessId;

/// What was published and not collected yet.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// For each topic and process, in the order in which they were published.
    topics: HashMap<String, BTreeMap<ProcessId, VecDeque<Vec<u8>>>>,
    /// Publications of each process that wait here, with their bytes.
    waiting: BTreeMap<ProcessId, (usize, usize)>,
    /// Processes that are gone, with how.
    dead: BTreeMap<ProcessId, String>,
}

/// A process published more than it may before anyone collected.
#[derive(Debug)]
pub(crate) struct Full;

impl Exchange {
    /// Takes a contribution. `bounded` for those of other processes, which must not fill this one's memory.
    pub(crate) fn put(
        &self,
        process: ProcessId,
        topic: &str,
        bytes: &[u8],
        bounded: bool,
    ) -> Result<(), Full> {
        let mut state = self.state.lock();
        let (count, total) = state.waiting.entry(process).or_default();
        if bounded && (*count >= PUBLICATIONS_MAX || *total + bytes.len() > PUBLICATION_BYTES_MAX) {
            return Err(Full);
        }
        *count += 1;
        *total += bytes.len();
        let topic = state.topics.entry(topic.to_owned()).or_default();
        topic.entry(process).or_default().push_back(bytes.to_vec());
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// No more will come from this process.
    pub(crate) fn lost(&self, process: ProcessId, detail: &str) {
        self.state.lock().dead.entry(process).or_insert_with(|| detail.to_owned());
        self.changed.notify_all();
    }

    /// Waits for one contribution of every process. What came from a process that died later still counts.
    pub(crate) fn collect(
        &self,
        topic: &str,
        layout: &Layout,
        after: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let deadline = super::after(Instant::now(), after);
        let mut state = self.state.lock();
        loop {
            let missing = state.missing(topic, layout);
            if missing.is_empty() {
                return Ok(state.take(topic));
            }
            if let Some((process, detail)) = missing.iter().find_map(|p| state.dead.get_key_value(p)) {
                let who = layout.describe(*process);
                let detail = format!("{detail}, before it published `{topic}`");
                return Err(BootstrapError::Protocol { who, detail });
            }
            if self.changed.wait_until(&mut state, deadline).timed_out()
                && !state.missing(topic, layout).is_empty()
            {
                let missing = state.missing(topic, layout).into_iter().map(|p| layout.describe(p)).collect();
                return Err(BootstrapError::Deadline { after, missing });
            }
        }
    }
}

impl State {
    fn missing(&self, topic: &str, layout: &Layout) -> Vec<ProcessId> {
        let here = self.topics.get(topic);
        let came = |process| here.is_some_and(|topic| topic.contains_key(&process));
        layout.processes().filter(|&process| !came(process)).collect()
    }

    /// The first contribution of each process; all have one.
    fn take(&mut self, topic: &str) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        let Some(mut processes) = self.topics.remove(topic) else { return taken };
        for (process, queue) in &mut processes {
            let bytes = queue.pop_front().expect("a process without contributions has no queue");
            if let Some((count, total)) = self.waiting.get_mut(process) {
                *count -= 1;
                *total -= bytes.len();
            }
            taken.push(bytes);
        }
        processes.retain(|_, queue| !queue.is_empty());
        if !processes.is_empty() {
            self.topics.insert(topic.to_owned(), processes);
        }
        taken
    }
}

/// What one process may have waiting here: as much as early frames may take.
const PUBLICATIONS_MAX: usize = 1_024;
const PUBLICATION_BYTES_MAX: usize = 64 << 20;
