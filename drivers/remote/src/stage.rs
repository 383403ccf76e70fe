//! Host memory in the middle: slots that the DMA engine and the NIC both reach.

use gaudi_device::{Device, Location};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::{Access, Pd, RemoteRegion, Sge};

use crate::local::Allocation;
use crate::nic::Nic;
use crate::options::EndpointOptions;
use crate::registered::Registered;

/// A stage: made with the first staged transfer, used by all.
pub(crate) struct Stage {
    registered: Registered,
    slots: Vec<Location>,
    chunk: u32,
}

impl Stage {
    /// Registers slots of host memory in `pd`. Slots that a peer reaches need the domain in which
    /// that peer is served.
    pub(crate) fn new(
        nic: &Nic,
        pd: &Pd,
        device: &Device,
        options: &EndpointOptions,
        access: Access,
    ) -> Result<Self> {
        let chunk = options.chunk_bytes;
        let (size, depth) = (u64::from(chunk), u64::from(options.depth));
        let len = usize::try_from(size * depth)
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "stage").because("it is larger than memory"))?;
        let mapping = device.alloc_host(len)?;
        let slots = (0..depth)
            .map(|slot| mapping.at(slot * size..(slot + 1) * size))
            .collect::<Result<_>>()?;
        Ok(Self {
            registered: Registered::host(nic, pd, Allocation::Mapping(mapping), 0..len as u64, access)?,
            slots,
            chunk,
        })
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.chunk
    }

    pub(crate) fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Returns a slot, for the engine.
    pub(crate) fn slot(&self, index: usize, len: u64) -> Option<Location> {
        Some(self.slots.get(index)?.part(0, len))
    }

    /// Returns a slot, for the NIC.
    pub(crate) fn sge(&self, index: usize, len: u32) -> Result<Sge> {
        self.registered
            .mr()
            .sge(index as u64 * u64::from(self.chunk), len)
    }

    /// Returns all slots, for the peer.
    pub(crate) fn remote(&self) -> RemoteRegion {
        self.registered.mr().remote()
    }
}
