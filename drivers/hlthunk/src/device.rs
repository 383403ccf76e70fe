//! One ioctl on a program's descriptor: the kernel's, or a virtual node's where the descriptor is
//! one of ours.
//!
//! - A process without virtual nodes loads one atomic and calls ioctl(2).
//! - The interface of a raw descriptor is that of the last call that worked. The interfaces reject
//!   each other's numbers with `ENOTTY`, without an effect (drm_ioctl.c:drm_ioctl,
//!   habanalabs_ioctl.c:hl_ioctl of Linux 6.1), so a failure of that kind is tried once more.
//! - `EINTR` and `EAGAIN` are repeated, as the vendor's library does, but only where the driver
//!   leaves the request as it was ([`is_repeated`]). A full queue is `EAGAIN`: the vendor's library
//!   spins on it, this one yields, then sleeps up to 1 ms between two tries.

#![expect(
    unsafe_code,
    reason = "ioctl(2), fstat(2), close(2) and atexit(3) of raw descriptors; raise(3)"
)]

use std::ffi::c_int;
use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use gaudi_codec::{OwnMemory, UserMemory as _};
use gaudi_node::VirtualNode;
use gaudi_seam::{BackendSpec, DeviceSpec, NodeKind, PciAddress};
use gaudi_sys::Errno;
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::{DeviceStatus, HlInfoArgs, HlInfoDeviceStatus, InfoOp};
use gaudi_uapi::wait::HlWaitCsArgs;
use gaudi_uapi::{Era, Ioctl};
use nix::libc;
use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

use crate::guard::uncancelled;

/// The last raw descriptor had the driver's interface from before DRM.
const BEFORE_DRM: u8 = 1;
/// This process or its parent has opened a virtual node.
const VIRTUAL: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(0);

/// How long a user has to close a card that is reset (device.c:device_kill_open_processes).
const GRACE: Duration = Duration::from_secs(1);

/// An open virtual node.
pub(crate) struct Virtual {
    node: VirtualNode,
    /// The PCI address that the program sees.
    pub(crate) address: Option<PciAddress>,
    /// Of a mock's compute node: when a call first found that the reset waits for this process.
    reset: Option<OnceLock<Instant>>,
}

impl Virtual {
    /// What the driver does with the process that opened a card and does not close it for a reset:
    /// otherwise a program that waits for the end of the reset would wait without end.
    ///
    /// The mock has no thread, so only a call of the program can notice that the time has passed.
    #[cold]
    fn kill_user_of_reset(&self) {
        let Some(reset) = &self.reset else { return };
        if self.status() != Ok(DeviceStatus::IN_RESET) || reset.get_or_init(Instant::now).elapsed() < GRACE {
            return;
        }
        // Nothing else can be done if standard error is closed.
        let _ = writeln!(
            std::io::stderr(),
            "libhl-thunk: the mock kills this process, as the driver does: a submission timed out or an engine \
             failed, the device is in reset, and its user did not close it (device_kill_open_processes)"
        );
        // SAFETY: raise(3) takes a number. SIGKILL ends every thread.
        unsafe { libc::raise(libc::SIGKILL) };
    }

    fn status(&self) -> Result<DeviceStatus, Errno> {
        let mut answer = HlInfoDeviceStatus::new_zeroed();
        let address = (&raw mut answer).expose_provenance() as u64;
        let size = size_of::<HlInfoDeviceStatus>() as u32;
        let mut args = HlInfoArgs::new(InfoOp::DEVICE_STATUS, address, size, 0);
        // SAFETY: the answer is ours, and maps nothing.
        unsafe { self.ioctl(Ioctl::Info, args.as_mut_bytes()) }?;
        Ok(answer.status)
    }

    /// # Safety
    /// - As [`VirtualNode::ioctl`].
    unsafe fn ioctl(&self, ioctl: Ioctl, arg: &mut [u8]) -> Result<(), Errno> {
        let request = Era::AccelDrm.request(ioctl).ok_or(Errno::ENOTTY)?;
        // SAFETY: the caller's promise.
        unsafe { self.node.ioctl(request, arg, &OwnMemory) }
    }
}

static NODES: RwLock<Vec<Arc<Virtual>>> = RwLock::new(Vec::new());
/// The process that opened the first virtual node.
static OWNER: OnceLock<OwnerProcess> = OnceLock::new();

/// One ioctl. `arg` is the driver's struct, and holds the answer after a success.
///
/// # Errors
/// The errno of ioctl(2), `EINTR` and `EAGAIN` only where the call is not repeated; on a virtual
/// node in a fork child `ENODEV`.
#[inline]
pub(crate) fn ioctl<A: IntoBytes + FromBytes>(fd: c_int, ioctl: Ioctl, arg: &mut A) -> Result<(), Errno> {
    // SAFETY: `arg` is exclusively borrowed, and is the type whose size the request number carries.
    unsafe { call(fd, ioctl, arg.as_mut_bytes().as_mut_ptr(), Memory::LIBRARY) }
}

/// As [`ioctl`] with WAIT_CS. A signal does not extend the wait without end: from the first one on,
/// the word `timeout` of the argument, in microseconds, is reduced by the time that passed.
///
/// # Errors
/// As [`ioctl`].
#[inline]
pub(crate) fn wait(fd: c_int, arg: &mut HlWaitCsArgs, timeout: usize) -> Result<(), Errno> {
    let memory = Memory::Library {
        timeout: Some(timeout),
    };
    // SAFETY: as in `ioctl`.
    unsafe { call(fd, Ioctl::WaitCs, arg.as_mut_bytes().as_mut_ptr(), memory) }
}

/// As [`ioctl`], with the argument at an address of the program. The address is not followed here:
/// an invalid one is `EFAULT`.
///
/// # Errors
/// As [`ioctl`].
#[inline]
pub(crate) fn ioctl_at(fd: c_int, ioctl: Ioctl, address: u64) -> Result<(), Errno> {
    let arg = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the kernel alone follows the address.
    unsafe { call(fd, ioctl, arg, Memory::Program) }
}

/// Whose memory an argument is in.
#[derive(Clone, Copy)]
enum Memory {
    /// The library's. `timeout` is the index of its word with a timeout.
    Library { timeout: Option<usize> },
    /// The program's: the kernel copies it.
    Program,
}

impl Memory {
    const LIBRARY: Self = Self::Library { timeout: None };
}

/// The one way of a process without virtual nodes: ioctl(2), and nothing else if it succeeds.
///
/// # Safety
/// - An argument of the library is exclusively borrowed, and as long as `ioctl` requires.
#[inline]
unsafe fn call(fd: c_int, ioctl: Ioctl, arg: *mut u8, memory: Memory) -> Result<(), Errno> {
    let state = STATE.load(Ordering::Relaxed);
    if state & VIRTUAL != 0 {
        // SAFETY: the caller's promise.
        return unsafe { Call::in_mixed_process(fd, ioctl, arg, memory) };
    }
    let is_done = match request(ioctl, state) {
        Some(request) => raw_ioctl(fd, request, arg),
        None => {
            Errno::ENOTTY.set();
            false
        }
    };
    if is_done {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { Call::after_failure(fd, ioctl, arg, memory) }
}

/// The number of a request in the interface of the last call that worked.
#[inline]
fn request(ioctl: Ioctl, state: u8) -> Option<u32> {
    let era = if state & BEFORE_DRM == 0 {
        Era::AccelDrm
    } else {
        Era::AccelH
    };
    era.request(ioctl)
}

/// An ioctl that did not succeed at once, or on a descriptor that may be a virtual node's.
struct Call {
    fd: c_int,
    ioctl: Ioctl,
    arg: *mut u8,
    memory: Memory,
}

impl Call {
    /// Goes on after a first try on a raw descriptor, whose failure is in errno.
    ///
    /// This and [`Call::in_mixed_process`] are not inlined, and not methods of a struct: each
    /// caller would store the fields before its ioctl. Nothing unwinds out of them, so callers keep
    /// nothing for a landing pad. They are two functions: for a flag, callers would keep the state.
    ///
    /// # Safety
    /// As of [`call`].
    #[cold]
    #[inline(never)]
    #[expect(improper_ctypes_definitions, reason = "Rust alone calls it")]
    unsafe extern "C" fn after_failure(
        fd: c_int,
        ioctl: Ioctl,
        arg: *mut u8,
        memory: Memory,
    ) -> Result<(), Errno> {
        // Before any other call, which may change errno.
        let first = Errno::last();
        let mut call = Self {
            fd,
            ioctl,
            arg,
            memory,
        };
        // SAFETY: the caller's promise.
        guarded_call(|| unsafe { call.repeat(first, STATE.load(Ordering::Relaxed), None) })
    }

    /// Makes the first try where the descriptor may be a virtual node's.
    ///
    /// # Safety
    /// As of [`call`].
    #[cold]
    #[inline(never)]
    #[expect(improper_ctypes_definitions, reason = "Rust alone calls it")]
    unsafe extern "C" fn in_mixed_process(
        fd: c_int,
        ioctl: Ioctl,
        arg: *mut u8,
        memory: Memory,
    ) -> Result<(), Errno> {
        let mut call = Self {
            fd,
            ioctl,
            arg,
            memory,
        };
        // SAFETY: the caller's promise.
        guarded_call(|| unsafe { call.make_in_mixed_process() })
    }

    fn once(&self, state: u8) -> Result<(), Errno> {
        let request = request(self.ioctl, state).ok_or(Errno::ENOTTY)?;
        match raw_ioctl(self.fd, request, self.arg) {
            true => Ok(()),
            false => Err(Errno::last()),
        }
    }

    /// # Safety
    /// As of [`call`].
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
    /// As of [`call`].
    unsafe fn once_on(&mut self, entry: &Virtual) -> Result<(), Errno> {
        let size = self.ioctl.args_size();
        let mut copy = [0_u64; 7];
        let arg = match self.memory {
            // SAFETY: the caller's promise.
            Memory::Library { .. } => unsafe { std::slice::from_raw_parts_mut(self.arg, size) },
            Memory::Program => &mut copy.as_mut_bytes()[..size],
        };
        if let Memory::Program = self.memory {
            OwnMemory.read(self.arg.expose_provenance() as u64, arg)?;
        }
        // SAFETY: as with ioctl(2), the addresses in `arg` are the program's, which asks for what
        // the request does with them.
        let answer = unsafe { entry.ioctl(self.ioctl, arg) };
        if answer == Err(Errno::EBUSY) {
            entry.kill_user_of_reset();
        }
        if let Memory::Program = self.memory {
            // The driver copies the argument back after a failure too.
            OwnMemory.write(self.arg.expose_provenance() as u64, arg)?;
        }
        answer
    }

    /// # Safety
    /// As of [`call`].
    unsafe fn repeat(
        &mut self,
        first: Errno,
        mut state: u8,
        entry: Option<Arc<Virtual>>,
    ) -> Result<(), Errno> {
        let mut errno = first;
        let mut tries = 0;
        let mut began: Option<Instant> = None;
        // The state may have changed since the first try, so the first interface is tried again.
        let mut interfaces = if entry.is_none() { 2 } else { 0 };
        let mut other_interface = false;
        loop {
            match errno {
                Errno::EINTR if is_repeated(self.ioctl, errno) => {
                    let now = Instant::now();
                    let before = began.replace(now).unwrap_or(now);
                    // SAFETY: the caller's promise.
                    unsafe { self.shorten(now.duration_since(before)) };
                }
                Errno::EAGAIN if is_repeated(self.ioctl, errno) => {
                    pause(tries);
                    tries = tries.saturating_add(1);
                }
                Errno::ENOTTY if interfaces > 0 => {
                    interfaces -= 1;
                    other_interface = true;
                    state ^= BEFORE_DRM;
                }
                errno => return Err(errno),
            }
            let answer = match &entry {
                // SAFETY: the caller's promise.
                Some(entry) => unsafe { self.once_on(entry) },
                None => self.once(state),
            };
            if answer != Err(Errno::ENOTTY) && other_interface {
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
    /// - As of [`call`]; with a timeout, `arg` is a whole [`HlWaitCsArgs`].
    unsafe fn shorten(&mut self, passed: Duration) {
        let Memory::Library { timeout: Some(word) } = self.memory else {
            return;
        };
        // SAFETY: `wait` passes the words of a whole argument and an index in it.
        let timeout = unsafe { self.arg.cast::<u64>().add(word) };
        // SAFETY: the caller's promise: the argument is the library's.
        let timeout = unsafe { &mut *timeout };
        if i64::try_from(*timeout).is_ok_and(|us| us != i64::MAX) {
            *timeout = timeout.saturating_sub(passed.as_micros() as u64);
        }
    }
}

/// Runs what calls functions that are cancellation points: a mock, a layer and a pause do. A panic
/// is `EIO`.
fn guarded_call(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    uncancelled(Err, || Ok(body()))
}

fn remember(state: u8) {
    if state & BEFORE_DRM == 0 {
        STATE.fetch_and(!BEFORE_DRM, Ordering::Relaxed);
    } else {
        STATE.fetch_or(BEFORE_DRM, Ordering::Relaxed);
    }
}

/// Whether a call that failed with `EINTR` or `EAGAIN` is made again.
///
/// The driver overwrites a failed request for memory or a command buffer (memory.c:hl_mem_ioctl,
/// command_buffer.c:hl_cb_ioctl), and a submission for every errno but `EAGAIN`
/// (command_submission.c:hl_cs_ioctl). The same call would then request something else.
fn is_repeated(ioctl: Ioctl, errno: Errno) -> bool {
    match ioctl {
        Ioctl::Memory | Ioctl::Cb => false,
        Ioctl::Cs => errno == Errno::EAGAIN,
        _ => true,
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

/// Whether the kernel does what is asked. If not, errno says why.
#[inline]
fn raw_ioctl(fd: c_int, request: u32, arg: *mut u8) -> bool {
    #[cfg(test)]
    if let Some(answer) = crate::stub::answer(fd, request, arg) {
        return answer.map_err(Errno::set).is_ok();
    }
    // SAFETY: the kernel checks the descriptor, and copies the size in the request number from and
    // to `arg`; `Call` promises that it may.
    unsafe { libc::ioctl(fd, request.into(), arg) >= 0 }
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
    // The driver spares users of control nodes, which do not hold up a reset.
    let is_killed = kind == NodeKind::Compute && matches!(spec.backend, BackendSpec::Mock(_));
    nodes_mut().push(Arc::new(Virtual {
        node,
        address,
        reset: is_killed.then(OnceLock::new),
    }));
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
