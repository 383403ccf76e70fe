//! The fault layer: a [`Plan`] carried out on every operation that passes.

mod plan;
mod registry;
mod state;
mod text;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, DeviceVa,
    ExportRequest, InfoRequest, InterruptWait, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle,
    MmapRequest, MultiWaitAnswer, NicRequest, Node, RawMapping, RegisterDmabuf, Result,
    TimestampRegistration, TsHandle, WaitAnswer, WaitStatus,
};
use gaudi_uapi::info::{DeviceStatus, InfoOp};
use gaudi_uapi::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN;
use zerocopy::IntoBytes as _;

use crate::operation::Operation;
use crate::time::Time;
use state::{Pass, Shared, Waited};

pub use plan::{Plan, PlanError, Rule, Schedule, Target, Verdict};
pub(crate) use registry::record as record_handles;
pub use registry::{handles, tally};
pub use state::{ArmedFault, FaultEvent, FaultHandle, FaultLog, RuleCount};
pub(crate) use text::shortened;
pub use text::{PlanSource, PlanText, read_plan};

/// Operations fail, wait, vanish or end the device as a plan says; everything else passes untouched.
///
/// - An operation that is refused is not performed: the layer below never sees it.
/// - The error has the kind and errno that the driver would give; its cause names the rule.
/// - A lost submission is performed. Waits for it answer `Busy` when their time is over; once the submission's own timeout has passed
///   (30 s, or `timeout_s` with `HL_CS_FLAGS_CUSTOM_TIMEOUT`), the wait in progress is `Hung` (`ETIMEDOUT`) and the device is in reset,
///   as the driver's watchdog does it; with `HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT` it stays busy for ever. Waits for interrupts do not know
///   which submission they are for and are not changed.
/// - In reset every operation answers `DeviceLost` (`EBUSY`) until the node is opened again; information that the driver gives in reset
///   is still given, and the device's status says that it is in reset.
/// - With no rule armed a submission or a wait costs one relaxed load more, where the layer knows what it stands on by its type (`K`): no
///   call through a table is added then. Over `dyn KernelIo`, which is any backend or another layer, it costs that call too.
#[derive(Debug)]
pub struct FaultLayer<K: KernelIo + ?Sized = dyn KernelIo> {
    inner: Inner<K>,
    shared: Arc<Shared>,
}

/// What the layer stands on; printed by its node.
struct Inner<K: KernelIo + ?Sized>(Arc<K>);

impl<K: KernelIo + ?Sized> std::fmt::Debug for Inner<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.node().fmt(f)
    }
}

impl<K: KernelIo + ?Sized> FaultLayer<K> {
    /// A layer over `inner` with the plan's rules armed.
    pub fn new(inner: Arc<K>, plan: &Plan, time: Arc<dyn Time>) -> Self {
        let shared = Arc::new(Shared::new(inner.node().device, plan, time));
        Self {
            inner: Inner(inner),
            shared,
        }
    }

    /// Arms and disarms rules while the layer is in use, and tells what they did.
    pub fn handle(&self) -> FaultHandle {
        FaultHandle::new(Arc::clone(&self.shared))
    }

    /// The layer below, if the rules let the operation pass.
    fn pass(&self, operation: Operation) -> Result<&K> {
        self.shared.before(operation)?;
        Ok(&*self.inner.0)
    }

    #[cold]
    #[inline(never)]
    fn submit_by_rules(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let pass = self.shared.before(Operation::Submit)?;
        let answer = self.inner.0.submit(request)?;
        if let Pass::Lose(mark) = pass {
            self.shared.lose(mark, request, answer.seq);
        }
        Ok(answer)
    }

    #[cold]
    #[inline(never)]
    fn wait_by_rules(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        let io = self.pass(Operation::WaitCs)?;
        match self.shared.wait(Operation::WaitCs, &[seq], timeout)? {
            Waited::NotLost => io.wait_cs(seq, timeout),
            Waited::Busy => Ok(WaitAnswer {
                status: WaitStatus::Busy,
                gone: false,
                timestamp_ns: None,
            }),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_multi_by_rules(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        let io = self.pass(Operation::WaitMultiCs)?;
        let Some((seen, places)) = self.shared.without_lost(seqs) else {
            return io.wait_multi_cs(seqs, timeout);
        };
        // The driver refuses longer lists, before it looks at them.
        if seqs.len() > HL_WAIT_MULTI_CS_LIST_MAX_LEN {
            return io.wait_multi_cs(seqs, timeout);
        }
        if seen.is_empty() {
            // Only a reset ends this wait early.
            self.shared.wait(Operation::WaitMultiCs, seqs, timeout)?;
            return Ok(MultiWaitAnswer {
                status: WaitStatus::Busy,
                completion_map: 0,
                timestamp_ns: None,
            });
        }
        let answer = io.wait_multi_cs(&seen, timeout)?;
        let bit = |(from, to): (usize, &u32)| ((answer.completion_map >> from) & 1) << to;
        Ok(MultiWaitAnswer {
            completion_map: places.iter().enumerate().map(bit).sum(),
            ..answer
        })
    }

    #[cold]
    #[inline(never)]
    fn wait_interrupt_by_rules(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        self.pass(Operation::WaitInterrupt)?.wait_interrupt(request)
    }
}

/// Information that needs a device in operation (habanalabs_ioctl.c:1090, `_hl_info_ioctl`).
fn needs_operation(op: InfoOp) -> bool {
    matches!(
        op,
        InfoOp::HW_IDLE
            | InfoOp::DEVICE_UTILIZATION
            | InfoOp::CLK_RATE
            | InfoOp::TIME_SYNC
            | InfoOp::PCI_COUNTERS
            | InfoOp::TOTAL_ENERGY
            | InfoOp::PLL_FREQUENCY
            | InfoOp::POWER
            | InfoOp::DRAM_REPLACED_ROWS
            | InfoOp::DRAM_PENDING_ROWS
            | InfoOp::SECURED_ATTESTATION
            | InfoOp::REGISTER_EVENTFD
            | InfoOp::ENGINE_STATUS
            | InfoOp::FW_GENERIC_REQ
            | InfoOp::DEV_SIGNED
    )
}

impl<K: KernelIo + ?Sized> KernelIo for FaultLayer<K> {
    fn node(&self) -> &Node {
        self.inner.0.node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        let pass = self.shared.before(Operation::Info)?;
        if pass == Pass::InReset && needs_operation(request.op) {
            return Err(self.shared.in_reset(Operation::Info));
        }
        let arg = self.inner.0.info(request, answer)?;
        if pass == Pass::InReset && request.op == InfoOp::DEVICE_STATUS {
            let status = DeviceStatus::IN_RESET;
            for (to, from) in answer.iter_mut().zip(status.as_bytes()) {
                *to = *from;
            }
        }
        Ok(arg)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        self.pass(Operation::CbCreate)?.cb_create(request)
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.pass(Operation::CbDestroy)?.cb_destroy(handle)
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.pass(Operation::CbInfo)?.cb_info(handle, device_va)
    }

    // Here and in the waits the idle layer is one load and a jump: what rules need stands in functions of its own, so that nothing is
    // saved, built or copied for it.
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        if self.shared.is_active() {
            return self.submit_by_rules(request);
        }
        self.inner.0.submit(request)
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        if self.shared.is_active() {
            return self.wait_by_rules(seq, timeout);
        }
        self.inner.0.wait_cs(seq, timeout)
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        if self.shared.is_active() {
            return self.wait_multi_by_rules(seqs, timeout);
        }
        self.inner.0.wait_multi_cs(seqs, timeout)
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        if self.shared.is_active() {
            return self.wait_interrupt_by_rules(request);
        }
        self.inner.0.wait_interrupt(request)
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        self.pass(Operation::RegisterTimestamp)?
            .register_timestamp(request)
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        self.pass(Operation::MemAlloc)?.mem_alloc(request)
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.pass(Operation::MemFree)?.mem_free(handle)
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        self.pass(Operation::MemMapDevice)?.mem_map_device(request)
    }

    #[expect(unsafe_code, reason = "the caller's promise is handed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let io = self.pass(Operation::MemMapHost)?;
        // SAFETY: the promise is the same, and it was made by the caller. An unmap that a rule refuses has not returned `Ok`, so the
        // caller's promise still holds then.
        unsafe { io.mem_map_host(request) }
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.pass(Operation::MemUnmap)?.mem_unmap(address)
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        self.pass(Operation::TsAlloc)?.ts_alloc(elements)
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        self.pass(Operation::MapBlock)?.map_block(address)
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.pass(Operation::ExportDmabuf)?.export_dmabuf(request)
    }

    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.pass(Operation::RegisterDmabuf)?.register_dmabuf(request)
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        self.pass(Operation::Debug)?.debug(request)
    }

    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        self.pass(Operation::Nic)?.nic(request)
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        self.pass(Operation::Mmap)?.mmap(request)
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.pass(Operation::RegisterEvents)?.register_events(eventfd)
    }

    fn unregister_events(&self) -> Result<()> {
        self.pass(Operation::UnregisterEvents)?.unregister_events()
    }
}
