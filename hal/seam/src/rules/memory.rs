//! Rules of CB, MEMORY and mmap.

use gaudi_sys::{Errno, PAGE};
use gaudi_uapi::limits::{HL_MAX_CB_SIZE, TS_MAX_ELEMENTS_NUM};

use crate::error_kind::ErrorKind;
use crate::operation::{AnyRequest, Operation};
use crate::request::{ExportRequest, MapDevice, MmapRequest};
use crate::rule::{Condition, Rule, Subject, rows};
use crate::state::DriverState;

/// Formats a handle in hexadecimal.
fn hex(handle: u64) -> String {
    format!("{handle:#x}")
}

/// Returns the range of an export if it exceeds its mapping.
fn past_the_end(request: &ExportRequest, driver: &dyn DriverState) -> Option<String> {
    let ExportRequest { size, offset, .. } = *request;
    let whole = driver.mapping(request.address)?.size;
    let is_inside = offset.checked_add(size).is_some_and(|end| end <= whole);
    (!is_inside).then(|| format!("offset {offset} + {size} of {whole} bytes"))
}

/// Returns the hint if hint + size overflows 64 bits. The page size of device memory is not a power
/// of two: the driver then ignores a misaligned hint only inside the DRAM address range, where the
/// sum cannot overflow.
fn hint_wraps(request: &MapDevice, driver: &dyn DriverState) -> Option<String> {
    let size = driver.allocated(request.handle)?;
    let hint = request.hint.filter(|hint| hint.0.checked_add(size).is_none())?;
    Some(format!("{size} bytes at {hint}"))
}

/// Returns the requested length if it is not the object's length.
fn wrong_length(request: &MmapRequest, driver: &dyn DriverState) -> Option<String> {
    let whole = driver.mmap_len(request.offset)?;
    (request.whole_pages() != whole).then(|| format!("{} of {whole} bytes", request.len))
}

rows! {
    /// Rules of command buffers.
    mod buffer {
        TOO_LARGE "buffer.create.too-large" [CbCreate] EINVAL
            "the size is above HL_MAX_CB_SIZE (2 MiB - 32)", "common/command_buffer.c:hl_cb_ioctl"
            early |CbCreate(request), _| request.size > HL_MAX_CB_SIZE => request.size;
        NO_ADDRESS "buffer.create.no-address-left" [CbCreate] ENOMEM
            "no memory, or no device addresses for a mapped buffer", "common/command_buffer.c:cb_map_mem";
        NOT_MAPPABLE "buffer.create.not-mappable" [CbCreate] EINVAL ; rare;
            "this device does not map command buffers", "common/command_buffer.c:cb_map_mem";
        RESET_SINCE "buffer.create.reset-since" [CbCreate] EBUSY ; rare;
            "the device is disabled or in reset", "common/command_buffer.c:hl_cb_create";
        MEMORY "buffer.create.memory" [CbCreate] ENOMEM ; rare;
            "the kernel has no memory for a buffer", "common/command_buffer.c:hl_cb_mmap_mem_alloc";
        DESTROYED "buffer.destroyed" [CbDestroy] EINVAL
            "the command buffer was destroyed already", "common/command_buffer.c:hl_cb_destroy"
            state |CbDestroy(request), driver| driver.is_destroyed(request.0) => hex(request.0.0);
        UNKNOWN "buffer.unknown" [CbDestroy CbInfo] EINVAL
            "no such command buffer", "common/command_buffer.c:hl_cb_destroy, hl_cb_info"
            state |CbDestroy(request), driver| driver.buffer(request.0).is_none() => hex(request.0.0),
            state |CbInfo(request), driver| driver.buffer(request.handle).is_none() => hex(request.handle.0);
        NOT_MAPPED "buffer.info.not-mapped-to-device" [CbInfo] EINVAL
            "the command buffer has no device address: it was made without MAP",
            "common/command_buffer.c:hl_cb_info", "create it with HL_CB_FLAGS_MAP"
            state |CbInfo(request), driver| request.device_va
                && driver.buffer(request.handle).is_some_and(|buffer| !buffer.has_device_address)
                => hex(request.handle.0);
        OPERATION "buffer.operation" [CbCreate CbDestroy CbInfo] EINVAL ; rare;
            "no such operation", "common/command_buffer.c:hl_cb_ioctl";
    }

    /// Rules of device memory and of mappings.
    mod map {
        ZERO_BYTES "memory.alloc.zero-bytes" [MemAlloc] EINVAL
            "the size is 0", "common/memory.c:hl_mem_ioctl"
            early |MemAlloc(request), _| request.size == 0 => 0;
        PAGE_SIZE "memory.alloc.page-size" [MemAlloc] EINVAL
            "the page size is not a power of two", "common/memory.c:set_alloc_page_size";
        SIZE_WRAPS "memory.alloc.size-wraps" [MemAlloc] EINVAL
            "the size wraps when it is rounded up to pages", "common/memory.c:alloc_device_memory"
            early |MemAlloc(request), asic| request.size.checked_add(asic.dram_page - 1).is_none() => request.size;
        NO_RUN "memory.alloc.no-run-left" [MemAlloc] ENOMEM
            "no run of free pages is long enough", "common/memory.c:alloc_device_memory";
        TOO_FEW_PAGES "memory.alloc.too-few-pages" [MemAlloc] ENOMEM
            "the device has too little free memory", "common/memory.c:alloc_device_memory";
        PAGES_MEMORY "memory.alloc.memory" [MemAlloc] ENOMEM ; rare;
            "the kernel has no memory for the list of pages", "common/memory.c:alloc_device_memory";
        NO_HANDLE_LEFT "memory.alloc.no-handle-left" [MemAlloc] EFAULT ; rare;
            "no handle is free", "common/memory.c:alloc_device_memory";
        FREE_UNKNOWN "memory.free.unknown-handle" [MemFree] EINVAL
            "no such handle", "common/memory.c:free_device_memory"
            state |MemFree(request), driver| driver.mappings(request.0).is_none() => request.0.0;
        FREE_MAPPED "memory.free.while-mapped" [MemFree] EINVAL as InUse
            "the memory is still mapped", "common/memory.c:free_device_memory", "unmap it first"
            state |MemFree(request), driver| driver.mappings(request.0) > Some(0) => request.0.0;
        UNKNOWN "memory.map.unknown-handle" [MemMapDevice] EINVAL
            "no such handle", "common/memory.c:map_device_va"
            state |MemMapDevice(request), driver| driver.mappings(request.handle).is_none() => request.handle.0;
        NOT_SHARED "memory.map.not-shared" [MemMapDevice] EPERM
            "the memory belongs to another context and is not SHARED", "common/memory.c:map_device_va";
        RECORD_MEMORY "memory.map.record-memory" [MemMapDevice MemMapHost] ENOMEM ; rare;
            "the kernel has no memory for the mapping's record", "common/memory.c:map_device_va";
        FORCED_HINT "memory.map-host.hint.unaligned" [MemMapHost] EINVAL
            "the hint cannot be met and FORCE_HINT is set: the memory does not start on a page",
            "common/memory.c:map_device_va";
        NO_ADDRESS "memory.map.no-address" [MemMapDevice MemMapHost] ENOMEM as OutOfDeviceMemory
            "no device addresses are left for it, or the hint is taken and FORCE_HINT is set",
            "common/memory.c:map_device_va";
        HINT_WRAPS "memory.map.hint-wraps" [MemMapDevice MemMapHost] ENOMEM as InvalidInput
            "hint + size overflows 64 bits; the driver also corrupts its list of free addresses",
            "common/memory.c:get_va_block", "close the device: later mappings may fail with EINVAL"
            state |MemMapDevice(request), driver| hint_wraps(request, driver);
        HOST_MAPPED "memory.map-host.address-mapped" [MemMapHost] EINVAL ; rare;
            "the driver itself has mapped an address of the range", "common/mmu/mmu_v2_hr.c:_hl_mmu_v2_hr_map";
        HOST_SIZE "memory.map-host.size" [MemMapHost] EINVAL
            "the size is 0 or wraps round", "common/memory.c:hl_pin_host_memory"
            early |MemMapHost(request), _| request.end().is_none()
                => format!("{} + {}", request.address, request.size);
        HOST_KERNEL "memory.map-host.of-the-kernel" [MemMapHost] EFAULT
            "the host address is not in this process", "common/memory.c:get_user_memory";
        HOST_PAGES "memory.map-host.not-pinned" [MemMapHost] EFAULT
            "the pages cannot be pinned: not mapped, not writable, or memory of a device",
            "common/memory.c:get_user_memory", "map memory that this process may write to";
        HOST_HALF "memory.map-host.half-pinned" [MemMapHost] ENOMEM
            "only some pages could be pinned (see ulimit -l)", "common/memory.c:get_user_memory";
        HOST_MEMORY "memory.map-host.memory" [MemMapHost] ENOMEM ; rare;
            "the kernel has no memory for the list of pages", "common/memory.c:get_user_memory";
        UNMAP_UNKNOWN "memory.unmap.unknown-address" [MemUnmap] EINVAL
            "no mapping starts at this address", "common/memory.c:unmap_device_va"
            state |MemUnmap(request), driver| driver.mapping(request.0).is_none() => request.0;
        UNMAP_EXPORTED "memory.unmap.while-exported" [MemUnmap] EINVAL as InUse
            "the memory is exported", "common/memory.c:unmap_device_va",
            "deregister its memory regions and close its dma-bufs, in every process, first"
            state |MemUnmap(request), driver| driver.is_exported(request.0) => request.0;
        UNMAP_TYPE "memory.unmap.type" [MemUnmap] EFAULT ; rare;
            "the mapping is of neither host nor device memory", "common/memory.c:unmap_device_va";
        UNMAP_RECORD "memory.unmap.record" [MemUnmap] EINVAL ; rare;
            "the mapping's record is marked as not mapped", "common/memory.c:unmap_device_va";
        OPERATION "memory.operation" [MemAlloc MemFree MemMapDevice MemMapHost MemUnmap] EINVAL ; rare;
            "no such operation", "common/memory.c:hl_mem_ioctl";
    }

    /// Rules of the chip's blocks.
    mod block {
        UNKNOWN "block.no-such-address" [MapBlock] EINVAL
            "this address is not the start of a block that users may map",
            "gaudi2/gaudi2.c:gaudi2_get_hw_block_id";
        UNSUPPORTED "block.unsupported" [MapBlock] EPERM as Unsupported ; rare;
            "this chip has no blocks for users", "goya/goya.c:goya_get_hw_block_id";
        MMAP_UNKNOWN "block.mmap.no-such-number" [Mmap] EINVAL
            "no such block", "gaudi2/gaudi2.c:gaudi2_block_mmap";
        MMAP_LENGTH "block.mmap.wrong-length" [Mmap] EINVAL
            "the length is not the block's", "gaudi2/gaudi2.c:gaudi2_block_mmap";
        MMAP_ADDRESS "block.mmap.address" [Mmap] EINVAL ; rare;
            "the address is the kernel's", "common/memory.c:hl_hw_block_mmap";
        MMAP_MEMORY "block.mmap.memory" [Mmap] ENOMEM ; rare;
            "the kernel has no memory for the mapping's record", "common/memory.c:hl_hw_block_mmap";
    }

    /// Rules of exports and imports.
    mod export {
        UNALIGNED_ADDRESS "export.unaligned-address" [ExportDmabuf] EINVAL
            "the address is not a multiple of 4096", "common/memory.c:validate_export_params_common"
            state |ExportDmabuf(request), driver|
                request.address.0 % PAGE != 0 && driver.mapping(request.address).is_none() => request.address;
        UNKNOWN_ADDRESS "export.unknown-address" [ExportDmabuf] EINVAL
            "no mapping of device memory starts at this address", "common/memory.c:memhash_node_export_get",
            "pass the start of the mapping and an offset"
            state |ExportDmabuf(request), driver| driver.mapping(request.address).is_none() => request.address;
        HOST_MEMORY "export.host-memory" [ExportDmabuf] EINVAL
            "the address maps host memory", "common/memory.c:memhash_node_export_get",
            "export host memory from a memfd through udmabuf"
            state |ExportDmabuf(request), driver|
                driver.mapping(request.address).is_some_and(|mapping| !mapping.is_device_memory)
                => request.address;
        SIZE "export.size" [ExportDmabuf] EINVAL
            "the size is 0 or not a multiple of 4096", "common/memory.c:validate_export_params_common",
            "export whole pages that contain no other allocation"
            late |ExportDmabuf(request), _| request.size == 0 || request.size % PAGE != 0 => request.size;
        UNALIGNED_OFFSET "export.unaligned-offset" [ExportDmabuf] EINVAL
            "the offset is not a multiple of 4096", "common/memory.c:validate_export_params_common"
            late |ExportDmabuf(request), _| request.offset % PAGE != 0 => request.offset;
        PAST_THE_END "export.past-the-end" [ExportDmabuf] EINVAL
            "offset + size exceeds the mapping", "common/memory.c:validate_export_params"
            state |ExportDmabuf(request), driver| past_the_end(request, driver);
        OUTSIDE_BAR "export.outside-the-bar" [ExportDmabuf] EINVAL
            "a page of the mapping lies outside the memory BAR (the whole mapping must lie inside)",
            "common/memory.c:validate_export_params";
        PHYSICAL_OFFSET "export.physical-offset" [ExportDmabuf] EINVAL ; rare;
            "an offset, where device memory has no virtual addresses", "common/memory.c:export_dmabuf_from_addr";
        MEMORY "export.memory" [ExportDmabuf] ENOMEM ; rare;
            "the kernel has no memory for the export's record", "common/memory.c:export_dmabuf_from_addr";
        NO_DESCRIPTOR "export.no-descriptor-left" [ExportDmabuf] EMFILE
            "this process has too many open files", "common/memory.c:export_dmabuf";
        NO_IMPORT "export.not-mapped-back" [RegisterDmabuf] EOPNOTSUPP
            "the operation is the Gaudi3 header's: mainline lacks it and answers EINVAL",
            "common/memory.c:hl_mem_ioctl";
    }

    /// Rules of timestamps buffers.
    mod timestamps {
        TOO_MANY "memory.timestamps.too-many" [TsAlloc] EINVAL
            "more than 1048576 elements", "common/memory.c:allocate_timestamps_buffers"
            early |TsAlloc(request), _| request.0 > TS_MAX_ELEMENTS_NUM => request.0;
        NONE "memory.timestamps.none" [TsAlloc] ENOMEM
            "the buffer has no elements, or the kernel has no memory",
            "common/memory.c:allocate_timestamps_buffers"
            early |TsAlloc(request), _| request.0 == 0 => 0;
    }

    /// Rules of mmap(2).
    mod mmap {
        PAST_THE_LAST_OFFSET "mmap.past-the-last-offset" [Mmap] EOVERFLOW
            "the range leaves the file's offsets", "mm/mmap.c:file_mmap_ok"
            early |Mmap(request), _| request.leaves_file() => hex(request.offset);
        CONTROL_NODE "mmap.control-node" [Mmap] ENOTTY
            "a control node serves INFO only: a backend refuses it before the driver would (`ENODEV`)",
            "common/habanalabs_drv.c:hl_device_open_ctrl", "open the compute node";
        REMOVED "mmap.removed" [Mmap] ENODEV
            "the device was removed", "common/device.c:__hl_mmap";
        TYPE "mmap.without-type-bits" [Mmap] EINVAL
            "the offset is not a handle's", "common/device.c:__hl_mmap";
        UNKNOWN "mmap.unknown-handle" [Mmap] EINVAL
            "no such handle", "common/memory_mgr.c:hl_mem_mgr_mmap"
            state |Mmap(request), driver| driver.mmap_len(request.offset).is_none() => hex(request.offset);
        LENGTH "mmap.wrong-length" [Mmap] EINVAL
            "the length must be the buffer's size rounded up to the page",
            "common/memory_mgr.c:hl_mem_mgr_mmap"
            state |Mmap(request), driver| wrong_length(request, driver);
        TWICE "mmap.twice" [Mmap] EINVAL as InUse
            "the buffer is mapped already: the driver allows one mapping at a time",
            "common/memory_mgr.c:hl_mem_mgr_mmap", "share the mapping"
            state |Mmap(request), driver| driver.is_mmapped(request.offset) => hex(request.offset);
    }
}
