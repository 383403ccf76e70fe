//! Power-on and resets.

use gaudi_seam::engine::Reset;
use gaudi_spec::QueueId;
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::firmware::{self, boot, sts0};
use gaudi_spec::gaudi2::rows::ROWS;
use gaudi_spec::gaudi2::{CFG_BASE, qman, queue};

use super::chip::{Note, PciChip};
use super::firmware_state::{Boot, Firmware};
use super::ring::Ring;
use super::sensors::Environment;

/// `TPC_CFG_STATUS`, and what an idle TPC has set (driver gaudi2_masks.h `TPC_IDLE_MASK`).
const TPC_STATUS: (&str, u32, u32) = ("_CFG", 0xd84, 0xea);
/// `MME_CTRL_LO_ARCH_STATUS` (`MME_ARCH_IDLE_MASK`).
const MME_STATUS: (&str, u32, u32) = ("_MME_CTRL_LO", 0, 0xc07f_fe00);

impl PciChip {
    /// Everything that power and a reset of the whole chip bring.
    pub(super) fn power_on(&mut self) {
        for ring in 0..queue::COUNT {
            self.reset_queue(QueueId(ring));
        }
        for row in ROWS {
            for (end, offset, idle) in [TPC_STATUS, MME_STATUS] {
                if row.name.ends_with(end) && row.name.contains(if end == "_CFG" { "_TPC" } else { "_MME" }) {
                    each_copy(row.base, row.copies, &mut |base| self.keep(base + offset, idle));
                }
            }
        }
        self.keep(
            qman::KDMA + qman::CORE_AXUSER - qman::DMA_CORE + qman::AXUSER_MMU_BP,
            qman::MMU_BYPASS,
        );
        self.start_firmware();
        // What a guest wrote into the table of vectors is not the next one's to read.
        self.msix.fill(0);
        self.raised = 0;
    }

    // A queue manager as after a reset, with its engine's context.
    fn reset_queue(&mut self, queue: QueueId) {
        let Some(row) = queue::row(queue).filter(|row| row.qman != 0 && row.stream == 0) else {
            return;
        };
        self.outside_mut().clear_registers(row.qman);
        // `source: inferred`: before the driver gives a context, rings and buffers are reached
        // without translation.
        self.keep(row.qman + qman::AXUSER + qman::AXUSER_MMU_BP, qman::MMU_BYPASS);
        if matches!(row.engine, QueueEngine::Pdma | QueueEngine::Edma) {
            self.keep(
                row.qman + qman::CORE_AXUSER + qman::AXUSER_MMU_BP,
                qman::MMU_BYPASS,
            );
        }
        for (offset, idle) in [qman::GLBL_STS1, qman::CGM_STS] {
            self.keep(row.qman + offset, idle);
        }
    }

    /// A reset of the engines: queues, sync manager. Memory, mappings and the firmware stay.
    pub(super) fn soft_reset(&mut self) {
        self.reset_chip(Reset::Soft);
        self.counters.soft_resets += 1;
        self.long = true;
        for ring in 0..queue::COUNT {
            self.reset_queue(QueueId(ring));
        }
    }

    /// A reset of all.
    pub(super) fn hard_reset(&mut self) {
        self.reset_chip(Reset::Hard);
        self.counters.hard_resets += 1;
        let space = self.outside_mut();
        space.clear();
        let cfg = &space.cfg;
        if cfg.discard(cfg.base(), cfg.len()).is_err() {
            self.note(Note::BadAddress(CFG_BASE.get()));
        }
        self.power_on();
    }

    fn reset_chip(&mut self, depth: Reset) {
        self.note(Note::Reset(depth));
        if self.chip.reset(depth).is_err() {
            // The memory file gave nothing back: old bytes stay, as they may on a chip.
            self.counters.lost += 1;
        }
        self.rings.iter_mut().for_each(Ring::reset);
        self.kdma.clear();
    }

    pub(super) fn start_firmware(&mut self) {
        let sensors = self.firmware.environment.sensors;
        self.firmware = Firmware {
            environment: Environment::new(sensors),
            ..Firmware::default()
        };
        self.start_boot();
    }

    /// The state in which the driver finds a chip after power-on.
    pub(super) fn start_boot(&mut self) {
        self.firmware.boot = Boot::default();
        let mut can = sts0::ENABLED
            | sts0::FW_LD_COM_EN
            | sts0::FW_HARD_RST_EN
            | sts0::PKT_PI_ACK_EN
            | sts0::DRAM_SCR_EN
            | sts0::FW_IATU_CONF_EN
            | sts0::DYN_PLL_EN
            | sts0::GIC_PRIVILEGED_EN
            | sts0::MULTI_IRQ_POLL_EN
            | sts0::MAP_HWMON_EN;
        if self.config.secured {
            can |= sts0::SECURITY_EN;
        }
        self.keep(firmware::BOOT_DEV_STS0, can);
        self.keep(firmware::BOOT_DEV_STS1, sts0::ENABLED);
        self.keep(firmware::BOOT_ERR0, sts0::ENABLED);
        self.boot_status(boot::WAITING_FOR_BOOT_FIT);
    }

    /// Sets the state that the firmware reports.
    pub(super) fn boot_status(&mut self, status: u32) {
        self.keep(firmware::BOOT_STATUS, status);
        debug_assert!(status >= boot::SRAM_AVAIL, "the states that are modelled");
    }
}

fn each_copy(base: u32, copies: &[(u32, u32)], what: &mut impl FnMut(u32)) {
    let Some((&(count, stride), inner)) = copies.split_first() else {
        return what(base);
    };
    for number in 0..count {
        each_copy(base + number * stride, inner, what);
    }
}
