//! What each step of a group takes, from the library's own events.
//!
//! A layer hears `batch.phase` events. It is off, and costs nothing, but while somebody records.

use std::fmt::Debug;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use super::clock;

/// Prepares recording. Where there is a log already, nothing will be recorded.
pub(crate) fn install() {
    let (filter, handle) = reload::Layer::new(LevelFilter::OFF);
    if tracing_subscriber::registry().with(Steps.with_filter(filter)).try_init().is_ok() {
        let _ = HANDLE.set(handle);
    }
}

/// While it lives, what the ranks of this process do is recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    handle: &'static reload::Handle<LevelFilter, Registry>,
}

impl Recording {
    /// `None` where nothing can be recorded.
    pub(crate) fn start() -> Option<Self> {
        let handle = HANDLE.get()?;
        let mut heard = HEARD.lock();
        if heard.recordings == 0 {
            handle.reload(LevelFilter::DEBUG).ok()?;
        }
        heard.recordings += 1;
        Some(Self { handle })
    }

    /// The steps of a rank's group between two times: name and nanoseconds of each, which add up to all of the time.
    pub(crate) fn steps(&self, rank: u32, begin: u64, end: u64) -> Vec<(String, u64)> {
        let mut heard = HEARD.lock();
        let phases: Vec<_> = heard.phases.extract_if(.., |phase| phase.rank == rank).collect();
        drop(heard);
        let mut marks = vec![("submit".to_owned(), begin)];
        let within = phases.into_iter().filter(|phase| (begin..=end).contains(&phase.at));
        marks.extend(within.map(|phase| (phase.name, phase.at)));
        let ends: Vec<u64> = marks.iter().skip(1).map(|(_, at)| *at).chain([end]).collect();
        marks.into_iter().zip(ends).map(|((name, at), end)| (name, end - at)).collect()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut heard = HEARD.lock();
        heard.recordings -= 1;
        if heard.recordings == 0 {
            // The handle has reloaded before. If it cannot any more, recording goes on and is only slow.
            let _ = self.handle.reload(LevelFilter::OFF);
            heard.phases.clear();
        }
    }
}

/// A rank's entry into a phase.
#[derive(Debug, Default)]
struct Entry {
    rank: u32,
    name: String,
    at: u64,
    /// Whether the event is one of a phase at all.
    is_phase: bool,
    /// Whether the event is of the communicator that is measured.
    is_world: bool,
}

#[derive(Debug)]
struct Heard {
    recordings: u32,
    phases: Vec<Entry>,
}

/// Hears of phases.
struct Steps;

impl<S: Subscriber> Layer<S> for Steps {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry { at: clock::now(), ..Entry::default() };
        event.record(&mut entry);
        if entry.is_phase && entry.is_world {
            HEARD.lock().phases.push(entry);
        }
    }
}

impl Visit for Entry {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = u32::try_from(value).unwrap_or(u32::MAX);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.is_phase = format!("{value:?}") == "batch.phase",
            "comm" => self.is_world = format!("{value:?}") == "world",
            "phase" => self.name = format!("{value:?}"),
            _ => {}
        }
    }
}

static HANDLE: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
static HEARD: Mutex<Heard> = Mutex::new(Heard { recordings: 0, phases: Vec::new() });
