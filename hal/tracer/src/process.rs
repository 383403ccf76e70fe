//! Information about a process from `/proc`. The process can exit at any time, so every result is
//! optional.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::thread;
use std::time::Duration;

use gaudi_capture::record::DeviceNumber;
use nix::errno::Errno;
use nix::sys::stat::{fstat, major, minor};
use nix::time::{ClockId, clock_gettime};

/// The properties of a descriptor's file that filters need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileKind {
    /// The device number, if the file is a device node.
    pub(crate) device: Option<DeviceNumber>,
    /// The file is not a device node, but of a type that drivers return: a dma-buf, or an anonymous
    /// inode (sync_file, eventfd, VFIO device).
    pub(crate) from_driver: bool,
    /// The descriptor is open.
    pub(crate) open: bool,
}

/// Returns the properties of descriptor `fd` of a thread.
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

/// Returns the target of `/proc/TID/fd/N`; empty if the descriptor was closed.
pub(crate) fn fd_target(tid: u32, fd: i32) -> Vec<u8> {
    link(&fd_path(tid, fd))
}

/// Returns the descriptors of a thread.
pub(crate) fn descriptors(tid: u32) -> Vec<i32> {
    numbers(&format!("/proc/{tid}/fd"))
}

/// Returns the threads of a process.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

fn numbers<T: std::str::FromStr>(directory: &str) -> Vec<T> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the thread's name.
pub(crate) fn name(tid: u32) -> Vec<u8> {
    let mut name = fs::read(format!("/proc/{tid}/comm")).unwrap_or_else(|_| Vec::new());
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    name
}

/// Returns the path of the program that the process executes.
pub(crate) fn program(pid: u32) -> Vec<u8> {
    link(&format!("/proc/{pid}/exe"))
}

/// Returns the thread group of a thread; `None` if the thread is dead.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    status_number(tid, "Tgid:")
}

/// Returns the process that created a new thread; `None` if the thread is dead. If that process is
/// dead or passed `CLONE_PARENT` to clone(2), returns the thread's parent.
pub(crate) fn creator(tid: u32) -> Option<u32> {
    match thread_group(tid)? {
        pid if pid == tid => status_number(tid, "PPid:"),
        pid => Some(pid),
    }
}

fn status_number(tid: u32, field: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let number = status.lines().find_map(|line| line.strip_prefix(field))?;
    number.trim().parse().ok()
}

/// Returns whether the calling thread has children of its own; also if the kernel does not tell
/// (`CONFIG_PROC_CHILDREN`).
pub(crate) fn has_children() -> bool {
    fs::read("/proc/thread-self/children").map_or(true, |children| !children.is_empty())
}

/// Returns whether the thread exists and is not a zombie.
pub(crate) fn is_alive(tid: u32) -> bool {
    let state = stat(tid).and_then(|stat| stat.get(1).copied());
    !matches!(state, None | Some(b'Z' | b'X'))
}

/// Returns when a thread started, in ticks since the machine's boot; `None` if it is dead.
pub(crate) fn start(tid: u32) -> Option<u64> {
    let stat = stat(tid)?;
    // proc_pid_stat(5): the state is field 3, `starttime` is field 22.
    let mut fields = stat.split(|&byte| byte == b' ').skip(20);
    std::str::from_utf8(fields.next()?).ok()?.parse().ok()
}

/// Returns what follows the name in a thread's `stat`: a space, the state, and further fields.
fn stat(tid: u32) -> Option<Vec<u8>> {
    let mut stat = fs::read(format!("/proc/{tid}/stat")).ok()?;
    // The name can contain any byte and ends at the last parenthesis.
    let name = stat.iter().rposition(|&byte| byte == b')')?;
    stat.drain(..=name);
    Some(stat)
}

/// Returns the thread that has these numbers of a process and a thread in a PID namespace below
/// this one. Only descendants of this process are considered: a machine may have thousands of
/// others.
pub(crate) fn thread_below(pid: u32, tid: u32) -> Option<u32> {
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        next += 1;
        for thread in threads(process) {
            // The kernel has the file if it was built with CONFIG_PROC_CHILDREN.
            let children = fs::read_to_string(format!("/proc/{process}/task/{thread}/children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
        if number_below(process) == Some(pid) {
            let mut threads = threads(process).into_iter();
            let thread = threads.find(|&thread| number_below(thread) == Some(tid));
            if thread.is_some() {
                return thread;
            }
        }
    }
    None
}

/// Returns all processes.
pub(crate) fn all() -> Vec<u32> {
    numbers("/proc")
}

/// Returns whether a process was executed with a variable, given as `NAME=VALUE`. The process can
/// have overwritten its environment.
pub(crate) fn has_variable(pid: u32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_else(|_| Vec::new());
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|row| row == variable.as_bytes())
}

/// Returns how the mappings of a file are marked in `/proc/PID/maps`: by device and inode number.
pub(crate) fn mark_of(file: impl AsFd) -> Result<String, Errno> {
    let data = fstat(file)?;
    let (major, minor) = (major(data.st_dev), minor(data.st_dev));
    Ok(format!(" {major:02x}:{minor:02x} {} ", data.st_ino))
}

/// Returns whether a process has a file mapped, by its [mark](mark_of).
pub(crate) fn has_mapped(pid: u32, mark: &str) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_else(|_| Vec::new());
    String::from_utf8_lossy(&maps).contains(mark)
}

/// Returns a thread's number in its own PID namespace, if that is another one than this.
fn number_below(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    // That of this namespace first, that of its own last.
    let numbers = line.split_whitespace().skip(1);
    numbers.last()?.parse().ok()
}

/// Interval at which [`wait_for_end`] checks the process.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until the process is a zombie or was reaped. Does not reap it.
pub(crate) fn wait_for_end(pid: u32) {
    // Not waitpid(2), which could consume a stop that the tracer waits for.
    while is_alive(pid) {
        thread::sleep(LOOK);
    }
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    // Linux always provides this clock, and it starts at boot, so the value is not negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let rest = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    })
}
