//! Every order of the few atomics, as far as loom goes: `RUSTFLAGS="--cfg loom" cargo test -p
//! gaudi-ranges --test loom --release`.
#![cfg(loom)]

use std::sync::atomic::{AtomicUsize as Plain, Ordering::SeqCst};

use gaudi_ranges::{RangeMap, Span};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// A value whose use after its drop fails the model: loom's own atomic sees an access that nothing
/// orders.
struct Value {
    alive: AtomicBool,
    drops: std::sync::Arc<Plain>,
}

impl Value {
    fn new(drops: &std::sync::Arc<Plain>) -> Self {
        Self {
            alive: AtomicBool::new(true),
            drops: std::sync::Arc::clone(drops),
        }
    }

    fn check(&self) {
        assert!(self.alive.load(Ordering::Relaxed), "used after its drop");
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.check();
        self.alive.store(false, Ordering::Relaxed);
        self.drops.fetch_add(1, SeqCst);
    }
}

fn model(preemptions: usize, test: impl Fn(&std::sync::Arc<Plain>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let drops = std::sync::Arc::new(Plain::new(0));
        test(&drops);
    });
}

fn low() -> Span {
    Span::new(1 << 60, 8).expect("a range")
}

#[test]
fn concurrent_hit_keeps_its_value() {
    model(3, |drops| {
        let map = Arc::new(RangeMap::new());
        drop(map.insert(low(), [0, 0], Value::new(drops)));
        let reader = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                let pin = map.get(low(), [0, 0]);
                if let Some(pin) = &pin {
                    pin.check();
                }
                drop(pin);
            })
        };
        drop(map.remove(Span::ALL, |_| true));
        reader.join().expect("no panic");
        assert_eq!(drops.load(SeqCst), 1, "dropped, once, with the last pin");
    });
}

#[test]
fn pins_beyond_the_hazards_are_counted() {
    model(2, |drops| {
        let map = Arc::new(RangeMap::new());
        drop(map.insert(low(), [0, 0], Value::new(drops)));
        let reader = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                // Under loom a thread has one hazard.
                let pins = [map.get(low(), [0, 0]), map.get(low(), [0, 0])];
                pins.iter().flatten().for_each(|pin| pin.check());
            })
        };
        drop(map.remove(Span::ALL, |_| true));
        reader.join().expect("no panic");
        assert_eq!(drops.load(SeqCst), 1, "dropped once");
    });
}

#[test]
fn concurrent_unpin_drops_the_value_once() {
    model(2, |drops| {
        let map = Arc::new(RangeMap::new());
        drop(map.insert(low(), [0, 0], Value::new(drops)));
        let pin = map.get(low(), [0, 0]).expect("a hit");
        let other = thread::spawn(move || {
            pin.check();
            drop(pin);
        });
        drop(map.remove(Span::ALL, |_| true));
        other.join().expect("no panic");
        assert_eq!(drops.load(SeqCst), 1, "dropped once");
    });
}

#[test]
fn walk_keeps_directories_and_lists() {
    model(2, |drops| {
        let map = Arc::new(RangeMap::new());
        drop(map.insert(low(), [0, 0], Value::new(drops)));
        let reader = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                if let Some(pin) = map.get(low(), [0, 0]) {
                    pin.check();
                }
            })
        };
        // The same cell names two, the root grows, and both go back again.
        let far = Span::new(7 << 61, 8).expect("a range");
        drop(map.insert(low(), [1, 0], Value::new(drops)));
        drop(map.insert(far, [0, 0], Value::new(drops)));
        drop(map.remove(Span::ALL, |pin| pin.tag() == [1, 0] || pin.span() == far));
        reader.join().expect("no panic");
        assert_eq!(drops.load(SeqCst), 2, "two of three");
        drop(map);
        assert_eq!(drops.load(SeqCst), 3, "all");
    });
}
