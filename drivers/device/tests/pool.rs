//! The pool of device memory: pieces never overlap, waste stays bounded, nothing is left.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gaudi_device::{Buffer, Device, DeviceSpec};
use gaudi_random::seed;
use gaudi_sys::random::SplitMix64;

/// Operations of each of the two threads. `GAUDI_POOL_STEPS` sets another number.
const STEPS: u64 = 20_000;
/// Bytes of the chip's page.
const PAGE: u64 = 768 << 20;
/// Bytes that each thread holds at most: four pages together.
const LIVE: u64 = 2 * PAGE;

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

/// The largest allocation of the driver's pages so far, and what of it no buffer had then.
#[derive(Debug, Default)]
struct Peak {
    bytes: u64,
    wasted: f64,
}

impl Peak {
    /// Records the first time that the figure is as large, and that a chip's four pages are live.
    fn see(&mut self, bytes: u64, held: u64, live: u64) {
        if bytes > self.bytes && live >= 4 * PAGE {
            self.bytes = bytes;
            self.wasted = held.saturating_sub(live) as f64 / held as f64;
        }
    }
}

/// Allocates, exports and frees at random in one of two threads. `live` counts both threads' bytes.
fn churn(device: &Device, seed: u64, live: &AtomicU64, peaks: &Mutex<[Peak; 2]>) {
    let mut random = SplitMix64::new(seed);
    let base = device.info().expect("asked").dram_base.0;
    let (mut buffers, mut own): (Vec<Buffer>, u64) = (Vec::new(), 0);
    for _ in 0..steps() {
        let len = len(&mut random);
        if own + len > 3 * PAGE || (!buffers.is_empty() && random.below(3) == 0) {
            let at = random.below(buffers.len() as u64) as usize;
            let buffer = buffers.swap_remove(at);
            own -= buffer.len();
            // First: bytes of a buffer that is being freed count as wasted, never as live.
            live.fetch_sub(buffer.len().next_multiple_of(256), Relaxed);
            buffer.close().expect("freed");
            continue;
        }
        let buffer = device.alloc_exportable(len, 1).expect("allocated");
        own += len;
        let now = len.next_multiple_of(256) + live.fetch_add(len.next_multiple_of(256), Relaxed);
        let held = device.pool_stats().held_bytes;
        let mut peaks = peaks.lock().expect("no panic");
        peaks[0].see(held, held, now);
        peaks[1].see(now, held, now);
        drop(peaks);
        let window = buffer.window(..).expect("a window");
        assert_eq!(window.len(), len, "a window has the bytes of its buffer");
        // The pages' first address is a multiple of the page, and they are exported as one.
        let first = buffer.address().0 - window.offset();
        assert_eq!((first - base) % PAGE, 0, "{window:?} of {buffer:?}");
        drop(window);
        buffers.push(buffer);
    }
    for buffer in buffers {
        live.fetch_sub(buffer.len().next_multiple_of(256), Relaxed);
        buffer.close().expect("freed");
    }
}

#[test]
fn threads_waste_a_quarter_at_most() {
    let spec: DeviceSpec = "mock:gaudi2?name=waste".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let seed = seed();
    println!("seed={seed}");
    let (live, peaks) = (AtomicU64::new(0), Mutex::default());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (device, live, peaks) = (&device, &live, &peaks);
            scope.spawn(move || churn(device, seed ^ thread, live, peaks));
        }
    });
    let [held, most] = peaks.into_inner().expect("no panic");
    println!(
        "steps {} of each thread; held at most {held:?}; live at most {most:?}",
        steps()
    );
    for peak in [held, most] {
        assert!(peak.bytes > 0 && peak.wasted <= 0.25, "{peak:?}");
    }
    let pool = device.pool_stats();
    assert_eq!(
        (pool.allocations, pool.quarantined_bytes),
        (0, 0),
        "all pages are freed: {pool:?}"
    );
    let ledger = gaudi_hal::mock_ledger(&spec).expect("the mock lives");
    assert!(ledger.allocations == 0 && !ledger.exported, "{ledger:?}");
}
