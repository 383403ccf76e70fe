//! The driver's side of the function: configuration space, BARs, DMA, time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gaudi_seam::engine::HostRange;
use gaudi_spec::gaudi2::mmu::{KERNEL_ASID, Stacks};
use gaudi_spec::gaudi2::{self, CFG_BASE, CFG_SIZE, DRAM_PHYS_BASE, SRAM_BASE, SRAM_SIZE};
use gaudi_spec::{BarOffset, DevicePa};
use gaudi_sys::{Errno, RawMapping};

use super::chip::{Note, PciChip, PciConfig, PciCounters, Window};
use super::config::ConfigSpace;
use super::firmware_state::Firmware;
use super::ring;
use crate::config::{ChipConfig, MemoryKind, Mode, ModelError};
use crate::gaudi2::chip::Chip;
use crate::gaudi2::counters::Counters;
use crate::gaudi2::run::RunOutcome;
use crate::gaudi2::space::Space;
use crate::memory::DeviceMemory;

/// Packets and monitors executed in a turn within one access, so that the access ends soon.
/// [`PciChip::run`] executes the rest.
const BUDGET: u64 = 1 << 10;
/// Turns of fetching and executing within one run.
const TURNS: u32 = 16;
/// Bytes that the engines move within one run, without those of the last transfer.
const BYTES: u64 = 64 << 20;
/// Offsets of registers and SRAM in their BAR (driver gaudi2.c:gaudi2_set_pci_memory_regions).
const CFG_AT: u64 = 0x400_0000;
const SRAM_AT: u64 = 0xd00_0000;
/// The smallest memory BAR that the driver works with: it covers the first page of 768 MiB.
const SMALLEST_BAR: u64 = 1 << 30;
const LARGEST_BAR: u64 = 1 << 37;

const _: () = assert!(KERNEL_ASID == 0, "registers start with the driver's context");

impl PciChip {
    /// Returns a card as after power-on.
    ///
    /// # Errors
    /// - [`ModelError::Bar`] and [`ModelError::Dram`] if no card has such sizes.
    /// - [`ModelError::Memory`] if the host cannot provide the memory.
    pub fn new(config: PciConfig) -> Result<Self, ModelError> {
        let bar = config.dram_bar;
        if !bar.is_power_of_two() || !(SMALLEST_BAR..=LARGEST_BAR).contains(&bar) {
            return Err(ModelError::Bar(bar));
        }
        let stacks = Stacks::of_size(config.dram).ok_or(ModelError::Dram(config.dram))?;
        // The chip's own pages are those of six stacks: with five there is up to one more than the
        // driver uses.
        let pages = config.dram.div_ceil(gaudi2::DRAM_PAGE);
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: pages * gaudi2::DRAM_PAGE - gaudi2::DRAM_RESERVED,
            mode: Mode::Running,
            memory: MemoryKind::Shared,
        })?;
        let cfg = DeviceMemory::new(c"gaudi2-cfg", CFG_BASE, CFG_SIZE, MemoryKind::Private)?;
        chip.bus.pci = Some(Box::new(Space::new(cfg, stacks)));
        let mut card = Self {
            chip,
            config,
            stacks,
            space: ConfigSpace::new(bar),
            // A constant of a few KiB.
            msix: vec![0; usize::try_from(gaudi2::MSIX_BAR.1).unwrap_or(0)],
            rings: ring::all(),
            firmware: Firmware::default(),
            kdma: VecDeque::new(),
            counters: PciCounters::default(),
            unknown: BTreeMap::new(),
            notes: VecDeque::new(),
            raised: 0,
            nanoseconds: 0,
            busy: false,
            long: false,
        };
        card.power_on();
        Ok(card)
    }

    /// Returns the bytes of a BAR; 0 if the function has no such BAR.
    pub fn bar_size(&self, bar: u8) -> u64 {
        match bar {
            _ if bar == gaudi2::CFG_BAR.0 => gaudi2::CFG_BAR.1,
            _ if bar == gaudi2::MSIX_BAR.0 => gaudi2::MSIX_BAR.1,
            _ if bar == gaudi2::DRAM_BAR => self.config.dram_bar,
            _ => 0,
        }
    }

    /// The part of a BAR that is plain memory and may be mapped.
    pub fn window(&self, bar: u8) -> Option<Window<'_>> {
        let (at, len, memory) = match bar {
            _ if bar == gaudi2::CFG_BAR.0 => (SRAM_AT, SRAM_SIZE, self.chip.sram()),
            _ if bar == gaudi2::DRAM_BAR => {
                let dram = self.chip.dram();
                (0, self.config.dram_bar.min(dram.len()), dram)
            }
            _ => return None,
        };
        let at = BarOffset(at);
        Some(Window { at, len, memory })
    }

    /// Reads configuration space; past its end are zeros.
    pub fn config_read(&self, offset: u64, into: &mut [u8]) {
        self.space.read(offset, into);
    }

    /// Writes the writable bits of configuration space, and resets the function on request.
    pub fn config_write(&mut self, offset: u64, from: &[u8]) {
        if self.space.write(offset, from) {
            self.reset();
        }
    }

    /// Reads from a BAR: registers by words of 4 bytes, memory by bytes. What is neither reads as
    /// zeros and is counted.
    pub fn bar_read(&mut self, bar: u8, at: BarOffset, into: &mut [u8]) {
        into.fill(0);
        match self.at(bar, at, into.len()) {
            Some(Target::Registers(first)) => {
                for (word, register) in into.chunks_exact_mut(4).zip((first..).step_by(4)) {
                    word.copy_from_slice(&self.read_register(register).to_le_bytes());
                }
            }
            Some(Target::Memory(memory, at)) => {
                // `at` proved that it is inside.
                let _ = memory.read(at, into);
            }
            Some(Target::Msix(start)) => {
                into.copy_from_slice(&self.msix[start..start + into.len()]);
            }
            None => self.counters.odd += 1,
        }
    }

    /// Writes to a BAR, and does what that sets off, within a bound: [`run`](Self::run) does the
    /// rest.
    pub fn bar_write(&mut self, bar: u8, at: BarOffset, from: &[u8]) {
        match self.at(bar, at, from.len()) {
            Some(Target::Registers(first)) => {
                for (word, register) in from.chunks_exact(4).zip((first..).step_by(4)) {
                    self.write_register(register, u32::from_le_bytes(word.try_into().expect("four bytes")));
                }
                self.run(BUDGET);
            }
            Some(Target::Memory(memory, at)) => {
                // `at` proved that it is inside.
                let _ = memory.write(at, from);
            }
            Some(Target::Msix(start)) => {
                self.msix[start..start + from.len()].copy_from_slice(from);
            }
            None => self.counters.odd += 1,
        }
    }

    fn at(&self, bar: u8, at: BarOffset, len: usize) -> Option<Target<'_>> {
        let len = u64::try_from(len).ok()?;
        let end = at.get().checked_add(len)?;
        if len == 0 || end > self.bar_size(bar) {
            return None;
        }
        if bar == gaudi2::MSIX_BAR.0 {
            return Some(Target::Msix(usize::try_from(at.get()).ok()?));
        }
        if bar == gaudi2::CFG_BAR.0 {
            if let Some(register) = at.get().checked_sub(CFG_AT) {
                if register < CFG_SIZE {
                    let offset = u32::try_from(register).ok()?;
                    if self.outside().is_memory(offset, len) {
                        return Some(Target::Memory(
                            &self.outside().cfg,
                            CFG_BASE.checked_add(register)?,
                        ));
                    }
                    let whole = register % 4 == 0 && len % 4 == 0 && register + len <= CFG_SIZE;
                    return whole.then_some(Target::Registers(offset));
                }
            }
            let offset = at.get().checked_sub(SRAM_AT)?;
            let pa = SRAM_BASE.checked_add(offset)?;
            let sram = self.chip.sram();
            return sram.offset(pa, len).map(|_| Target::Memory(sram, pa));
        }
        let pa = DRAM_PHYS_BASE.checked_add(at.get())?;
        let dram = self.chip.dram();
        dram.offset(pa, len).map(|_| Target::Memory(dram, pa))
    }

    /// Maps `memory` for DMA at `iova`, until [`dma_unmap`](Self::dma_unmap).
    ///
    /// # Errors
    /// - `EEXIST` if part of the range is mapped.
    /// - `EINVAL` if the range is empty or leaves the space.
    pub fn dma_map(&mut self, iova: u64, memory: Arc<RawMapping>) -> Result<(), Errno> {
        let len = memory.len() as u64;
        if len == 0 || iova.checked_add(len).is_none() {
            return Err(Errno::EINVAL);
        }
        let mapped = self.outside_mut().map(iova, HostRange::of_mapping(memory));
        mapped.then_some(()).ok_or(Errno::EEXIST)
    }

    /// Unmaps every mapping that lies inside a range. Returns the number of bytes unmapped.
    pub fn dma_unmap(&mut self, iova: u64, len: u64) -> u64 {
        self.outside_mut().unmap(iova, len)
    }

    /// Nanoseconds since power-on, for the chip's counter of time.
    pub fn set_time(&mut self, nanoseconds: u64) {
        self.nanoseconds = nanoseconds;
    }

    /// Executes work in a few turns of at most `budget` packets and monitors. Returns whether there
    /// is more.
    pub fn run(&mut self, budget: u64) -> bool {
        let mut more = true;
        let mut turns = 0;
        let begin = self.chip.moved;
        self.long = false;
        while more && turns < TURNS && !self.long {
            more = self.answer_packets();
            more |= self.run_kdma();
            more |= self.chip.run(budget) == RunOutcome::Budget;
            more |= self.fetch_all();
            more |= self.take_events();
            // Only those that are there now: what they set off waits for the next turn.
            for _ in 0..self.outside().deferred.len() {
                let Some((register, value)) = self.outside_mut().deferred.pop_front() else {
                    break;
                };
                self.write_register(register, value);
                more = true;
            }
            self.long |= self.chip.moved.wrapping_sub(begin) >= BYTES;
            turns += 1;
        }
        self.busy = more;
        more
    }

    /// Whether the last run left work.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Takes a vector that was raised. Raised again before it is taken, it stays one, as with
    /// MSI-X.
    pub fn next_interrupt(&mut self) -> Option<u16> {
        let vector = self.raised.trailing_zeros();
        if vector >= u128::BITS {
            return None;
        }
        self.raised &= self.raised - 1;
        u16::try_from(vector).ok()
    }

    /// Takes the oldest note.
    pub fn next_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// Resets the function.
    pub fn reset(&mut self) {
        self.space.reset();
        self.hard_reset();
    }

    /// Returns the counters of accesses across PCI.
    pub fn counters(&self) -> PciCounters {
        let lost = self.counters.lost + self.outside().lost;
        PciCounters {
            lost,
            ..self.counters
        }
    }

    /// Returns the counters of the engines.
    pub fn engines(&self) -> &Counters {
        self.chip.counters()
    }

    /// The HBM.
    pub fn dram(&self) -> &DeviceMemory {
        self.chip.dram()
    }

    /// Returns the accessed registers without a row and the number of accesses, by offset.
    pub fn unknown_registers(&self) -> impl Iterator<Item = (u32, u64)> {
        self.unknown.iter().map(|(&register, &times)| (register, times))
    }
}

enum Target<'a> {
    Registers(u32),
    Memory(&'a DeviceMemory, DevicePa),
    Msix(usize),
}
