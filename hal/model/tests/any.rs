//! Any program on any stream: no panic, no hang, no byte outside what was mapped; the same seed,
//! the same run.

#![expect(unsafe_code, reason = "host memory is handed to the chip as a driver pins it")]

mod rig;

use gaudi_model::{Cb, Chip, ChipConfig, Event, HostRange, MemoryKind, Mode, RunOutcome};
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgBase, MsgLong, MsgShort, Nop};
use gaudi_spec::gaudi2::sync::{self, MonArm, MonConfig, SOB_OBJ, SobUpdate, objs_address};
use gaudi_spec::gaudi2::{CFG_BASE, DOORBELL_VA, DRAM_PAGE, SRAM_BASE, queue};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};
use gaudi_sys::RawMapping;
use proptest::collection::vec;
use proptest::prelude::*;

use rig::{DRAM, DRAM_PA, HOST, Rig, va};

const QUEUES: [QueueId; 5] = [
    queue::PDMA_0_0,
    queue::PDMA_0_1,
    queue::PDMA_1_0,
    QueueId(8),
    QueueId(20),
];
/// What the chip is given: two pieces of one host mapping with a gap that is not mapped, and 64 KiB
/// of device memory.
const PIECE: usize = 16 << 10;
const GUARD: usize = 4096;
const WINDOW: u64 = 64 << 10;

fn address() -> impl Strategy<Value = DeviceVa> {
    let near = |base: u64, len: u64| (0..len + 64).prop_map(move |offset| DeviceVa(base - 32 + offset));
    prop_oneof![
        4 => near(HOST.0, 2 * PIECE as u64),
        3 => near(DRAM.0, WINDOW),
        1 => near(SRAM_BASE.0, 4096),
        1 => near(DOORBELL_VA.0, 4096),
        1 => near(CFG_BASE.0 + u64::from(sync::OBJS), 0x2_0000),
        1 => near(CFG_BASE.0 + 0x4c8_a000, 0x400),
        1 => any::<u64>().prop_map(DeviceVa),
    ]
}

// Few sync objects and monitors, so that programs meet.
fn short() -> impl Strategy<Value = MsgShort> {
    let (sob, monitor) = (0..6u32, 0..4u32);
    let arm = (any::<u8>(), any::<bool>(), 0..4u16)
        .prop_map(|(mask, equal, value)| MonArm::new().with_mask(mask).with_equal(equal).with_value(value));
    let to = prop_oneof![
        address(),
        (0..6u32).prop_map(|sob| objs_address(0, SOB_OBJ, sob).expect("a sync object")),
        (0..4u32).prop_map(|monitor| objs_address(0, sync::MON_ARM, monitor).expect("a monitor")),
        (0..3usize, 0..4u32).prop_map(|(queue, fence)| rig::fence_address(QUEUES[queue], fence)),
    ];
    let expect = |packet: Option<MsgShort>| packet.expect("in reach");
    prop_oneof![
        (sob, -2..3i16).prop_map(move |(sob, by)| expect(MsgShort::sob(sob, SobUpdate::add_signed(by)))),
        (monitor.clone(), arm).prop_map(move |(m, arm)| expect(MsgShort::monitor_arm(m, arm))),
        (monitor.clone(), to.clone()).prop_map(move |(m, to)| expect(MsgShort::monitor_address_low(m, to))),
        (monitor.clone(), to).prop_map(move |(m, to)| expect(MsgShort::monitor_address_high(m, to))),
        (monitor.clone(), any::<u32>()).prop_map(move |(m, data)| expect(MsgShort::monitor_data(m, data))),
        (monitor, 0..0x200u32)
            .prop_map(move |(m, bits)| expect(MsgShort::monitor_config(m, MonConfig::from_bits(bits)))),
        (any::<u16>(), any::<u32>()).prop_map(|(offset, value)| MsgShort::new(
            MsgBase::Monitors,
            offset,
            value
        )),
    ]
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![3 => 0..300u32, 1 => 0..40_000u32, 1 => any::<u32>()];
    prop_oneof![
        1 => Just(Nop::new().to_bytes().to_vec()),
        2 => (address(), any::<u32>()).prop_map(|(to, value)| MsgLong::new(to, value).to_bytes().to_vec()),
        6 => short().prop_map(|packet| packet.to_bytes().to_vec()),
        2 => (0..4u8, 0..2u8, 0..3u8)
            .prop_map(|(id, target, by)| Fence::new(id, target, by).expect("in range").to_bytes().to_vec()),
        4 => (address(), address(), size.clone())
            .prop_map(|(to, from, size)| LinDma::copy(to, from, size).to_bytes().to_vec()),
        1 => (address(), any::<u32>(), size)
            .prop_map(|(to, pattern, size)| LinDma::memset(to, pattern, size).to_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..40),
    ]
}

type Programs = Vec<(usize, Vec<Vec<u8>>)>;

fn programs() -> impl Strategy<Value = Programs> {
    vec((0..QUEUES.len(), vec(packet(), 0..24)), 1..8)
}

struct World {
    chip: Chip,
    host: RawMapping,
}

impl World {
    /// Guards, two mapped pieces with a guard between them, guard: host memory in which only the
    /// pieces may change.
    fn new(mode: Mode) -> Self {
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: DRAM_PAGE,
            mode,
            memory: MemoryKind::Shared,
        })
        .expect("a chip");
        let host = RawMapping::anonymous(3 * GUARD + 2 * PIECE, false).expect("host memory");
        host.fill(0, host.len(), 0xa5).expect("all of it");
        for (piece, at) in [GUARD, 2 * GUARD + PIECE].into_iter().enumerate() {
            let start = host.at(at, PIECE).expect("inside");
            // SAFETY: the mapping outlives the chip, which is dropped first; no caller holds
            // references to it.
            let range = unsafe { HostRange::new(start, PIECE) };
            chip.mmu_map_host(va(HOST, piece * PIECE), range).expect("free");
        }
        chip.mmu_map_device(DRAM, DRAM_PA, WINDOW).expect("free");
        chip.mmu_map_doorbell(DOORBELL_VA).expect("free");
        Self { chip, host }
    }

    /// Queues the programs; their bytes lie in device memory of their own, mapped far from the
    /// rest.
    fn push(&mut self, programs: &Programs) {
        let mut at = 0;
        let (base, code) = (DRAM_PA.0 + (1 << 20), DeviceVa(DRAM.0 + (1 << 30)));
        for (tag, (queue, packets)) in programs.iter().enumerate() {
            let bytes = packets.concat();
            self.chip.dram().write(DevicePa(base + at), &bytes).expect("room");
            let cb = Cb {
                va: DeviceVa(code.0 + at),
                len: bytes.len() as u32,
                tag: tag as u64,
            };
            self.chip.push_cb(QUEUES[*queue], cb).expect("room in the queue");
            at += bytes.len() as u64;
        }
        self.chip
            .mmu_map_device(code, DevicePa(base), 1 << 20)
            .expect("free");
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.chip.next_event()).collect()
    }

    fn contents(&self) -> Vec<u8> {
        let mut all = vec![0; self.host.len() + WINDOW as usize];
        let (host, dram) = all.split_at_mut(self.host.len());
        self.host.read(0, host).expect("all of it");
        self.chip.dram().read(DRAM_PA, dram).expect("all of it");
        all
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(600))]

    #[test]
    fn any_program_stays_inside_its_mappings(programs in programs(), seed: u64, stepped: bool) {
        let mode = if stepped { Mode::Stepped { seed } } else { Mode::Running };
        let mut world = World::new(mode);
        world.push(&programs);
        let outcome = world.chip.run(20_000);
        let events = world.events();

        let mut guard = [0; GUARD];
        for at in [0, GUARD + PIECE, 2 * (GUARD + PIECE)] {
            world.host.read(at, &mut guard).expect("inside");
            prop_assert!(guard.iter().all(|&byte| byte == 0xa5), "host memory at {at} that was not mapped changed");
        }
        for (at, len) in [(DRAM_PA.0 - 4096, 4096), (DRAM_PA.0 + WINDOW, 4096)] {
            let mut bytes = vec![0; len];
            world.chip.dram().read(DevicePa(at), &mut bytes).expect("inside");
            prop_assert!(bytes.iter().all(|&byte| byte == 0), "device memory at {at:#x} that was not mapped changed");
        }
        let done = events.iter().filter(|event| matches!(event, Event::CbDone { .. })).count();
        if outcome == RunOutcome::Idle {
            prop_assert_eq!(done, programs.len(), "idle means that every command buffer is done");
        }
        let halts = events.iter().filter(|event| matches!(event, Event::Stop(_) | Event::PageFault(_))).count();
        // A queue has an upper and a lower processor (CP_DMA), and the one runs on when the other
        // halts.
        prop_assert!(halts <= 2 * QUEUES.len(), "a processor halts once: {events:?}");
        world.chip.reset(gaudi_model::Reset::Soft).expect("no memory is touched");
        prop_assert_eq!(world.chip.run(100), RunOutcome::Idle, "after a reset there is nothing to do");
    }

    #[test]
    fn the_same_seed_replays_the_same_run(programs in programs(), seed: u64) {
        let run = || {
            let mut world = World::new(Mode::Stepped { seed });
            world.push(&programs);
            let outcome = world.chip.run(5_000);
            (outcome, world.events(), *world.chip.counters(), world.contents())
        };
        let (first, second) = (run(), run());
        prop_assert_eq!(first.0, second.0);
        prop_assert_eq!(first.1, second.1, "events");
        prop_assert_eq!(first.2, second.2, "counters");
        prop_assert!(first.3 == second.3, "memory");
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..600), queue in 0..QUEUES.len(), opcode in 0..0x20u8) {
        let mut world = World::new(Mode::Running);
        let mut bytes = bytes;
        if let Some(byte) = bytes.get_mut(7) {
            *byte = *byte & 0xe0 | opcode;
        }
        world.push(&vec![(queue, vec![bytes])]);
        world.chip.run(10_000);
        for event in world.events() {
            if let Event::Stop(stop) = event {
                prop_assert!(stop.to_string().contains("stopped at offset"), "a stop prints: {}", stop);
            }
        }
    }

    #[test]
    fn copies_and_fills_match_an_array(
        jobs in vec((0..4u8, 0..30_000usize, 0..30_000usize, 0..9_000usize, any::<u32>()), 1..12)
    ) {
        // Two mappings side by side stand for one array of 32 KiB: pieces of a transfer change in
        // the middle.
        let mut world = World::new(Mode::Running);
        let mut plain = [vec![0xa5; 2 * PIECE], vec![0; WINDOW as usize]];
        let base = [HOST, DRAM];
        let mut packets = Vec::new();
        for &(kind, to, from, size, pattern) in &jobs {
            let (to_side, from_side) = (usize::from(kind & 1), usize::from(kind >> 1));
            let size = size.min(plain[to_side].len() - to).min(plain[from_side].len() - from);
            let destination = va(base[to_side], to);
            if pattern % 3 == 0 {
                packets.push(LinDma::memset(destination, pattern, size as u32).to_bytes().to_vec());
                let bytes = pattern.to_le_bytes();
                plain[to_side][to..to + size].iter_mut().zip(0..).for_each(|(byte, i)| *byte = bytes[i % 4]);
            } else {
                let source = va(base[from_side], from);
                packets.push(LinDma::copy(destination, source, size as u32).to_bytes().to_vec());
                let bytes = plain[from_side][from..from + size].to_vec();
                plain[to_side][to..to + size].copy_from_slice(&bytes);
            }
        }
        world.push(&vec![(0, packets)]);
        prop_assert_eq!(world.chip.run(1000), RunOutcome::Idle);
        let all = world.contents();
        let host = [&all[GUARD..][..PIECE], &all[2 * GUARD + PIECE..][..PIECE]].concat();
        prop_assert!(host == plain[0], "host memory differs from the array");
        prop_assert!(all[world.host.len()..] == plain[1][..], "device memory differs from the array");
    }
}

#[test]
fn stopped_stream_does_not_stop_others() {
    let mut rig = Rig::new();
    rig.push(queue::PDMA_0_0, 1, &[0xff; 64]);
    rig.push(queue::PDMA_1_0, 2, &Nop::new().to_bytes());
    assert_eq!(rig.chip.run(rig::BUDGET), RunOutcome::Blocked);
    let events = rig.events();
    assert!(
        events.contains(&Event::CbDone {
            queue: queue::PDMA_1_0,
            tag: 2
        }),
        "the other stream ended: {events:?}"
    );
}
