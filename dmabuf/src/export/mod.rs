//! The exporters: who makes dma-bufs, each with its rules checked beforehand.

pub mod habanalabs;
pub mod heap;
pub mod stand_in;
pub mod udmabuf;
pub mod vfio;

use std::path::Path;

use gaudi_seam::{Errno, Error, HostVa, Result};
use gaudi_sys::PAGE;

use crate::buffer::DmaBuf;

/// Why ordinary memory of a process (malloc, a stack, an anonymous mapping) cannot leave as a dma-buf: always an error.
///
/// A dma-buf is a file; memory that was not made as a part of a file cannot become one, and no exporter of the kernel takes addresses.
pub fn process_memory(address: HostVa, len: u64) -> Result<DmaBuf> {
    Err(Error::unsupported(
        "dma-buf export",
        "ordinary memory of a process has no file behind it, and no exporter of the kernel takes addresses",
    )
    .saw(format!("{len} bytes at {address}"), "a sealed memfd, or a heap's memory")
    .helped_by(
        "allocate the memory as a memfd and export it with Udmabuf::export, or take it from Heap::allocate, and map that; to let a \
         device use the memory where it is, pin it (HL_MEM_USERPTR) or register it with the NIC (ibv_reg_mr)",
    ))
}

/// Refuses what would take more memory than the machine has free: exporters allocate every page at once, without asking, and the kernel
/// kills processes to find them.
fn check_room(operation: &'static str, new_bytes: u64, source: &Path) -> Result<()> {
    // Without /proc/meminfo there is nothing to compare with.
    let Some(free) = available(source) else {
        return Ok(());
    };
    if new_bytes <= free {
        return Ok(());
    }
    Err(Error::from_errno(operation, Errno::ENOMEM)
        .because("the machine has not so much memory free, and the kernel would kill processes to find it")
        .saw(format!("{new_bytes} bytes"), format!("at most {free}"))
        .helped_by("ask for less, or free memory (MemAvailable in /proc/meminfo)"))
}

const MEMINFO: &str = "/proc/meminfo";

/// `MemAvailable` in bytes (proc_meminfo(5)).
fn available(source: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(source).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Refuses a range that is empty, not made of whole pages, or leaves what holds it.
fn check_pages(operation: &'static str, offset: u64, len: u64, whole: u64) -> Result<()> {
    let wrong = |cause: &str, seen: String, wanted: String| {
        Err(Error::from_errno(operation, Errno::EINVAL)
            .because(cause)
            .saw(seen, wanted))
    };
    let whole_pages = || format!("a multiple of {PAGE}");
    if offset % PAGE != 0 {
        return wrong(
            "the offset is not page aligned",
            format!("{offset:#x}"),
            whole_pages(),
        );
    }
    if len == 0 {
        return wrong("nothing to export", "0 bytes".into(), format!("at least {PAGE}"));
    }
    if len % PAGE != 0 {
        return wrong(
            "the size is not a multiple of the page",
            format!("{len:#x}"),
            whole_pages(),
        );
    }
    if offset.checked_add(len).is_none_or(|end| end > whole) {
        return wrong(
            "the range leaves the memory",
            format!("{len:#x} bytes at offset {offset:#x}"),
            format!("inside {whole:#x} bytes"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_read_and_more_is_refused() {
        let file = std::env::temp_dir().join(format!("gaudi-meminfo-{}", std::process::id()));
        std::fs::write(&file, "MemTotal:  9 kB\nMemAvailable:   2048 kB\n").unwrap();
        assert_eq!(available(&file), Some(2 << 20));
        assert!(check_room("test", 2 << 20, &file).is_ok());
        let error = check_room("test", (2 << 20) + 1, &file).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOMEM), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(
            check_room("test", u64::MAX, &file).is_ok(),
            "nothing to compare with"
        );
    }
}
