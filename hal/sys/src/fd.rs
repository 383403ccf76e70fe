//! Identity, size and kernel notes of an open file description.

#![expect(unsafe_code, reason = "a number from an ioctl's argument is duplicated")]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::unistd::Whence;

use crate::{Errno, SysResult};

/// What names a file while it is open: device and inode number (fstat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`; each dma-buf has its own.
    pub inode: u64,
}

/// Returns the identity of the file behind `fd`.
///
/// # Errors
/// fstat(2)'s.
pub fn file_id(fd: impl AsFd) -> SysResult<FileId> {
    let stat = nix::sys::stat::fstat(fd.as_fd())?;
    Ok(FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Returns the number of descriptors of this process whose file has this identity.
///
/// # Errors
/// `ENOSYS`: there is no `/proc`.
pub fn count_of(file: FileId) -> SysResult<usize> {
    use std::os::unix::fs::MetadataExt as _;
    let descriptors = std::fs::read_dir("/proc/self/fd").map_err(errno_of_proc)?;
    let same = |entry: std::io::Result<std::fs::DirEntry>| {
        // Of the file, not of the link. A descriptor that was closed meanwhile has none.
        let found = std::fs::metadata(entry.ok()?.path()).ok()?;
        (found.dev() == file.device && found.ino() == file.inode).then_some(())
    };
    Ok(descriptors.filter_map(same).count())
}

/// Returns the size in bytes: of a dma-buf by `lseek(SEEK_END)`, of a file by fstat. The position
/// is left at the start.
///
/// # Errors
/// lseek(2)'s and fstat(2)'s.
pub fn size(fd: impl AsFd) -> SysResult<u64> {
    let end = nix::unistd::lseek(fd.as_fd(), 0, Whence::SeekEnd)?;
    let _ = nix::unistd::lseek(fd.as_fd(), 0, Whence::SeekSet)?;
    u64::try_from(end).map_err(|_| Errno::EOVERFLOW)
}

/// Returns a second descriptor of the same open file description, close-on-exec.
///
/// # Errors
/// `EMFILE`: the process has no free descriptor.
pub fn duplicate(fd: impl AsFd) -> SysResult<OwnedFd> {
    fd.as_fd().try_clone_to_owned().map_err(errno_of)
}

/// Returns a second descriptor of the open file description behind a number of this process,
/// close-on-exec. The kernel looks the number up, as for a number in an ioctl's argument.
///
/// # Errors
/// - `EBADF`: no descriptor has this number.
/// - `EMFILE`: the process has no free descriptor.
pub fn duplicate_number(number: u32) -> SysResult<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: this fcntl(2) accesses no memory, and returns EBADF for a number that is not open.
    let duplicate = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: the number is new, and this call alone has it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// Clears `FD_CLOEXEC` (fcntl(2)): the descriptor stays open across execve(2).
///
/// # Errors
/// fcntl(2)'s.
pub fn keep_on_exec(fd: impl AsFd) -> SysResult<()> {
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).map(drop)
}

/// Whether execve(2) closes the descriptor (`FD_CLOEXEC`).
///
/// # Errors
/// fcntl(2)'s.
pub fn is_close_on_exec(fd: impl AsFd) -> SysResult<bool> {
    let flags = fcntl(fd.as_fd(), FcntlArg::F_GETFD)?;
    Ok(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC))
}

/// The errno of a call on a path in `/proc/self/fd` or `/proc/self/fdinfo`: `ENOSYS`, and not a
/// bare "not found", where there is no `/proc` (proc(5)) to find anything in: containers and
/// chroots may lack it.
pub fn errno_of_proc(error: std::io::Error) -> Errno {
    errno_under(Path::new("/proc/self/fd"), error)
}

fn errno_under(proc: &Path, error: std::io::Error) -> Errno {
    match errno_of(error) {
        Errno::ENOENT if !proc.is_dir() => Errno::ENOSYS,
        errno => errno,
    }
}

/// Returns what the link of this descriptor in `/proc/self/fd` shows (proc_pid_fd(5)).
///
/// # Errors
/// `ENOSYS`: there is no `/proc`.
pub fn link(fd: impl AsFd) -> SysResult<PathBuf> {
    std::fs::read_link(path(fd)).map_err(errno_of_proc)
}

/// The path in `/proc/self/fd` that opens the file of this descriptor anew.
pub(crate) fn path(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// Opens the file of `fd` anew: a descriptor with a file description of its own, for reading and
/// writing, close-on-exec.
///
/// # Errors
/// - open(2)'s.
/// - `ENOSYS`: there is no `/proc`.
pub fn reopen(fd: impl AsFd) -> SysResult<OwnedFd> {
    let file = File::options().read(true).write(true).open(path(fd));
    file.map(OwnedFd::from).map_err(errno_of_proc)
}

/// Returns what `/proc/self/fdinfo` shows of this descriptor (proc_pid_fdinfo(5)): at most 64 KiB
/// of text.
///
/// # Errors
/// `ENOSYS`: there is no `/proc`.
pub fn fdinfo(fd: impl AsFd) -> SysResult<String> {
    let mut text = String::new();
    File::open(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))
        .and_then(|file| file.take(64 * 1024).read_to_string(&mut text))
        .map_err(errno_of_proc)?;
    Ok(text)
}

/// Returns the references to the file of a dma-buf: descriptors, mappings, devices and messages in
/// flight, in every process (`count` in fdinfo).
///
/// # Errors
/// - `ENODATA`: the descriptor is not a dma-buf.
/// - `ENOSYS`: there is no `/proc`.
pub fn references(fd: impl AsFd) -> SysResult<u64> {
    let notes = fdinfo(fd)?;
    let count = notes.lines().find_map(|line| line.strip_prefix("count:"));
    count
        .and_then(|text| text.trim().parse().ok())
        .ok_or(Errno::ENODATA)
}

/// The errno inside a standard I/O error; `EIO` where it carries none.
pub fn errno_of(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_one_file_are_counted() {
        let file = crate::Memfd::sparse(c"counted", 4096).unwrap();
        let id = file_id(&file).unwrap();
        assert_eq!(count_of(id), Ok(1));
        let others = [duplicate(&file).unwrap(), reopen(&file).unwrap()];
        assert_eq!(count_of(id), Ok(3));
        drop(others);
        assert_eq!(count_of(id), Ok(1));
    }

    #[test]
    fn missing_proc_is_enosys() {
        let missing = || std::io::Error::from_raw_os_error(Errno::ENOENT as i32);
        assert_eq!(errno_under(Path::new("/no/such/proc"), missing()), Errno::ENOSYS);
        assert_eq!(errno_under(Path::new("/"), missing()), Errno::ENOENT);
        let other = std::io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert_eq!(errno_under(Path::new("/no/such/proc"), other), Errno::EMFILE);
    }
}
