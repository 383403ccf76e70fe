//! [`OpenOptions`]: opens a NIC by name.

use std::sync::Arc;

use gaudi_seam::Result;
use gaudi_verbs_sys::Library;

use crate::context::Opened;
use crate::device::IbvDevice;
use crate::errors::no_library;
use crate::list::{Devices, info, not_found};

/// Which port and address of a NIC to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    port: Option<u8>,
    gid_index: Option<u32>,
}

impl OpenOptions {
    /// The port, from 1; else the first one that is active, and port 1 where none is.
    pub fn port(mut self, port: u8) -> Self {
        self.port = Some(port);
        self
    }

    /// The place of the address in the port's table; else a RoCE v2 address that is IPv4's or global, and the first address at all
    /// where there is none.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Opens a NIC by its name.
    ///
    /// `NotFound` where there is no libibverbs or no such NIC; `PermissionDenied` where `/dev/infiniband/uverbsN` may not be opened.
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
