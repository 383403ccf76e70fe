//! Device memory, mappings, hardware blocks, dma-bufs and timestamp buffers: `HL_IOCTL_MEMORY`.

use std::ffi::{c_int, c_void};

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemOut, MemFlags};
use nix::fcntl::OFlag;

use crate::device;

#[inline]
fn memory(fd: c_int, request: HlMemIn) -> Result<HlMemOut, Errno> {
    let mut args = HlMemArgs::from(request);
    device::ioctl(fd, Ioctl::Memory, &mut args)?;
    Ok(args.answer())
}

fn map_host(fd: c_int, host: u64, hint: u64, size: u64, flags: u32) -> Result<u64, Errno> {
    let request = HlMemIn::map_host(host, size, hint, MemFlags(flags));
    Ok(memory(fd, request)?.device_virt_addr())
}

/// The flags that the driver requires for an exported descriptor.
const EXPORT: OFlag = OFlag::O_RDWR.union(OFlag::O_CLOEXEC);

fn export(fd: c_int, addr: u64, size: u64, offset: u64) -> Result<c_int, Errno> {
    let request = HlMemIn::export_dmabuf_fd(addr, size, offset, EXPORT.bits() as u32);
    Ok(memory(fd, request)?.fd())
}

exports! {
    /// Allocates device memory and returns its handle. On Gaudi, 0 can also mean success.
    ///
    /// # Errors
    /// 0 and errno of the driver.
    fn hlthunk_device_memory_alloc(
        fd: c_int,
        size: u64,
        page_size: u64,
        contiguous: bool,
        shared: bool,
    ) -> u64 as nothing {
        let mut flags = MemFlags::NONE;
        if contiguous {
            flags |= MemFlags::CONTIGUOUS;
        }
        if shared {
            flags |= MemFlags::SHARED;
        }
        Ok(memory(fd, HlMemIn::alloc(size, page_size, flags))?.handle())
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// `-errno` of the driver: `EINVAL` while the memory is mapped.
    fn hlthunk_device_memory_free(fd: c_int, handle: u64) -> c_int as negative_errno {
        memory(fd, HlMemIn::free(handle)).map(|_| 0)
    }

    /// Maps device memory and returns its device address.
    ///
    /// # Errors
    /// 0 and errno of the driver.
    fn hlthunk_device_memory_map(fd: c_int, handle: u64, hint_addr: u64) -> u64 as nothing {
        Ok(memory(fd, HlMemIn::map_device(handle, hint_addr, MemFlags::NONE))?.device_virt_addr())
    }

    /// Maps host memory on the device and returns its device address.
    ///
    /// # Errors
    /// 0 and errno of the driver.
    fn hlthunk_host_memory_map(
        fd: c_int,
        host_virt_addr: *mut c_void,
        hint_addr: u64,
        host_size: u64,
    ) -> u64 as nothing via fp_hlthunk_host_memory_map of host_memory_map_original {
        map_host(fd, host_virt_addr.address(), hint_addr, host_size, 0)
    }

    /// As [`hlthunk_host_memory_map`], with `HL_MEM_*` flags.
    ///
    /// # Errors
    /// 0 and errno of the driver.
    fn hlthunk_host_memory_map_flags(
        fd: c_int,
        host_virt_addr: *mut c_void,
        hint_addr: u64,
        host_size: u64,
        flags: u32,
    ) -> u64 as nothing via fp_hlthunk_host_memory_map_flags of host_memory_map_flags_original {
        map_host(fd, host_virt_addr.address(), hint_addr, host_size, flags)
    }

    /// Unmaps device or host memory.
    ///
    /// # Errors
    /// `-errno` of the driver: `EINVAL` while the memory is exported.
    fn hlthunk_memory_unmap(fd: c_int, device_virt_addr: u64) -> c_int as negative_errno
        via fp_hlthunk_memory_unmap of memory_unmap_original
    {
        memory(fd, HlMemIn::unmap(device_virt_addr)).map(|_| 0)
    }

    /// Exports device memory as a dma-buf. `addr` is a mapped address; on Gaudi a physical address,
    /// and up to Linux 6.2 the handle. The flags are ignored.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_device_memory_export_dmabuf_fd(
        fd: c_int,
        addr: u64,
        size: u64,
        _flags: u32,
    ) -> c_int as negative_errno {
        export(fd, addr, size, 0)
    }

    /// Exports part of a mapping of device memory as a dma-buf.
    ///
    /// # Errors
    /// `-EINVAL`: the flags are not `O_RDWR | O_CLOEXEC`. `-errno` of the driver.
    fn hlthunk_device_mapped_memory_export_dmabuf_fd(
        fd: c_int,
        addr: u64,
        size: u64,
        offset: u64,
        flags: u32,
    ) -> c_int as negative_errno {
        if flags != EXPORT.bits() as u32 {
            return Err(Errno::EINVAL);
        }
        export(fd, addr, size, offset)
    }

    /// Returns the size of a register block and its handle for mmap(2).
    ///
    /// # Errors
    /// `-EINVAL`: `block_size` or `handle` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_hw_block(
        fd: c_int,
        block_address: u64,
        block_size: *mut u32,
        handle: *mut u64,
    ) -> c_int as negative_errno via fp_hlthunk_get_hw_block of get_hw_block_original {
        block_size.check()?;
        handle.check()?;
        let answer = memory(fd, HlMemIn::map_block(block_address))?;
        handle.write(answer.handle())?;
        block_size.write(answer.block().block_size).map(|()| 0)
    }

    /// Allocates a timestamp buffer and returns its handle for mmap(2). On failure the handle is
    /// left unchanged.
    ///
    /// # Errors
    /// `-EINVAL`: `handle` is null. Otherwise `-errno` of the driver.
    fn hlthunk_allocate_timestamp_elements(
        fd: c_int,
        num_elements: u32,
        handle: *mut u64,
    ) -> c_int as negative_errno {
        handle.check()?;
        handle.write(memory(fd, HlMemIn::ts_alloc(num_elements))?.handle()).map(|()| 0)
    }
}
