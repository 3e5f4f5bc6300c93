//! The story of a run: its events in order, one line for each that matters, for people.
//!
//! Components tell what they do through `tracing` anyway; a run that failed is made again with a subscriber that
//! writes these events down with their step and virtual time.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::engine::Engine;
use crate::actors::Time;

/// Events of one run as lines.
#[derive(Clone)]
pub(super) struct Story {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Weak<Engine>>,
    lines: Mutex<Vec<String>>,
    spans: AtomicU64,
}

impl Story {
    pub(super) fn new() -> Self {
        let (engine, lines, spans) = (Mutex::new(Weak::new()), Mutex::default(), AtomicU64::new(1));
        Self { shared: Arc::new(Shared { engine, lines, spans }) }
    }

    /// Whose steps and time the lines have.
    pub(super) fn follow(&self, engine: &Arc<Engine>) {
        *self.shared.engine.lock() = Arc::downgrade(engine);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.lines.lock())
    }
}

impl Subscriber for Story {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.shared.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        // Every actor's life and every batch's phase are too much; what communicators do and say to each other tells it.
        if line.what.is_empty() || line.what.starts_with("actor.") || line.what == "batch.phase" {
            return;
        }
        let engine = self.shared.engine.lock().upgrade();
        // Some events come from under the engine's lock: those have no step.
        let at = engine.as_deref().and_then(Engine::try_at);
        let (at, by) = at.map_or_else(Default::default, |(steps, now, by)| {
            let at = format!("{steps:>6} {:>10.1?}", now.since(Time::ZERO));
            (at, by.map(|by| format!(" by `{by}`")).unwrap_or_default())
        });
        self.shared.lines.lock().push(format!("{at:>17}  {:<18}{}{by}{}", line.what, line.who, line.rest));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One event's fields: what happened, to which rank of which communicator, and the rest.
#[derive(Default)]
struct Line {
    what: String,
    who: String,
    rest: String,
}

impl Line {
    fn field(&mut self, name: &str, value: fmt::Arguments<'_>) {
        let text = match name {
            "message" => &mut self.what,
            "comm" => {
                let _ = write!(self.who, " `{value}`");
                return;
            }
            "rank" => {
                let _ = write!(self.who, " rank {value}");
                return;
            }
            _ => {
                let _ = write!(self.rest, " {name}={value}");
                return;
            }
        };
        let _ = text.write_fmt(value);
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field.name(), format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field.name(), format_args!("{value}"));
    }
}
