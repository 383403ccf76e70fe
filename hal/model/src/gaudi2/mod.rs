//! A Gaudi2.

mod arbiter;
mod bus;
pub(crate) mod chip;
pub(crate) mod counters;
mod cp;
mod dma;
mod engine;
pub(crate) mod event;
pub mod pci;
pub(crate) mod registers;
mod sm;
pub(crate) mod stream;
mod write;
