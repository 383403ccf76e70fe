//! Regions that go when their memory does: those of one NIC on any accelerator's exported memory,
//! kept for the next transfer, and ended at once when a device is lost; and what the NIC tells by
//! itself.

use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, DeviceStatus, ExportUser, StatusHandle};
use gaudi_seam::{DeviceId, Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::poll::readable;
use gaudi_sys::sync::{IgnorePoison as _, lock};
use gaudi_verbs::provider::CqHandle;
use gaudi_verbs::{
    Access, AsyncElement, AsyncEvent, AsyncEventType, Blockers, CacheLimits, CachedMr, Context, Mr, MrAddr,
    MrCache, MrKey, Pd, RegionGroup,
};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::stats::{Count, NicStats};
use crate::stream::io;

/// Between two questions for a device's status. The driver tries a reset that regions hold up again
/// every 10 s.
const TURN: Duration = Duration::from_millis(100);
/// Between the end of the regions and the hang-up: what the peer is still told of the loss shall
/// arrive first.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Between two looks at nothing.
const NAP: Duration = Duration::from_secs(60);
/// Times in a row that the NIC's descriptor may be readable for nothing: it is broken then.
const IN_VAIN: u32 = 100;
/// How long the last user of a NIC waits for the thread: it may be in the middle of a
/// deregistration.
const STOP: Duration = Duration::from_secs(5);

/// The regions of a NIC, by open device.
///
/// The thread starts with the first endpoint, or the first region of exported memory, and ends with
/// the NIC. It costs a stack, and one `HL_INFO_DEVICE_STATUS` every 100 ms for each open device of
/// which the NIC has a region; where it has none, the thread sleeps.
///
/// It takes the NIC's asynchronous events, which would else be nobody's: the context marks regions
/// by them, and an endpoint whose completion queue lost completions fails, since nothing else would
/// tell it.
pub(crate) struct Watch {
    owner: OwnerProcess,
    context: Context,
    cache: MrCache,
    /// Regions that came through the cache, to know which of them live.
    cached: RegionGroup,
    made: Count,
    revoked: Count,
    state: Mutex<State>,
    wake: EventFd,
    ended: Condvar,
}

/// An endpoint, as the NIC's thread ends it.
pub(crate) trait WatchedEndpoint: Send + Sync {
    /// Makes every call of the endpoint fail with this error from now on.
    fn fail(&self, error: &Error);
    /// Deregisters all device memory: a live region of any process delays the device's reset.
    fn forget_device_memory(&self) -> Result<()>;
    /// Closes the connection at both ends.
    fn hang_up(&self);
}

/// The completion queues of an endpoint.
struct Listener {
    cqs: [CqHandle; 2],
    endpoint: Weak<dyn WatchedEndpoint>,
}

#[derive(Default)]
struct State {
    devices: Vec<Watched>,
    listeners: Vec<Listener>,
    running: bool,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

/// An open device.
struct Watched {
    status: StatusHandle,
    group: RegionGroup,
    /// Allocations of which the cache may keep regions.
    generations: Vec<u64>,
    endpoints: Vec<Weak<dyn WatchedEndpoint>>,
    /// It was said that a region of it stays.
    said: bool,
}

impl Watch {
    pub(crate) fn new(pd: &Pd, limits: CacheLimits) -> Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(|errno| Error::from_errno("eventfd", errno))?;
        Ok(Arc::new(Self {
            owner: OwnerProcess::current(),
            context: pd.context().clone(),
            cache: MrCache::new(pd, limits),
            cached: RegionGroup::new("cache"),
            made: Count::default(),
            revoked: Count::default(),
            state: Mutex::default(),
            wake,
            ended: Condvar::new(),
        }))
    }

    /// Wakes the thread, now or when it next would sleep.
    fn wake(&self) {
        // Only a count that nobody ever takes could be full.
        let _ = self.wake.write(1);
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.running || state.stop {
            return Ok(());
        }
        let watch = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("gaudi-watch".into())
            .spawn(move || watch.run())
            .map_err(io("clone"))?;
        state.thread = Some(thread);
        state.running = true;
        Ok(())
    }

    /// From now on an endpoint with these completion queues hears of what the NIC tells by itself.
    pub(crate) fn listen(
        self: &Arc<Self>,
        cqs: [CqHandle; 2],
        endpoint: &Arc<dyn WatchedEndpoint>,
    ) -> Result<()> {
        let mut state = self.state();
        state
            .listeners
            .retain(|listener| listener.endpoint.strong_count() > 0);
        state.listeners.push(Listener {
            cqs,
            endpoint: Arc::downgrade(endpoint),
        });
        if self.context.async_fd().is_some() {
            self.start(&mut state)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A region of a range that is for this node alone: one that is kept, or a new one that is
    /// kept.
    ///
    /// What is offered to a peer never comes from here: its key would open the rest of the region,
    /// and outlive the offer.
    pub(crate) fn cached(
        self: &Arc<Self>,
        buffer: &Buffer,
        addr: MrAddr,
        len: u64,
        access: Access,
        register: impl FnOnce() -> Result<Mr>,
    ) -> Result<CachedMr> {
        let key = MrKey {
            generation: buffer.generation(),
            addr,
            len,
            access,
        };
        self.cache.get_or_register(&key, |_, _| {
            let mr = register()?;
            self.cached.add(&mr);
            self.made.add(1);
            Ok(mr)
        })
    }

    /// From now on the region goes when its device is lost, and so do the regions of that device at
    /// this end of a connection.
    pub(crate) fn add(
        self: &Arc<Self>,
        buffer: &Buffer,
        mr: &Mr,
        cached: bool,
        endpoint: &Arc<dyn WatchedEndpoint>,
    ) -> Result<()> {
        let user: Arc<dyn ExportUser> = Arc::<Self>::clone(self);
        buffer.add_export_user(&user);
        let status = buffer.status_handle();
        let mut state = self.state();
        self.start(&mut state)?;
        let known = state
            .devices
            .iter()
            .position(|watched| watched.status.is_same(&status));
        let at = known.unwrap_or_else(|| {
            state.devices.push(Watched {
                group: RegionGroup::new(status.device().to_string()),
                status,
                generations: Vec::new(),
                endpoints: Vec::new(),
                said: false,
            });
            state.devices.len() - 1
        });
        let watched = &mut state.devices[at];
        watched.group.add(mr);
        if cached && !watched.generations.contains(&buffer.generation()) {
            watched.generations.push(buffer.generation());
        }
        let endpoint = Arc::downgrade(endpoint);
        if !watched.endpoints.iter().any(|known| known.ptr_eq(&endpoint)) {
            watched.endpoints.retain(|known| known.strong_count() > 0);
            watched.endpoints.push(endpoint);
        }
        drop(state);
        self.wake();
        Ok(())
    }

    /// Takes an allocation's regions out of the cache; what nobody uses is deregistered when this
    /// returns.
    pub(crate) fn forget(&self, generation: u64) -> Result<()> {
        if self.owner.is_foreign() {
            return Ok(());
        }
        let mut gone = self.cache.invalidate_generation(generation);
        for watched in &mut self.state().devices {
            watched.generations.retain(|&known| known != generation);
        }
        gone.refused.pop().map_or(Ok(()), Err)
    }

    /// Waits for a question that is under way. For who has deregistered and is about to let go of
    /// the device: the thread asks only for devices with regions, so that afterwards it does not
    /// hold the device for a moment longer.
    pub(crate) fn settle(&self) {
        // In a fork child there is no thread, and the lock may have been held at the fork.
        if !self.owner.is_foreign() {
            drop(self.state());
        }
    }

    /// Ends all regions of a device, which is lost or about to be: says how many. Ends of
    /// connections that had one fail from then on.
    pub(crate) fn revoke(&self, device: DeviceId, why: &str) -> Result<usize> {
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, "Nic::revoke")
                .because("the regions belong to the parent of this fork child"));
        }
        self.end(|watched| (watched.status.device() == device).then(|| why.to_owned()))
    }

    fn end(&self, mut lost: impl FnMut(&Watched) -> Option<String>) -> Result<usize> {
        let mut gone = Vec::new();
        let mut state = self.state();
        for watched in std::mem::take(&mut state.devices) {
            match lost(&watched) {
                Some(why) => gone.push((watched, why)),
                None => state.devices.push(watched),
            }
        }
        drop(state);
        // All are tried; the first error is returned.
        let ended = gone.into_iter().map(|(watched, why)| self.end_one(watched, &why));
        ended.fold(Ok(0), |all, one| all.and_then(|all| Ok(all + one?)))
    }

    /// First the word, so that whatever fails then is known to have failed for it; then the
    /// regions, whoever holds them; then the handles.
    fn end_one(&self, mut watched: Watched, why: &str) -> Result<usize> {
        let device = watched.status.device();
        let error = Error::new(ErrorKind::DeviceLost, "transfer")
            .on(device)
            .because(why)
            .helped_by("close the device, open it again, and make a new endpoint");
        let endpoints: Vec<_> = watched.endpoints.iter().filter_map(Weak::upgrade).collect();
        for endpoint in &endpoints {
            endpoint.fail(&error);
        }
        let revoked = watched.group.revoke();
        if let Ok(count) = revoked {
            self.revoked.add(count as u64);
            tracing::warn!(%device, count, "{why}: its memory regions were deregistered");
        }
        let mut first = revoked;
        for &generation in &watched.generations {
            first = first.and_then(|count| self.forget(generation).map(|()| count));
        }
        if let Err(error) = &first {
            if !watched.said {
                tracing::error!(%device, %error, "a region of a lost device was not deregistered; it holds up the reset");
            }
            // To be tried again.
            watched.said = true;
            self.state().devices.push(watched);
        }
        for endpoint in endpoints {
            if let Err(error) = endpoint.forget_device_memory() {
                tracing::error!(%device, %error, "a region of a lost device was not deregistered");
            }
        }
        first
    }

    /// Why the device cannot go away, as far as regions are concerned.
    pub(crate) fn blockers(&self, device: DeviceId) -> Blockers {
        // In a fork child the lock may have been held at the fork, and no region is the child's.
        let group = if self.owner.is_foreign() {
            None
        } else {
            let state = self.state();
            let known = state
                .devices
                .iter()
                .find(|watched| watched.status.device() == device);
            known.map(|watched| watched.group.clone())
        };
        group
            .unwrap_or_else(|| RegionGroup::new(device.to_string()))
            .blockers()
    }

    pub(crate) fn count(&self, stats: &mut NicStats) {
        if self.owner.is_foreign() {
            return;
        }
        let (cache, kept) = (self.cache.stats(), self.cached.regions().len() as u64);
        let made = self.made.get();
        stats.registrations += made;
        stats.deregistrations += made.saturating_sub(kept);
        stats.cache_hits = cache.hits;
        stats.cache_misses = cache.misses;
        stats.cache_evictions = cache.evictions;
        stats.cache_invalidations = cache.invalidations;
        stats.cached_regions = cache.entries as u64;
        stats.revoked = self.revoked.get();
    }

    /// Ends the thread, and waits for it: not for ever, since it may be in a deregistration, which
    /// ends by itself.
    pub(crate) fn stop(&self) {
        if self.owner.is_foreign() {
            return;
        }
        let mut state = self.state();
        state.stop = true;
        self.wake();
        let Some(thread) = state.thread.take() else {
            return;
        };
        if thread.thread().id() == thread::current().id() {
            // It let go of the last endpoint: it ends on its own.
            return;
        }
        let (state, waited) = self
            .ended
            .wait_timeout_while(state, STOP, |state| state.running)
            .ignore_poison();
        drop(state);
        if waited.timed_out() {
            tracing::warn!("the watching thread of a NIC still deregisters; it ends on its own");
        } else if thread.join().is_err() {
            tracing::error!("the watching thread of a NIC panicked");
        }
    }

    /// Until it is woken, the NIC tells something, or the time has passed. Takes what the NIC
    /// tells.
    fn sleep(&self, time: Duration, in_vain: &mut u32) {
        let fd = self.context.async_fd().filter(|_| *in_vain < IN_VAIN);
        let answer = match fd {
            Some(fd) => readable([self.wake.as_fd(), fd], time),
            None => readable([self.wake.as_fd()], time).map(|[woken]| [woken, false]),
        };
        let [woken, told] = answer.unwrap_or_else(|errno| {
            tracing::error!("the watching thread of a NIC cannot wait: {errno}");
            thread::sleep(TURN);
            [false; 2]
        });
        if woken {
            let _ = self.wake.read();
        }
        if told {
            *in_vain = if self.take_events() { 0 } else { *in_vain + 1 };
            if *in_vain == IN_VAIN {
                tracing::error!(nic = self.context.name(), "its events cannot be read any more");
            }
        }
    }

    /// Takes all events that are there; `false` where there was none.
    fn take_events(&self) -> bool {
        let mut some = false;
        loop {
            match self.context.get_async_event() {
                Ok(Some(event)) => {
                    some = true;
                    self.heed(&event);
                }
                Ok(None) => return some,
                Err(error) => {
                    tracing::error!(nic = self.context.name(), %error, "an event was not read");
                    return some;
                }
            }
        }
    }

    /// The context has marked regions already.
    fn heed(&self, event: &AsyncEvent) {
        let (nic, what, element) = (self.context.name(), event.event_type, event.element);
        let of = match (what, element) {
            (AsyncEventType::CQ_ERR, AsyncElement::Cq(cq)) => Some(cq),
            (AsyncEventType::DEVICE_FATAL, _) => None,
            (
                AsyncEventType::COMM_EST | AsyncEventType::SQ_DRAINED | AsyncEventType::QP_LAST_WQE_REACHED,
                _,
            ) => {
                tracing::debug!(nic, %what, ?element, "event of the NIC");
                return;
            }
            _ => {
                tracing::warn!(nic, %what, ?element, "event of the NIC");
                return;
            }
        };
        let state = self.state();
        let concerned = state.listeners.iter();
        let concerned = concerned.filter(|listener| of.is_none_or(|cq| listener.cqs.contains(&cq)));
        let failed: Vec<_> = concerned
            .filter_map(|listener| listener.endpoint.upgrade())
            .collect();
        drop(state);
        tracing::error!(nic, %what, ?element, ends = failed.len(), "event of the NIC: connections fail");
        let cause = match what {
            AsyncEventType::CQ_ERR => "the NIC lost completions: a completion queue overflowed",
            _ => "the NIC failed",
        };
        let error = Error::new(ErrorKind::Io, "transfer")
            .because(format!("{cause} ({what})"))
            .helped_by("make a new endpoint; the kernel's log says more of the NIC");
        for endpoint in failed {
            endpoint.fail(&error);
            endpoint.hang_up();
        }
    }

    fn run(&self) {
        let mut hang_up: Vec<Weak<dyn WatchedEndpoint>> = Vec::new();
        let mut said = Instant::now();
        let mut in_vain = 0;
        loop {
            let mut state = self.state();
            if state.stop {
                state.running = false;
                drop(state);
                self.ended.notify_all();
                return;
            }
            state
                .devices
                .retain(|watched| !watched.group.regions().is_empty());
            let idle = state.devices.is_empty() && hang_up.is_empty();
            drop(state);
            self.sleep(if idle { NAP } else { TURN }, &mut in_vain);
            if self.state().stop {
                continue;
            }
            if said.elapsed() >= LAST_WORDS {
                for endpoint in hang_up.drain(..).filter_map(|endpoint| endpoint.upgrade()) {
                    endpoint.hang_up();
                }
            }
            // Asked under the lock, which whoever deregistered takes once before he lets go of the
            // device.
            let answer = self.end(|watched| {
                if watched.group.regions().is_empty() {
                    return None;
                }
                let why = lost(&watched.status)?;
                hang_up.extend(watched.endpoints.iter().cloned());
                said = Instant::now();
                Some(why)
            });
            // It is told in the log; the next turn tries again.
            drop(answer);
        }
    }
}

/// Why the device is lost, where it is.
fn lost(status: &StatusHandle) -> Option<String> {
    match status.query() {
        Ok(None | Some(DeviceStatus::OPERATIONAL)) => None,
        Ok(Some(status)) => Some(format!("the device's status is {status}")),
        Err(error) if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) => {
            Some(error.to_string())
        }
        Err(error) => {
            tracing::debug!(device = %status.device(), %error, "the device does not tell its status");
            None
        }
    }
}

impl ExportUser for Watch {
    fn release(&self, generation: u64) {
        if let Err(error) = self.forget(generation) {
            tracing::error!(%error, "a kept region of freed memory was not deregistered");
        }
        self.settle();
    }

    fn describe(&self, device: DeviceId) -> Option<String> {
        let blockers = self.blockers(device);
        let others = blockers.candidates.as_ref().is_ok_and(|found| !found.is_empty());
        (!blockers.own.is_empty() || others).then(|| blockers.to_string())
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.cache)
    }
}
