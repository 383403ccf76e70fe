//! The suite on the modelled chip in process, and what can only be seen there.

use std::sync::Arc;

use gaudi_device_conformance::{Card, HOST, for_each_case, run};
use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::{Note, PciConfig};
use gaudi_seam::{DeviceIo, Iova, RawMapping};
use gaudi_spec::gaudi2::SRAM_BASE;

fn card() -> ModelDevice {
    ModelDevice::new(PciConfig::default()).expect("a card")
}

macro_rules! tests {
    ($($case:ident)*) => {
        $(#[test]
        fn $case() {
            run(stringify!($case), &card());
        })*
    };
}
for_each_case!(tests);

#[test]
fn the_card_tells_where_it_met_no_memory() {
    let model = card();
    let card = Card::new(&model);
    let page = Arc::new(RawMapping::anonymous(4096, false).expect("memory"));
    card.show(HOST, &page);
    card.copy(SRAM_BASE.get(), HOST, 64);
    model.dma_unmap(Iova(HOST), 4096).expect("asked");
    while model.next_note().is_some() {}
    card.start_copy(SRAM_BASE.get(), HOST + 64, 64);
    assert!(card.is_refused());
    assert_eq!(
        model.next_note(),
        Some(Note::BadAddress(HOST + 64)),
        "with the address"
    );
}

#[test]
fn a_reset_that_configuration_space_asks_for_is_one() {
    let model = card();
    let card = Card::new(&model);
    card.write(0x4c4_b130, 7);
    // `PCI_EXP_DEVCTL_BCR_FLR` of the PCI Express capability, whose control register is 8 bytes in.
    let mut at = [0x34];
    let mut id = [0; 2];
    while id[0] != 0x10 {
        model
            .config_read(u64::from(at[0]), &mut id)
            .expect("in the space");
        if at[0] == 0x34 {
            at[0] = id[0];
            id[0] = 0;
        } else if id[0] != 0x10 {
            at[0] = id[1];
        }
    }
    let express = u64::from(at[0]);
    let mut capabilities = [0; 4];
    model
        .config_read(express + 4, &mut capabilities)
        .expect("in the space");
    assert_ne!(
        u32::from_le_bytes(capabilities) & 1 << 28,
        0,
        "it says that it can"
    );
    model
        .config_write(express + 8, &0x8000u16.to_le_bytes())
        .expect("in the space");
    card.enable();
    assert_eq!(card.read(0x4c4_b130), 0, "registers are back");
    let mut control = [0; 2];
    model
        .config_read(express + 8, &mut control)
        .expect("in the space");
    assert_eq!(control[1] & 0x80, 0, "the bit reads as zero");
}
