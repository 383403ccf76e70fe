//! sync_file: fences in a descriptor (linux/sync_file.h). Waiting for one is poll(2).

#![expect(
    unsafe_code,
    reason = "ioctl(2) takes a pointer; the structs are plain data and live across the call"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gaudi_uapi::dmabuf::{SYNC_IOC_FILE_INFO, SYNC_IOC_MERGE, SyncFenceInfo, SyncFileInfo, SyncMergeData};

use crate::SysResult;
use crate::ioctl::{ioctl, own};

/// The most fences that are read; of a file with more, only the number is returned.
const MOST: usize = 64;

/// Returns the file's state, and its fences if there are at most 64 (`SYNC_IOC_FILE_INFO`).
///
/// # Errors
/// `ENOTTY`: the descriptor is not a sync_file.
pub fn info(fd: impl AsFd) -> SysResult<(SyncFileInfo, Vec<SyncFenceInfo>)> {
    let mut file = SyncFileInfo::default();
    // SAFETY: the argument is a live `struct sync_file_info`
    // that requests no fences.
    unsafe { ioctl(&fd, SYNC_IOC_FILE_INFO, &raw mut file) }?;
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
    unsafe { ioctl(&fd, SYNC_IOC_FILE_INFO, &raw mut file) }?;
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
    // SAFETY: the argument is a live `struct
    // sync_merge_data`.
    unsafe { ioctl(one, SYNC_IOC_MERGE, &raw mut data) }?;
    // SAFETY: on success the kernel has put a new descriptor there that only this process owns.
    unsafe { own(data.fence) }
}
