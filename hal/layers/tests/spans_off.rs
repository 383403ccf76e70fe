//! Spans that a filter has turned off: an operation does not reach the subscriber.
//!
//! A process of its own, because `tracing`'s maximum level is a global variable: that of all
//! subscribers.

mod recorder;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gaudi_layers::Stack;
use gaudi_layers::time::VirtualClock;
use gaudi_seam::Operation;
use recorder::Recorder;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

static LEVEL_IS_INFO: AtomicUsize = AtomicUsize::new(0);
/// Calls of the subscriber that concern the target of the spans.
static ASKED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn count(metadata: &Metadata<'_>) {
        if metadata.target() == "gaudi::span" {
            ASKED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Subscriber for Counting {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        Self::count(metadata);
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::count(metadata);
        false
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        match LEVEL_IS_INFO.load(Ordering::Relaxed) {
            0 => Some(LevelFilter::OFF),
            _ => Some(LevelFilter::INFO),
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("no span is enabled")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `enabled!` compares the level with the maximum level, which is one relaxed load
/// (`LevelFilter::current`), before it registers its call site or asks the subscriber. So without
/// a call of the subscriber, the load is all that was done.
#[test]
fn operations_do_not_reach_the_subscriber() {
    tracing::subscriber::set_global_default(Counting).expect("no other subscriber");
    let below = Recorder::new();
    let time: Arc<dyn gaudi_layers::time::Time> = Arc::new(VirtualClock::default());
    let io = Stack::prepare(&[])
        .expect("no layer")
        .over_known(below.clone(), &time);
    recorder::call_all(&*io);
    assert_eq!(below.seen().len(), Operation::ALL.len());
    assert_eq!(ASKED.load(Ordering::Relaxed), 0);
    // The same calls ask the subscriber once its level is high enough.
    LEVEL_IS_INFO.store(1, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    recorder::call_all(&*io);
    assert!(ASKED.load(Ordering::Relaxed) >= Operation::ALL.len());
}
