//! Seam 1, [`KernelIo`]: the operations of the habanalabs driver, with typed arguments.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_spec::addr::DeviceVa;
use gaudi_sys::RawMapping;
use gaudi_uapi::info::InfoAnswer;
use gaudi_uapi::{Era, NodeKind};

use crate::device_id::DeviceId;
use crate::error::{Error, Result};
use crate::operation::Operation;
use crate::request::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, ExportRequest,
    InfoRequest, InterruptWait, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, MultiWaitAnswer,
    NicRequest, RegisterDmabuf, TimestampRegistration, TsHandle, WaitAnswer,
};

/// An open node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Compute or control.
    pub kind: NodeKind,
    /// Backend and index.
    pub device: DeviceId,
    /// The ioctl numbers in use. The mock has the newest.
    pub era: Era,
    /// The node's path, or the mock's spec.
    pub name: String,
}

/// The operations of the habanalabs driver on an open node.
///
/// All methods take `&self`; a backend is shared as `Arc<dyn KernelIo>`, and a layer owns the node
/// below it. Dropping the last `Arc` closes the node. The driver then releases the context, and
/// keeps the device busy while an export lives.
///
/// # Errors
/// Every method returns
/// - `Unsupported` if the backend does not implement it, and for everything but
///   [`info`](Self::info) on a control node;
/// - `DeviceLost` if the device is in reset, failed or was removed;
/// - `Forked` in a fork child;
/// - `InvalidInput` with `EINVAL` for arguments that the driver rejects: the
///   message names the condition.
pub trait KernelIo: Send + Sync + 'static {
    /// The open node.
    fn node(&self) -> &Node;

    /// Queries information. `answer` is zeroed, then filled as far as the driver knows its struct:
    /// an older driver fills less, and a newer driver's struct is cut. Returns the argument word as
    /// the driver left it.
    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        not_served(self.node(), Operation::Info, (request, answer))
    }

    /// Creates a command buffer. Map its memory with [`mmap`](Self::mmap) at offset [`CbHandle`].
    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        not_served(self.node(), Operation::CbCreate, request)
    }

    /// Destroys a command buffer. Its memory lives until it is neither mapped nor in use.
    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        not_served(self.node(), Operation::CbDestroy, handle)
    }

    /// Returns the usage count of a command buffer, or its device address with `device_va`.
    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        not_served(self.node(), Operation::CbInfo, (handle, device_va))
    }

    /// Submits work, and returns once it is queued. `WouldBlock` if the driver's queue is full.
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        not_served(self.node(), Operation::Submit, request)
    }

    /// Waits for one submission. A timeout of zero polls. `Hung` if the submission ran into its own
    /// timeout, `DeviceLost` if a reset aborted it.
    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        not_served(self.node(), Operation::WaitCs, (seq, timeout))
    }

    /// Waits until at least one of up to 32 submissions has completed.
    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        not_served(self.node(), Operation::WaitMultiCs, (seqs, timeout))
    }

    /// Waits for a user interrupt.
    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        not_served(self.node(), Operation::WaitInterrupt, request)
    }

    /// Makes the driver write a time (nanoseconds of `CLOCK_MONOTONIC`) into a timestamps buffer
    /// when a counter reaches a value, or at once if it has. Does not wait. Replaces an earlier
    /// registration of the slot.
    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        not_served(self.node(), Operation::RegisterTimestamp, request)
    }

    /// Allocates device memory. It is not mapped.
    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        not_served(self.node(), Operation::MemAlloc, request)
    }

    /// Frees device memory. `InUse` (`EINVAL`) while it is mapped.
    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        not_served(self.node(), Operation::MemFree, handle)
    }

    /// Maps device memory into the device's address space.
    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        not_served(self.node(), Operation::MemMapDevice, request)
    }

    /// Pins host memory and maps it into the device's address space. Returns the device address of
    /// the first byte.
    ///
    /// # Safety
    /// From this call until [`mem_unmap`](Self::mem_unmap) of the returned address has returned, or
    /// the node is closed:
    /// - the range stays mapped in this process, readable and writable: a backend in this process
    ///   accesses it directly;
    /// - no Rust reference to it is made or used while work that accesses it may run: the device
    ///   writes to it at any time.
    ///
    /// Other threads may access the range by atomics meanwhile, as [`RawMapping`]'s safe operations
    /// do: a backend in this process copies by relaxed atomics.
    #[expect(
        unsafe_code,
        reason = "the one operation whose promise outlives the call: a device writes to the range"
    )]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        not_served(self.node(), Operation::MemMapHost, request)
    }

    /// Unmaps device or host memory. `InUse` (`EINVAL`) while it is exported.
    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        not_served(self.node(), Operation::MemUnmap, address)
    }

    /// Creates a timestamps buffer with this number of elements.
    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        not_served(self.node(), Operation::TsAlloc, elements)
    }

    /// Returns how to mmap a block of registers, for user-mode rings and sync objects.
    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        not_served(self.node(), Operation::MapBlock, address)
    }

    /// Exports mapped device memory as a dma-buf. While the dma-buf lives, the memory cannot be
    /// unmapped and the device stays open.
    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        not_served(self.node(), Operation::ExportDmabuf, request)
    }

    /// Maps a dma-buf of any exporter into the device's address space;
    /// [`mem_unmap`](Self::mem_unmap) unmaps it. Drivers of the Gaudi3 header have this operation,
    /// mainline does not.
    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        not_served(self.node(), Operation::RegisterDmabuf, request)
    }

    /// Configures debug and profiling components.
    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        not_served(self.node(), Operation::Debug, request)
    }

    /// Operates the chip's own NIC (Gaudi3 header).
    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        not_served(self.node(), Operation::Nic, request)
    }

    /// Maps a command buffer, a timestamps buffer or a block into this process.
    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        not_served(self.node(), Operation::Mmap, request)
    }

    /// Signals an eventfd at each device event (`HL_INFO_REGISTER_EVENTFD`). `HL_INFO_GET_EVENTS`
    /// returns which events occurred.
    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        not_served(self.node(), Operation::RegisterEvents, eventfd)
    }

    /// Ends [`register_events`](Self::register_events).
    fn unregister_events(&self) -> Result<()> {
        not_served(self.node(), Operation::UnregisterEvents, ())
    }
}

/// The error of a method that a backend does not implement.
fn not_served<T>(node: &Node, operation: Operation, _request: impl Sized) -> Result<T> {
    let why = format!("the {} backend does not serve it", node.device.backend.name());
    Err(Error::unsupported(operation.kernel_name(), why).on(node.device))
}

/// Typed queries for every [`KernelIo`].
pub trait KernelIoExt: KernelIo {
    /// Queries the struct of an INFO operation.
    ///
    /// # Errors
    /// As [`KernelIo::info`].
    fn query<T: InfoAnswer>(&self) -> Result<T> {
        self.query_with(0)
    }

    /// Queries the struct of an INFO operation with an argument word.
    ///
    /// # Errors
    /// As [`KernelIo::info`].
    fn query_with<T: InfoAnswer>(&self, arg: u32) -> Result<T> {
        let mut answer = T::new_zeroed();
        self.info(InfoRequest { op: T::OP, arg }, answer.as_mut_bytes())?;
        Ok(answer)
    }
}

impl<K: KernelIo + ?Sized> KernelIoExt for K {}

/// A shared backend.
pub type SharedIo = Arc<dyn KernelIo>;
