//! Any driver: registers that do something, rings and packets in memory that the card sees, in any
//! order and with any values. Nothing panics, every access comes back, and a reset brings a card
//! that boots.

mod card;

use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgLong};
use gaudi_spec::gaudi2::{
    CFG_BASE, DRAM_BAR, DRAM_PHYS_BASE, DRAM_SIZE, HOST_VA, SRAM_BASE, SRAM_SIZE, firmware, mmu, qman, queue,
    sync,
};
use gaudi_spec::{BarOffset, DeviceVa, QueueId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use card::{DOORBELL, FILL, HOST, HOST_LEN, Rig};

/// Longer than a case takes on a machine that does other things too; an access that never comes
/// back takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rings and packets to the firmware lie in these pages; command buffers and data in the rest.
const RINGS: u64 = HOST + 0x9000;
const PACKETS: u64 = HOST + 0x3000;
const CODE: u64 = HOST + 0xa000;

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32),
    Address((u32, u32), u64),
    Memory(u64, Vec<u8>),
    /// A ring of a stream, so many entries in it, and their doorbell.
    Ring(u32, u32),
    Queues,
    /// So many packets to the firmware.
    Packets(u32),
    Msix(u64, Vec<u8>),
    Event(u16),
    Run,
    Reset,
}

fn qmans() -> Vec<u32> {
    [queue::PDMA_0_0, queue::PDMA_1_0, QueueId(8), QueueId(20)]
        .into_iter()
        .filter_map(queue::row)
        .map(|row| row.qman)
        .collect()
}

/// Registers that do something.
fn registers() -> Vec<u32> {
    let words = |start: u32, len: u32| (start..start + len).step_by(4);
    let mut all = vec![
        firmware::PQ_PI,
        firmware::EQ_LENGTH,
        firmware::QUEUE_INIT,
        firmware::GIC_HOST_PI_UPD,
        firmware::GIC_HOST_INTS,
        firmware::KMD_MSG_TO_CPU,
    ];
    all.extend(words(qman::KDMA + qman::SRC_BASE_LO, 0xf0));
    all.extend([qman::KDMA + qman::COMMIT; 16]);
    for qman in qmans() {
        for table in [
            qman::PQ_PI,
            qman::PQ_CI,
            qman::PQ_SIZE,
            qman::FENCE_RDATA,
            qman::ARB_CFG,
        ] {
            all.extend(words(qman + table, 16));
        }
        all.extend(words(qman, 0x200));
        all.extend(words(qman + qman::DMA_CORE + qman::WR_COMP_ADDR_HI, 0x40));
        all.extend([qman + qman::DMA_CORE + qman::COMMIT; 8]);
    }
    for table in [0, sync::MON_CONFIG, sync::MON_ARM, sync::MON_PAY_DATA] {
        all.extend(words(sync::OBJS + table, 64));
    }
    all.extend(words(sync::GLBL, 0x100));
    for stlb in [mmu::PMMU_STLB, mmu::HMMU_STLB] {
        all.extend(words(stlb, 0x80));
    }
    all
}

/// Pairs of registers that hold an address.
fn pairs() -> Vec<(u32, u32)> {
    let mut all = vec![
        (firmware::PQ_BASE_LO, firmware::PQ_BASE_HI),
        (firmware::EQ_BASE_LO, firmware::EQ_BASE_HI),
        (sync::GLBL + sync::CQ_BASE_L, sync::GLBL + sync::CQ_BASE_H),
        (sync::GLBL + sync::CQ_LBW_ADDR_L, sync::GLBL + sync::CQ_LBW_ADDR_H),
    ];
    let cores = qmans().into_iter().map(|qman| qman + qman::DMA_CORE);
    for core in cores.chain([qman::KDMA]) {
        let at = |register: u32| core + register;
        all.push((at(qman::SRC_BASE_LO), at(qman::SRC_BASE_HI)));
        all.push((at(qman::DST_BASE_LO), at(qman::DST_BASE_HI)));
        all.push((at(qman::WR_COMP_ADDR_LO), at(qman::WR_COMP_ADDR_HI)));
    }
    for qman in qmans() {
        for table in [
            (qman::PQ_BASE_LO, qman::PQ_BASE_HI),
            (qman::PQC_LBW_BASE_LO, qman::PQC_LBW_BASE_HI),
        ] {
            all.push((qman + table.0, qman + table.1));
        }
    }
    for monitor in 0..4 {
        let at = |table| sync::OBJS + table + monitor * 4;
        all.push((at(sync::MON_PAY_ADDRL), at(sync::MON_PAY_ADDRH)));
    }
    all
}

/// Addresses where something is. Of device memory the last 2 MiB alone: what a transfer of
/// gigabytes touches is memory of this machine.
fn address() -> impl Strategy<Value = u64> {
    let register = select(registers()).prop_map(|register| CFG_BASE.get() + u64::from(register));
    prop_oneof![
        6 => (0..HOST_LEN as u64).prop_map(|at| HOST + at),
        4 => (0..HOST_LEN as u64 / 16).prop_map(|at| HOST + at * 16),
        3 => register,
        2 => (0..2u64 << 20).prop_map(|at| DRAM_PHYS_BASE.get() + DRAM_SIZE - 1 - at),
        1 => (0..4096u64).prop_map(|at| SRAM_BASE.get() + SRAM_SIZE - 1 - at),
        1 => (0..8192u64).prop_map(|at| HOST_VA.start.get() + at),
        1 => Just(DOORBELL),
        1 => (0..16u64).prop_map(|at| u64::MAX - at),
    ]
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(FILL),
        0..32u32,
        (0..0x2_0000u32).prop_map(|value| value << 4),
        // COMMS commands.
        (0..32u32, 0..0x1000u32).prop_map(|(command, size)| command << 27 | size),
        any::<u32>(),
    ]
}

fn memory() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![0..300u32, 0..0x4_0000u32, any::<u32>()];
    prop_oneof![
        3 => (address(), address(), size.clone(), any::<bool>()).prop_map(|(to, from, size, completes)| {
            let packet = LinDma::copy(DeviceVa(to), DeviceVa(from), size);
            packet.with_write_completion(completes).to_bytes().to_vec()
        }),
        2 => (address(), any::<u32>(), size)
            .prop_map(|(to, with, size)| LinDma::memset(DeviceVa(to), with, size).to_bytes().to_vec()),
        3 => (address(), value()).prop_map(|(to, value)| MsgLong::new(DeviceVa(to), value).to_bytes().to_vec()),
        1 => (0..4u8, 0..2u8).prop_map(|(id, by)| Fence::new(id, by, by).expect("in range").to_bytes().to_vec()),
        // A packet to the firmware: value, control word, fence, argument.
        3 => (address(), 0..64u32, value()).prop_map(|(value, operation, argument)| {
            let mut bytes = value.to_le_bytes().to_vec();
            bytes.extend([operation << 16, 0, argument, 0].iter().flat_map(|word| word.to_le_bytes()));
            bytes
        }),
        // An entry of a queue or a page table.
        2 => (address(), any::<u64>()).prop_map(|(at, rest)| [at | rest & 0xfff, rest].map(u64::to_le_bytes).concat()),
        1 => vec(any::<u8>(), 0..64),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![
        0..HOST_LEN as u64 - 64,
        (0..64u64).prop_map(|nth| CODE - HOST + nth * 16),
        (0..16u64).prop_map(|nth| PACKETS - HOST + nth * 32),
        (0..8u64).prop_map(|nth| RINGS - HOST + nth * 16),
        (0..64u64).prop_map(|nth| 0x1000 + nth * 16),
    ];
    prop_oneof![
        8 => (select(registers()), value()).prop_map(|(register, value)| Step::Write(register, value)),
        6 => (select(pairs()), address()).prop_map(|(pair, to)| Step::Address(pair, to)),
        8 => (place, memory()).prop_map(|(at, bytes)| Step::Memory(HOST + at, bytes)),
        4 => (0..4u32, 0..9u32).prop_map(|(stream, entries)| Step::Ring(stream, entries)),
        2 => Just(Step::Queues),
        3 => prop_oneof![0..9u32, Just(4095u32)].prop_map(Step::Packets),
        1 => (0..0x4100u64, vec(any::<u8>(), 0..32)).prop_map(|(at, bytes)| Step::Msix(at, bytes)),
        1 => any::<u16>().prop_map(Step::Event),
        2 => Just(Step::Run),
        1 => Just(Step::Reset),
    ]
}

fn take(rig: &mut Rig, step: &Step) {
    match step {
        Step::Write(register, value) => rig.write(*register, *value),
        Step::Address((low, high), to) => rig.write64(*low, *high, *to),
        Step::Memory(at, bytes) => rig.put(*at, bytes),
        Step::Ring(stream, entries) => {
            rig.ring(*stream, RINGS);
            for nth in 0..*entries {
                rig.entry(RINGS, u64::from(nth % 8), CODE + u64::from(nth) * 16, 256, nth);
            }
            let qman = queue::row(queue::PDMA_0_0).expect("a queue").qman;
            rig.write(qman + qman::PQ_PI + stream * 4, *entries);
        }
        Step::Queues => {
            rig.write64(firmware::PQ_BASE_LO, firmware::PQ_BASE_HI, HOST + 0x1000);
            rig.write64(firmware::EQ_BASE_LO, firmware::EQ_BASE_HI, HOST + 0x4000);
            rig.write(firmware::EQ_LENGTH, 64 * 64);
            rig.write(firmware::QUEUE_INIT, firmware::QUEUES_SET);
            rig.write(firmware::GIC_HOST_PI_UPD, 1);
        }
        Step::Packets(count) => {
            for nth in 0..u64::from(*count).min(64) {
                let entry = [PACKETS + nth % 16 * 32, 32].map(u64::to_le_bytes).concat();
                rig.put(HOST + 0x1000 + nth * 16, &entry);
            }
            rig.write(firmware::PQ_PI, *count);
            rig.write(firmware::GIC_HOST_PI_UPD, 1);
        }
        Step::Msix(at, bytes) => rig.chip.bar_write(2, BarOffset(*at), bytes),
        Step::Event(event) => drop(rig.chip.send_event(*event, &[7; 7])),
        Step::Run => drop(rig.chip.run(1 << 10)),
        Step::Reset => rig.chip.reset(),
    }
    while rig.chip.next_interrupt().is_some() {}
    while let Some(note) = rig.chip.next_note() {
        assert!(!note.to_string().is_empty());
    }
}

/// One card for all cases: each ends with a reset, after which a card is as new.
static RIG: Mutex<Option<Rig>> = Mutex::new(None);

/// Whether the steps came to their end; the thread reports their panics.
fn comes_back(steps: Vec<Step>) -> Result<(), &'static str> {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        let mut kept = RIG.lock().unwrap_or_else(PoisonError::into_inner);
        if RIG.is_poisoned() {
            // A case before panicked in the middle of its card.
            *kept = None;
            RIG.clear_poison();
        }
        let rig = kept.get_or_insert_with(Rig::new);
        for step in &steps {
            take(rig, step);
        }
        rig.chip.reset();
        rig.boot();
        rig.chip.reset();
        rig.host.fill(0, HOST_LEN, 0).expect("all of it");
        assert!(!rig.chip.run(1 << 10), "after a reset there is nothing to do");
        let mut head = [1; 64];
        rig.chip.bar_read(DRAM_BAR, BarOffset(0), &mut head);
        assert_eq!(head, [0; 64], "and nothing of before");
        sender.send(()).expect("the receiver waits");
    });
    match receiver.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => Err("an access does not come back"),
        _ => worker.join().map_err(|_| "it panicked"),
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(150))]

    #[test]
    fn any_driver_gets_the_card_back(steps in vec(step(), 1..60)) {
        prop_assert_eq!(comes_back(steps), Ok(()));
    }
}
