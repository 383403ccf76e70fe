//! The interface of an open node, asked of the node itself.
//!
//! The name does not decide: the accel nodes of the vendor's driver before DRM have today's names,
//! and `/dev/accel` is shared with other vendors' drivers. Two ioctls decide, and change nothing:
//! - `DRM_IOCTL_VERSION` on a compute node. Every DRM driver returns its name; the driver before
//!   DRM has no ioctl of number 0 and returns ENOTTY.
//! - INFO without a buffer. A driver that knows the number returns EINVAL, another ENOTTY. On a
//!   control node DRM's number comes first: no other driver has control nodes
//!   (common/habanalabs_ioctl.c:hl_ioctl_control).

#![expect(
    unsafe_code,
    reason = "DRM_IOCTL_VERSION carries the address that the name is written to"
)]

use std::os::fd::BorrowedFd;

use gaudi_seam::{Era, NodeKind};
use gaudi_sys::{Errno, SysResult, uninterrupted};
use gaudi_uapi::Ioctl;
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use zerocopy::IntoBytes as _;

use crate::system::Syscalls;

/// The driver of a node that is not habanalabs'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Another DRM driver, by name.
    Driver(String),
    /// A driver that knows none of the ioctls.
    Unknown,
}

/// The interface of an open accel node.
pub(crate) fn era_of(
    system: &(impl Syscalls + ?Sized),
    fd: BorrowedFd<'_>,
    kind: NodeKind,
) -> Result<Era, Stranger> {
    if kind == NodeKind::Compute {
        match drm_driver(system, fd) {
            Ok(name) if name == DRIVER_NAME => return Ok(Era::AccelDrm),
            Ok(name) => return Err(Stranger::Driver(name)),
            Err(Errno::ENOTTY) => {}
            // A DRM driver that cannot answer now: the next call returns the reason.
            Err(_) => return Ok(Era::AccelDrm),
        }
    } else if knows_info(system, fd, Era::AccelDrm) {
        return Ok(Era::AccelDrm);
    }
    if knows_info(system, fd, Era::AccelH) {
        return Ok(Era::AccelH);
    }
    Err(Stranger::Unknown)
}

fn drm_driver(system: &(impl Syscalls + ?Sized), fd: BorrowedFd<'_>) -> SysResult<String> {
    let mut name = [0u8; 32];
    let mut version = DrmVersion {
        name_len: name.len() as u64,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..DrmVersion::default()
    };
    // SAFETY: DRM writes `name_len` bytes at most at `name`, ours alone; the other two lengths are
    // 0.
    uninterrupted(|| unsafe { system.ioctl(fd, DRM_IOCTL_VERSION, version.as_mut_bytes()) })?;
    let len = usize::try_from(version.name_len).map_or(name.len(), |len| len.min(name.len()));
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

fn knows_info(system: &(impl Syscalls + ?Sized), fd: BorrowedFd<'_>, era: Era) -> bool {
    let Some(request) = era.request(Ioctl::Info) else {
        return false;
    };
    let mut args = HlInfoArgs::new(InfoOp::DEVICE_STATUS, 0, 0, 0);
    // SAFETY: with no address and a size of 0 the driver writes nothing.
    let answer = uninterrupted(|| unsafe { system.ioctl(fd, request, args.as_mut_bytes()) });
    answer != Err(Errno::ENOTTY)
}
