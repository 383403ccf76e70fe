//! How the NIC reaches the allocations of one endpoint: registered, or staged.

use std::ops::{Deref, Range};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use gaudi_device::Buffer;
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::sync::lock;
use gaudi_verbs::{Access, MrAddr, Pd, RemoteRegion, Sge};

use crate::local::Allocation;
use crate::nic::Nic;
use crate::path::{Attempt, MemoryPath, PathReport, Policy, is_device_loss, required};
use crate::registered::Registered;
use crate::stream::hang_up;
use crate::watch::WatchedEndpoint;

/// The range of an allocation that needs a region, and the rights of that region.
pub(crate) struct RegionRequest<'a> {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
    /// The domain for the peer's access: the region covers this range, with these rights, for this
    /// peer. `None` for this node's own requests: the NIC caches the region.
    pub(crate) offered: Option<&'a Pd>,
}

/// An allocation that an endpoint uses, and how its NIC reaches it.
pub(crate) struct Region {
    /// `None` if it is staged.
    registered: Option<Registered>,
    allocation: Allocation,
    range: Range<u64>,
    access: Access,
    /// The peer reaches it; otherwise only this node's requests do. The two are in different
    /// domains.
    offered: bool,
    report: PathReport,
}

impl Region {
    /// Registers memory by the best path that works. `staged` prepares staging, the last of them.
    fn new(
        nic: &Nic,
        allocation: Allocation,
        request: &RegionRequest<'_>,
        policy: Policy,
        endpoint: &Arc<Regions>,
        staged: impl FnOnce() -> Result<MemoryPath>,
    ) -> Result<Self> {
        let mut report = PathReport {
            nic: nic.context().name().to_owned(),
            memory: allocation.name(),
            path: MemoryPath::Host,
            failed: Vec::new(),
        };
        let registered = match &allocation {
            Allocation::Buffer(buffer) => match dmabuf(nic, buffer, request, policy, endpoint) {
                Ok(registered) => {
                    report.path = MemoryPath::DmaBuf(registered.mr().path());
                    Some(registered)
                }
                Err(attempt) if policy == Policy::Require => return Err(required(&attempt.error)),
                Err(attempt) if is_device_loss(&attempt.error) => return Err(attempt.error),
                Err(attempt) => {
                    tracing::info!(nic = report.nic, memory = report.memory, "staged: {attempt}");
                    report.path = staged().map_err(|error| match error.help() {
                        Some(_) => error,
                        None => error.helped_by(format!("{attempt}")),
                    })?;
                    report.failed.push(attempt);
                    None
                }
            },
            Allocation::Mapping(_) | Allocation::Host(_) => {
                let (pd, range) = (request.offered.unwrap_or(nic.pd()), request.range.clone());
                let allocation = allocation.clone();
                Some(Registered::host(nic, pd, allocation, range, request.access)?)
            }
        };
        Ok(Self {
            registered,
            allocation,
            range: request.range.clone(),
            access: request.access,
            offered: request.offered.is_some(),
            report,
        })
    }

    pub(crate) fn report(&self) -> &PathReport {
        &self.report
    }

    /// Returns what the peer needs to access the region; `None` if the memory is staged.
    pub(crate) fn remote(&self) -> Option<RemoteRegion> {
        Some(self.registered.as_ref()?.mr().remote())
    }

    /// Returns the NIC's address of the allocation's first byte; `None` if the memory is staged.
    pub(crate) fn first_byte(&self) -> Option<Sge> {
        let mr = self.registered.as_ref()?.mr();
        debug_assert_eq!(self.range.start, 0, "this node's regions cover whole allocations");
        Some(Sge {
            addr: mr.addr(),
            length: 0,
            lkey: mr.lkey(),
        })
    }
}

/// Registers a buffer through its dma-buf. Addresses of the region are the device's own.
fn dmabuf(
    nic: &Nic,
    buffer: &Buffer,
    request: &RegionRequest<'_>,
    policy: Policy,
    endpoint: &Arc<Regions>,
) -> Result<Registered, Attempt> {
    let (range, access) = (&request.range, request.access);
    let pd = request.offered.unwrap_or(nic.pd());
    let fresh = |error| Attempt {
        error,
        remembered: false,
    };
    if policy == Policy::Never {
        // There is no errno: no call was made.
        let untried = Error::new(ErrorKind::Unsupported, "dma-buf region");
        return Err(fresh(untried.because("not tried: the policy is `never`")));
    }
    if let Some(error) = nic.remembered(buffer.device()) {
        return Err(Attempt {
            error,
            remembered: true,
        });
    }
    let Some(iova) = MrAddr::from(buffer.address()).checked_add(range.start) else {
        unreachable!("the range is inside the buffer, whose last address is below 2^64");
    };
    let len = range.end - range.start;
    // A failed export is a property of this buffer, not of the NIC and the accelerator.
    let mut not_exported = false;
    let mut register = || {
        let window = buffer
            .window(range.clone())
            .inspect_err(|_| not_exported = true)?;
        pd.reg_dmabuf_mr(&window, iova, access)
    };
    let allocation = || Allocation::Buffer(buffer.clone());
    let result = if request.offered.is_some() {
        register().map(|mr| Registered::own(nic, mr, allocation()))
    } else {
        let cached = nic.watch().cached(buffer, iova, len, access, register);
        cached.map(|mr| Registered::cached(nic, mr, allocation()))
    };
    match result {
        Ok(registered) => {
            let endpoint: Arc<dyn WatchedEndpoint> = Arc::<Regions>::clone(endpoint);
            let watched = nic
                .watch()
                .add(buffer, registered.mr(), registered.is_cached(), &endpoint);
            watched.map(|()| registered).map_err(fresh)
        }
        Err(error) => {
            if !not_exported {
                nic.remember(buffer.device(), &error);
            }
            Err(fresh(error))
        }
    }
}

/// The regions of one endpoint, shared with its serving thread and the NIC's thread, which
/// deregister them if the device is lost.
pub(crate) struct Regions {
    state: Mutex<State>,
    /// Shut down if the device is lost, so that both ends are notified.
    stream: OwnedFd,
}

#[derive(Default)]
struct State {
    list: Vec<Region>,
    lost: Option<Error>,
}

impl Regions {
    /// Creates the regions of the endpoint that uses `stream`.
    pub(crate) fn new(stream: OwnedFd) -> Self {
        Self {
            state: Mutex::default(),
            stream,
        }
    }

    /// Returns why the endpoint ended, if its device is lost or its NIC failed.
    pub(crate) fn lost(&self) -> Option<Error> {
        lock(&self.state).lost.clone()
    }

    /// Reads a region that the request can use; registers one if there is none. The region of an
    /// offer has exactly its range and its rights: through a wider one the peer would reach more
    /// than was offered.
    pub(crate) fn reach<T>(
        self: &Arc<Self>,
        nic: &Nic,
        allocation: Allocation,
        request: &RegionRequest<'_>,
        policy: Policy,
        staged: impl FnOnce() -> Result<MemoryPath>,
        read: impl FnOnce(&Region) -> T,
    ) -> Result<T> {
        let RegionRequest { range, access, .. } = request;
        let offered = request.offered.is_some();
        let fits = |region: &&Region| {
            let fits = if offered {
                region.range == *range && region.access == *access
            } else {
                region.range.start <= range.start
                    && range.end <= region.range.end
                    && region.access.contains(*access)
            };
            fits && region.offered == offered && region.allocation.is_same(&allocation)
        };
        if let Some(found) = lock(&self.state).list.iter().find(fits) {
            return Ok(read(found));
        }
        let region = Region::new(nic, allocation, request, policy, self, staged)?;
        let found = read(&region);
        lock(&self.state).list.push(region);
        Ok(found)
    }

    /// Deregisters the regions of an allocation. Tries all and returns the first failure.
    pub(crate) fn forget(&self, nic: &Nic, allocation: &Allocation) -> Result<()> {
        let closed = self.close_if(|region| region.allocation.is_same(allocation));
        match allocation {
            Allocation::Buffer(buffer) => closed.and(nic.watch().forget(buffer.generation())),
            Allocation::Mapping(_) | Allocation::Host(_) => closed,
        }
    }

    /// Deregisters all regions.
    pub(crate) fn clear(&self) -> Result<()> {
        self.close_if(|_| true)
    }

    fn close_if(&self, which: impl Fn(&Region) -> bool) -> Result<()> {
        // The lock is held until all are closed: `forget` returns only once no other thread is in
        // the middle of closing one.
        let mut state = lock(&self.state);
        let (closing, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut state.list).into_iter().partition(which);
        state.list = kept;
        let mut first = Ok(());
        for region in closing {
            let closed = region.registered.map_or(Ok(()), Registered::close);
            first = first.and(closed);
        }
        first
    }
}

/// An endpoint's hold of its regions. A drop deregisters them, also while the NIC's thread, which
/// ends the use of a lost device, holds them too.
pub(crate) struct OwnRegions {
    regions: Arc<Regions>,
    owner: OwnerProcess,
}

impl OwnRegions {
    pub(crate) fn new(regions: Arc<Regions>) -> Self {
        Self {
            regions,
            owner: OwnerProcess::current(),
        }
    }
}

impl Deref for OwnRegions {
    type Target = Arc<Regions>;

    fn deref(&self) -> &Self::Target {
        &self.regions
    }
}

impl Drop for OwnRegions {
    fn drop(&mut self) {
        // In a fork child the lock may have been held at the fork.
        if self.owner.is_foreign() {
            return;
        }
        if let Err(error) = self.regions.clear() {
            tracing::error!(%error, "a memory region was not deregistered; its memory stays allocated");
        }
    }
}

impl WatchedEndpoint for Regions {
    fn fail(&self, error: &Error) {
        lock(&self.state).lost.get_or_insert_with(|| error.clone());
    }

    fn forget_device_memory(&self) -> Result<()> {
        self.close_if(|region| matches!(region.allocation, Allocation::Buffer(_)))
    }

    fn hang_up(&self) {
        hang_up(self.stream.as_fd());
    }
}
