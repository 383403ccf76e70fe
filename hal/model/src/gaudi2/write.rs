//! Words that packets, monitors and the driver write: to memory, to registers, to the doorbell.

use gaudi_spec::gaudi2::packet::{EndianSwap, LinDma, LinDmaCtl, Source};
use gaudi_spec::gaudi2::{INTERRUPTS, qman, queue};
use gaudi_spec::{DeviceVa, QueueId};

use super::dma;
use crate::gaudi2::bus::Fault;
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Event, FaultCause, Unsupported};
use crate::gaudi2::manager::Manager;
use crate::gaudi2::place::Place;
use crate::gaudi2::registers::Block;
use crate::gaudi2::sm::Action;
use crate::gaudi2::space::Initiator;
use crate::gaudi2::stream::{Cp, Held};

/// Bytes that cost as much of a budget as a packet.
const UNIT: u64 = 4096;

/// Why a word could not be written.
#[derive(Clone, Copy)]
pub(crate) enum WriteError {
    Fault(Fault),
    UnknownRegister,
    UnknownVector,
    Unsupported(Unsupported),
}

impl From<Fault> for WriteError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Chip {
    /// Writes a word wherever an engine's address leads.
    pub(crate) fn write_word(&mut self, address: DeviceVa, value: u32) -> Result<(), WriteError> {
        match self.bus.forward(address, 4) {
            Some(Place::Register(register)) => self.write_register(register, value),
            Some(Place::Doorbell) => self.ring(value),
            _ => self.bus.store(address, value).map_err(WriteError::Fault),
        }
    }

    /// Raises the interrupt whose vector was written to a doorbell.
    fn ring(&mut self, value: u32) -> Result<(), WriteError> {
        let vector = u16::try_from(value).ok().filter(|&vector| vector < INTERRUPTS);
        self.report(Event::Interrupt {
            vector: vector.ok_or(WriteError::UnknownVector)?,
        });
        Ok(())
    }

    fn manager(&mut self, first: QueueId) -> Result<&mut Manager, WriteError> {
        self.managers
            .get_mut(Cp::of(first).qman() as usize)
            .ok_or(WriteError::UnknownRegister)
    }

    /// Writes a register of the configuration space.
    pub(crate) fn write_register(&mut self, register: u32, value: u32) -> Result<(), WriteError> {
        let Some(block) = self.registers.block(register) else {
            return self.defer(register, value);
        };
        let sync = match block {
            Block::Objs { dcore, offset } => self.sm.write(dcore, offset, value),
            Block::Glbl { dcore, offset } => self.sm.write_global(dcore, offset, value),
            Block::Fence { cp, fence, add } => {
                self.write_fence(cp, fence, add, value);
                Some(Ok(()))
            }
            Block::MessageBase { cp, base, high } => {
                let bases = self.processor(cp).map(|cp| &mut cp.bases);
                bases.and_then(|bases| bases.get_mut(base as usize)).map(|base| {
                    *base = halves(*base, value, high);
                    Ok(())
                })
            }
            Block::Predicates { cp, loadable } => self.processor(cp).map(|cp| {
                *(if loadable {
                    &mut cp.loadable
                } else {
                    &mut cp.predicates
                }) = value;
                Ok(())
            }),
            Block::WideBase { queue, base, high } => {
                let wide = self.manager(queue)?.wide.get_mut(base as usize);
                wide.map(|wide| {
                    *wide = halves(*wide, value, high);
                    Ok(())
                })
            }
            Block::Arbiter { queue, offset } => return self.write_arbiter(queue, offset, value),
            Block::Dma { queue, offset } => return self.write_core(queue, offset, value),
            Block::Doorbell => return self.ring(value),
        };
        match sync {
            Some(Ok(())) => Ok(()),
            Some(Err(what)) => Err(WriteError::Unsupported(what)),
            None => match &self.bus.pci {
                // Of a block that is modelled, and without an effect.
                Some(space) => {
                    space.set_register(register, value);
                    Ok(())
                }
                None => Err(WriteError::UnknownRegister),
            },
        }
    }

    // A register that is not of queues, engines or the sync manager. Across PCI there is more to a
    // chip than those.
    fn defer(&mut self, register: u32, value: u32) -> Result<(), WriteError> {
        let space = self.bus.pci.as_mut().ok_or(WriteError::UnknownRegister)?;
        space.defer(register, value);
        Ok(())
    }

    fn write_arbiter(&mut self, queue: QueueId, offset: u32, value: u32) -> Result<(), WriteError> {
        let arbiter = &mut self.manager(queue)?.arbiter;
        match offset {
            qman::ARB_CFG => {
                let cfg = qman::ArbCfg::from_bits(value);
                if cfg.enable() && !cfg.is_master() {
                    return Err(WriteError::Unsupported(Unsupported::ArbiterSlave));
                }
                if arbiter.set_cfg(cfg) {
                    self.release_arbitrated(queue);
                }
            }
            qman::ARB_MST_QUIET_PER => arbiter.quiet = value,
            _ => arbiter.set_weight((offset - qman::ARB_WRR_WEIGHT) as usize / 4, value as u8),
        }
        Ok(())
    }

    // Lets all streams of a queue manager go on that wait for its arbiter.
    fn release_arbitrated(&mut self, first: QueueId) {
        for stream in 0..queue::STREAMS {
            self.wake(Cp::in_qman(first, stream), |held| held == Held::Arbiter);
        }
    }

    fn write_core(&mut self, queue: QueueId, offset: u32, value: u32) -> Result<(), WriteError> {
        let core = &mut self.manager(queue)?.core;
        match offset {
            qman::WR_COMP_WDATA => core.completion.1 = value,
            qman::WR_COMP_ADDR_HI | qman::WR_COMP_ADDR_LO => {
                core.completion.0 = halves(core.completion.0, value, offset == qman::WR_COMP_ADDR_HI);
            }
            qman::SRC_BASE_LO | qman::SRC_BASE_HI => {
                core.source = halves(core.source, value, offset == qman::SRC_BASE_HI);
            }
            qman::DST_BASE_LO | qman::DST_BASE_HI => {
                core.destination = halves(core.destination, value, offset == qman::DST_BASE_HI);
            }
            qman::DST_TSIZE_0 => core.size = value,
            qman::COMMIT => return self.commit(queue, value),
            _ => return Err(WriteError::UnknownRegister),
        }
        Ok(())
    }

    // Starts the transfer that the core's registers describe.
    fn commit(&mut self, queue: QueueId, value: u32) -> Result<(), WriteError> {
        let core = &self.manager(queue)?.core;
        let packet = committed(value, core.destination, core.source, core.size)?;
        // Done at once: the word that starts it is written once, so no later packet could continue
        // it.
        let mut done = 0;
        loop {
            done = self.transfer(queue, packet, done)?;
            if done >= u64::from(packet.size()) {
                return Ok(());
            }
        }
    }

    /// Goes on with what a LIN_DMA asks of the core behind a queue manager, as
    /// [`transfer_with`](Self::transfer_with).
    pub(crate) fn transfer(&mut self, queue: QueueId, packet: LinDma, done: u64) -> Result<u64, WriteError> {
        self.bus.act_as(Initiator::Core(queue));
        let completion = self.manager(queue)?.core.completion;
        self.transfer_with(completion, packet, done)
    }

    /// Goes on with what a LIN_DMA asks, of which `done` bytes are done: how many are now. With the
    /// last of them it writes the completion's word to its address where the packet wants one. A
    /// turn is short, so that gigabytes do not keep others waiting.
    pub(crate) fn transfer_with(
        &mut self,
        completion: (u64, u32),
        packet: LinDma,
        done: u64,
    ) -> Result<u64, WriteError> {
        let (ctl, size, to) = (packet.ctl(), u64::from(packet.size()), packet.destination());
        if ctl.bf16() || ctl.fp16() || ctl.add_offset_0() {
            return Err(WriteError::Unsupported(Unsupported::DmaConversion));
        }
        let swap = packet.swap().bytes();
        let (bus, counters) = (&self.bus, &mut self.counters);
        let now = match packet.source() {
            Source::Copy(from) if swap > 1 => dma::copy_swapped(bus, counters, to, from, (size, done), swap)?,
            Source::Copy(from) => dma::copy(bus, counters, to, from, size, done)?,
            Source::Set(_) if swap > 1 => {
                return Err(WriteError::Unsupported(Unsupported::DmaConversion));
            }
            Source::Set(pattern) => dma::fill(bus, counters, to, pattern, size, done)?,
        };
        self.moved = self.moved.wrapping_add(now.saturating_sub(done));
        if now < size || !ctl.wrcomp() {
            return Ok(now);
        }
        let (address, value) = completion;
        // A completion that starts the transfer again would never end.
        match self.bus.forward(DeviceVa(address), 4) {
            Some(Place::Register(register)) if self.registers.is_commit(register) => {
                Err(WriteError::Unsupported(Unsupported::Nested))
            }
            _ => self.write_word(DeviceVa(address), value).map(|()| now),
        }
    }

    pub(crate) fn read_register(&self, register: u32) -> Option<u32> {
        let half = |value: u64, high: bool| if high { (value >> 32) as u32 } else { value as u32 };
        let processor = |cp: Cp| self.processors.get(cp.0 as usize);
        let manager = |queue: QueueId| self.managers.get(Cp::of(queue).qman() as usize);
        match self.registers.block(register)? {
            Block::Objs { dcore, offset } => self.sm.read(dcore, offset),
            Block::Glbl { dcore, offset } => self.sm.read_global(dcore, offset),
            Block::Fence { cp, fence, .. } => {
                processor(cp)?.fences.get(fence as usize).map(|&f| u32::from(f))
            }
            Block::MessageBase { cp, base, high } => processor(cp)?
                .bases
                .get(base as usize)
                .map(|&base| half(base, high)),
            Block::Predicates { cp, loadable } => processor(cp).map(|cp| match loadable {
                true => cp.loadable,
                false => cp.predicates,
            }),
            Block::WideBase { queue, base, high } => manager(queue)?
                .wide
                .get(base as usize)
                .map(|&base| half(base, high)),
            Block::Arbiter { queue, offset } => manager(queue).map(|manager| match offset {
                qman::ARB_CFG => manager.arbiter.cfg().into_bits(),
                qman::ARB_MST_QUIET_PER => manager.arbiter.quiet,
                _ => u32::from(
                    manager
                        .arbiter
                        .weight((offset - qman::ARB_WRR_WEIGHT) as usize / 4),
                ),
            }),
            // It holds no word.
            Block::Doorbell => Some(0),
            Block::Dma { queue, offset } => manager(queue).map(|manager| {
                let core = &manager.core;
                match offset {
                    qman::WR_COMP_WDATA => core.completion.1,
                    qman::DST_TSIZE_0 => core.size,
                    qman::SRC_BASE_LO | qman::SRC_BASE_HI => half(core.source, offset == qman::SRC_BASE_HI),
                    qman::DST_BASE_LO | qman::DST_BASE_HI => {
                        half(core.destination, offset == qman::DST_BASE_HI)
                    }
                    qman::COMMIT => 0,
                    _ => half(core.completion.0, offset == qman::WR_COMP_ADDR_HI),
                }
            }),
        }
    }

    /// Writes a fence counter, and lets its processor look at its FENCE again.
    pub(crate) fn write_fence(&mut self, cp: Cp, fence: u32, add: bool, value: u32) {
        let Some(processor) = self.processor(cp) else {
            return;
        };
        let Some(counter) = processor.fences.get_mut(fence as usize) else {
            return;
        };
        let value = if add {
            u32::from(*counter) + (value & qman::FENCE_INC_MASK)
        } else {
            value
        };
        *counter = value.min(qman::FENCE_MAX) as u16;
        let counter = *counter;
        // It takes its share off the counter when it executes the FENCE once more.
        self.wake(cp, |held| {
            matches!(held, Held::Fence { id, target } if u32::from(id) == fence && counter >= u16::from(target))
        });
    }

    /// Takes what was moved since the last time off a budget.
    #[inline]
    pub(crate) fn charge(&mut self, left: &mut u64) {
        let units = self.moved.wrapping_sub(self.charged) / UNIT;
        if units > 0 {
            self.charged = self.charged.wrapping_add(units * UNIT);
            *left = left.saturating_sub(units);
        }
    }

    /// Carries out monitors that fired, each for one of the budget.
    #[inline]
    pub(crate) fn settle(&mut self, left: &mut u64) {
        // Asked after every packet, and hardly ever there.
        if self.sm.has_fired() {
            self.carry_out(left);
        }
    }

    fn carry_out(&mut self, left: &mut u64) {
        while *left > 0 {
            let Some(fired) = self.sm.take_fired() else { return };
            *left -= 1;
            self.counters.monitors += 1;
            self.bus.act_as(Initiator::Monitor {
                dcore: fired.dcore,
                monitor: fired.monitor,
            });
            let report = |chip: &mut Self, address, value, result| {
                let event = match result {
                    Ok(()) => return true,
                    Err(WriteError::Unsupported(what)) => Event::Unsupported { address, value, what },
                    Err(error) => {
                        let cause = match error {
                            WriteError::Fault(fault) => fault.cause,
                            WriteError::UnknownVector => FaultCause::UnknownVector,
                            _ => FaultCause::UnknownRegister,
                        };
                        Event::MonitorFault {
                            dcore: fired.dcore,
                            monitor: fired.monitor,
                            address,
                            cause,
                        }
                    }
                };
                chip.report(event);
                false
            };
            let message = match fired.action {
                Action::Writes(count, writes) => {
                    for (address, value) in writes.into_iter().take(usize::from(count)) {
                        let result = self.write_word(address, value);
                        report(self, address, value, result);
                    }
                    None
                }
                Action::Cq {
                    entry: (address, value),
                    counts,
                    message,
                } => {
                    let result = if counts {
                        self.bus.add(address, value).map_err(WriteError::Fault)
                    } else {
                        self.write_word(address, value)
                    };
                    message.filter(|_| report(self, address, value, result))
                }
            };
            if let Some((address, value)) = message {
                let result = self.write_word(address, value);
                report(self, address, value, result);
            }
            self.sm.carried_out(&fired);
            self.charge(left);
        }
    }
}

/// The transfer that a `COMMIT` starts: the bits of LIN_DMA's control word, and one that says that
/// it is linear.
pub(crate) fn committed(commit: u32, to: u64, from: u64, size: u32) -> Result<LinDma, WriteError> {
    let known = LinDmaCtl::new()
        .with_wrcomp(true)
        .with_endian(3)
        .with_memset(true);
    let known = known.into_bits() & !LinDmaCtl::new().into_bits();
    if commit & qman::COMMIT_LINEAR == 0 || commit & !(known | qman::COMMIT_LINEAR) != 0 {
        return Err(WriteError::Unsupported(Unsupported::DmaConversion));
    }
    let ctl = LinDmaCtl::from_bits(commit & known);
    let packet = if ctl.memset() {
        LinDma::memset(DeviceVa(to), from as u32, size)
    } else {
        LinDma::copy(DeviceVa(to), DeviceVa(from), size)
    };
    let swap = EndianSwap::from_bits(ctl.endian());
    Ok(packet.with_swap(swap).with_write_completion(ctl.wrcomp()))
}

fn halves(whole: u64, value: u32, high: bool) -> u64 {
    if high {
        whole & 0xffff_ffff | u64::from(value) << 32
    } else {
        whole & !0xffff_ffff | u64::from(value)
    }
}
