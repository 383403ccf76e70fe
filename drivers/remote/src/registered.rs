//! A memory region together with the allocation that it covers.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::ops::Range;

use gaudi_seam::{CloseError, ErrorKind, HostVa, Result};
use gaudi_verbs::{Access, CachedMr, Mr, Pd};

use crate::local::Allocation;
use crate::nic::Nic;

/// A memory region and its allocation. The region is deregistered first; if that fails, the
/// allocation is leaked, because the NIC may still access it.
pub(crate) struct Registered {
    mr: Option<Region>,
    allocation: Option<Allocation>,
    nic: Nic,
}

enum Region {
    /// Deregistered with the [`Registered`].
    Own(Mr),
    /// The NIC caches it for the next request.
    Cached(CachedMr),
}

impl Registered {
    /// Takes a region that is deregistered with this.
    pub(crate) fn own(nic: &Nic, mr: Mr, allocation: Allocation) -> Self {
        nic.counters().registrations.add(1);
        Self {
            mr: Some(Region::Own(mr)),
            allocation: Some(allocation),
            nic: nic.clone(),
        }
    }

    /// Takes a region of the NIC's cache.
    pub(crate) fn cached(nic: &Nic, mr: CachedMr, allocation: Allocation) -> Self {
        Self {
            mr: Some(Region::Cached(mr)),
            allocation: Some(allocation),
            nic: nic.clone(),
        }
    }

    /// Registers a range of host memory.
    pub(crate) fn host(
        nic: &Nic,
        pd: &Pd,
        allocation: Allocation,
        range: Range<u64>,
        access: Access,
    ) -> Result<Self> {
        let start = match &allocation {
            Allocation::Mapping(mapping) => mapping.as_ptr(),
            Allocation::Host(buffer) => buffer.as_ptr(),
            Allocation::Buffer(_) => unreachable!("device memory has no address in this process"),
        };
        let len = range.end.min(allocation.len()).saturating_sub(range.start);
        let address = HostVa(start.as_ptr().expose_provenance() as u64 + range.start);
        // SAFETY:
        // - the range is inside the allocation, which stays mapped, readable and writable while a
        //   handle of it lives. `Registered` holds one until the region is closed, and leaks it if
        //   closing fails.
        // - neither kind of allocation ever makes a reference to its bytes.
        let mr = unsafe { pd.reg_mr(address, len, address.into(), access) }?;
        Ok(Self::own(nic, mr, allocation))
    }

    pub(crate) fn is_cached(&self) -> bool {
        matches!(self.mr, Some(Region::Cached(_)))
    }

    pub(crate) fn mr(&self) -> &Mr {
        match &self.mr {
            Some(Region::Own(mr)) => mr,
            Some(Region::Cached(mr)) => mr,
            None => unreachable!("only `close` and `drop` take the region"),
        }
    }

    pub(crate) fn close(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        match self.mr.take() {
            Some(Region::Own(mr)) => {
                if let Err(CloseError { object: mr, error }) = mr.close() {
                    // The NIC may still access the memory: it must not be allocated again.
                    std::mem::forget((self.allocation.take(), mr));
                    return Err(error);
                }
                self.nic.counters().deregistrations.add(1);
            }
            // The cache deregisters it when the buffer is freed or forgotten. Dropped before
            // `settle`, because the NIC's thread checks which regions live.
            Some(Region::Cached(mr)) => drop(mr),
            None => {}
        }
        if let Some(Allocation::Buffer(_)) = &self.allocation {
            self.nic.watch().settle();
        }
        Ok(())
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:?})", self.mr())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            if error.kind() != ErrorKind::Forked {
                tracing::error!(%error, "a memory region was not deregistered; its memory stays allocated");
            }
        }
    }
}
