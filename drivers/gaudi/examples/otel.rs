//! Exports a span for each operation in OpenTelemetry's format: OTLP as lines of JSON, which the
//! collector's `otlpjsonfile` receiver reads.
//!
//! `cargo run -p gaudi --example otel -- mock:gaudi2 >spans.json`

use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use gaudi::{Deadline, Device};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A span that has not ended.
struct Open {
    id: String,
    start: u128,
    fields: Map<String, Value>,
    events: Vec<Value>,
}

/// Collects the fields of a span or an event.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0
            .insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

fn now() -> u128 {
    // A clock before 1970 is reported as 1970.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}

/// Returns hexadecimal digits of random bits.
fn random(digits: usize) -> String {
    let bits = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", bits(), bits())[..digits].to_owned()
}

/// The fields as attributes of OpenTelemetry.
fn attributes(fields: Map<String, Value>) -> Vec<Value> {
    let attribute = |(key, value)| json!({"key": key, "value": {"stringValue": value}});
    fields.into_iter().map(attribute).collect()
}

/// Prints each span that ends. The spans of a run have one trace.
struct Otlp {
    trace: String,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Otlp {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Map::new();
        attributes.record(&mut Fields(&mut fields));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Open {
                id: random(16),
                start: now(),
                fields,
                events: Vec::new(),
            });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            if let Some(open) = span.extensions_mut().get_mut::<Open>() {
                values.record(&mut Fields(&mut open.fields));
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Map::new();
        event.record(&mut Fields(&mut fields));
        let name = fields.remove("message").unwrap_or_default();
        if let Some(span) = context.event_span(event) {
            if let Some(open) = span.extensions_mut().get_mut::<Open>() {
                let time = now().to_string();
                open.events
                    .push(json!({"name": name, "timeUnixNano": time, "attributes": attributes(fields)}));
            }
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id);
        let Some(mut open) = span.and_then(|span| span.extensions_mut().remove::<Open>()) else {
            return;
        };
        // These fields are properties of the span, not attributes: see docs/src/how-to/spans.md.
        let name = open.fields.remove("otel.name").unwrap_or_default();
        open.fields.remove("otel.kind");
        let has_failed = open.fields.remove("otel.status_code").is_some();
        let span = json!({
            "traceId": self.trace,
            "spanId": open.id,
            "name": name,
            "kind": 3, // SPAN_KIND_CLIENT
            "startTimeUnixNano": open.start.to_string(),
            "endTimeUnixNano": now().to_string(),
            "attributes": attributes(open.fields),
            "events": open.events,
            "status": if has_failed { json!({"code": 2}) } else { json!({}) },
        });
        let service = json!({"key": "service.name", "value": {"stringValue": "otel-example"}});
        let line = json!({"resourceSpans": [{
            "resource": {"attributes": [service]},
            "scopeSpans": [{"scope": {"name": "gaudi"}, "spans": [span]}],
        }]});
        // A reader that has ended needs no further spans.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The subscriber comes before the device.
    let exporter = Otlp { trace: random(32) };
    let spans = Targets::new().with_target("gaudi::span", tracing::Level::INFO);
    tracing_subscriber::registry()
        .with(exporter.with_filter(spans))
        .init();

    let spec = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "mock:gaudi2".to_owned());
    let device = Device::open(&spec.parse()?)?;
    let buffer = device.alloc(1 << 20)?;
    let host = device.alloc_host(1 << 20)?;
    device.copy(&buffer, &host)?.wait(Deadline::NEVER)?;
    // An operation that fails: its span has the status of an error.
    let hint = device.info()?.dram_bytes;
    match device.alloc(2 * hint) {
        Ok(_) => Err("the card has more memory than it reports".into()),
        Err(error) => {
            eprintln!("as expected: {error}");
            Ok(())
        }
    }
}
