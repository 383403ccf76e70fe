//! Host memory that is mapped once and copied often: hits, limits, and never a stale mapping.

#![expect(unsafe_code, reason = "foreign memory is registered by pointer")]

use std::ptr::NonNull;
use std::time::Duration;

use gaudi_device::{Deadline, Device, DeviceSpec, ErrorKind, Fallback, HostBuffer, Location, Options, Pages};
use gaudi_hal::{Ledger, SharedIo, mock_ledger};
use gaudi_spec::gaudi2::queue::PDMA_0_1;
use gaudi_sys::RawMapping;
use proptest::prelude::*;

const PAGE: usize = 4096;

fn open(spec: &str, change: impl FnOnce(&mut Options)) -> (Device, DeviceSpec, SharedIo) {
    let spec: DeviceSpec = spec.parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let mut options = Options::default();
    change(&mut options);
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    (
        Device::with_options(io, options).expect("a device"),
        spec,
        control,
    )
}

fn mappings(spec: &DeviceSpec) -> usize {
    let ledger: Ledger = mock_ledger(spec).expect("the mock is there");
    ledger.mappings
}

/// Memory of this test alone.
struct Arena(RawMapping);

impl Arena {
    fn new(pages: usize) -> Self {
        Self(RawMapping::anonymous(pages * PAGE, true).expect("memory"))
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        self.0.at(offset, 1).expect("inside")
    }

    fn cached(&self, device: &Device, offset: usize, len: usize) -> Location {
        // SAFETY: the arena outlives the device's use of it in every test, and is only copied
        // through.
        unsafe { device.register(self.at(offset), len) }.expect("registered")
    }
}

fn run(copy: gaudi_device::Result<gaudi_device::Completion>) {
    copy.expect("submitted").wait(Deadline::NEVER).expect("done");
}

#[test]
fn cached_memory_is_pinned_once() {
    let (device, spec, _control) = open("mock:gaudi2?name=again", |_| {});
    let arena = Arena::new(8);
    arena.0.write(PAGE + 100, b"seen by the card").expect("written");
    let buffer = device.alloc(100).expect("a buffer");
    let before = mappings(&spec);
    for _ in 0..10 {
        run(device.copy(&buffer, arena.cached(&device, PAGE + 50, 100)));
    }
    let stats = device.cache_stats();
    assert_eq!(
        (stats.misses, stats.hits, stats.entries, stats.bytes),
        (1, 9, 1, PAGE as u64)
    );
    assert_eq!(mappings(&spec), before + 1, "one mapping served ten copies");
    let mut seen = [0; 16];
    device.read(&buffer, 50, &mut seen).expect("read");
    assert_eq!(&seen, b"seen by the card", "an interior address is the right one");
    // A range that reaches further takes the place of what it overlaps.
    let wide = arena.cached(&device, 0, 3 * PAGE);
    drop(wide);
    let stats = device.cache_stats();
    assert_eq!(
        (stats.misses, stats.entries, stats.bytes),
        (2, 1, 3 * PAGE as u64)
    );
    // The read has left staging memory.
    assert_eq!(mappings(&spec), before + 2, "the narrow mapping is removed");
    device.deregister(arena.at(0), 8 * PAGE).expect("no other holder");
    assert_eq!(device.cache_stats().entries, 0);
    drop(buffer);
    device.close().expect("no other holder");
}

#[test]
fn deregister_fails_while_a_location_holds_memory() {
    let (device, spec, _control) = open("mock:gaudi2?name=held", |_| {});
    let arena = Arena::new(4);
    let before = mappings(&spec);
    let location = arena.cached(&device, 10, 100);
    let error = device
        .deregister(arena.at(0), PAGE)
        .expect_err("a location holds it");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert_eq!(mappings(&spec), before + 1, "the device still reaches it");
    let error = device.deregister(arena.at(0), PAGE).expect_err("it still does");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let other = arena.cached(&device, 10, 100);
    assert_eq!(
        device.cache_stats().hits,
        0,
        "deregistered memory is not found again"
    );
    drop((location, other));
    device.deregister(arena.at(0), PAGE).expect("no other holder");
    assert_eq!(mappings(&spec), before, "nothing is mapped any more");
    device
        .deregister(arena.at(0), PAGE)
        .expect("forgetting nothing is fine");
}

#[test]
fn eviction_is_lru_and_spares_held_mappings() {
    for (entries, bytes) in [(3, u64::MAX), (usize::MAX, 3 * PAGE as u64)] {
        let (device, ..) = open("mock:gaudi2?name=room", |options| {
            (options.cached_mappings, options.cached_bytes) = (entries, bytes);
        });
        let arena = Arena::new(20);
        let page = |n: usize| arena.cached(&device, 2 * n * PAGE, 8);
        let held = page(0);
        for n in 1..3 {
            page(n);
        }
        page(1);
        page(3);
        let stats = device.cache_stats();
        assert_eq!(
            (stats.evictions, stats.entries),
            (1, 3),
            "one made room: {stats:?}"
        );
        let misses = stats.misses;
        page(1);
        page(3);
        page(0);
        assert_eq!(
            device.cache_stats().misses,
            misses,
            "1 was used after 2, and 0 is held"
        );
        page(2);
        assert_eq!(device.cache_stats().misses, misses + 1, "2 was evicted");
        drop(held);
    }
}

#[test]
fn register_refuses_an_empty_range() {
    for entries in [0, 6] {
        let (device, spec, _control) = open("mock:gaudi2?name=nobytes", |options| {
            options.cached_mappings = entries;
        });
        let arena = Arena::new(2);
        let before = mappings(&spec);
        // A cached mapping around the range does not change the result.
        let around = arena.cached(&device, PAGE, 100);
        for offset in [0, 100, PAGE, PAGE + 10] {
            // SAFETY: no bytes are promised.
            let answer = unsafe { device.register(arena.at(offset), 0) };
            let error = answer.expect_err("the range is empty");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "at {offset}: {error}");
        }
        assert_eq!(mappings(&spec), before + 1, "the page of no bytes was not pinned");
        drop(around);
    }
}

#[test]
fn disabled_cache_keeps_no_mapping() {
    let (device, spec, _control) = open("mock:gaudi2?name=off", |options| options.cached_mappings = 0);
    let (arena, buffer) = (Arena::new(1), HostBuffer::new(100).expect("memory"));
    let before = mappings(&spec);
    let (a, b) = (arena.cached(&device, 0, 10), device.map(&buffer).expect("mapped"));
    assert_eq!(mappings(&spec), before + 2);
    drop((a, b));
    assert_eq!(mappings(&spec), before, "unmapped with its last holder");
}

#[test]
fn deregister_fails_while_held_with_cache_off() {
    let (device, spec, _control) = open("mock:gaudi2?name=offheld", |options| options.cached_bytes = 0);
    let arena = Arena::new(4);
    let before = mappings(&spec);
    let (one, two) = (arena.cached(&device, 10, 100), arena.cached(&device, PAGE - 1, 2));
    drop(one);
    let error = device
        .deregister(arena.at(0), 8)
        .expect_err("a location holds it");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    assert_eq!(mappings(&spec), before + 1, "the device still reaches it");
    device
        .deregister(arena.at(2 * PAGE), PAGE)
        .expect("nothing is there");
    drop(two);
    device.deregister(arena.at(0), 8).expect("no other holder");
    assert_eq!(mappings(&spec), before);
}

#[test]
fn dropped_host_buffer_leaves_every_cache() {
    let (device, spec, _control) = open("mock:gaudi2?name=goes&order=stepped", |_| {});
    let (other, other_spec, _other_control) = open("mock:gaudi2?name=goes&index=1", |_| {});
    let target = device.alloc(5000).expect("a buffer");
    let buffer = HostBuffer::new(5000).expect("memory");
    buffer.write(4990, b"last words").expect("written");
    assert_eq!(
        buffer.write(4995, b"too far").expect_err("outside").kind(),
        ErrorKind::BadAddress
    );
    run(device.copy(&target, &device.map(&buffer).expect("mapped")));
    let before = (mappings(&spec), mappings(&other_spec));
    drop(other.map(&buffer).expect("mapped there too"));
    let copy = device
        .copy(&target, &device.map(&buffer).expect("mapped"))
        .expect("submitted");
    assert_eq!(
        device.cache_stats().hits,
        1,
        "the second copy found the mapping of the first"
    );
    drop(buffer);
    assert_eq!(
        mappings(&other_spec),
        before.1,
        "an idle mapping is removed with the buffer"
    );
    assert_eq!(
        mappings(&spec),
        before.0,
        "one in use stays for the engine, with its pages"
    );
    copy.wait(Deadline::NEVER).expect("done");
    assert_eq!(mappings(&spec), before.0 - 1, "and is unmapped with the copy");
    let mut seen = [0; 10];
    device.read(&target, 4990, &mut seen).expect("read");
    assert_eq!(&seen, b"last words");
    drop((target, copy));
    device.close().expect("no other holder");
}

/// How a mapping of the arena's first page loses its last holder.
type Loss = fn(&Device, &Arena);

/// The driver may refuse to unmap in a drop. `deregister` retries, and fails while the driver
/// refuses.
#[test]
fn deregister_fails_while_driver_refuses_unmap() {
    let losses: [(&str, Loss); 3] = [
        ("evicted", |device, arena| {
            arena.cached(device, 0, 10);
            arena.cached(device, 2 * PAGE, 10);
            assert_eq!(device.cache_stats().evictions, 1);
        }),
        ("dropped", |device, arena| {
            let location = arena.cached(device, 0, 10);
            let error = device
                .deregister(arena.at(0), PAGE)
                .expect_err("a location holds it");
            assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
            drop(location);
        }),
        ("widened", |device, arena| {
            arena.cached(device, 0, 10);
            arena.cached(device, 0, 2 * PAGE);
        }),
    ];
    for (name, lose) in losses {
        let (device, spec, _control) = open(
            &format!("mock:gaudi2?name=refused-{name}+fault=mem_unmap:when=1..3:error=EINVAL"),
            |options| options.cached_mappings = 1,
        );
        let arena = Arena::new(4);
        let before = mappings(&spec);
        lose(&device, &arena);
        let mut refusals = 0;
        while let Err(error) = device.deregister(arena.at(0), 2 * PAGE) {
            refusals += 1;
            assert_eq!(
                error.kind(),
                ErrorKind::InvalidInput,
                "{name}: the driver's error: {error}"
            );
            assert!(refusals < 4, "{name}: each call retries");
        }
        assert!(refusals > 0, "{name}: deregistered while it was mapped");
        device
            .deregister(arena.at(2 * PAGE), PAGE)
            .expect("the other mapping is unmapped");
        assert_eq!(mappings(&spec), before, "{name}: Ok means that nothing is mapped");
        device.close().expect("no other holder");
    }
}

/// The driver may unmap and report an error all the same. Another mapping then gets the address,
/// and must not be unmapped.
#[test]
fn retried_unmap_spares_reused_address() {
    let (device, spec, _control) = open("mock:gaudi2?name=givenagain", |_| {});
    let arena = Arena::new(4);
    let buffer = device.alloc(10).expect("a buffer");
    let before = mappings(&spec);
    let location = arena.cached(&device, 0, 10);
    device
        .deregister(arena.at(0), 10)
        .expect_err("a location holds it");
    let address = location.address();
    device.io().mem_unmap(address).expect("unmapped, with an error");
    drop(location);
    let next = arena.cached(&device, 2 * PAGE, 10);
    assert_eq!(next.address(), address, "the driver reuses the address");
    device
        .deregister(arena.at(0), PAGE)
        .expect("the device does not reach it");
    assert_eq!(mappings(&spec), before + 1, "the next one is still mapped");
    run(device.copy(&buffer, next));
}

/// The last holder is dropped, and the driver unmaps.
#[test]
fn deregister_waits_for_running_unmap() {
    let (device, spec, _control) = open(
        "mock:gaudi2?name=beingun+fault=mem_unmap:when=1:delay=400ms",
        |_| {},
    );
    let arena = Arena::new(1);
    let before = mappings(&spec);
    let location = arena.cached(&device, 0, 10);
    device
        .deregister(arena.at(0), 10)
        .expect_err("a location holds it");
    std::thread::scope(|scope| {
        scope.spawn(|| drop(location));
        std::thread::sleep(Duration::from_millis(100));
        while let Err(error) = device.deregister(arena.at(0), 10) {
            assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(mappings(&spec), before, "Ok means that nothing is mapped");
    });
}

#[test]
fn deregister_fails_during_reset() {
    let (device, ..) = open("mock:gaudi2?name=inreset+fault=mem_unmap:when=1:reset", |_| {});
    let arena = Arena::new(1);
    let location = arena.cached(&device, 0, 10);
    device
        .deregister(arena.at(0), PAGE)
        .expect_err("a location holds it");
    drop(location);
    for _ in 0..2 {
        let error = device
            .deregister(arena.at(0), PAGE)
            .expect_err("nothing can be unmapped");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    device.close().expect("closing is what ends it");
}

/// The queue is dropped, and its copy may still run.
#[test]
fn deregister_fails_while_dropped_queues_copy_runs() {
    let (device, spec, _control) = open("mock:gaudi2?name=givenup", |options| {
        options.timeout = Duration::from_millis(20);
    });
    let (arena, buffer) = (Arena::new(2), device.alloc(100).expect("a buffer"));
    let sob = device.sob().expect("a sync object");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let before = mappings(&spec);
    let location = arena.cached(&device, 0, 100);
    let _ = queue
        .set(&sob, 0)
        .and_then(|queue| queue.wait(&sob, 1))
        .and_then(|queue| queue.copy(&location, &buffer))
        .and_then(|queue| queue.submit())
        .expect("submitted");
    device
        .deregister(arena.at(0), PAGE)
        .expect_err("the copy is in flight");
    drop((queue, location));
    for _ in 0..2 {
        let error = device
            .deregister(arena.at(0), PAGE)
            .expect_err("an engine may still write there");
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(
            error.to_string().contains("may still write"),
            "it reports the cause: {error}"
        );
    }
    assert_eq!(mappings(&spec), before + 1, "it stays mapped");
    drop((buffer, sob));
    device.close().expect("closing is what ends it");
}

/// A close that does not happen has emptied the cache all the same.
#[test]
fn deregister_fails_after_failed_close() {
    let (device, spec, _control) = open("mock:gaudi2?name=vain", |_| {});
    let arena = Arena::new(1);
    let before = mappings(&spec);
    let location = arena.cached(&device, 0, 10);
    let (device, _) = device.close().expect_err("a location holds it").into_parts();
    let error = device.deregister(arena.at(0), PAGE).expect_err("it still does");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    drop(location);
    device.deregister(arena.at(0), PAGE).expect("no other holder");
    assert_eq!(mappings(&spec), before);
    device.close().expect("no other holder");
}

#[test]
fn host_buffer_reports_its_pages() {
    let (device, ..) = open("mock:gaudi2?name=pages", |_| {});
    for wanted in [Pages::Small, Pages::Transparent, Pages::Huge2MiB, Pages::Huge1GiB] {
        let buffer = HostBuffer::with_pages(3 << 20, wanted, Fallback::Smaller).expect("some pages");
        let got = device.map(&buffer).expect("mapped");
        assert_eq!(got.pages(), Some(buffer.pages()));
        let pages = got.pages().expect("its own memory");
        assert!(pages <= wanted, "{wanted} requested, {pages} allocated");
        got.write((3 << 20) - 4, b"last").expect("all of it can be used");
        let strict = HostBuffer::with_pages(3 << 20, wanted, Fallback::Refuse);
        match strict {
            Ok(buffer) => assert_eq!(buffer.pages(), wanted, "refusing means no other pages"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
        }
    }
    assert_eq!(
        HostBuffer::new(0).expect_err("nothing").kind(),
        ErrorKind::InvalidInput
    );
}

#[derive(Debug, Clone)]
enum Step {
    /// Copies from the arena, and holds the location or not.
    Copy {
        at: usize,
        len: usize,
        hold: bool,
    },
    Forget {
        at: usize,
        len: usize,
    },
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..16 * PAGE - 1, prop_oneof![1..100_usize, 1..4 * PAGE]);
    prop_oneof![
        4 => (range.clone(), any::<bool>()).prop_map(|((at, len), hold)| Step::Copy { at, len: len.min(16 * PAGE - at), hold }),
        2 => range.prop_map(|(at, len)| Step::Forget { at, len: len.min(16 * PAGE - at) }),
        2 => any::<usize>().prop_map(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(gaudi_random::config(64))]

    /// After any sequence of calls, the bytes are right, memory deregistered with `Ok` is not
    /// mapped, and the end is clean.
    #[test]
    fn any_use_of_the_cache_is_right(entries in 0_usize..6, steps in prop::collection::vec(step(), 1..40)) {
        let (device, spec, _control) = open("mock:gaudi2?name=anycache", |options| options.cached_mappings = entries);
        let arena = Arena::new(16);
        let bytes: Vec<u8> = (0..16 * PAGE).map(|at| (at / 5) as u8 ^ (at >> 8) as u8).collect();
        arena.0.write(0, &bytes).expect("written");
        let buffer = device.alloc(4 * PAGE as u64).expect("a buffer");
        run(device.fill(&buffer, 0));
        let mut seen = vec![0; 4 * PAGE];
        device.read(&buffer, 0, &mut seen).expect("read");
        run(device.copy(&buffer, arena.cached(&device, 0, 4 * PAGE)));
        device.deregister(arena.at(0), PAGE).expect("no other holder");
        let base = mappings(&spec);
        let mut held: Vec<(usize, usize, Location)> = Vec::new();
        for step in steps {
            let (misses, others) = (device.cache_stats().misses, held.len());
            match step {
                Step::Copy { at, len, hold } => {
                    let location = arena.cached(&device, at, len);
                    run(device.copy(buffer.at(..len as u64).expect("inside"), &location));
                    device.read(&buffer, 0, &mut seen[..len]).expect("read");
                    prop_assert!(seen[..len] == bytes[at..at + len], "{} bytes at {}", len, at);
                    if hold {
                        held.push((at, len, location));
                    }
                }
                Step::Forget { at, len } => {
                    let pages = |at: usize, len: usize| (at / PAGE, (at + len).div_ceil(PAGE));
                    let (first, end) = pages(at, len);
                    let in_use = held.iter().any(|&(at, len, _)| pages(at, len).0 < end && first < pages(at, len).1);
                    match device.deregister(arena.at(at), len) {
                        Ok(()) => prop_assert!(!in_use, "held memory of {}..{} is reported as unmapped", first, end),
                        // A held mapping may be larger than what was asked for.
                        Err(error) => prop_assert!(!held.is_empty() && error.kind() == ErrorKind::InUse, "{}", error),
                    }
                }
                Step::Drop(which) => {
                    if !held.is_empty() {
                        held.swap_remove(which % held.len());
                    }
                }
            }
            let stats = device.cache_stats();
            prop_assert!(stats.bytes <= 16 * PAGE as u64, "ranges are disjoint: {:?}", stats);
            // `register` enforces the limits, without what is held then; released mappings stay
            // until the next call.
            prop_assert!(
                stats.misses == misses || stats.entries <= entries + others + 1,
                "idle ones keep to the limit: {:?}", stats
            );
        }
        held.clear();
        device.deregister(arena.at(0), 16 * PAGE).expect("no other holder");
        prop_assert_eq!(mappings(&spec), base, "nothing of the arena is mapped");
        drop(buffer);
        device.close().map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}

#[test]
fn close_unmaps_cached_mappings() {
    let (device, spec, _control) = open("mock:gaudi2?name=close-cached", |_| {});
    let before = mappings(&spec);
    let buffer = HostBuffer::new(4096).expect("host memory");
    drop(device.map(&buffer).expect("a mapping"));
    assert_eq!(mappings(&spec), before + 1, "the mapping is cached");
    device.close().expect("the cache holds the device no longer");
    assert_eq!(mappings(&spec), before);
    drop(buffer);
}
