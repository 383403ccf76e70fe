//! One ioctl on a program's descriptor: the kernel's, or a virtual node's where the descriptor is
//! one of ours.
//!
//! - A process without virtual nodes loads one atomic and calls ioctl(2).
//! - The interface of a raw descriptor is that of the last call that worked. The interfaces reject
//!   each other's numbers with `ENOTTY`, without an effect (drm_ioctl.c:drm_ioctl,
//!   habanalabs_ioctl.c:hl_ioctl of Linux 6.1), so a failure of that kind is tried once more.
//! - `EINTR` and `EAGAIN` are repeated, as the vendor's library does. The driver leaves the
//!   arguments as they were for both (command_submission.c:hl_cs_ioctl). A full queue is `EAGAIN`:
//!   the vendor's library spins on it, this one yields, then sleeps up to 1 ms between two tries.

#![expect(
    unsafe_code,
    reason = "ioctl(2), fstat(2), close(2) and atexit(3) of raw descriptors"
)]

use std::ffi::c_int;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use gaudi_codec::{OwnMemory, UserMemory as _};
use gaudi_node::VirtualNode;
use gaudi_seam::{DeviceSpec, NodeKind, PciAddress};
use gaudi_sys::Errno;
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::wait::HlWaitCsArgs;
use gaudi_uapi::{Era, Ioctl};
use nix::libc;
use zerocopy::{FromBytes, IntoBytes};

/// The last raw descriptor had the driver's interface from before DRM.
const BEFORE_DRM: u8 = 1;
/// This process or its parent has opened a virtual node.
const VIRTUAL: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(0);

/// An open virtual node.
pub(crate) struct Virtual {
    node: VirtualNode,
    /// The PCI address that the program sees.
    pub(crate) address: Option<PciAddress>,
}

static NODES: RwLock<Vec<Arc<Virtual>>> = RwLock::new(Vec::new());
/// The process that opened the first virtual node.
static OWNER: OnceLock<OwnerProcess> = OnceLock::new();

/// One ioctl. `arg` is the driver's struct, and has the answer after a success.
///
/// # Errors
/// The errno of ioctl(2), neither `EINTR` nor `EAGAIN`; on a virtual node in a fork child `ENODEV`.
#[inline]
pub(crate) fn ioctl<A: IntoBytes + FromBytes>(fd: c_int, ioctl: Ioctl, arg: &mut A) -> Result<(), Errno> {
    let mut call = Call {
        fd,
        ioctl,
        arg: arg.as_mut_bytes().as_mut_ptr(),
        timeout: None,
    };
    // SAFETY: `arg` is exclusively borrowed, and is the type whose size the request number carries.
    unsafe { call.make() }
}

/// As [`ioctl`] with WAIT_CS. A signal does not extend the wait without end: from the first one on,
/// the word `timeout` of the argument, in microseconds, is reduced by the time that passed.
///
/// # Errors
/// As [`ioctl`].
#[inline]
pub(crate) fn wait(fd: c_int, arg: &mut HlWaitCsArgs, timeout: usize) -> Result<(), Errno> {
    let mut call = Call {
        fd,
        ioctl: Ioctl::WaitCs,
        arg: arg.as_mut_bytes().as_mut_ptr(),
        timeout: Some(timeout),
    };
    // SAFETY: as in `ioctl`.
    unsafe { call.make() }
}

/// As [`ioctl`], with the argument at an address of the program. The address is not followed here:
/// an invalid one is `EFAULT`.
///
/// # Errors
/// As [`ioctl`].
#[inline]
pub(crate) fn ioctl_at(fd: c_int, ioctl: Ioctl, address: u64) -> Result<(), Errno> {
    if STATE.load(Ordering::Relaxed) & VIRTUAL != 0 && matches!(find(fd)?, Found::Virtual(_)) {
        return virtual_ioctl_at(fd, ioctl, address);
    }
    let mut call = Call {
        fd,
        ioctl,
        arg: std::ptr::with_exposed_provenance_mut(address as usize),
        timeout: None,
    };
    // SAFETY: the descriptor is raw, so the kernel alone follows the address.
    unsafe { call.make() }
}

#[cold]
fn virtual_ioctl_at(fd: c_int, ioctl: Ioctl, address: u64) -> Result<(), Errno> {
    let mut arg = [0_u64; 7];
    let arg = &mut arg.as_mut_bytes()[..ioctl.args_size()];
    OwnMemory.read(address, arg)?;
    let mut call = Call {
        fd,
        ioctl,
        arg: arg.as_mut_ptr(),
        timeout: None,
    };
    // SAFETY: the buffer is ours and has the size that the request number carries.
    let answer = unsafe { call.make() };
    // The driver copies the argument back after a failure too.
    OwnMemory.write(address, arg).and(answer)
}

struct Call {
    fd: c_int,
    ioctl: Ioctl,
    arg: *mut u8,
    timeout: Option<usize>,
}

impl Call {
    /// # Safety
    /// - `arg` is exclusively ours and as long as `ioctl` requires, or `fd` is raw.
    #[inline]
    unsafe fn make(&mut self) -> Result<(), Errno> {
        let state = STATE.load(Ordering::Relaxed);
        if state & VIRTUAL != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.make_in_mixed_process() };
        }
        let errno = match self.once(state) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        };
        // SAFETY: the caller's promise.
        unsafe { self.repeat(errno, state, None) }
    }

    #[inline]
    fn once(&self, state: u8) -> Result<(), Errno> {
        let era = if state & BEFORE_DRM == 0 {
            Era::AccelDrm
        } else {
            Era::AccelH
        };
        let request = era.request(self.ioctl).ok_or(Errno::ENOTTY)?;
        raw_ioctl(self.fd, request, self.arg)
    }

    /// # Safety
    /// As of [`make`](Self::make).
    #[cold]
    unsafe fn make_in_mixed_process(&mut self) -> Result<(), Errno> {
        let virtual_node = match find(self.fd)? {
            Found::Virtual(entry) => Some(entry),
            Found::Raw => None,
        };
        let state = STATE.load(Ordering::Relaxed);
        let first = match &virtual_node {
            // SAFETY: the caller's promise.
            Some(entry) => unsafe { self.once_on(entry) },
            None => self.once(state),
        };
        match first {
            Ok(()) => Ok(()),
            // SAFETY: the caller's promise.
            Err(errno) => unsafe { self.repeat(errno, state, virtual_node) },
        }
    }

    /// # Safety
    /// - `arg` is exclusively ours and as long as `ioctl` requires.
    unsafe fn once_on(&mut self, entry: &Virtual) -> Result<(), Errno> {
        let request = Era::AccelDrm.request(self.ioctl).ok_or(Errno::ENOTTY)?;
        // SAFETY: the caller's promise.
        let arg = unsafe { std::slice::from_raw_parts_mut(self.arg, self.ioctl.args_size()) };
        // SAFETY: as with ioctl(2), the addresses in `arg` are the program's, which asks for what
        // the request does with them.
        unsafe { entry.node.ioctl(request, arg, &OwnMemory) }
    }

    /// # Safety
    /// As of [`make`](Self::make).
    #[cold]
    unsafe fn repeat(
        &mut self,
        first: Errno,
        mut state: u8,
        entry: Option<Arc<Virtual>>,
    ) -> Result<(), Errno> {
        let mut errno = first;
        let mut tries = 0;
        let mut began: Option<Instant> = None;
        let mut other_interface = entry.is_none();
        loop {
            match errno {
                Errno::EINTR => {
                    let now = Instant::now();
                    let before = began.replace(now).unwrap_or(now);
                    // SAFETY: the caller's promise.
                    unsafe { self.shorten(now.duration_since(before)) };
                }
                Errno::EAGAIN => {
                    pause(tries);
                    tries = tries.saturating_add(1);
                }
                Errno::ENOTTY if other_interface => {
                    other_interface = false;
                    state ^= BEFORE_DRM;
                }
                errno => return Err(errno),
            }
            let answer = match &entry {
                // SAFETY: the caller's promise.
                Some(entry) => unsafe { self.once_on(entry) },
                None => self.once(state),
            };
            if answer != Err(Errno::ENOTTY) && !other_interface && entry.is_none() {
                remember(state);
            }
            match answer {
                Ok(()) => return Ok(()),
                Err(next) => errno = next,
            }
        }
    }

    /// Reduces the timeout of a wait. The largest values mean no timeout
    /// (command_submission.c:hl_wait_for_fence) and stay.
    ///
    /// # Safety
    /// - With a timeout, `arg` is ours and a whole [`HlWaitCsArgs`].
    unsafe fn shorten(&mut self, passed: Duration) {
        let Some(word) = self.timeout else { return };
        // SAFETY: `wait` passes the words of a whole argument and an index in it.
        let timeout = unsafe { self.arg.cast::<u64>().add(word) };
        // SAFETY: the caller's promise: the argument is ours.
        let timeout = unsafe { &mut *timeout };
        if i64::try_from(*timeout).is_ok_and(|us| us != i64::MAX) {
            *timeout = timeout.saturating_sub(passed.as_micros() as u64);
        }
    }
}

fn remember(state: u8) {
    if state & BEFORE_DRM == 0 {
        STATE.fetch_and(!BEFORE_DRM, Ordering::Relaxed);
    } else {
        STATE.fetch_or(BEFORE_DRM, Ordering::Relaxed);
    }
}

/// Waits for room in a queue: 8 yields, then 10 us to 1 ms.
fn pause(tries: u32) {
    if tries < 8 {
        std::thread::yield_now();
    } else {
        let us = (10 << (tries - 8).min(7)).min(1000);
        std::thread::sleep(Duration::from_micros(us));
    }
}

#[inline]
fn raw_ioctl(fd: c_int, request: u32, arg: *mut u8) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(answer) = crate::stub::answer(fd, request, arg) {
        return answer;
    }
    // SAFETY: the kernel checks the descriptor, and copies the size in the request number from and
    // to `arg`; `Call` promises that it may.
    let answer = unsafe { libc::ioctl(fd, request.into(), arg) };
    if answer < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Whether this process or its parent has opened a virtual node.
#[inline]
pub(crate) fn has_virtual_nodes() -> bool {
    STATE.load(Ordering::Relaxed) & VIRTUAL != 0
}

/// What a descriptor is.
pub(crate) enum Found {
    Raw,
    Virtual(Arc<Virtual>),
}

/// Device number and identity of a descriptor.
///
/// # Errors
/// `EBADF`.
pub(crate) fn stat(fd: c_int) -> Result<libc::stat, Errno> {
    let mut stat = std::mem::MaybeUninit::uninit();
    // SAFETY: fstat(2) fills the struct or fails.
    Errno::result(unsafe { libc::fstat(fd, stat.as_mut_ptr()) })?;
    // SAFETY: it succeeded.
    Ok(unsafe { stat.assume_init() })
}

/// Finds the virtual node of a descriptor.
///
/// # Errors
/// - `EBADF`: not an open descriptor.
/// - `ENODEV`: the node belongs to the parent of this process.
pub(crate) fn find(fd: c_int) -> Result<Found, Errno> {
    if !has_virtual_nodes() {
        return Ok(Found::Raw);
    }
    let stat = stat(fd)?;
    let identity = (stat.st_dev, stat.st_ino);
    let nodes = match NODES.try_read() {
        Ok(nodes) => nodes,
        Err(TryLockError::Poisoned(nodes)) => nodes.into_inner(),
        Err(TryLockError::WouldBlock) if is_foreign() => {
            // The thread that has the lock is not in this process. A node of the driver is a
            // character device; every other descriptor of a virtual node is not.
            let raw = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
            return if raw { Ok(Found::Raw) } else { Err(Errno::ENODEV) };
        }
        Err(TryLockError::WouldBlock) => NODES.read().unwrap_or_else(PoisonError::into_inner),
    };
    match nodes.iter().find(|entry| entry.node.identity() == identity) {
        Some(_) if is_foreign() => Err(Errno::ENODEV),
        Some(entry) => Ok(Found::Virtual(Arc::clone(entry))),
        None => Ok(Found::Raw),
    }
}

fn is_foreign() -> bool {
    OWNER.get().is_some_and(|owner| owner.is_foreign())
}

/// Opens a virtual node. Nodes that the program has closed are released first.
///
/// # Errors
/// - The errno of [`VirtualNode::open`]; `EIO` where it has none.
/// - `ENODEV`: the parent of this process has virtual nodes.
pub(crate) fn open_virtual(
    spec: &DeviceSpec,
    kind: NodeKind,
    address: Option<PciAddress>,
) -> Result<c_int, Errno> {
    OWNER.get_or_init(|| {
        // SAFETY: the handler is a function without arguments that stays for the process's life.
        // A failure means that traces lack their last line.
        let _ = unsafe { libc::atexit(at_exit) };
        OwnerProcess::current()
    });
    if is_foreign() {
        return Err(Errno::ENODEV);
    }
    STATE.fetch_or(VIRTUAL, Ordering::Relaxed);
    drop(released());
    let (node, fd) = VirtualNode::open(spec, kind).map_err(|error| crate::env::errno_of(&error))?;
    nodes_mut().push(Arc::new(Virtual { node, address }));
    Ok(fd.into_raw_fd())
}

fn nodes_mut() -> std::sync::RwLockWriteGuard<'static, Vec<Arc<Virtual>>> {
    NODES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the nodes that have no descriptor left out of the list. The caller drops them, without the
/// lock.
fn released() -> Vec<Arc<Virtual>> {
    let mut nodes = nodes_mut();
    let (released, open) = nodes.drain(..).partition(|entry| entry.node.is_released());
    *nodes = open;
    released
}

/// Closes a descriptor, and its virtual node with the last one.
///
/// # Errors
/// The errno of close(2).
pub(crate) fn close(fd: c_int) -> Result<(), Errno> {
    let is_virtual = matches!(find(fd), Ok(Found::Virtual(_)));
    // SAFETY: the program's descriptor, which the program asks to close.
    Errno::result(unsafe { libc::close(fd) })?;
    if is_virtual {
        drop(released());
    }
    Ok(())
}

/// Ends the virtual nodes: traces are completed.
extern "C" fn at_exit() {
    if is_foreign() {
        return;
    }
    let Ok(mut nodes) = NODES.try_write() else { return };
    let nodes = std::mem::take(&mut *nodes);
    // A panic would end the process with a signal, in place of its exit code.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(nodes)));
    std::mem::forget(ended);
}
