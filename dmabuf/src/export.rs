//! Export of mapped device memory, with the driver's rules checked beforehand.

use std::os::fd::OwnedFd;

use gaudi_seam::{DeviceVa, Errno, Error, ErrorKind, ExportRequest, KernelIo, Result};
use gaudi_sys::PAGE;
use nix::fcntl::OFlag;

use crate::buffer::DmaBuf;

const OPERATION: &str = "HL_MEM_OP_EXPORT_DMABUF_FD";

/// A part of one device memory mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// The address that `HL_MEM_OP_MAP` returned: the start of the mapping.
    pub mapping: DeviceVa,
    /// Bytes of the mapping; a multiple of the device page, so mostly more than was asked for.
    pub mapping_len: u64,
    /// First byte, from the start of the mapping; a multiple of 4096.
    pub offset: u64,
    /// Bytes; a multiple of 4096, not 0.
    pub len: u64,
}

/// Exports a part of a mapping as a dma-buf, close-on-exec, readable and writable.
///
/// The driver logs its refusals at debug level only (memory.c, `export_dmabuf_from_addr` and its checks), so its rules are checked
/// here first, with its errno. Rules that only it can check are listed in the error when it refuses.
pub fn export(io: &dyn KernelIo, export: Export) -> Result<DmaBuf> {
    let device = io.node().device;
    check(&export).map_err(|error| error.on(device))?;
    let request = ExportRequest {
        address: export.mapping,
        size: export.len,
        offset: export.offset,
        flags: u32::try_from((OFlag::O_CLOEXEC | OFlag::O_RDWR).bits()).unwrap_or(0),
    };
    let fd: OwnedFd = io.export_dmabuf(request).map_err(explain)?;
    let dmabuf = DmaBuf::from_fd(fd).map_err(|error| error.on(device))?;
    if dmabuf.size() != export.len {
        return Err(Error::new(ErrorKind::Protocol, OPERATION)
            .because("the export has another size than was asked for")
            .saw(dmabuf.size(), export.len)
            .on(device));
    }
    Ok(dmabuf)
}

fn check(export: &Export) -> Result<()> {
    let wrong = |cause: &str, seen: String, wanted: String| {
        Err(Error::from_errno(OPERATION, Errno::EINVAL)
            .because(cause)
            .saw(seen, wanted))
    };
    let whole_pages = format!("a multiple of {PAGE}");
    if !export.mapping.is_aligned(PAGE) {
        return wrong(
            "the mapping's address is not page aligned",
            export.mapping.to_string(),
            whole_pages,
        );
    }
    if export.offset % PAGE != 0 {
        return wrong(
            "the offset is not page aligned",
            format!("{:#x}", export.offset),
            whole_pages,
        );
    }
    if export.len == 0 {
        return wrong("nothing to export", "0 bytes".into(), format!("at least {PAGE}"));
    }
    if export.len % PAGE != 0 {
        return wrong(
            "the size is not a multiple of the page",
            format!("{:#x}", export.len),
            whole_pages,
        );
    }
    // The driver adds the two without looking for overflow; here it is refused.
    let end = export.offset.checked_add(export.len);
    if end.is_none_or(|end| end > export.mapping_len) {
        return wrong(
            "the range leaves the mapping",
            format!("{:#x} bytes at offset {:#x}", export.len, export.offset),
            format!("inside {:#x} bytes", export.mapping_len),
        );
    }
    Ok(())
}

/// Adds what the driver's bare errno can still mean once the checks above have passed.
fn explain(error: Error) -> Error {
    if error.evidence().is_some() {
        return error;
    }
    match error.errno() {
        Some(Errno::EINVAL) => error
            .because("the driver refused a request that looks right")
            .helped_by(
                "the address must be one that HL_MEM_OP_MAP returned for device memory, and every page of that mapping must lie \
                 inside the DRAM BAR",
            ),
        Some(Errno::EBUSY) => error
            .because("the device is not operational")
            .helped_by("wait until its status is operational again"),
        _ => error,
    }
}
