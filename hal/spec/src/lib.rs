//! The silicon as data: addresses, identity, memory map, queues, sync manager and packets, one
//! module an ASIC.
//!
//! - *Facts only*: each row cites its register, header or driver function; a row without such a
//!   source is marked `guess`.
//! - *No allocation, no syscall, no unsafe*: drivers, models, decoders and fuzzers read the same
//!   tables.
//! - *Addresses carry their space*: adding two of them, or comparing a host address with a device
//!   address, does not compile.
//! - *One row per chip* ([`ASICS`]): code above reads the row, and does not branch on the chip.
//! - *Packets come in pairs*: a decoder over bytes that cannot panic, and typed packets that encode
//!   to the same bytes again.
//!
//! "Driver" in citations is `drivers/accel/habanalabs` of Linux 7.3; "uapi" is
//! `drm/habanalabs_accel.h` of the same kernel.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod addr;
pub mod asic;
pub mod gaudi2;

pub use addr::{BarOffset, DevicePa, DeviceVa, HostVa, Iova};
pub use asic::{Asic, QueueId, QueueRow, VaRange};

/// Every chip, the default one first.
pub static ASICS: [&Asic; 1] = [&gaudi2::ASIC];

/// Returns the chip of a name as device specs have it; `None` if there is none.
pub fn asic(name: &str) -> Option<&'static Asic> {
    ASICS.into_iter().find(|asic| asic.name == name)
}
