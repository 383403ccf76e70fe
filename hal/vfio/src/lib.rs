//! [`DeviceIo`](gaudi_seam::DeviceIo), implemented: a PCI function for drivers above and servers beside.
//!
//! - *[`ModelDevice`] is the modelled chip in process*: behind one lock, since a chip is one thing; interrupts signal when the lock's
//!   holder is done with what set them off.
//! - *VFIO on a real function is not here yet.*

mod model;

pub use model::ModelDevice;
