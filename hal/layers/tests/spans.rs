//! The spans of operations: their names and fields, and that nothing is done when they are off.

mod recorder;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use gaudi_layers::Stack;
use gaudi_layers::time::VirtualClock;
use gaudi_seam::{Operation, SharedIo};
use recorder::Recorder;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

/// The fields of a span: those of its name's documentation.
type Span = BTreeMap<&'static str, String>;

/// Collects the spans that have ended.
#[derive(Clone, Debug, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[derive(Debug, Default)]
struct Fields(Span);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        fields.0.insert("name", attributes.metadata().name().to_owned());
        attributes.record(&mut fields);
        context
            .span(id)
            .expect("a new span")
            .extensions_mut()
            .insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).expect("an open span");
        values.record(span.extensions_mut().get_mut::<Fields>().expect("its fields"));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).expect("a closed span");
        let fields = span.extensions_mut().remove::<Fields>().expect("its fields");
        self.0.lock().unwrap().push(fields.0);
    }
}

fn node(below: &Arc<Recorder>, layers: &str) -> SharedIo {
    let spec: gaudi_seam::DeviceSpec = format!("mock:gaudi2{layers}").parse().unwrap();
    let time: Arc<dyn gaudi_layers::time::Time> = Arc::new(VirtualClock::default());
    Stack::prepare(&spec.layers)
        .unwrap()
        .over_known(below.clone(), &time)
}

#[test]
fn every_operation_has_a_span() {
    let collector = Collector::default();
    let subscriber = Registry::default().with(collector.clone());
    let below = Recorder::new();
    tracing::subscriber::with_default(subscriber, || {
        recorder::call_all(&*node(&below, ""));
    });
    let spans = std::mem::take(&mut *collector.0.lock().unwrap());
    let calls: Vec<_> = spans.iter().map(|span| span["gaudi.call"].clone()).collect();
    let all: Vec<_> = Operation::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(calls, all);
    for span in &spans {
        let names: Vec<_> = span.keys().copied().collect();
        assert_eq!(
            names,
            [
                "gaudi.call",
                "gaudi.device",
                "gaudi.node",
                "name",
                "otel.kind",
                "otel.name"
            ],
            "{span:?}"
        );
        assert_eq!(span["name"], "gaudi.operation");
    }
    assert!(
        spans.iter().any(|span| span["otel.name"] == "HL_MEM_OP_ALLOC"),
        "{spans:?}"
    );
}

#[test]
fn failed_operation_marks_its_span() {
    let collector = Collector::default();
    let subscriber = Registry::default().with(collector.clone());
    let below = Recorder::new();
    tracing::subscriber::with_default(subscriber, || {
        recorder::call_all(&*node(&below, "+fault=mem_free:error=EINVAL"));
    });
    let spans = std::mem::take(&mut *collector.0.lock().unwrap());
    let failed: Vec<_> = spans
        .iter()
        .filter(|span| span.contains_key("otel.status_code"))
        .collect();
    let [failed] = failed[..] else {
        panic!("one operation failed: {failed:?}");
    };
    assert_eq!(failed["gaudi.call"], "mem_free");
    assert_eq!(failed["otel.status_code"], "ERROR");
    assert_eq!(failed["gaudi.errno"], "EINVAL");
    assert_eq!(failed["error.type"], "invalid_input");
}

#[test]
fn filter_turns_spans_on_and_off() {
    let collector = Collector::default();
    let off = tracing_subscriber::filter::LevelFilter::OFF;
    let (filter, handle) = reload::Layer::new(off);
    let subscriber = Registry::default().with(filter).with(collector.clone());
    let below = Recorder::new();
    tracing::subscriber::with_default(subscriber, || {
        let io = node(&below, "");
        recorder::call_all(&*io);
        assert!(collector.0.lock().unwrap().is_empty());
        handle
            .reload(tracing_subscriber::filter::LevelFilter::INFO)
            .unwrap();
        recorder::call_all(&*io);
    });
    assert_eq!(collector.0.lock().unwrap().len(), Operation::ALL.len());
    assert_eq!(below.seen().len(), 2 * Operation::ALL.len());
}
