//! A driver that means harm, or a guest that fell over: whatever it writes, the card comes back
//! soon and whole.

mod card;

use gaudi_model::pci::Note;
use gaudi_model::{Event, Unsupported};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::firmware::{self, packet};
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_spec::gaudi2::{CFG_BASE, DRAM_PHYS_BASE, qman, queue, sync};

use card::{FILL, HOST, Rig, program};

#[test]
fn transfer_that_restarts_itself_is_rejected() {
    let mut rig = Rig::new();
    let commit = qman::KDMA + qman::COMMIT;
    rig.kdma_fill(HOST, 4, (CFG_BASE.get() + u64::from(commit), FILL));
    while rig.chip.next_note().is_some() {}
    rig.write(commit, FILL);
    assert!(!rig.chip.is_busy(), "nothing is left to do");
    let refused = std::iter::from_fn(|| rig.chip.next_note()).any(|note| {
        matches!(
            note,
            Note::Engine(Event::Unsupported {
                what: Unsupported::Nested,
                ..
            })
        )
    });
    assert!(refused, "and it is logged");
}

#[test]
fn packet_at_end_of_address_space_faults() {
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    while rig.chip.next_note().is_some() {}
    for at in [u64::MAX - 2, u64::MAX - 8, u64::MAX] {
        let mut entry = at.to_le_bytes().to_vec();
        entry.extend([0; 8]);
        rig.put(HOST + 0x1000, &entry);
        rig.write(firmware::PQ_PI, 1);
        rig.write(firmware::GIC_HOST_PI_UPD, 1);
        let notes = std::iter::from_fn(|| rig.chip.next_note());
        assert!(
            notes.into_iter().any(|note| note == Note::BadAddress(at)),
            "{at:#x} is logged"
        );
        rig.queues();
    }
}

#[test]
fn one_write_does_not_move_gigabytes() {
    const FILLS: u64 = 6;
    const EACH: u64 = 64 << 20;
    let mut rig = Rig::new();
    let (ring, cb) = (HOST + 0x9000, HOST + 0xa000);
    rig.ring(0, ring);
    let to = DeviceVa(DRAM_PHYS_BASE.get() + (1 << 30));
    let bytes = program(|program| {
        for _ in 0..FILLS {
            let fill = LinDma::memset(to, 0x5a, EACH as u32);
            program.lin_dma(fill).expect("it fits");
        }
    });
    rig.put(cb, &bytes);
    rig.entry(ring, 0, cb, FILLS as usize * LinDma::LEN, 3);
    let doorbell = queue::row(queue::PDMA_0_0).expect("a queue").qman + qman::PQ_PI;
    rig.write(doorbell, 1);
    let moved = rig.chip.engines().memset;
    assert!(moved <= 2 * EACH, "{moved} bytes within one access");
    assert!(rig.chip.is_busy(), "there is more to do");
    assert_eq!(rig.sob(3), 0);
    let mut runs = 0;
    while rig.chip.run(1 << 10) {
        runs += 1;
        assert!(runs < 1000, "it comes to an end");
    }
    assert_eq!(rig.chip.engines().memset, FILLS * EACH, "each byte once");
    assert_eq!(rig.chip.engines().lin_dma, FILLS);
    assert_eq!(rig.sob(3), 1, "and then the job is done");
}

#[test]
fn register_write_moves_no_gigabytes() {
    const SIZE: u32 = 160 << 20;
    let mut rig = Rig::new();
    let sob = CFG_BASE.get() + u64::from(sync::OBJS) + 4 * 4;
    rig.kdma_fill(DRAM_PHYS_BASE.get() + (1 << 30), SIZE, (sob, 7));
    rig.write(qman::KDMA + qman::COMMIT, FILL);
    assert!(rig.chip.is_busy() && rig.sob(4) == 0, "it is not done");
    assert!(rig.chip.engines().memset <= u64::from(SIZE) / 2);
    while rig.chip.run(1 << 10) {}
    assert_eq!(rig.chip.engines().memset, u64::from(SIZE));
    assert_eq!(rig.sob(4), 7, "its completion is written at its end");
    // More than it takes are lost; and a reset ends what is left.
    for _ in 0..40 {
        rig.write(qman::KDMA + qman::COMMIT, FILL);
    }
    assert!(rig.chip.counters().lost > 0);
    rig.chip.reset();
    let before = rig.chip.engines().memset;
    rig.chip.run(1 << 10);
    assert_eq!(rig.chip.engines().memset, before);
}

#[test]
fn doorbell_resets_engines_once_at_a_time() {
    const PACKETS: u32 = 100;
    let mut rig = Rig::new();
    rig.boot();
    rig.queues();
    let at = HOST + 0x3000;
    let mut bytes = vec![0; packet::SIZE];
    bytes[8..12].copy_from_slice(&(u32::from(packet::SOFT_RESET) << 16).to_le_bytes());
    rig.put(at, &bytes);
    let mut entry = at.to_le_bytes().to_vec();
    entry.extend((packet::SIZE as u64).to_le_bytes());
    for nth in 0..u64::from(PACKETS) {
        rig.put(HOST + 0x1000 + nth * 16, &entry);
    }
    rig.write(firmware::PQ_PI, PACKETS);
    rig.write(firmware::GIC_HOST_PI_UPD, 1);
    assert_eq!(rig.chip.counters().soft_resets, 1, "one within the access");
    while rig.chip.run(1 << 10) {}
    let counters = rig.chip.counters();
    assert_eq!(
        (counters.soft_resets, counters.packets),
        (u64::from(PACKETS), u64::from(PACKETS)),
        "all are answered"
    );
}
