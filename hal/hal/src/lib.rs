//! Opens any [`DeviceSpec`] as seam 1, [`KernelIo`](gaudi_seam::KernelIo).
//!
//! - *The only crate that names every backend*: code above it does not depend on one. Each backend
//!   is a cargo feature (`kernel`, `mock`), and so are the layers. A spec for a missing one fails
//!   with `Unsupported`.
//! - *Choosing does not open*: [`choose`] turns arguments and environment into a spec.
//! - *Queries do not disturb users*: [`list`] and [`control`] use control nodes only. An open
//!   compute node gives another user `EBUSY`, and its close resets the device.

mod backend;
mod choose;
#[cfg(feature = "mock")]
mod exit_report;
mod open;
mod program;
mod secure;
mod table;
mod visible;

pub use choose::{CHOOSE, DEVICE_VARIABLE, Environment, TABLE_VARIABLE, choose};
#[cfg(feature = "mock")]
pub use exit_report::{EXIT_REPORT_VARIABLE, ExitReport, OpenMock};
#[cfg(feature = "kernel")]
pub use gaudi_kernel::{Driver, System};
#[cfg(feature = "mock")]
pub use gaudi_mock::{Ledger, Mock};
#[cfg(feature = "layers")]
pub use open::fault_handles;
#[cfg(feature = "mock")]
pub use open::mock_ledger;
pub use open::{
    Listed, control, control_in, describer, list, list_visible, mapping_table, open, open_for_program,
    open_in,
};
pub use program::ProgramFile;
pub use secure::is_secure;
pub use table::{MappingEntry, MappingTable};
pub use visible::{VISIBLE_DEVICES_VARIABLE, VISIBLE_MODULES_VARIABLE, Visible};

#[cfg(feature = "layers")]
pub use gaudi_layers as layers;
pub use gaudi_seam::{DeviceSpec, Error, ErrorKind, Result, SharedIo};
