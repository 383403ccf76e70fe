//! The pool of device memory: pieces never overlap, waste stays bounded, nothing is left.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gaudi_device::{Buffer, Device, DeviceSpec};
use gaudi_random::seed;
use gaudi_sys::random::SplitMix64;

/// Operations of each of the two threads. `GAUDI_POOL_STEPS` sets another number.
const STEPS: u64 = 20_000;
/// Bytes that each thread holds at most: four pages together.
const LIVE: u64 = 2 * (768 << 20);

fn steps() -> u64 {
    let text = std::env::var("GAUDI_POOL_STEPS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(STEPS)
}

/// A length between 256 bytes and 64 MiB, every power of two as often.
fn len(random: &mut SplitMix64) -> u64 {
    let base = 256 << random.below(18);
    base + random.below(base)
}

#[test]
fn random_buffers_do_not_overlap() {
    let spec: DeviceSpec = "mock:gaudi2?name=pool".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let seed = seed();
    println!("seed={seed}");
    // The live ranges of both threads: first address, last address.
    let ranges = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (device, ranges) = (&device, &ranges);
            scope.spawn(move || {
                let mut random = SplitMix64::new(seed ^ thread);
                let (mut live, mut held): (Vec<Buffer>, u64) = (Vec::new(), 0);
                for _ in 0..steps() {
                    let len = len(&mut random);
                    if held + len > LIVE || (!live.is_empty() && random.below(3) == 0) {
                        let at = random.below(live.len() as u64) as usize;
                        let buffer = live.swap_remove(at);
                        held -= buffer.len();
                        ranges.lock().expect("no panic").remove(&buffer.address().0);
                        buffer.close().expect("freed");
                        continue;
                    }
                    let buffer = match random.below(2) {
                        0 => device.alloc(len),
                        _ => device.alloc_exportable(len, 1),
                    };
                    let buffer = buffer.expect("allocated");
                    let (first, last) = (buffer.address().0, buffer.address().0 + len - 1);
                    assert_eq!(first % 128, 0, "a buffer starts on a cache line");
                    let mut ranges = ranges.lock().expect("no panic");
                    if let Some((&before, &end)) = ranges.range(..=last).next_back() {
                        assert!(end < first, "{first:#x}..={last:#x} meets {before:#x}..={end:#x}");
                    }
                    ranges.insert(first, last);
                    drop(ranges);
                    held += len;
                    live.push(buffer);
                }
                for buffer in live {
                    // Before the close: the other thread may get the addresses at once.
                    ranges.lock().expect("no panic").remove(&buffer.address().0);
                    buffer.close().expect("freed");
                }
            });
        }
    });
    let pool = device.pool_stats();
    assert_eq!(
        (pool.allocations, pool.quarantined_bytes),
        (0, 0),
        "all pages are freed: {pool:?}"
    );
    assert_eq!(
        gaudi_hal::mock_ledger(&spec).map(|ledger| ledger.allocations),
        Some(0)
    );
}

#[test]
fn waste_at_peak_is_a_quarter() {
    let device = Device::open(&"mock:gaudi2?name=waste".parse().expect("a spec")).expect("the mock opens");
    let mut random = SplitMix64::new(seed());
    let (mut live, mut bytes): (Vec<Buffer>, u64) = (Vec::new(), 0);
    let (mut peak, mut wasted) = (0, 0.0);
    for _ in 0..steps() {
        let len = len(&mut random);
        if bytes + len > 6 * (768 << 20) || (!live.is_empty() && random.below(3) == 0) {
            let at = random.below(live.len() as u64) as usize;
            bytes -= live.swap_remove(at).len().next_multiple_of(256);
            continue;
        }
        live.push(device.alloc(len).expect("allocated"));
        bytes += len.next_multiple_of(256);
        let held = device.pool_stats().held_bytes;
        if held >= peak && bytes >= 4 * (768 << 20) {
            peak = held;
            wasted = (held - bytes) as f64 / held as f64;
        }
    }
    println!("held {peak} bytes at peak, wasted {:.1} %", wasted * 100.0);
    assert!(peak > 0 && wasted <= 0.25, "{wasted}");
}
