//! A Gaudi2 that is software: the modelled chip as a PCI device for QEMU, over the vfio-user
//! protocol.
//!
//! - *The driver in the guest is the real one*: a stock `habanalabs.ko` finds the card on its PCI
//!   bus, loads firmware into it, and runs.
//! - *Any PCI function can be served*: [`server`] knows [`DeviceIo`](gaudi_seam::DeviceIo) only.
//! - *The peer is not trusted*: no message panics the server or makes it allocate more than
//!   [`wire::MAX_DATA`] twice over; what is nonsense ends the connection, and the next peer finds a
//!   card as after power-on.

pub mod control;
pub mod server;
pub mod trace;
pub mod wire;
