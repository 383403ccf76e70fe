//! Copies of every size, alignment and direction, against ordinary vectors.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Completion, Deadline, Device, DeviceSpec, ErrorKind, Options, Queue, Sob};
use gaudi_spec::gaudi2::queue::{PDMA_1_0, edma};
use proptest::prelude::*;

const SPACE: u64 = 20_000;

fn open(spec: &str, change: impl FnOnce(&mut Options)) -> Device {
    let spec: DeviceSpec = spec.parse().expect("a spec");
    let mut options = Options::default();
    change(&mut options);
    Device::with_options(gaudi_hal::open(&spec).expect("the mock opens"), options).expect("a device")
}

#[derive(Debug, Clone)]
struct Step {
    from: usize,
    to: usize,
    src: u64,
    dst: u64,
    len: u64,
    fill: Option<u8>,
}

fn step() -> impl Strategy<Value = Step> {
    // Lengths are mostly small, sometimes none, sometimes many packets.
    let len = prop_oneof![1 => Just(0), 4 => 1_u64..300, 2 => 1_u64..9000];
    (
        0_usize..4,
        0_usize..4,
        0..SPACE,
        0..SPACE,
        len,
        prop::option::weighted(0.15, any::<u8>()),
    )
        .prop_map(|(from, to, src, dst, len, fill)| Step {
            from,
            to,
            src,
            dst,
            len: len.min(SPACE - src).min(SPACE - dst),
            fill,
        })
}

/// Memories 0 and 1 are the device's, 2 and 3 the host's.
fn run(
    order: &str,
    packet: u64,
    stripe: u64,
    packets: u32,
    buffers: u32,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let spec = format!("mock:gaudi2?name=copies-{order}&order={order}");
    let device = open(&spec, |options| {
        options.packet_bytes = packet;
        options.packets_per_submission = packets;
        options.command_buffers = buffers;
        options.staging_bytes = 4096 + 123;
        options.stripe_bytes = stripe;
    });
    let mut reference: Vec<Vec<u8>> = (0..4_u8)
        .map(|memory| {
            (0..SPACE)
                .map(|at| (at as u8).wrapping_mul(31).wrapping_add(memory * 77))
                .collect()
        })
        .collect();
    let buffers = [0, 1].map(|_| device.alloc(SPACE).expect("a buffer"));
    let mappings = [0, 1].map(|_| device.alloc_host(SPACE as usize).expect("a mapping"));
    for at in 0..2 {
        device
            .write(&buffers[at], 0, &reference[at])
            .expect("written through staging");
        mappings[at].write(0, &reference[2 + at]).expect("written");
    }
    let place = |memory: usize, at: u64, len: u64| match memory {
        0 | 1 => buffers[memory].at(at..at + len).expect("inside"),
        _ => mappings[memory - 2].at(at..at + len).expect("inside"),
    };
    let mut moved = [0_u64; 2];
    let before = device.stats();
    for step in steps {
        let (src, dst) = (step.src as usize, step.dst as usize);
        let len = step.len as usize;
        let completion = if let Some(value) = step.fill {
            reference[step.to][dst..dst + len].fill(value);
            moved[1] += step.len;
            device.fill(place(step.to, step.dst, step.len), value)
        } else {
            let answer = device.copy(
                place(step.to, step.dst, step.len),
                place(step.from, step.src, step.len),
            );
            let overlap = step.from == step.to && src < dst + len && dst < src + len && len > 0;
            match (step.from >= 2 && step.to >= 2, overlap) {
                (true, _) => {
                    prop_assert_eq!(
                        answer.err().map(|error| error.kind()),
                        Some(ErrorKind::Unsupported),
                        "host to host is refused"
                    );
                    continue;
                }
                (_, true) => {
                    prop_assert_eq!(
                        answer.err().map(|error| error.kind()),
                        Some(ErrorKind::InvalidInput),
                        "an overlap is refused"
                    );
                    continue;
                }
                _ => {}
            }
            let bytes = reference[step.from][src..src + len].to_vec();
            reference[step.to][dst..dst + len].copy_from_slice(&bytes);
            moved[0] += step.len;
            answer
        };
        let completion = completion.map_err(|error| TestCaseError::fail(format!("{step:?}: {error:?}")))?;
        // Copies of different directions are ordered by nothing but their completions.
        completion
            .wait(Deadline::NEVER)
            .map_err(|error| TestCaseError::fail(format!("{step:?}: {error:?}")))?;
        prop_assert_eq!(completion.poll().ok(), Some(true), "what was waited for is done");
    }
    let stats = device.stats();
    let copied =
        |stats: gaudi_device::Stats| stats.bytes_to_device + stats.bytes_to_host + stats.bytes_in_device;
    prop_assert_eq!(
        copied(stats) - copied(before),
        moved[0],
        "every byte copied is counted"
    );
    prop_assert_eq!(
        stats.bytes_filled - before.bytes_filled,
        moved[1],
        "every byte filled is counted"
    );
    for at in 0..2 {
        let mut seen = vec![0; SPACE as usize];
        device
            .read(&buffers[at], 0, &mut seen)
            .expect("read through staging");
        prop_assert!(
            seen == reference[at],
            "device memory {} holds what was copied",
            at
        );
        mappings[at].read(0, &mut seen).expect("read");
        prop_assert!(
            seen == reference[2 + at],
            "host memory {} holds what was copied",
            at
        );
    }
    drop((buffers, mappings));
    device
        .close()
        .map_err(|error| TestCaseError::fail(error.to_string()))
}

proptest! {
    #![proptest_config(gaudi_random::config(48))]

    #[test]
    fn any_copy_in_running_order(packet in 256_u64..3000, stripe in 100_u64..5000, packets in 1_u32..5, buffers in 1_u32..9, steps in prop::collection::vec(step(), 1..24)) {
        run("running", packet, stripe, packets, buffers, &steps)?;
    }

    #[test]
    fn any_copy_in_stepped_order(packet in 256_u64..3000, stripe in 100_u64..5000, packets in 1_u32..5, buffers in 1_u32..9, steps in prop::collection::vec(step(), 1..24)) {
        run("stepped", packet, stripe, packets, buffers, &steps)?;
    }
}

/// In stepped order nothing executes outside a wait, so every submission stays in flight until
/// then.
#[test]
fn copy_exceeds_submissions_in_flight() {
    let device = open("mock:gaudi2?name=deep&order=stepped", |options| {
        options.packet_bytes = 256;
        options.packets_per_submission = 1;
    });
    let len = 256 * 1000;
    let (buffer, up, down) = (
        device.alloc(len).expect("a buffer"),
        device.alloc_host(len as usize).expect("a mapping"),
        device.alloc_host(len as usize).expect("a mapping"),
    );
    let bytes: Vec<u8> = (0..len).map(|at| (at / 256) as u8 ^ at as u8).collect();
    up.write(0, &bytes).expect("written");
    device
        .copy(&buffer, &up)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
    device
        .copy(&down, &buffer)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
    let mut seen = vec![0; len as usize];
    down.read(0, &mut seen).expect("read");
    assert!(seen == bytes, "1000 submissions each way carry every byte");
    assert_eq!(device.stats().submissions, 2000, "a submission for each packet");
}

/// Two producers fill the driver's window together: one of them meets `WouldBlock` although its own
/// ring has room.
#[test]
fn producers_wait_for_room_in_driver() {
    let device = open("mock:gaudi2?name=window&order=stepped", |_| {});
    let buffer = device.alloc(200 * 64).expect("a buffer");
    let host = device.alloc_host(200 * 64).expect("a mapping");
    let bytes: Vec<u8> = (0..200 * 64_u32).map(|at| at as u8).collect();
    host.write(0, &bytes).expect("written");
    let mut first = device
        .queue(gaudi_spec::gaudi2::queue::PDMA_0_0)
        .expect("a queue");
    let mut second = first.try_clone().expect("a clone");
    let mut completions: VecDeque<Completion> = VecDeque::new();
    for at in 0..200_u64 {
        let queue = if at % 3 == 0 { &mut second } else { &mut first };
        let range = at * 64..(at + 1) * 64;
        let completion = queue
            .copy(
                buffer.at(range.clone()).expect("inside"),
                host.at(range).expect("inside"),
            )
            .and_then(|queue| queue.submit())
            .expect("submitted, if need be after a wait");
        completions.push_back(completion);
    }
    assert!(
        device.stats().full_waits > 0,
        "200 submissions without a wait of the test's own met a full driver"
    );
    for completion in completions {
        completion.wait(Deadline::NEVER).expect("done");
    }
    let mut seen = vec![0; bytes.len()];
    device.read(&buffer, 0, &mut seen).expect("read");
    assert!(seen == bytes, "every producer's bytes arrived");
}

/// Each copy reads what the one before writes, on other engines, without a wait in between. The
/// counters of parts wrap meanwhile.
#[test]
fn striped_copies_execute_in_order() {
    for (order, rounds) in [("running", 9000), ("stepped", 200)] {
        let device = open(
            &format!("mock:gaudi2?name=striped-{order}&order={order}"),
            |options| {
                options.stripe_bytes = 1000;
            },
        );
        let buffers: Vec<_> = (0..3)
            .map(|_| device.alloc(8000 + 77).expect("a buffer"))
            .collect();
        let bytes: Vec<u8> = (0..8000 + 77_u32).map(|at| (at * 7 / 5) as u8).collect();
        device.write(&buffers[0], 0, &bytes).expect("written");
        let before = device.stats();
        let mut last = None;
        for round in 0..rounds {
            let (from, to) = (&buffers[round % 3], &buffers[(round + 1) % 3]);
            last = Some(device.copy(to, from).expect("submitted"));
            // What is left of the older content would be seen.
            drop(device.fill(from, round as u8).expect("submitted"));
        }
        last.expect("a copy").wait(Deadline::NEVER).expect("done");
        let mut seen = vec![0; bytes.len()];
        device.read(&buffers[rounds % 3], 0, &mut seen).expect("read");
        assert!(seen == bytes, "{order}: {rounds} copies passed the bytes on");
        let packets = device.stats().lin_dma_packets - before.lin_dma_packets;
        assert!(
            packets > rounds as u64 * 9,
            "{order}: {packets} packets are eight parts a copy, and a fill"
        );
        drop(buffers);
        device.close().expect("no other holder");
    }
}

/// One engine is refused work: the first does its part.
#[test]
fn first_engine_replaces_refusing_engine() {
    let device = open(
        "mock:gaudi2?name=standin+fault=submit:when=4..20%2B3:error=ENOMEM",
        |options| {
            options.stripe_bytes = 1000;
        },
    );
    let (a, b) = (
        device.alloc(9000).expect("a buffer"),
        device.alloc(9000).expect("a buffer"),
    );
    let bytes: Vec<u8> = (0..9000_u32).map(|at| (at * 3 / 2) as u8).collect();
    let mut whole = 0;
    for _ in 0..12 {
        let Ok(()) = device.write(&a, 0, &bytes) else {
            continue;
        };
        let Ok(copy) = device.copy(&b, &a) else { continue };
        let mut seen = vec![0; bytes.len()];
        if copy.wait(Deadline::NEVER).is_ok() && device.read(&b, 0, &mut seen).is_ok() {
            assert!(seen == bytes, "a copy that is done is complete");
            whole += 1;
        }
    }
    assert!(whole >= 6, "most copies go through: {whole}");
}

/// Two parts of four submissions each, of which one fails, while a wait of the program holds the
/// second engine.
struct Torn {
    device: Device,
    from: Buffer,
    to: Buffer,
    gate: Sob,
    _holder: Queue,
}

impl Torn {
    const LEN: u64 = 2048;

    /// Fails the `nth` submission of the first striped copy: its count of parts is the first, its
    /// start the second, the other engine's part the third to the sixth, and then the first
    /// engine's own.
    fn new(name: &str, nth: usize, timeout: Duration) -> Self {
        // Before the copy there are eight submissions of a fill, and one that holds the engine.
        let spec = format!(
            "mock:gaudi2?name={name}+fault=submit:when={}:error=ENOMEM",
            9 + nth
        );
        let device = open(&spec, |options| {
            options.packet_bytes = 256;
            options.packets_per_submission = 1;
            options.stripe_bytes = Self::LEN / 2;
            options.timeout = timeout;
        });
        let [from, to] = [0, 1].map(|_| device.alloc(Self::LEN).expect("a buffer"));
        let gate = device.sob().expect("a sync object");
        let second = edma(1, 0).expect("an engine");
        let mut holder = device.queue(second).expect("a queue");
        done(device.fill(&from, 0x11));
        assert_eq!(device.stats().submissions, 8, "the fault is counted from here");
        let blocked = holder
            .set(&gate, 0)
            .and_then(|queue| queue.wait(&gate, 1))
            .and_then(|queue| queue.submit());
        drop(blocked.expect("submitted"));
        Self {
            device,
            from,
            to,
            gate,
            _holder: holder,
        }
    }

    fn release(&self) {
        let mut queue = self.device.queue(PDMA_1_0).expect("a queue");
        done(queue.signal(&self.gate, 1).and_then(|queue| queue.submit()));
    }

    fn seen(&self) -> Vec<u8> {
        let mut seen = vec![0; Self::LEN as usize];
        self.device.read(&self.to, 0, &mut seen).expect("read");
        seen
    }

    /// What is done after the engine went on stays.
    fn a_fill_is_the_last_word(&self) {
        done(self.device.fill(&self.to, 0x22));
        self.device.drain(Deadline::NEVER).expect("all is done");
        assert!(
            self.seen().iter().all(|&byte| byte == 0x22),
            "nothing of the copy came after the fill that followed it: {:?}",
            self.seen()
        );
    }
}

fn done(work: gaudi_device::Result<Completion>) {
    work.expect("submitted").wait(Deadline::NEVER).expect("done");
}

/// An engine took the beginning of its part and no more: the first one does the part when that is
/// over, and not before.
#[test]
fn begun_part_ends_before_its_replacement() {
    let torn = Torn::new("begun", 4, Duration::from_secs(60));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            torn.release();
        });
        done(torn.device.copy(&torn.to, &torn.from));
        assert!(
            begin.elapsed() >= Duration::from_millis(50),
            "done, and the engine still had a part to copy"
        );
    });
    assert!(torn.seen().iter().all(|&byte| byte == 0x11), "the copy is whole");
    torn.a_fill_is_the_last_word();
}

/// Part of a copy that failed is still on its way: nothing is done within the device until it has
/// ended.
#[test]
fn failed_copys_parts_end_first() {
    // The other engine's part fails after its first submission; the first engine's fails when the
    // other's has been submitted.
    for (nth, kind) in [(4, ErrorKind::TimedOut), (7, ErrorKind::OutOfMemory)] {
        let torn = Torn::new(&format!("left-{nth}"), nth, Duration::from_millis(50));
        let error = torn.device.copy(&torn.to, &torn.from).expect_err("a fault");
        assert_eq!(error.kind(), kind, "submission {nth}: {error}");
        let (small, other) = (torn.to.at(2000..), torn.from.at(..48));
        let (small, other) = (small.expect("inside"), other.expect("inside"));
        for (work, name) in [
            (torn.device.fill(&torn.to, 0x22), "a fill"),
            (torn.device.copy(&small, &other), "a small copy"),
            (torn.device.copy(&torn.to, &torn.from), "a large copy"),
        ] {
            let error = work.expect_err("the engine is held");
            assert_eq!(
                error.kind(),
                ErrorKind::TimedOut,
                "{name} was not aborted: {error}"
            );
        }
        torn.release();
        torn.a_fill_is_the_last_word();
        done(torn.device.copy(&torn.to, &torn.from));
        assert!(torn.seen().iter().all(|&byte| byte == 0x11), "copies go on");
        torn.a_fill_is_the_last_word();
    }
}

#[test]
fn pattern_starts_at_first_byte() {
    let device = open("mock:gaudi2?name=pattern", |options| options.packet_bytes = 256);
    let buffer = device.alloc(2000).expect("a buffer");
    drop(device.fill(&buffer, 9).expect("submitted"));
    device
        .memset(buffer.at(3..1500).expect("inside"), 0x4433_2211)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("done");
    let mut seen = vec![0; 2000];
    device.read(&buffer, 0, &mut seen).expect("read");
    let wanted: Vec<u8> = (0..2000)
        .map(|at| match at {
            3..1500 => [0x11, 0x22, 0x33, 0x44][(at - 3) % 4],
            _ => 9,
        })
        .collect();
    assert!(seen == wanted, "1497 bytes of the pattern, and nothing else");
}

/// Parts that follow each other are joined, but not beyond the command buffer.
#[test]
fn long_run_of_parts_is_split_where_it_fits() {
    const PART: u64 = 4096;
    const PARTS: u64 = 64;
    let device = open("mock:gaudi2?name=copies-parts", |options| {
        options.packet_bytes = 256;
    });
    let bytes: Vec<u8> = (0..PARTS * PART).map(|index| (index % 251) as u8).collect();
    let (memory, host) = (device.alloc(PARTS * PART), device.alloc_host(bytes.len()));
    let (memory, host) = (memory.expect("device memory"), host.expect("host memory"));
    host.write(0, &bytes).expect("inside");
    let (dst, src) = ((&memory).into(), (&host).into());
    let parts: Vec<_> = (0..PARTS).map(|part| (part * PART, part * PART, PART)).collect();
    let mut queue = device.queue(PDMA_1_0).expect("a queue");
    let (mut left, mut submissions) = (&parts[..], 0);
    while !left.is_empty() {
        let added = queue.copy_parts(&dst, &src, left).expect("some parts fit");
        assert!(added > 0, "the command buffer is empty");
        left = &left[added..];
        queue
            .submit()
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("done");
        submissions += 1;
    }
    assert!(submissions > 1, "all parts fit one command buffer");
    let back = device.alloc_host(bytes.len()).expect("host memory");
    let copied = device.copy(&back, &memory).expect("submitted");
    copied.wait(Deadline::NEVER).expect("done");
    let mut seen = vec![0; bytes.len()];
    back.read(0, &mut seen).expect("inside");
    assert!(seen == bytes, "the bytes are those of the source");
    // One part that fits no command buffer is refused each time, also after a discard: a caller
    // that submits and tries again would never end.
    for _ in 0..2 {
        let refused = queue.copy_parts(&dst, &src, &[(0, 0, PARTS * PART)]);
        assert_eq!(refused.expect_err("too long").kind(), ErrorKind::InvalidInput);
        queue.copy_parts(&dst, &src, &parts[..1]).expect("it fits");
        queue.clear();
    }
}

#[test]
fn threads_share_a_device() {
    let device = open("mock:gaudi2?name=threads", |options| options.packet_bytes = 512);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let len = 1000 + usize::from(round) * 77;
                    let sent: Vec<u8> = (0..len).map(|at| at as u8 ^ thread ^ round).collect();
                    let (a, b) = (
                        device.alloc(len as u64).expect("a buffer"),
                        device.alloc(len as u64).expect("a buffer"),
                    );
                    device.write(&a, 0, &sent).expect("written");
                    device
                        .copy(&b, &a)
                        .expect("submitted")
                        .wait(Deadline::NEVER)
                        .expect("done");
                    let mut seen = vec![0; len];
                    device.read(&b, 0, &mut seen).expect("read");
                    assert!(seen == sent, "thread {thread}, round {round}: its own bytes");
                }
            });
        }
    });
    device.close().expect("no other holder");
}

#[test]
fn copy_rejects_invalid_ends() {
    let device = open("mock:gaudi2?name=wrong", |_| {});
    let other = open("mock:gaudi2?name=wrong&index=1", |_| {});
    let (small, large) = (
        device.alloc(10).expect("a buffer"),
        device.alloc(20).expect("a buffer"),
    );
    let foreign = other.alloc(10).expect("a buffer");
    let error = device.copy(&small, &large).expect_err("unequal");
    assert!(
        error.to_string().contains("saw destination 10, source 20"),
        "lengths are reported: {error}"
    );
    let error = device.copy(&small, &foreign).expect_err("two devices");
    assert!(
        error.to_string().contains("another open device"),
        "the other device is reported: {error}"
    );
    let error = small.at(5..11).expect_err("outside");
    assert!(
        error.to_string().contains("saw 5..11, wanted within 0..10"),
        "the range is reported: {error}"
    );
    assert_eq!(
        device.alloc(0).expect_err("nothing").kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        device.alloc(u64::MAX).expect_err("too much").kind(),
        ErrorKind::OutOfDeviceMemory
    );
    assert_eq!(
        device.alloc_host(0).expect_err("nothing").kind(),
        ErrorKind::InvalidInput
    );
    let (a, b) = (
        device.alloc_host(64).expect("a mapping"),
        device.alloc_host(64).expect("a mapping"),
    );
    a.fill(0, 64, 9).expect("filled");
    let error = device.copy(&b, &a).expect_err("host to host");
    assert_eq!(
        (
            error.kind(),
            error.help().is_some_and(|help| help.contains("copy_on_cpu"))
        ),
        (ErrorKind::Unsupported, true)
    );
    b.copy_on_cpu(0, &a, 0, 64).expect("the processor can");
    let mut seen = [0; 64];
    b.read(0, &mut seen).expect("read");
    assert_eq!(seen, [9; 64], "copied by name");
    assert_eq!(
        device
            .copy(small.at(3..3).expect("empty"), small.at(0..0).expect("empty"))
            .expect("nothing to do")
            .poll(),
        Ok(true),
        "a copy of nothing is done"
    );
}
