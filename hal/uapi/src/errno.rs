//! What an errno of the driver means, by call: for messages that say what to do.
//!
//! The texts name causes, read from the driver of Linux 7.3.4 (`drivers/accel/habanalabs`; the
//! source is the last column). The driver logs most causes only at debug level, so this table is
//! often all that a user sees. One errno of one call may have several causes: [`causes`] yields
//! them all.

use core::fmt;

macro_rules! errnos {
    ($($(#[$meta:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$meta])* pub const $name: i32 = $value;)*

        /// The errnos of this module by name (`asm-generic/errno.h`; the same on x86-64 and arm64).
        pub const NAMES: &[(&str, i32)] = &[$((stringify!($name), $name)),*];
    };
}

errnos! {
    /// Operation not permitted.
    EPERM = 1;
    /// No such file or directory.
    ENOENT = 2;
    /// Interrupted system call.
    EINTR = 4;
    /// Input/output error.
    EIO = 5;
    /// No such device or address.
    ENXIO = 6;
    /// Exec format error.
    ENOEXEC = 8;
    /// Bad file descriptor.
    EBADF = 9;
    /// Try again.
    EAGAIN = 11;
    /// Out of memory.
    ENOMEM = 12;
    /// Permission denied.
    EACCES = 13;
    /// Bad address.
    EFAULT = 14;
    /// Device or resource busy.
    EBUSY = 16;
    /// No such device.
    ENODEV = 19;
    /// Invalid argument.
    EINVAL = 22;
    /// Too many open files in the system.
    ENFILE = 23;
    /// Too many open files.
    EMFILE = 24;
    /// Inappropriate ioctl for device.
    ENOTTY = 25;
    /// Operation not supported.
    EOPNOTSUPP = 95;
    /// Connection timed out.
    ETIMEDOUT = 110;
}

/// The name of an errno, if this module has it.
pub fn name(errno: i32) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|(_, value)| *value == errno)
        .map(|(name, _)| *name)
}

/// A call into the driver, as fine as its errnos need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// open(2) of a compute node.
    OpenCompute,
    /// open(2) of a control node.
    OpenControl,
    /// Any ioctl, before it is dispatched.
    AnyIoctl,
    /// INFO.
    Info,
    /// CB with CREATE.
    CbCreate,
    /// CB with DESTROY or INFO.
    CbHandle,
    /// CS.
    Cs,
    /// WAIT_CS for one or many submissions.
    WaitCs,
    /// WAIT_CS for an interrupt.
    WaitInterrupt,
    /// MEMORY with ALLOC.
    MemAlloc,
    /// MEMORY with FREE.
    MemFree,
    /// MEMORY with MAP of device memory.
    MemMapDevice,
    /// MEMORY with MAP of host memory.
    MemMapHost,
    /// MEMORY with UNMAP.
    MemUnmap,
    /// MEMORY with MAP_BLOCK.
    MemMapBlock,
    /// MEMORY with EXPORT_DMABUF_FD.
    MemExport,
    /// MEMORY with TS_ALLOC.
    MemTsAlloc,
    /// DEBUG.
    Debug,
    /// mmap(2) of a handle on the compute node.
    Mmap,
    /// Mapping an exported dma-buf for another device: an RDMA registration, say.
    DmaBufMap,
}

/// One cause of an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The call that failed.
    pub call: Call,
    /// With this errno.
    pub errno: i32,
    /// Why, in words for a message.
    pub text: &'static str,
    /// Where the driver decides it, below `drivers/accel/habanalabs` unless it starts with
    /// `drivers/`.
    pub source: &'static str,
}

/// All causes of `errno` from `call`; those that every ioctl has come last.
pub fn causes(call: Call, errno: i32) -> impl Iterator<Item = &'static Cause> + Clone {
    let ioctl = !matches!(
        call,
        Call::OpenCompute | Call::OpenControl | Call::Mmap | Call::DmaBufMap
    );
    let of = move |wanted: Call| {
        CAUSES
            .iter()
            .filter(move |c| c.call == wanted && c.errno == errno)
    };
    of(call).chain(of(Call::AnyIoctl).filter(move |_| ioctl && call != Call::AnyIoctl))
}

/// The causes of an errno in one line, joined by `; or`. Prints nothing when the table has none.
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    /// The call that failed.
    pub call: Call,
    /// With this errno.
    pub errno: i32,
}

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, cause) in causes(self.call, self.errno).enumerate() {
            if i > 0 {
                f.write_str("; or ")?;
            }
            f.write_str(cause.text)?;
        }
        Ok(())
    }
}

macro_rules! table {
    ($($call:ident $errno:ident $text:literal, $source:literal;)*) => {
        /// The table.
        pub const CAUSES: &[Cause] = &[$(Cause {
            call: Call::$call,
            errno: $errno,
            text: $text,
            source: $source,
        }),*];
    };
}

table! {
    OpenCompute EAGAIN "the device is in reset; try again in a second", "common/habanalabs_drv.c:hl_device_open";
    OpenCompute EAGAIN "the driver is scrubbing the device's memory", "common/habanalabs_drv.c:hl_device_open";
    OpenCompute EAGAIN "the last user's session is still being cleaned up", "common/habanalabs_drv.c:hl_device_open";
    OpenCompute EPERM "the device is not operational (malfunction, needs reset, or being created)",
        "common/habanalabs_drv.c:hl_device_open";
    OpenCompute EBUSY "another process has the device open, or a dma-buf that it exported is still alive",
        "common/habanalabs_drv.c:hl_device_open";
    OpenCompute EINVAL "this kernel's habanalabs lacks FOP_UNSIGNED_OFFSET, so DRM refuses every open (seen on 6.12 \
        to 7.3)", "drivers/gpu/drm/drm_file.c:drm_open_helper";
    OpenCompute ENOMEM "the kernel has no memory for a context", "common/habanalabs_drv.c:hl_device_open";
    OpenCompute ENODEV "the device was removed", "drivers/gpu/drm/drm_drv.c";
    OpenControl EPERM "the device is disabled", "common/habanalabs_drv.c:hl_device_open_ctrl";
    OpenControl ENXIO "the node is left over: the driver has no such device", "common/habanalabs_drv.c:hl_device_open_ctrl";
    OpenControl ENOMEM "the kernel has no memory", "common/habanalabs_drv.c:hl_device_open_ctrl";

    AnyIoctl ENOTTY "the driver does not have this ioctl: another era's number, or a control node, which has INFO only",
        "common/habanalabs_ioctl.c:hl_ioctl_control";
    AnyIoctl EBUSY "the device is not operational (in reset or failed)", "common/habanalabs_ioctl.c:hl_debug_ioctl";
    AnyIoctl EFAULT "a pointer in the request cannot be read or written", "common/habanalabs_ioctl.c:_hl_ioctl";
    AnyIoctl ENODEV "the device was removed or is about to be hard-reset: close the file",
        "common/habanalabs_ioctl.c:hl_ioctl_control";
    AnyIoctl ENOMEM "the kernel has no memory", "common/habanalabs_ioctl.c:_hl_ioctl";

    Info EINVAL "no answer buffer, a size of 0, an argument out of range, or an op that this driver does not know",
        "common/habanalabs_ioctl.c:_hl_info_ioctl";
    Info EOPNOTSUPP "a control node gives no events", "common/habanalabs_ioctl.c:hl_info_ioctl_control";
    Info EOPNOTSUPP "this chip has no event counters", "common/habanalabs_ioctl.c:hw_events_info";
    Info ENOMEM "the engine status is longer than the buffer", "common/habanalabs_ioctl.c:engine_status_info";

    CbCreate EINVAL "the size is above HL_MAX_CB_SIZE (2 MiB - 32)", "common/command_buffer.c:hl_cb_ioctl";
    CbCreate EBUSY "the device is disabled or in reset", "common/command_buffer.c:hl_cb_create";
    CbCreate ENOMEM "no memory, or no device addresses for a mapped buffer", "common/command_buffer.c:hl_cb_create";
    CbCreate EINVAL "this device does not map command buffers", "common/command_buffer.c:cb_map_mem";
    CbHandle EINVAL "no such command buffer, or it was destroyed already", "common/command_buffer.c:hl_cb_destroy";
    CbHandle EINVAL "the command buffer has no device address: it was made without MAP",
        "common/command_buffer.c:hl_cb_info";

    Cs EINVAL "padding is not 0", "common/command_submission.c:hl_cs_sanity_checks";
    Cs EINVAL "no jobs, or more than 512", "common/command_submission.c:hl_cs_sanity_checks";
    Cs EINVAL "types of submission that exclude one another", "common/command_submission.c:hl_cs_sanity_checks";
    Cs EINVAL "no such queue, or it is not for users", "common/command_submission.c:validate_queue_index";
    Cs EINVAL "the queue does not take this kind of command buffer (Gaudi2 takes user buffers only)",
        "common/command_submission.c:validate_queue_index";
    Cs EINVAL "no such command buffer, or cb_size is below 8 or above the buffer's size",
        "common/command_submission.c:get_cb_from_cs_chunk";
    Cs EAGAIN "too many submissions are in flight", "common/command_submission.c:allocate_cs";
    Cs EAGAIN "the queue is full", "common/hw_queue.c:hw_queue_sanity_checks";
    Cs EBUSY "the device is not operational (in reset or failed)", "common/command_submission.c:hl_cs_sanity_checks";
    Cs EPERM "the device stopped being operational while the jobs were queued", "common/hw_queue.c:hl_hw_queue_schedule_cs";
    Cs EPERM "this chip has no staged submissions or engine modes", "common/command_submission.c:hl_cs_sanity_checks";
    Cs ENOMEM "more jobs than an internal queue can ever hold", "common/hw_queue.c:int_queue_sanity_checks";
    Cs ENOEXEC "the restore phase failed", "common/command_submission.c:hl_cs_ctx_switch";
    Cs EOPNOTSUPP "this chip cannot flush its PCI writes", "common/command_submission.c:cs_ioctl_flush_pci_hbw_writes";

    WaitCs EINTR "a signal came", "common/command_submission.c:hl_cs_wait_ioctl";
    WaitCs ETIMEDOUT "the submission ran into its timeout on the device", "common/command_submission.c:cs_do_release";
    WaitCs EIO "the submission was aborted, usually because the device was reset",
        "common/command_submission.c:cs_do_release";
    WaitCs EINVAL "no such submission yet: the number is above the last one submitted",
        "common/context.c:hl_ctx_get_fence_locked";
    WaitCs EINVAL "more than 32 submissions, or padding is not 0", "common/command_submission.c:hl_multi_cs_wait_ioctl";
    WaitCs EBUSY "the device is not operational, or waits to be released after an error",
        "common/command_submission.c:hl_wait_ioctl";
    WaitCs EPERM "this chip cannot wait for several submissions", "common/command_submission.c:hl_multi_cs_wait_ioctl";
    WaitInterrupt EINTR "a signal came", "common/command_submission.c:_hl_interrupt_wait_ioctl";
    WaitInterrupt EIO "the wait was aborted by a reset", "common/command_submission.c:_hl_interrupt_wait_ioctl";
    WaitInterrupt EINVAL "no such interrupt, or it belongs to a disabled decoder",
        "common/command_submission.c:hl_interrupt_wait_ioctl";
    WaitInterrupt EINVAL "no such counter or timestamp buffer, or an index behind its end",
        "common/command_submission.c:_hl_interrupt_ts_reg_ioctl";
    WaitInterrupt EFAULT "the counter's address cannot be read", "common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr";
    WaitInterrupt EPERM "this chip has no interrupts for users", "common/command_submission.c:hl_interrupt_wait_ioctl";
    WaitInterrupt EBUSY "the device is not operational, or waits to be released after an error",
        "common/command_submission.c:hl_wait_ioctl";

    MemAlloc EINVAL "the size is 0", "common/memory.c:hl_mem_ioctl";
    MemAlloc EINVAL "the page size is not a power of two", "common/memory.c:set_alloc_page_size";
    MemAlloc ENOMEM "the device has too little free memory, or none that is contiguous",
        "common/memory.c:alloc_device_memory";
    MemFree EINVAL "no such handle", "common/memory.c:free_device_memory";
    MemFree EINVAL "the memory is still mapped: unmap it first", "common/memory.c:free_device_memory";
    MemMapDevice EINVAL "no such handle", "common/memory.c:map_device_va";
    MemMapDevice EINVAL "the hint cannot be met and FORCE_HINT is set", "common/memory.c:map_device_va";
    MemMapDevice EPERM "the memory belongs to another context and is not SHARED", "common/memory.c:map_device_va";
    MemMapDevice ENOMEM "no device addresses are left for it, or the hint is taken and FORCE_HINT is set",
        "common/memory.c:map_device_va";
    MemMapHost EFAULT "the host address is not in this process", "common/memory.c:get_user_memory";
    MemMapHost EFAULT "the pages cannot be pinned: not mapped, not writable, or memory of a device",
        "common/memory.c:get_user_memory";
    MemMapHost ENOMEM "only some pages could be pinned (see ulimit -l), or no device addresses are left",
        "common/memory.c:get_user_memory";
    MemMapHost EINVAL "the size is 0 or wraps round", "common/memory.c:hl_pin_host_memory";
    MemUnmap EINVAL "no mapping starts at this address", "common/memory.c:unmap_device_va";
    MemUnmap EINVAL "the memory is exported: close the dma-buf (and deregister it) first",
        "common/memory.c:unmap_device_va";
    MemMapBlock EINVAL "this address is no block that users may map", "gaudi2/gaudi2.c:gaudi2_get_hw_block_id";
    MemMapBlock EPERM "this chip has no blocks for users", "goya/goya.c, gaudi/gaudi.c";
    MemExport EINVAL "address, size and offset must be multiples of 4096 and the size not 0",
        "common/memory.c:validate_export_params_common";
    MemExport EINVAL "no mapping of device memory starts at this address", "common/memory.c:memhash_node_export_get";
    MemExport EINVAL "offset and size leave the mapping", "common/memory.c:validate_export_params";
    MemExport EINVAL "a page of the mapping lies outside the memory BAR (the whole mapping must lie inside)",
        "common/memory.c:validate_export_params";
    MemExport EMFILE "this process has too many open files", "common/memory.c:export_dmabuf";
    MemTsAlloc EINVAL "more than 1048576 elements", "common/memory.c:allocate_timestamps_buffers";

    Debug EFAULT "the device is not in debug mode, or is already where SET_MODE would bring it",
        "common/habanalabs_ioctl.c:hl_debug_ioctl";
    Debug EINVAL "no such operation", "common/habanalabs_ioctl.c:hl_debug_ioctl";

    Mmap EINVAL "no such handle", "common/memory_mgr.c:hl_mem_mgr_mmap";
    Mmap EINVAL "the length must be the buffer's size rounded up to the page", "common/memory_mgr.c:hl_mem_mgr_mmap";
    Mmap EINVAL "the buffer is mapped already: the driver allows one mapping at a time",
        "common/memory_mgr.c:hl_mem_mgr_mmap";
    Mmap EINVAL "no such block, or the length is not the block's", "gaudi2/gaudi2.c:gaudi2_block_mmap";
    Mmap ENODEV "the device was removed", "common/device.c:hl_mmap";

    DmaBufMap EPERM "the importer cannot reach the device by PCI peer-to-peer, or did not ask for it",
        "common/memory.c:hl_map_dmabuf";
    DmaBufMap EINVAL "the importer's DMA segments are smaller than a page", "common/memory.c:alloc_sgt_from_device_pages";
}
