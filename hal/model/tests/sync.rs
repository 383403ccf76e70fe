//! Streams that wait for one another through sync objects, monitors and fences.

mod rig;

use gaudi_model::{Chip, ChipConfig, Event, FaultCause, Held, MemoryKind, Mode, ModelError, RunOutcome};
use gaudi_spec::gaudi2::packet::MsgShort;
use gaudi_spec::gaudi2::queue::{PDMA_0_0, PDMA_0_1, PDMA_1_0};
use gaudi_spec::gaudi2::sync::{
    CQ_BASE_H, CQ_BASE_L, CQ_INC_MODE, CQ_LBW_ADDR_H, CQ_LBW_ADDR_L, CQ_LBW_DATA, CQ_PI, CQ_SIZE_LOG2,
    Compare, GLBL, LONG_MAX, MON_ARM, MON_CONFIG, MON_PAY_ADDRH, MON_PAY_ADDRL, MON_PAY_DATA, MON_STATUS,
    MonArm, MonConfig, SOB_OBJ, SobUpdate, long_parts, objs_address,
};
use gaudi_spec::gaudi2::{CFG_BASE, DOORBELL_VA, DRAM_PAGE, qman, queue};
use gaudi_spec::{DevicePa, DeviceVa};

use rig::{BUDGET, DRAM, HOST, Program, Rig, va};

const A: u32 = 500;
const B: u32 = 8190;

impl Rig {
    fn monitor_register(&mut self, dcore: u32, register: u32, monitor: u32, value: u32) {
        let at = objs_address(dcore, register, monitor).expect("a monitor");
        self.chip.write32(DevicePa(at.0), value).expect("a register");
    }

    fn read(&mut self, dcore: u32, register: u32, index: u32) -> u32 {
        let at = objs_address(dcore, register, index).expect("a register");
        self.chip.read32(DevicePa(at.0)).expect("a register")
    }

    fn sob(&mut self, sob: u32, update: SobUpdate) -> u16 {
        self.chip.set_sob(0, sob, update).expect("a sync object");
        self.value(0, sob).expect("a sync object")
    }
}

#[test]
fn sob_saturates_at_fifteen_bits() {
    let mut rig = Rig::new();
    assert_eq!(rig.sob(A, SobUpdate::set(0x7fff)), 0x7fff);
    assert_eq!(
        rig.sob(A, SobUpdate::add_signed(1)),
        0x7fff,
        "no further than 15 bits"
    );
    assert_eq!(rig.sob(A, SobUpdate::add_signed(-0x7ff0)), 0xf);
    assert_eq!(
        rig.sob(A, SobUpdate::add_signed(i16::MIN)),
        0,
        "no lower than zero"
    );
    assert_eq!(rig.read(0, SOB_OBJ, A), 0);
    assert_eq!(rig.chip.set_sob(0, 8192, SobUpdate::set(1)), None);
}

#[test]
fn monitor_fires_once_when_all_match() {
    let mut rig = Rig::new();
    let group = A / 8;
    for (register, value) in [
        (MON_PAY_ADDRL, va(HOST, 64).0 as u32),
        (MON_PAY_ADDRH, (HOST.0 >> 32) as u32),
        (MON_PAY_DATA, 0x77),
        (
            MON_ARM,
            MonArm::new()
                .with_group(group as u8)
                .with_mask(0b1111_0101)
                .with_value(3)
                .into_bits(),
        ),
    ] {
        rig.monitor_register(0, register, 300, value);
    }
    assert_eq!(
        rig.read(0, MON_STATUS, 300),
        1 | 0b1010 << 1,
        "armed, objects 1 and 3 of the group awaited"
    );
    rig.sob(group * 8 + 1, SobUpdate::set(5));
    rig.sob(group * 8 + 2, SobUpdate::set(5));
    assert_eq!(
        rig.read(0, MON_STATUS, 300),
        1 | 0b1000 << 1,
        "object 1 is at or above 3; object 2 is masked out"
    );
    assert_eq!(rig.host_bytes(64, 1), [0], "not yet");
    rig.sob(group * 8 + 3, SobUpdate::set(3));
    assert_eq!(rig.host_bytes(64, 1), [0x77], "now");
    assert_eq!(rig.read(0, MON_STATUS, 300), 0, "disarmed");
    rig.host.write(64, &[0]).unwrap();
    rig.sob(group * 8 + 3, SobUpdate::set(4));
    assert_eq!(rig.host_bytes(64, 1), [0], "once");
}

#[test]
fn arming_checks_equal_at_once() {
    let mut rig = Rig::new();
    rig.sob(A, SobUpdate::set(4));
    rig.monitor_register(0, MON_PAY_ADDRL, 0, HOST.0 as u32);
    rig.monitor_register(0, MON_PAY_ADDRH, 0, (HOST.0 >> 32) as u32);
    rig.monitor_register(0, MON_PAY_DATA, 0, 1);
    rig.monitor_register(0, MON_ARM, 0, MonArm::for_sob(A, Compare::Equal, 3).into_bits());
    assert_eq!(rig.host_bytes(0, 1), [0], "4 is not 3");
    rig.monitor_register(0, MON_ARM, 0, MonArm::for_sob(A, Compare::AtLeast, 3).into_bits());
    assert_eq!(rig.host_bytes(0, 1), [1], "but at least 3");
}

#[test]
fn monitors_watch_their_own_die_core() {
    let mut rig = Rig::new();
    rig.monitor_register(1, MON_PAY_ADDRL, 7, HOST.0 as u32);
    rig.monitor_register(1, MON_PAY_ADDRH, 7, (HOST.0 >> 32) as u32);
    rig.monitor_register(1, MON_PAY_DATA, 7, 1);
    rig.monitor_register(1, MON_CONFIG, 7, MonConfig::for_sob(B).into_bits());
    rig.monitor_register(1, MON_ARM, 7, MonArm::for_sob(B, Compare::AtLeast, 1).into_bits());
    rig.chip.set_sob(0, B, SobUpdate::set(1)).unwrap();
    assert_eq!(rig.host_bytes(0, 1), [0], "die core 0's object is not watched");
    rig.chip.set_sob(1, B, SobUpdate::set(1)).unwrap();
    assert_eq!(
        rig.host_bytes(0, 1),
        [1],
        "group 1023 is reached through MON_CONFIG"
    );
}

#[test]
fn two_queues_play_ping_pong() {
    for mode in [Mode::Running, Mode::Stepped { seed: 3 }] {
        let mut rig = Rig::with(mode);
        let (mut ping, mut pong) = (Program::new(), Program::new());
        for round in 1..=20u16 {
            // Each side copies one byte along, notifies the other, and waits for the answer.
            let at = usize::from(round) * 2;
            ping = ping
                .copy(va(DRAM, at), va(DRAM, at - 1), 1)
                .sob(A, SobUpdate::add_signed(1))
                .wait(PDMA_0_0, 300, B, round);
            pong = pong
                .wait(PDMA_1_0, 301, A, round)
                .copy(va(DRAM, at + 1), va(DRAM, at), 1)
                .sob(B, SobUpdate::add_signed(1));
        }
        rig.chip
            .dram()
            .write(DevicePa(rig::DRAM_PA.0 + 1), &[0xab])
            .unwrap();
        rig.push(PDMA_1_0, 2, &pong.bytes());
        assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked, "pong waits for ping");
        rig.push(PDMA_0_0, 1, &ping.bytes());
        assert_eq!(
            rig.chip.run(BUDGET),
            RunOutcome::Idle,
            "{mode:?}: both come to their end in one run"
        );
        assert_eq!(
            rig.dram_bytes(1, 41),
            [0xab; 41],
            "{mode:?}: the byte went through every hand in order"
        );
        assert_eq!(rig.events().len(), 2);
        assert_eq!((rig.value(0, A), rig.value(0, B)), (Some(20), Some(20)));
    }
}

#[test]
fn driver_write_releases_waiting_stream() {
    let mut rig = Rig::new();
    rig.push(PDMA_0_1, 1, &Program::new().wait(PDMA_0_1, 400, A, 2).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert!(!rig.chip.queue_is_idle(PDMA_0_1));
    rig.sob(A, SobUpdate::add_signed(1));
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked, "1 is below 2");
    rig.sob(A, SobUpdate::add_signed(1));
    assert_eq!(rig.chip.held(PDMA_0_1), Some(Held::No));
    assert!(!rig.chip.queue_is_idle(PDMA_0_1), "it can continue");
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(
        rig.events(),
        [Event::CbDone {
            queue: PDMA_0_1,
            tag: 1
        }]
    );
}

#[test]
fn fence_takes_only_its_share() {
    let mut rig = Rig::new();
    let counter = DevicePa(rig::fence_address(PDMA_0_0, 1).0);
    rig.chip.write32(counter, 0xff).unwrap();
    assert_eq!(rig.chip.read32(counter), Ok(15), "a write adds four bits");
    rig.run_ok(PDMA_0_0, Program::new().fence(1, 10, 10).fence(1, 5, 4));
    assert_eq!(rig.chip.read32(counter), Ok(1));
    rig.push(PDMA_0_0, 1, &Program::new().fence(1, 2, 1).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let other = DevicePa(rig::fence_address(PDMA_0_1, 1).0);
    rig.chip.write32(other, 5).unwrap();
    assert_eq!(
        rig.chip.run(BUDGET),
        RunOutcome::Blocked,
        "stream 1's counter is another"
    );
    rig.chip.clear_user_sync();
    assert_eq!(
        rig.chip.read32(other),
        Ok(0),
        "the end of a context clears counters"
    );
}

#[test]
fn one_monitor_fires_several_payloads() {
    // As the driver sets decoders up (gaudi2.c:gaudi2_arm_monitors_for_virt_msix_db): an interrupt,
    // the object back down, and the monitor armed again.
    let mut rig = Rig::new();
    let arm = MonArm::for_sob(A, Compare::AtLeast, 1).into_bits();
    let payloads = [
        (DOORBELL_VA, 50),
        (
            objs_address(0, SOB_OBJ, A).unwrap(),
            SobUpdate::add_signed(-1).into_bits(),
        ),
        (objs_address(0, MON_ARM, 300).unwrap(), arm),
    ];
    for ((to, data), monitor) in payloads.into_iter().zip(300..) {
        rig.monitor_register(0, MON_PAY_ADDRL, monitor, to.0 as u32);
        rig.monitor_register(0, MON_PAY_ADDRH, monitor, (to.0 >> 32) as u32);
        rig.monitor_register(0, MON_PAY_DATA, monitor, data);
    }
    rig.monitor_register(
        0,
        MON_CONFIG,
        300,
        MonConfig::new().with_extra_writes(2).into_bits(),
    );
    rig.monitor_register(0, MON_ARM, 300, arm);
    for round in 1..=3 {
        rig.sob(A, SobUpdate::add_signed(1));
        assert_eq!(rig.events(), [Event::Interrupt { vector: 50 }], "round {round}");
        assert_eq!(
            rig.value(0, A),
            Some(0),
            "the second payload took the object down"
        );
    }
}

#[test]
fn self_arming_monitor_is_bounded() {
    let mut rig = Rig::new();
    let arm = MonArm::for_sob(A, Compare::AtLeast, 0);
    let to = objs_address(0, MON_ARM, 300).unwrap();
    let program = Program::new().monitor(300, A, 0, to, arm.into_bits()).nop();
    rig.push(PDMA_0_0, 1, &program.bytes());
    assert_eq!(rig.chip.run(1000), RunOutcome::Budget);
    assert_eq!(
        rig.chip.counters().monitors + rig.chip.counters().packets,
        1000,
        "each is paid for"
    );
    assert_eq!(rig.chip.run(1000), RunOutcome::Budget, "and it goes on");
    rig.chip.clear_user_sync();
    assert_eq!(rig.chip.run(1000), RunOutcome::Idle, "until it is cleared");
}

#[test]
fn a_completion_queue_stores_entries_and_rings() {
    let mut rig = Rig::new();
    let cq = 5;
    for (register, value) in [
        (CQ_BASE_L, va(HOST, 256).0 as u32),
        (CQ_BASE_H, (HOST.0 >> 32) as u32),
        (CQ_SIZE_LOG2, 4),
        (CQ_LBW_ADDR_L, DOORBELL_VA.0 as u32),
        (CQ_LBW_ADDR_H, (DOORBELL_VA.0 >> 32) as u32),
        (CQ_LBW_DATA, 60),
    ] {
        let at = CFG_BASE.checked_add(u64::from(GLBL + register + cq * 4)).unwrap();
        rig.chip.write32(at, value).unwrap();
    }
    rig.monitor_register(
        0,
        MON_CONFIG,
        300,
        MonConfig::new().with_cq_en(true).with_lbw_en(true).into_bits(),
    );
    rig.monitor_register(0, MON_PAY_ADDRL, 300, cq);
    for round in 1..=6u32 {
        rig.monitor_register(0, MON_PAY_DATA, 300, round);
        rig.monitor_register(
            0,
            MON_ARM,
            300,
            MonArm::for_sob(A, Compare::AtLeast, 0).into_bits(),
        );
        assert_eq!(rig.events(), [Event::Interrupt { vector: 60 }], "round {round}");
    }
    let entries = rig.host_bytes(256, 20);
    let first: Vec<_> = entries.iter().step_by(4).copied().collect();
    assert_eq!(
        first,
        [5, 6, 3, 4, 0],
        "four entries of four bytes, written round the end"
    );
    let entries = CFG_BASE.checked_add(u64::from(GLBL + CQ_PI + cq * 4)).unwrap();
    assert_eq!(rig.chip.read32(entries), Ok(6));
}

#[test]
fn failed_monitor_write_is_logged() {
    let mut rig = Rig::new();
    let mut program = Program::new();
    for _ in 0..200 {
        program = program.monitor(300, A, 0, DeviceVa(0x1234), 1);
    }
    rig.push(PDMA_0_0, 1, &program.bytes());
    assert_eq!(
        rig.chip.run(BUDGET),
        RunOutcome::Idle,
        "the stream that armed it goes on"
    );
    let events = rig.events();
    let fault = Event::MonitorFault {
        dcore: 0,
        monitor: 300,
        address: DeviceVa(0x1234),
        cause: FaultCause::NotMapped,
    };
    assert_eq!(events[0], fault);
    assert_eq!(
        (events.len(), rig.chip.counters().events_dropped),
        (65, 136),
        "64 are kept, 136 counted"
    );
}

#[test]
fn context_switch_clears_user_objects_only() {
    let mut rig = Rig::new();
    for sob in [412, 413] {
        rig.sob(sob, SobUpdate::set(1));
    }
    rig.chip.set_sob(1, 0, SobUpdate::set(1)).unwrap();
    for monitor in [288, 289] {
        rig.monitor_register(
            0,
            MON_ARM,
            monitor,
            MonArm::for_sob(A, Compare::AtLeast, 1).into_bits(),
        );
    }
    rig.chip.clear_user_sync();
    assert_eq!(
        (rig.value(0, 412), rig.value(0, 413), rig.value(1, 0)),
        (Some(1), Some(0), Some(0))
    );
    assert_eq!(
        (rig.read(0, MON_STATUS, 288) & 1, rig.read(0, MON_STATUS, 289) & 1),
        (1, 0)
    );
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let order = |seed| {
        let mut rig = Rig::with(Mode::Stepped { seed });
        for (queue, tag) in [(PDMA_0_0, 0), (PDMA_0_1, 1), (PDMA_1_0, 2)] {
            let program = (0..20).fold(Program::new(), |program, _| program.nop());
            rig.push(
                queue,
                tag,
                &program.short(MsgShort::sob(A, SobUpdate::add_signed(1))).bytes(),
            );
        }
        let mut order = Vec::new();
        while let Some(queue) = rig.chip.step() {
            order.push(queue.0);
        }
        assert_eq!(order.len(), 63, "every packet is one step");
        order
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8), "another seed, another order");
}

#[test]
fn device_memory_comes_in_pages() {
    let make = |dram_user_bytes| {
        Chip::new(ChipConfig {
            dram_user_bytes,
            mode: Mode::Running,
            memory: MemoryKind::Shared,
        })
    };
    let size = |asked, below, above| {
        let page = DRAM_PAGE;
        Some(ModelError::DramSize {
            page,
            asked,
            below,
            above,
        })
    };
    assert_eq!(
        make(DRAM_PAGE + 1).err(),
        size(DRAM_PAGE + 1, DRAM_PAGE, 2 * DRAM_PAGE)
    );
    assert_eq!(make(0).err(), size(0, DRAM_PAGE, DRAM_PAGE));
    let most = 97_536 << 20;
    assert_eq!(make(u64::MAX).err(), size(u64::MAX, most, most));
    let full = make(most).expect("a full card is a sparse file");
    assert_eq!(full.dram().len(), 96 << 30);
    assert_eq!(
        full.dram().memfd().unwrap().resident().unwrap(),
        0,
        "and takes no memory"
    );
}

#[test]
fn long_sob_counts_over_four_objects() {
    let mut rig = Rig::new();
    let (sob, monitor, value) = (504, 320, 0xfff_e000_3fff_8100_u64);
    // As hl-thunk's test_sm_long_mode: the first of the four clears the others.
    rig.sob(sob + 3, SobUpdate::set(5));
    for (part, at) in long_parts(value - 0x100).into_iter().zip(sob..) {
        rig.sob(at, SobUpdate::set(part).with_long(at == sob));
    }
    assert_eq!(
        [0, 1, 2, 3].map(|at| rig.value(0, sob + at)),
        long_parts(value - 0x100).map(Some)
    );
    rig.monitor_register(0, MON_CONFIG, monitor, MonConfig::for_long_sob(sob).into_bits());
    for (payload, at) in [(monitor, 0), (monitor + 1, 8)] {
        rig.monitor_register(0, MON_PAY_ADDRL, payload, va(HOST, at).0 as u32);
        rig.monitor_register(0, MON_PAY_ADDRH, payload, (HOST.0 >> 32) as u32);
        rig.monitor_register(0, MON_PAY_DATA, payload, payload);
    }
    let arms = MonArm::for_long_sob(sob, Compare::Equal, value);
    for (arm, at) in arms.into_iter().zip(monitor..monitor + 4).rev() {
        rig.monitor_register(0, MON_ARM, at, arm.into_bits());
    }
    assert_eq!(rig.read(0, MON_STATUS, monitor), 1 | 1 << 1, "armed and waiting");
    assert_eq!(
        rig.read(0, MON_STATUS, monitor + 1),
        0,
        "the others are parts of it, and not armed"
    );
    rig.sob(sob, SobUpdate::add_signed(0x101).with_long(true));
    assert_eq!(rig.host_bytes(0, 1), [0], "one too many");
    rig.sob(sob, SobUpdate::add_signed(-1).with_long(true));
    assert_eq!(rig.host_bytes(0, 2), 320u16.to_le_bytes());
    assert_eq!(
        rig.host_bytes(8, 2),
        321u16.to_le_bytes(),
        "and the second payload"
    );
    // A carry goes through all four, and the ends hold.
    for (part, at) in long_parts(LONG_MAX - 1).into_iter().zip(sob..) {
        rig.sob(at, SobUpdate::set(part));
    }
    rig.sob(sob, SobUpdate::add_signed(9).with_long(true));
    assert_eq!(rig.value(0, sob + 3), Some(0x7fff), "no further than 60 bits");
    rig.sob(sob, SobUpdate::set(3).with_long(true));
    rig.sob(sob, SobUpdate::add_signed(-4).with_long(true));
    assert_eq!(
        [0, 3].map(|at| rig.value(0, sob + at)),
        [Some(0); 2],
        "and no lower than zero"
    );
    assert_eq!(
        rig.chip.set_sob(0, sob + 1, SobUpdate::set(1).with_long(true)),
        None,
        "four start at a multiple of four"
    );
}

#[test]
fn upper_half_of_group_is_long_too() {
    let mut rig = Rig::new();
    let (sob, monitor) = (508, 324);
    rig.monitor_register(0, MON_CONFIG, monitor, MonConfig::for_long_sob(sob).into_bits());
    for at in [monitor, monitor + 1] {
        rig.monitor_register(0, MON_PAY_ADDRL, at, HOST.0 as u32);
        rig.monitor_register(0, MON_PAY_ADDRH, at, (HOST.0 >> 32) as u32);
        rig.monitor_register(0, MON_PAY_DATA, at, 7);
    }
    for (arm, at) in MonArm::for_long_sob(sob, Compare::AtLeast, 1 << 20)
        .into_iter()
        .zip(monitor..monitor + 4)
        .rev()
    {
        rig.monitor_register(0, MON_ARM, at, arm.into_bits());
    }
    rig.sob(sob - 4 + 1, SobUpdate::set(0x7fff));
    assert_eq!(rig.host_bytes(0, 1), [0], "the lower half is not watched");
    rig.sob(sob + 1, SobUpdate::set(1 << 6));
    assert_eq!(rig.host_bytes(0, 1), [7], "at or above 2^20");
}

#[test]
fn counting_cq_adds_to_64_bit_word() {
    let mut rig = Rig::new();
    let (cq, monitor) = (5, 330);
    let global = |register: u32| DevicePa(CFG_BASE.0 + u64::from(GLBL + register + cq * 4));
    rig.host.write(64, &u64::from(u32::MAX).to_le_bytes()).unwrap();
    for (register, value) in [
        (CQ_BASE_L, va(HOST, 64).0 as u32),
        (CQ_BASE_H, (HOST.0 >> 32) as u32),
        (CQ_SIZE_LOG2, 3),
        (CQ_INC_MODE, 1),
        (CQ_LBW_ADDR_L, DOORBELL_VA.0 as u32),
        (CQ_LBW_ADDR_H, (DOORBELL_VA.0 >> 32) as u32),
        (CQ_LBW_DATA, 50),
    ] {
        rig.chip.write32(global(register), value).unwrap();
    }
    rig.monitor_register(0, MON_PAY_ADDRL, monitor, cq);
    rig.monitor_register(0, MON_PAY_DATA, monitor, 2);
    let config = MonConfig::for_sob(A).with_cq_en(true).with_lbw_en(true);
    rig.monitor_register(0, MON_CONFIG, monitor, config.into_bits());
    for fired in 1..=3u64 {
        let arm = MonArm::for_sob(A, Compare::AtLeast, 0);
        rig.monitor_register(0, MON_ARM, monitor, arm.into_bits());
        let wanted = u64::from(u32::MAX) + 2 * fired;
        assert_eq!(
            rig.host_bytes(64, 8),
            wanted.to_le_bytes(),
            "a carry into the upper half"
        );
        assert_eq!(rig.events(), [Event::Interrupt { vector: 50 }]);
    }
    assert_eq!(rig.chip.read32(global(CQ_PI)), Ok(3));
    assert_eq!(rig.chip.read32(global(CQ_INC_MODE)), Ok(1));
    // Where it is not aligned it counts all the same.
    rig.chip
        .write32(global(CQ_BASE_L), va(HOST, 101).0 as u32)
        .unwrap();
    rig.monitor_register(
        0,
        MON_ARM,
        monitor,
        MonArm::for_sob(A, Compare::AtLeast, 0).into_bits(),
    );
    assert_eq!(rig.host_bytes(100, 3), [0, 2, 0]);
}

#[test]
fn monitors_of_one_sob_fire_in_order() {
    let mut rig = Rig::new();
    let first = 600;
    let program = (0..3).fold(Program::new(), |program, nth| {
        program.monitor(first + nth, A, 1, HOST, nth + 1)
    });
    rig.run_ok(PDMA_0_0, program.sob(A, SobUpdate::set(1)));
    assert_eq!(
        rig.host_bytes(0, 4),
        [3, 0, 0, 0],
        "the last monitor's word stays"
    );
}

#[test]
fn next_context_finds_plain_monitors() {
    let mut rig = Rig::new();
    for dcore in 0..4 {
        let config = MonConfig::for_long_sob(A / 8 * 8).with_cq_en(true);
        rig.monitor_register(dcore, MON_CONFIG, 600, config.into_bits());
    }
    rig.chip.clear_user_sync();
    for dcore in 0..4 {
        assert_eq!(rig.read(dcore, MON_CONFIG, 600), 0, "die core {dcore}");
    }
}

#[test]
fn fence_counters_stop_at_their_maximum() {
    let mut rig = Rig::new();
    let row = queue::row(PDMA_0_0).expect("a queue");
    let at = DevicePa(CFG_BASE.0 + u64::from(row.qman + qman::FENCE_CNT));
    for value in [qman::FENCE_MAX, qman::FENCE_MAX + 1, 0x1_0001, u32::MAX] {
        rig.chip.write32(at, value).expect("a register");
        assert_eq!(rig.chip.read32(at), Ok(qman::FENCE_MAX), "{value:#x}");
    }
}
