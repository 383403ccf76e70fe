//! [`OpenOptions`]: opens a NIC by name.

use std::sync::Arc;

use gaudi_seam::Result;
use gaudi_verbs_sys::Library;

use crate::context::Opened;
use crate::device::IbvDevice;
use crate::errors::no_library;
use crate::list::{Devices, info, not_found};

/// Port and GID of a NIC to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Number of the port, from 1. The default is the first active port, or port 1.
    pub port: Option<u8>,
    /// Index of the GID. The default is an IPv4 or global RoCE v2 address, or else the first one.
    pub gid_index: Option<u32>,
}

impl OpenOptions {
    /// Opens a NIC by its name.
    ///
    /// # Errors
    /// `NotFound` if there is no libibverbs or no such NIC; `PermissionDenied` if the caller may
    /// not open `/dev/infiniband/uverbsN`.
    pub fn open(self, name: &str) -> Result<Arc<IbvDevice>> {
        const OPERATION: &str = "ibv_open_device";
        let library = Library::open().map_err(|error| no_library(OPERATION, &error))?;
        let devices = Devices::get(library, OPERATION)?;
        let Some((device, nic)) = devices
            .iter()
            .map(|device| (device, info(device)))
            .find(|(_, nic)| nic.name == name)
        else {
            return Err(not_found(OPERATION, name, &devices));
        };
        let opened = Opened::open(library, device, nic, self.port, self.gid_index)?;
        Ok(Arc::new(IbvDevice::new(Arc::new(opened))))
    }
}
