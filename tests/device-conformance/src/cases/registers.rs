//! The function's identity, its BARs, and its registers.

use gaudi_seam::{BarOffset, DeviceIo, ErrorKind, RawMapping};
use gaudi_spec::gaudi2::{self, CFG_BAR, DRAM_BAR, INTERRUPTS, MSIX_BAR, SRAM_SIZE};

use crate::card::{Card, REGISTERS, bytes, pattern};

/// `PSOC_GLOBAL_CONF_SCRATCHPAD_12` and the words after it, which no firmware reads.
pub(super) const SCRATCH: u32 = 0x4c4_b130;
/// Offset of the SRAM in the registers' BAR.
const SRAM: u64 = 0xd00_0000;

/// `PCI_CAPABILITY_LIST`, and capability ids (linux/pci_regs.h).
const CAPABILITIES: u64 = 0x34;
const MSIX: u8 = 0x11;
const EXPRESS: u8 = 0x10;

fn config<const N: usize>(device: &dyn DeviceIo, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    device.config_read(at, &mut bytes).expect("in the space");
    bytes
}

pub(crate) fn identity_is_gaudi2(device: &dyn DeviceIo) {
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
    assert!(!device.name().is_empty(), "the device has a name");
}

pub(crate) fn config_access_past_end_is_refused(device: &dyn DeviceIo) {
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
    assert_eq!(
        config::<4>(device, 0),
        identity,
        "the read-only identity is unchanged"
    );
}

pub(crate) fn command_register_keeps_written_bits(device: &dyn DeviceIo) {
    let command = || u16::from_le_bytes(config(device, 4));
    for bits in [0b110, 0b010, 0b110] {
        device.config_write(4, &u16::to_le_bytes(bits)).expect("asked");
        assert_eq!(command() & 0b110, bits, "memory and bus mastering");
    }
}

pub(crate) fn function_has_three_bars(device: &dyn DeviceIo) {
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
            "BAR {bar} cannot be mapped"
        );
    }
}

pub(crate) fn registers_keep_written_words(device: &dyn DeviceIo) {
    let card = Card::new(device);
    for (nth, value) in (0..).zip([1, 0xdead_beef, u32::MAX, 0]) {
        card.write(SCRATCH, value);
        card.write(SCRATCH + 4, !value);
        let seen = [card.read(SCRATCH), card.read(SCRATCH + 4)];
        assert_eq!(seen, [value, !value], "turn {nth}");
    }
    // A 64-bit access is two registers, the lower one first.
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

pub(crate) fn bar_access_past_end_is_refused(device: &dyn DeviceIo) {
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

/// Checks that accesses of memory in a BAR agree, at its start and its end: through the window, if
/// the device has one, by words, and by bytes.
fn check_paths_agree(device: &dyn DeviceIo, bar: u8, first: u64, len: u64) {
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
                "{window:?} contains the range"
            );
            let mapping = RawMapping::of_fd(&window.file, window.file_offset + (at - from), PIECE);
            let mapping = mapping.expect("the window can be mapped");
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
        // Unaligned accesses change single bytes of a word.
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

pub(crate) fn memory_bar_window_matches_reads(device: &dyn DeviceIo) {
    let _on = Card::new(device);
    let size = device.bar_size(DRAM_BAR).expect("a size");
    check_paths_agree(device, DRAM_BAR, 0, size);
}

pub(crate) fn sram_window_matches_reads(device: &dyn DeviceIo) {
    let _on = Card::new(device);
    check_paths_agree(device, CFG_BAR.0, SRAM, SRAM_SIZE);
}
