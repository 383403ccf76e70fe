//! Serves the modelled Gaudi2 to QEMU as a PCI device, over the vfio-user protocol.
//!
//! - *The driver in the guest is the real one*: a stock `habanalabs.ko` finds the card on its PCI
//!   bus, loads firmware into it, and runs.
//! - *Any PCI function can be served*: [`server`] knows [`DeviceIo`](gaudi_seam::DeviceIo) only.
//! - *The peer is not trusted*: no message panics the server or makes it allocate more than twice
//!   [`wire::MAX_DATA`]. An invalid message ends the connection, and the next peer gets a card as
//!   after power-on.

pub mod control;
pub mod server;
pub mod trace;
pub mod wire;
