//! The cases, by subject.

mod dma;
mod interrupts;
mod registers;
mod reset;

pub(crate) use dma::*;
pub(crate) use interrupts::*;
pub(crate) use registers::*;
pub(crate) use reset::*;
