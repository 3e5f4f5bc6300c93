//! What a registration says through `tracing`: the names and fields of docs/tracing.md.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail it by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use common::*;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<&'static str, String>;

/// A span or an event.
#[derive(Clone, Debug)]
struct Said {
    /// A span's name, or an event's message.
    name: String,
    /// The span that an event is in.
    within: Option<&'static str>,
    fields: Fields,
}

/// Collects all that is said.
#[derive(Clone, Default)]
struct Listener {
    spans: Arc<Mutex<Vec<Said>>>,
    events: Arc<Mutex<Vec<Said>>>,
}

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Reader(&mut fields));
        self.spans.lock().push(Said { name: attributes.metadata().name().to_owned(), within: None, fields });
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Reader(&mut fields));
        let name = fields.remove("message").unwrap_or_default();
        let within = context.event_span(event).map(|span| span.name());
        self.events.lock().push(Said { name, within, fields });
    }
}

/// The actors' threads are not the test's: the listener is the whole process's, so this file has one test.
#[test]
fn a_registration_is_a_span_with_its_rounds_on_every_rank() {
    let listener = Listener::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(listener.clone())).unwrap();
    let world = world(&[1, 1]);
    let ranks: Vec<_> = world.iter().map(|comm| comm.duplicate("told").unwrap()).collect();
    let buffers = buffers(&ranks, 4096);
    let windows = windows(&ranks, &buffers);
    drop(windows);
    finalize(ranks);
    finalize(world);

    let of = |said: &Mutex<Vec<Said>>, rank: u32| -> Vec<Said> {
        let rank = rank.to_string();
        let all = said.lock();
        let here = |said: &&Said| said.fields.get("rank") == Some(&rank);
        all.iter()
            .filter(here)
            .filter(|said| said.fields.get("comm").is_some_and(|c| c == "told"))
            .cloned()
            .collect()
    };
    for rank in 0..2 {
        let spans = of(&listener.spans, rank);
        let [batch] = &spans[..] else { panic!("one batch: {spans:?}") };
        assert_eq!(batch.name, "batch");
        assert_eq!((batch.fields["seq"].as_str(), batch.fields["tasks"].as_str()), ("0", "1"));

        let events = of(&listener.events, rank);
        let told = |event: &Said| match event.fields.get("round") {
            Some(round) => format!("{} {round}", event.name),
            None => event.name.clone(),
        };
        let names = ["batch.begin", "round.sent", "round.complete", "batch.committed"];
        let of_batch: Vec<_> = events.iter().filter(|event| names.contains(&event.name.as_str())).collect();
        let order: Vec<String> =
            of_batch.iter().map(|event| told(event)).map(|said| said.replace('"', "")).collect();
        let expected = [
            "batch.begin",
            "round.sent offer",
            "round.complete offer",
            "round.sent vote",
            "round.complete vote",
            "batch.committed",
        ];
        assert_eq!(order, expected, "rank {rank}");
        for event in &of_batch[..5] {
            assert_eq!(event.within, Some("batch"), "{event:?}");
        }
        for event in &of_batch[1..5] {
            assert_eq!(event.fields["seq"], "0", "{event:?}");
        }
        let closed = events.iter().position(|event| event.name == "comm.closed");
        assert!(closed.is_some_and(|at| at > 0), "{events:?}");
    }
}
