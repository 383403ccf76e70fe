//! The arguments and the answers of the operations.

mod submit;

use std::os::fd::BorrowedFd;

use gaudi_spec::addr::{DeviceVa, HostVa};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::MemFlags;

pub use self::submit::{
    CqCounter, CsAnswer, CsArgument, CsRequest, CsReservation, InterruptId, InterruptWait, InterruptWord,
    MultiWaitAnswer, TimestampRegistration, WaitAnswer, WaitStatus,
};

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
