//! A stub kernel: the program's own `ioctl`, which answers the driver's requests at once and counts
//! them.

#![expect(unsafe_code, reason = "it stands where the C library's ioctl stands")]

use std::ffi::{c_int, c_ulong, c_void};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_kernel::{Driver, Kernel, System};
use gaudi_seam::{KernelSelector, NodeKind, SharedIo};
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::{Era, Ioctl};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often the stub was called.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// The sequence number of every submission, and every handle and address of memory.
const SEQ: u64 = 7;
/// HL_IOCTL_WAIT_CS as our backend asks it here, and as the vendor's library does.
const WAITS: [u32; 2] = [
    number(Era::AccelDrm, Ioctl::WaitCs) as u32,
    number(Era::HlMisc, Ioctl::WaitCs) as u32,
];

/// What the stub is asked for by those who call it themselves: as our backend asks for it on the
/// stub's node.
pub const SUBMIT: c_ulong = number(Era::AccelDrm, Ioctl::Cs);
/// As [`SUBMIT`], of a wait.
pub const WAIT: c_ulong = number(Era::AccelDrm, Ioctl::WaitCs);

/// As [`SUBMIT`], of any request.
pub const fn request(ioctl: Ioctl) -> c_ulong {
    number(Era::AccelDrm, ioctl)
}

const fn number(era: Era, ioctl: Ioctl) -> c_ulong {
    match era.request(ioctl) {
        Some(request) => request as c_ulong,
        None => 0,
    }
}

/// What the programs of this crate call for ioctl(2), with the C library's name: the driver's
/// requests (type 'd' or 'H') are answered here, all others by the kernel.
///
/// # Safety
/// - As ioctl(2): `argument` has the type of the request.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // Not short-circuited, here and below: ours and the peer's numbers take the same way.
    let (kind, request32) = ((request >> 8) as u8, request as u32);
    let is_drivers = (kind == b'd') | (kind == b'H');
    if !is_drivers | (request32 == DRM_IOCTL_VERSION) {
        // SAFETY: the caller's promise.
        return unsafe { others(fd, request, argument) };
    }
    // Not read-modify-write: the programs that count have one thread here, and a locked instruction
    // would be most of the call.
    CALLS.store(CALLS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if Parts::of(request32).size >= 16 {
        // All answers at once, whatever is asked: the front of a submission's is its number, of an
        // operation on memory the handle or the address, and of a wait's, whose front is read as
        // two words of 32 bits, the status 0 (completed) and no flags.
        let is_wait = (request32 == WAITS[0]) | (request32 == WAITS[1]);
        let front = if is_wait { 0 } else { SEQ };
        // SAFETY: the argument of such a request has at least 16 bytes, by its number, aligned
        // to 8.
        unsafe { argument.cast::<[u64; 2]>().write([front, 0]) };
    }
    0
}

/// What is not counted.
///
/// # Safety
/// - As ioctl(2).
#[cold]
#[inline(never)]
unsafe fn others(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request as u32 == DRM_IOCTL_VERSION {
        // SAFETY: the argument has the type of the request.
        unsafe { name_driver(argument.cast()) };
        return 0;
    }
    // SAFETY: the caller's promise; the kernel looks at the rest.
    let answer = unsafe { nix::libc::syscall(nix::libc::SYS_ioctl, fd, request, argument) };
    answer as c_int
}

/// Answers as DRM does: every open of a node asks for its driver.
///
/// # Safety
/// - `version` is valid for reads and writes, and its `name` is writable for `name_len` bytes.
#[cold]
unsafe fn name_driver(version: *mut DrmVersion) {
    // SAFETY: the caller's promise.
    let mut answer = unsafe { version.read() };
    // A u64 fits a usize on all supported machines.
    let room = usize::try_from(answer.name_len).unwrap_or(0);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(answer.name as usize);
    // SAFETY: no more than the room that the caller promised.
    unsafe { to.copy_from_nonoverlapping(DRIVER_NAME.as_ptr(), DRIVER_NAME.len().min(room)) };
    answer.name_len = DRIVER_NAME.len() as u64;
    // SAFETY: the caller's promise.
    unsafe { version.write(answer) };
}

/// The stub as the C library's function is called: through an address that the compiler does not
/// see.
pub fn called() -> unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int {
    std::hint::black_box(ioctl)
}

/// Returns an open node of the real backend on the stub: a `/dev` of the test's own, in which the
/// node is `/dev/null`.
///
/// # Errors
/// The opener's error.
pub fn kernel() -> std::io::Result<SharedIo> {
    known_kernel().map(|kernel| kernel as SharedIo)
}

/// Returns the same by its type, as the opener has it when it puts layers over it.
///
/// # Errors
/// The opener's error.
pub fn known_kernel() -> std::io::Result<Arc<Kernel>> {
    driver(|driver| driver.open(KernelSelector::Index(0), NodeKind::Compute)).map(Arc::new)
}

fn driver<T>(open: impl FnOnce(Driver) -> gaudi_seam::Result<T>) -> std::io::Result<T> {
    let root = tempfile::tempdir()?;
    let folder = root.path().join("dev/accel");
    std::fs::create_dir_all(&folder)?;
    symlink("/dev/null", folder.join("accel0"))?;
    open(Driver::at(root.path(), Arc::new(System))).map_err(std::io::Error::other)
}
