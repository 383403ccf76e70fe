//! Seam 2, [`DeviceIo`]: what a driver may ask of a PCI device.
//!
//! - *As small as PCI*: configuration space, BARs, DMA mappings, interrupts, reset. No register of
//!   a chip.
//! - *Implementers*: VFIO on a real function, and the modelled chip in process. A server can offer
//!   either to a guest.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gaudi_spec::addr::{BarOffset, Iova};
use gaudi_sys::{Errno, Event, RawMapping};

use crate::error::{Error, Result};

/// The number of BARs of a PCI function.
pub const BARS: u8 = 6;

/// A part of a BAR that another process may map: plain memory, so accesses to it need not be
/// intercepted.
#[derive(Debug)]
pub struct BarWindow {
    /// Its offset in the BAR.
    pub at: BarOffset,
    /// Bytes.
    pub len: u64,
    /// A file that maps only memory of the BAR.
    pub file: OwnedFd,
    /// Its offset in the file.
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
    /// The function's name: a PCI address, or the name of a model.
    fn name(&self) -> String;

    /// Reads configuration space.
    ///
    /// # Errors
    /// `InvalidInput` past its end.
    fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes configuration space. Read-only bits keep their value.
    ///
    /// # Errors
    /// `InvalidInput` past its end.
    fn config_write(&self, offset: u64, from: &[u8]) -> Result<()>;

    /// The bytes of a BAR. 0 if the function has no such BAR.
    ///
    /// # Errors
    /// Those of the device. VFIO and the model know the sizes and return none.
    fn bar_size(&self, bar: u8) -> Result<u64>;

    /// The part of a BAR that another process may map. `None` if the device has no file to pass on.
    ///
    /// # Errors
    /// - `Forked`: another process opened the function, and this is its fork child.
    /// - `TooManyFiles`: no file descriptor is free.
    fn bar_window(&self, bar: u8) -> Result<Option<BarWindow>>;

    /// Reads a BAR.
    ///
    /// # Errors
    /// `InvalidInput` past its end.
    fn bar_read(&self, bar: u8, at: BarOffset, into: &mut [u8]) -> Result<()>;

    /// Writes a BAR.
    ///
    /// # Errors
    /// `InvalidInput` past its end.
    fn bar_write(&self, bar: u8, at: BarOffset, from: &[u8]) -> Result<()>;

    /// Maps `memory` for DMA at `iova`. The mapping lasts until [`dma_unmap`](Self::dma_unmap) or
    /// reset.
    ///
    /// # Errors
    /// - `Busy`: part of the range is mapped.
    /// - `InvalidInput`: the range is empty or exceeds the address space.
    fn dma_map(&self, iova: Iova, memory: Arc<RawMapping>) -> Result<()>;

    /// Unmaps every mapping that lies inside the range. Returns the number of bytes unmapped.
    ///
    /// # Errors
    /// Those of the kernel's call; the mappings are unchanged.
    fn dma_unmap(&self, iova: Iova, len: u64) -> Result<u64>;

    /// The number of interrupt vectors.
    fn interrupts(&self) -> u16;

    /// Makes a vector signal `event`, or nothing.
    ///
    /// # Errors
    /// `InvalidInput`: there is no such vector.
    fn set_interrupt(&self, vector: u16, event: Option<Event>) -> Result<()>;

    /// Resets the function.
    ///
    /// # Errors
    /// Those of the kernel's call.
    fn reset(&self) -> Result<()>;
}
