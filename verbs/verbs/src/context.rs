//! [`Context`] and [`Pd`]: an open NIC and its protection domains.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use gaudi_seam::{CloseError, Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::lock;

use crate::device::{DeviceAttr, DmaBufSupport, GidEntry, PortAttr};
use crate::event::{AsyncElement, AsyncEvent, AsyncEventType};
use crate::handle::{PdHandle, QpHandle};
use crate::holders::{Hold, Holders, take_last};
use crate::object::{Object, Parent};
use crate::provider::{Device, MrState};
use crate::region::{Region, RegionInfo};
use crate::{forked, invalid};

/// An open NIC. Clones share it; it closes with its last object.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    device: Arc<dyn Device>,
    attr: DeviceAttr,
    owner: OwnerProcess,
    holders: Arc<Holders>,
    book: Mutex<Book>,
}

/// Objects of a context that events are about.
#[derive(Default)]
struct Book {
    /// Each stays until its [`Mr`](crate::Mr) is dropped, after it is deregistered.
    regions: HashMap<u64, Arc<Region>>,
    next_region: u64,
    qps: HashMap<QpHandle, PdHandle>,
}

impl Context {
    /// Wraps an open provider and queries its attributes once.
    ///
    /// # Errors
    /// The errno of `ibv_query_device`.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        let attr = device.query_device()?;
        let inner = ContextInner {
            device,
            attr,
            owner: OwnerProcess::current(),
            holders: Arc::default(),
            book: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the NIC's attributes.
    pub fn attr(&self) -> &DeviceAttr {
        &self.inner.attr
    }

    /// Returns the NIC's name.
    pub fn name(&self) -> &str {
        &self.inner.attr.name
    }

    /// Returns the current attributes of its port.
    ///
    /// # Errors
    /// The errno of `ibv_query_port`; `Forked` in a fork child.
    pub fn query_port(&self) -> Result<PortAttr> {
        self.device("ibv_query_port")?.query_port()
    }

    /// Returns every address of its port (`ibv_query_gid_table`).
    ///
    /// # Errors
    /// The errno of `ibv_query_gid_table`; `Forked` in a fork child.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        self.device("ibv_query_gid_table")?.query_gids()
    }

    /// Returns a descriptor for poll(2) and epoll(7) that is readable while
    /// [`get_async_event`](Self::get_async_event) has an event, or `None` if the NIC has no events.
    pub fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.device.async_fd()
    }

    /// Takes and acknowledges an event (`ibv_get_async_event`, `ibv_ack_async_event`). Never
    /// blocks.
    ///
    /// An access error of a queue pair makes the dma-buf regions of its domain that a peer may use
    /// [`MrState::Suspect`], and a fatal error of the device every region. Nothing else reports
    /// that an exporter revoked memory, so a program must take the events.
    ///
    /// # Errors
    /// The errno of `ibv_get_async_event`; `Forked` in a fork child.
    pub fn get_async_event(&self) -> Result<Option<AsyncEvent>> {
        let event = self.device("ibv_get_async_event")?.get_async_event()?;
        if let Some(event) = &event {
            self.note(event);
        }
        Ok(event)
    }

    fn note(&self, event: &AsyncEvent) {
        let pd = match (event.event_type, event.element) {
            (
                AsyncEventType::QP_ACCESS_ERR | AsyncEventType::QP_REQ_ERR | AsyncEventType::QP_FATAL,
                AsyncElement::Qp(qp),
            ) => match self.book().qps.get(&qp) {
                Some(pd) => Some(*pd),
                // The queue pair is destroyed.
                None => return,
            },
            (AsyncEventType::DEVICE_FATAL, _) => None,
            // Other events say nothing about memory.
            _ => return,
        };
        for region in self.live_regions() {
            if pd.is_none_or(|pd| region.is_suspicious_in(pd)) {
                region.mark(MrState::Suspect);
            }
        }
    }

    /// Returns every registered region of this context.
    pub fn regions(&self) -> Vec<RegionInfo> {
        let mut regions: Vec<_> = self.live_regions().iter().map(|region| region.info()).collect();
        regions.sort_by_key(|info| info.iova);
        regions
    }

    /// Makes the selected regions [`MrState::Suspect`] and returns their number, for a reset that
    /// no [`RegionGroup`](crate::RegionGroup) learns of.
    pub fn suspect(&self, which: impl Fn(&RegionInfo) -> bool) -> usize {
        let regions = self.live_regions();
        let hit = regions.iter().filter(|region| which(&region.info()));
        hit.map(|region| region.mark(MrState::Suspect)).count()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.inner.book)
    }

    fn live_regions(&self) -> Vec<Arc<Region>> {
        let book = self.book();
        let live = book.regions.values().filter(|region| region.is_registered());
        live.cloned().collect()
    }

    /// Returns the provider for objects that must not hold the context.
    pub(crate) fn shared_device(&self) -> Arc<dyn Device> {
        self.inner.device.clone()
    }

    /// Records a region. Returns its number.
    pub(crate) fn enter_region(&self, region: Arc<Region>) -> u64 {
        let mut book = self.book();
        book.next_region += 1;
        let id = book.next_region;
        book.regions.insert(id, region);
        id
    }

    pub(crate) fn forget_region(&self, id: u64) {
        self.book().regions.remove(&id);
    }

    pub(crate) fn enter_qp(&self, qp: QpHandle, pd: PdHandle) {
        self.book().qps.insert(qp, pd);
    }

    pub(crate) fn forget_qp(&self, qp: QpHandle) {
        self.book().qps.remove(&qp);
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// The errno of `ibv_alloc_pd`; `Forked` in a fork child.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let handle = self.device("ibv_alloc_pd")?.alloc_pd()?;
        let object = Object::new(handle, self.clone(), format!("Pd({})", handle.0), ());
        Ok(Pd(Arc::new(object)))
    }

    /// Closes the context, or returns it. The provider itself closes with its last [`Arc`].
    ///
    /// # Errors
    /// `InUse` with the names of the objects that are still there.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let close = [
            "ibv_close_device",
            "the context",
            "close queue pairs, windows, regions, domains and completion queues first",
        ];
        let last = take_last(self.inner, |inner| &inner.holders, close);
        last.map(drop)
            .map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// Fails with the reason if the NIC cannot register dma-bufs.
    pub(crate) fn check_dmabuf(&self, operation: &'static str) -> Result<()> {
        match &self.inner.attr.dmabuf {
            DmaBufSupport::Yes => Ok(()),
            DmaBufSupport::No(why) => Err(Error::unsupported(operation, why)),
        }
    }

    pub(crate) fn check_limit(
        &self,
        operation: &'static str,
        what: &str,
        asked: u64,
        limit: u64,
    ) -> Result<()> {
        if (1..=limit).contains(&asked) {
            return Ok(());
        }
        Err(invalid(operation, what).saw(asked, format!("1 to {limit}")))
    }

    /// Returns the provider, unless this is a fork child.
    pub(crate) fn device(&self, operation: &'static str) -> Result<&dyn Device> {
        self.check_process(operation)?;
        Ok(&*self.inner.device)
    }

    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.inner.owner.is_foreign() {
            return Err(forked(operation));
        }
        Ok(())
    }

    /// Logs an error of a drop. Not in a fork child: the object lives on in the parent.
    pub(crate) fn report(&self, answer: Result<()>) {
        if let Err(error) = answer {
            if error.kind() != ErrorKind::Forked {
                tracing::error!(%error, nic = self.name(), "an object was dropped that the NIC did not free");
            }
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({}, {})", self.name(), self.inner.attr.provider)
    }
}

impl Parent for Context {
    fn context(&self) -> &Context {
        self
    }

    fn hold(&self, name: String) -> Hold {
        self.inner.holders.hold(name)
    }
}

/// A protection domain: keys and queue pairs work together only within one. Clones share it.
#[derive(Clone)]
pub struct Pd(Arc<Object<PdHandle, Context>>);

impl Pd {
    /// Returns the NIC.
    pub fn context(&self) -> &Context {
        &self.0.parent
    }

    pub(crate) fn handle(&self) -> PdHandle {
        self.0.handle
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Frees the domain (`ibv_dealloc_pd`), or returns it.
    ///
    /// # Errors
    /// `InUse` (`EBUSY`) with the names of the objects and clones that hold it.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        const HELP: &str = "close queue pairs first, then windows, then regions, then the domain";
        let closed = self.0.close("the domain", HELP);
        closed.map_err(|failed| failed.map(Self))
    }
}

impl Parent for Pd {
    fn context(&self) -> &Context {
        self.context()
    }

    fn hold(&self, name: String) -> Hold {
        self.0.hold(name)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({} of {})", self.handle().0, self.context().name())
    }
}
