//! The bus: resolves an engine's address to memory or a register.

use std::cell::RefCell;

use gaudi_seam::fault::{ChipEvent, EventFields};
use gaudi_spec::{DevicePa, DeviceVa};

use crate::gaudi2::event::{Access, FaultCause};
use crate::gaudi2::faults::ChipFaults;
use crate::gaudi2::place::{Place, Side};
use crate::gaudi2::space::{Initiator, Physical, Space, in_host, in_memory, register_at, whole};
use crate::memory::DeviceMemory;
use crate::mmu::{RangeMmu, Target, Translation};
use crate::span::Span;

/// A failed access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) address: DeviceVa,
    pub(crate) access: Access,
    pub(crate) cause: FaultCause,
}

#[derive(Debug)]
pub(crate) struct Bus {
    pub(crate) dram: DeviceMemory,
    pub(crate) sram: DeviceMemory,
    pub(crate) mmu: RangeMmu,
    /// What lies around the chip where a driver meets it across PCI, in place of `mmu`.
    pub(crate) pci: Option<Box<Space>>,
    /// Fault rules, and the events that they hold back.
    pub(crate) faults: Option<Box<RefCell<ChipFaults>>>,
}

impl Bus {
    /// The accesses that follow are those of `initiator`: across PCI each has a context of its own.
    pub(crate) fn act_as(&mut self, initiator: Initiator) {
        if let Some(space) = &mut self.pci {
            space.act_as(initiator);
        }
    }

    /// The place of `va` and what follows in a row, `len` bytes at most; `None` is a page fault.
    pub(crate) fn forward(&self, va: DeviceVa, len: u64) -> Option<Place<'_>> {
        self.around(va, len, false)
    }

    /// The place of the bytes in a row that end with `last`, `len` bytes at most.
    pub(crate) fn backward(&self, last: DeviceVa, len: u64) -> Option<Place<'_>> {
        self.around(last, len, true)
    }

    fn around(&self, va: DeviceVa, len: u64, back: bool) -> Option<Place<'_>> {
        if self.faults.is_some() && self.walk_fails(va) {
            return None;
        }
        if let Some(space) = &self.pci {
            return space.around(&self.dram, &self.sram, va, len, back);
        }
        if let Some(register) = register_at(va) {
            return Some(Place::Register(register));
        }
        // SRAM lies in the engines' space as it is, untranslated.
        if self.sram.offset(DevicePa(va.get()), 1).is_some() {
            return in_memory(&self.sram, &whole(&self.sram, va.get()), len, back);
        }
        let Translation {
            target,
            before,
            after,
        } = self.mmu.translate(va)?;
        let piece = |at| Physical { at, before, after };
        match target {
            Target::Device(pa) => {
                let memory = if pa >= self.dram.base() {
                    &self.dram
                } else {
                    &self.sram
                };
                in_memory(memory, &piece(pa.get()), len, back)
            }
            Target::Host(range, offset) => in_host(range, offset as u64, &piece(0), len, back),
            Target::Doorbell => Some(Place::Doorbell),
        }
    }

    /// Whether a rule makes the translation of an address fail.
    #[cold]
    pub(crate) fn walk_fails(&self, va: DeviceVa) -> bool {
        let Some(faults) = &self.faults else { return false };
        let is_translated = match &self.pci {
            Some(space) => space.translates(),
            None => true,
        };
        let sram = self.sram.offset(DevicePa(va.get()), 1);
        if !is_translated || register_at(va).is_some() || sram.is_some() {
            return false;
        }
        let fields = EventFields {
            address: va.get(),
            size: 1,
            ..EventFields::default()
        };
        let mut faults = faults.borrow_mut();
        if faults.in_hook {
            return false;
        }
        let struck = faults.meet(ChipEvent::PageWalk, fields);
        if let Some(struck) = &struck {
            struck.happened();
        }
        struck.is_some()
    }

    /// The memory of `va` and what follows; anything else is a fault.
    pub(crate) fn memory(&self, va: DeviceVa, len: u64, access: Access) -> Result<(Span<'_>, Side), Fault> {
        only_memory(self.forward(va, len), va, access)
    }

    /// The memory that ends with `last`; anything else is a fault.
    pub(crate) fn memory_back(
        &self,
        last: DeviceVa,
        len: u64,
        access: Access,
    ) -> Result<(Span<'_>, Side), Fault> {
        only_memory(self.backward(last, len), last, access)
    }

    /// Reads as much as lies in memory: the count, and what stopped it before the end.
    pub(crate) fn read(&self, va: DeviceVa, into: &mut [u8], access: Access) -> (usize, Option<Fault>) {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match step(va, done as u64, access).and_then(|va| self.memory(va, rest.len() as u64, access)) {
                Ok((span, _)) => done += span.read(rest),
                Err(fault) => return (done, Some(fault)),
            }
        }
        (done, None)
    }

    /// Writes a word to memory: at once if it is aligned and contiguous, otherwise byte by byte, as
    /// a bus splits it.
    pub(crate) fn store(&self, va: DeviceVa, value: u32) -> Result<(), Fault> {
        let (span, _) = self.memory(va, 4, Access::Write)?;
        if span.store_release(value) {
            return Ok(());
        }
        self.write(va, &value.to_le_bytes())
    }

    /// Writes all bytes, or those before a fault.
    pub(crate) fn write(&self, va: DeviceVa, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let va = step(va, done as u64, Access::Write)?;
            done += self.memory(va, rest.len() as u64, Access::Write)?.0.write(rest);
        }
        Ok(())
    }

    /// Adds to a 64-bit counter in memory: at once if it is aligned and contiguous.
    pub(crate) fn add(&self, va: DeviceVa, amount: u32) -> Result<(), Fault> {
        let (span, _) = self.memory(va, 8, Access::Write)?;
        if span.add_release(u64::from(amount)) {
            return Ok(());
        }
        let mut bytes = [0; 8];
        if let Some(fault) = self.read(va, &mut bytes, Access::Write).1 {
            return Err(fault);
        }
        let sum = u64::from_le_bytes(bytes).wrapping_add(u64::from(amount));
        self.write(va, &sum.to_le_bytes())
    }
}

/// Returns the address `bytes` after `va`; nothing is mapped past the end of the space.
pub(crate) fn step(va: DeviceVa, bytes: u64, access: Access) -> Result<DeviceVa, Fault> {
    let end = Fault {
        address: DeviceVa(u64::MAX),
        access,
        cause: FaultCause::NotMapped,
    };
    va.checked_add(bytes).ok_or(end)
}

fn only_memory(place: Option<Place<'_>>, va: DeviceVa, access: Access) -> Result<(Span<'_>, Side), Fault> {
    let cause = match place {
        Some(Place::Memory(span, side)) => return Ok((span, side)),
        Some(Place::Register(_)) => FaultCause::Registers,
        Some(Place::Doorbell) => FaultCause::Doorbell,
        None => FaultCause::NotMapped,
    };
    Err(Fault {
        address: va,
        access,
        cause,
    })
}
