//! Which interface an open node speaks, asked of the node itself.
//!
//! Names do not tell: the accel nodes of the vendor's driver before DRM and those of today have the same ones, and
//! `/dev/accel` is shared with other vendors' drivers. Two questions tell, neither of which changes anything:
//! - `DRM_IOCTL_VERSION` to a compute node. Every DRM driver answers it with its name; the driver before DRM has no
//!   ioctl of number 0 and answers ENOTTY.
//! - INFO without a buffer to write to. A driver that knows the number answers EINVAL, one that does not ENOTTY. To a
//!   control node it goes with DRM's number first: no other driver has control nodes, and the number decides alone
//!   there (common/habanalabs_ioctl.c:1309).

#![expect(
    unsafe_code,
    reason = "DRM_IOCTL_VERSION carries the address that the name is written to"
)]

use std::os::fd::BorrowedFd;

use gaudi_seam::{Era, NodeKind};
use gaudi_sys::{Errno, SysResult};
use gaudi_uapi::Ioctl;
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use zerocopy::IntoBytes as _;

use crate::system::Syscalls;

/// A node that is not habanalabs'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Another DRM driver's, by its name.
    Driver(String),
    /// It knows none of the ioctls.
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
            // DRM's, but in no state to answer: the next call says why.
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
    // SAFETY: DRM writes `name_len` bytes at most at `name`, ours alone; the other two lengths are 0.
    asked(|| unsafe { system.ioctl(fd, DRM_IOCTL_VERSION, version.as_mut_bytes()) })?;
    let len = usize::try_from(version.name_len).map_or(name.len(), |len| len.min(name.len()));
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

fn knows_info(system: &(impl Syscalls + ?Sized), fd: BorrowedFd<'_>, era: Era) -> bool {
    let Some(request) = era.request(Ioctl::Info) else {
        return false;
    };
    let mut args = HlInfoArgs::new(InfoOp::DEVICE_STATUS, 0, 0, 0);
    // SAFETY: with no address and a size of 0 the driver writes nothing.
    let answer = asked(|| unsafe { system.ioctl(fd, request, args.as_mut_bytes()) });
    answer != Err(Errno::ENOTTY)
}

/// Asks again after each signal.
fn asked(mut question: impl FnMut() -> SysResult<()>) -> SysResult<()> {
    loop {
        match question() {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}
