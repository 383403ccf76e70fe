//! [`AddressHandle`]: a route to a peer's port, for datagrams.

use std::fmt;

use gaudi_seam::{CloseError, Result};

use crate::context::Pd;
use crate::device::Gid;
use crate::handle::AhHandle;
use crate::object::Object;

/// An address handle (`struct ibv_ah`). Close it only after the sends that use it have completed:
/// some NICs look it up late.
pub struct AddressHandle {
    object: Object<AhHandle, Pd>,
    gid: Gid,
    lid: u16,
}

impl Pd {
    /// Creates a route from the NIC's port to `gid` (`ibv_create_ah`). `lid` is the local
    /// identifier of the peer's port ([`PortAttr::lid`](crate::PortAttr::lid)) on InfiniBand, and 0
    /// on Ethernet.
    ///
    /// # Errors
    /// The errno of `ibv_create_ah`; `Unsupported` if the provider has no datagrams.
    pub fn create_ah(&self, gid: &Gid, lid: u16) -> Result<AddressHandle> {
        let device = self.context().device("ibv_create_ah")?;
        let handle = device.create_ah(self.handle(), gid, lid)?;
        Ok(AddressHandle {
            object: Object::new(handle, self.clone(), format!("AddressHandle({gid})"), ()),
            gid: *gid,
            lid,
        })
    }
}

impl AddressHandle {
    /// Returns the provider's handle.
    pub fn handle(&self) -> AhHandle {
        self.object.handle
    }

    /// Returns the GID of the peer's port.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns the local identifier of the peer's port; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.object.parent
    }

    /// Destroys the handle (`ibv_destroy_ah`), or returns it.
    ///
    /// # Errors
    /// The errno of `ibv_destroy_ah`; `Forked` in a fork child.
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        let destroyed = self.object.destroy();
        destroyed.map_err(|error| CloseError::new(self, error))
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressHandle({} at {})", self.handle().0, self.gid)
    }
}
