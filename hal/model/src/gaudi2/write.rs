//! Words that packets, monitors and the driver write: to memory, to registers, to the doorbell.

use gaudi_spec::gaudi2::packet::{DecodeError, LinDma, LinDmaCtl, Source};
use gaudi_spec::gaudi2::{CFG_BASE, INTERRUPTS, qman};
use gaudi_spec::{DeviceVa, QueueId};

use super::dma;
use crate::gaudi2::bus::Fault;
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Access, Event, FaultCause, StopReason, Unsupported};
use crate::gaudi2::place::Place;
use crate::gaudi2::registers::Block;
use crate::gaudi2::sm::Action;
use crate::gaudi2::space::Initiator;
use crate::gaudi2::stream::{Cp, Held};
use crate::gaudi2::word::Word;

/// Bytes that use as much of a budget as a packet.
const UNIT: u64 = 4096;

/// The reason why a packet or a word could not be executed.
#[derive(Clone, Copy)]
pub(crate) enum Failed {
    Stop(StopReason),
    Fault(Fault),
}

impl Failed {
    pub(crate) fn unknown_register(register: u32) -> Self {
        let address = DeviceVa(CFG_BASE.get() + u64::from(register));
        Self::Stop(StopReason::UnknownRegister(address))
    }
}

impl From<Unsupported> for Failed {
    fn from(what: Unsupported) -> Self {
        Self::Stop(StopReason::Unsupported(what))
    }
}

impl From<DecodeError> for Failed {
    fn from(error: DecodeError) -> Self {
        Self::Stop(StopReason::Malformed(error))
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Chip {
    /// Writes a word to the target of an engine's address.
    pub(crate) fn write_word(&mut self, address: DeviceVa, value: u32) -> Result<(), Failed> {
        match self.bus.forward(address, 4) {
            Some(Place::Register(register)) if self.bus.faults.is_some() => {
                (0..self.sob_writes(register)).try_for_each(|_| self.write_register(register, value))
            }
            Some(Place::Register(register)) => self.write_register(register, value),
            Some(Place::Doorbell) => self.ring(value),
            None => Err(Failed::Fault(Fault {
                address,
                access: Access::Write,
                cause: FaultCause::NotMapped,
            })),
            Some(Place::Memory(..)) => Ok(self.bus.store(address, value)?),
        }
    }

    /// Raises the interrupt whose vector was written to a doorbell.
    fn ring(&mut self, value: u32) -> Result<(), Failed> {
        let vector = u16::try_from(value).ok().filter(|&vector| vector < INTERRUPTS);
        let vector = vector.ok_or(Failed::Stop(StopReason::UnknownVector(value)))?;
        match self.bus.faults.is_some() {
            true => self.report_by_rules(Event::Interrupt { vector }),
            false => self.report(Event::Interrupt { vector }),
        }
        Ok(())
    }

    /// Writes a register of the configuration space.
    pub(crate) fn write_register(&mut self, register: u32, value: u32) -> Result<(), Failed> {
        let Some(block) = self.registers.block(register) else {
            // Across PCI there is more to a chip than queues, engines and the sync manager.
            let space = self.bus.pci.as_mut();
            space
                .ok_or(Failed::unknown_register(register))?
                .defer(register, value);
            return Ok(());
        };
        let known = match block {
            Block::Objs { dcore, offset } => self.sm.write(dcore, offset, value)?,
            Block::Glbl { dcore, offset } => self
                .sm
                .global(dcore, offset)
                .map(|word| word.set(value))
                .is_some(),
            Block::Fence { cp, fence, add } => {
                self.write_fence(cp, fence, add, value);
                true
            }
            Block::Arbiter { queue, offset } => return self.write_arbiter(queue, offset, value),
            Block::Doorbell => return self.ring(value),
            Block::Dma {
                queue,
                offset: qman::COMMIT,
            } => return self.commit(queue, value),
            block => self.word(block).map(|word| word.set(value)).is_some(),
        };
        match &self.bus.pci {
            _ if known => {}
            // Of a block that is modelled, and without an effect.
            Some(space) => space.set_register(register, value),
            None => return Err(Failed::unknown_register(register)),
        }
        Ok(())
    }

    /// Returns the value of a register; `None` if there is no such register.
    pub(crate) fn read_register(&mut self, register: u32) -> Option<u32> {
        match self.registers.block(register)? {
            Block::Objs { dcore, offset } => self.sm.read(dcore, offset),
            Block::Glbl { dcore, offset } => self.sm.global(dcore, offset).map(|word| word.get()),
            Block::Fence { cp, fence, .. } => Some(self.processor(cp).fences[fence as usize].into()),
            Block::Arbiter { queue, offset } => Some(self.manager(queue).arbiter.read(offset)),
            // They hold no word.
            Block::Doorbell
            | Block::Dma {
                offset: qman::COMMIT, ..
            } => Some(0),
            block => self.word(block).map(|word| word.get()),
        }
    }

    // The word that a register keeps and that has no effect when it is written.
    fn word(&mut self, block: Block) -> Option<Word<'_>> {
        Some(match block {
            Block::MessageBase { cp, base, high } => {
                Word::half(&mut self.processor(cp).bases[base as usize], high)
            }
            Block::Predicates { cp, loadable: true } => Word::whole(&mut self.processor(cp).loadable),
            Block::Predicates { cp, loadable: false } => Word::whole(&mut self.processor(cp).predicates),
            Block::WideBase { queue, base, high } => {
                Word::half(&mut self.manager(queue).wide[base as usize], high)
            }
            Block::Dma { queue, offset } => {
                let core = &mut self.manager(queue).core;
                match offset {
                    qman::WR_COMP_WDATA => Word::whole(&mut core.completion.1),
                    qman::WR_COMP_ADDR_LO => Word::half(&mut core.completion.0, false),
                    qman::WR_COMP_ADDR_HI => Word::half(&mut core.completion.0, true),
                    qman::SRC_BASE_LO => Word::half(&mut core.source, false),
                    qman::SRC_BASE_HI => Word::half(&mut core.source, true),
                    qman::DST_BASE_LO => Word::half(&mut core.destination, false),
                    qman::DST_BASE_HI => Word::half(&mut core.destination, true),
                    qman::DST_TSIZE_0 => Word::whole(&mut core.size),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    fn write_arbiter(&mut self, queue: QueueId, offset: u32, value: u32) -> Result<(), Failed> {
        let arbiter = &mut self.manager(queue).arbiter;
        match offset {
            qman::ARB_CFG => {
                let cfg = qman::ArbCfg::from_bits(value);
                if cfg.enable() && !cfg.is_master() {
                    return Err(Unsupported::ArbiterSlave.into());
                }
                if arbiter.set_cfg(cfg) {
                    self.wake_streams(queue, Held::Arbiter);
                }
            }
            qman::ARB_MST_QUIET_PER => arbiter.quiet = value,
            _ => arbiter.set_weight((offset - qman::ARB_WRR_WEIGHT) as usize / 4, value as u8),
        }
        Ok(())
    }

    // Starts the transfer that the core's registers describe.
    fn commit(&mut self, queue: QueueId, value: u32) -> Result<(), Failed> {
        let core = &self.manager(queue).core;
        let packet = committed(value, core.destination, core.source, core.size)?;
        // Done at once: the word that starts it is written once, so no later packet could continue
        // it.
        let mut done = 0;
        loop {
            done = self.transfer(queue, &packet, done)?;
            if done >= u64::from(packet.size) {
                return Ok(());
            }
        }
    }

    /// Goes on with what a LIN_DMA asks of the core behind a queue manager, as
    /// [`transfer_with`](Self::transfer_with).
    pub(crate) fn transfer(&mut self, queue: QueueId, packet: &LinDma, done: u64) -> Result<u64, Failed> {
        self.bus.act_as(Initiator::Core(queue));
        self.transfers_of(queue);
        let completion = self.manager(queue).core.completion;
        self.transfer_with(completion, packet, done)
    }

    /// Goes on with what a LIN_DMA asks, of which `done` bytes are done: how many are now. With the
    /// last of them it writes the completion's word to its address where the packet wants one. A
    /// turn is short, so that gigabytes do not keep others waiting.
    pub(crate) fn transfer_with(
        &mut self,
        completion: (u64, u32),
        packet: &LinDma,
        done: u64,
    ) -> Result<u64, Failed> {
        let (ctl, size, to) = (packet.ctl, u64::from(packet.size), packet.destination);
        if ctl.bf16() || ctl.fp16() || ctl.add_offset_0() {
            return Err(Unsupported::DmaConversion.into());
        }
        let swap = packet.swapped();
        let (bus, counters) = (&self.bus, &mut self.counters);
        let now = match packet.source() {
            Source::Copy(from) if swap > 1 => dma::copy_swapped(bus, counters, to, from, (size, done), swap)?,
            Source::Copy(from) => dma::copy(bus, counters, to, from, size, done)?,
            Source::Set(_) if swap > 1 => {
                return Err(Unsupported::DmaConversion.into());
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
                Err(Unsupported::Nested.into())
            }
            _ => self.write_word(DeviceVa(address), value).map(|()| now),
        }
    }

    /// Writes a fence counter, and lets its processor look at its FENCE again.
    pub(crate) fn write_fence(&mut self, cp: Cp, fence: u32, add: bool, value: u32) {
        let counter = &mut self.processor(cp).fences[fence as usize];
        let value = match add {
            true => u32::from(*counter) + (value & qman::FENCE_INC_MASK),
            false => value,
        };
        *counter = value.min(qman::FENCE_MAX) as u16;
        let counter = *counter;
        // It takes its share off the counter when it executes the FENCE once more.
        self.wake(cp, |held| {
            matches!(held, Held::Fence { id, target } if u32::from(id) == fence && counter >= u16::from(target))
        });
    }

    /// Subtracts the bytes moved since the last call from a budget.
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
        // Checked after every packet, and rarely true.
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
                    Err(Failed::Stop(StopReason::Unsupported(what))) => {
                        Event::Unsupported { address, value, what }
                    }
                    Err(error) => {
                        let cause = match error {
                            Failed::Fault(fault) => fault.cause,
                            Failed::Stop(StopReason::UnknownVector(_)) => FaultCause::UnknownVector,
                            Failed::Stop(_) => FaultCause::UnknownRegister,
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
                    for (address, value) in writes.into_iter().take(count) {
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
                        self.bus.add(address, value).map_err(Failed::Fault)
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

/// The transfer that a `COMMIT` starts: the bits of LIN_DMA's control word, and one for a linear
/// transfer.
pub(crate) fn committed(commit: u32, to: u64, from: u64, size: u32) -> Result<LinDma, Failed> {
    let known = const {
        LinDmaCtl::from_bits(0)
            .with_wrcomp(true)
            .with_endian(3)
            .with_memset(true)
            .into_bits()
    };
    if commit & !known != qman::COMMIT_LINEAR {
        return Err(Unsupported::DmaConversion.into());
    }
    let ctl = LinDmaCtl::from_bits(LinDmaCtl::EMPTY.into_bits() | commit & known);
    Ok(LinDma::with(ctl, DeviceVa(to), DeviceVa(from), size))
}
