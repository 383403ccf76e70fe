//! [`Kernel`]: an open node and its ioctls, one at a time.

#![expect(
    unsafe_code,
    reason = "ioctls carry addresses that the kernel reads and writes"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use gaudi_codec::address_mut;
use gaudi_seam::{Error, ErrorKind, Node, NodeKind, Operation, Result, Rule};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{Errno, RawMapping, SysResult, uninterrupted};
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::{DeviceStatus, HlInfoArgs, HlInfoDeviceStatus, InfoOp};
use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

use crate::dialect::Dialect;
use crate::system::{Syscalls, System};

/// An open node of the driver. Made by [`Driver::open`](crate::Driver::open).
///
/// Dropping it closes the file. The driver then releases the context and resets the device; while
/// an exported dma-buf lives, the device stays busy.
pub struct Kernel<S: Syscalls + ?Sized = System> {
    pub(crate) node: Node,
    pub(crate) dialect: Dialect,
    fd: OwnedFd,
    system: Arc<S>,
    owner: OwnerProcess,
    /// The process in which the file takes more than INFO: `owner` for a compute node, none for a
    /// control node. One comparison checks both.
    serves: OwnerProcess,
    /// Request numbers in the order of [`Ioctl`]. 0, which no driver knows, for a missing one.
    requests: [u32; Ioctl::ALL.len()],
}

impl<S: Syscalls + ?Sized> std::fmt::Debug for Kernel<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The open file of the node. A duplicate of it keeps the device open.
impl<S: Syscalls + ?Sized> AsFd for Kernel<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: Syscalls + ?Sized> Kernel<S> {
    pub(crate) fn new(node: Node, fd: OwnedFd, system: Arc<S>, dialect: Dialect) -> Self {
        let owner = OwnerProcess::current();
        let serves = match node.kind {
            NodeKind::Compute => owner,
            NodeKind::Control => OwnerProcess::none(),
        };
        // An era lacks at most the NIC's ioctl, which this backend never makes.
        let requests = Ioctl::ALL.map(|ioctl| node.era.request(ioctl).unwrap_or(0));
        Self {
            node,
            dialect,
            fd,
            system,
            owner,
            serves,
            requests,
        }
    }

    /// Rejects calls in a fork child, and all but INFO on a control node.
    #[inline]
    pub(crate) fn admit(&self, operation: Operation, info: bool) -> Result<()> {
        if self.owner.is_foreign() || (!info && self.node.kind == NodeKind::Control) {
            return Err(self.not_admitted(operation));
        }
        Ok(())
    }

    /// Whether the file takes more than INFO in this process.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        !self.serves.is_foreign()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn not_admitted(&self, operation: Operation) -> Error {
        if self.owner.is_foreign() {
            return Error::new(ErrorKind::Forked, operation.kernel_name())
                .on(self.node.device)
                .because("the device was opened by the parent of this process")
                .helped_by("open the device in the child");
        }
        Error::unsupported(
            operation.kernel_name(),
            "a control node serves HL_IOCTL_INFO only",
        )
        .with_errno(Errno::ENOTTY)
        .on(self.node.device)
    }

    /// One ioctl, once.
    ///
    /// # Safety
    /// - As [`Syscalls::ioctl`].
    #[inline]
    pub(crate) unsafe fn once<A: FromBytes + IntoBytes>(&self, ioctl: Ioctl, args: &mut A) -> SysResult<()> {
        debug_assert_eq!(size_of::<A>(), ioctl.args_size(), "the argument of {ioctl}");
        let request = self.requests[usize::from(ioctl.index())];
        // SAFETY: the caller's promise.
        unsafe { self.system.ioctl(self.fd.as_fd(), request, args.as_mut_bytes()) }
    }

    /// One ioctl, repeated after each signal: the driver has done nothing when it returns EINTR.
    /// The argument is restored each time, because a failed call leaves any value in it.
    ///
    /// # Safety
    /// - As [`Syscalls::ioctl`].
    #[inline]
    pub(crate) unsafe fn again<A: FromBytes + IntoBytes + Copy>(
        &self,
        ioctl: Ioctl,
        args: &mut A,
    ) -> SysResult<()> {
        let asked = *args;
        uninterrupted(|| {
            *args = asked;
            // SAFETY: the caller's promise; the argument is the same each time.
            unsafe { self.once(ioctl, args) }
        })
    }

    pub(crate) fn info(&self, op: InfoOp, arg: u32, answer: &mut [u8]) -> (u32, SysResult<()>) {
        answer.fill(0);
        // No struct of the driver is longer than 4 GiB: the driver copies at most its own.
        let size = u32::try_from(answer.len()).unwrap_or(u32::MAX);
        let mut args = HlInfoArgs::new(op, address_mut(answer), size, arg);
        // SAFETY: INFO accesses at most `return_size` bytes at `return_pointer`, which is `answer`,
        // borrowed mutably.
        let result = unsafe { self.again(Ioctl::Info, &mut args) };
        (args.arg, result)
    }

    /// The device's status. `None` if the device does not answer.
    pub(crate) fn status(&self) -> Option<DeviceStatus> {
        let mut answer = HlInfoDeviceStatus::new_zeroed();
        let (_, result) = self.info(InfoOp::DEVICE_STATUS, 0, answer.as_mut_bytes());
        result.ok().map(|()| answer.status)
    }

    /// mmap(2) of the file.
    pub(crate) fn mmap(&self, offset: u64, len: usize) -> SysResult<RawMapping> {
        self.system.mmap(self.fd.as_fd(), offset, len)
    }

    /// An argument that the driver would misread.
    pub(crate) fn invalid(&self, operation: Operation, cause: &str, seen: usize, wanted: &str) -> Error {
        Error::from_errno(operation.kernel_name(), Errno::EINVAL)
            .on(self.node.device)
            .because(cause)
            .saw(seen, wanted)
    }

    /// The error of a failed call. `EAGAIN` allocates nothing; for `EBUSY` and `EPERM` the device's
    /// status decides the kind.
    pub(crate) fn failed(&self, operation: Operation, errno: Errno) -> Error {
        self.failed_request(operation, None, errno)
    }

    /// As [`failed`](Self::failed), for an INFO op or a kind of submission.
    pub(crate) fn failed_request(&self, operation: Operation, request: Option<&str>, errno: Errno) -> Error {
        let name = operation.kernel_name();
        let device = self.node.device;
        if errno == Errno::EAGAIN {
            return Error::would_block(name).on(device);
        }
        let error = Error::from_errno(name, errno)
            .on(device)
            .with_kind(ErrorKind::of_operation(operation, errno));
        let status = match errno {
            Errno::EBUSY | Errno::EPERM => self.status(),
            _ => None,
        };
        match (status, &*Rule::fitting(operation, request, errno)) {
            (Some(status), _) if status != DeviceStatus::OPERATIONAL => {
                let (kind, help) = self.not_operational(status);
                error
                    .with_kind(kind)
                    .because(format!("the device is {status}"))
                    .helped_by(help)
            }
            (_, []) => error,
            (_, [rule]) => self.refused(operation, rule),
            (_, rules) => {
                let error = error.because(Rule::conditions(rules));
                match Rule::advices(rules) {
                    Some(advices) => error.helped_by(advices),
                    None => error,
                }
            }
        }
    }

    /// The error of a request that this rule of the driver rejects.
    pub(crate) fn refused(&self, operation: Operation, rule: &'static Rule) -> Error {
        Error::from_rule(operation, rule).on(self.node.device)
    }

    fn not_operational(&self, status: DeviceStatus) -> (ErrorKind, &'static str) {
        let passing = matches!(
            status,
            DeviceStatus::IN_RESET
                | DeviceStatus::IN_DEVICE_CREATION
                | DeviceStatus::IN_RESET_AFTER_DEVICE_RELEASE
        );
        match (self.node.kind, passing) {
            // A reset ends the objects of a compute node; a control node has none.
            (NodeKind::Compute, _) => (
                ErrorKind::DeviceLost,
                "close the device; open it again when it is operational",
            ),
            (NodeKind::Control, true) => (ErrorKind::InReset, "ask again in a second"),
            (NodeKind::Control, false) => (
                ErrorKind::DeviceLost,
                "see the kernel's log (dmesg) for the cause",
            ),
        }
    }
}
