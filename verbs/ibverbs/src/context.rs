//! [`Opened`]: an open NIC, which all its objects hold.

#![expect(
    unsafe_code,
    reason = "opening, querying and closing a device are calls into libibverbs"
)]

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_verbs::PortState;
use gaudi_verbs_sys::Library;
use gaudi_verbs_sys::inline::ibv_query_port;
use gaudi_verbs_sys::types::{ibv_context, ibv_device, ibv_device_attr, ibv_port_attr};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::errors::check;
use crate::list::NicInfo;
use crate::objects::Object;

/// Makes reads of a descriptor of the library fail with `EAGAIN` instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// An open device. It closes when its last object is dropped.
pub(crate) struct Opened {
    pub(crate) library: &'static Library,
    context: Object<ibv_context>,
    pub(crate) nic: NicInfo,
    pub(crate) port: u8,
    pub(crate) gid_index: Option<u32>,
    owner: OwnerProcess,
}

impl Opened {
    /// Opens a device. Uses `port`, or the first active one; see
    /// [`OpenOptions`](crate::OpenOptions).
    pub(crate) fn open(
        library: &'static Library,
        device: &ibv_device,
        nic: NicInfo,
        port: Option<u8>,
        gid_index: Option<u32>,
    ) -> Result<Self> {
        const OPERATION: &str = "ibv_open_device";
        // SAFETY: the device is one of the library's array, which lives.
        let context = unsafe { (library.symbols().ibv_open_device)(std::ptr::from_ref(device).cast_mut()) };
        let context = Object::new(OPERATION, context).map_err(|error| match error.errno() {
            Some(Errno::EACCES | Errno::EPERM) => error.helped_by(format!(
                "run as a user with access to /dev/infiniband/{}",
                nic.uverbs
            )),
            _ => error,
        })?;
        let mut opened = Self {
            library,
            context,
            nic,
            port: 1,
            gid_index,
            owner: OwnerProcess::current(),
        };
        set_nonblocking(opened.fds().1).map_err(|errno| Error::from_errno(OPERATION, errno))?;
        opened.port = opened.choose_port(port)?;
        Ok(opened)
    }

    /// Returns whether this is a fork child of the process that opened it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.owner.is_foreign()
    }

    /// Returns the pointer for calls into the library.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Returns the descriptors of commands and of asynchronous events.
    pub(crate) fn fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        // SAFETY: the context is live and its descriptors do not change.
        let (cmd, events): (RawFd, RawFd) = unsafe {
            let context = self.context.0.as_ref();
            (context.cmd_fd, context.async_fd)
        };
        // SAFETY: the context owns it and outlives the borrow.
        let cmd = unsafe { BorrowedFd::borrow_raw(cmd) };
        // SAFETY: as above.
        (cmd, unsafe { BorrowedFd::borrow_raw(events) })
    }

    pub(crate) fn attr(&self) -> Result<ibv_device_attr> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: the context is live and the struct is ours.
        let answer = unsafe { (self.library.symbols().ibv_query_device)(self.context(), &raw mut attr) };
        check("ibv_query_device", answer).map(|()| attr)
    }

    pub(crate) fn port_attr(&self, port: u8) -> Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::zeroed();
        // SAFETY: the context is live and the struct is ours.
        let answer = unsafe { ibv_query_port(self.library.symbols(), self.context(), port, &mut attr) };
        check("ibv_query_port", answer).map(|()| attr)
    }

    fn choose_port(&self, asked: Option<u8>) -> Result<u8> {
        const OPERATION: &str = "ibv_open_device";
        let ports = self.attr()?.phys_port_cnt.max(1);
        match asked {
            Some(port) if (1..=ports).contains(&port) => Ok(port),
            Some(port) => Err(Error::from_errno(OPERATION, Errno::EINVAL)
                .because("the NIC has no such port")
                .saw(port, format!("1 to {ports}"))),
            None => {
                let active = |port: &u8| {
                    let attr = self.port_attr(*port);
                    attr.is_ok_and(|attr| attr.state == u32::from(PortState::ACTIVE.0))
                };
                Ok((1..=ports).find(active).unwrap_or(1))
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_foreign() {
            // The parent of this fork child uses it. The kernel closes the child's descriptors.
            return;
        }
        // SAFETY: every object holds an `Arc` of this, so no object exists.
        let answer = unsafe { (self.library.symbols().ibv_close_device)(self.context()) };
        if let Err(error) = check("ibv_close_device", answer) {
            tracing::error!(%error, nic = self.nic.name, "a NIC did not close");
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.nic.name, self.port)
    }
}
