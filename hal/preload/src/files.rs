//! What each descriptor of the process is. Entries are cached: a descriptor that is closed other
//! than through libc's functions has a wrong entry until its number is used again.

#![allow(unsafe_code, reason = "system calls of signal handlers")]

use std::ffi::{CStr, c_int};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_capture::record::DeviceNumber;
use gaudi_ring::Session;
use nix::libc;

use crate::next::{errno, set_errno};

/// Descriptors whose entries are cached.
const CACHED: usize = 4096;

/// Bits of an entry. 0: unknown.
const KNOWN: u64 = 1;
const IS_DEVICE: u64 = 2;
const FROM_DRIVER: u64 = 4;
const INTRODUCED: u64 = 8;
const RECORDED: u64 = 16;
const IS_RDMA: u64 = 32;

static FILES: [AtomicU64; CACHED] = [const { AtomicU64::new(0) }; CACHED];

/// The start of the paths of RDMA devices.
const RDMA_NODES: &[u8] = b"/dev/infiniband/uverbs";

/// The file of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File(u64);

impl File {
    /// A descriptor that is not open.
    const CLOSED: Self = Self(0);

    pub(crate) fn is_open(self) -> bool {
        self.0 & KNOWN != 0
    }

    #[inline]
    pub(crate) fn device(self) -> Option<DeviceNumber> {
        (self.0 & IS_DEVICE != 0).then_some(DeviceNumber {
            major: (self.0 >> 40) as u32,
            minor: (self.0 >> 16 & 0xff_ffff) as u32,
        })
    }

    /// Returns whether ioctls are recorded, if their type byte is selected.
    #[inline]
    pub(crate) fn records_ioctl(self) -> bool {
        self.0 & (IS_DEVICE | RECORDED) != IS_DEVICE
    }

    /// Returns whether opens and closes are recorded.
    pub(crate) fn records_file(self) -> bool {
        self.0 & RECORDED != 0 && self.0 & (IS_DEVICE | FROM_DRIVER) != 0
    }

    #[inline]
    pub(crate) fn is_introduced(self) -> bool {
        self.0 & INTRODUCED != 0
    }

    /// Returns whether it is a recorded RDMA device, to which write(2) passes commands.
    #[inline]
    pub(crate) fn takes_commands(self) -> bool {
        self.0 & IS_RDMA != 0
    }

    pub(crate) fn introduced(self) -> Self {
        Self(self.0 | INTRODUCED)
    }
}

#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    FILES.get(usize::try_from(fd).ok()?)
}

/// Returns the file of a descriptor.
#[inline]
pub(crate) fn of(session: &Session, fd: c_int) -> File {
    let cached = entry(fd).map_or(0, |entry| entry.load(Ordering::Relaxed));
    if cached != 0 {
        return File(cached);
    }
    let file = find(session, fd);
    set(session, fd, file);
    file
}

/// Returns the file of a descriptor if it is cached.
pub(crate) fn known(fd: c_int) -> File {
    File(entry(fd).map_or(0, |entry| entry.load(Ordering::Relaxed)))
}

/// Caches a descriptor's file. A child that shares the memory has other descriptors, so it caches
/// none.
pub(crate) fn set(session: &Session, fd: c_int, file: File) {
    if let Some(entry) = entry(fd) {
        let value = if session.is_shared() { 0 } else { file.0 };
        entry.store(value, Ordering::Relaxed);
    }
}

/// Removes a descriptor's entry, unless it is that of the process which lends the caller its
/// memory. Returns the file that it had.
pub(crate) fn forget(fd: c_int) -> File {
    let cached = known(fd);
    match entry(fd) {
        Some(entry) if cached.0 != 0 && !Session::get().is_some_and(Session::has_own_files) => {
            File(entry.swap(0, Ordering::Relaxed))
        }
        _ => cached,
    }
}

/// Returns the descriptors from `first` to `last` that are cached.
pub(crate) fn cached(first: c_int, last: c_int) -> impl Iterator<Item = c_int> {
    let last = last.clamp(-1, CACHED as c_int - 1);
    first.max(0)..=last
}

#[cold]
fn find(session: &Session, fd: c_int) -> File {
    let saved = errno();
    // SAFETY: every bit pattern is a valid `stat`; fstat(2) writes it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let file = if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
        File::CLOSED
    } else if matches!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
        let number = DeviceNumber::from_rdev(stat.st_rdev);
        let is_recorded = session.records_device(number.major, number.minor);
        let mut buffer = [0; 64];
        let is_rdma = is_recorded && target(fd, &mut buffer).starts_with(RDMA_NODES);
        File(
            KNOWN
                | if is_rdma { IS_RDMA } else { 0 }
                | IS_DEVICE
                | if is_recorded { RECORDED } else { 0 }
                | u64::from(number.major) << 40
                | u64::from(number.minor & 0xff_ffff) << 16,
        )
    } else {
        let mut buffer = [0; 64];
        let target = target(fd, &mut buffer);
        let from_driver = target.starts_with(b"anon_inode:") || target.starts_with(b"/dmabuf:");
        File(KNOWN | if from_driver { FROM_DRIVER | RECORDED } else { 0 })
    };
    set_errno(saved);
    file
}

/// Returns the target of `/proc/self/fd/N`.
pub(crate) fn target(fd: c_int, buffer: &mut [u8]) -> &[u8] {
    let mut path = [0_u8; 40];
    // The path fits, with its terminator.
    let _ = write!(&mut path[..39], "/proc/self/fd/{fd}");
    match CStr::from_bytes_until_nul(&path) {
        Ok(path) => link_of(path, buffer),
        Err(_) => &[],
    }
}

/// Returns the target of a symbolic link; empty if there is none.
pub(crate) fn link_of<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the kernel reads a terminated path and writes into the buffer.
    let read = unsafe { libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let len = usize::try_from(read).unwrap_or(0);
    buffer.get(..len).unwrap_or(&[])
}
