//! [`VirtualNode`]: an open node and the descriptor that a program uses it through.

#![expect(unsafe_code, reason = "an ioctl's argument can map host memory to the device")]

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gaudi_codec::UserMemory;
use gaudi_hal::DeviceSpec;
use gaudi_seam::{Error, NodeKind, Result, SharedIo};
use gaudi_sys::Errno;
use gaudi_sys::fd::{FileId, file_id};
use gaudi_sys::fork::OwnerProcess;

use crate::backing::Backing;

/// An open node that a program uses through a file descriptor.
///
/// Dropping it closes the node and frees the objects of its context, even if the program still
/// holds the descriptor. The owner drops it when [`is_released`](Self::is_released) returns true,
/// and before it opens the device again.
///
/// In a fork child every ioctl fails with `ENODEV`, and drop has no effect.
pub struct VirtualNode {
    // Dropped before `backing`, whose entry must exist until this descriptor is closed.
    io: SharedIo,
    backing: Backing,
    identity: FileId,
    owner: OwnerProcess,
}

impl VirtualNode {
    /// Opens a node. Returns it and the program's descriptor, which is close-on-exec.
    ///
    /// # Errors
    /// - The errors of [`gaudi_hal::open`] or [`gaudi_hal::control`]: `Busy` (`EBUSY`) if the
    ///   device has another compute node, including one that is released but not dropped.
    /// - `TooManyFiles` (`EMFILE`): the process has reached its descriptor limit.
    /// - `Unsupported` (`ENOSYS`): `/proc` is not mounted.
    pub fn open(spec: &DeviceSpec, kind: NodeKind) -> Result<(Self, OwnedFd)> {
        let (io, file) = gaudi_hal::open_for_program(spec, kind)?;
        let failed = |errno| Error::from_errno("open", errno).on(io.node().device);
        let (backing, fd) = Backing::of(file).map_err(failed)?;
        let identity = file_id(&fd).map_err(failed)?;
        let node = Self {
            io,
            backing,
            identity,
            owner: OwnerProcess::current(),
        };
        Ok((node, fd))
    }

    /// Performs an ioctl on the program's descriptor ([`gaudi_codec::serve`]). `request` is a
    /// request number of any driver interface; `arg` holds the argument's bytes.
    ///
    /// # Errors
    /// The errno of ioctl(2); `ENODEV` in a fork child.
    ///
    /// # Safety
    /// - As [`gaudi_codec::serve`]: if the argument maps host memory, the program meets the
    ///   requirements of [`KernelIo::mem_map_host`](gaudi_seam::KernelIo::mem_map_host).
    #[inline]
    pub unsafe fn ioctl(
        &self,
        request: u32,
        arg: &mut [u8],
        memory: &dyn UserMemory,
    ) -> std::result::Result<(), Errno> {
        if self.owner.is_foreign() {
            return Err(Errno::ENODEV);
        }
        // SAFETY: the caller meets the same requirements.
        unsafe { gaudi_codec::serve(&*self.io, request, arg, memory) }
    }

    /// Returns whether every duplicate of the program's descriptor is closed. On the mock, mappings
    /// and duplicates in other processes count as well; on the driver, those keep the driver's file
    /// open by themselves.
    ///
    /// Returns false if the kernel cannot report it, and in a fork child.
    pub fn is_released(&self) -> bool {
        !self.owner.is_foreign() && self.backing.is_released().unwrap_or(false)
    }

    /// Returns the device and inode number (`st_dev`, `st_ino`) that fstat(2) reports for the
    /// descriptor and its duplicates. On the driver, these are the numbers of the device node.
    pub fn identity(&self) -> (u64, u64) {
        (self.identity.device, self.identity.inode)
    }
}

impl Drop for VirtualNode {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            // The node belongs to the parent: its destructor would change memory that both
            // processes share.
            std::mem::forget(Arc::clone(&self.io));
        }
    }
}

impl fmt::Debug for VirtualNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualNode")
            .field("node", self.io.node())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
