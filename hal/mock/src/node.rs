//! An open node of a mock: seam 1.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, DeviceVa, Error,
    ErrorKind, ExportRequest, InfoRequest, InterruptWait, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle,
    MmapRequest, MultiWaitAnswer, Node, NodeKind, Operation, RawMapping, RegisterDmabuf, Result,
    TimestampRegistration, TsHandle, WaitAnswer, rules,
};
use gaudi_sys::fork::OwnerProcess;

use crate::open::Device;

pub(crate) struct MockNode {
    device: Arc<Device>,
    node: Node,
    owner: OwnerProcess,
}

impl MockNode {
    pub(crate) fn new(device: Arc<Device>, node: Node) -> Self {
        Self {
            device,
            node,
            owner: OwnerProcess::current(),
        }
    }

    fn device(&self, operation: Operation) -> Result<&Device> {
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, operation.kernel_name())
                .on(self.device.id)
                .because("the device was opened by the parent of this process")
                .helped_by("open it again in the child"));
        }
        Ok(&self.device)
    }

    /// Events are asked for through INFO, which a control node has too and refuses in its own way.
    fn of_events(&self, operation: Operation) -> Result<&Device> {
        let device = self.device(operation)?;
        match self.node.kind {
            NodeKind::Control => Err(device.not_on_control(operation)),
            _ => Ok(device),
        }
    }

    fn compute(&self, operation: Operation) -> Result<&Device> {
        let device = self.device(operation)?;
        if self.node.kind == NodeKind::Control {
            // habanalabs_ioctl.c:1312
            let rule = match operation {
                Operation::Mmap => &rules::mmap::CONTROL_NODE,
                _ => &rules::ioctl::UNKNOWN,
            };
            return Err(device.refuse(operation, rule));
        }
        Ok(device)
    }
}

impl Drop for MockNode {
    fn drop(&mut self) {
        if self.node.kind == NodeKind::Compute && !self.owner.is_foreign() {
            self.device.close_compute();
        }
    }
}

impl KernelIo for MockNode {
    fn node(&self) -> &Node {
        &self.node
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        self.device(Operation::Info)?
            .info(self.node.kind, request, answer)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        self.compute(Operation::CbCreate)?.cb_create(request)
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.compute(Operation::CbDestroy)?.cb_destroy(handle)
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.compute(Operation::CbInfo)?.cb_info(handle, device_va)
    }

    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.compute(Operation::Submit)?.submit(request)
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        self.compute(Operation::WaitCs)?.wait_cs(seq, timeout)
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        self.compute(Operation::WaitMultiCs)?.wait_multi_cs(seqs, timeout)
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        self.compute(Operation::WaitInterrupt)?.wait_interrupt(request)
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        self.compute(Operation::MemAlloc)?.mem_alloc(request)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.compute(Operation::MemFree)?.mem_free(handle)
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        self.compute(Operation::MemMapDevice)?.mem_map_device(request)
    }

    #[expect(unsafe_code, reason = "the caller's promise is handed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let device = self.compute(Operation::MemMapHost)?;
        // SAFETY: the promise is the same, and it was made by the caller.
        unsafe { device.mem_map_host(request) }
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.compute(Operation::MemUnmap)?.mem_unmap(address)
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        self.compute(Operation::TsAlloc)?.ts_alloc(elements)
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.compute(Operation::ExportDmabuf)?.export_dmabuf(request)
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        self.compute(Operation::Debug)?.debug(request)
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        self.compute(Operation::MapBlock)?.map_block(address)
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        self.compute(Operation::RegisterTimestamp)?
            .register_timestamp(request)
    }

    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.compute(Operation::RegisterDmabuf)?.register_dmabuf(request)
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        self.compute(Operation::Mmap)?.mmap(request)
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.of_events(Operation::RegisterEvents)?
            .register_events(eventfd)
    }

    fn unregister_events(&self) -> Result<()> {
        self.of_events(Operation::UnregisterEvents)?.unregister_events()
    }
}
