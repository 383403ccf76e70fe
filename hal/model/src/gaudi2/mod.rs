//! A Gaudi2.

mod arbiter;
mod bus;
pub(crate) mod chip;
mod chunk;
pub(crate) mod counters;
mod cp;
mod dma;
mod engine;
pub(crate) mod event;
pub(crate) mod faults;
mod hooks;
mod manager;
pub mod pci;
mod place;
pub(crate) mod registers;
pub(crate) mod run;
mod sm;
mod space;
pub(crate) mod stream;
mod word;
mod write;
