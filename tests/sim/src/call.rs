//! One wrapper for every watcher: an operation as data, and what is done around it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use gaudi_layers::Operation;
use gaudi_seam::{
    CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DeviceVa, Error, ErrorKind, ExportRequest,
    InfoRequest, InterruptWait, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest,
    MultiWaitAnswer, Node, RawMapping, Result, SharedIo, WaitAnswer, WaitStatus,
};
use gaudi_uapi::cs::HlCsChunk;

/// An operation of the seam with what of its request the watchers look at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    Info(InfoRequest),
    CbCreate(CbCreate),
    CbDestroy(CbHandle),
    CbInfo(CbHandle, bool),
    Submit(Submission),
    WaitCs(CsSeq, Duration),
    WaitMultiCs,
    WaitInterrupt(InterruptWait),
    MemAlloc(MemAlloc),
    MemFree(MemHandle),
    MemMapDevice(MapDevice),
    MemMapHost(MapHost),
    MemUnmap(DeviceVa),
    ExportDmabuf(ExportRequest),
    Mmap(MmapRequest),
    RegisterEvents,
    UnregisterEvents,
}

/// The first chunk of a submission and how many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Submission {
    pub(crate) chunk: HlCsChunk,
    pub(crate) chunks: usize,
    pub(crate) flags: u32,
}

impl Call {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Self::Info(_) => Operation::Info,
            Self::CbCreate(_) => Operation::CbCreate,
            Self::CbDestroy(_) => Operation::CbDestroy,
            Self::CbInfo(..) => Operation::CbInfo,
            Self::Submit(_) => Operation::Submit,
            Self::WaitCs(..) => Operation::WaitCs,
            Self::WaitMultiCs => Operation::WaitMultiCs,
            Self::WaitInterrupt(_) => Operation::WaitInterrupt,
            Self::MemAlloc(_) => Operation::MemAlloc,
            Self::MemFree(_) => Operation::MemFree,
            Self::MemMapDevice(_) => Operation::MemMapDevice,
            Self::MemMapHost(_) => Operation::MemMapHost,
            Self::MemUnmap(_) => Operation::MemUnmap,
            Self::ExportDmabuf(_) => Operation::ExportDmabuf,
            Self::Mmap(_) => Operation::Mmap,
            Self::RegisterEvents => Operation::RegisterEvents,
            Self::UnregisterEvents => Operation::UnregisterEvents,
        }
    }
}

/// What of an answer the watchers look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    Number(u64),
    Wait(WaitStatus),
    Refused(ErrorKind, Option<gaudi_seam::Errno>),
}

impl Told {
    pub(crate) fn of<T: Tell>(answer: &Result<T>) -> Self {
        match answer {
            Ok(answer) => answer.tell(),
            Err(error) => Self::Refused(error.kind(), error.errno()),
        }
    }
}

/// An answer of the seam.
pub(crate) trait Tell: Sized {
    fn tell(&self) -> Told {
        Told::Nothing
    }

    /// An answer that nobody gave, for defects that are made on purpose.
    fn forged(told: Told) -> Option<Self> {
        let _ = told;
        None
    }
}

impl Tell for () {
    fn forged(_: Told) -> Option<Self> {
        Some(())
    }
}

impl Tell for u32 {}
impl Tell for CbInfo {}
impl Tell for MultiWaitAnswer {}
impl Tell for OwnedFd {}
impl Tell for RawMapping {}

impl Tell for CbHandle {
    fn tell(&self) -> Told {
        Told::Number(self.0)
    }
}

impl Tell for MemHandle {
    fn tell(&self) -> Told {
        Told::Number(self.0)
    }
}

impl Tell for DeviceVa {
    fn tell(&self) -> Told {
        Told::Number(self.0)
    }
}

impl Tell for CsAnswer {
    fn tell(&self) -> Told {
        Told::Number(self.seq.0)
    }

    fn forged(told: Told) -> Option<Self> {
        match told {
            Told::Number(seq) => Some(Self {
                seq: CsSeq(seq),
                status: gaudi_uapi::cs::CsStatus::SUCCESS,
                sob_base_addr_offset: 0,
                sob_count_before_submission: 0,
            }),
            _ => None,
        }
    }
}

impl Tell for WaitAnswer {
    fn tell(&self) -> Told {
        Told::Wait(self.status)
    }

    fn forged(told: Told) -> Option<Self> {
        match told {
            Told::Wait(status) => Some(Self {
                status,
                gone: false,
                timestamp_ns: None,
            }),
            _ => None,
        }
    }
}

/// What a watcher does around an operation.
pub(crate) trait Watch: Send + Sync + 'static {
    /// Performs `go`, which hands the operation down, and looks at the answer. The call may be changed on its way.
    fn around<T: Tell>(&self, call: Call, go: &mut dyn FnMut(Call) -> Result<T>) -> Result<T>;

    /// The last handle of the node goes; what lies below is still there.
    fn closing(&self) {}
}

/// A layer that watches.
pub(crate) struct Watched<W: Watch> {
    inner: SharedIo,
    watch: W,
}

impl<W: Watch> Watched<W> {
    pub(crate) fn over(inner: SharedIo, watch: W) -> SharedIo {
        std::sync::Arc::new(Self { inner, watch })
    }
}

impl<W: Watch> Drop for Watched<W> {
    fn drop(&mut self) {
        self.watch.closing();
    }
}

/// The one answer to a call that is not what it was: no watcher changes its kind.
fn changed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, operation).because("a watcher turned the call into another")
}

macro_rules! pass {
    ($self:ident, $call:expr, $shape:pat => $go:expr) => {
        $self.watch.around($call, &mut |call| match call {
            $shape => $go,
            other => Err(changed(other.operation().kernel_name())),
        })
    };
}

impl<W: Watch> KernelIo for Watched<W> {
    fn node(&self) -> &Node {
        self.inner.node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        pass!(self, Call::Info(request), Call::Info(request) => self.inner.info(request, answer))
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        pass!(self, Call::CbCreate(request), Call::CbCreate(request) => self.inner.cb_create(request))
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        pass!(self, Call::CbDestroy(handle), Call::CbDestroy(handle) => self.inner.cb_destroy(handle))
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        pass!(self, Call::CbInfo(handle, device_va), Call::CbInfo(handle, device_va) => self.inner.cb_info(handle, device_va))
    }

    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let submission = Submission {
            chunk: request.execute.first().copied().unwrap_or_default(),
            chunks: request.execute.len(),
            flags: request.flags.0,
        };
        pass!(self, Call::Submit(submission), Call::Submit(submission) => match request.execute {
            [_] => self.inner.submit(&CsRequest { execute: &[submission.chunk], ..*request }),
            _ => self.inner.submit(request),
        })
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        pass!(self, Call::WaitCs(seq, timeout), Call::WaitCs(seq, timeout) => self.inner.wait_cs(seq, timeout))
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        pass!(self, Call::WaitMultiCs, Call::WaitMultiCs => self.inner.wait_multi_cs(seqs, timeout))
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        pass!(self, Call::WaitInterrupt(*request), Call::WaitInterrupt(request) => self.inner.wait_interrupt(&request))
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        pass!(self, Call::MemAlloc(request), Call::MemAlloc(request) => self.inner.mem_alloc(request))
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        pass!(self, Call::MemFree(handle), Call::MemFree(handle) => self.inner.mem_free(handle))
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        pass!(self, Call::MemMapDevice(request), Call::MemMapDevice(request) => self.inner.mem_map_device(request))
    }

    #[expect(unsafe_code, reason = "the caller's promise is handed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        pass!(self, Call::MemMapHost(request), Call::MemMapHost(_) => {
            // SAFETY: the request is the caller's own, and so is the promise.
            unsafe { self.inner.mem_map_host(request) }
        })
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        pass!(self, Call::MemUnmap(address), Call::MemUnmap(address) => self.inner.mem_unmap(address))
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        pass!(self, Call::ExportDmabuf(request), Call::ExportDmabuf(request) => self.inner.export_dmabuf(request))
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        pass!(self, Call::Mmap(request), Call::Mmap(request) => self.inner.mmap(request))
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        pass!(self, Call::RegisterEvents, Call::RegisterEvents => self.inner.register_events(eventfd))
    }

    fn unregister_events(&self) -> Result<()> {
        pass!(self, Call::UnregisterEvents, Call::UnregisterEvents => self.inner.unregister_events())
    }
}
