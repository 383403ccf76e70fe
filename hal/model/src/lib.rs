//! The virtual chip: a Gaudi2's memory, MMU, command processors, DMA engines and sync manager.
//!
//! - *It executes the bytes that the driver wrote*: command buffers are fetched through the MMU
//!   while they run, from the memory where they lie; there is no shortcut from "submit" to "done".
//! - *One owner, no clock, no thread*: [`Chip`] is driven by `&mut`; time passes where the caller
//!   calls [`Chip::run`] or [`Chip::step`], so a seed replays a run.
//! - *Device memory is a sparse memfd*: a mock hands a range of it out as a dma-buf that another
//!   process or a NIC reads for real.
//! - *Nothing a program does is fatal here*: an unknown packet, an unmapped address or an endless
//!   chain of monitors ends in a typed event and a halted stream, as on the chip; work per call is
//!   bounded by the caller's budget, memory by the queues' depth.
//! - *The hot path takes no lock and allocates nothing per packet*; raw pointers are kept to one
//!   module, `span`.
//! - *Faults are not in here*: they are wrappers above.
//!
//! - *A choice is marked*: where no public text says what the chip does, the comment at the choice
//!   says `source: inferred`.
//!
//! - *A driver meets it across PCI* ([`pci`]): registers, rings, page tables, firmware and
//!   interrupts around the same engines.
//!
//! Not modelled, and answered by name ([`StopReason::Unsupported`], [`Event::Unsupported`]):
//! REPEAT, time stamps, float conversion, transfers of more than one dimension, compute engines,
//! the ARC, arbiters that follow another's, register protection between driver and user.

mod config;
mod gaudi2;
mod memory;
mod mmu;
mod span;

pub use config::{ChipConfig, MemoryKind, Mode, ModelError};
pub use gaudi_seam::engine::{HostRange, MapError, PushError, Reset};
pub use gaudi2::chip::Chip;
pub use gaudi2::counters::Counters;
pub use gaudi2::event::{Access, Event, FaultCause, PageFault, Stop, StopReason, Unsupported};
pub use gaudi2::pci;
pub use gaudi2::registers::UnknownRegister;
pub use gaudi2::run::RunOutcome;
pub use gaudi2::stream::{Cb, Held};
pub use memory::DeviceMemory;

use gaudi_seam::Engine;

/// Returns the chip of that name, with its memory.
///
/// # Errors
/// [`ModelError::UnknownChip`] if no chip of that name is modelled, and the errors of
/// [`Chip::new`].
pub fn engine(chip: &str, config: ChipConfig) -> Result<Box<dyn Engine>, ModelError> {
    match chip {
        "gaudi2" => Ok(Box::new(Chip::new(config)?)),
        other => Err(ModelError::UnknownChip(other.to_owned())),
    }
}
