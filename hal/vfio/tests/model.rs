//! What any implementer of `DeviceIo` must do, on the modelled chip in process.

use std::sync::Arc;

use gaudi_model::pci::PciConfig;
use gaudi_seam::{BarOffset, DeviceIo, ErrorKind, Event, Iova, RawMapping};
use gaudi_spec::gaudi2::firmware::{self, packet};
use gaudi_spec::gaudi2::{CFG_BAR, DRAM_BAR, INTERRUPTS, MSIX_BAR};
use gaudi_vfio::ModelDevice;

const REGISTERS: u64 = 0x400_0000;

fn device() -> Box<dyn DeviceIo> {
    Box::new(ModelDevice::new(PciConfig::default()).expect("a card"))
}

fn write(device: &dyn DeviceIo, register: u32, value: u32) {
    let at = BarOffset(REGISTERS + u64::from(register));
    device
        .bar_write(CFG_BAR.0, at, &value.to_le_bytes())
        .expect("in the BAR");
}

#[test]
fn it_is_a_gaudi2_with_three_bars() {
    let device = device();
    let mut identity = [0; 4];
    device.config_read(0, &mut identity).expect("in the space");
    assert_eq!(identity, [0xa3, 0x1d, 0x20, 0x10]);
    let sizes = [0, 1, 2, 3, 4, 5].map(|bar| device.bar_size(bar).expect("a size"));
    assert_eq!(sizes, [CFG_BAR.1, 0, MSIX_BAR.1, 0, 8 << 30, 0]);
    let past = device.config_read(4095, &mut identity).expect_err("past the end");
    assert_eq!(past.kind(), ErrorKind::InvalidInput);
    let past = device.bar_read(CFG_BAR.0, BarOffset(CFG_BAR.1 - 2), &mut identity);
    assert_eq!(past.expect_err("past the end").kind(), ErrorKind::InvalidInput);
    assert!(
        device.bar_read(1, BarOffset(0), &mut identity).is_err(),
        "there is no BAR 1"
    );
}

#[test]
fn registers_keep_their_words_until_a_reset() {
    let device = device();
    write(&*device, firmware::HW_STATE, 1);
    let read = || {
        let mut word = [0; 4];
        let at = BarOffset(REGISTERS + u64::from(firmware::HW_STATE));
        device.bar_read(CFG_BAR.0, at, &mut word).expect("in the BAR");
        u32::from_le_bytes(word)
    };
    assert_eq!(read(), 1);
    device.reset().expect("reset");
    assert_eq!(read(), 0);
}

#[test]
fn the_memory_bar_can_be_mapped_and_is_the_same_memory() {
    let device = device();
    let window = device.bar_window(DRAM_BAR).expect("asked").expect("it is memory");
    assert_eq!((window.at, window.len), (BarOffset(0), 8 << 30));
    let mapping = RawMapping::of_fd(&window.file, window.file_offset, 8192).expect("mapped");
    device
        .bar_write(DRAM_BAR, BarOffset(4096), b"seen")
        .expect("in the BAR");
    let mut got = [0; 4];
    mapping.read(4096, &mut got).expect("in range");
    assert_eq!(&got, b"seen");
}

#[test]
fn memory_is_reached_while_it_is_shown_and_interrupts_signal() {
    let device = device();
    let memory = Arc::new(RawMapping::anonymous(0x8000, false).expect("memory"));
    device.dma_map(Iova(0x10_0000), memory.clone()).expect("free");
    let again = device
        .dma_map(Iova(0x10_4000), memory.clone())
        .expect_err("taken");
    assert_eq!(again.kind(), ErrorKind::Busy);
    let event = Event::new().expect("an event");
    let other = event.duplicate().expect("a descriptor");
    device.set_interrupt(0, Some(event)).expect("there is a vector 0");
    assert!(
        device.set_interrupt(INTERRUPTS, None).is_err(),
        "and no vector 128"
    );
    // The firmware takes its queues and answers a packet from that memory.
    write(&*device, firmware::PQ_BASE_LO, 0x10_0000);
    write(&*device, firmware::QUEUE_INIT, firmware::QUEUES_SET);
    write(&*device, firmware::GIC_HOST_PI_UPD, 1);
    let mut request = 77u64.to_le_bytes().to_vec();
    request.extend((u32::from(packet::TEST) << 16).to_le_bytes());
    request.resize(packet::SIZE, 0);
    memory.write(0x1000, &request).expect("in range");
    let mut entry = 0x10_1000u64.to_le_bytes().to_vec();
    entry.extend((packet::SIZE as u64).to_le_bytes());
    memory.write(0, &entry).expect("in range");
    write(&*device, firmware::PQ_PI, 1);
    write(&*device, firmware::GIC_HOST_PI_UPD, 1);
    let mut fence = [0; 4];
    memory.read(0x1000 + packet::FENCE, &mut fence).expect("in range");
    assert_eq!(fence, [1, 0, 0, 0], "it answered");
    assert_eq!(device.dma_unmap(Iova(0), u64::MAX).expect("asked"), 0x8000);
    write(&*device, firmware::PQ_PI, 2);
    write(&*device, firmware::GIC_HOST_PI_UPD, 1);
    memory.read(0x1000 + packet::FENCE, &mut fence).expect("in range");
    assert_eq!(fence, [1, 0, 0, 0], "what was taken away is not touched");
    assert_eq!(other.take().expect("asked"), 0, "and nobody was interrupted");
}
