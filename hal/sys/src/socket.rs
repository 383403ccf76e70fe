//! Descriptors over a Unix socket (SCM_RIGHTS, unix(7)), with no leak on any path.

#![expect(
    unsafe_code,
    reason = "received descriptors are numbers that the kernel just gave to this process"
)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use crate::{Errno, SysResult};

/// The most descriptors that one message carries here (the kernel's own limit, SCM_MAX_FD, is 253).
pub const MAX_FDS: usize = 4;

/// Sends `bytes` with `fds` attached to the first of them; `bytes` must not be empty. Returns how many bytes went out.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SysResult<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(Errno::EINVAL);
    }
    let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() {
        &rights[..0]
    } else {
        &rights[..]
    };
    loop {
        match sendmsg::<UnixAddr>(
            socket.as_fd().as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}

/// Receives up to `bytes.len()` bytes and the descriptors that came with them, close-on-exec. 0 bytes mean that the peer closed.
/// More than [`MAX_FDS`] descriptors answer `EMSGSIZE`, and all of them are closed.
pub fn receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> SysResult<(usize, Vec<OwnedFd>)> {
    // Room for all that the kernel can deliver: in a truncated control area some descriptors are installed but not named.
    let mut control = nix::cmsg_space!([i32; 253]);
    let mut fds = Vec::new();
    let count = loop {
        let mut parts = [IoSliceMut::new(bytes)];
        match recvmsg::<UnixAddr>(
            socket.as_fd().as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(message) => {
                for part in message.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(numbers) = part {
                        // SAFETY: the kernel installed these descriptors for us in this call; nothing else owns them.
                        fds.extend(numbers.into_iter().map(|n| unsafe { OwnedFd::from_raw_fd(n) }));
                    }
                }
                break message.bytes;
            }
        }
    };
    if fds.len() > MAX_FDS {
        Err(Errno::EMSGSIZE)
    } else {
        Ok((count, fds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memfd, fd::file_id};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_passed_fd_is_the_same_file() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = Memfd::sparse(c"passed", 4096).unwrap();
        assert_eq!(send_with_fds(&a, b"x", &[file.as_fd()]), Ok(1));
        let mut byte = [0; 8];
        let (count, fds) = receive_with_fds(&b, &mut byte).unwrap();
        assert_eq!((count, fds.len()), (1, 1));
        assert_eq!(
            file_id(&fds[0]),
            file_id(&file),
            "the receiver holds the sender's file"
        );
    }

    #[test]
    fn too_many_fds_are_refused_and_closed() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = Memfd::sparse(c"many", 4096).unwrap();
        let numbers = [file.as_fd().as_raw_fd(); 2 * MAX_FDS];
        let open = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter(|e| {
                    let link = e.as_ref().map(|e| std::fs::read_link(e.path()));
                    matches!(link, Ok(Ok(path)) if path.to_string_lossy().contains("memfd:many"))
                })
                .count()
        };
        let before = open();
        sendmsg::<UnixAddr>(
            a.as_raw_fd(),
            &[IoSlice::new(b"x")],
            &[ControlMessage::ScmRights(&numbers)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        assert_eq!(receive_with_fds(&b, &mut [0; 8]).unwrap_err(), Errno::EMSGSIZE);
        assert_eq!(open(), before, "no descriptor of the refused message stays open");
    }

    #[test]
    fn a_closed_peer_is_zero_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(a);
        let (count, fds) = receive_with_fds(&b, &mut [0; 8]).unwrap();
        assert_eq!((count, fds.len()), (0, 0));
    }
}
