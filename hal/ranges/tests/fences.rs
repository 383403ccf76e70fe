//! Maps of a process that prefers cheap removals. It has a process of its own.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_ranges::{RangeMap, Span, prefer_cheap_removals};

#[test]
fn removals_without_membarrier_keep_pins_valid() {
    assert!(prefer_cheap_removals(), "no map was used before");
    assert!(prefer_cheap_removals(), "it stays so");
    let (map, stop) = (RangeMap::<u64>::new(), AtomicBool::new(false));
    let span = |at: u64| Span::new(at * 4096, 4096).expect("a range");
    std::thread::scope(|scope| {
        let reads = || {
            let mut found = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for at in 0..64 {
                    found += u64::from(map.get(span(at), [0; 2]).is_some_and(|pin| *pin == at));
                }
            }
            found
        };
        let readers = [scope.spawn(reads), scope.spawn(reads)];
        for _ in 0..200 {
            for at in 0..64 {
                map.insert(span(at), [0; 2], at);
            }
            for at in 0..64 {
                let pins = map.remove(span(at), |_| true);
                assert!(map.get(span(at), [0; 2]).is_none(), "{at} is removed");
                assert_eq!(pins.iter().map(|pin| **pin).collect::<Vec<_>>(), [at]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("a reader");
        }
    });
}
