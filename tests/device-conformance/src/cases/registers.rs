//! What the function is, its BARs, and words in them.

use gaudi_seam::{BarOffset, DeviceIo, ErrorKind, RawMapping};
use gaudi_spec::gaudi2::{self, CFG_BAR, DRAM_BAR, INTERRUPTS, MSIX_BAR, SRAM_SIZE};

use crate::card::{Card, REGISTERS, bytes, pattern};

/// `PSOC_GLOBAL_CONF_SCRATCHPAD_12` and the words after it, which no firmware reads.
pub(super) const SCRATCH: u32 = 0x4c4_b130;
/// Where the SRAM lies in the registers' BAR.
const SRAM: u64 = 0xd00_0000;

/// `PCI_CAPABILITY_LIST`; capabilities' numbers (linux/pci_regs.h).
const CAPABILITIES: u64 = 0x34;
const MSIX: u8 = 0x11;
const EXPRESS: u8 = 0x10;

fn config<const N: usize>(device: &dyn DeviceIo, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    device.config_read(at, &mut bytes).expect("in the space");
    bytes
}

pub(crate) fn it_is_a_gaudi2(device: &dyn DeviceIo) {
    assert_eq!(config(device, 0), gaudi2::VENDOR.to_le_bytes(), "the vendor");
    assert_eq!(config(device, 2), gaudi2::DEVICE.to_le_bytes(), "the device");
    let [revision, _, _, class] = config(device, 8);
    assert!(gaudi2::REVISIONS.contains(&revision), "revision {revision}");
    assert_eq!(class, 0x12, "a processing accelerator");
    let mut seen = Vec::new();
    let [mut at] = config(device, CAPABILITIES);
    while at != 0 && seen.len() < 48 {
        let [id, next] = config(device, u64::from(at));
        if id == MSIX {
            let control = u16::from_le_bytes(config(device, u64::from(at) + 2));
            assert_eq!(control & 0x7ff, INTERRUPTS - 1, "its table's size");
        }
        seen.push(id);
        at = next;
    }
    assert!(
        seen.contains(&MSIX) && seen.contains(&EXPRESS),
        "capabilities {seen:?}"
    );
    assert!(!device.name().is_empty(), "it says what it is");
}

pub(crate) fn configuration_space_has_an_end(device: &dyn DeviceIo) {
    let mut two = [0; 2];
    device.config_read(4094, &mut two).expect("the last two bytes");
    for at in [4095, 4096, u64::MAX] {
        let read = device.config_read(at, &mut two).expect_err("past the end");
        assert_eq!(read.kind(), ErrorKind::InvalidInput, "{at:#x}: {read}");
        let written = device.config_write(at, &two).expect_err("past the end");
        assert_eq!(written.kind(), ErrorKind::InvalidInput, "{at:#x}: {written}");
    }
    let identity = config::<4>(device, 0);
    device.config_write(0, &[0; 4]).expect("asked");
    assert_eq!(config::<4>(device, 0), identity, "what cannot be written stays");
}

pub(crate) fn the_command_register_keeps_its_bits(device: &dyn DeviceIo) {
    let command = || u16::from_le_bytes(config(device, 4));
    for bits in [0b110, 0b010, 0b110] {
        device.config_write(4, &u16::to_le_bytes(bits)).expect("asked");
        assert_eq!(command() & 0b110, bits, "memory and bus mastering");
    }
}

pub(crate) fn it_has_three_bars_and_no_others(device: &dyn DeviceIo) {
    let sizes = [0, 1, 2, 3, 4, 5, 6, 255].map(|bar| device.bar_size(bar).expect("a size"));
    let memory = sizes[usize::from(DRAM_BAR)];
    assert_eq!(sizes, [CFG_BAR.1, 0, MSIX_BAR.1, 0, memory, 0, 0, 0]);
    assert!(
        memory.is_power_of_two() && memory >= 1 << 30,
        "{memory} bytes of memory"
    );
    for bar in [1, 3, 5, 6, 255] {
        assert!(
            device.bar_window(bar).expect("asked").is_none(),
            "nothing to map of {bar}"
        );
    }
}

pub(crate) fn registers_keep_their_words(device: &dyn DeviceIo) {
    let card = Card::new(device);
    for (nth, value) in (0..).zip([1, 0xdead_beef, u32::MAX, 0]) {
        card.write(SCRATCH, value);
        card.write(SCRATCH + 4, !value);
        let seen = [card.read(SCRATCH), card.read(SCRATCH + 4)];
        assert_eq!(seen, [value, !value], "turn {nth}");
    }
    // Two words at once are two words, the lower one first.
    let at = BarOffset(REGISTERS + u64::from(SCRATCH));
    let both = 0x0123_4567_89ab_cdef_u64;
    device
        .bar_write(CFG_BAR.0, at, &both.to_le_bytes())
        .expect("in the BAR");
    assert_eq!(
        [card.read(SCRATCH), card.read(SCRATCH + 4)],
        [0x89ab_cdef, 0x0123_4567]
    );
    let mut got = [0; 8];
    device.bar_read(CFG_BAR.0, at, &mut got).expect("in the BAR");
    assert_eq!(u64::from_le_bytes(got), both);
}

pub(crate) fn an_access_past_a_bar_is_refused(device: &dyn DeviceIo) {
    for bar in [0, 1, 2, 3, 4, 5, 6, 255] {
        let size = device.bar_size(bar).expect("a size");
        for at in [size.saturating_sub(2), size, size + 4, u64::MAX - 1] {
            let mut word = [0; 4];
            let read = device.bar_read(bar, BarOffset(at), &mut word);
            let read = read.expect_err("it leaves the BAR");
            assert_eq!(
                read.kind(),
                ErrorKind::InvalidInput,
                "BAR {bar} at {at:#x}: {read}"
            );
            let written = device.bar_write(bar, BarOffset(at), &word);
            let written = written.expect_err("it leaves the BAR");
            assert_eq!(
                written.kind(),
                ErrorKind::InvalidInput,
                "BAR {bar} at {at:#x}: {written}"
            );
        }
    }
}

// Reads bytes back by another path, at the start and the end of a part of a BAR that is memory: through the window, if the device has one,
// and by words and by bytes.
fn same_on_both_ways(device: &dyn DeviceIo, bar: u8, first: u64, len: u64) {
    const PIECE: usize = 4096;
    let window = device.bar_window(bar).expect("asked");
    for (seed, at) in [(1, first), (2, first + len - PIECE as u64)] {
        let (up, down) = (pattern(seed, 200), pattern(!seed, 200));
        device.bar_write(bar, BarOffset(at + 8), &up).expect("in the BAR");
        let mut got = vec![0; 200];
        if let Some(window) = &window {
            let from = window.at.get();
            assert!(
                from <= first && first + len <= from + window.len,
                "{window:?} has it"
            );
            let mapping = RawMapping::of_fd(&window.file, window.file_offset + (at - from), PIECE);
            let mapping = mapping.expect("it can be mapped");
            assert_eq!(
                bytes(&mapping, 8, 200),
                up,
                "written to the BAR, read from the mapping"
            );
            mapping.write(1000, &down).expect("in the mapping");
            device
                .bar_read(bar, BarOffset(at + 1000), &mut got)
                .expect("in the BAR");
            assert_eq!(got, down, "written to the mapping, read from the BAR");
        }
        for (index, word) in got.chunks_exact_mut(8).enumerate() {
            let at = BarOffset(at + 8 + 8 * index as u64);
            device.bar_read(bar, at, word).expect("in the BAR");
        }
        assert_eq!(got, up, "written as bytes, read as words");
        // Odd places and lengths are bytes as well, and words are the same bytes.
        device
            .bar_write(bar, BarOffset(at + 9), &[0xee; 3])
            .expect("in the BAR");
        let mut word = [0; 8];
        device
            .bar_read(bar, BarOffset(at + 8), &mut word)
            .expect("in the BAR");
        let mut wanted = up[..8].to_vec();
        wanted[1..4].fill(0xee);
        assert_eq!(word[..], wanted);
    }
}

pub(crate) fn the_memory_bar_is_the_same_mapped_and_read(device: &dyn DeviceIo) {
    let _on = Card::new(device);
    let size = device.bar_size(DRAM_BAR).expect("a size");
    same_on_both_ways(device, DRAM_BAR, 0, size);
}

pub(crate) fn the_sram_is_the_same_mapped_and_read(device: &dyn DeviceIo) {
    let _on = Card::new(device);
    same_on_both_ways(device, CFG_BAR.0, SRAM, SRAM_SIZE);
}
