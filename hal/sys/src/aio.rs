//! eventfd_signal(), the kernel's own way to signal an eventfd, which never sleeps.
//!
//! write(2) sleeps on a full counter unless the open file description has `O_NONBLOCK`. All
//! descriptors of the eventfd share that flag, in every process: setting it would make the peer's
//! read(2) fail, and the peer could clear it again. So the signal is sent by a completion of Linux
//! AIO (io_submit(2) with `IOCB_FLAG_RESFD`): a poll of a descriptor that is always ready completes
//! at once, and then the kernel signals the eventfd (fs/aio.c `iocb_put`). A poll of the peer's
//! eventfd would be ready too, but a peer that reads and writes meanwhile could delay its
//! completion, and there is room for few incomplete ones.

#![expect(
    unsafe_code,
    reason = "libc has no wrapper for these system calls, which take pointers"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::fork::OwnerProcess;
use crate::{Errno, SysResult};

/// `struct iocb` (linux/aio_abi.h) of a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && cfg!(target_endian = "little"));

/// `IOCB_CMD_POLL` (Linux 4.18) and `IOCB_FLAG_RESFD`.
const CMD_POLL: u16 = 5;
const FLAG_RESFD: u32 = 1;
/// `struct io_event`, of which nothing is read.
type IoEvent = [u64; 4];

/// An AIO context of this process, and a descriptor that is always readable.
struct Context {
    id: libc::c_ulong,
    ready: EventFd,
    owner: OwnerProcess,
}

impl Context {
    fn new() -> SysResult<Self> {
        let ready = EventFd::from_value_and_flags(1, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number to `id`, which lives across the call.
        Errno::result(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut id) })?;
        let owner = OwnerProcess::current();
        Ok(Self { id, ready, owner })
    }

    fn signal(&self, event: BorrowedFd<'_>) -> SysResult<()> {
        let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF);
        let mut request = Iocb {
            opcode: CMD_POLL,
            fildes: number(self.ready.as_fd())?,
            buf: u64::from(libc::POLLIN.unsigned_abs()),
            flags: FLAG_RESFD,
            resfd: number(event)?,
            ..Iocb::default()
        };
        let list = [&raw mut request];
        // SAFETY: the kernel reads one pointer to one `struct iocb`, and writes its `key`; both
        // live across the call.
        Errno::result(unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1, list.as_ptr()) })?;
        let mut done: IoEvent = [0; 4];
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Makes room for the next completion. A context that could not be emptied refuses it with
        // EAGAIN. SAFETY: the kernel writes at most one `struct io_event` to `done` and reads
        // `now`, which live across the call.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                0,
                1,
                done.as_mut_ptr(),
                ptr::from_ref(&now),
            )
        };
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A fork child has no AIO context (kernel/fork.c `mm_init_aio`).
        if !self.owner.is_foreign() {
            // SAFETY: takes a number.
            let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.id, null_mut::<u8>()) };
        }
    }
}

/// The context of this process, or of the parent that a fork child has it from. Not behind a lock:
/// a thread of the parent may hold that at the fork. Never freed, as other threads may use it.
static CONTEXT: AtomicPtr<Context> = AtomicPtr::new(null_mut());

/// Replaces `known`, which is null or a parent's, by a context of this process.
fn replace(known: *mut Context) -> SysResult<&'static Context> {
    let new = Box::into_raw(Box::new(Context::new()?));
    match CONTEXT.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: from here on it is never freed.
        Ok(_) => Ok(unsafe { &*new }),
        Err(other) => {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: another thread of this process put it there, and it is never freed.
            Ok(unsafe { &*other })
        }
    }
}

/// Adds one to the counter of an eventfd unless it is at its maximum; never sleeps. One context
/// serves the process.
///
/// `ENOSYS` where the kernel has no AIO, `EPERM` where a sandbox forbids it, `EINVAL` where `event`
/// is not an eventfd or the kernel is older than 4.18, `EAGAIN` where the machine's contexts are
/// used up (`fs.aio-max-nr`).
pub(crate) fn signal(event: BorrowedFd<'_>) -> SysResult<()> {
    let known = CONTEXT.load(Ordering::Acquire);
    // SAFETY: null, or a context that is never freed.
    match unsafe { known.as_ref() } {
        Some(context) if !context.owner.is_foreign() => context.signal(event),
        _ => replace(known)?.signal(event),
    }
}
