//! COMMS: how the driver loads firmware into a chip that waits for it.
//!
//! A command is acknowledged at once; asked again by `NOOP`, it is done. Images are not executed:
//! what comes after each is known.

use gaudi_spec::DevicePa;
use gaudi_spec::gaudi2::firmware::{
    self, DESC_BODY, DESC_HEADER, DESC_MAGIC, DESC_VERSION, DYNAMIC_REGISTERS, MSG_MAGIC, VERSION, boot,
    command, status,
};
use gaudi_spec::gaudi2::{DRAM_PHYS_BASE, SRAM_BASE};

use super::chip::{Note, PciChip};

/// Where the descriptor lies in the SRAM.
const DESCRIPTOR: u32 = 0x1000;
/// Where images are wanted, from the start of the HBM: within any memory BAR.
const IMAGE: u64 = 0x80_0000;
/// Why an access that fails is a defect of the model.
const INSIDE: &str = "images and the descriptor lie inside of the memory";
/// What this firmware calls itself. The driver looks for "Preboot", and reads two versions of three
/// numbers out of it (driver firmware_if.c:hl_fw_dynamic_read_device_fw_version).
const PREBOOT: &str = "Preboot version hl-gaudi2-1.24.0-fw-61.0.2-sec-9 (gaudi-hal model)";
const UBOOT: &str = "U-Boot hl-gaudi2-1.24.0-fw-61.0.2-sec-9 (gaudi-hal model)";
impl PciChip {
    /// A COMMS command.
    pub(super) fn boot_command(&mut self, word: u32) {
        self.keep(firmware::KMD_MSG_TO_CPU, word);
        let (command, _size) = command::parts(word);
        let answer = match command {
            command::NOOP if self.firmware.boot.pending => {
                self.firmware.boot.pending = false;
                status::word(status::OK, DESCRIPTOR)
            }
            command::NOOP => return,
            command::CLR_STS => 0,
            _ => {
                if matches!(command, command::RST_DEV | command::GOTO_WFE) {
                    self.hard_reset();
                } else {
                    self.firmware.boot.pending = true;
                }
                match command {
                    command::PREP_DESC => self.write_descriptor(),
                    command::EXEC => self.execute_image(),
                    _ => {}
                }
                status::word(status::ACK, DESCRIPTOR)
            }
        };
        self.keep(firmware::CMD_STATUS_TO_HOST, answer);
    }

    // What the driver put where images belong is executed: an image, or a message (driver
    // firmware_if.c `hl_fw_dynamic_copy_msg`), such as why it resets.
    fn execute_image(&mut self) {
        let mut magic = [0; 4];
        let at = DevicePa(DRAM_PHYS_BASE.get() + IMAGE);
        self.chip.dram().read(at, &mut magic).expect(INSIDE);
        if u32::from_le_bytes(magic) & !0xff == MSG_MAGIC {
            // It is read once: the image that follows may be shorter than it.
            self.chip.dram().write(at, &[0; 4]).expect(INSIDE);
            return;
        }
        self.firmware.boot.images += 1;
        let images = self.firmware.boot.images;
        self.note(Note::Image(images));
        self.boot_status(if images == 1 {
            boot::READY_TO_BOOT
        } else {
            boot::SRAM_AVAIL
        });
    }

    fn write_descriptor(&mut self) {
        let mut body = Vec::with_capacity(DESC_BODY);
        for register in DYNAMIC_REGISTERS {
            body.extend(register.to_le_bytes());
        }
        let now = if self.firmware.boot.images == 0 {
            PREBOOT
        } else {
            UBOOT
        };
        for version in ["", now, ""] {
            let end = body.len() + VERSION;
            body.extend(version.as_bytes());
            body.resize(end, 0);
        }
        body.extend((DRAM_PHYS_BASE.get() + IMAGE).to_le_bytes());
        body.resize(DESC_BODY, 0); // nothing is binned, no message, no memory kept back
        let mut all = Vec::with_capacity(DESC_HEADER + DESC_BODY);
        all.extend(DESC_MAGIC.to_le_bytes());
        all.extend(crc32(&body).to_le_bytes());
        all.extend((DESC_BODY as u16).to_le_bytes());
        all.push(DESC_VERSION);
        all.resize(DESC_HEADER, 0);
        all.extend(body);
        let at = DevicePa(SRAM_BASE.get() + u64::from(DESCRIPTOR));
        self.chip.sram().write(at, &all).expect(INSIDE);
    }
}

/// The sum that the driver compares (lib/crc32.c `crc32_le`, turned as zlib has it).
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = !0;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ if sum & 1 != 0 { 0xedb8_8320 } else { 0 };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_matches_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the sum's own check value");
    }
}
