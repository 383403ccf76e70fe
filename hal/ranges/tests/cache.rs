//! The cache's own rules, beside those that the caches on it are tested by.
#![cfg(not(loom))]

use gaudi_ranges::{Cache, Limits, Span};

const ALL: Limits = Limits {
    entries: usize::MAX,
    bytes: u64::MAX,
};

#[test]
fn sum_of_huge_ranges_does_not_wrap() {
    let cache = Cache::new(ALL);
    for tag in 0..3 {
        drop(cache.insert(Span::ALL, [tag, 0], tag, |_| true));
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (3, u64::MAX));
    assert_eq!(cache.take(Span::ALL, |held| held.tag()[0] > 0).len(), 2);
    assert_eq!((cache.stats().entries, cache.stats().bytes), (1, u64::MAX));
    drop(cache.take(Span::ALL, |_| true));
    assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
}

#[test]
fn least_recently_hit_is_evicted_first() {
    let cache = Cache::new(Limits { entries: 3, ..ALL });
    let span = |at: u64| Span::new(at << 20, 4096).expect("a range");
    for at in 0..3 {
        drop(cache.insert(span(at), [0, 0], at, |_| true));
    }
    drop(cache.get(span(0), [0, 0]));
    drop(cache.get(span(1), [0, 0]));
    let inserted = cache.insert(span(3), [0, 0], 3, |_| true);
    let evicted: Vec<u64> = inserted.evicted.iter().map(|held| **held).collect();
    assert_eq!(evicted, [2], "the unused one");
    assert!(!inserted.evicted[0].is_kept() && inserted.held.is_kept());
    assert!(cache.get(span(2), [0, 0]).is_none());
}

#[test]
fn threads_beyond_the_parts_are_counted_too() {
    let cache = Cache::new(ALL);
    let span = Span::new(0, 1).expect("a range");
    drop(cache.insert(span, [0, 0], (), |()| true));
    let together = std::sync::Barrier::new(40);
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                let held = cache.get(span, [0, 0]);
                // All have a record at a time.
                together.wait();
                assert!(held.is_some() && cache.get(span, [0, 0]).is_some());
            });
        }
    });
    assert_eq!((cache.stats().hits, cache.stats().misses), (80, 1));
}
