//! The chip as a driver meets it across PCI: configuration space, BARs, registers, firmware,
//! interrupts, resets.
//!
//! - *The engines are the chip's own*: command processors, sync manager and DMA engines are those
//!   that a mock drives in process; here they are fed from rings in memory and reach memory through
//!   page tables that a driver wrote.
//! - *Every access has a name*: a register without a row in the table keeps its word, and is
//!   counted and reported by its offset.
//! - *No clock, no thread*: the time is given ([`PciChip::set_time`]), work is done within a write
//!   and by [`PciChip::run`].
//! - *Nothing that a driver does is fatal*: bad addresses, rings of any size and words of any value
//!   end in notes.
//!
//! Not modelled: engines that compute, NICs, decoders, the ARCs' programs, protection of registers.

mod boot;
mod card;
mod chip;
mod config;
mod device;
mod fault;
mod fetch;
mod firmware;
mod firmware_state;
mod registers;
mod reset;
mod ring;
mod sensors;
mod throttling;

pub use chip::{Note, PciChip, PciConfig, PciCounters, Window};
pub use config::CONFIG_SIZE;
pub use device::ModelDevice;
pub use sensors::Sensors;
