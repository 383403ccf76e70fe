//! What each register does: most keep their word, some start something, some tell a state.

use gaudi_seam::engine::Reset;
use gaudi_spec::QueueId;
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::firmware::{self, boot};
use gaudi_spec::gaudi2::mmu::{self, STLB_ASID, STLB_BUSY, STLB_HOP0_PA43_12, STLB_HOP0_PA63_44};
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_spec::gaudi2::rows::{Place, ROWS};
use gaudi_spec::gaudi2::{qman, queue};

use super::{Note, PciChip, Who};
use crate::gaudi2::event::Event;
use crate::gaudi2::write::{WriteError, committed};

/// `PSOC_TIMESTAMP_CNTCVL` and `_CNTCVU`: the counter of time, which counts [`TICKS_PER_US`].
const CNTCVL: u32 = 0x4c4_9008;
const CNTCVU: u32 = 0x4c4_900c;
/// Ticks of the counter of time in a microsecond: the frequency that the firmware tells, MHz.
pub(crate) const TICKS_PER_US: u64 = 1000;
/// `ARC_AUX_RUN_HALT_REQ` and `_ACK` (arc_farm_arc0_aux_regs.h).
const RUN_HALT_REQ: u32 = 0x100;
const RUN_HALT_ACK: u32 = 0x104;
/// Their bits: run, and halt (arc_farm_arc0_aux_masks.h).
const RUN: u32 = 1;
const HALT_REQ: u32 = 1 << 1;
const HALT_ACK: u32 = 1 << 4;
/// `FFCR` of a trace buffer: bit 6 starts a flush and is clear when that is done (dcore0_tpc0_eml_etf_regs.h, psoc_etr_regs.h).
const FFCR: u32 = 0x304;
const FLUSH: u32 = 1 << 6;
/// `STS` of a trace buffer: it is empty and ready.
const TRACE_STATUS: u32 = 0xc;
const TRACE_READY: u32 = 1 << 2;
/// `PSOC_ETR_CTL` switches tracing on; the write pointer then is where the buffer begins (psoc_etr_regs.h `DBALO`, `DBAHI`, `RWP`, `RWPHI`).
const ETR: u32 = 0x6c4_4000;
const ETR_CTL: u32 = ETR + 0x20;
const ETR_BUFFER: [(u32, u32); 2] = [(ETR + 0x118, ETR + 0x18), (ETR + 0x11c, ETR + 0x3c)];
/// `BRDG_CTRL_GRACEFUL`: a decoder is to stop, and has (dcore0_vdec0_brdg_ctrl_masks.h).
const GRACEFUL: u32 = 0x110;
const GRACEFUL_STOP: u32 = 1;
const GRACEFUL_PEND: u32 = 1 << 4;
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
        // `source: inferred`: before the driver gives a context, rings and buffers are reached without translation.
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
            self.note(Note::BadAddress(gaudi_spec::gaudi2::CFG_BASE.get()));
        }
        self.power_on();
    }

    fn reset_chip(&mut self, depth: Reset) {
        self.note(Note::Reset(depth));
        if self.chip.reset(depth).is_err() {
            // The memory file gave nothing back: old bytes stay, as they may on a chip.
            self.counters.lost += 1;
        }
        self.rings.iter_mut().for_each(super::ring::Ring::reset);
        self.kdma.clear();
    }

    fn keep(&mut self, register: u32, value: u32) {
        self.outside_mut().set_register(register, value);
    }

    pub(super) fn kept(&self, register: u32) -> u32 {
        self.outside().map_or(0, |space| space.register(register))
    }

    pub(super) fn kept_address(&self, low: u32, high: u32) -> u64 {
        self.outside().map_or(0, |space| space.address(low, high))
    }

    pub(super) fn read_register(&mut self, register: u32) -> u32 {
        self.counters.reads += 1;
        let place = self.named(register, false);
        if place.is_some_and(|place| place.offset == TRACE_STATUS && is_trace(&place)) {
            return self.kept(register) | TRACE_READY;
        }
        let ticks = self.nanoseconds / 1000 * TICKS_PER_US + self.nanoseconds % 1000 * TICKS_PER_US / 1000;
        match register {
            CNTCVL => return ticks as u32,
            CNTCVU => return (ticks >> 32) as u32,
            _ => {}
        }
        if let Some(word) = self.chip.read_register(register) {
            return word;
        }
        if let Some(busy) = self.rings_of(register, qman::GLBL_STS0) {
            return qman::IDLE & !busy;
        }
        self.kept(register)
    }

    // Processors at work of the queue manager whose register this is, as bits of `GLBL_STS0`.
    fn rings_of(&self, register: u32, offset: u32) -> Option<u32> {
        let qman = register.checked_sub(offset)?;
        let first = self
            .rings
            .iter()
            .position(|ring| ring.qman == qman && qman != 0)?;
        let busy = (0..queue::STREAMS).filter(|stream| {
            let queue = QueueId(first as u32 + stream);
            !self.chip.queue_is_idle(queue)
        });
        Some(busy.map(|stream| 1 << (qman::CP_IDLE_SHIFT + stream)).sum())
    }

    pub(super) fn write_register(&mut self, register: u32, value: u32) {
        self.counters.writes += 1;
        let place = self.named(register, true);
        if let Some((which, offset)) = mmu::stlb(register) {
            return self.write_stlb(register, which, offset, value);
        }
        match register {
            firmware::KMD_MSG_TO_CPU => return self.boot_command(value),
            firmware::GIC_HOST_PI_UPD => {
                self.keep(register, value);
                return self.packets();
            }
            firmware::GIC_HOST_HALT => {
                self.keep(register, value);
                return self.hard_reset();
            }
            firmware::GIC_HOST_INTS => {
                self.keep(register, value);
                return self.events_allowed();
            }
            KDMA_COMMIT => return self.kdma(value),
            _ => {}
        }
        if self.chip.registers.block(register).is_some() {
            self.outside_mut().act_as(Who::Chip);
            return match self.chip.write_register(register, value) {
                Ok(()) => {}
                Err(error) => self.not_done(register, value, error),
            };
        }
        self.keep(register, value);
        if register == ETR_CTL && value & 1 != 0 {
            for (buffer, pointer) in ETR_BUFFER {
                let start = self.kept(buffer);
                self.keep(pointer, start);
            }
        }
        if let Some(place) = place {
            if place.offset == RUN_HALT_REQ && place.row.name.ends_with("_AUX") {
                let run = if value & RUN != 0 { RUN } else { 0 };
                let halt = if value & HALT_REQ != 0 { HALT_ACK } else { 0 };
                // Taking the request back changes nothing.
                if run | halt != 0 {
                    self.keep(register - RUN_HALT_REQ + RUN_HALT_ACK, run | halt);
                }
            } else if place.offset == FFCR && is_trace(&place) {
                self.keep(register, value & !FLUSH);
            } else if place.offset == GRACEFUL && place.row.name.ends_with("_BRDG_CTRL") {
                let stopped = if value & GRACEFUL_STOP != 0 {
                    GRACEFUL_PEND
                } else {
                    0
                };
                self.keep(register, value & !GRACEFUL_PEND | stopped);
            }
        }
        self.ring_register(register);
    }

    pub(super) fn not_done(&mut self, register: u32, value: u32, error: WriteError) {
        let address = gaudi_spec::DeviceVa(gaudi_spec::gaudi2::CFG_BASE.get() + u64::from(register));
        let note = match error {
            WriteError::Unsupported(what) => Note::Engine(Event::Unsupported { address, value, what }),
            WriteError::Fault(fault) => Note::BadAddress(fault.address.get()),
            WriteError::UnknownRegister | WriteError::UnknownVector => Note::UnknownRegister(register, true),
        };
        self.note(note);
    }

    fn write_stlb(&mut self, register: u32, which: mmu::Mmu, offset: u32, value: u32) {
        let block = register - offset;
        match offset {
            STLB_BUSY if value & mmu::BUSY != 0 => {
                let low = u64::from(self.kept(block + STLB_HOP0_PA43_12)) << 12;
                let high = u64::from(self.kept(block + STLB_HOP0_PA63_44)) << 44;
                let asid = self.kept(block + STLB_ASID);
                self.outside_mut().set_table(which, asid, low | high);
                self.keep(register, value & !mmu::BUSY);
            }
            // Nothing is cached here, so every invalidation is done at once.
            mmu::STLB_INV_ALL_START | mmu::STLB_RANGE_CACHE_INVALIDATION => self.keep(register, value & !1),
            mmu::STLB_SRAM_INIT => self.keep(register, 0),
            mmu::STLB_MEM_CACHE_INVALIDATION => {
                self.keep(register, value);
                self.keep(block + mmu::STLB_MEM_CACHE_INV_STATUS, 1);
            }
            _ => self.keep(register, value),
        }
    }

    // The kernel's DMA engine: registers of a DMA core, fed by the driver's writes instead of a queue.
    fn kdma(&mut self, commit: u32) {
        let core = |register: u32| qman::KDMA + register;
        let source = self.kept_address(core(qman::SRC_BASE_LO), core(qman::SRC_BASE_HI));
        let destination = self.kept_address(core(qman::DST_BASE_LO), core(qman::DST_BASE_HI));
        let completion = self.kept_address(core(qman::WR_COMP_ADDR_LO), core(qman::WR_COMP_ADDR_HI));
        let word = self.kept(core(qman::WR_COMP_WDATA));
        let size = self.kept(core(qman::DST_TSIZE_0));
        match committed(commit, destination, source, size) {
            Ok(_) if self.kdma.len() >= JOBS => self.counters.lost += 1,
            Ok(packet) => self.kdma.push_back(Job {
                packet,
                completion: (completion, word),
                commit,
                done: 0,
            }),
            Err(error) => self.not_done(KDMA_COMMIT, commit, error),
        }
    }

    /// Goes on with the transfers of the kernel's DMA engine: whether there are more.
    pub(super) fn run_kdma(&mut self) -> bool {
        for _ in 0..JOBS {
            let Some(job) = self.kdma.pop_front() else {
                return false;
            };
            self.outside_mut().act_as(Who::Kdma);
            match self.chip.transfer_with(job.completion, job.packet, job.done) {
                Ok(done) if done < u64::from(job.packet.size()) => {
                    self.kdma.push_front(Job { done, ..job });
                    return true;
                }
                Ok(_) => {}
                Err(error) => self.not_done(KDMA_COMMIT, job.commit, error),
            }
        }
        !self.kdma.is_empty()
    }

    /// Writes a word that the chip itself sends, such as the end of a ring's entry.
    pub(super) fn send(&mut self, address: u64, word: u32) {
        self.outside_mut().act_as(Who::Chip);
        if let Err(error) = self.chip.write_word(gaudi_spec::DeviceVa(address), word) {
            match error {
                WriteError::Fault(fault) => self.note(Note::BadAddress(fault.address.get())),
                error => self.not_done(0, word, error),
            }
        }
    }

    /// What the firmware tells of its state.
    pub(super) fn boot_status(&mut self, status: u32) {
        self.keep(firmware::BOOT_STATUS, status);
        debug_assert!(status >= boot::SRAM_AVAIL, "the states that are modelled");
    }

    /// Keeps a register of the firmware's own.
    pub(super) fn tell(&mut self, register: u32, value: u32) {
        self.keep(register, value);
    }
}

/// A transfer of the kernel's DMA engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    packet: LinDma,
    completion: (u64, u32),
    commit: u32,
    // Bytes that are done.
    done: u64,
}

/// Transfers that were started and are not done; more are lost, and counted. The driver waits for each.
const JOBS: usize = 16;
const KDMA_COMMIT: u32 = qman::KDMA + qman::COMMIT;

// A trace buffer, in the chip's own memory or behind PCI.
fn is_trace(place: &Place) -> bool {
    place.row.name.contains("_ETF") || place.row.name == "PSOC_ETR"
}

fn each_copy(base: u32, copies: &[(u32, u32)], what: &mut impl FnMut(u32)) {
    let Some((&(count, stride), inner)) = copies.split_first() else {
        return what(base);
    };
    for number in 0..count {
        each_copy(base + number * stride, inner, what);
    }
}
