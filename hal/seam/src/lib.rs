//! The two seams: the operations of the habanalabs driver, and the accesses of a driver to a PCI
//! device.
//!
//! - *Seam 1, [`KernelIo`]*: a real fd, the mock and every layer implement it. The three ioctl eras
//!   end below it.
//! - *An operation is a type*, [`Request`]: a [`Layer`] implements one method around all of them.
//! - *Seam 2, [`DeviceIo`]*: a PCI function, real or modelled.
//! - *Inside a driver, [`Engine`]*: the chip that executes what the driver decides.
//! - *Errors*, [`Error`], have a kind to branch on, evidence to act on, and the errno.
//! - *Faults are data*, [`fault`]: one line of text for a rule of the driver, the chip or the NIC.
//! - *One string chooses a device*, [`DeviceSpec`]. This crate parses and prints it; `gaudi-hal`
//!   opens it.
//! - *No system calls.*

#[macro_use]
mod request;

mod close_error;
pub mod device;
mod device_id;
pub mod engine;
pub mod error;
mod error_kind;
pub mod fault;
pub mod io;
mod layer;
pub mod operation;
mod pci;
mod rule;
pub mod rules;
pub mod spec;
mod state;

pub use close_error::CloseError;
pub use device::{BarWindow, DeviceIo};
pub use device_id::{Backend, DeviceId};
pub use engine::Engine;
pub use error::{Error, Evidence, Result};
pub use error_kind::ErrorKind;
pub use gaudi_spec::addr::{BarOffset, DeviceVa, HostVa, Iova};
pub use gaudi_spec::asic::QueueId;
pub use gaudi_sys::{Errno, Event, RawMapping};
pub use gaudi_uapi::{Era, NodeKind};
pub use io::{KernelIo, KernelIoExt, Node, SharedIo};
pub use layer::Layer;
pub use operation::{Answer, AnyAnswer, AnyRequest, Operation, Request};
pub use pci::{InvalidPciAddress, PciAddress};
pub use request::*;
pub use rules::Rule;
pub use spec::{
    BackendSpec, Clock, DeviceSpec, KernelSelector, LayerSpec, MockSpec, Order, ReplayMatch, ReplaySpec,
    SpecError,
};
pub use state::{BufferState, DriverState, MappingState};
