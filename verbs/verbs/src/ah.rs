//! [`AddressHandle`]: a route to a peer's port, for datagrams.

use std::fmt;

use gaudi_seam::{Error, Result};

use crate::context::Pd;
use crate::device::Gid;
use crate::handle::AhHandle;
use crate::holders::Hold;

/// An address handle (`struct ibv_ah`). Close it only after the sends that use it have completed:
/// some NICs look it up late.
pub struct AddressHandle {
    handle: AhHandle,
    gid: Gid,
    lid: u16,
    live: bool,
    _hold: Hold,
    pd: Pd,
}

impl Pd {
    /// Creates a route from the NIC's port to `gid` (`ibv_create_ah`). `lid` is the local
    /// identifier of the peer's port ([`PortAttr::lid`](crate::PortAttr::lid)) on InfiniBand, and 0
    /// on Ethernet.
    ///
    /// # Errors
    /// The errno of `ibv_create_ah`; `Unsupported` if the provider has no datagrams.
    pub fn create_ah(&self, gid: &Gid, lid: u16) -> Result<AddressHandle> {
        const OPERATION: &str = "ibv_create_ah";
        let device = self.context().device(OPERATION)?;
        let handle = device.create_ah(self.handle(), gid, lid)?;
        Ok(AddressHandle {
            handle,
            gid: *gid,
            lid,
            live: true,
            _hold: self.hold(format!("AddressHandle({gid})")),
            pd: self.clone(),
        })
    }
}

impl AddressHandle {
    /// Returns the provider's handle.
    pub fn handle(&self) -> AhHandle {
        self.handle
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
        &self.pd
    }

    /// Destroys the handle (`ibv_destroy_ah`), or returns it.
    ///
    /// # Errors
    /// The errno of `ibv_destroy_ah`; `Forked` in a fork child.
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        match self.destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn destroy(&mut self) -> Result<()> {
        let device = self.pd.context().device("ibv_destroy_ah")?;
        device.destroy_ah(self.handle)?;
        self.live = false;
        Ok(())
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if self.live {
            let freed = self.destroy();
            self.pd.context().report(freed);
        }
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressHandle({} at {})", self.handle.0, self.gid)
    }
}
