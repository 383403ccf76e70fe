//! [`Context`] and [`Pd`]: an open NIC and its protection domains.

use std::fmt;
use std::sync::Arc;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::fork::Birth;

use crate::cq::Cq;
use crate::device::{DeviceAttr, DmaBufSupport, PortAttr};
use crate::provider::{Device, PdHandle};
use crate::{forked, invalid};

/// An open NIC. Clones share it; it closes with its last object.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    device: Arc<dyn Device>,
    attr: DeviceAttr,
    birth: Birth,
}

impl Context {
    /// Wraps an open provider and asks it once for what does not change.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        let attr = device.query_device()?;
        let inner = ContextInner {
            device,
            attr,
            birth: Birth::here(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What the NIC is and can.
    pub fn attr(&self) -> &DeviceAttr {
        &self.inner.attr
    }

    /// The NIC's name.
    pub fn name(&self) -> &str {
        &self.inner.attr.name
    }

    /// Its port now.
    pub fn query_port(&self) -> Result<PortAttr> {
        self.device("ibv_query_port")?.query_port()
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let handle = self.device("ibv_alloc_pd")?.alloc_pd()?;
        let inner = PdInner {
            handle,
            live: true,
            context: self.clone(),
        };
        Ok(Pd {
            inner: Arc::new(inner),
        })
    }

    /// Makes a completion queue with room for `depth` completions.
    ///
    /// Work that completes while the queue is full is lost and the queue is broken: `depth` must cover all that can be outstanding.
    pub fn create_cq(&self, depth: u32) -> Result<Cq> {
        Cq::create(self, depth)
    }

    /// Fails with the reason where the NIC cannot register dma-bufs.
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

    /// The provider, unless this is a fork child.
    pub(crate) fn device(&self, operation: &'static str) -> Result<&dyn Device> {
        self.check_process(operation)?;
        Ok(&*self.inner.device)
    }

    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.inner.birth.is_elsewhere() {
            return Err(forked(operation));
        }
        Ok(())
    }

    /// Reports what a drop could not do. A fork child stays silent: the object lives on in the parent.
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

/// A protection domain: keys and queue pairs of one domain work together, others do not. Clones share it.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

struct PdInner {
    handle: PdHandle,
    live: bool,
    context: Context,
}

impl Pd {
    /// The NIC.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn handle(&self) -> PdHandle {
        self.inner.handle
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Frees the domain, or gives it back: `InUse` while a region, a queue pair or a clone holds it (`EBUSY` as the kernel would say).
    pub fn close(self) -> Result<(), (Self, Error)> {
        const OPERATION: &str = "ibv_dealloc_pd";
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let others = Arc::strong_count(&inner) - 1;
                let error = Error::new(ErrorKind::InUse, OPERATION)
                    .with_errno(Errno::EBUSY)
                    .because(format!("{others} regions, queue pairs or clones hold the domain"))
                    .helped_by("close queue pairs first, then regions, then the domain");
                return Err((Self { inner }, error));
            }
        };
        let freed = inner
            .context
            .device(OPERATION)
            .and_then(|device| device.dealloc_pd(inner.handle));
        if let Err(error) = freed {
            let inner = Arc::new(inner);
            return Err((Self { inner }, error));
        }
        inner.live = false;
        Ok(())
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let freed = self.context.device("ibv_dealloc_pd");
        self.context
            .report(freed.and_then(|device| device.dealloc_pd(self.handle)));
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({} of {})", self.inner.handle.0, self.inner.context.name())
    }
}
