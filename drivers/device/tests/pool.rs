//! The pool of device memory: pieces never overlap, waste stays bounded, nothing is left.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};

use gaudi_device::{Buffer, Device, DeviceSpec, Options};
use gaudi_dmabuf::Window;
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

/// The driver chooses an address below the offset if it ignores the hint.
#[test]
fn page_between_others_stays_above_offset() {
    const OFFSET: u64 = 1 << 40;
    let spec: DeviceSpec = "mock:gaudi2?name=pool-offset".parse().expect("a spec");
    let mut options = Options::default();
    options.memory_offset = OFFSET;
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    let device = Device::with_options(io, options).expect("a device");
    let alloc = |pages: u64| device.alloc_exclusive(pages * PAGE).expect("pages");
    let first = device.info().expect("readable").dram_base.0 + OFFSET;
    let mut live: Vec<_> = (1..=3).map(alloc).collect();
    for freed in [0, 1, 2, 1, 0] {
        live.remove(freed);
        for pages in 1..=3 {
            let again = alloc(pages);
            assert!(
                again.address().0 >= first,
                "{pages} pages after pages {freed} were freed are at {}",
                again.address()
            );
        }
        live.insert(freed, alloc(2));
    }
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
        // The two figures are of one time, unless the other thread changed one meanwhile.
        if live.load(Relaxed) == now {
            let mut peaks = peaks.lock().expect("no panic");
            peaks[0].see(held, held, now);
            peaks[1].see(now, held, now);
        }
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
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (device, live, peaks, start) = (&device, &live, &peaks, &start);
            scope.spawn(move || {
                start.wait();
                churn(device, seed ^ thread, live, peaks);
            });
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

/// One call of a thread. Each is one critical section of the pool, except that a window has a lock
/// of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Alloc,
    Window,
    Close,
    DropWindow,
    Trim,
}

/// What a thread does: reuse while a window lives, windows dropped before and after the close, and
/// pages that become empty.
const SCRIPTS: [[Step; 5]; 5] = {
    use Step::{Alloc, Close, DropWindow, Trim, Window};
    [
        [Alloc, Window, Close, Alloc, DropWindow],
        [Alloc, Window, DropWindow, Close, Alloc],
        [Alloc, Window, Close, DropWindow, Trim],
        [Alloc, Close, Trim, Alloc, Close],
        [Trim, Alloc, Window, Alloc, Close],
    ]
};
/// Bytes of the buffers of the two threads: on one page, and on two.
const LENGTHS: [[u64; 2]; 2] = [[4096, 8192], [4096, 500 << 20]];

/// What one thread has.
#[derive(Debug, Default)]
struct Side {
    buffers: Vec<Buffer>,
    /// With the number of its buffer and the addresses that it reaches.
    window: Option<(Window, u64, RangeInclusive<u64>)>,
}

fn addresses(buffer: &Buffer) -> RangeInclusive<u64> {
    buffer.address().0..=buffer.address().0 + buffer.len() - 1
}

impl Side {
    fn step(&mut self, device: &Device, len: u64, step: Step) {
        match step {
            Step::Alloc => {
                let buffer = device.alloc_exportable(len, 1).expect("allocated");
                self.buffers.push(buffer);
            }
            Step::Window => {
                let buffer = self.buffers.last().expect("a buffer");
                let window = buffer.window(..).expect("a window");
                self.window = Some((window, buffer.generation(), addresses(buffer)));
            }
            Step::Close => {
                let buffer = self.buffers.pop().expect("a buffer");
                buffer.close().expect("freed");
            }
            Step::DropWindow => self.window = None,
            Step::Trim => drop(device.trim().expect("the pool's process")),
        }
    }
}

/// Fails if two live buffers overlap, or a window reaches another buffer than its own.
fn check(device: &Device, sides: &[Side; 2], case: &str) {
    let buffers = || sides.iter().flat_map(|side| &side.buffers);
    for buffer in buffers() {
        let (own, number) = (addresses(buffer), buffer.generation());
        let meets = |other: &RangeInclusive<u64>| other.start() <= own.end() && own.start() <= other.end();
        let mut others = buffers()
            .filter(|other| other.generation() != number)
            .map(addresses);
        let other = others.find(meets);
        assert_eq!(other, None, "{case}: {own:x?} meets another buffer");
        let mut windows = sides.iter().filter_map(|side| side.window.as_ref());
        let window = windows.find(|(_, of, reached)| *of != number && meets(reached));
        assert!(window.is_none(), "{case}: {own:x?} is reached by {window:x?}");
    }
    let pool = device.pool_stats();
    let live: u64 = buffers().map(Buffer::len).sum();
    assert_eq!(
        pool.held_bytes,
        live + pool.free_bytes + pool.quarantined_bytes,
        "{case}: {live} live bytes, {pool:?}"
    );
}

/// Every order of the calls of two threads. The pool has one lock, so these are all orders of its
/// critical sections; the window's own lock is not interleaved within a call.
#[test]
fn every_order_keeps_windows_apart() {
    let spec: DeviceSpec = "mock:gaudi2?name=orders".parse().expect("a spec");
    let device = Device::open(&spec).expect("the mock opens");
    let orders = (0_u32..1 << 10).filter(|order| order.count_ones() == 5);
    let mut count = 0;
    for (order, lens) in orders.flat_map(|order| LENGTHS.map(|lens| (order, lens))) {
        for (first, second) in SCRIPTS
            .iter()
            .flat_map(|first| SCRIPTS.map(|second| (*first, second)))
        {
            let mut sides = [Side::default(), Side::default()];
            let mut scripts = [first.into_iter(), second.into_iter()];
            let case = format!("{first:?} {second:?} {lens:?} {order:#b}");
            for turn in 0..10 {
                let side = (order >> turn & 1) as usize;
                let step = scripts[side].next().expect("five each");
                sides[side].step(&device, lens[side], step);
                check(&device, &sides, &case);
            }
            drop(sides);
            device.trim().expect("the pool's process");
            let pool = device.pool_stats();
            assert_eq!(
                (pool.allocations, pool.quarantined_bytes),
                (0, 0),
                "{case}: {pool:?}"
            );
            count += 1;
        }
    }
    assert_eq!(count, 252 * 2 * 25, "orders of two scripts of five");
    let ledger = gaudi_hal::mock_ledger(&spec).expect("the mock lives");
    assert!(ledger.allocations == 0 && !ledger.exported, "{ledger:?}");
}
