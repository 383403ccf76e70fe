//! What `/proc` reports of a process. It can end at any time, so every answer is optional.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use gaudi_capture::record::DeviceNumber;
use nix::time::{ClockId, clock_gettime};

/// What a descriptor's file is, as far as filters need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileKind {
    /// The device, of a device node.
    pub(crate) device: Option<DeviceNumber>,
    /// Not a device node, but something that drivers hand out: a dma-buf, or an anonymous inode
    /// (sync_file, eventfd, VFIO device).
    pub(crate) from_driver: bool,
    /// The descriptor is open.
    pub(crate) open: bool,
}

/// The file of descriptor `fd` of a thread.
pub(crate) fn file_kind(tid: u32, fd: i32) -> FileKind {
    let path = fd_path(tid, fd);
    let Ok(metadata) = fs::metadata(&path) else {
        return FileKind::default();
    };
    let kind = metadata.file_type();
    let device =
        (kind.is_char_device() || kind.is_block_device()).then(|| DeviceNumber::from_rdev(metadata.rdev()));
    let from_driver = device.is_none() && {
        let target = link(&path);
        target.starts_with(b"anon_inode:") || target.starts_with(b"/dmabuf:")
    };
    FileKind {
        device,
        from_driver,
        open: true,
    }
}

fn fd_path(tid: u32, fd: i32) -> String {
    format!("/proc/{tid}/fd/{fd}")
}

fn link(path: &str) -> Vec<u8> {
    fs::read_link(path).map_or_else(|_| Vec::new(), |target| target.into_os_string().into_vec())
}

/// What `/proc/TID/fd/N` leads to; empty if it is closed by now.
pub(crate) fn fd_target(tid: u32, fd: i32) -> Vec<u8> {
    link(&fd_path(tid, fd))
}

/// The descriptors of a thread.
pub(crate) fn descriptors(tid: u32) -> Vec<i32> {
    numbers(&format!("/proc/{tid}/fd"))
}

/// The threads of a process.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

fn numbers<T: std::str::FromStr>(directory: &str) -> Vec<T> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The thread's name.
pub(crate) fn name(tid: u32) -> Vec<u8> {
    let mut name = fs::read(format!("/proc/{tid}/comm")).unwrap_or_else(|_| Vec::new());
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    name
}

/// The program that the process executes.
pub(crate) fn program(pid: u32) -> Vec<u8> {
    link(&format!("/proc/{pid}/exe"))
}

/// The thread group of a thread; nothing once it is dead.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// Whether the thread exists and is not a zombie.
pub(crate) fn is_alive(tid: u32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{tid}/stat")) else {
        return false;
    };
    // The state follows the name, which can hold any byte and ends with the last parenthesis.
    let state = stat
        .iter()
        .rposition(|&byte| byte == b')')
        .and_then(|at| stat.get(at + 2));
    !matches!(state, None | Some(b'Z' | b'X'))
}

/// CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    // Linux always has this clock, and it counts from boot.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let rest = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    })
}
