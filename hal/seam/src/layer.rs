//! [`Layer`]: one method around every operation of a node.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;

use crate::error::Result;
use crate::io::{KernelIo, Node};
use crate::operation::{
    CbDestroy, CbQuery, Info, MapBlock, MemFree, MemUnmap, RegisterEvents, Request, TsAlloc,
    UnregisterEvents, WaitCs, WaitMultiCs,
};
use crate::request::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, ExportRequest,
    InfoRequest, InterruptWait, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, MultiWaitAnswer,
    NicRequest, RegisterDmabuf, TimestampRegistration, TsHandle, WaitAnswer,
};

/// A node over another node. [`KernelIo`] is implemented for every layer.
pub trait Layer: Send + Sync + 'static {
    /// The type of the node below. A known type saves a call through a table for each operation.
    type Below: KernelIo + ?Sized;

    /// The node below.
    fn below(&self) -> &Self::Below;

    /// Whether operations go straight to the node below. Asked once for each operation.
    #[inline]
    fn is_idle(&self) -> bool {
        false
    }

    /// Performs an operation. `next` passes it to the node below.
    ///
    /// # Errors
    /// The error of the node below, or the layer's own.
    fn around<R: Request>(
        &self,
        request: &mut R,
        next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer>;
}

impl<L: Layer> KernelIo for L {
    #[inline]
    fn node(&self) -> &Node {
        self.below().node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        if self.is_idle() {
            return self.below().info(request, answer);
        }
        self.around(&mut Info { request, answer }, |info| {
            self.below().info(info.request, info.answer)
        })
    }

    fn cb_create(&self, mut request: CbCreate) -> Result<CbHandle> {
        self.around(&mut request, |request| self.below().cb_create(*request))
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.around(&mut CbDestroy(handle), |_| self.below().cb_destroy(handle))
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        let mut request = CbQuery { handle, device_va };
        self.around(&mut request, |_| self.below().cb_info(handle, device_va))
    }

    #[inline]
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        if self.is_idle() {
            return self.below().submit(request);
        }
        self.around(&mut { request }, |request| self.below().submit(request))
    }

    #[inline]
    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        if self.is_idle() {
            return self.below().wait_cs(seq, timeout);
        }
        let mut request = WaitCs { seq, timeout };
        self.around(&mut request, |_| self.below().wait_cs(seq, timeout))
    }

    #[inline]
    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        if self.is_idle() {
            return self.below().wait_multi_cs(seqs, timeout);
        }
        let mut request = WaitMultiCs { seqs, timeout };
        self.around(&mut request, |_| self.below().wait_multi_cs(seqs, timeout))
    }

    #[inline]
    fn wait_interrupt(&self, mut request: &InterruptWait) -> Result<WaitAnswer> {
        if self.is_idle() {
            return self.below().wait_interrupt(request);
        }
        self.around(&mut request, |request| self.below().wait_interrupt(request))
    }

    fn register_timestamp(&self, mut request: &TimestampRegistration) -> Result<()> {
        self.around(&mut request, |request| self.below().register_timestamp(request))
    }

    fn mem_alloc(&self, mut request: MemAlloc) -> Result<MemHandle> {
        self.around(&mut request, |request| self.below().mem_alloc(*request))
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.around(&mut MemFree(handle), |_| self.below().mem_free(handle))
    }

    fn mem_map_device(&self, mut request: MapDevice) -> Result<DeviceVa> {
        self.around(&mut request, |request| self.below().mem_map_device(*request))
    }

    #[expect(unsafe_code, reason = "the caller's promise is passed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        self.around(&mut { request }, |_| {
            // SAFETY: the request is the caller's own, and its promise is the same. An unmap that a
            // layer rejects has not returned `Ok`, so the promise still holds then.
            unsafe { self.below().mem_map_host(request) }
        })
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.around(&mut MemUnmap(address), |_| self.below().mem_unmap(address))
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        self.around(&mut TsAlloc(elements), |_| self.below().ts_alloc(elements))
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        self.around(&mut MapBlock(address), |_| self.below().map_block(address))
    }

    fn export_dmabuf(&self, mut request: ExportRequest) -> Result<OwnedFd> {
        self.around(&mut request, |request| self.below().export_dmabuf(*request))
    }

    fn register_dmabuf(&self, mut request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.around(&mut request, |request| self.below().register_dmabuf(*request))
    }

    fn debug(&self, mut request: DebugRequest<'_>) -> Result<()> {
        self.around(&mut request, |request| self.below().debug(request.again()))
    }

    fn nic(&self, mut request: NicRequest<'_>) -> Result<()> {
        self.around(&mut request, |request| self.below().nic(request.again()))
    }

    fn mmap(&self, mut request: MmapRequest) -> Result<RawMapping> {
        self.around(&mut request, |request| self.below().mmap(*request))
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        let mut request = RegisterEvents(eventfd);
        self.around(&mut request, |_| self.below().register_events(eventfd))
    }

    fn unregister_events(&self) -> Result<()> {
        self.around(&mut UnregisterEvents, |_| self.below().unregister_events())
    }
}
