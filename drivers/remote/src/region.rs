//! Registered memory, kept until nothing uses it: buffers by the ladder, host memory as it is.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise about memory that outlives the call"
)]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use gaudi_device::{Buffer, HostBuffer, HostMapping, Location};
use gaudi_seam::{Error, ErrorKind, HostVa, Result};
use gaudi_verbs::{Access, CachedMr, Mr, MrAddr, Pd, Sge};

use crate::ladder::{Attempt, Policy, Report, Step, required};
use crate::nic::Nic;
use crate::serve::hang_up;

/// Memory of this node that is put, got into, or offered.
#[derive(Debug, Clone)]
pub struct Local(pub(crate) Place);

#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Device memory, or host memory that the device reaches.
    Device(Location),
    /// Host memory that no device knows.
    Host(Arc<HostBuffer>, Range<usize>),
}

impl Local {
    /// A part of host memory. `InvalidInput` where the range leaves it.
    pub fn host(buffer: &Arc<HostBuffer>, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > buffer.len() {
            return Err(Error::new(ErrorKind::InvalidInput, "Local::host")
                .because("the range leaves the buffer")
                .saw(format!("{range:?}"), format!("within 0..{}", buffer.len())));
        }
        Ok(Self(Place::Host(Arc::clone(buffer), range)))
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Place::Device(location) => location.len(),
            Place::Host(_, range) => range.len() as u64,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether device memory, or host memory that a device reaches, lies in the same allocation.
    pub(crate) fn is_around(&self, location: &Location) -> bool {
        match &self.0 {
            Place::Device(own) => match (own.in_device(), own.in_host()) {
                (Some((buffer, _)), _) => location.in_device().is_some_and(|(held, _)| held.is_same(buffer)),
                (_, Some((mapping, _))) => location.in_host().is_some_and(|(held, _)| held.is_same(mapping)),
                (None, None) => false,
            },
            Place::Host(..) => false,
        }
    }

    /// What it lies in, and where.
    pub(crate) fn held(&self) -> (Held, u64) {
        match &self.0 {
            Place::Host(buffer, range) => (Held::Host(Arc::clone(buffer)), range.start as u64),
            Place::Device(location) => match (location.in_device(), location.in_host()) {
                (Some((buffer, offset)), _) => (Held::Buffer(buffer.clone()), offset),
                (_, Some((mapping, offset))) => (Held::Mapping(mapping.clone()), offset),
                (None, None) => unreachable!("a location is in device or host memory"),
            },
        }
    }
}

impl From<Location> for Local {
    fn from(location: Location) -> Self {
        Self(Place::Device(location))
    }
}

impl From<&Local> for Local {
    fn from(local: &Local) -> Self {
        local.clone()
    }
}

impl From<&Location> for Local {
    fn from(location: &Location) -> Self {
        location.clone().into()
    }
}

impl From<&Buffer> for Local {
    fn from(buffer: &Buffer) -> Self {
        Location::from(buffer).into()
    }
}

impl From<&HostMapping> for Local {
    fn from(mapping: &HostMapping) -> Self {
        Location::from(mapping).into()
    }
}

impl From<&Arc<HostBuffer>> for Local {
    fn from(buffer: &Arc<HostBuffer>) -> Self {
        Self(Place::Host(Arc::clone(buffer), 0..buffer.len()))
    }
}

/// A whole allocation.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    Buffer(Buffer),
    Mapping(HostMapping),
    Host(Arc<HostBuffer>),
}

impl Held {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Buffer(a), Self::Buffer(b)) => a.is_same(b),
            (Self::Mapping(a), Self::Mapping(b)) => a.is_same(b),
            (Self::Host(a), Self::Host(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Mapping(mapping) => mapping.len(),
            Self::Host(buffer) => buffer.len() as u64,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Buffer(buffer) => buffer.device().to_string(),
            Self::Mapping(_) | Self::Host(_) => "host".to_owned(),
        }
    }
}

/// A memory region and what it stands on. The region goes first, whoever drops it; where the NIC does not let go, the memory stays.
pub(crate) struct Registered {
    mr: Option<Hold>,
    held: Option<Held>,
    nic: Nic,
}

enum Hold {
    /// Deregistered with this.
    Own(Mr),
    /// The NIC keeps it, for the next who asks.
    Kept(CachedMr),
}

impl Registered {
    fn new(nic: &Nic, mr: Mr, held: Held) -> Self {
        nic.counters().registrations.add(1);
        Self {
            mr: Some(Hold::Own(mr)),
            held: Some(held),
            nic: nic.clone(),
        }
    }

    /// Registers all host memory of a mapping or a buffer.
    pub(crate) fn host(nic: &Nic, pd: &Pd, held: Held, access: Access) -> Result<Self> {
        let all = 0..held.len();
        Self::host_range(nic, pd, held, all, access)
    }

    fn host_range(nic: &Nic, pd: &Pd, held: Held, range: Range<u64>, access: Access) -> Result<Self> {
        let start = match &held {
            Held::Mapping(mapping) => mapping.as_ptr(),
            Held::Host(buffer) => buffer.as_ptr(),
            Held::Buffer(_) => unreachable!("device memory has no address in this process"),
        };
        let len = range.end.min(held.len()).saturating_sub(range.start);
        let address = HostVa(start.as_ptr().expose_provenance() as u64 + range.start);
        // SAFETY: the range was cut to the memory. Both kinds stay mapped, readable and writable, while a handle of them lives; `Registered` holds one until the region
        // is closed, and gives it up for good where closing fails. Neither ever makes a reference to its bytes.
        let mr = unsafe { pd.reg_mr(address, len, address.into(), access) }?;
        Ok(Self::new(nic, mr, held))
    }

    pub(crate) fn mr(&self) -> &Mr {
        match &self.mr {
            Some(Hold::Own(mr)) => mr,
            Some(Hold::Kept(mr)) => mr,
            None => unreachable!("a region is taken by Drop and `close` only"),
        }
    }

    pub(crate) fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let mr = match self.mr.take() {
            Some(Hold::Own(mr)) => mr,
            // The buffer's last owner ends it, or who forgets the buffer. Let go of before the thread is waited for: it looks at regions.
            Some(Hold::Kept(kept)) => {
                drop(kept);
                self.settle();
                return Ok(());
            }
            None => {
                self.settle();
                return Ok(());
            }
        };
        match mr.close() {
            Ok(()) => {
                self.nic.counters().deregistrations.add(1);
                self.settle();
                Ok(())
            }
            Err((mr, error)) => {
                // The NIC may still reach the memory: it must become nobody else's.
                std::mem::forget(self.held.take());
                std::mem::forget(mr);
                Err(error)
            }
        }
    }
}

impl Registered {
    /// The device may go once this is let go of: the NIC's thread must not hold it then.
    fn settle(&self) {
        if let Some(Held::Buffer(_)) = &self.held {
            self.nic.watch().settle();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            if error.kind() != ErrorKind::Forked {
                tracing::error!(%error, "a memory region was not deregistered; its memory stays allocated");
            }
        }
    }
}

/// The part of an allocation that a region is for.
pub(crate) struct Part<'a> {
    pub(crate) range: Range<u64>,
    pub(crate) access: Access,
    /// The domain for a peer's access: the region covers this range, with these rights, for this peer. `None` for this node's own
    /// requests: the NIC caches the region.
    pub(crate) offered: Option<&'a Pd>,
}

/// An allocation that an endpoint uses, with how its NIC reaches it.
pub(crate) struct Region {
    /// `None` if it is staged.
    pub(crate) registered: Option<Registered>,
    pub(crate) held: Held,
    /// The part of it that is registered.
    range: Range<u64>,
    access: Access,
    /// The peer reaches it; otherwise only this node's requests do. The two are in different domains.
    offered: bool,
    pub(crate) report: Report,
}

impl Region {
    /// Registers memory by the first step of the ladder that works.
    pub(crate) fn new(
        nic: &Nic,
        held: Held,
        part: Part<'_>,
        policy: Policy,
        end: &Arc<Mutex<Regions>>,
        staged: impl FnOnce() -> Result<Step>,
    ) -> Result<Self> {
        let mut report = Report {
            nic: nic.context().name().to_owned(),
            memory: held.name(),
            step: Step::Host,
            failed: Vec::new(),
        };
        let registered = match &held {
            Held::Buffer(buffer) => match dmabuf(nic, buffer, &part, policy, end) {
                Ok(registered) => {
                    report.step = Step::DmaBuf(registered.mr().path());
                    Some(registered)
                }
                Err(attempt) if policy == Policy::Require => return Err(required(&attempt.error)),
                Err(attempt) => {
                    tracing::info!(nic = report.nic, memory = report.memory, "staged: {attempt}");
                    report.step = staged().map_err(|error| match error.help() {
                        Some(_) => error,
                        None => error.helped_by(format!("{attempt}")),
                    })?;
                    report.failed.push(attempt);
                    None
                }
            },
            Held::Mapping(_) | Held::Host(_) => {
                let (pd, range) = (part.offered.unwrap_or(nic.pd()), part.range.clone());
                Some(Registered::host_range(nic, pd, held.clone(), range, part.access)?)
            }
        };
        Ok(Self {
            registered,
            held,
            range: part.range,
            access: part.access,
            offered: part.offered.is_some(),
            report,
        })
    }
}

/// The first step: the buffer's dma-buf, registered by the NIC. Addresses of the region are the device's own.
fn dmabuf(
    nic: &Nic,
    buffer: &Buffer,
    part: &Part<'_>,
    policy: Policy,
    end: &Arc<Mutex<Regions>>,
) -> Result<Registered, Attempt> {
    let Part {
        ref range,
        access,
        offered,
    } = *part;
    let fresh = |error| Attempt {
        error,
        remembered: false,
    };
    if policy == Policy::Never {
        // Nobody was asked: there is no errno to tell.
        let untried = Error::new(ErrorKind::Unsupported, "dma-buf region");
        return Err(fresh(untried.because("not tried: the policy is `never`")));
    }
    if let Some(error) = nic.remembered(buffer.device()) {
        return Err(Attempt {
            error,
            remembered: true,
        });
    }
    // A buffer that cannot be exported says nothing of the next one.
    let iova = MrAddr::from(buffer.address())
        .checked_add(range.start)
        .unwrap_or_default();
    let len = range.end.saturating_sub(range.start);
    let mut unfit = false;
    let mut register = || {
        let window = buffer.window(range.clone()).inspect_err(|_| unfit = true)?;
        offered.unwrap_or(nic.pd()).reg_dmabuf_mr(&window, iova, access)
    };
    let answer = if offered.is_some() {
        register().map(|mr| Registered::new(nic, mr, Held::Buffer(buffer.clone())))
    } else {
        let kept = nic.watch().cached(buffer, iova, len, access, register);
        kept.map(|mr| Registered {
            mr: Some(Hold::Kept(mr)),
            held: Some(Held::Buffer(buffer.clone())),
            nic: nic.clone(),
        })
    };
    match answer {
        Ok(registered) => {
            let cached = matches!(registered.mr, Some(Hold::Kept(_)));
            let watched = nic.watch().add(buffer, registered.mr(), cached, end);
            watched.map(|()| registered).map_err(fresh)
        }
        Err(error) => {
            if !unfit {
                nic.remember(buffer.device(), &error);
            }
            Err(fresh(error))
        }
    }
}

impl Region {
    /// Where a byte of the allocation is for the NIC; `None` where it is staged.
    pub(crate) fn sge(&self, offset: u64) -> Option<Sge> {
        let mr = self.registered.as_ref()?.mr();
        Some(Sge {
            addr: mr.addr().checked_add(offset.checked_sub(self.range.start)?)?,
            length: 0,
            lkey: mr.lkey(),
        })
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {:?})", self.report, self.access)
    }
}

/// The regions of an endpoint. Its serving thread lets go of them too, when the device is lost.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    list: Vec<Region>,
    /// Why this end is over: its device's memory is no more, or its NIC failed it.
    lost: Option<Error>,
    /// The endpoint's: hung up when its device is lost, so that whoever waits at either end learns of it.
    stream: Option<OwnedFd>,
}

impl Regions {
    /// Of an endpoint with this stream.
    pub(crate) fn of(stream: OwnedFd) -> Self {
        Self {
            stream: Some(stream),
            ..Self::default()
        }
    }

    /// The device of some of them is lost, or the NIC has failed this end.
    pub(crate) fn lose(&mut self, error: &Error) {
        self.lost.get_or_insert_with(|| error.clone());
    }

    /// Why this end is over, where that is so.
    pub(crate) fn lost(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    pub(crate) fn hang_up(&self) {
        if let Some(stream) = &self.stream {
            hang_up(stream.as_fd());
        }
    }

    /// Finds a region that allows `access` on a range of an allocation. An offer's region has exactly this range and these rights:
    /// with a wider one the peer would reach more than was offered.
    pub(crate) fn find(
        &self,
        held: &Held,
        range: &Range<u64>,
        access: Access,
        offered: bool,
    ) -> Option<&Region> {
        self.list.iter().find(|region| {
            let fits = if offered {
                region.range == *range && region.access == access
            } else {
                region.range.start <= range.start
                    && range.end <= region.range.end
                    && region.access.contains(access)
            };
            fits && region.offered == offered && region.held.is_same(held)
        })
    }

    pub(crate) fn keep(&mut self, region: Region) -> &Region {
        self.list.push(region);
        match self.list.last() {
            Some(region) => region,
            None => unreachable!("it was just added"),
        }
    }

    /// Deregisters an allocation. The first failure is told; all are tried.
    pub(crate) fn forget(&mut self, nic: &Nic, held: &Held) -> Result<()> {
        let answer = self.take(|region| region.held.is_same(held));
        match held {
            Held::Buffer(buffer) => answer.and(nic.watch().forget(buffer.generation())),
            Held::Mapping(_) | Held::Host(_) => answer,
        }
    }

    /// Deregisters all device memory: before a reset, which a live region of any process would hold up.
    pub(crate) fn forget_device_memory(&mut self) -> Result<()> {
        self.take(|region| matches!(region.held, Held::Buffer(_)))
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        self.take(|_| true)
    }

    fn take(&mut self, which: impl Fn(&Region) -> bool) -> Result<()> {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.list).into_iter().partition(which);
        self.list = kept;
        let mut answer = Ok(());
        for region in gone {
            let closed = region.registered.map_or(Ok(()), Registered::close);
            answer = answer.and(closed);
        }
        answer
    }
}
