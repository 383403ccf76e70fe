//! A driver that means harm, or a guest that fell over: whatever it writes, the card comes back soon and whole.

mod card;

use gaudi_model::pci::Note;
use gaudi_model::{Event, Unsupported};
use gaudi_spec::gaudi2::firmware;
use gaudi_spec::gaudi2::{CFG_BASE, qman};

use card::{FILL, HOST, Rig};

#[test]
fn a_transfer_whose_end_starts_it_again_is_refused() {
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
    assert!(refused, "and it is told");
}

#[test]
fn a_packet_at_the_end_of_the_address_space_is_no_memory() {
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
        let told = std::iter::from_fn(|| rig.chip.next_note());
        assert!(
            told.into_iter().any(|note| note == Note::BadAddress(at)),
            "{at:#x} is told"
        );
        rig.queues();
    }
}
