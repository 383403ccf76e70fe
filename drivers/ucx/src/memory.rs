//! Device memory of the process: allocation, lookup by address, copies.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{PoisonError, RwLock};

use gaudi_device::{Buffer, Device};
use gaudi_seam::Result;

use crate::cards::Card;
use crate::status::{self, Status};

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    device: Device,
    buffer: Buffer,
    pub(crate) card: &'static Card,
    /// Bytes: the requested length in whole cache lines.
    pub(crate) len: u64,
}

impl Allocation {
    /// The device address of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.buffer.address().0
    }
}

/// Whether memory can be exported as a dma-buf.
pub(crate) const EXPORTS: bool = false;

/// A dma-buf that holds an address of an allocation, and the address's offset in it.
///
/// # Errors
/// `Unsupported`: allocations share the driver's pages, which it exports whole.
pub(crate) fn export(_allocation: &Allocation, _address: u64) -> std::result::Result<(OwnedFd, u64), Status> {
    Err(Status::Unsupported)
}

static LIVE: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());

fn live() -> std::sync::RwLockReadGuard<'static, BTreeMap<u64, Allocation>> {
    LIVE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Allocations have whole cache lines and share none: UCX registers ranges that it rounds up.
const LINE: u64 = 128;

/// Allocates at least `len` bytes on a card. Returns the device address and the length.
///
/// # Errors
/// `InvalidParam`: `len` is 0. Otherwise the device's error.
pub(crate) fn alloc(card: &'static Card, len: u64) -> std::result::Result<(u64, u64), Status> {
    if len == 0 {
        return Err(Status::InvalidParam);
    }
    let len = len.checked_next_multiple_of(LINE).ok_or(Status::NoMemory)?;
    let make = || -> Result<Allocation> {
        let device = card.device()?;
        let buffer = device.alloc(len)?;
        Ok(Allocation {
            device,
            buffer,
            card,
            len,
        })
    };
    let allocation = make().map_err(|error| status::of(&error))?;
    let base = allocation.base();
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    live.insert(base, allocation);
    Ok((base, len))
}

/// Frees the allocation that begins at an address. Returns whether there was one.
pub(crate) fn free(base: u64) -> bool {
    let removed = {
        let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
        live.remove(&base)
    };
    removed.is_some()
}

/// The allocation that holds an address.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let live = live();
    let (base, allocation) = live.range(..=address).next_back()?;
    (address - base < allocation.len).then(|| allocation.clone())
}

/// Every live allocation's address, length and card.
pub(crate) fn all() -> Vec<(u64, u64, &'static Card)> {
    live()
        .iter()
        .map(|(base, allocation)| (*base, allocation.len, allocation.card))
        .collect()
}

/// One side of a copy.
enum Side {
    Device(Allocation, u64),
    Host,
}

impl Side {
    fn of(address: u64, len: u64) -> std::result::Result<Self, Status> {
        let Some(allocation) = find(address) else {
            return Ok(Self::Host);
        };
        let offset = address - allocation.base();
        match len <= allocation.len - offset {
            true => Ok(Self::Device(allocation, offset)),
            false => Err(Status::OutOfRange),
        }
    }
}

/// What a copy moves.
pub(crate) enum Copy {
    /// Nothing to do.
    Empty,
    ToDevice(Allocation, u64),
    FromDevice(Allocation, u64),
    Between {
        dst: (Allocation, u64),
        src: (Allocation, u64),
    },
}

impl Copy {
    /// Finds what two addresses are.
    ///
    /// # Errors
    /// - `OutOfRange`: the range leaves its allocation.
    /// - `Unsupported`: both are host memory, which engines do not copy.
    pub(crate) fn plan(dst: u64, src: u64, len: u64) -> std::result::Result<Self, Status> {
        if len == 0 {
            return Ok(Self::Empty);
        }
        Ok(match (Side::of(dst, len)?, Side::of(src, len)?) {
            (Side::Device(dst, to), Side::Host) => Self::ToDevice(dst, to),
            (Side::Host, Side::Device(src, from)) => Self::FromDevice(src, from),
            (Side::Device(dst, to), Side::Device(src, from)) => Self::Between {
                dst: (dst, to),
                src: (src, from),
            },
            (Side::Host, Side::Host) => return Err(Status::Unsupported),
        })
    }
}

/// Writes bytes of the program to device memory.
pub(crate) fn write(to: &Allocation, offset: u64, bytes: &[u8]) -> std::result::Result<(), Status> {
    let written = to.device.write(&to.buffer, offset, bytes);
    written.map_err(|error| status::of(&error))
}

/// Reads device memory into bytes of the program.
pub(crate) fn read(from: &Allocation, offset: u64, bytes: &mut [u8]) -> std::result::Result<(), Status> {
    let read = from.device.read(&from.buffer, offset, bytes);
    read.map_err(|error| status::of(&error))
}

/// Copies between two places of device memory.
pub(crate) fn between(
    dst: &(Allocation, u64),
    src: &(Allocation, u64),
    len: u64,
) -> std::result::Result<(), Status> {
    let copy = || {
        let to = dst.0.buffer.at(dst.1..dst.1 + len)?;
        let from = src.0.buffer.at(src.1..src.1 + len)?;
        dst.0.device.copy(to, from)?.wait(gaudi_device::Deadline::NEVER)
    };
    copy().map_err(|error| status::of(&error))
}

/// Fills device memory with a byte.
pub(crate) fn fill(address: u64, value: u8, len: u64) -> std::result::Result<(), Status> {
    let Side::Device(allocation, offset) = Side::of(address, len)? else {
        return Err(Status::InvalidAddress);
    };
    let fill = || {
        let to = allocation.buffer.at(offset..offset + len)?;
        allocation
            .device
            .fill(to, value)?
            .wait(gaudi_device::Deadline::NEVER)
    };
    fill().map_err(|error| status::of(&error))
}
