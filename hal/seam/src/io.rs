//! [`KernelIo`]: the operations of the habanalabs driver, typed.

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

/// What answers behind a [`KernelIo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Backend {
    /// The real driver.
    Kernel,
    /// The driver as a model: no figure of it is a figure of hardware.
    Mock,
}

impl Backend {
    /// `kernel` or `mock`, as the spec's first word and as tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Mock => "mock",
        }
    }
}

/// What is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Compute or control.
    pub kind: NodeKind,
    /// Backend and index.
    pub device: DeviceId,
    /// The ioctl numbers in use; the mock answers as the newest.
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
    /// The sequence number of a command submission. Numbers of a context increase; 0 and `u64::MAX` are none.
    CsSeq(u64)
}
/// `HL_IOCTL_INFO`: an operation and the one argument word that some take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest {
    /// `HL_INFO_*`.
    pub op: InfoOp,
    /// `hl_info_args`' union word: `ctx_id`, `period_ms`, `pll_index`, `eventfd`, `user_buffer_actual_size`, `sec_attest_nonce`,
    /// `array_size` or `fw_sub_opcode`, as the operation asks; else 0.
    pub arg: u32,
}

impl InfoRequest {
    /// An operation that takes no argument.
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
    /// How many submissions use the buffer now; asked for without `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub usage_count: u32,
    /// Where the device sees the buffer; asked for with `HL_CB_FLAGS_GET_DEVICE_VA`.
    pub device_va: Option<DeviceVa>,
}

/// `HL_MEM_OP_ALLOC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAlloc {
    /// Bytes; the driver rounds up to its page.
    pub size: u64,
    /// 0 takes the default (`device_mem_alloc_default_page_size`).
    pub page_size: u64,
    /// `HL_MEM_CONTIGUOUS`, `HL_MEM_SHARED`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapDevice {
    /// What to map.
    pub handle: MemHandle,
    /// Where, if possible; `HL_MEM_FORCE_HINT` in `flags` insists.
    pub hint: Option<DeviceVa>,
    /// `HL_MEM_*`.
    pub flags: MemFlags,
}

/// `HL_MEM_OP_MAP` of host memory (`HL_MEM_USERPTR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapHost {
    /// First byte; any alignment.
    pub address: HostVa,
    /// Bytes; any size above 0.
    pub size: u64,
    /// Where, if possible; `HL_MEM_FORCE_HINT` in `flags` insists.
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
    /// The address that MAP returned: its start, not one inside (Gaudi: a physical address).
    pub address: DeviceVa,
    /// Bytes; a multiple of 4096.
    pub size: u64,
    /// From the start of the mapping; a multiple of 4096.
    pub offset: u64,
    /// `O_CLOEXEC`, `O_RDWR`, …
    pub flags: u32,
}

/// `HL_MEM_OP_REG_DMABUF_FD` of the Gaudi3 header.
#[derive(Debug, Clone, Copy)]
pub struct RegisterDmabuf<'a> {
    /// What to map into the device's address space.
    pub dmabuf: BorrowedFd<'a>,
    /// All its bytes.
    pub len: u64,
}

/// `HL_IOCTL_DEBUG`.
#[derive(Debug)]
pub struct DebugRequest<'a> {
    /// `HL_DEBUG_OP_*`.
    pub op: DebugOp,
    /// Register index in the component.
    pub reg_idx: u32,
    /// On or off.
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

/// What a process may ask of the habanalabs driver.
///
/// All methods take `&self`; an implementation is shared as `Arc<dyn KernelIo>`, and a layer owns the one below it. Dropping the last
/// `Arc` closes the node; the driver releases whatever the context still holds, and keeps the device busy while an export lives.
///
/// A backend that does not serve a method keeps its default, which answers [`ErrorKind::Unsupported`](crate::ErrorKind) by name. On a
/// control node everything but [`info`](Self::info) is refused.
pub trait KernelIo: Send + Sync + 'static {
    /// What is open.
    fn node(&self) -> &Node;

    /// Information. `answer` is zeroed, then filled as far as the driver knows its struct: an older driver fills less, a newer one is
    /// cut. Returns the argument word as the driver left it.
    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        let _ = (request, answer);
        Err(self.not_served("HL_IOCTL_INFO"))
    }

    /// Makes a command buffer. Map its memory with [`mmap`](Self::mmap), offset [`CbHandle`].
    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        let _ = request;
        Err(self.not_served("HL_CB_OP_CREATE"))
    }

    /// Destroys a command buffer; its memory lives on while it is mapped or in use.
    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        let _ = handle;
        Err(self.not_served("HL_CB_OP_DESTROY"))
    }

    /// Usage count of a command buffer, or, with `device_va`, where the device sees it.
    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        let _ = (handle, device_va);
        Err(self.not_served("HL_CB_OP_INFO"))
    }

    /// Submits work. Returns once it is queued; `WouldBlock` where the driver has no room.
    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_CS"))
    }

    /// Waits for one submission. Zero polls. `Hung` where the driver gave it up, `DeviceLost` where it was aborted by a reset.
    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        let _ = (seq, timeout);
        Err(self.not_served("HL_IOCTL_WAIT_CS"))
    }

    /// Waits until at least one of up to 32 submissions is done.
    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        let _ = (seqs, timeout);
        Err(self.not_served("HL_WAIT_CS_FLAGS_MULTI_CS"))
    }

    /// Waits for a user interrupt.
    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        let _ = request;
        Err(self.not_served("HL_WAIT_CS_FLAGS_INTERRUPT"))
    }

    /// Has the driver write a time (nanoseconds of `CLOCK_MONOTONIC`) into a timestamps buffer once a counter has reached a value: at
    /// once where it has. Does not wait. A slot that is registered already is registered anew.
    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT"))
    }

    /// Allocates device memory, not yet mapped.
    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_ALLOC"))
    }

    /// Frees device memory. `InvalidInput` (`EINVAL`) while it is mapped.
    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        let _ = handle;
        Err(self.not_served("HL_MEM_OP_FREE"))
    }

    /// Maps device memory into the device's address space.
    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_MAP"))
    }

    /// Pins host memory and maps it into the device's address space. The returned address points at the first byte.
    ///
    /// # Safety
    /// From this call until [`mem_unmap`](Self::mem_unmap) of the returned address has returned, or the node is closed:
    /// - the range stays mapped in this process, readable and writable (a backend in this process reads and writes it directly);
    /// - no Rust reference to it is made or used while work that touches it may run: the device writes to it at any time.
    ///
    /// Other threads may access the range by atomics meanwhile, as [`RawMapping`]'s safe operations do:
    /// a backend in this process copies by relaxed atomics.
    #[expect(
        unsafe_code,
        reason = "the one operation whose promise outlives the call: a device writes to the range"
    )]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_MAP (HL_MEM_USERPTR)"))
    }

    /// Unmaps device or host memory. `InvalidInput` (`EINVAL`) while it is exported.
    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        let _ = address;
        Err(self.not_served("HL_MEM_OP_UNMAP"))
    }

    /// Makes a timestamps buffer of so many elements.
    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        let _ = elements;
        Err(self.not_served("HL_MEM_OP_TS_ALLOC"))
    }

    /// Asks how to mmap a block of registers: the way to user-mode rings and sync objects.
    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        let _ = address;
        Err(self.not_served("HL_MEM_OP_MAP_BLOCK"))
    }

    /// Exports mapped device memory as a dma-buf. While it lives, the mapping cannot go and the device stays open.
    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_EXPORT_DMABUF_FD"))
    }

    /// Maps a dma-buf, of whatever exporter, into the device's address space; [`mem_unmap`](Self::mem_unmap) undoes it. Drivers of the
    /// Gaudi3 header have it, mainline has not.
    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        let _ = request;
        Err(self.not_served("HL_MEM_OP_REG_DMABUF_FD"))
    }

    /// Debug and profiling components.
    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_DEBUG"))
    }

    /// The chip's own NIC (Gaudi3 header).
    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        let _ = request;
        Err(self.not_served("HL_IOCTL_NIC"))
    }

    /// Maps a command buffer, timestamps buffer or block.
    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        let _ = request;
        Err(self.not_served("mmap"))
    }

    /// Has device events counted into an eventfd (`HL_INFO_REGISTER_EVENTFD`); read which with `HL_INFO_GET_EVENTS`.
    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        let _ = eventfd;
        Err(self.not_served("HL_INFO_REGISTER_EVENTFD"))
    }

    /// Ends what [`register_events`](Self::register_events) began.
    fn unregister_events(&self) -> Result<()> {
        Err(self.not_served("HL_INFO_UNREGISTER_EVENTFD"))
    }

    /// The answer of a method that this backend does not serve.
    fn not_served(&self, operation: &'static str) -> Error {
        let node = self.node();
        Error::unsupported(
            operation,
            format!("the {} backend does not serve it", node.device.backend.name()),
        )
        .on(node.device)
    }
}

/// Typed information over any [`KernelIo`].
pub trait KernelIoExt: KernelIo {
    /// Asks for the struct of one INFO operation.
    fn query<T: InfoAnswer>(&self) -> Result<T> {
        self.query_with(0)
    }

    /// Asks for the struct of one INFO operation that takes an argument word.
    fn query_with<T: InfoAnswer>(&self, arg: u32) -> Result<T> {
        let mut answer = T::new_zeroed();
        self.info(InfoRequest { op: T::OP, arg }, answer.as_mut_bytes())?;
        Ok(answer)
    }
}

impl<K: KernelIo + ?Sized> KernelIoExt for K {}

/// How a backend is shared.
pub type SharedIo = Arc<dyn KernelIo>;
