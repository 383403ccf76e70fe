//! The running firmware: answers packets.

use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::CARD_NAME;
use gaudi_spec::gaudi2::firmware::{self, QUEUES_SET, QUEUES_TAKEN, VERSION, info, packet};
use gaudi_spec::gaudi2::mmu::Stacks;

use super::chip::{Note, PciChip};
use super::firmware_state::{FIRMWARE, TICKS_PER_US};
use super::sensors::SENSORS;
use crate::gaudi2::space::Initiator;

/// Entries of the packet queue.
const ENTRIES: u32 = 4096;
/// Packets answered within one turn.
const PACKETS: u32 = 64;
/// The longest packet in bytes. Its data lies elsewhere.
const LARGEST: usize = packet::SIZE;
/// The stack that a card with five stacks lacks: the last, whose HMMUs the driver does not use
/// (gaudi2.c:mme_razwi_info `cluster_hmmu_hif_enabled_mask`).
const SPARE: u8 = 1 << 5;

impl PciChip {
    /// Hangs the firmware: it answers no packet until the chip is reset.
    pub fn hang_firmware(&mut self) {
        self.firmware.hung = true;
    }

    pub(super) fn events_allowed(&mut self) {
        self.firmware.events = true;
        self.report_throttling();
    }

    /// The doorbell of the packet queue.
    pub(super) fn packets(&mut self) {
        if self.firmware.hung {
            return;
        }
        if self.kept(firmware::QUEUE_INIT) == QUEUES_SET {
            (self.firmware.answered, self.firmware.sent) = (0, 0);
            return self.keep(firmware::QUEUE_INIT, QUEUES_TAKEN);
        }
        self.firmware.waits = true;
    }

    /// Answers packets that were announced, some of them: whether there may be more. A reset among
    /// them ends the run.
    pub(super) fn answer_packets(&mut self) -> bool {
        if !self.firmware.waits {
            return false;
        }
        let base = self.kept_address(firmware::PQ_BASE_LO, firmware::PQ_BASE_HI);
        let end = self.kept(firmware::PQ_PI) & (ENTRIES * 2 - 1);
        for _ in 0..PACKETS {
            if self.firmware.answered == end || self.firmware.hung {
                self.firmware.waits = false;
            }
            if !self.firmware.waits || self.long {
                break;
            }
            let at = base.wrapping_add(u64::from(self.firmware.answered & (ENTRIES - 1)) * 16);
            self.firmware.answered = (self.firmware.answered + 1) & (ENTRIES * 2 - 1);
            let mut entry = [0; 16];
            if !self.load(at, &mut entry) {
                self.firmware.waits = false;
                break;
            }
            let entry = u128::from_le_bytes(entry);
            self.packet(entry as u64, (entry >> 64) as u32);
        }
        self.firmware.waits
    }

    fn packet(&mut self, at: u64, len: u32) {
        let mut bytes = [0; LARGEST];
        let len = (len as usize).min(LARGEST);
        if !self.load(at, &mut bytes[..len]) {
            return;
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (ctl, argument) = (word(packet::CTL), word(packet::ARGUMENT));
        let value = u64::from(word(0)) | u64::from(word(4)) << 32;
        let operation = packet::operation(ctl);
        if self.chip.bus.faults.is_some() && self.chip.firmware_hangs(operation) {
            return self.hang_firmware();
        }
        let answer = self.answer(operation, value, argument);
        self.counters.packets += 1;
        if !matches!(operation, packet::TEST) || answer.is_none() {
            self.note(Note::Packet(operation, answer.is_some()));
        }
        let rc = if answer.is_some() { 0 } else { packet::RC_INVALID };
        let ctl = ctl & !packet::RC_MASK | rc << packet::RC_SHIFT;
        // The fence last: the driver polls it.
        self.store(at, &answer.unwrap_or(value).to_le_bytes());
        self.store(at.wrapping_add(packet::CTL as u64), &ctl.to_le_bytes());
        let fence = self.firmware.answered;
        self.outside_mut().act_as(Initiator::Chip);
        let stored = self
            .chip
            .bus
            .store(DeviceVa(at.wrapping_add(packet::FENCE as u64)), fence);
        if stored.is_err() {
            self.note(Note::BadAddress(at));
        }
    }

    // What the firmware answers; `None` where it does not do that.
    fn answer(&mut self, operation: u16, value: u64, argument: u32) -> Option<u64> {
        Some(match operation {
            packet::DISABLE_PCI_ACCESS => {
                self.firmware.events = false;
                self.outside_mut().set_doorbell(None);
                value
            }
            packet::ENABLE_PCI_ACCESS => {
                self.outside_mut().set_doorbell(Some(value));
                value
            }
            packet::INFO_GET => {
                let info = card(self.stacks);
                self.store(value, &info[..info.len().min(argument as usize)]);
                info.len() as u64
            }
            packet::TEST => value,
            // No row of the HBM was replaced, and a model is not attested.
            packet::HBM_REPLACED_ROWS_INFO_GET | packet::SEC_ATTEST_GET => {
                self.store(value, &vec![0; room(argument)]);
                0
            }
            packet::INFO_SIGNED_GET => {
                let mut signed = card(self.stacks);
                signed.resize(room(argument), 0);
                self.store(value, &signed);
                0
            }
            packet::TEMPERATURE_GET
            | packet::VOLTAGE_GET
            | packet::CURRENT_GET
            | packet::POWER_GET
            | packet::MAX_POWER_GET
            | packet::FREQUENCY_GET
            | packet::FREQUENCY_CURR_GET
            | packet::FAN_SPEED_GET
            | packet::PWM_GET => self.firmware.environment.get(operation, argument)?,
            packet::TEMPERATURE_SET
            | packet::VOLTAGE_SET
            | packet::CURRENT_SET
            | packet::POWER_SET
            | packet::MAX_POWER_SET
            | packet::FREQUENCY_SET
            | packet::PWM_SET => {
                self.set_environment(operation, argument, value)?;
                value
            }
            packet::PLL_INFO_GET => TICKS_PER_US * 0x0001_0001_0001_0001,
            packet::PCIE_THROUGHPUT_GET
            | packet::PCIE_REPLAY_CNT_GET
            | packet::TOTAL_ENERGY_GET
            | packet::HBM_PENDING_ROWS_STATUS => 0,
            packet::SOFT_RESET => {
                self.soft_reset();
                value
            }
            packet::UNMASK_RAZWI_IRQ
            | packet::UNMASK_RAZWI_IRQ_ARRAY
            | packet::MSI_INFO_SET
            | packet::ENGINE_CORE_ASID_SET
            | packet::ACTIVE_STATUS_SET
            | packet::INTS_REGISTER => value,
            _ => return None,
        })
    }
}

// Bytes that the driver has room for, within what any answer takes.
fn room(argument: u32) -> usize {
    (argument as usize).min(0x4000)
}

// `struct cpucp_info` of this card.
fn card(stacks: Stacks) -> Vec<u8> {
    let mut card = vec![0; info::SIZE];
    let mut put = |at: usize, bytes: &[u8]| card[at..at + bytes.len()].copy_from_slice(bytes);
    for (nth, (kind, flags)) in SENSORS.into_iter().enumerate() {
        put(info::SENSORS + nth * 8, &u32::to_le_bytes(kind));
        put(info::SENSORS + nth * 8 + 4, &u32::to_le_bytes(flags));
    }
    const {
        assert!(
            FIRMWARE.len() + "Linux version ".len() < VERSION,
            "it ends with a zero"
        );
    };
    put(
        info::KERNEL_VERSION,
        format!("Linux version {FIRMWARE}").as_bytes(),
    );
    put(info::CARD_TYPE, &1u32.to_le_bytes());
    put(info::CPLD_VERSION, &1u32.to_le_bytes());
    for at in [info::FUSE_VERSION, info::THERMAL_VERSION] {
        put(at, b"none: gaudi-hal model");
    }
    put(info::CPUCP_VERSION, FIRMWARE.as_bytes());
    put(info::DRAM_SIZE, &stacks.size().to_le_bytes());
    if stacks == Stacks::BINNED {
        put(info::DRAM_BINNING_MASK, &[SPARE]);
    }
    put(info::CARD_NAME, CARD_NAME.as_bytes());
    put(info::PLL_MAP, &[0xff; 16]);
    put(info::FW_OS_VERSION, b"none: gaudi-hal model");
    card
}
