//! The bus: which memory or register an engine's address means.

use gaudi_spec::gaudi2::{CFG_BASE, CFG_SIZE};
use gaudi_spec::{DevicePa, DeviceVa};

use crate::gaudi2::event::{Access, FaultCause};
use crate::gaudi2::place::{Place, Side};
use crate::gaudi2::space::{Initiator, Space};
use crate::memory::DeviceMemory;
use crate::mmu::{RangeMmu, Target};
use crate::span::{Span, of_host};

/// An access that cannot be done.
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
        if let Some(space) = &self.pci {
            return space.around(&self.dram, &self.sram, va, len, back);
        }
        if let Some(register) = va
            .offset_from(DeviceVa(CFG_BASE.get()))
            .filter(|&offset| offset < CFG_SIZE)
        {
            return u32::try_from(register).ok().map(Place::Register);
        }
        // `here` bytes of room before the address and after it, the address itself counted in both.
        let room = |before: u64, after: u64| if back { before.saturating_add(1) } else { after };
        let start = |len: u64| if back { len - 1 } else { 0 };
        if let Some(offset) = va
            .offset_from(DeviceVa(self.sram.base().get()))
            .filter(|&o| o < self.sram.len())
        {
            // SRAM lies in the engines' space as it is, untranslated.
            let len = len.min(room(offset, self.sram.len() - offset));
            let pa = DevicePa(va.get() - start(len));
            return Some(Place::Memory(
                self.sram.span(pa, usize::try_from(len).ok()?)?,
                Side::Device,
            ));
        }
        let found = self.mmu.translate(va)?;
        let len = len.min(room(found.before, found.after));
        let size = usize::try_from(len).ok()?;
        Some(match found.target {
            Target::Device(pa) => {
                let pa = DevicePa(pa.get() - start(len));
                let memory = if pa >= self.dram.base() {
                    &self.dram
                } else {
                    &self.sram
                };
                Place::Memory(memory.span(pa, size)?, Side::Device)
            }
            Target::Host(range, offset) => {
                let offset = offset - usize::try_from(start(len)).ok()?;
                Place::Memory(of_host(range, offset, size)?, Side::Host)
            }
            Target::Doorbell => Place::Doorbell,
        })
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

    /// Writes a word to memory: at once where it is aligned and in one piece, else byte by byte as
    /// a bus would split it.
    pub(crate) fn store(&self, va: DeviceVa, value: u32) -> Result<(), Fault> {
        let (span, _) = self.memory(va, 4, Access::Write)?;
        if span.store_release(value) {
            return Ok(());
        }
        self.write(va, &value.to_le_bytes())
    }

    /// Writes all bytes; at a fault, those before it were written.
    pub(crate) fn write(&self, va: DeviceVa, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let va = step(va, done as u64, Access::Write)?;
            done += self.memory(va, rest.len() as u64, Access::Write)?.0.write(rest);
        }
        Ok(())
    }

    /// Adds to a 64-bit counter in memory: at once where it is aligned and in one piece.
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

/// The address `bytes` further on; past the end of the space nothing is mapped.
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
