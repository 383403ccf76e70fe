//! [`RegionGroup`]: the regions of one device's memory, for the device's owner to deregister.

use std::fmt;
use std::sync::{Arc, Mutex};

use gaudi_seam::Result;
use gaudi_sys::lock;

use crate::mr::Mr;
use crate::nldev::{self, ForeignRegion};
use crate::provider::MrState;
use crate::region::{Region, RegionInfo};

/// The regions of one device's dma-bufs. Clones share it.
///
/// The habanalabs driver never revokes exported memory. A live region blocks the unmapping of its
/// memory, the next open of the card, the driver's unload, and the card's error recovery. The owner
/// of a device therefore adds every region of its dma-bufs to a group, and calls:
/// - [`suspect`](Self::suspect) when a reset is announced or suspected,
/// - [`revoke`](Self::revoke) before the device closes and as soon as a reset begins,
/// - [`blockers`](Self::blockers) if the device still cannot close.
#[derive(Clone)]
pub struct RegionGroup {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    members: Mutex<Vec<Arc<Region>>>,
}

impl RegionGroup {
    /// Returns an empty group, named after its device.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(Inner {
                name: name.into(),
                members: Mutex::default(),
            }),
        }
    }

    /// Returns its device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    fn live(&self) -> Vec<Arc<Region>> {
        let mut members = lock(&self.inner.members);
        members.retain(|region| region.is_registered());
        members.clone()
    }

    /// Adds a region. It leaves the group once it is deregistered.
    pub fn add(&self, mr: &Mr) {
        let mut members = lock(&self.inner.members);
        if members.len() == members.capacity() {
            members.retain(|region| region.is_registered());
        }
        members.push(mr.region().clone());
    }

    /// Returns the registered regions.
    pub fn regions(&self) -> Vec<RegionInfo> {
        self.live().iter().map(|region| region.info()).collect()
    }

    /// Marks all regions [`MrState::Suspect`] and returns their number.
    pub fn suspect(&self) -> usize {
        let live = self.live();
        live.iter().for_each(|region| region.mark(MrState::Suspect));
        live.len()
    }

    /// Deregisters all regions and returns their number. Each is [`MrState::Revoked`] then, and its
    /// memory and dma-buf are released, although its [`Mr`] still exists. Work that uses their keys
    /// fails.
    ///
    /// Takes as long as [`Mr::close`] of each, and waits for regions that other threads close.
    ///
    /// # Errors
    /// The first error. All regions are tried; [`regions`](Self::regions) returns the rest.
    pub fn revoke(&self) -> Result<usize> {
        let ended: Vec<Result<()>> = self.live().iter().map(|region| region.dereg()).collect();
        let count = ended.len();
        ended.into_iter().collect::<Result<()>>().map(|()| count)
    }

    /// Returns the memory regions that may keep the device from closing.
    pub fn blockers(&self) -> Blockers {
        Blockers {
            device: self.inner.name.clone(),
            own: self.regions(),
            candidates: nldev::foreign_regions(),
        }
    }
}

impl fmt::Debug for RegionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionGroup({}, {} regions)", self.name(), self.live().len())
    }
}

/// Memory regions that may keep a device from closing.
#[derive(Debug, Clone)]
pub struct Blockers {
    /// The device.
    pub device: String,
    /// Regions of this process on its memory: certain.
    pub own: Vec<RegionInfo>,
    /// Regions of other processes, on any memory: the kernel does not report which of them are of a
    /// dma-buf. An error if RDMA netlink does not answer.
    pub candidates: Result<Vec<ForeignRegion>>,
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.device)?;
        match self.own.len() {
            0 => f.write_str("no region of this process")?,
            count => write!(f, "held by {count} regions of this process")?,
        }
        for region in &self.own {
            write!(f, "\n  {region}")?;
        }
        match &self.candidates {
            Ok(candidates) if candidates.is_empty() => {}
            Ok(candidates) => {
                f.write_str("\n  candidates: regions of other processes, on whatever memory")?;
                for candidate in candidates {
                    write!(f, "\n    {candidate}")?;
                }
            }
            Err(error) => write!(f, "\n  regions of other processes are not known: {error}")?,
        }
        Ok(())
    }
}
