//! [`Watch`]: the regions of one NIC on exported device memory. They are cached for the next
//! transfer, and deregistered when their memory is freed or their device is lost. The NIC's
//! asynchronous events end here too.

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

use crate::path::is_device_loss;
use crate::stats::{Count, NicStats};
use crate::stream::io;

/// Interval between two queries of a device's status. The driver retries a reset that regions delay
/// every 10 s.
const TURN: Duration = Duration::from_millis(100);
/// Delay between the deregistration and the hang-up: answers to the peer that report the loss must
/// arrive first.
const HANG_UP_DELAY: Duration = Duration::from_millis(100);
/// The longest sleep without an event.
const NAP: Duration = Duration::from_secs(60);
/// After so many wake-ups in a row without an event, the NIC's descriptor is broken.
const MOST_EMPTY_WAKES: u32 = 100;
/// How long the last user of a NIC waits for the thread, which may be in a deregistration.
const STOP: Duration = Duration::from_secs(5);

/// The regions of a NIC, by open device.
///
/// The thread starts with the first endpoint, or the first region of exported memory, and ends with
/// the NIC. It costs a stack, and one `HL_INFO_DEVICE_STATUS` every 100 ms for each open device of
/// which the NIC has a region. Without regions the thread sleeps.
///
/// It takes the NIC's asynchronous events: the context marks regions by them, and an endpoint whose
/// completion queue lost completions fails, because nothing else reports that.
pub(crate) struct Watch {
    owner: OwnerProcess,
    context: Context,
    cache: MrCache,
    /// Regions of the cache that are registered.
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
    /// Allocations of which the cache may have regions.
    generations: Vec<u64>,
    endpoints: Vec<Weak<dyn WatchedEndpoint>>,
    /// Whether the log has that a region of it could not be deregistered.
    is_logged: bool,
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
        // It fails only if the count is full, and then the thread is awake.
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

    /// Reports the NIC's events that concern these completion queues to an endpoint.
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

    /// Returns a region of a range for this node's own requests, from the cache or newly
    /// registered.
    ///
    /// An offer never uses it: its key would open the rest of the region, and outlive the offer.
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

    /// Deregisters the region when its device is lost, and with it the endpoint's other regions of
    /// that device.
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
                is_logged: false,
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

    /// Removes an allocation's regions from the cache; unused ones are deregistered when this
    /// returns.
    pub(crate) fn forget(&self, generation: u64) -> Result<()> {
        if self.owner.is_foreign() {
            return Ok(());
        }
        let mut removed = self.cache.invalidate_generation(generation);
        for watched in &mut self.state().devices {
            watched.generations.retain(|&known| known != generation);
        }
        removed.refused.pop().map_or(Ok(()), Err)
    }

    /// Waits until the thread holds no device without regions: it queries the status only of
    /// devices with regions. For a caller that has deregistered and is about to drop the device.
    pub(crate) fn settle(&self) {
        // In a fork child there is no thread, and the lock may have been held at the fork.
        if !self.owner.is_foreign() {
            drop(self.state());
        }
    }

    /// Deregisters all regions of a device that is lost or about to be, and returns their number.
    /// Endpoints that used one fail from then on.
    pub(crate) fn revoke(&self, device: DeviceId, why: &str) -> Result<usize> {
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, "Nic::revoke")
                .because("the regions belong to the parent of this fork child"));
        }
        self.end(|watched| (watched.status.device() == device).then(|| why.to_owned()))
    }

    fn end(&self, mut lost: impl FnMut(&Watched) -> Option<String>) -> Result<usize> {
        let mut ended = Vec::new();
        let mut state = self.state();
        for watched in std::mem::take(&mut state.devices) {
            match lost(&watched) {
                Some(why) => ended.push((watched, why)),
                None => state.devices.push(watched),
            }
        }
        drop(state);
        // All are tried; the first error is returned.
        let mut all = Ok(0);
        for (watched, why) in ended {
            let one = self.end_one(watched, &why);
            all = all.and_then(|all| Ok(all + one?));
        }
        all
    }

    /// Ends the use of a device: fails the endpoints, so that this error is the cause of all later
    /// ones, then revokes the regions of every holder, then drops the handles.
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
            if !watched.is_logged {
                tracing::error!(%device, %error, "a region of a lost device was not deregistered; it delays the reset");
            }
            // The next turn tries again.
            watched.is_logged = true;
            self.state().devices.push(watched);
        }
        for endpoint in endpoints {
            if let Err(error) = endpoint.forget_device_memory() {
                tracing::error!(%device, %error, "a region of a lost device was not deregistered");
            }
        }
        first
    }

    /// Returns the regions that keep the device from closing.
    pub(crate) fn blockers(&self, device: DeviceId) -> Blockers {
        // In a fork child the lock may have been held at the fork, and no region is the child's.
        let state = (!self.owner.is_foreign()).then(|| self.state());
        let known = state.as_ref().and_then(|state| {
            let mut devices = state.devices.iter();
            devices.find(|watched| watched.status.device() == device)
        });
        let group = known.map(|watched| watched.group.clone());
        drop(state);
        let group = group.unwrap_or_else(|| RegionGroup::new(device.to_string()));
        group.blockers()
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

    /// Ends the thread and waits for it, up to 5 s: it may be in a deregistration.
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
            // This thread dropped the last endpoint: it ends by itself.
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

    /// Sleeps until it is woken, the NIC has an event, or the time has passed. Takes the NIC's
    /// events.
    fn sleep(&self, time: Duration, empty_wakes: &mut u32) {
        let fd = self
            .context
            .async_fd()
            .filter(|_| *empty_wakes < MOST_EMPTY_WAKES);
        let answer = match fd {
            Some(fd) => readable([self.wake.as_fd(), fd], time),
            None => readable([self.wake.as_fd()], time).map(|[woken]| [woken, false]),
        };
        let [woken, has_event] = answer.unwrap_or_else(|errno| {
            tracing::error!("the watching thread of a NIC cannot wait: {errno}");
            thread::sleep(TURN);
            [false; 2]
        });
        if woken {
            // EAGAIN, the only error of a valid eventfd, means that it is 0 already.
            let _ = self.wake.read();
        }
        if has_event {
            *empty_wakes = if self.take_events() { 0 } else { *empty_wakes + 1 };
            if *empty_wakes == MOST_EMPTY_WAKES {
                tracing::error!(nic = self.context.name(), "its events cannot be read any more");
            }
        }
    }

    /// Takes all pending events; `false` if there was none.
    fn take_events(&self) -> bool {
        let mut some = false;
        loop {
            match self.context.get_async_event() {
                Ok(Some(event)) => {
                    some = true;
                    self.handle(&event);
                }
                Ok(None) => return some,
                Err(error) => {
                    tracing::error!(nic = self.context.name(), %error, "an event was not read");
                    return some;
                }
            }
        }
    }

    /// Fails the endpoints that an event concerns. The context has marked its regions already.
    fn handle(&self, event: &AsyncEvent) {
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
            .helped_by("make a new endpoint; the kernel's log has more about the NIC");
        for endpoint in failed {
            endpoint.fail(&error);
            endpoint.hang_up();
        }
    }

    fn run(&self) {
        let mut hang_up: Vec<Weak<dyn WatchedEndpoint>> = Vec::new();
        let mut lost_at = Instant::now();
        let mut empty_wakes = 0;
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
            self.sleep(if idle { NAP } else { TURN }, &mut empty_wakes);
            if self.state().stop {
                continue;
            }
            if lost_at.elapsed() >= HANG_UP_DELAY {
                for endpoint in hang_up.drain(..).filter_map(|endpoint| endpoint.upgrade()) {
                    endpoint.hang_up();
                }
            }
            // Queried under the lock, which `settle` takes once before a caller drops the device.
            let answer = self.end(|watched| {
                if watched.group.regions().is_empty() {
                    return None;
                }
                let why = lost(&watched.status)?;
                hang_up.extend(watched.endpoints.iter().cloned());
                lost_at = Instant::now();
                Some(why)
            });
            // The log has the error; the next turn tries again.
            drop(answer);
        }
    }
}

/// Returns why the device is lost, if it is.
fn lost(status: &StatusHandle) -> Option<String> {
    match status.query() {
        Ok(None | Some(DeviceStatus::OPERATIONAL)) => None,
        Ok(Some(status)) => Some(format!("the device's status is {status}")),
        Err(error) if is_device_loss(&error) => Some(error.to_string()),
        Err(error) => {
            tracing::debug!(device = %status.device(), %error, "the device did not report its status");
            None
        }
    }
}

impl ExportUser for Watch {
    fn release(&self, generation: u64) {
        if let Err(error) = self.forget(generation) {
            tracing::error!(%error, "a cached region of freed memory was not deregistered");
        }
        self.settle();
    }

    fn describe(&self, device: DeviceId) -> Option<String> {
        let blockers = self.blockers(device);
        let others = blockers.candidates.as_ref().is_ok_and(|found| !found.is_empty());
        (!blockers.own.is_empty() || others).then(|| blockers.to_string())
    }
}
