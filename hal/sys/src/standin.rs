//! A memfd window that stands in for a dma-buf where the kernel has no exporter.
//!
//! A dma-buf has a size, can be passed to other processes, and its exporter can detect the release
//! of the last reference. A plain memfd can only be passed. The stand-in adds an
//! open-file-description lock (fcntl_locking(2)):
//!
//! - each export opens the memfd again, and takes a shared lock on exactly its window;
//! - every process with the descriptor can read the window from `/proc/self/fdinfo`;
//! - the lock lives until the last duplicate is closed and the last mapping is removed, in every
//!   process. The exporter tests for a conflicting lock to detect whether an export exists.
//!
//! Every process that holds the descriptor shares the lock. An importer can release it
//! (`F_OFD_SETLK` with `F_UNLCK`): [`is_exported`] is false then while the importer still has the
//! memory mapped, and the exporter may give the memory to another owner. An importer of a dma-buf
//! cannot hide that it holds the memory.
//!
//! A stand-in needs `/proc` (proc(5)); without it, calls fail with `ENOSYS`.
//!
//! The file's name is `memfd:gaudi-standin…`. Unlike a dma-buf, a process can map it past its
//! window.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, c_short, flock};

use crate::fd::{fdinfo, link, reopen};
use crate::{Errno, Memfd, SysResult, memfd};

/// The memfd name that marks a file whose windows are stand-ins (memfd_create(2); the kernel shows
/// it as `/memfd:NAME`).
pub const MEMFD_NAME: &std::ffi::CStr = c"gaudi-standin";

/// The byte range of the memfd that one stand-in exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First byte, from the start of the memfd.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
}

/// Opens a part of `memfd` as a new stand-in with a count of its own, readable and writable,
/// close-on-exec.
///
/// # Errors
/// - `EINVAL`: the window is empty or leaves the file.
/// - `ENOSYS`: there is no `/proc`.
pub fn export(memfd: &Memfd, window: Window) -> SysResult<OwnedFd> {
    let end = window.offset.checked_add(window.len).ok_or(Errno::EINVAL)?;
    if window.len == 0 || end > memfd.len() {
        return Err(Errno::EINVAL);
    }
    let file = reopen(memfd)?;
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock(F_RDLCK, window)?))?;
    Ok(file)
}

/// Returns the window of a stand-in, which the kernel records; `None` if the descriptor is not a
/// stand-in.
///
/// # Errors
/// `ENOSYS`: there is no `/proc`.
pub fn window(fd: impl AsFd) -> SysResult<Option<Window>> {
    let marker = format!("/memfd:{}", MEMFD_NAME.to_string_lossy());
    if !link(&fd)?.to_string_lossy().starts_with(&marker) {
        return Ok(None);
    }
    Ok(window_in(&fdinfo(fd)?))
}

/// Why a peer's descriptor cannot serve as a stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The window is empty or leaves the file: an access past the end is a SIGBUS.
    LeavesFile,
    /// The file has no `F_SEAL_SHRINK`: its owner can truncate it under a mapping.
    Shrinks,
    /// The file is not in tmpfs, for example a memfd of huge pages: an access to a missing page is
    /// a SIGBUS ([`memfd::is_lasting`]).
    NotTmpfs,
    /// The file is sealed against writes: no writable mapping of it can be made.
    WriteSealed,
    /// The descriptor is not open for reading and writing.
    NotReadWrite,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeavesFile => "the window of the stand-in is empty or leaves its memfd",
            Self::Shrinks => "the memfd of the stand-in is not sealed against shrinking (F_SEAL_SHRINK)",
            Self::NotTmpfs => {
                "the file of the stand-in is not in tmpfs: its pages can be missing (MFD_HUGETLB)"
            }
            Self::WriteSealed => "the memfd of the stand-in is sealed against writes",
            Self::NotReadWrite => "the stand-in is not open for reading and writing",
        })
    }
}

/// Returns why this window of a peer's file cannot be mapped and used safely; `None` if it can.
///
/// The peer cannot cause a flaw of the first three kinds later. It can add a write seal: mapping
/// then fails with `EPERM`.
///
/// # Errors
/// fstat(2)'s and fcntl(2)'s.
pub fn flaw(fd: impl AsFd, window: Window) -> SysResult<Option<Flaw>> {
    let fd = fd.as_fd();
    // F_GET_SEALS fails with EINVAL for a file without seals, which can shrink.
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).unwrap_or(0);
    let seals = SealFlag::from_bits_retain(seals);
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        return Ok(Some(Flaw::Shrinks));
    }
    if !memfd::is_lasting(fd) {
        return Ok(Some(Flaw::NotTmpfs));
    }
    // Read after the seal was checked: the size cannot shrink any more.
    let size = nix::sys::stat::fstat(fd)?.st_size;
    let end = window.offset.checked_add(window.len).filter(|_| window.len > 0);
    if !end.is_some_and(|end| i64::try_from(end).is_ok_and(|end| end <= size)) {
        return Ok(Some(Flaw::LeavesFile));
    }
    if seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
        return Ok(Some(Flaw::WriteSealed));
    }
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    let is_read_write = flags & OFlag::O_ACCMODE == OFlag::O_RDWR;
    Ok((!is_read_write).then_some(Flaw::NotReadWrite))
}

/// The window that the text of a stand-in's fdinfo shows, of any process; `None` where it shows
/// none.
pub fn window_in(fdinfo: &str) -> Option<Window> {
    fdinfo.lines().find_map(parse_lock)
}

/// Returns whether any stand-in, in any process, still has a part of this range of `memfd`.
///
/// # Errors
/// fcntl(2)'s.
pub fn is_exported(memfd: &Memfd, range: Window) -> SysResult<bool> {
    if range.len == 0 {
        return Ok(false);
    }
    let mut probe = lock(F_WRLCK, range)?;
    fcntl(memfd, FcntlArg::F_OFD_GETLK(&mut probe))?;
    Ok(i32::from(probe.l_type) != F_UNLCK)
}

fn lock(kind: i32, window: Window) -> SysResult<flock> {
    Ok(flock {
        l_type: c_short::try_from(kind).map_err(|_| Errno::EINVAL)?,
        l_whence: c_short::try_from(SEEK_SET).map_err(|_| Errno::EINVAL)?,
        l_start: i64::try_from(window.offset).map_err(|_| Errno::EINVAL)?,
        l_len: i64::try_from(window.len).map_err(|_| Errno::EINVAL)?,
        l_pid: 0,
    })
}

/// Reads `lock:\t1: OFDLCK ADVISORY READ -1 00:01:1037 0 4095`, the line of fdinfo that shows our
/// lock.
fn parse_lock(line: &str) -> Option<Window> {
    let mut words = line.strip_prefix("lock:")?.split_whitespace();
    words.find(|word| *word == "OFDLCK")?;
    let mut last = words.skip_while(|word| *word != "READ").skip(3);
    let first: u64 = last.next()?.parse().ok()?;
    let end: u64 = last.next()?.parse().ok()?;
    Some(Window {
        offset: first,
        len: end.checked_sub(first)?.checked_add(1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::duplicate;
    use crate::{RawMapping, socket};
    use std::os::unix::net::UnixStream;

    const WHOLE: Window = Window {
        offset: 0,
        len: 1 << 20,
    };

    fn device_memory() -> Memfd {
        Memfd::sparse(MEMFD_NAME, WHOLE.len).unwrap()
    }

    #[test]
    fn window_is_read_from_the_fd_alone() {
        let memory = device_memory();
        let wanted = Window {
            offset: 8192,
            len: 12288,
        };
        let fd = export(&memory, wanted).unwrap();
        let other = export(&memory, Window { offset: 0, len: 4096 }).unwrap();
        assert_eq!(window(&fd), Ok(Some(wanted)));
        assert_eq!(
            window(&other),
            Ok(Some(Window { offset: 0, len: 4096 })),
            "exports of one file do not mix"
        );
        assert_eq!(window(&memory), Ok(None), "the memory itself is not a stand-in");
        assert_eq!(window(std::io::stdin()), Ok(None));
    }

    #[test]
    fn export_lives_until_last_fd_and_mapping() {
        let memory = device_memory();
        let fd = export(
            &memory,
            Window {
                offset: 4096,
                len: 4096,
            },
        )
        .unwrap();
        assert_eq!(is_exported(&memory, WHOLE), Ok(true));
        assert_eq!(
            is_exported(
                &memory,
                Window {
                    offset: 8192,
                    len: 4096
                }
            ),
            Ok(false),
            "its neighbour is free"
        );
        let twin = duplicate(&fd).unwrap();
        drop(fd);
        assert_eq!(is_exported(&memory, WHOLE), Ok(true), "a duplicate holds it");
        let map = RawMapping::of_fd(&twin, 4096, 4096).unwrap();
        drop(twin);
        assert_eq!(is_exported(&memory, WHOLE), Ok(true), "a mapping holds it");
        drop(map);
        assert_eq!(is_exported(&memory, WHOLE), Ok(false), "no process holds it");
    }

    #[test]
    fn socket_and_receiver_hold_a_passed_export() {
        let memory = device_memory();
        let (a, b) = UnixStream::pair().unwrap();
        let fd = export(
            &memory,
            Window {
                offset: 4096,
                len: 8192,
            },
        )
        .unwrap();
        socket::send_with_fds(&a, b"x", &[fd.as_fd()]).unwrap();
        drop(fd);
        assert_eq!(
            is_exported(&memory, WHOLE),
            Ok(true),
            "the message in flight holds it"
        );
        let (_, fds) = socket::receive_with_fds(&b, &mut [0; 1]).unwrap();
        assert_eq!(
            window(&fds[0]),
            Ok(Some(Window {
                offset: 4096,
                len: 8192
            }))
        );
        drop(fds);
        assert_eq!(is_exported(&memory, WHOLE), Ok(false));
    }

    #[test]
    fn importer_can_release_the_lock() {
        let memory = device_memory();
        let range = Window {
            offset: 4096,
            len: 4096,
        };
        let fd = export(&memory, range).unwrap();
        let map = RawMapping::of_fd(&fd, 4096, 4096).unwrap();
        fcntl(&fd, FcntlArg::F_OFD_SETLK(&lock(F_UNLCK, range).unwrap())).unwrap();
        assert_eq!(
            is_exported(&memory, WHOLE),
            Ok(false),
            "as documented in the module's head"
        );
        map.write(0, b"x").expect("the memory is still mapped");
    }

    #[test]
    fn wrong_windows_are_einval() {
        let memory = device_memory();
        for wrong in [
            Window { offset: 0, len: 0 },
            Window {
                offset: 4096,
                len: 1 << 20,
            },
            Window {
                offset: u64::MAX,
                len: 2,
            },
        ] {
            assert_eq!(export(&memory, wrong).unwrap_err(), Errno::EINVAL, "{wrong:?}");
        }
    }
}
