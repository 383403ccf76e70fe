//! The arguments and the answers of the operations, and the table of operations.

mod submit;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use gaudi_spec::Asic;
use gaudi_spec::addr::{DeviceVa, HostVa};
use gaudi_spec::asic::Components;
use gaudi_sys::PAGE;
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::MemFlags;

pub use self::submit::{
    CqCounter, CsAnswer, CsArgument, CsRequest, CsReservation, InterruptId, InterruptWait, InterruptWord,
    MultiWaitAnswer, TimestampRegistration, WaitAnswer, WaitStatus,
};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// A device memory allocation (`hl_mem_out.handle`). The driver counts from 1 in each context.
    MemHandle
    /// A command buffer (`hl_cb_out.cb_handle`): also the mmap offset of its memory.
    CbHandle
    /// A timestamps buffer (`HL_MEM_OP_TS_ALLOC`): also the mmap offset of its memory.
    TsHandle
    /// The sequence number of a command submission. The numbers of a context increase; 0 and
    /// `u64::MAX` are never used.
    CsSeq
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

    /// Whether the driver refuses it while the device is in reset (habanalabs_ioctl.c
    /// `_hl_info_ioctl`).
    pub fn needs_operation(self) -> bool {
        const ANSWERED: [InfoOp; 22] = [
            InfoOp::HW_IP_INFO,
            InfoOp::DEVICE_STATUS,
            InfoOp::RESET_COUNT,
            InfoOp::DRAM_USAGE,
            InfoOp::CS_COUNTERS,
            InfoOp::OPEN_STATS,
            InfoOp::SYNC_MANAGER,
            InfoOp::DEV_MEM_ALLOC_PAGE_SIZES,
            InfoOp::CS_TIMEOUT_EVENT,
            InfoOp::LAST_ERR_OPEN_DEV_TIME,
            InfoOp::HW_EVENTS,
            InfoOp::HW_EVENTS_AGGREGATE,
            InfoOp::CLK_THROTTLE_REASON,
            InfoOp::RAZWI_EVENT,
            InfoOp::HW_ERR_EVENT,
            InfoOp::FW_ERR_EVENT,
            InfoOp::UNDEFINED_OPCODE_EVENT,
            InfoOp::PAGE_FAULT_EVENT,
            InfoOp::USER_MAPPINGS,
            InfoOp::USER_ENGINE_ERR_EVENT,
            InfoOp::GET_EVENTS,
            InfoOp::UNREGISTER_EVENTFD,
        ];
        !ANSWERED.contains(&self.op)
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

impl MapHost {
    /// The end of the last page. `None` if the range has no bytes or wraps round.
    pub fn end(&self) -> Option<u64> {
        let end = self.address.0.checked_add(self.size).filter(|_| self.size > 0);
        end?.checked_next_multiple_of(PAGE)
    }
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

impl DebugRequest<'_> {
    /// The components of the operation's kind. `None` for operations on the whole chip.
    pub fn components<'a>(&self, asic: &'a Asic) -> Option<&'a Components> {
        Some(match self.op {
            DebugOp::STM => &asic.debug.stms,
            DebugOp::ETF => &asic.debug.etfs,
            DebugOp::FUNNEL => &asic.debug.funnels,
            DebugOp::BMON => &asic.debug.bmons,
            DebugOp::SPMU => &asic.debug.spmus,
            _ => return None,
        })
    }
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

/// mmap(2) of a command buffer, a timestamps buffer or a block of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmapRequest {
    /// The handle, which is the offset.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

impl MmapRequest {
    /// Bytes as the driver gets them: whole pages. A length that wraps round becomes 0
    /// (mm/mmap.c), which is the size of no buffer.
    pub fn whole_pages(&self) -> u64 {
        (self.len as u64).checked_next_multiple_of(PAGE).unwrap_or(0)
    }

    /// Whether the range leaves the file's offsets, which have 64 bits (`FOP_UNSIGNED_OFFSET`).
    pub fn leaves_file(&self) -> bool {
        let len = self.whole_pages();
        len > 0 && self.offset > len.wrapping_neg()
    }
}

/// [`KernelIo::info`](crate::KernelIo::info).
#[derive(Debug)]
pub struct Info<'a> {
    /// The operation and its argument word.
    pub request: InfoRequest,
    /// The buffer for the struct that the driver returns.
    pub answer: &'a mut [u8],
}

/// [`KernelIo::cb_destroy`](crate::KernelIo::cb_destroy).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbDestroy(pub CbHandle);

/// [`KernelIo::cb_info`](crate::KernelIo::cb_info).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CbQuery {
    /// The command buffer.
    pub handle: CbHandle,
    /// `HL_CB_FLAGS_GET_DEVICE_VA`: ask for the device address instead of the usage count.
    pub device_va: bool,
}

/// [`KernelIo::wait_cs`](crate::KernelIo::wait_cs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitCs {
    /// The submission.
    pub seq: CsSeq,
    /// The longest wait. Zero polls.
    pub timeout: Duration,
}

/// [`KernelIo::wait_multi_cs`](crate::KernelIo::wait_multi_cs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitMultiCs<'a> {
    /// Up to 32 submissions.
    pub seqs: &'a [CsSeq],
    /// The longest wait. Zero polls.
    pub timeout: Duration,
}

/// [`KernelIo::mem_free`](crate::KernelIo::mem_free).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemFree(pub MemHandle);

/// [`KernelIo::mem_unmap`](crate::KernelIo::mem_unmap).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemUnmap(pub DeviceVa);

/// [`KernelIo::ts_alloc`](crate::KernelIo::ts_alloc), with the number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TsAlloc(pub u32);

/// [`KernelIo::map_block`](crate::KernelIo::map_block), with the block's address on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapBlock(pub u64);

/// [`KernelIo::register_events`](crate::KernelIo::register_events), with the eventfd.
#[derive(Debug, Clone, Copy)]
pub struct RegisterEvents<'a>(pub BorrowedFd<'a>);

/// [`KernelIo::unregister_events`](crate::KernelIo::unregister_events).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnregisterEvents;

/// The table of operations. `$each` is a macro that takes its rows; the types are those of this
/// crate's root:
///
/// ```text
/// docs, Operation "the kernel's name" [fn] method(arguments) -> answer, request = constructor
///     [, how a layer passes the request on] [, output FIELD];
/// ```
#[macro_export]
macro_rules! operations {
    ($each:ident) => { $each! {
        /// Queries information. `answer` is zeroed, then filled as far as the driver knows its
        /// struct: an older driver fills less, and a newer driver's struct is cut. Returns the
        /// argument word as the driver left it.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): the driver lacks the operation, or `answer` is empty.
        /// - `DeviceLost` (`EBUSY`): the device is in reset, and the operation reads the chip.
        /// - `Unsupported` (`EOPNOTSUPP`): events on a control node.
        /// - `OutOfMemory` (`ENOMEM`): `answer` is too small for a list.
        Info "HL_IOCTL_INFO" [fn] info(request: InfoRequest, answer: &mut [u8]) -> u32,
            Info<'a> = Info { request, answer },
            |below, info| below.info(info.request, info.answer), output answer;
        /// Creates a command buffer. Map its memory with [`mmap`](crate::KernelIo::mmap) at offset
        /// [`CbHandle`].
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): the size is above `HL_MAX_CB_SIZE`.
        /// - `OutOfMemory` (`ENOMEM`): no memory, or no device address for a mapped buffer.
        CbCreate "HL_CB_OP_CREATE" [fn] cb_create(request: CbCreate) -> CbHandle, CbCreate = request;
        /// Destroys a command buffer. Its memory lives until it is neither mapped nor in use.
        ///
        /// # Errors
        /// `InvalidInput` (`EINVAL`): no such command buffer, or it is destroyed.
        CbDestroy "HL_CB_OP_DESTROY" [fn] cb_destroy(handle: CbHandle) -> (), CbDestroy = CbDestroy(handle);
        /// Returns the usage count of a command buffer, or its device address with `device_va`.
        ///
        /// # Errors
        /// `InvalidInput` (`EINVAL`): no such command buffer, or it has no device address.
        CbInfo "HL_CB_OP_INFO" [fn] cb_info(handle: CbHandle, device_va: bool) -> CbInfo,
            CbQuery = CbQuery { handle, device_va };
        /// Submits work, and returns once it is queued.
        ///
        /// # Errors
        /// - `WouldBlock` (`EAGAIN`): the queue is full, or too many submissions are in flight.
        /// - `InvalidInput` (`EINVAL`): a queue, a number of chunks, a signal or a flag is invalid.
        /// - `BadAddress` (`EFAULT`): no command buffer can lie at the address.
        /// - `Unsupported` (`EPERM`): the chip lacks this type of submission.
        /// - `Io` (`ENOEXEC`): the restore phase failed.
        Submit "HL_IOCTL_CS" [fn] submit(request: &CsRequest<'_>) -> CsAnswer, &'a CsRequest<'a> = request,
            |below, cs| below.submit(cs);
        /// Waits for one submission. A timeout of zero polls.
        ///
        /// # Errors
        /// - `Hung` (`ETIMEDOUT`): the submission ran into its own timeout.
        /// - `DeviceLost` (`EIO`): a reset aborted the submission.
        /// - `InvalidInput` (`EINVAL`): `seq` is above the last submission.
        WaitCs "HL_IOCTL_WAIT_CS" [fn] wait_cs(seq: CsSeq, timeout: Duration) -> WaitAnswer,
            WaitCs = WaitCs { seq, timeout };
        /// Waits until at least one of up to 32 submissions has completed.
        ///
        /// # Errors
        /// - Those of [`wait_cs`](crate::KernelIo::wait_cs), for any of the submissions.
        /// - `InvalidInput` (`EINVAL`): more than 32 submissions.
        /// - `Unsupported` (`EPERM`): the chip cannot wait for several submissions.
        WaitMultiCs "HL_WAIT_CS_FLAGS_MULTI_CS" [fn] wait_multi_cs(seqs: &[CsSeq], timeout: Duration)
            -> MultiWaitAnswer, WaitMultiCs<'a> = WaitMultiCs { seqs, timeout };
        /// Waits for a user interrupt.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): no such interrupt, buffer of counters or counter.
        /// - `BadAddress` (`EFAULT`): the counter's address is not readable.
        /// - `DeviceLost` (`EIO`): a reset aborted the wait.
        WaitInterrupt "HL_WAIT_CS_FLAGS_INTERRUPT" [fn] wait_interrupt(request: &InterruptWait) -> WaitAnswer,
            &'a InterruptWait = request;
        /// Makes the driver write a time (nanoseconds of `CLOCK_MONOTONIC`) into a timestamps
        /// buffer when a counter reaches a value, or at once if it has. Does not wait. Replaces an
        /// earlier registration of the slot.
        ///
        /// # Errors
        /// `InvalidInput` (`EINVAL`): no such interrupt, buffer, counter or slot.
        RegisterTimestamp "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" [fn] register_timestamp(request: &TimestampRegistration)
            -> (), &'a TimestampRegistration = request;
        /// Allocates device memory. It is not mapped.
        ///
        /// # Errors
        /// - `OutOfDeviceMemory` (`ENOMEM`): too little memory is free, or not in one run.
        /// - `InvalidInput` (`EINVAL`): the size is 0 or wraps, or the page size is invalid.
        MemAlloc "HL_MEM_OP_ALLOC" [fn] mem_alloc(request: MemAlloc) -> MemHandle, MemAlloc = request;
        /// Frees device memory.
        ///
        /// # Errors
        /// - `InUse` (`EINVAL`): the memory is mapped.
        /// - `InvalidInput` (`EINVAL`): no such handle.
        MemFree "HL_MEM_OP_FREE" [fn] mem_free(handle: MemHandle) -> (), MemFree = MemFree(handle);
        /// Maps device memory into the device's address space.
        ///
        /// # Errors
        /// - `OutOfDeviceMemory` (`ENOMEM`): no addresses are free, or a forced hint is in use.
        /// - `InvalidInput` (`EINVAL`): no such handle.
        /// - `PermissionDenied` (`EPERM`): another context's memory without `HL_MEM_SHARED`.
        MemMapDevice "HL_MEM_OP_MAP" [fn] mem_map_device(request: MapDevice) -> DeviceVa, MapDevice = request;
        /// Pins host memory and maps it into the device's address space. Returns the device address
        /// of the first byte.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): the size is 0 or wraps, or a forced hint is invalid.
        /// - `BadAddress` (`EFAULT`): the pages cannot be pinned.
        /// - `OutOfMemory` (`ENOMEM`): only some pages could be pinned (`RLIMIT_MEMLOCK`).
        /// - `OutOfDeviceMemory` (`ENOMEM`): no addresses are free, or a forced hint is in use.
        ///
        /// # Safety
        /// From this call until [`mem_unmap`](crate::KernelIo::mem_unmap) of the returned address
        /// has returned, or the node is closed:
        /// - the range stays mapped in this process, readable and writable: a backend in this
        ///   process accesses it directly;
        /// - no Rust reference to it is made or used while work that accesses it may run: the
        ///   device writes to it at any time.
        ///
        /// Other threads may access the range by atomics meanwhile, as [`RawMapping`]'s safe
        /// operations do: a backend in this process copies by relaxed atomics.
        #[expect(
            unsafe_code,
            reason = "the one operation whose promise outlives the call: a device writes to the range"
        )]
        MemMapHost "HL_MEM_OP_MAP (HL_MEM_USERPTR)" [unsafe fn] mem_map_host(request: MapHost) -> DeviceVa,
            MapHost = request,
            |below, _host| {
                // SAFETY: the request is the caller's own, and its promise is the same. An unmap
                // that a layer rejects has not returned `Ok`, so the promise still holds then.
                unsafe { below.mem_map_host(request) }
            };
        /// Unmaps device or host memory.
        ///
        /// # Errors
        /// - `InUse` (`EINVAL`): the memory is exported.
        /// - `InvalidInput` (`EINVAL`): no mapping starts at `address`.
        MemUnmap "HL_MEM_OP_UNMAP" [fn] mem_unmap(address: DeviceVa) -> (), MemUnmap = MemUnmap(address);
        /// Creates a timestamps buffer with this number of elements.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): more than `TS_MAX_ELEMENTS_NUM` elements.
        /// - `OutOfMemory` (`ENOMEM`): no elements, or no memory.
        TsAlloc "HL_MEM_OP_TS_ALLOC" [fn] ts_alloc(elements: u32) -> TsHandle, TsAlloc = TsAlloc(elements);
        /// Returns how to mmap a block of registers, for user-mode rings and sync objects.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): no block that users may map starts at `address`.
        /// - `Unsupported` (`EPERM`): the chip has no blocks for users.
        MapBlock "HL_MEM_OP_MAP_BLOCK" [fn] map_block(address: u64) -> BlockMapping,
            MapBlock = MapBlock(address);
        /// Exports mapped device memory as a dma-buf. While the dma-buf lives, the memory cannot be
        /// unmapped and the device stays open.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): address, offset and size are not whole pages of one mapping
        ///   of device memory, or the mapping leaves the memory BAR.
        /// - `TooManyFiles` (`EMFILE`): no file descriptor is free.
        ExportDmabuf "HL_MEM_OP_EXPORT_DMABUF_FD" [fn] export_dmabuf(request: ExportRequest) -> OwnedFd,
            ExportRequest = request;
        /// Maps a dma-buf of any exporter into the device's address space;
        /// [`mem_unmap`](crate::KernelIo::mem_unmap) unmaps it. Drivers of the Gaudi3 header have
        /// this operation, mainline does not.
        ///
        /// # Errors
        /// - `Unsupported` (`EOPNOTSUPP`): the driver does not have the operation.
        /// - `InvalidInput` (`EINVAL`): the file is not a dma-buf, or `len` is not its size.
        RegisterDmabuf "HL_MEM_OP_REG_DMABUF_FD" [fn] register_dmabuf(request: RegisterDmabuf<'_>) -> DeviceVa,
            RegisterDmabuf<'a> = request;
        /// Configures debug and profiling components.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): no such operation or component, or invalid parameters.
        /// - `InvalidInput` (`EFAULT`): the device is not in debug mode, or is in it already.
        /// - `OutOfMemory` (`ENOMEM`): `output` is too large.
        Debug "HL_IOCTL_DEBUG" [fn] debug(request: DebugRequest<'_>) -> (), DebugRequest<'a> = request,
            |below, debug| below.debug(DebugRequest { output: &mut *debug.output, ..*debug }), output output;
        /// Operates the chip's own NIC (Gaudi3 header).
        ///
        /// # Errors
        /// `Unsupported`: no backend serves it.
        Nic "HL_IOCTL_NIC" [fn] nic(request: NicRequest<'_>) -> (), NicRequest<'a> = request,
            |below, nic| below.nic(NicRequest { output: &mut *nic.output, ..*nic }), output output;
        /// Maps a command buffer, a timestamps buffer or a block into this process.
        ///
        /// # Errors
        /// - `InvalidInput` (`EINVAL`): no such handle, or the length is not the object's.
        /// - `InUse` (`EINVAL`): the buffer is mapped already.
        /// - `InvalidInput` (`EOVERFLOW`): the range leaves the file's offsets.
        Mmap "mmap" [fn] mmap(request: MmapRequest) -> RawMapping, MmapRequest = request;
        /// Signals an eventfd at each device event (`HL_INFO_REGISTER_EVENTFD`).
        /// `HL_INFO_GET_EVENTS` returns which events occurred.
        ///
        /// # Errors
        /// `InvalidInput` (`EINVAL`): not an eventfd, or an eventfd is registered already.
        RegisterEvents "HL_INFO_REGISTER_EVENTFD" [fn] register_events(eventfd: BorrowedFd<'_>) -> (),
            RegisterEvents<'a> = RegisterEvents(eventfd);
        /// Ends [`register_events`](crate::KernelIo::register_events).
        ///
        /// # Errors
        /// `InvalidInput` (`EINVAL`): no eventfd is registered.
        UnregisterEvents "HL_INFO_UNREGISTER_EVENTFD" [fn] unregister_events() -> (),
            UnregisterEvents = UnregisterEvents;
    }};
}
