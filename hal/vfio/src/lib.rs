//! [`VfioDevice`]: a PCI function bound to vfio-pci, as a [`DeviceIo`](gaudi_seam::DeviceIo).
//!
//! - *The kernel's driver is not used*: any process that may open the function's group can drive
//!   it.
//! - *DMA reaches only mapped memory*: a function without an IOMMU is not opened.
//! - *No register of a chip is named.* `tests/device-conformance` tests this crate and the model.

mod bar;
mod function;
mod open;
mod raw;

pub use function::VfioDevice;
pub use open::{bind_commands, open};
