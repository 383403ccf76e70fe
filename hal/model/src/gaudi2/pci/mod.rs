//! The chip as a PCI function: configuration space, BARs, registers, firmware, interrupts, resets.
//!
//! - *The engines are those of the mock*: command processors, sync manager and DMA engines. Here
//!   they fetch from rings in memory, and access memory through a driver's page tables.
//! - *No access is silent*: a register without a row in the table keeps its word, and is counted
//!   and reported by its offset.
//! - *No clock, no thread*: the caller sets the time ([`PciChip::set_time`]). Writes and
//!   [`PciChip::run`] execute work.
//! - *No access is fatal*: invalid addresses, ring sizes and words are reported as notes.
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
