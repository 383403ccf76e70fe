//! Kernel command buffers: `HL_IOCTL_CB`. A program maps them with mmap(2) of the handle.

use std::ffi::c_int;

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn, HlCbOut};

use crate::device;

#[inline]
fn command_buffer(fd: c_int, request: HlCbIn) -> Result<HlCbOut, Errno> {
    let mut args = HlCbArgs::from(request);
    device::ioctl(fd, Ioctl::Cb, &mut args)?;
    Ok(args.answer())
}

exports! {
    /// Creates a command buffer.
    ///
    /// # Errors
    /// `-EINVAL`: `cb_handle` is null. Otherwise `-errno` of the driver.
    fn hlthunk_request_command_buffer(
        fd: c_int,
        cb_size: u32,
        cb_handle: *mut u64,
    ) -> c_int as negative_errno {
        cb_handle.check()?;
        let answer = command_buffer(fd, HlCbIn::create(cb_size, CbFlags::NONE))?;
        cb_handle.write(answer.cb_handle()).map(|()| 0)
    }

    /// Creates a command buffer that is mapped on the device.
    ///
    /// # Errors
    /// As [`hlthunk_request_command_buffer`].
    fn hlthunk_request_mapped_command_buffer(
        fd: c_int,
        cb_size: u32,
        cb_handle: *mut u64,
    ) -> c_int as negative_errno {
        cb_handle.check()?;
        let answer = command_buffer(fd, HlCbIn::create(cb_size, CbFlags::MAP))?;
        cb_handle.write(answer.cb_handle()).map(|()| 0)
    }

    /// Returns the device address of a mapped command buffer.
    ///
    /// # Errors
    /// `-EINVAL`: `device_va` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_mapped_cb_device_va_by_handle(
        fd: c_int,
        cb_handle: u64,
        device_va: *mut u64,
    ) -> c_int as negative_errno
        via fp_hlthunk_get_mapped_cb_device_va_by_handle of mapped_cb_device_va_original
    {
        device_va.check()?;
        let answer = command_buffer(fd, HlCbIn::device_va(cb_handle))?;
        device_va.write(answer.device_va()).map(|()| 0)
    }

    /// Destroys a command buffer. Its memory is freed when it is neither mapped nor in use.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_destroy_command_buffer(fd: c_int, cb_handle: u64) -> c_int as negative_errno {
        command_buffer(fd, HlCbIn::destroy(cb_handle)).map(|_| 0)
    }

    /// Returns the number of submissions that use a command buffer.
    ///
    /// # Errors
    /// `-EINVAL`: `usage_cnt` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_cb_usage_count(
        fd: c_int,
        cb_handle: u64,
        usage_cnt: *mut u32,
    ) -> c_int as negative_errno {
        usage_cnt.check()?;
        let answer = command_buffer(fd, HlCbIn::usage(cb_handle))?;
        usage_cnt.write(answer.usage_cnt()).map(|()| 0)
    }
}
