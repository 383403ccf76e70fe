//! The effect of each register: most keep their word, some start work, some read as a state.

use gaudi_spec::QueueId;
use gaudi_spec::gaudi2::firmware;
use gaudi_spec::gaudi2::mmu::{self, STLB_ASID, STLB_BUSY, STLB_HOP0_PA43_12, STLB_HOP0_PA63_44};
use gaudi_spec::gaudi2::rows::Place;
use gaudi_spec::gaudi2::{qman, queue, router};

use super::chip::PciChip;
use super::firmware_state::{Job, TICKS_PER_US};
use crate::gaudi2::space::Initiator;
use crate::gaudi2::write::committed;

/// `PSOC_TIMESTAMP_CNTCVL` and `_CNTCVU`: the counter of time, which counts [`TICKS_PER_US`].
const CNTCVL: u32 = 0x4c4_9008;
const CNTCVU: u32 = 0x4c4_900c;
/// `ARC_AUX_RUN_HALT_REQ` and `_ACK` (arc_farm_arc0_aux_regs.h).
const RUN_HALT_REQ: u32 = 0x100;
const RUN_HALT_ACK: u32 = 0x104;
/// Their bits: run, and halt (arc_farm_arc0_aux_masks.h).
const RUN: u32 = 1;
const HALT_REQ: u32 = 1 << 1;
const HALT_ACK: u32 = 1 << 4;
/// `FFCR` of a trace buffer: bit 6 starts a flush and is clear when that is done
/// (dcore0_tpc0_eml_etf_regs.h, psoc_etr_regs.h).
const FFCR: u32 = 0x304;
const FLUSH: u32 = 1 << 6;
/// `STS` of a trace buffer: it is empty and ready.
const TRACE_STATUS: u32 = 0xc;
const TRACE_READY: u32 = 1 << 2;
/// `PSOC_ETR_CTL` switches tracing on; the write pointer then is where the buffer begins
/// (psoc_etr_regs.h `DBALO`, `DBAHI`, `RWP`, `RWPHI`).
const ETR: u32 = 0x6c4_4000;
const ETR_CTL: u32 = ETR + 0x20;
const ETR_BUFFER: [(u32, u32); 2] = [(ETR + 0x118, ETR + 0x18), (ETR + 0x11c, ETR + 0x3c)];
/// `BRDG_CTRL_GRACEFUL`: stop a decoder, and it is stopped (dcore0_vdec0_brdg_ctrl_masks.h).
const GRACEFUL: u32 = 0x110;
const GRACEFUL_STOP: u32 = 1;
const GRACEFUL_PEND: u32 = 1 << 4;
impl PciChip {
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
        if router::is_write_refused(register) {
            let refused = self.kept(register) & !value;
            return self.keep(register, refused);
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
            self.outside_mut().act_as(Initiator::Chip);
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

    // The kernel's DMA engine: registers of a DMA core, fed by the driver's writes instead of a
    // queue.
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
            self.outside_mut().act_as(Initiator::Kdma);
            match self.chip.transfer_with(job.completion, &job.packet, job.done) {
                Ok(done) if done < u64::from(job.packet.size) => {
                    self.kdma.push_front(Job { done, ..job });
                    return true;
                }
                Ok(_) => {}
                Err(error) => self.not_done(KDMA_COMMIT, job.commit, error),
            }
        }
        !self.kdma.is_empty()
    }
}

/// The longest queue of started transfers; further ones are lost and counted. The driver waits for
/// each.
const JOBS: usize = 16;
const KDMA_COMMIT: u32 = qman::KDMA + qman::COMMIT;

// A trace buffer, in the chip's own memory or behind PCI.
fn is_trace(place: &Place) -> bool {
    place.row.name.contains("_ETF") || place.row.name == "PSOC_ETR"
}
