//! The chip's address space behind PCI: registers, host memory mapped for DMA, and the driver's
//! page tables.

use std::collections::{BTreeMap, VecDeque};

use gaudi_spec::gaudi2::mmu::{self, Mmu, Stacks};
use gaudi_spec::gaudi2::{CFG_BASE, CFG_SIZE, DCORE_STRIDE, block, qman, queue, sync};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};

use crate::gaudi2::place::{Place, Side};
use crate::memory::DeviceMemory;
use crate::span::of_host;
use gaudi_seam::engine::HostRange;

/// The longest queue of register writes by engines; further writes are lost and counted.
const DEFERRED: usize = 1024;
/// Bytes in the doorbell page, in which a written word raises an interrupt.
const DOORBELL: u64 = 4096;
/// An ASID in a register.
const ASID: u32 = 0x3ff;

/// The initiator of an access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Initiator {
    /// Accesses without translation: fetching of rings, firmware, the kernel's DMA engine before it
    /// has a context.
    Chip,
    /// The command processors of a queue's queue manager.
    Queue(QueueId),
    /// The DMA core behind it.
    Core(QueueId),
    /// The kernel's DMA engine.
    Kdma,
    /// A monitor.
    Monitor { dcore: u32, monitor: u32 },
}

// How the addresses of the current initiator are translated.
#[derive(Clone, Copy, Debug)]
struct Access {
    asid: u16,
    bypass: bool,
    // Reads command buffers: those of the driver lie in device memory without a mapping.
    fetches: bool,
}

const CHIP: Access = Access {
    asid: mmu::KERNEL_ASID,
    bypass: true,
    fetches: true,
};

#[derive(Debug)]
pub(crate) struct Space {
    /// All registers as they were last written, where nothing else keeps them; and the ARCs'
    /// memory.
    pub(crate) cfg: DeviceMemory,
    stacks: Stacks,
    host: BTreeMap<u64, HostRange>,
    // First tables of each MMU by context: the PMMU's, and the HMMUs', which the driver sets all
    // alike.
    tables: [Vec<u64>; 2],
    doorbell: Option<u64>,
    now: Access,
    /// Registers that wait to be carried out, and their words.
    pub(crate) deferred: VecDeque<(u32, u32)>,
    pub(crate) lost: u64,
    // The ARCs' memory: start and end in the configuration space, by start.
    dccm: Vec<(u32, u32)>,
}

/// An address without translation, and how much lies in a row before and after it.
pub(crate) struct Physical {
    pub(crate) at: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Space {
    pub(crate) fn new(cfg: DeviceMemory, stacks: Stacks) -> Self {
        let start = |address: DevicePa| {
            address
                .offset_from(CFG_BASE)
                .and_then(|at| u32::try_from(at).ok())
        };
        let mut dccm: Vec<_> = (0..block::ARCS)
            .filter_map(block::block)
            .filter_map(|block| start(block.address).map(|at| (at, at + block.size)))
            .collect();
        dccm.sort_unstable();
        Self {
            cfg,
            stacks,
            host: BTreeMap::new(),
            tables: [vec![0; mmu::ASIDS as usize], vec![0; mmu::ASIDS as usize]],
            doorbell: None,
            now: CHIP,
            deferred: VecDeque::new(),
            lost: 0,
            dccm,
        }
    }

    /// A register as it was last written.
    pub(crate) fn register(&self, register: u32) -> u32 {
        let mut word = [0; 4];
        // A register outside of the space reads as zero.
        let _ = self.cfg.read(cfg_address(register), &mut word);
        u32::from_le_bytes(word)
    }

    /// Keeps a register's word.
    pub(crate) fn set_register(&self, register: u32, value: u32) {
        // A register outside of the space keeps nothing.
        let _ = self.cfg.write(cfg_address(register), &value.to_le_bytes());
    }

    /// Clears the 4 KiB of registers of a queue manager.
    pub(crate) fn clear_registers(&mut self, first: u32) {
        let written = self.cfg.write(cfg_address(first), &[0; 0x1000]);
        written.expect("a queue manager lies inside of the space");
    }

    /// Whether bytes of the configuration space are an ARC's memory, and no registers.
    pub(crate) fn is_memory(&self, register: u32, len: u64) -> bool {
        let arc = self.arc(register);
        arc.is_some_and(|(_, end)| u64::from(register) + len <= u64::from(end))
    }

    fn arc(&self, register: u32) -> Option<(u32, u32)> {
        let nth = self.dccm.partition_point(|&(start, _)| start <= register);
        let arc = nth.checked_sub(1).and_then(|nth| self.dccm.get(nth));
        arc.copied().filter(|&(_, end)| register < end)
    }

    /// Two registers as one address.
    pub(crate) fn address(&self, low: u32, high: u32) -> u64 {
        u64::from(self.register(low)) | u64::from(self.register(high)) << 32
    }

    /// Maps host memory at `iova`. Returns false, and maps nothing, if part of the range is mapped.
    pub(crate) fn map(&mut self, iova: u64, range: HostRange) -> bool {
        let len = range.len() as u64;
        let Some(last) = len.checked_sub(1).and_then(|more| iova.checked_add(more)) else {
            return false;
        };
        let taken = self
            .host
            .range(..=last)
            .next_back()
            .is_some_and(|(&start, range)| start >= iova || iova - start < range.len() as u64);
        if !taken {
            self.host.insert(iova, range);
        }
        !taken
    }

    /// Unmaps every mapping that lies inside a range. Returns the number of bytes unmapped.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> u64 {
        let end = iova.saturating_add(len);
        let inside: Vec<_> = self
            .host
            .range(iova..end)
            .filter(|&(&start, range)| range.len() as u64 <= end - start)
            .map(|(&start, _)| start)
            .collect();
        let lens = inside.iter().filter_map(|start| self.host.remove(start));
        lens.map(|range| range.len() as u64).sum()
    }

    /// The first table of a context. The driver sets every HMMU like the first.
    pub(crate) fn set_table(&mut self, which: Mmu, asid: u32, address: u64) {
        let tables = match which {
            Mmu::Pci => &mut self.tables[0],
            Mmu::Hbm(0) => &mut self.tables[1],
            Mmu::Hbm(_) => return,
        };
        if let Some(table) = tables.get_mut((asid & ASID) as usize) {
            *table = address;
        }
    }

    /// The page of host memory in which a word written raises an interrupt.
    pub(crate) fn set_doorbell(&mut self, page: Option<u64>) {
        self.doorbell = page.map(|page| page & !(DOORBELL - 1));
    }

    /// Clears the state that a reset of the chip clears; host memory stays mapped for DMA.
    pub(crate) fn clear(&mut self) {
        self.tables.iter_mut().for_each(|tables| tables.fill(0));
        self.deferred.clear();
        (self.doorbell, self.now) = (None, CHIP);
    }

    /// Whether the accesses of the current initiator are translated.
    pub(crate) fn translates(&self) -> bool {
        !self.now.bypass
    }

    /// The accesses that follow are those of `initiator`.
    pub(crate) fn act_as(&mut self, initiator: Initiator) {
        let qman = |queue: QueueId| queue::row(queue).map_or(0, |row| row.qman);
        self.now = match initiator {
            Initiator::Chip => CHIP,
            Initiator::Queue(queue) => self.user(qman(queue) + qman::AXUSER, true),
            Initiator::Core(queue) => self.user(qman(queue) + qman::CORE_AXUSER, false),
            Initiator::Kdma => self.user(qman::KDMA + qman::CORE_AXUSER - qman::DMA_CORE, false),
            Initiator::Monitor { dcore: 0, monitor } => {
                let register = match is_drivers(0, monitor) {
                    true => sync::ASID_SEC,
                    false => sync::ASID_NONE_SEC_PRIV,
                };
                let word = self.register(sync::GLBL + register);
                Access {
                    asid: (word & ASID) as u16,
                    bypass: word & sync::BYPASS != 0,
                    fetches: false,
                }
            }
            // The bus interface's context replaces the sync manager's: these die cores are open to
            // users.
            Initiator::Monitor { dcore, .. } => {
                let interface = sync::GLBL + sync::MSTR_IF_AXUSER;
                self.user(interface + dcore * DCORE_STRIDE, false)
            }
        };
    }

    fn user(&self, axuser: u32, fetches: bool) -> Access {
        Access {
            asid: (self.register(axuser) & ASID) as u16,
            bypass: self.register(axuser + qman::AXUSER_MMU_BP) & qman::MMU_BYPASS != 0,
            fetches,
        }
    }

    /// Queues a register that an engine wrote, to be carried out later.
    pub(crate) fn defer(&mut self, register: u32, value: u32) {
        if self.deferred.len() < DEFERRED {
            self.deferred.push_back((register, value));
        } else {
            self.lost += 1;
        }
    }

    /// The place of `va`, as the bus returns it forward and, with `back`, backward.
    pub(crate) fn around<'a>(
        &'a self,
        dram: &'a DeviceMemory,
        sram: &'a DeviceMemory,
        va: DeviceVa,
        len: u64,
        back: bool,
    ) -> Option<Place<'a>> {
        if let Some(register) = register_at(va) {
            let Some((start, end)) = self.arc(register) else {
                return Some(Place::Register(register));
            };
            let found = Physical {
                at: va.get(),
                before: u64::from(register - start),
                after: u64::from(end - register),
            };
            return in_memory(&self.cfg, &found, len, back);
        }
        if sram.offset(DevicePa(va.get()), 1).is_some() {
            return in_memory(sram, &whole(sram, va.get()), len, back);
        }
        let found = self.translate(dram, va)?;
        if self.doorbell == Some(found.at & !(DOORBELL - 1)) {
            return Some(Place::Doorbell);
        }
        if dram.offset(DevicePa(found.at), 1).is_some() {
            return in_memory(dram, &found, len, back);
        }
        if self.now.bypass && sram.offset(DevicePa(found.at), 1).is_some() {
            return in_memory(sram, &found, len, back);
        }
        let (&start, range) = self.host.range(..=found.at).next_back()?;
        in_host(range, found.at - start, &found, len, back)
    }

    fn translate(&self, dram: &DeviceMemory, va: DeviceVa) -> Option<Physical> {
        let at = va.get();
        let plain = Physical {
            at,
            before: u64::MAX,
            after: u64::MAX,
        };
        if self.now.bypass {
            return Some(plain);
        }
        let Some(which) = self.stacks.mmu(va) else {
            // `source: inferred`: the driver's command buffers for the EDMAs lie in the HBM without
            // a mapping (driver gaudi2.c:gaudi2_memset_device_memory).
            let own = self.now.fetches && dram.offset(DevicePa(at), 1).is_some();
            return own.then_some(plain);
        };
        let asid = usize::from(self.now.asid);
        match which {
            Mmu::Pci => {
                let table = *self.tables[0].get(asid)?;
                self.walk(dram, table, at, &mmu::PMMU_SHIFTS, Side::Host)
            }
            Mmu::Hbm(_) => {
                let table = *self.tables[1].get(asid)?;
                let found = self.walk(
                    dram,
                    table,
                    self.stacks.scramble(at),
                    &mmu::HMMU_SHIFTS,
                    Side::Device,
                )?;
                let at = self.stacks.descramble(found.at)?;
                let after = self.stacks.to_stripe_end(at);
                Some(Physical {
                    at,
                    before: self.stacks.stripe() - after,
                    after,
                })
            }
        }
    }

    // Follows page tables; `None` is a page fault.
    fn walk(&self, dram: &DeviceMemory, table: u64, at: u64, shifts: &[u32], side: Side) -> Option<Physical> {
        let mut table = Some(table).filter(|&table| table != 0)?;
        for (hop, &shift) in shifts.iter().enumerate() {
            let entry = table.checked_add((at >> shift & 0x1ff) * 8)?;
            let mut pte = [0; 8];
            match side {
                Side::Device => dram.read(DevicePa(entry), &mut pte).ok()?,
                Side::Host => {
                    let (&start, range) = self.host.range(..=entry).next_back()?;
                    of_host(range, usize::try_from(entry - start).ok()?, 8)?.read(&mut pte);
                }
            }
            let pte = u64::from_le_bytes(pte);
            if pte & mmu::PRESENT == 0 {
                return None;
            }
            if pte & mmu::LAST != 0 || hop + 1 == shifts.len() {
                let page = 1 << shift;
                let offset = at & (page - 1);
                return Some(Physical {
                    at: pte & mmu::ADDRESS & !(page - 1) | offset,
                    before: offset,
                    after: page - offset,
                });
            }
            table = pte & mmu::ADDRESS;
        }
        None
    }
}

/// The physical address of a register.
fn cfg_address(register: u32) -> DevicePa {
    DevicePa(CFG_BASE.get() + u64::from(register))
}

/// Whether a monitor is one of the driver's own (`source: inferred`: those that it reserves).
pub(crate) fn is_drivers(dcore: u32, monitor: u32) -> bool {
    dcore == 0 && monitor < sync::FIRST_USER_MONITOR
}

/// The register that an engine's address names, by its offset in the configuration space.
pub(crate) fn register_at(va: DeviceVa) -> Option<u32> {
    let offset = va.get().checked_sub(CFG_BASE.get())?;
    u32::try_from(offset).ok().filter(|_| offset < CFG_SIZE)
}

/// All of a memory around an address of it.
pub(crate) fn whole(memory: &DeviceMemory, at: u64) -> Physical {
    let before = at.saturating_sub(memory.base().get());
    Physical {
        at,
        before,
        after: memory.len().saturating_sub(before),
    }
}

// How long the piece is that is asked for, and how many bytes of it lie before the address.
fn piece(found: &Physical, before: u64, after: u64, len: u64, back: bool) -> (u64, u64) {
    if back {
        let len = len.min(found.before.min(before).saturating_add(1));
        (len, len.saturating_sub(1))
    } else {
        (len.min(found.after).min(after), 0)
    }
}

/// A piece of host memory around byte `offset` of a range.
pub(crate) fn in_host<'a>(
    range: &'a HostRange,
    offset: u64,
    found: &Physical,
    len: u64,
    back: bool,
) -> Option<Place<'a>> {
    let left = (range.len() as u64)
        .checked_sub(offset)
        .filter(|&left| left > 0)?;
    let (len, start) = piece(found, offset, left, len, back);
    let (start, len) = (usize::try_from(offset - start).ok()?, usize::try_from(len).ok()?);
    Some(Place::Memory(of_host(range, start, len)?, Side::Host))
}

/// A piece of the chip's memory around an address.
pub(crate) fn in_memory<'a>(
    memory: &'a DeviceMemory,
    found: &Physical,
    len: u64,
    back: bool,
) -> Option<Place<'a>> {
    let bounds = whole(memory, found.at);
    let (len, start) = piece(found, bounds.before, bounds.after, len, back);
    let span = memory.span(DevicePa(found.at.checked_sub(start)?), usize::try_from(len).ok()?)?;
    Some(Place::Memory(span, Side::Device))
}
