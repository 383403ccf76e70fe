//! The map against a plain model, and its entries under threads.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use gaudi_ranges::{Class, Pin, RangeMap, Span, Tag};
use proptest::prelude::*;

fn span(start: u64, len: u64) -> Span {
    Span::new(start, len).expect("a range")
}

/// Counts those that live.
#[derive(Debug)]
struct Counted(u64, Arc<AtomicUsize>);

impl Counted {
    fn new(value: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self(value, Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_span_has_bytes_and_an_end() {
    assert_eq!(Span::new(5, 0), None, "no byte");
    assert_eq!(Span::new(u64::MAX, 2), None, "beyond the last address");
    let last = span(u64::MAX, 1);
    assert_eq!((last.start(), last.last(), last.len()), (u64::MAX, u64::MAX, 1));
    assert!(Span::ALL.contains(last) && Span::ALL.overlaps(last));
    assert!(!span(0, 5).overlaps(span(5, 1)) && span(0, 5).overlaps(span(4, 1)));
}

#[test]
fn only_parts_of_a_range_hit() {
    // A byte, parts of pages, a huge one, addresses of a device, the last address.
    for (start, len) in [
        (0x1234, 1),
        (0x1ffe, 4),
        (0x7f00_0000_0000, 64 << 10),
        (0x7f00_0000_0800, 3 << 40),
        (0x1001_0001_0000_0000, 768 << 20),
        (u64::MAX - 99, 100),
        (1, u64::MAX - 1),
    ] {
        let map = RangeMap::new();
        drop(map.insert(span(start, len), [1, 2], "value"));
        for (from, bytes) in [(0, len), (0, 1), (len - 1, 1), (len / 2, len - len / 2)] {
            let hit = map.get(span(start + from, bytes), [1, 2]);
            assert_eq!(
                hit.as_deref(),
                Some(&"value"),
                "{bytes} bytes at {from} of {len} at {start:#x}"
            );
        }
        let below = span(start - 1, 1);
        let above = start.checked_add(len).and_then(|end| Span::new(end, 1));
        let across = above.map(|above| span(above.start() - 1, 2));
        for beside in [Some(below), above, across].into_iter().flatten() {
            assert!(map.get(beside, [1, 2]).is_none(), "{beside} is no part of it");
        }
        assert!(map.get(span(start, 1), [1, 3]).is_none(), "another tag");
        assert_eq!(map.remove(Span::ALL, |_| true).len(), 1);
        assert_eq!(
            (map.len(), map.directories()),
            (0, 0),
            "nothing is left of {len} bytes"
        );
    }
}

#[test]
fn class_is_that_of_the_entry() {
    let class = |index| Class::from_index(index).expect("below the number of classes");
    assert_eq!(Class::from_index(Class::COUNT), None);
    let map = RangeMap::with_classes(|index| Class::from_index(*index));
    let page = |number: u64, pages: u64| span(0x7f00_0000_0000 + (number << 12), pages << 12);
    for index in 0..Class::COUNT {
        drop(map.insert(page(8 * index as u64, 4), [1, 2], index));
    }
    for index in 0..Class::COUNT {
        let first = 8 * index as u64;
        assert_eq!(class(index).index(), index);
        for (at, pages) in [(first, 1), (first, 4), (first + 3, 1)] {
            assert_eq!(
                map.class_of(page(at, pages)),
                Some(class(index)),
                "{pages} at {at}"
            );
        }
        for (at, pages) in [
            (first + 4, 1),
            (first, 5),
            (first + 3, 2),
            (first, 9),
            (first + 7, 2),
        ] {
            assert_eq!(map.class_of(page(at, pages)), None, "{pages} at {at}");
        }
        let get = map.get(page(first, 1), [1, 2]);
        assert_eq!(get.as_deref(), Some(&index), "the entry itself is found");
    }
    // One byte of another entry, one without a class, and what is left when it is removed.
    drop(map.insert(span(0x7f00_0000_0fff, 1), [0, 0], 99));
    assert_eq!(map.class_of(page(0, 1)), None, "beside another entry");
    assert_eq!(map.class_of(page(1, 3)), Some(class(0)), "the pages behind it");
    drop(map.remove(page(0, 1), |pin| **pin == 99));
    assert_eq!(map.class_of(page(0, 4)), Some(class(0)), "alone again");
    // A part of a page has no class: a lookup beyond the part would not be noticed.
    drop(map.insert(span(0x1000, 0x1800), [0, 0], 3));
    assert_eq!(map.class_of(span(0x1000, 0x1000)), Some(class(3)));
    assert_eq!(map.class_of(span(0x2000, 0x900)), None);
}

#[test]
fn directories_are_freed_with_their_entries() {
    let map = RangeMap::new();
    for n in 0..1000_u64 {
        drop(map.insert(span(0x7f00_0000_0000 + n * (128 << 10), 64 << 10), [0, 0], n));
    }
    let dense = map.directories();
    assert!(dense <= 70, "one for each 2 MiB and one above: {dense}");
    // A huge one over them takes none, its edges aside, and splits nothing twice.
    drop(map.insert(span(0x7e00_0000_0000, 2 << 40), [1, 0], 5000));
    assert!(
        map.directories() <= dense + 4,
        "{} for the huge one",
        map.directories()
    );
    drop(map.insert(span(0x7e80_0000_0123, 1), [2, 0], 6000));
    let split = map.directories();
    assert!(split <= dense + 8, "{split} with one byte inside the huge one");
    drop(map.remove(span(0x7e80_0000_0123, 1), |pin| pin.tag() == [2, 0]));
    assert!(
        map.directories() < split,
        "what the byte had split is whole again"
    );
    drop(map.remove(Span::ALL, |pin| pin.tag() == [1, 0]));
    assert_eq!(map.directories(), dense, "the huge one took its own along");
    drop(map.remove(Span::ALL, |pin| **pin != 0));
    assert_eq!(
        (map.len(), map.directories()),
        (1, 1),
        "one is left, with one directory"
    );
    assert!(map.get(span(0x7f00_0000_0010, 5), [0, 0]).is_some());
}

#[test]
fn the_last_pin_drops_the_value() {
    let alive = Arc::new(AtomicUsize::new(0));
    let map = RangeMap::new();
    let whole = span(0x10_0000, 4096);
    drop(map.insert(whole, [0, 0], Counted::new(7, &alive)));
    // More than a thread publishes, so that some are counted.
    let pins: Vec<Pin<Counted>> = (0..40)
        .map(|_| map.get(span(0x10_0010, 8), [0, 0]).expect("a hit"))
        .collect();
    let clone = pins[0].clone();
    let removed = map.remove(whole, |_| true).pop().expect("it was there");
    assert!(map.get(whole, [0, 0]).is_none(), "removed is not found");
    let removed = removed.into_value().expect_err("others keep it");
    drop(removed);
    drop(map);
    for pin in pins.into_iter().rev() {
        assert_eq!(
            (pin.0, alive.load(Ordering::SeqCst)),
            (7, 1),
            "kept beyond the map"
        );
        // Another thread may end it.
        std::thread::spawn(move || drop(pin)).join().expect("no panic");
    }
    assert_eq!(alive.load(Ordering::SeqCst), 1, "the clone is one more");
    drop(clone);
    assert_eq!(alive.load(Ordering::SeqCst), 0, "the last one is dropped");
}

#[test]
fn into_value_returns_an_unpinned_value() {
    let alive = Arc::new(AtomicUsize::new(0));
    let map = RangeMap::new();
    let pin = map.insert(span(0, 1), [0, 0], Counted::new(7, &alive));
    let pin = pin.into_value().expect_err("the map has it");
    drop(pin);
    let hit = map.get(span(0, 1), [0, 0]).expect("a hit");
    assert!(hit.into_value().is_err(), "the map has it");
    let pin = map.remove(Span::ALL, |_| true).pop().expect("removed");
    let value = pin.into_value().expect("the only pin");
    assert_eq!((value.0, alive.load(Ordering::SeqCst)), (7, 1));
}

#[test]
fn pin_outlives_its_thread() {
    let alive = Arc::new(AtomicUsize::new(0));
    let map = Arc::new(RangeMap::new());
    drop(map.insert(span(0, 8), [0, 0], Counted::new(7, &alive)));
    let theirs = Arc::clone(&map);
    let pin = std::thread::spawn(move || theirs.get(span(1, 1), [0, 0]))
        .join()
        .expect("no panic")
        .expect("a hit");
    // The next thread has the record, with the hazard in it.
    let theirs = Arc::clone(&map);
    std::thread::spawn(move || drop(theirs.get(span(1, 1), [0, 0])))
        .join()
        .expect("no panic");
    drop(map.remove(Span::ALL, |_| true));
    assert_eq!((pin.0, alive.load(Ordering::SeqCst)), (7, 1));
    drop(pin);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Span, Tag),
    Get(Span, Tag),
    Remove(Span, Tag),
    Drop(usize),
}

/// Addresses that meet: few pages, a few places far apart, ends of the address space.
fn spans() -> impl Strategy<Value = Span> {
    let bases = prop::sample::select(vec![
        0_u64,
        0x7f00_0000_0000,
        0x7f00_003f_f000,
        0x1001_0001_0000_0000,
        u64::MAX - (1 << 30),
    ]);
    let lens = prop_oneof![1..64_u64, 1..5_u64 << 12, 1..9_u64 << 18, 1..3_u64 << 29];
    (bases, 0..40_u64, 0..3_u64, lens).prop_map(|(base, pages, bytes, len)| {
        let start = base + pages * 1024 + bytes;
        Span::new(start, len.min(u64::MAX - start)).unwrap_or(Span::ALL)
    })
}

/// The class of the entry of a step: every fourth has none.
fn class_of(number: u64) -> Option<Class> {
    Class::from_index((number % 4).checked_sub(1)? as usize)
}

/// Returns all bytes of the 4 KiB pages of a range.
fn pages(span: Span) -> Span {
    let (start, last) = (span.start() & !0xfff, span.last() | 0xfff);
    Span::new(start, (last - start).saturating_add(1)).unwrap_or(Span::ALL)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tag = (0..2_u64, 0..2_u64).prop_map(|(a, b)| [a, b]);
    let step = prop_oneof![
        4 => (spans(), tag.clone()).prop_map(|(span, tag)| Step::Insert(span, tag)),
        6 => (spans(), tag.clone()).prop_map(|(span, tag)| Step::Get(span, tag)),
        2 => (spans(), tag).prop_map(|(span, tag)| Step::Remove(span, tag)),
        1 => any::<usize>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..120)
}

/// How many live, once as many do as should: what was removed while it was pinned is dropped by
/// whichever thread of the process looks next, and other tests have threads.
fn settled(alive: &AtomicUsize, wanted: usize) -> usize {
    let begin = std::time::Instant::now();
    while alive.load(Ordering::SeqCst) != wanted && begin.elapsed() < std::time::Duration::from_secs(20) {
        std::thread::yield_now();
    }
    alive.load(Ordering::SeqCst)
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    /// Against a list that is searched from end to end.
    #[test]
    fn the_map_answers_as_a_list_would(steps in steps()) {
        let alive = Arc::new(AtomicUsize::new(0));
        let map = RangeMap::with_classes(|value: &Counted| class_of(value.0));
        let mut model: Vec<(Span, Tag, u64)> = Vec::new();
        let mut kept: Vec<(Pin<Counted>, u64)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u64;
            match step {
                Step::Insert(span, tag) => {
                    let pin = map.insert(span, tag, Counted::new(number, &alive));
                    prop_assert_eq!((pin.span(), pin.tag(), pin.0), (span, tag, number));
                    model.push((span, tag, number));
                }
                Step::Get(span, tag) => {
                    let fits: Vec<u64> = model.iter().filter(|(at, of, _)| at.contains(span) && *of == tag).map(|(.., n)| *n).collect();
                    match map.get(span, tag) {
                        Some(pin) => {
                            prop_assert!(fits.contains(&pin.0), "{} for {} of {:?}", pin.0, span, fits);
                            let value = pin.0;
                            kept.push((pin, value));
                        }
                        None => prop_assert!(fits.is_empty(), "{} is in {:?}", span, fits),
                    }
                    let class = map.class_of(span);
                    let of_class = |(at, _, n): &(Span, Tag, u64)| at.contains(span) && class_of(*n) == class;
                    prop_assert!(class.is_none() || model.iter().any(of_class), "{:?} for {}", class, span);
                    let pages = pages(span);
                    let mut near = model.iter().filter(|(at, ..)| at.overlaps(pages));
                    if let (Some((at, _, n)), None) = (near.next(), near.next()) {
                        let known = class_of(*n).filter(|_| at.contains(pages));
                        prop_assert!(known.is_none() || class == known, "{:?} of {} alone has {}", known, at, span);
                    }
                }
                Step::Remove(span, tag) => {
                    let mut removed: Vec<u64> = map.remove(span, |pin| pin.tag() == tag).iter().map(|pin| pin.0).collect();
                    removed.sort_unstable();
                    let (out, stay): (Vec<_>, Vec<_>) = model.into_iter().partition(|(at, of, _)| at.overlaps(span) && *of == tag);
                    model = stay;
                    prop_assert_eq!(removed, out.into_iter().map(|(.., n)| n).collect::<Vec<_>>());
                }
                Step::Drop(which) if !kept.is_empty() => drop(kept.swap_remove(which % kept.len())),
                Step::Drop(_) => {}
            }
            for (pin, value) in &kept {
                prop_assert_eq!(pin.0, *value, "a pin keeps its value");
            }
            let mut lives: Vec<u64> = model.iter().map(|(.., n)| *n).chain(kept.iter().map(|(_, n)| *n)).collect();
            lives.sort_unstable();
            lives.dedup();
            prop_assert_eq!(settled(&alive, lives.len()), lives.len(), "what is neither in the map nor kept is dropped, and nothing else");
            prop_assert_eq!(map.len(), model.len());
        }
        let all: Vec<u64> = map.overlapping(Span::ALL).iter().map(|pin| pin.0).collect();
        prop_assert_eq!(all.len(), model.len(), "each once: {:?}", all);
        drop(map.remove(Span::ALL, |_| true));
        prop_assert_eq!(map.directories(), 0, "no directory without an entry");
        drop(kept);
        prop_assert_eq!(settled(&alive, 0), 0);
    }
}

/// A value that records whether it was dropped, for a reader that should not be able to see it.
struct Canary(AtomicU64);

const ALIVE: u64 = 0x5afe_5afe_5afe_5afe;

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.store(0xdead, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_freed_under_a_reader() {
    const PAGES: u64 = 24;
    let map = Arc::new(RangeMap::<Canary>::new());
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2_u64)
        .map(|reader| {
            let (map, stop) = (Arc::clone(&map), Arc::clone(&stop));
            std::thread::spawn(move || {
                let (mut hits, mut at, mut kept) = (0_u64, reader, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let page = (at >> 40) % PAGES;
                    if let Some(pin) = map.get(span(page * 4096 + 5, 7), [0, 0]) {
                        assert_eq!(pin.0.load(Ordering::Relaxed), ALIVE, "the value of a pin lives");
                        assert!(pin.span().contains(span(page * 4096 + 5, 7)));
                        hits += 1;
                        if hits % 8 == 0 {
                            kept.push(pin);
                        }
                    }
                    if kept.len() > 20 {
                        for pin in kept.drain(..) {
                            assert_eq!(pin.0.load(Ordering::Relaxed), ALIVE, "it was kept");
                        }
                    }
                }
                hits
            })
        })
        .collect();
    let rounds = u64::from(gaudi_random::cases(4000));
    let mut at = gaudi_random::seed();
    for _ in 0..rounds {
        at = at
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (page, len) = ((at >> 40) % PAGES, 1 + (at >> 33) % 3);
        let place = span(page * 4096, len * 4096);
        match (at >> 20) % 3 {
            0 => drop(map.remove(place, |_| true)),
            // Far away, so that the root grows and shrinks above the readers.
            1 => {
                let far = span(1 << (30 + page), 4096);
                drop(map.insert(far, [0, 0], Canary(AtomicU64::new(ALIVE))));
                drop(map.remove(far, |_| true));
            }
            _ => drop(map.insert(place, [0, 0], Canary(AtomicU64::new(ALIVE)))),
        }
    }
    // A reader that never had its turn proves nothing.
    std::thread::sleep(std::time::Duration::from_millis(20));
    stop.store(true, Ordering::Relaxed);
    let hits: Vec<u64> = readers
        .into_iter()
        .map(|reader| reader.join().expect("no panic"))
        .collect();
    println!("hits of the readers: {hits:?}");
}
