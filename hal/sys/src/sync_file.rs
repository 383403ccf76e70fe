//! sync_file: fences in a descriptor (linux/sync_file.h). Waiting for one is poll(2).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use gaudi_uapi::dmabuf::{SyncFenceInfo, SyncFileInfo, SyncMergeData};

use crate::{Errno, SysResult};

mod raw {
    use gaudi_uapi::dmabuf::{SyncFileInfo, SyncMergeData};
    nix::ioctl_readwrite!(sync_ioc_merge, b'>', 3, SyncMergeData);
    nix::ioctl_readwrite!(sync_ioc_file_info, b'>', 4, SyncFileInfo);
}

/// The most fences that are read; of a file with more, only the number is returned.
const MOST: usize = 64;

/// Returns the file's state, and its fences if there are at most 64 (`SYNC_IOC_FILE_INFO`).
///
/// # Errors
/// `ENOTTY`: the descriptor is not a sync_file.
pub fn info(fd: impl AsFd) -> SysResult<(SyncFileInfo, Vec<SyncFenceInfo>)> {
    let mut file = SyncFileInfo::default();
    // SAFETY: the fd is open for the whole call and the argument is a live `struct sync_file_info`
    // that requests no fences.
    unsafe { raw::sync_ioc_file_info(fd.as_fd().as_raw_fd(), &raw mut file) }?;
    // A u32 fits; otherwise it is above MOST.
    let count = usize::try_from(file.num_fences).unwrap_or(usize::MAX);
    if count > MOST {
        return Ok((file, Vec::new()));
    }
    let mut fences = vec![SyncFenceInfo::default(); count];
    file = SyncFileInfo {
        num_fences: file.num_fences,
        sync_fence_info: fences.as_mut_ptr().expose_provenance() as u64,
        ..SyncFileInfo::default()
    };
    // SAFETY: as above; the kernel writes at most `num_fences` structs at the address of as many
    // live ones.
    unsafe { raw::sync_ioc_file_info(fd.as_fd().as_raw_fd(), &raw mut file) }?;
    // The kernel returns as many as it wrote.
    fences.truncate(usize::try_from(file.num_fences).unwrap_or(0));
    Ok((file, fences))
}

/// Returns a sync_file that is signalled when both are (`SYNC_IOC_MERGE`).
///
/// # Errors
/// - `ENOENT`: `other` is not a sync_file.
/// - `ENOTTY`: `one` is not a sync_file.
pub fn merge(one: impl AsFd, other: impl AsFd) -> SysResult<OwnedFd> {
    let mut data = SyncMergeData {
        fd2: other.as_fd().as_raw_fd(),
        fence: -1,
        ..SyncMergeData::default()
    };
    let name = b"gaudi";
    data.name[..name.len()].copy_from_slice(name);
    // SAFETY: both fds are open for the whole call and the argument is a live `struct
    // sync_merge_data`.
    unsafe { raw::sync_ioc_merge(one.as_fd().as_raw_fd(), &raw mut data) }?;
    if data.fence < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: on success the kernel has put a new descriptor there that only this process owns.
    Ok(unsafe { OwnedFd::from_raw_fd(data.fence) })
}
