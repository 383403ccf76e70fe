//! [`DeviceIo`](gaudi_seam::DeviceIo), implemented: a PCI function for drivers above and servers beside.
//!
//! - *[`VfioDevice`] is a function in the hands of vfio-pci*: any process that may open its group drives it, with no driver of the kernel's
//!   above. What it reaches by DMA is what it was shown, and nothing else: a function without an IOMMU is not opened.
//! - *[`ModelDevice`] is the modelled chip in process*: behind one lock, since a chip is one thing; interrupts signal when the lock's
//!   holder is done with what set them off.
//! - *Neither knows a register.* One suite judges both (`tests/device-conformance`).

mod bar;
mod bounds;
mod function;
mod model;
mod open;
mod raw;

pub use function::VfioDevice;
pub use model::ModelDevice;
pub use open::{bind_commands, open};
