//! A stub kernel: the program's own `ioctl`, which answers the driver's requests at once and counts them.

#![expect(unsafe_code, reason = "it stands where the C library's ioctl stands")]

use std::ffi::{c_int, c_ulong, c_void};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_kernel::{Driver, System};
use gaudi_seam::{KernelSelector, NodeKind, SharedIo};
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::{Era, Ioctl};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often the stub was called.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// The sequence number of every submission.
const SEQ: u64 = 7;
/// HL_IOCTL_CS as our backend asks it here, and as the vendor's library does.
const SUBMITS: [u32; 2] = [submit_of(Era::AccelDrm), submit_of(Era::HlMisc)];

const fn submit_of(era: Era) -> u32 {
    match era.request(Ioctl::Cs) {
        Some(request) => request,
        None => 0,
    }
}

/// HL_IOCTL_CS, for those who call the stub themselves.
pub const SUBMIT: c_ulong = SUBMITS[0] as c_ulong;

/// What the programs of this crate call for ioctl(2), with the C library's name: the driver's requests (type 'd' or 'H') are answered
/// here, all others by the kernel.
///
/// # Safety
/// - As ioctl(2): `argument` is what the request says that it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let kind = (request >> 8) as u8;
    if kind != b'd' && kind != b'H' {
        // SAFETY: the caller's promise; the kernel looks at the rest.
        let answer = unsafe { nix::libc::syscall(nix::libc::SYS_ioctl, fd, request, argument) };
        return answer as c_int;
    }
    // Not read-modify-write: the programs that count have one thread here, and a locked instruction would be most of the call.
    CALLS.store(CALLS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if request as u32 == DRM_IOCTL_VERSION {
        // SAFETY: the argument is what the request says.
        unsafe { name_driver(argument.cast()) };
        return 0;
    }
    let size = Parts::of(request as u32).size;
    if size >= 16 {
        let words = argument.cast::<[u64; 2]>();
        // A sequence number or a wait's status (0, completed), and no flags.
        let answer = [
            if SUBMITS.contains(&(request as u32)) {
                SEQ
            } else {
                0
            },
            0,
        ];
        // SAFETY: the argument of such a request has at least 16 bytes, as its number says, aligned to 8.
        unsafe { words.write(answer) };
    }
    0
}

/// Answers as DRM does: who opens a node asks whose it is.
///
/// # Safety
/// - `version` is valid for reads and writes, and its `name` is writable for `name_len` bytes.
#[cold]
unsafe fn name_driver(version: *mut DrmVersion) {
    // SAFETY: the caller's promise.
    let mut answer = unsafe { version.read() };
    let room = usize::try_from(answer.name_len).unwrap_or(0);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(answer.name as usize);
    // SAFETY: no more than the room that the caller promised.
    unsafe { to.copy_from_nonoverlapping(DRIVER_NAME.as_ptr(), DRIVER_NAME.len().min(room)) };
    answer.name_len = DRIVER_NAME.len() as u64;
    // SAFETY: the caller's promise.
    unsafe { version.write(answer) };
}

/// The stub as the C library's function is called: through an address that the compiler does not see.
pub fn called() -> unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int {
    std::hint::black_box(ioctl)
}

/// An open node of the real backend on the stub: a `/dev` of our own, in which the node is `/dev/null`.
pub fn kernel() -> std::io::Result<SharedIo> {
    let root = tempfile::tempdir()?;
    let folder = root.path().join("dev/accel");
    std::fs::create_dir_all(&folder)?;
    symlink("/dev/null", folder.join("accel0"))?;
    Driver::at(root.path(), Arc::new(System))
        .open(KernelSelector::Index(0), NodeKind::Compute)
        .map(|kernel| Arc::new(kernel) as SharedIo)
        .map_err(std::io::Error::other)
}
