//! The virtual chip: a Gaudi2's memory, MMU, command processors, DMA engines and sync manager.
//!
//! - *It executes the driver's bytes*: the MMU fetches command buffers from memory as they run.
//! - *One owner, no clock, no thread*: only [`Chip::run`] and [`Chip::step`] execute work, so a
//!   seed replays a run.
//! - *Device memory is a sparse memfd*: a mock can export a range of it as a dma-buf.
//! - *No program is fatal*: an unknown packet or an unmapped address halts the stream with an
//!   [`Event`]. The caller's budget bounds the work of a call, the queues' depth the memory.
//! - *No lock and no allocation per packet*; `span` alone has raw pointers and unsafe code.
//! - *Undocumented behaviour* is marked `source: inferred` in a comment.
//! - *The same engines work across PCI* ([`pci`]), with registers, rings, page tables and firmware.
//!
//! Not modelled, and reported as [`StopReason::Unsupported`] or [`Event::Unsupported`]:
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
