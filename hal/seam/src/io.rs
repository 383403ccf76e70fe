//! Seam 1, [`KernelIo`]: the operations of the habanalabs driver, with typed arguments.

mod submit;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gaudi_spec::addr::{DeviceVa, HostVa};
use gaudi_sys::RawMapping;
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{InfoAnswer, InfoOp};
use gaudi_uapi::memory::MemFlags;
use gaudi_uapi::{Era, NodeKind};

pub use self::submit::{
    CqCounter, CsAnswer, CsArgument, CsRequest, CsReservation, InterruptId, InterruptWait, InterruptWord,
    MultiWaitAnswer, TimestampRegistration, WaitAnswer, WaitStatus,
};
use crate::error::{DeviceId, Error, Result};
use crate::operation::Operation;

/// The kind of backend behind a [`KernelIo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// The real driver.
    Kernel,
    /// The mock of the driver. Its figures are not figures of hardware.
    Mock,
}

impl Backend {
    /// `kernel` or `mock`: the first word of the spec, and the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Mock => "mock",
        }
    }
}

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

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);
    };
}

handle! {
    /// A device memory allocation (`hl_mem_out.handle`). The driver counts from 1 in each context.
    MemHandle(u64)
}
handle! {
    /// A command buffer (`hl_cb_out.cb_handle`): also the mmap offset of its memory.
    CbHandle(u64)
}
handle! {
    /// A timestamps buffer (`HL_MEM_OP_TS_ALLOC`): also the mmap offset of its memory.
    TsHandle(u64)
}
handle! {
    /// The sequence number of a command submission. The numbers of a context increase; 0 and
    /// `u64::MAX` are never used.
    CsSeq(u64)
}
/// `HL_IOCTL_INFO`: an operation and the argument word that some operations take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest {
    /// `HL_INFO_*`.
    pub op: InfoOp,
    /// The union word of `hl_info_args`: `ctx_id`, `period_ms`, `pll_index`, `eventfd`,
    /// `user_buffer_actual_size`, `sec_attest_nonce`, `array_size` or `fw_sub_opcode`, by the
    /// operation; otherwise 0.
    pub arg: u32,
}

impl InfoRequest {
    /// An operation without an argument.
    pub const fn new(op: InfoOp) -> Self {
        Self { op, arg: 0 }
    }
}

/// `HL_CB_OP_CREATE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbCreate {
    /// Bytes, rounded up to a page by the driver; at most `HL_MAX_CB_SIZE`.
    pub size: u32,
    /// `HL_CB_FLAGS_MAP`: also map it into the device's address space.
    pub map_to_device: bool,
}

/// `HL_CB_OP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbInfo {
    /// The number of submissions that use the buffer now; without `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub usage_count: u32,
    /// The buffer's device address; with `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub device_va: Option<DeviceVa>,
}

/// `HL_MEM_OP_ALLOC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAlloc {
    /// Bytes; the driver rounds up to its page.
    pub size: u64,
    /// Bytes of a page; 0 is the default (`device_mem_alloc_default_page_size`).
    pub page_size: u64,
    /// `HL_MEM_CONTIGUOUS`, `HL_MEM_SHARED`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapDevice {
    /// The allocation.
    pub handle: MemHandle,
    /// The preferred device address. `HL_MEM_FORCE_HINT` in `flags` requires it.
    pub hint: Option<DeviceVa>,
    /// `HL_MEM_*`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of host memory (`HL_MEM_USERPTR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapHost {
    /// The first byte; any alignment.
    pub address: HostVa,
    /// Bytes; any size above 0.
    pub size: u64,
    /// The preferred device address. `HL_MEM_FORCE_HINT` in `flags` requires it.
    pub hint: Option<DeviceVa>,
    /// `HL_MEM_*`; `HL_MEM_USERPTR` is added.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP_BLOCK`: how to mmap a block of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockMapping {
    /// The mmap offset.
    pub handle: u64,
    /// Bytes.
    pub size: u32,
}

/// `HL_MEM_OP_EXPORT_DMABUF_FD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportRequest {
    /// The start of the mapping, as MAP returned it (Gaudi: a physical address).
    pub address: DeviceVa,
    /// Bytes; a multiple of 4096.
    pub size: u64,
    /// Bytes from the start of the mapping; a multiple of 4096.
    pub offset: u64,
    /// `O_CLOEXEC`, `O_RDWR`, …
    pub flags: u32,
}

/// `HL_MEM_OP_REG_DMABUF_FD` of the Gaudi3 header.
#[derive(Debug, Clone, Copy)]
pub struct RegisterDmabuf<'a> {
    /// The dma-buf.
    pub dmabuf: BorrowedFd<'a>,
    /// Its size in bytes.
    pub len: u64,
}

/// `HL_IOCTL_DEBUG`.
#[derive(Debug)]
pub struct DebugRequest<'a> {
    /// `HL_DEBUG_OP_*`.
    pub op: DebugOp,
    /// Register index in the component.
    pub reg_idx: u32,
    /// Whether to enable the component.
    pub enable: bool,
    /// The operation's input struct.
    pub input: &'a [u8],
    /// The operation's output struct.
    pub output: &'a mut [u8],
}

/// `HL_IOCTL_NIC` of the Gaudi3 header.
#[derive(Debug)]
pub struct NicRequest<'a> {
    /// `HL_NIC_OP_*`.
    pub op: u32,
    /// The operation's input struct.
    pub input: &'a [u8],
    /// The operation's output struct.
    pub output: &'a mut [u8],
}

impl DebugRequest<'_> {
    /// The same request, which borrows from this one.
    pub fn again(&mut self) -> DebugRequest<'_> {
        DebugRequest {
            output: &mut *self.output,
            ..*self
        }
    }
}

impl NicRequest<'_> {
    /// The same request, which borrows from this one.
    pub fn again(&mut self) -> NicRequest<'_> {
        NicRequest {
            output: &mut *self.output,
            ..*self
        }
    }
}

/// mmap(2) of a command buffer, a timestamps buffer or a block of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmapRequest {
    /// The handle, which is the offset.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
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
