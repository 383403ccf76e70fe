//! A chip across PCI: its parts and their shared state.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use gaudi_seam::engine::Reset;
use gaudi_seam::fault::ChipRules;
use gaudi_spec::gaudi2::firmware::{self, EVENT};
use gaudi_spec::gaudi2::mmu::Stacks;
use gaudi_spec::gaudi2::rows::{self, Place};
use gaudi_spec::gaudi2::{self, CFG_BASE};
use gaudi_spec::{BarOffset, DeviceVa};

use super::config::ConfigSpace;
use super::firmware_state::{Firmware, Job};
use super::ring::Ring;
use crate::gaudi2::chip::Chip;
use crate::gaudi2::event::{Access, Event, StopReason};
use crate::gaudi2::space::{Initiator, Space};
use crate::gaudi2::write::Failed;
use crate::memory::DeviceMemory;

/// The vector of the event queue (gaudi2P.h `GAUDI2_IRQ_NUM_EVENT_QUEUE`).
const EVENT_VECTOR: u16 = 0;
/// The longest queue of notes; further notes are counted only.
const NOTES: usize = 256;
/// The panic message if a card has no surroundings, which is a defect of the model.
const SURROUNDED: &str = "`PciChip::new` gives the chip its surroundings";
/// Registers without a row that are reported one by one.
const UNKNOWN: usize = 4096;

/// The configuration of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciConfig {
    /// Bytes of the memory BAR: a power of two from 1 GiB to 128 GiB. Exports of device memory need
    /// 4 GiB and more.
    pub dram_bar: u64,
    /// Bytes of HBM: 96 GiB, or 80 GiB if one stack is disabled. The driver accepts no other size.
    pub dram: u64,
    /// Whether the firmware reports a secured card. On such a card the firmware, not the driver,
    /// sets the protection.
    pub secured: bool,
}

impl Default for PciConfig {
    fn default() -> Self {
        Self {
            dram_bar: 8 << 30,
            dram: gaudi2::DRAM_SIZE,
            secured: true,
        }
    }
}

/// A part of a BAR that is plain memory, and the file behind it.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Its offset in the BAR.
    pub at: BarOffset,
    /// Bytes.
    pub len: u64,
    /// The memory; its byte 0 is the window's.
    pub memory: &'a DeviceMemory,
}

/// A note for the observer of the card.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A register that no row knows was met for the first time: its offset in the configuration
    /// space, and whether it was written.
    UnknownRegister(u32, bool),
    /// The driver loads an image, by its number: 1 is the boot image, 2 the firmware.
    Image(u32),
    /// A packet to the firmware, and whether the firmware executes it.
    Packet(u16, bool),
    /// A reset.
    Reset(Reset),
    /// An engine's or monitor's event other than work that is done.
    Engine(Event),
    /// An access of the firmware or a ring to an address without memory.
    BadAddress(u64),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRegister(register, true) => {
                write!(f, "register {register:#x} written, which no row knows")
            }
            Self::UnknownRegister(register, false) => {
                write!(f, "register {register:#x} read, which no row knows")
            }
            Self::Image(number) => write!(f, "image {number} started"),
            Self::Packet(operation, true) => write!(f, "packet {operation}"),
            Self::Packet(operation, false) => write!(f, "packet {operation} refused: not modelled"),
            Self::Reset(Reset::Soft) => f.write_str("reset of the engines"),
            Self::Reset(Reset::Hard) => f.write_str("reset of the chip"),
            Self::Engine(Event::Stop(stop)) => write!(f, "{stop}"),
            Self::Engine(Event::PageFault(fault)) => write!(
                f,
                "queue {}: {:?} of {} met no mapping",
                fault.queue, fault.access, fault.address
            ),
            Self::Engine(event) => write!(f, "{event:?}"),
            Self::BadAddress(address) => write!(f, "no memory at {address:#x}"),
        }
    }
}

/// Counters of accesses and work across PCI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciCounters {
    /// Registers read.
    pub reads: u64,
    /// Registers written.
    pub writes: u64,
    /// Accesses to registers without a row.
    pub unknown: u64,
    /// Accesses to a BAR that are not whole words of a register.
    pub odd: u64,
    /// Entries fetched from rings.
    pub fetched: u64,
    /// Packets that the firmware answered.
    pub packets: u64,
    /// Events that it sent.
    pub events: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Resets of the engines.
    pub soft_resets: u64,
    /// Resets of the chip.
    pub hard_resets: u64,
    /// Notes that were not kept, and registers written by engines that were lost.
    pub lost: u64,
}

/// A Gaudi2 across PCI.
#[derive(Debug)]
pub struct PciChip {
    pub(super) chip: Chip,
    pub(super) config: PciConfig,
    pub(super) stacks: Stacks,
    pub(super) space: ConfigSpace,
    pub(super) msix: Vec<u8>,
    pub(super) rings: Vec<Ring>,
    pub(super) firmware: Firmware,
    // Transfers of the kernel's DMA engine that are not done, in their order.
    pub(super) kdma: VecDeque<Job>,
    pub(super) counters: PciCounters,
    // Registers that no row knows, and how often each was met.
    pub(super) unknown: BTreeMap<u32, u64>,
    pub(super) notes: VecDeque<Note>,
    // Vectors raised and not taken, a bit each.
    pub(super) raised: u128,
    pub(super) nanoseconds: u64,
    pub(super) busy: bool,
    // Something took long: the run ends after this turn.
    pub(super) long: bool,
}

impl PciChip {
    /// Injects the faults of rules for the chip's events. They outlast its resets.
    pub fn attach_faults(&mut self, rules: &Arc<ChipRules>) {
        self.chip.attach_faults(rules);
    }

    // The chip's surroundings.
    pub(super) fn outside(&self) -> &Space {
        self.chip.bus.pci.as_deref().expect(SURROUNDED)
    }

    pub(super) fn outside_mut(&mut self) -> &mut Space {
        self.chip.bus.pci.as_deref_mut().expect(SURROUNDED)
    }

    pub(super) fn raise(&mut self, vector: u16) {
        self.raised |= 1 << u32::from(vector);
        self.counters.interrupts += 1;
    }

    pub(super) fn note(&mut self, note: Note) {
        if self.notes.len() < NOTES {
            self.notes.push_back(note);
        } else {
            self.counters.lost += 1;
        }
    }

    // The row of a register; a register without a row is counted, and reported the first time.
    pub(super) fn named(&mut self, register: u32, written: bool) -> Option<Place> {
        let place = rows::find(register);
        if place.is_none() {
            self.counters.unknown += 1;
            let room = self.unknown.len() < UNKNOWN;
            match self.unknown.get_mut(&register) {
                Some(times) => *times += 1,
                None if room => {
                    self.unknown.insert(register, 1);
                    self.note(Note::UnknownRegister(register, written));
                }
                None => {}
            }
        }
        place
    }

    pub(super) fn keep(&mut self, register: u32, value: u32) {
        self.outside_mut().set_register(register, value);
    }

    pub(super) fn kept(&self, register: u32) -> u32 {
        self.outside().register(register)
    }

    pub(super) fn kept_address(&self, low: u32, high: u32) -> u64 {
        self.outside().address(low, high)
    }

    pub(super) fn not_done(&mut self, register: u32, value: u32, error: Failed) {
        let address = DeviceVa(CFG_BASE.get() + u64::from(register));
        let note = match error {
            Failed::Stop(StopReason::Unsupported(what)) => {
                Note::Engine(Event::Unsupported { address, value, what })
            }
            Failed::Fault(fault) => Note::BadAddress(fault.address.get()),
            Failed::Stop(_) => Note::UnknownRegister(register, true),
        };
        self.note(note);
    }

    /// Writes a word that the chip itself sends, such as the end of a ring's entry.
    pub(super) fn send(&mut self, address: u64, word: u32) {
        self.outside_mut().act_as(Initiator::Chip);
        if let Err(error) = self.chip.write_word(DeviceVa(address), word) {
            self.not_done(0, word, error);
        }
    }

    // The firmware reaches host memory without a context.
    pub(super) fn load(&mut self, at: u64, into: &mut [u8]) -> bool {
        self.outside_mut().act_as(Initiator::Chip);
        let (_, fault) = self.chip.bus.read(DeviceVa(at), into, Access::Read);
        if fault.is_some() {
            self.note(Note::BadAddress(at));
        }
        fault.is_none()
    }

    pub(super) fn store(&mut self, at: u64, from: &[u8]) -> bool {
        self.outside_mut().act_as(Initiator::Chip);
        let done = self.chip.bus.write(DeviceVa(at), from);
        if done.is_err() {
            self.note(Note::BadAddress(at));
        }
        done.is_ok()
    }

    /// Sends an event with its data to the driver; `false` where the driver does not listen.
    pub fn send_event(&mut self, event: u16, data: &[u64; 7]) -> bool {
        let entries = self.kept(firmware::EQ_LENGTH) / EVENT as u32;
        if !self.firmware.events || entries == 0 {
            return false;
        }
        let base = self.kept_address(firmware::EQ_BASE_LO, firmware::EQ_BASE_HI);
        let at = base.wrapping_add(u64::from(self.firmware.sent % entries) * EVENT as u64);
        self.firmware.sent = self.firmware.sent.wrapping_add(1);
        let data: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        let word = firmware::event_word(event, self.firmware.sent as u16);
        // The control word last: its ready bit marks the event as complete.
        let sent =
            self.store(at.wrapping_add(8), &data) && self.store(at.wrapping_add(4), &word.to_le_bytes());
        if sent {
            self.counters.events += 1;
            self.raise(EVENT_VECTOR);
        }
        sent
    }
}
