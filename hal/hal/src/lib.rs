//! Opens any [`DeviceSpec`] and hands out seam 1, [`KernelIo`](gaudi_seam::KernelIo).
//!
//! - *The only crate that names every backend*: code above asks for a spec and never learns what
//!   answers. Each backend is a cargo feature (`kernel`, `mock`), and so are the layers; what is
//!   not built in, or not served yet, answers `Unsupported` by name.
//! - *Choosing is apart from opening*: [`choose`] turns arguments and environment into a spec and
//!   touches no device.
//! - *Looking disturbs nobody*: [`list`] and [`control`] use control nodes only; opening a compute
//!   node would give another user `EBUSY` and cost a reset at close.
//! - *No device is not a dead end*: an error of kind `NotFound` ends with the spec that works on
//!   any machine, `mock:gaudi2`.

mod backend;
mod choose;
mod open;
mod secure;
mod table;

pub use choose::{CHOOSE, DEVICE_VARIABLE, Environment, TABLE_VARIABLE, choose};
#[cfg(feature = "mock")]
pub use gaudi_mock::Ledger;
#[cfg(feature = "layers")]
pub use open::fault_handles;
#[cfg(feature = "mock")]
pub use open::mock_ledger;
pub use open::{Listed, control, control_in, list, mapping_table, open, open_in};
pub use table::{MappingEntry, MappingTable};

#[cfg(feature = "layers")]
pub use gaudi_layers as layers;
pub use gaudi_seam::{DeviceSpec, Error, ErrorKind, Result, SharedIo};
