//! The chip's own processors as the driver meets them: boot registers, the COMMS protocol that
//! loads firmware, the packet queue and the event queue of the running firmware.
//!
//! Layouts are those of linux/habanalabs/hl_boot_if.h and cpucp_if.h; registers those of
//! psoc_global_conf_regs.h, cpu_if_regs.h and gaudi2_reg_map.h.

/// `PSOC_GLOBAL_CONF_SCRATCHPAD_0`; a word each.
const SCRATCHPAD: u32 = 0x4c4_b100;

const fn scratchpad(number: u32) -> u32 {
    SCRATCHPAD + number * 4
}

/// `PSOC_GLOBAL_CONF_CPU_BOOT_STATUS`.
pub const BOOT_STATUS: u32 = 0x4c4_b300;
/// `PSOC_GLOBAL_CONF_KMD_MSG_TO_CPU`: a COMMS command ([`command`]).
pub const KMD_MSG_TO_CPU: u32 = 0x4c4_b304;
/// `CPU_BOOT_DEV_STS0`: what the firmware can do, a bit each.
pub const BOOT_DEV_STS0: u32 = scratchpad(20);
/// `CPU_BOOT_DEV_STS1`.
pub const BOOT_DEV_STS1: u32 = scratchpad(21);
/// `CPU_BOOT_ERR0`.
pub const BOOT_ERR0: u32 = scratchpad(24);
/// `CPU_BOOT_ERR1`.
pub const BOOT_ERR1: u32 = scratchpad(25);
/// `CPU_CMD_STATUS_TO_HOST`: the answer to a COMMS command ([`status`]).
pub const CMD_STATUS_TO_HOST: u32 = scratchpad(23);
/// `HW_STATE`: the driver writes 1 when it starts to use the chip.
pub const HW_STATE: u32 = 0x4cc_1174;

/// Interrupt registers, a write of which the firmware hears: `GIC_TPC_QM_IRQ_CTRL_POLL_REG`.
pub const GIC_TPC_QM: u32 = scratchpad(3);
/// `GIC_MME_QM_IRQ_CTRL_POLL_REG`.
pub const GIC_MME_QM: u32 = scratchpad(4);
/// `GIC_DMA_QM_IRQ_CTRL_POLL_REG`.
pub const GIC_DMA_QM: u32 = scratchpad(5);
/// `GIC_ROT_QM_IRQ_CTRL_POLL_REG`.
pub const GIC_ROT_QM: u32 = scratchpad(6);
/// `GIC_NIC_QM_IRQ_CTRL_POLL_REG`.
pub const GIC_NIC_QM: u32 = scratchpad(7);
/// `GIC_DMA_CR_IRQ_CTRL_POLL_REG`.
pub const GIC_DMA_CORE: u32 = scratchpad(8);
/// `GIC_HOST_PI_UPD_IRQ_POLL_REG`: the doorbell of the packet queue.
pub const GIC_HOST_PI_UPD: u32 = scratchpad(9);
/// `GIC_HOST_HALT_IRQ_POLL_REG`: halt, and reset the chip.
pub const GIC_HOST_HALT: u32 = scratchpad(10);
/// `GIC_HOST_INTS_IRQ_POLL_REG`: events may be sent from now on.
pub const GIC_HOST_INTS: u32 = scratchpad(11);
/// `ENGINE_ARC_IRQ_CTRL_POLL_REG`.
pub const ENGINE_ARC_IRQ: u32 = scratchpad(15);

/// `CPU_IF_PF_PQ_PI`: entries of the packet queue that the driver has written.
pub const PQ_PI: u32 = 0x4cc_1200;
/// `CPU_IF_PQ_BASE_ADDR_LOW`.
pub const PQ_BASE_LO: u32 = 0x4cc_1204;
/// `CPU_IF_PQ_BASE_ADDR_HIGH`.
pub const PQ_BASE_HI: u32 = 0x4cc_1208;
/// `CPU_IF_PQ_LENGTH`, bytes.
pub const PQ_LENGTH: u32 = 0x4cc_120c;
/// `CPU_IF_EQ_BASE_ADDR_LOW`.
pub const EQ_BASE_LO: u32 = 0x4cc_1220;
/// `CPU_IF_EQ_BASE_ADDR_HIGH`.
pub const EQ_BASE_HI: u32 = 0x4cc_1224;
/// `CPU_IF_EQ_LENGTH`, bytes.
pub const EQ_LENGTH: u32 = 0x4cc_1228;
/// `CPU_IF_EQ_RD_OFFS`.
pub const EQ_RD_OFFS: u32 = 0x4cc_122c;
/// `CPU_IF_QUEUE_INIT`: 1 of the driver's when the queues are set, 2 of the firmware's when it has
/// taken them.
pub const QUEUE_INIT: u32 = 0x4cc_1230;
/// The driver's word there (habanalabs.h `PQ_INIT_STATUS_READY_FOR_CP`).
pub const QUEUES_SET: u32 = 1;
/// The firmware's (`PQ_INIT_STATUS_READY_FOR_HOST`).
pub const QUEUES_TAKEN: u32 = 2;

/// Values of [`BOOT_STATUS`] (hl_boot_if.h `enum cpu_boot_status`).
pub mod boot {
    /// `CPU_BOOT_STATUS_SRAM_AVAIL`: the firmware runs.
    pub const SRAM_AVAIL: u32 = 3;
    /// `CPU_BOOT_STATUS_READY_TO_BOOT`: the boot image runs and wants the firmware.
    pub const READY_TO_BOOT: u32 = 15;
    /// `CPU_BOOT_STATUS_WAITING_FOR_BOOT_FIT`: the ROM's loader wants the boot image.
    pub const WAITING_FOR_BOOT_FIT: u32 = 16;
}

/// Bits of [`BOOT_DEV_STS0`] (hl_boot_if.h `enum cpu_boot_dev_sts` and comments there).
pub mod sts0 {
    /// The card is a secured one.
    pub const SECURITY_EN: u32 = 1 << 0;
    /// The DRAM's scrambler is on.
    pub const DRAM_SCR_EN: u32 = 1 << 9;
    /// The firmware resets the whole chip.
    pub const FW_HARD_RST_EN: u32 = 1 << 10;
    /// An answered packet's fence holds the queue's index.
    pub const PKT_PI_ACK_EN: u32 = 1 << 15;
    /// Images are loaded by COMMS.
    pub const FW_LD_COM_EN: u32 = 1 << 16;
    /// The firmware configures the path between PCI and memory.
    pub const FW_IATU_CONF_EN: u32 = 1 << 17;
    /// The firmware reports which clocks there are.
    pub const DYN_PLL_EN: u32 = 1 << 19;
    /// The driver cannot reach the interrupt controller itself.
    pub const GIC_PRIVILEGED_EN: u32 = 1 << 20;
    /// The firmware polls a register for each interrupt.
    pub const MULTI_IRQ_POLL_EN: u32 = 1 << 22;
    /// The firmware translates hwmon's numbers.
    pub const MAP_HWMON_EN: u32 = 1 << 26;
    /// The word is valid.
    pub const ENABLED: u32 = 1 << 31;
}

/// COMMS commands (`enum comms_cmd`).
pub mod command {
    /// Nothing: asks whether the command before is done.
    pub const NOOP: u32 = 0;
    /// Clears the status.
    pub const CLR_STS: u32 = 1;
    /// Starts over.
    pub const RST_STATE: u32 = 2;
    /// Asks for a descriptor; its operand is a size.
    pub const PREP_DESC: u32 = 3;
    /// The data is at the address in the descriptor.
    pub const DATA_RDY: u32 = 4;
    /// Executes it.
    pub const EXEC: u32 = 5;
    /// Resets the chip.
    pub const RST_DEV: u32 = 6;
    /// Waits for an event, in a halt.
    pub const GOTO_WFE: u32 = 7;

    /// The command of a word, and its operand.
    pub const fn parts(word: u32) -> (u32, u32) {
        (word >> 27, word & 0x1ff_ffff)
    }
}

/// COMMS answers (`enum comms_sts`).
pub mod status {
    /// The command was seen.
    pub const ACK: u32 = 1;
    /// The command is done.
    pub const OK: u32 = 2;

    /// An answer that points `offset` bytes, a multiple of 4, into the SRAM.
    pub const fn word(status: u32, offset: u32) -> u32 {
        status << 28 | (offset >> 2) & 0x3ff_ffff
    }
}

/// `HL_COMMS_DESC_MAGIC`, which begins a descriptor.
pub const DESC_MAGIC: u32 = 0x4843_444d;
/// `HL_COMMS_MSG_MAGIC_VALUE`, which begins a message of the driver's, with its version in the
/// lowest byte.
pub const MSG_MAGIC: u32 = 0x4843_4d00;
/// `HL_COMMS_DESC_VER`.
pub const DESC_VERSION: u8 = 3;
/// Bytes of a descriptor's header, and of what follows (`struct lkd_fw_comms_desc`).
pub const DESC_HEADER: usize = 16;
/// … and of what follows.
pub const DESC_BODY: usize = 1264;
/// Bytes of a version in it (`VERSION_MAX_LEN`).
pub const VERSION: usize = 128;

/// Words of `struct cpu_dyn_regs`, with which the firmware reports where its registers are; 0 is a
/// register that the driver does not use.
pub const DYNAMIC_REGISTERS: [u32; 58] = {
    let mut all = [0; 58];
    let known = [
        PQ_BASE_LO,
        PQ_BASE_HI,
        PQ_LENGTH,
        QUEUE_INIT,
        EQ_BASE_LO,
        EQ_BASE_HI,
        EQ_LENGTH,
        EQ_RD_OFFS,
        0, // the completion queue, which is unused
        0,
        0,
        PQ_PI,
        BOOT_DEV_STS0,
        BOOT_DEV_STS1,
        BOOT_ERR0,
        BOOT_ERR1,
        BOOT_STATUS,
        0, // the firmware's update
        0,
        0,
        0, // versions, which are in the descriptor
        0,
        0,
        HW_STATE,
        KMD_MSG_TO_CPU,
        CMD_STATUS_TO_HOST,
        GIC_HOST_PI_UPD,
        GIC_TPC_QM,
        GIC_MME_QM,
        GIC_DMA_QM,
        GIC_NIC_QM,
        GIC_DMA_CORE,
        GIC_HOST_HALT,
        GIC_HOST_INTS,
        0,
        GIC_ROT_QM,
        0,
        ENGINE_ARC_IRQ,
    ];
    let mut at = 0;
    while at < known.len() {
        all[at] = known[at];
        at += 1;
    }
    all
};

/// Packets to the firmware (cpucp_if.h `enum cpucp_packet_id`).
pub mod packet {
    /// Bytes of a packet (`struct cpucp_packet`): value, control word, fence, two arguments.
    pub const SIZE: usize = 24;
    /// Where the control word is, and the fence.
    pub const CTL: usize = 8;
    /// … and the fence.
    pub const FENCE: usize = 12;
    /// … and the first argument.
    pub const ARGUMENT: usize = 16;
    /// The bits of the control word that hold what came of it.
    pub const RC_MASK: u32 = 0xf000;
    /// … and where they start.
    pub const RC_SHIFT: u32 = 12;
    /// `cpucp_packet_rc_invalid`: the firmware does not do that.
    pub const RC_INVALID: u32 = 1;
    /// What a fence holds where [`PKT_PI_ACK_EN`](super::sts0::PKT_PI_ACK_EN) is not set
    /// (`CPUCP_PACKET_FENCE_VAL`).
    pub const FENCE_VALUE: u32 = 0xfe8c_e7a5;

    /// The operation of a control word.
    pub const fn operation(ctl: u32) -> u16 {
        (ctl >> 16 & 0x1fff) as u16
    }

    /// Stops interrupts and events.
    pub const DISABLE_PCI_ACCESS: u16 = 1;
    /// Starts them; the value is where the interrupt doorbell lies in host memory.
    pub const ENABLE_PCI_ACCESS: u16 = 2;
    /// A sensor's temperature.
    pub const TEMPERATURE_GET: u16 = 3;
    /// A sensor's voltage.
    pub const VOLTAGE_GET: u16 = 4;
    /// A sensor's current.
    pub const CURRENT_GET: u16 = 5;
    /// A fan's speed.
    pub const FAN_SPEED_GET: u16 = 6;
    /// A fan's drive.
    pub const PWM_GET: u16 = 7;
    /// Sets a fan's drive.
    pub const PWM_SET: u16 = 8;
    /// Sets a clock's highest frequency, Hz.
    pub const FREQUENCY_SET: u16 = 9;
    /// A clock's highest frequency, Hz.
    pub const FREQUENCY_GET: u16 = 10;
    /// What the card is (`struct cpucp_info`), written to the value's address.
    pub const INFO_GET: u16 = 14;
    /// An interrupt may be raised again.
    pub const UNMASK_RAZWI_IRQ: u16 = 16;
    /// Several of them.
    pub const UNMASK_RAZWI_IRQ_ARRAY: u16 = 17;
    /// Answers its value.
    pub const TEST: u16 = 18;
    /// A clock's frequency now, Hz.
    pub const FREQUENCY_CURR_GET: u16 = 19;
    /// The highest power, mW.
    pub const MAX_POWER_GET: u16 = 20;
    /// Sets it.
    pub const MAX_POWER_SET: u16 = 21;
    /// Sets a temperature sensor's offset, or resets its history.
    pub const TEMPERATURE_SET: u16 = 24;
    /// Resets a voltage sensor's history.
    pub const VOLTAGE_SET: u16 = 25;
    /// Resets a current sensor's history.
    pub const CURRENT_SET: u16 = 26;
    /// Bytes over PCI in a moment.
    pub const PCIE_THROUGHPUT_GET: u16 = 27;
    /// Transfers over PCI that were repeated.
    pub const PCIE_REPLAY_CNT_GET: u16 = 28;
    /// Energy since the driver was loaded.
    pub const TOTAL_ENERGY_GET: u16 = 29;
    /// Four outputs of a clock, MHz, 16 bits each.
    pub const PLL_INFO_GET: u16 = 30;
    /// The power now, mW.
    pub const POWER_GET: u16 = 32;
    /// How many interrupts there are.
    pub const MSI_INFO_SET: u16 = 37;
    /// Rows of the HBM that were replaced, written to the value's address.
    pub const HBM_REPLACED_ROWS_INFO_GET: u16 = 43;
    /// Rows of the HBM that wait to be replaced.
    pub const HBM_PENDING_ROWS_STATUS: u16 = 44;
    /// Resets the power's history.
    pub const POWER_SET: u16 = 45;
    /// The context that an engine's processor acts in.
    pub const ENGINE_CORE_ASID_SET: u16 = 47;
    /// A proof of what runs on the card, written to the value's address.
    pub const SEC_ATTEST_GET: u16 = 49;
    /// What the card is, signed.
    pub const INFO_SIGNED_GET: u16 = 50;
    /// Whether a process has the card open.
    pub const ACTIVE_STATUS_SET: u16 = 58;
    /// Resets the engines.
    pub const SOFT_RESET: u16 = 64;
    /// Interrupts that the driver has registered.
    pub const INTS_REGISTER: u16 = 65;
}

/// Attributes of sensors, in the upper half of a packet's first argument (cpucp_if.h `enum
/// cpucp_temp_type` and those after it). The lower half is the sensor's number.
pub mod attribute {
    /// The present temperature, voltage, current, fan speed or PWM.
    pub const INPUT: u16 = 0;
    /// How a fan is controlled.
    pub const PWM_ENABLE: u16 = 1;
    /// A temperature's limit.
    pub const TEMPERATURE_MAX: u16 = 6;
    /// The offset that is added to a temperature.
    pub const TEMPERATURE_OFFSET: u16 = 19;
    /// The highest temperature since the history was reset.
    pub const TEMPERATURE_HIGHEST: u16 = 22;
    /// Resets a temperature's history.
    pub const TEMPERATURE_RESET_HISTORY: u16 = 23;
    /// The highest voltage or current since the history was reset.
    pub const HIGHEST: u16 = 7;
    /// Resets the history of a voltage or current.
    pub const RESET_HISTORY: u16 = 8;
    /// The present power.
    pub const POWER_INPUT: u16 = 8;
    /// The highest power since the history was reset.
    pub const POWER_HIGHEST: u16 = 9;
    /// Resets the power's history.
    pub const POWER_RESET_HISTORY: u16 = 11;
}

/// `struct cpucp_info`: where its fields lie, bytes from its start.
pub mod info {
    /// Bytes in all.
    pub const SIZE: usize = 0x6e8;
    /// 128 sensors of two words: type and flags of hwmon.
    pub const SENSORS: usize = 0;
    /// `kernel_version`.
    pub const KERNEL_VERSION: usize = 0x400;
    /// `card_type`: 0 is a PCI card, 1 a mezzanine.
    pub const CARD_TYPE: usize = 0x484;
    /// `cpld_version`.
    pub const CPLD_VERSION: usize = 0x48c;
    /// `fuse_version`.
    pub const FUSE_VERSION: usize = 0x494;
    /// `thermal_version`.
    pub const THERMAL_VERSION: usize = 0x514;
    /// `cpucp_version`.
    pub const CPUCP_VERSION: usize = 0x594;
    /// `dram_size`.
    pub const DRAM_SIZE: usize = 0x618;
    /// `card_name`, 16 bytes.
    pub const CARD_NAME: usize = 0x620;
    /// `dram_binning_mask`, a byte: a bit for each stack that is switched off.
    pub const DRAM_BINNING_MASK: usize = 0x641;
    /// `pll_map`, a bit a clock.
    pub const PLL_MAP: usize = 0x650;
    /// `fw_os_version`.
    pub const FW_OS_VERSION: usize = 0x668;
}

/// Bytes of an event (`struct hl_eq_entry`).
pub const EVENT: usize = 64;
/// The bit of an event's control word that marks it as written (`EQ_CTL_READY_MASK`).
pub const EVENT_READY: u32 = 1 << 31;

/// Events' numbers (gaudi2_async_events.h `GAUDI2_EVENT_*`).
pub mod event {
    /// `TPC0_ECC_SERR`: an error of one bit, corrected.
    pub const TPC0_ECC_SERR: u16 = 38;
    /// `TPC0_ECC_DERR`: an error of two bits.
    pub const TPC0_ECC_DERR: u16 = 63;
    /// `PDMA_CH0_AXI_ERR_RSP`; the next is the second's.
    pub const PDMA0_AXI_ERROR: u16 = 540;
    /// `SM0_AXI_ERROR_RESPONSE`; the next are the other die cores'.
    pub const SM0_AXI_ERROR: u16 = 612;
    /// `HMMU0_PAGE_FAULT_OR_WR_PERM`.
    pub const HMMU0_PAGE_FAULT: u16 = 720;
    /// `PMMU0_PAGE_FAULT_WR_PERM`.
    pub const PMMU_PAGE_FAULT: u16 = 768;
    /// `PDMA0_QM`; the next is the second's.
    pub const PDMA0_QM: u16 = 1244;
    /// `CPU_FIX_POWER_ENV_S`: the clocks are throttled because of the power.
    pub const FIX_POWER_ENV_S: u16 = 1253;
    /// `CPU_FIX_POWER_ENV_E`: they no longer are.
    pub const FIX_POWER_ENV_E: u16 = 1254;
    /// `CPU_FIX_THERMAL_ENV_S`: the clocks are throttled because of the temperature.
    pub const FIX_THERMAL_ENV_S: u16 = 1255;
    /// `CPU_FIX_THERMAL_ENV_E`: they no longer are.
    pub const FIX_THERMAL_ENV_E: u16 = 1256;
}

/// An event's control word (`EQ_CTL_*`).
pub const fn event_word(event: u16, index: u16) -> u32 {
    EVENT_READY | (event as u32 & 0xfff) << 16 | index as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_where_the_headers_have_them() {
        assert_eq!(BOOT_DEV_STS0, 0x4c4_b150, "SCRATCHPAD_20");
        assert_eq!(GIC_HOST_PI_UPD, 0x4c4_b124, "SCRATCHPAD_9");
        assert_eq!(DYNAMIC_REGISTERS[24], KMD_MSG_TO_CPU);
        assert_eq!(DYNAMIC_REGISTERS[37], ENGINE_ARC_IRQ);
        assert_eq!(
            size_of_val(&DYNAMIC_REGISTERS) + 3 * VERSION + 8 + 88 + 4 * 136 + 8,
            DESC_BODY,
            "struct lkd_fw_comms_desc without its header"
        );
    }

    #[test]
    fn status_bits_are_those_of_the_header() {
        // hl_boot_if.h `enum cpu_boot_dev_sts`.
        for (name, bit, number) in [
            ("SECURITY_EN", sts0::SECURITY_EN, 0),
            ("DRAM_SCR_EN", sts0::DRAM_SCR_EN, 9),
            ("FW_HARD_RST_EN", sts0::FW_HARD_RST_EN, 10),
            ("PKT_PI_ACK_EN", sts0::PKT_PI_ACK_EN, 15),
            ("FW_LD_COM_EN", sts0::FW_LD_COM_EN, 16),
            ("FW_IATU_CONF_EN", sts0::FW_IATU_CONF_EN, 17),
            ("DYN_PLL_EN", sts0::DYN_PLL_EN, 19),
            ("GIC_PRIVILEGED_EN", sts0::GIC_PRIVILEGED_EN, 20),
            ("MULTI_IRQ_POLL_EN", sts0::MULTI_IRQ_POLL_EN, 22),
            ("MAP_HWMON_EN", sts0::MAP_HWMON_EN, 26),
            ("ENABLED", sts0::ENABLED, 31),
        ] {
            assert_eq!(bit, 1 << number, "CPU_BOOT_DEV_STS0_{name}");
        }
    }

    #[test]
    fn words_split_as_in_the_driver() {
        assert_eq!(command::parts(3 << 27 | 0x500), (command::PREP_DESC, 0x500));
        assert_eq!(status::word(status::OK, 0x1000), 2 << 28 | 0x400);
        assert_eq!(packet::operation(64 << 16 | 0xf000), packet::SOFT_RESET);
        assert_eq!(event_word(1255, 1), 1 << 31 | 1255 << 16 | 1);
    }
}
