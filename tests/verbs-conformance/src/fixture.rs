//! [`Fixture`]: what the suite runs on.

use std::fmt;

use gaudi_dmabuf::Window;
use gaudi_seam::Result;
use gaudi_sys::RawMapping;
use gaudi_verbs::Context;

use crate::dialect::Dialect;

/// What a case needs beyond connections, regions of host memory and completion queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Regions of dma-bufs.
    DmaBuf,
    /// Fetch-and-add and compare-and-swap.
    Atomics,
    /// Payload without a region.
    Inline,
    /// Shared receive queues.
    Srq,
    /// Memory windows of type 2.
    Windows,
    /// Memory windows of type 1 by work request.
    Type1Windows,
    /// Datagrams.
    Datagrams,
    /// Asynchronous events.
    Events,
    /// An event at the end whose memory a wrong key asked for.
    AccessEvents,
    /// A connection from a port to itself.
    Loopback,
    /// Receives are refused in the state RESET and flushed in the state ERR. (librxe does not ask
    /// the kernel, and takes them.)
    ReceiveStates,
    /// An overflow of a completion queue raises an event, and the queue keeps its entries.
    Overflow,
}

/// Memory behind a dma-buf, as its maker sees it.
#[derive(Debug)]
pub struct DmaBufMemory {
    /// What is registered: all of it.
    pub window: Window,
    /// The same bytes, to write and to look at.
    pub view: RawMapping,
}

type Maker = Box<dyn Fn(u64) -> Result<DmaBufMemory>>;

/// Two ends, and what is known of them.
pub struct Fixture {
    /// For reports.
    pub name: String,
    /// One end.
    pub a: Context,
    /// The other; it may be the same NIC opened twice.
    pub b: Context,
    /// Whose answers are expected.
    pub dialect: Dialect,
    dmabuf: Option<Maker>,
    lacks: Vec<(Feature, String)>,
}

impl Fixture {
    /// Two contexts that can reach each other, with nothing lacking but dma-bufs.
    pub fn new(name: impl Into<String>, a: Context, b: Context, dialect: Dialect) -> Self {
        Self {
            name: name.into(),
            a,
            b,
            dialect,
            dmabuf: None,
            lacks: Vec::new(),
        }
    }

    /// Sets how a dma-buf of a size (a multiple of 4096) is allocated.
    pub fn with_dmabuf(mut self, maker: impl Fn(u64) -> Result<DmaBufMemory> + 'static) -> Self {
        self.dmabuf = Some(Box::new(maker));
        self
    }

    /// Marks a feature as missing in the provider, with the reason. Cases that need it are counted
    /// as unsupported.
    pub fn lacking(mut self, feature: Feature, why: impl Into<String>) -> Self {
        self.lacks.push((feature, why.into()));
        self
    }

    /// Why a feature is not there; `None` where it is.
    pub fn lack(&self, feature: Feature) -> Option<&str> {
        if let Some((_, why)) = self.lacks.iter().find(|(lacked, _)| *lacked == feature) {
            return Some(why);
        }
        (feature == Feature::DmaBuf && self.dmabuf.is_none()).then_some("the fixture makes no dma-bufs")
    }

    pub(crate) fn make_dmabuf(&self, len: u64) -> DmaBufMemory {
        let maker = self.dmabuf.as_ref().expect("the case names the feature");
        maker(len).expect("the fixture makes a dma-buf")
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixture({}, {:?}, {:?})", self.name, self.a, self.b)
    }
}
