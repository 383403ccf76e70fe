//! [`VfioDevice`]: a PCI function bound to vfio-pci, as a [`DeviceIo`](gaudi_seam::DeviceIo).
//!
//! - *Any process that may open the function's group drives it*, and the kernel's driver does not.
//! - *DMA reaches only mapped memory*: a function without an IOMMU is not opened.
//! - *No register is known here.* `tests/device-conformance` tests it and the modelled chip alike.

mod bar;
mod function;
mod open;
mod raw;

pub use function::VfioDevice;
pub use open::{bind_commands, open};
