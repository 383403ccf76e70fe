//! dma-heaps: memory that is made as a dma-buf (drivers/dma-buf/heaps).

use std::os::fd::OwnedFd;
use std::path::Path;

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::{PAGE, heap};

use super::OPEN_FLAGS;
use super::meminfo::{MEMINFO, check_room};
use crate::buffer::DmaBuf;
use crate::part::wrong;

const OPERATION: &str = "DMA_HEAP_IOCTL_ALLOC";

/// A heap, open.
#[derive(Debug)]
pub struct Heap {
    name: String,
    node: OwnedFd,
}

impl Heap {
    /// Returns the heaps of this machine by name, sorted; none if the kernel has no heaps.
    ///
    /// # Errors
    /// readdir(3)'s on `/dev/dma_heap`.
    pub fn list() -> Result<Vec<String>> {
        match heap::list() {
            Err(Errno::ENOENT) => Ok(Vec::new()),
            answer => answer.map_err(|errno| Error::from_errno("read /dev/dma_heap", errno)),
        }
    }

    /// Opens a heap by its name.
    ///
    /// # Errors
    /// - `NotFound`: there is no such heap; the error names those that exist.
    /// - `InvalidInput`: the name is a path.
    /// - `PermissionDenied`: heaps are root's unless a udev rule gives them to a group.
    pub fn open(name: &str) -> Result<Self> {
        const OPERATION: &str = "open a dma-heap";
        let node = heap::open(name).map_err(|errno| {
            let error = Error::from_errno(OPERATION, errno);
            match errno {
                Errno::ENOENT => {
                    // The list is a hint only; `open` has its own error.
                    let there = Self::list().unwrap_or_default();
                    let wanted = if there.is_empty() {
                        "a kernel with CONFIG_DMABUF_HEAPS".to_owned()
                    } else {
                        format!("one of {}", there.join(", "))
                    };
                    error
                        .because("there is no such heap")
                        .saw(format!("{name:?}"), wanted)
                }
                Errno::EINVAL => error
                    .because("this is no name of a heap")
                    .saw(format!("{name:?}"), "a file's name in /dev/dma_heap"),
                Errno::EACCES | Errno::EPERM => error
                    .because("the user may not open the heap")
                    .helped_by("heaps are root's unless a udev rule gives them to a group"),
                _ => error,
            }
        })?;
        Ok(Self {
            name: name.to_owned(),
            node,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes a dma-buf of `len` bytes, rounded up to pages: zeroed, readable and writable,
    /// close-on-exec.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0, or rounding it wraps.
    /// - `OutOfMemory`: the machine has less free memory. The heap itself has no limit.
    #[track_caller]
    pub fn allocate(&self, len: u64) -> Result<DmaBuf> {
        check(len, Path::new(MEMINFO))?;
        let fd = heap::allocate(&self.node, len, OPEN_FLAGS, 0).map_err(|errno| {
            let error = Error::from_errno(OPERATION, errno);
            match errno {
                Errno::ENOMEM => error.because(format!("the heap {} has not so much memory", self.name)),
                _ => error,
            }
        })?;
        DmaBuf::from_fd(fd)
    }
}

fn check(len: u64, meminfo: &Path) -> Result<()> {
    let rounded = len
        .checked_next_multiple_of(PAGE)
        .filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok());
    let Some(bytes) = rounded else {
        let cause = "no memory can have so many bytes";
        return Err(wrong(OPERATION, cause, len, "at least 1, and fewer than 2^63"));
    };
    check_room(OPERATION, bytes, meminfo)
}

#[cfg(test)]
mod tests {
    use gaudi_seam::ErrorKind;

    use super::*;

    #[test]
    fn impossible_lengths_are_refused() {
        for wrong in [0, u64::MAX, u64::MAX - 4095, 1 << 63] {
            let error = check(wrong, Path::new("/none")).unwrap_err();
            assert_eq!(error.errno(), Some(Errno::EINVAL), "{wrong}: {error}");
        }
        assert!(check(1, Path::new("/none")).is_ok());
        let error = check(1 << 50, Path::new(MEMINFO)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    }

    #[test]
    fn a_missing_heap_is_not_found() {
        let error = Heap::open("no-such-heap").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("no-such-heap"), "{error}");
        assert_eq!(Heap::open("../null").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
