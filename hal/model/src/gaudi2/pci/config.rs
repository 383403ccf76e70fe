//! PCI configuration space: identity, BARs, and the three capabilities that the driver's core code
//! looks for.

use gaudi_spec::gaudi2;

/// Bytes of the space; nothing is in the extended part.
pub const CONFIG_SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const BARS: usize = 0x10;
const POWER: usize = 0x40;
const MSIX: usize = 0x50;
const EXPRESS: usize = 0x60;
/// Offset of the pending bits in the MSI-X BAR; the table lies at its start.
const PENDING: u32 = 0x1000;
/// `PCI_EXP_DEVCAP_FLR` in the third byte after `PCI_EXP_DEVCAP`, and `PCI_EXP_DEVCTL_BCR_FLR` in
/// the second of `PCI_EXP_DEVCTL`: the function can be reset alone, which the hardware does itself
/// (driver gaudi2.c:gaudi2_execute_hard_reset).
const DEVICE_CAPS: usize = EXPRESS + 4;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const CAN_RESET: u8 = 1 << 4;
const DO_RESET: u8 = 1 << 7;
/// `PCI_PM_CTRL_NO_SOFT_RESET`: no state is lost on the way back from D3hot (`source: inferred`;
/// without it software takes that way for a reset, which it is not here).
const NO_SOFT_RESET: u8 = 1 << 3;
/// Class "processing accelerator".
const CLASS: u8 = 0x12;

/// The bytes of the space, and a mask of the writable bits.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: Vec<u8>,
    // The bits of each BAR that decode its size and cannot be written.
    bars: [u64; 3],
}

impl ConfigSpace {
    /// Of a Gaudi2 whose memory BAR has so many bytes, a power of two.
    pub(crate) fn new(dram_bar: u64) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_SIZE],
            bars: [gaudi2::CFG_BAR.1, gaudi2::MSIX_BAR.1, dram_bar],
        };
        space.reset();
        space
    }

    /// As after power-on.
    pub(crate) fn reset(&mut self) {
        self.bytes.fill(0);
        let identity = [gaudi2::VENDOR.to_le_bytes(), gaudi2::DEVICE.to_le_bytes()].concat();
        self.set(0, &identity);
        self.set(0x06, &[0x10]); // there are capabilities
        self.set(0x08, &[gaudi2::REVISIONS.start, 0, 0, CLASS]);
        for bar in 0..3 {
            self.set(BARS + bar * 8, &[0xc]); // 64 bits wide, prefetchable
        }
        self.set(0x2c, &identity);
        self.set(0x34, &[POWER as u8]);
        // Power management, version 3.
        self.set(POWER, &[0x01, MSIX as u8, 3, 0, NO_SOFT_RESET]);
        let last = gaudi2::INTERRUPTS - 1;
        self.set(MSIX, &[0x11, EXPRESS as u8, last as u8, 0]);
        self.set(MSIX + 4, &u32::from(gaudi2::MSIX_BAR.0).to_le_bytes());
        let pending = PENDING | u32::from(gaudi2::MSIX_BAR.0);
        self.set(MSIX + 8, &pending.to_le_bytes());
        // An endpoint, version 2, of one lane at 2.5 GT/s: the speed is PCI's to negotiate.
        self.set(EXPRESS, &[0x10, 0, 2, 0]);
        self.set(DEVICE_CAPS + 3, &[CAN_RESET]);
        self.set(EXPRESS + 0xc, &[0x01, 0x01, 0, 0]);
        self.set(EXPRESS + 0x12, &[0x11]);
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads bytes; those past the end are zeros.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        // An offset that does not fit lies past the end.
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, from) in into.iter_mut().zip(self.bytes.iter().skip(from)) {
            *to = *from;
        }
    }

    /// Writes the writable bits. Returns whether the write requests a reset of the function, which
    /// the caller executes.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> bool {
        let Some(start) = usize::try_from(offset).ok().filter(|&start| start < CONFIG_SIZE) else {
            return false;
        };
        let mut reset = false;
        for (&byte, at) in from.iter().zip(start..) {
            reset |= at == DEVICE_CONTROL + 1 && byte & DO_RESET != 0;
            let mask = self.writable(at);
            if let Some(to) = self.bytes.get_mut(at) {
                *to = *to & !mask | byte & mask;
            }
        }
        reset
    }

    fn writable(&self, at: usize) -> u8 {
        match at {
            COMMAND => 0x46, // memory, bus master, parity
            0x05 => 0x05,    // errors, no interrupt line
            0x0c | 0x3c => 0xff,
            BARS..0x28 => {
                let size = self.bars[(at - BARS) / 8];
                (!(size - 1)).to_le_bytes()[(at - BARS) % 8]
            }
            _ if at == POWER + 4 => 0x03,
            _ if at == MSIX + 3 => 0xc0, // enable, mask all
            DEVICE_CONTROL => 0xff,
            _ if at == DEVICE_CONTROL + 1 => !DO_RESET, // always reads as zero
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut word = [0; 4];
        space.read(at, &mut word);
        u32::from_le_bytes(word)
    }

    #[test]
    fn software_finds_the_card_and_its_capabilities() {
        let space = ConfigSpace::new(4 << 30);
        assert_eq!(word(&space, 0), 0x1020_1da3, "vendor and device");
        assert_eq!(word(&space, 8), 0x1200_0001, "an accelerator of revision 1");
        let mut at = word(&space, 0x34) & 0xff;
        let mut seen = Vec::new();
        while at != 0 {
            seen.push(word(&space, u64::from(at)) & 0xff);
            at = word(&space, u64::from(at)) >> 8 & 0xff;
        }
        assert_eq!(seen, [1, 0x11, 0x10], "power management, MSI-X, PCI Express");
        assert_eq!(word(&space, 0x50) >> 16, 127, "128 vectors");
    }

    #[test]
    fn power_change_does_not_reset() {
        let mut space = ConfigSpace::new(4 << 30);
        for state in [3, 0] {
            space.write(POWER as u64 + 4, &[state]);
            assert_eq!(word(&space, POWER as u64 + 4), 8 | u32::from(state));
        }
    }

    #[test]
    fn only_bar_sizes_can_be_written() {
        let mut space = ConfigSpace::new(4 << 30);
        let before = space.bytes.clone();
        assert!(space.write(0, &[0xff; CONFIG_SIZE]), "a reset is among that");
        assert_eq!(word(&space, 0), 0x1020_1da3, "identity stays");
        assert_eq!(
            [0x10, 0x14, 0x18, 0x20, 0x24].map(|at| word(&space, at)),
            [0xf000_000c, u32::MAX, 0xffff_c00c, 0xc, 0xffff_ffff],
            "256 MiB, 16 KiB, 4 GiB"
        );
        assert!(!space.write(u64::MAX, &[0xff; 8]));
        space.reset();
        assert_eq!(space.bytes, before, "and a reset brings it all back");
        assert_eq!(word(&space, 5000), 0, "nothing is past the end");
    }
}
