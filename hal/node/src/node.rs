//! [`VirtualNode`].

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

/// An open node whose user is a program with a file descriptor.
///
/// Dropping it closes the node: the objects of its context are freed, also while the program has
/// the descriptor. The owner drops it once [`is_released`](Self::is_released) returns true, and
/// before it opens the device again.
///
/// In a fork child every ioctl fails with `ENODEV`, and dropping it changes nothing.
pub struct VirtualNode {
    // Before the backing: the last descriptor of the driver's file closes with it.
    io: SharedIo,
    backing: Backing,
    identity: FileId,
    owner: OwnerProcess,
}

impl VirtualNode {
    /// Opens a node. The descriptor, close-on-exec, is the program's.
    ///
    /// # Errors
    /// - Those of [`gaudi_hal::open`] or [`gaudi_hal::control`]: `Busy` (`EBUSY`) if the device has
    ///   another compute node, also one that is released but not dropped.
    /// - `TooManyFiles` (`EMFILE`): no descriptor is free.
    /// - `Unsupported` (`ENOSYS`): there is no `/proc`.
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

    /// Performs an ioctl on the program's descriptor ([`gaudi_codec::serve`]). `request` may have
    /// the number of any of the driver's interfaces; `arg` is the argument's bytes.
    ///
    /// # Errors
    /// The errno of ioctl(2); `ENODEV` in a fork child.
    ///
    /// # Safety
    /// - As [`gaudi_codec::serve`]: where the argument maps host memory, the program keeps the
    ///   promise of [`KernelIo::mem_map_host`](gaudi_seam::KernelIo::mem_map_host).
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
        // SAFETY: the caller's promise.
        unsafe { gaudi_codec::serve(&*self.io, request, arg, memory) }
    }

    /// Whether every duplicate of the program's descriptor is closed. On the mock those of other
    /// processes count too, and mappings; on the driver they keep the file open themselves.
    ///
    /// False if the kernel does not answer, and in a fork child.
    pub fn is_released(&self) -> bool {
        !self.owner.is_foreign() && self.backing.is_released().unwrap_or(false)
    }

    /// The device and inode number (`st_dev`, `st_ino`) that fstat(2) reports of the descriptor and
    /// its duplicates. Nodes of the driver have those of the device node.
    pub fn identity(&self) -> (u64, u64) {
        (self.identity.device, self.identity.inode)
    }
}

impl Drop for VirtualNode {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            // The node is the parent's: its destructor would run on memory that both share.
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
