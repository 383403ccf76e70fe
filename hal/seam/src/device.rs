//! Seam 2, [`DeviceIo`]: what a driver may ask of a PCI device.
//!
//! - *As small as PCI is*: configuration space, BARs, memory shown to the device, interrupts, reset. Nothing here knows a register.
//! - *Its implementers*: VFIO on a real function, and the modelled chip in process; a server may offer either to a guest.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gaudi_spec::addr::{BarOffset, Iova};
use gaudi_sys::{Errno, Event, RawMapping};

use crate::error::{Error, Result};

/// BARs that a PCI function can have.
pub const BARS: u8 = 6;

/// A part of a BAR that another process may map: plain memory, so accesses to it need not be intercepted.
#[derive(Debug)]
pub struct BarWindow {
    /// Where it starts in the BAR.
    pub at: BarOffset,
    /// Bytes.
    pub len: u64,
    /// A file that maps only memory of the BAR, and nothing else of the device.
    pub file: OwnedFd,
    /// Where it starts in the file.
    pub file_offset: u64,
}

/// Checks that `len` bytes from `offset` lie inside a BAR or configuration space of `size` bytes.
///
/// # Errors
/// `InvalidInput` if they do not.
pub fn within(operation: &'static str, offset: u64, len: usize, size: u64) -> Result<()> {
    let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
    match end {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::from_errno(operation, Errno::EINVAL)
            .saw(format!("{offset:#x}+{len:#x}"), format!("below {size:#x}"))),
    }
}

/// A PCI function.
pub trait DeviceIo: Debug + Send + Sync + 'static {
    /// What the function is, in words: an address, or what stands in for one.
    fn name(&self) -> String;

    /// Reads configuration space. `InvalidInput` past its end.
    fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes it; what cannot be written keeps its value.
    fn config_write(&self, offset: u64, from: &[u8]) -> Result<()>;

    /// Bytes of a BAR, 0 where the function has none of that number.
    fn bar_size(&self, bar: u8) -> Result<u64>;

    /// Returns the part of a BAR that another process may map; `None` where the device has no file that can be passed on.
    fn bar_window(&self, bar: u8) -> Result<Option<BarWindow>>;

    /// Reads a BAR. `InvalidInput` past its end.
    fn bar_read(&self, bar: u8, at: BarOffset, into: &mut [u8]) -> Result<()>;

    /// Writes a BAR.
    fn bar_write(&self, bar: u8, at: BarOffset, from: &[u8]) -> Result<()>;

    /// Shows memory to the device from a bus address on, until it is taken away. `Busy` where part of the range is shown already,
    /// `InvalidInput` where it is empty or leaves the space.
    fn dma_map(&self, iova: Iova, memory: Arc<RawMapping>) -> Result<()>;

    /// Takes away what was shown wholly within a range: its bytes.
    fn dma_unmap(&self, iova: Iova, len: u64) -> Result<u64>;

    /// Vectors of the function.
    fn interrupts(&self) -> u16;

    /// From now on a vector signals `event`, or nothing. `InvalidInput` where there is no such vector.
    fn set_interrupt(&self, vector: u16, event: Option<Event>) -> Result<()>;

    /// Resets the function.
    fn reset(&self) -> Result<()>;
}
