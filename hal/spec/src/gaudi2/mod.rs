//! Gaudi2.

mod asic;
pub mod block;
mod driver;
pub mod firmware;
mod map;
pub mod mmu;
pub mod packet;
pub mod qman;
pub mod queue;
pub mod router;
pub mod rows;
pub mod sync;

pub use asic::ASIC;
pub use map::*;
