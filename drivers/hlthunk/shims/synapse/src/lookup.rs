//! `hcclLookupDMABuff`: exports a range of device memory as a dma-buf.
//!
//! The function receives only an address. A range of the pool belongs to this library. Otherwise it
//! searches the devices that the process has open. A mapping of device memory starts at a multiple
//! of the device's page size from the start of device memory, so the search tries an export at each
//! such address, downwards from the range. The driver rejects every address except the start of the
//! mapping (memory.c:hl_export_dmabuf_fd), so mappings need not be tracked.

use std::ffi::c_int;
use std::fs;
use std::os::fd::BorrowedFd;

use gaudi_hlthunk_client::HlThunk;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::errno::Errno;
use nix::libc::{S_IFCHR, S_IFMT, S_IFREG};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::close;

use crate::heap::PAGE;
use crate::status::report;

/// A range that a dma-buf can start with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub(crate) bytes: u64,
}

impl Range {
    /// libfabric registers the dma-buf from offset 0, so the range must start at a page boundary.
    pub(crate) fn new(start: u64, bytes: u64) -> Result<Self, Errno> {
        let bytes = bytes.checked_next_multiple_of(PAGE).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or(Errno::EINVAL)?;
        start.checked_add(bytes).ok_or(Errno::EINVAL)?;
        match start % PAGE {
            0 => Ok(Self { start, bytes }),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Exports a range of a mapping that the program made on its own device.
pub(crate) fn export_of_process(thunk: &HlThunk, range: Range) -> Result<c_int, Errno> {
    let mut found: Option<c_int> = None;
    for fd in devices(thunk) {
        let Ok(exported) = export(thunk, fd, range) else {
            continue;
        };
        if let Some(first) = found {
            // This function created the descriptors, and nothing else uses them.
            let _ = (close(first), close(exported));
            report(format_args!(
                "{:#x} is mapped on two devices of this process (ENOTUNIQ)",
                range.start
            ));
            return Err(Errno::ENOTUNIQ);
        }
        found = Some(exported);
    }
    found.ok_or(Errno::EINVAL)
}

/// Exports from the mapping of a device that contains the range.
fn export(thunk: &HlThunk, fd: c_int, range: Range) -> Result<c_int, Errno> {
    let ip: HlInfoHwIpInfo = thunk.info(fd)?;
    let (first, page) = (ip.dram_base_address, ip.dram_page_size);
    let offset = range.start.checked_sub(first).ok_or(Errno::EINVAL)?;
    let pages = offset.checked_div(page).ok_or(Errno::EINVAL)?;
    // No mapping is larger than the device's memory.
    let starts = pages.saturating_sub(ip.dram_size / page)..=pages;
    let mut starts = starts.rev().map(|number| first + number * page);
    let exported = starts.find_map(|start| thunk.export(fd, start, range.bytes, range.start - start).ok());
    exported.ok_or(Errno::EINVAL)
}

/// Returns one descriptor for each device that the process has open.
fn devices(thunk: &HlThunk) -> Vec<c_int> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<c_int> = numbers.collect();
    numbers.sort_unstable();
    numbers.retain(|&fd| {
        // SAFETY: if another thread closes the descriptor, fstat(2) fails with EBADF.
        let Ok(file) = fstat(unsafe { BorrowedFd::borrow_raw(fd) }) else {
            return false;
        };
        let name = (file.st_dev, file.st_ino);
        // Descriptors of the same file belong to the same device.
        let is_new = may_be_device(fd, &file) && !files.contains(&name);
        let is_device = is_new && thunk.info::<HlInfoHwIpInfo>(fd).is_ok();
        if is_device {
            files.push(name);
        }
        is_device
    });
    numbers
}

/// Returns whether it is safe to query a descriptor for its device. Only the driver's nodes and
/// unnamed files, such as those of mocks, are: the request number could mean something else to
/// another file.
fn may_be_device(fd: c_int, file: &FileStat) -> bool {
    match file.st_mode & S_IFMT {
        S_IFREG => file.st_nlink == 0,
        S_IFCHR => fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|path| {
            let path = path.as_os_str().as_encoded_bytes();
            path.starts_with(b"/dev/accel/accel") || path.starts_with(b"/dev/hl")
        }),
        _ => false,
    }
}
