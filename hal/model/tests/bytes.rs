//! Any command-buffer bytes, every opcode weighted, on one chip that is reset between cases: no
//! panic, no hang, no byte outside what was mapped, every command buffer accounted for.
//!
//! `GAUDI_TEST_CASES` is the number of cases, `GAUDI_TEST_SEED` the seed; both are printed, and a
//! failure is shrunk.

#![expect(unsafe_code, reason = "host memory is handed to the chip as a driver pins it")]

mod rig;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Instant;

use gaudi_model::{Cb, Chip, ChipConfig, Event, HostRange, MemoryKind, Mode, Reset, RunOutcome};
use gaudi_spec::gaudi2::packet::Packets;
use gaudi_spec::gaudi2::sync::{self, objs_address};
use gaudi_spec::gaudi2::{CFG_BASE, DOORBELL_VA, DRAM_PAGE, SRAM_BASE, queue};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};
use gaudi_sys::RawMapping;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use rig::{DRAM, DRAM_PA, HOST};

const CASES: u32 = 1500;
const QUEUES: [QueueId; 6] = [
    queue::PDMA_0_0,
    queue::PDMA_0_1,
    queue::PDMA_1_0,
    QueueId(8),
    QueueId(9),
    QueueId(20),
];
/// Host memory that is mapped, with a page before and after it that is not.
const HOST_LEN: usize = 16 << 10;
const GUARD: usize = 4096;
/// Device memory that is mapped, with as much before and after it that is not.
const WINDOW: usize = 16 << 10;
/// Where the command buffers lie, in host memory of their own that the programs can reach too.
const CODE: DeviceVa = DeviceVa(HOST.0 + (1 << 20));
const CODE_LEN: usize = 16 << 10;
const BUDGET: u64 = 3000;
/// Host bytes that nothing may change.
const MARK: u8 = 0xa5;

struct World {
    chip: Chip,
    host: RawMapping,
    code: RawMapping,
}

impl World {
    fn new() -> Self {
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: DRAM_PAGE,
            mode: Mode::Running,
            memory: MemoryKind::Shared,
        })
        .expect("a chip");
        let host = RawMapping::anonymous(2 * GUARD + HOST_LEN, false).expect("host memory");
        let code = RawMapping::anonymous(CODE_LEN, false).expect("host memory");
        host.fill(0, host.len(), MARK).expect("all of it");
        let range = |memory: &RawMapping, at, len| {
            let start = memory.at(at, len).expect("inside");
            // SAFETY: the mapping outlives the chip, which is dropped first; no caller holds
            // references to it.
            unsafe { HostRange::new(start, len) }
        };
        chip.mmu_map_host(HOST, range(&host, GUARD, HOST_LEN))
            .expect("free");
        chip.mmu_map_host(CODE, range(&code, 0, CODE_LEN)).expect("free");
        let window = DevicePa(DRAM_PA.0 + WINDOW as u64);
        chip.mmu_map_device(DRAM, window, WINDOW as u64).expect("free");
        chip.mmu_map_doorbell(DOORBELL_VA).expect("free");
        Self { chip, host, code }
    }

    /// Runs the buffers and returns what is wrong.
    fn run(&mut self, buffers: &[(usize, Vec<u8>)]) -> Result<Seen, TestCaseError> {
        self.chip.reset(Reset::Soft).expect("no memory is touched");
        let mut at = 0;
        let mut pushed = Vec::new();
        for (tag, (queue, bytes)) in buffers.iter().enumerate() {
            let len = bytes.len().min(CODE_LEN - at);
            self.code.write(at, &bytes[..len]).expect("inside");
            let cb = Cb {
                va: rig::va(CODE, at),
                len: len as u32,
                tag: tag as u64,
            };
            let queue = QUEUES[*queue];
            self.chip.push_cb(queue, cb).expect("room in the queue");
            pushed.push((queue, tag as u64));
            at += len.next_multiple_of(8).min(CODE_LEN - at);
        }
        let outcome = self.chip.run(BUDGET);
        let events: Vec<_> = std::iter::from_fn(|| self.chip.next_event()).collect();
        self.check(&pushed, outcome, &events)?;
        Ok(Seen {
            outcome,
            stops: events
                .iter()
                .filter(|event| matches!(event, Event::Stop(_)))
                .count(),
            faults: events
                .iter()
                .filter(|event| matches!(event, Event::PageFault(_)))
                .count(),
        })
    }

    fn check(
        &self,
        pushed: &[(QueueId, u64)],
        outcome: RunOutcome,
        events: &[Event],
    ) -> Result<(), TestCaseError> {
        let mut guard = [0; GUARD];
        for at in [0, GUARD + HOST_LEN] {
            self.host.read(at, &mut guard).expect("inside");
            prop_assert!(guard == [MARK; GUARD], "host memory at {at} was not mapped");
        }
        let mut beside = [0; WINDOW];
        for at in [DRAM_PA.0, DRAM_PA.0 + 2 * WINDOW as u64] {
            self.chip.dram().read(DevicePa(at), &mut beside).expect("inside");
            prop_assert!(beside == [0; WINDOW], "device memory at {at:#x} was not mapped");
        }
        let done: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::CbDone { queue, tag } => Some((*queue, *tag)),
                _ => None,
            })
            .collect();
        for of in QUEUES {
            let done = done.iter().filter(|(queue, _)| *queue == of);
            let pushed = pushed.iter().filter(|(queue, _)| *queue == of);
            prop_assert!(
                done.zip(pushed).all(|(done, pushed)| done == pushed),
                "queue {of} ends its buffers in their order, each once"
            );
        }
        let unique: BTreeSet<_> = done.iter().map(|(_, tag)| tag).collect();
        prop_assert_eq!(unique.len(), done.len(), "each command buffer ends once");
        prop_assert_eq!(
            outcome == RunOutcome::Idle,
            done.len() == pushed.len(),
            "idle is when all are done"
        );
        let halts = events
            .iter()
            .filter(|event| matches!(event, Event::Stop(_) | Event::PageFault(_)));
        // Four queue managers are used, each with a processor below its streams.
        prop_assert!(halts.count() <= QUEUES.len() + 4, "a processor halts once");
        for event in events {
            if let Event::Stop(stop) = event {
                prop_assert!(stop.to_string().contains("stopped at offset"), "{}", stop);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Seen {
    outcome: RunOutcome,
    stops: usize,
    faults: usize,
}

fn near(base: u64, len: u64) -> impl Strategy<Value = u64> {
    (0..len + 64).prop_map(move |offset| base - 32 + offset)
}

/// Memory: mapped most of the time.
fn memory() -> impl Strategy<Value = u64> {
    prop_oneof![
        40 => (0..HOST_LEN as u64 / 128).prop_map(|line| HOST.0 + line * 128),
        12 => (0..WINDOW as u64 / 8).prop_map(|word| DRAM.0 + word * 8),
        12 => (0..CODE_LEN as u64 / 64).prop_map(|word| CODE.0 + word * 8),
        4 => near(HOST.0, HOST_LEN as u64),
        4 => near(DRAM.0, WINDOW as u64),
        4 => near(SRAM_BASE.0, 4096),
        1 => near(CODE.0, CODE_LEN as u64),
        1 => any::<u64>(),
    ]
}

/// Where messages go: registers too.
fn address() -> impl Strategy<Value = u64> {
    let register =
        |base: u32, len: u32| (0..len / 4).prop_map(move |word| CFG_BASE.0 + u64::from(base + word * 4));
    prop_oneof![
        10 => memory(),
        1 => Just(DOORBELL_VA.0),
        4 => register(sync::OBJS, 256),
        3 => (0..8u32, 0..6usize).prop_map(|(index, table)| {
            let tables = [
                sync::MON_PAY_ADDRL,
                sync::MON_PAY_ADDRH,
                sync::MON_PAY_DATA,
                sync::MON_ARM,
                sync::MON_CONFIG,
                sync::MON_STATUS,
            ];
            objs_address(0, tables[table], index).expect("a monitor").0
        }),
        2 => (0..9usize, 0..4u64).prop_map(|(table, queue)| {
            let tables = [0x50, 0x150, 0x250, 0x350, 0x550, 0x650, 0x750, 0x850, 0x850];
            CFG_BASE.0 + u64::from(sync::GLBL) + tables[table] + queue * 4
        }),
        4 => (window(), 0..2u64)
            .prop_map(|(offset, engine)| CFG_BASE.0 + 0x4c8_0000 + engine * 0x1_0000 + u64::from(offset)),
        1 => register(0x4c8_a000, 0xa00),
    ]
}

/// Registers of a queue manager and its DMA core, as WREG packets name them.
fn window() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => (0..40u32).prop_map(|word| 0xa290 + word * 4),
        4 => (0..10u32).prop_map(|word| 0xa3a4 + word * 4),
        4 => (0..40u32).prop_map(|word| 0xa1f0 + word * 4),
        6 => (0..32u32).prop_map(|word| 0xa900 + word * 4),
        3 => prop_oneof![Just(0xa4a4), Just(0xa718), (0..4u32).prop_map(|word| 0xa4ac + word * 4)],
        6 => prop_oneof![
            (0..3u32).prop_map(|word| 0xb8bc + word * 4),
            (0..6u32).prop_map(|word| 0xb8d8 + word * 4)
        ],
        1 => any::<u16>().prop_map(u32::from),
    ]
}

/// Bytes of a packet: an opcode, fields that are small or any, addresses that lead somewhere.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        40 => prop::sample::select(vec![1, 2, 3, 4, 5, 7, 8, 9, 0xa, 0xc, 0xd, 0xe, 0xf, 0x12, 0x13u32]),
        // Messages let programs meet.
        15 => Just(4),
        5 => Just(5),
        1 => 0..0x20u32,
    ];
    let small = prop_oneof![12 => 0..8u32, 4 => 0..0x100u32, 1 => any::<u32>()];
    // Control bits that are set seldom, or a packet would hardly ever be one that the chip knows.
    let flags = prop_oneof![
        30 => Just(0),
        6 => (0..8u32).prop_map(|bits| bits << 29),
        1 => any::<u32>().prop_map(|bits| bits & 0xe0ff_ffff),
        6 => 0..32u32,
    ];
    let addresses = (memory(), memory(), address(), window());
    (opcode, small, flags, addresses, any::<[u16; 2]>()).prop_map(
        |(opcode, small, flags, (one, two, message, window), any)| {
            let (low, high) = (u32::from(any[0]), u32::from(any[1]));
            let (first, ctl) = match opcode {
                1 => (small, flags & 0xe000_001f | window << 8),
                2 => (low & 3, flags & 0xe000_001f | window << 8),
                0x12 | 0x13 => (
                    small,
                    flags & 0xe000_001f | (low & 0x1f) << 5 | (window / 4) << 10,
                ),
                // Sync objects and monitors, of which a few are used; long mode where four start.
                4 if low & 1 == 0 => {
                    let (sob, long) = (low >> 3 & 0xf, low & 6 == 6);
                    let sob = if long { sob & !3 } else { sob };
                    (
                        small & 0xffff | (high & 1) << 31 | u32::from(long) << 24,
                        (1 << 22) | (sob * 4),
                    )
                }
                4 => {
                    let table = low as usize / 2 % 5;
                    let monitor = low >> 5 & 7;
                    let long = u32::from(table == 4 && monitor & 3 == 0 && high & 1 == 0);
                    let value = match table {
                        // Monitors write where messages go.
                        0 => message as u32,
                        1 => (message >> 32) as u32,
                        2 => high,
                        3 => high & 0xfffe_ff01 | small << 17,
                        _ => high & 0x170 | long,
                    };
                    (value, table as u32 * 0x2000 + monitor * 4)
                }
                5 => (
                    (small & 0x1f) * 8,
                    flags & 0xe000_001f | u32::from(low & 7 == 0) << 5,
                ),
                8 => (
                    (small & 3) | u32::from(low & 0x18 == 0) << 16 | (low & 3) << 30,
                    flags & 0xe000_001f,
                ),
                9 => (small.wrapping_mul(16), flags & 0xe000_0017),
                0xc => (low & 7 | (high & 1) << 31, flags & 0xe000_001f),
                0xd => (small | (low & 0x3f) << 24, flags & 0xe000_0000),
                0xe => (0, flags & 0xe000_001f),
                0xf => (
                    (low & 3) | (low >> 2 & 1) << 8 | u32::from(low & 0x38 == 0) << 9,
                    flags & 0xe000_001f,
                ),
                _ => (small, flags),
            };
            let mut bytes = Vec::with_capacity(64);
            bytes.extend(first.to_le_bytes());
            bytes.extend((ctl & 0xe0ff_ffff | opcode << 24).to_le_bytes());
            match opcode {
                2 => (0..first & 7).for_each(|_| bytes.extend(one.to_le_bytes())),
                3 | 7 => bytes.extend(message.to_le_bytes()),
                5 => bytes.extend((CODE.0 + u64::from(high % 256) * 8).to_le_bytes()),
                0xf | 0x13 => bytes.extend(one.to_le_bytes()),
                9 | 0xe => bytes.extend([one.to_le_bytes(), two.to_le_bytes()].concat()),
                _ => {}
            }
            bytes
        },
    )
}

fn buffer() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => vec(packet(), 0..12).prop_map(|packets| packets.concat()),
        1 => vec(any::<u8>(), 0..200),
        // Cut somewhere, so that a packet ends too early.
        1 => (vec(packet(), 1..12), 0..64usize).prop_map(|(packets, cut)| {
            let mut bytes = packets.concat();
            bytes.truncate(bytes.len().saturating_sub(cut));
            bytes
        }),
    ]
}

#[test]
fn any_bytes_stay_inside_their_mappings() {
    let config = gaudi_random::config(CASES);
    let (cases, seed) = (config.cases, config.rng_seed);
    let world = RefCell::new(World::new());
    // Outcomes (idle, blocked, out of budget), stops, faults, and which opcodes were executed to a
    // buffer's end.
    let tally = RefCell::new(([0u64; 3], 0, 0, [0u64; 32]));
    let start = Instant::now();
    let mut runner = TestRunner::new(config);
    let result = runner.run(&vec((0..QUEUES.len(), buffer()), 1..4), |buffers| {
        let seen = world.borrow_mut().run(&buffers)?;
        let (outcomes, stops, faults, opcodes) = &mut *tally.borrow_mut();
        outcomes[match seen.outcome {
            RunOutcome::Idle => 0,
            RunOutcome::Blocked => 1,
            RunOutcome::Budget => 2,
        }] += 1;
        *stops += seen.stops;
        *faults += seen.faults;
        if seen.outcome == RunOutcome::Idle {
            for (_, bytes) in &buffers {
                for (_, packet) in Packets::new(bytes).flatten() {
                    opcodes[usize::from(packet.opcode().number())] += 1;
                }
            }
        }
        Ok(())
    });
    let (outcomes, stops, faults, opcodes) = *tally.borrow();
    println!(
        "{:.1} s; idle, blocked, out of budget: {outcomes:?}; {stops} stops, {faults} page faults; opcodes in buffers that ended: {opcodes:?}",
        start.elapsed().as_secs_f64()
    );
    if let Err(error) = result {
        panic!("{seed:?}: {error}");
    }
    // A generator that no longer reaches the packets would prove nothing.
    if cases >= CASES {
        assert!(
            outcomes[0] * 20 > u64::from(cases),
            "buffers that end: {outcomes:?}"
        );
        for opcode in [1, 2, 3, 4, 5, 7, 8, 9, 0xa, 0xc, 0xd, 0xe, 0xf, 0x12, 0x13] {
            assert!(
                opcodes[opcode] > 0,
                "opcode {opcode:#x} is in a buffer that ended: {opcodes:?}"
            );
        }
    }
}
