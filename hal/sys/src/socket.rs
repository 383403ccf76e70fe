//! Descriptors over a Unix socket (SCM_RIGHTS, unix(7)), with no leak on any path.

#![expect(
    unsafe_code,
    reason = "sendmsg(2) and recvmsg(2) take pointers, and received descriptors are numbers that the kernel just gave to this process"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::MsgFlags;

use crate::{Errno, SysResult, uninterrupted};

/// The most descriptors that one message carries here (the kernel's own limit, SCM_MAX_FD, is 253).
pub const MAX_FDS: usize = 4;

/// The kernel's SCM_MAX_FD (include/net/scm.h).
const SCM_MAX_FD: usize = 253;
/// A process descriptor instead of a process number (`SO_PASSPIDFD`, Linux 6.5,
/// include/linux/socket.h).
const SCM_PIDFD: i32 = 4;
/// Bytes of control data that the most descriptors take (cmsg(3): a header and its padding are
/// below 32).
const FDS_SPACE: usize = 32 + SCM_MAX_FD * size_of::<i32>();
/// Bytes of control data that [`MAX_FDS`] take on their way out, with room to spare.
const SEND_CONTROL: usize = 64;
/// Room for them behind credentials, timestamps and a security label (a page at most).
const CONTROL: usize = 8192;

/// What is pending on a stream socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// No bytes yet.
    Nothing,
    /// At least one byte.
    Bytes,
    /// The peer closed its end, and every byte was read.
    Closed,
}

/// Checks for bytes without receiving them (recv(2), `MSG_PEEK`). Never blocks.
///
/// # Errors
/// `ECONNRESET` and the like: the connection failed.
pub fn pending(socket: impl AsFd) -> SysResult<Pending> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let socket = socket.as_fd().as_raw_fd();
    match uninterrupted(|| nix::sys::socket::recv(socket, &mut [0], flags)) {
        Ok(0) => Ok(Pending::Closed),
        Ok(_) => Ok(Pending::Bytes),
        Err(Errno::EAGAIN) => Ok(Pending::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Sends `bytes` with `fds` attached to the first of them; `bytes` must not be empty. Returns the
/// number of bytes sent.
///
/// Allocates nothing and takes no lock: a child may call it between fork(2) and execve(2).
///
/// # Errors
/// sendmsg(2)'s.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SysResult<usize> {
    send(socket.as_fd(), bytes, fds, MsgFlags::empty())
}

/// Sends as [`send_with_fds`], but never waits.
///
/// # Errors
/// - `EAGAIN`: the socket has no room, blocking or not.
/// - sendmsg(2)'s.
pub fn try_send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SysResult<usize> {
    send(socket.as_fd(), bytes, fds, MsgFlags::MSG_DONTWAIT)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: MsgFlags) -> SysResult<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(Errno::EINVAL);
    }
    let mut control = [0_u64; SEND_CONTROL / size_of::<u64>()];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a msghdr of zeros has no name, no vectors and no control data; all its fields allow
    // zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = (fds.len() * size_of::<i32>()) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: only computes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as usize;
        // SAFETY: the control data has `msg_controllen` bytes.
        let part = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: it is aligned for a header, zeroed, and exclusively borrowed.
        let Some(header) = (unsafe { part.as_mut() }) else {
            return Err(Errno::EINVAL);
        };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: only computes.
        header.cmsg_len = unsafe { libc::CMSG_LEN(len) } as usize;
        // SAFETY: the data follows its header.
        let data = unsafe { libc::CMSG_DATA(part) }.cast::<i32>();
        for (index, fd) in fds.iter().enumerate() {
            // SAFETY: CMSG_SPACE has room for them all; a number need not be aligned.
            unsafe { data.wrapping_add(index).write_unaligned(fd.as_raw_fd()) };
        }
    }
    let flags = (MsgFlags::MSG_NOSIGNAL | flags).bits();
    let count = uninterrupted(|| {
        // SAFETY: the message points at borrows that live across the call, with their lengths; the
        // kernel only reads them.
        Errno::result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
    })?;
    // A count is never negative: `Errno::result` has taken -1.
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Receives up to `bytes.len()` bytes and their descriptors, close-on-exec. 0 bytes mean that the
/// peer closed the socket. Credentials, security labels and the like are skipped.
///
/// # Errors
/// - `EMSGSIZE`: more than [`MAX_FDS`] descriptors; all are closed.
/// - `EMFILE`: the descriptor table is full; all are closed.
pub fn receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> SysResult<(usize, Vec<OwnedFd>)> {
    receive(socket.as_fd(), bytes, MsgFlags::empty())
}

/// Receives as [`receive_with_fds`], but never waits.
///
/// poll(2) does not suffice: it reports an out-of-band byte (`MSG_OOB`) as readable, and recvmsg(2)
/// skips it and waits for the next one (net/unix/af_unix.c:`manage_oob`).
///
/// # Errors
/// - `EAGAIN`: there is nothing to receive, on a blocking socket too.
/// - As for [`receive_with_fds`].
pub fn try_receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> SysResult<(usize, Vec<OwnedFd>)> {
    receive(socket.as_fd(), bytes, MsgFlags::MSG_DONTWAIT)
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], flags: MsgFlags) -> SysResult<(usize, Vec<OwnedFd>)> {
    let flags = libc::MSG_CMSG_CLOEXEC | flags.bits();
    // Where room ends, the kernel installs a part of the descriptors: all that it may deliver must
    // fit.
    let mut control = [0_u64; CONTROL / size_of::<u64>()];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a msghdr of zeros has no name, no vectors and no control data; all its fields allow
    // zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let count = uninterrupted(|| {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        // SAFETY: the message points at exclusive borrows, with their lengths.
        Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })
    })?;
    // As in `send`: never negative.
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the kernel just filled the message's control data, which is still borrowed.
    let fds = unsafe { take_fds(&message) };
    if fds.len() > MAX_FDS {
        return Err(Errno::EMSGSIZE);
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        let full = CONTROL - message.msg_controllen.min(CONTROL) < FDS_SPACE;
        return Err(if full { Errno::EMSGSIZE } else { Errno::EMFILE });
    }
    Ok((count, fds))
}

/// Takes over every descriptor that the kernel installed with a message, of a truncated one too.
///
/// # Safety
/// - A successful recvmsg(2) filled the message, whose control data is still borrowed;
/// - it is called once for the message.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the message's control data is valid, as the caller promises.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the macros of cmsg(3) give a header inside the control data, or null.
    while let Some(header) = unsafe { part.as_ref() } {
        let is_fds = header.cmsg_type == libc::SCM_RIGHTS || header.cmsg_type == SCM_PIDFD;
        if header.cmsg_level == libc::SOL_SOCKET && is_fds {
            // SAFETY: the data follows its header.
            let data = unsafe { libc::CMSG_DATA(part) }.cast::<i32>();
            // SAFETY: only computes.
            let bare = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(bare) / size_of::<i32>();
            for index in 0..count {
                // SAFETY: the header's length covers the number, which need not be aligned.
                let number = unsafe { data.wrapping_add(index).read_unaligned() };
                if number >= 0 {
                    // SAFETY: the kernel installed this descriptor for us in this call; nothing
                    // else owns it.
                    let fd = unsafe { OwnedFd::from_raw_fd(number) };
                    // An unrequested process descriptor is owned so that it closes.
                    if header.cmsg_type == libc::SCM_RIGHTS {
                        fds.push(fd);
                    }
                }
            }
        }
        // SAFETY: as above.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_tells_bytes_from_a_closed_peer() {
        use std::io::{Read as _, Write as _};
        let (mut ours, mut peer) = UnixStream::pair().unwrap();
        assert_eq!(pending(&ours), Ok(Pending::Nothing));
        peer.write_all(b"x").unwrap();
        drop(peer);
        assert_eq!(pending(&ours), Ok(Pending::Bytes), "bytes come before the end");
        ours.read_exact(&mut [0]).unwrap();
        assert_eq!(pending(&ours), Ok(Pending::Closed));
    }
    use crate::{Memfd, fd::file_id};
    use nix::sys::socket::{ControlMessage, UnixAddr, sendmsg};
    use std::io::IoSlice;
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

    /// Sends `count` descriptors of one file in one message, and expects a refusal that leaves none
    /// of them open.
    fn is_refused(name: &std::ffi::CStr, count: usize, with_credentials: bool) {
        let (a, b) = UnixStream::pair().unwrap();
        nix::sys::socket::setsockopt(&b, nix::sys::socket::sockopt::PassCred, &with_credentials).unwrap();
        let file = Memfd::sparse(name, 4096).unwrap();
        let numbers = vec![file.as_fd().as_raw_fd(); count];
        let link = format!("memfd:{}", name.to_string_lossy());
        let open = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter(|e| {
                    let link_of = e.as_ref().map(|e| std::fs::read_link(e.path()));
                    matches!(link_of, Ok(Ok(path)) if path.to_string_lossy().contains(&link))
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
    fn too_many_fds_are_refused_and_closed() {
        is_refused(c"many", 2 * MAX_FDS, false);
        is_refused(c"most", SCM_MAX_FD, false);
    }

    #[test]
    fn credentials_take_no_room_from_fds() {
        is_refused(c"credentials", SCM_MAX_FD, true);
        let (a, b) = UnixStream::pair().unwrap();
        nix::sys::socket::setsockopt(&b, nix::sys::socket::sockopt::PassCred, &true).unwrap();
        send_with_fds(&a, b"x", &[a.as_fd()]).unwrap();
        let (count, fds) = receive_with_fds(&b, &mut [0; 8]).unwrap();
        assert_eq!((count, fds.len()), (1, 1), "credentials are skipped");
    }

    #[test]
    fn a_full_socket_is_not_waited_for() {
        let (a, _b) = UnixStream::pair().unwrap();
        while try_send_with_fds(&a, &[0; 4096], &[]).is_ok() {}
        assert_eq!(try_send_with_fds(&a, b"x", &[a.as_fd()]), Err(Errno::EAGAIN));
    }

    #[test]
    fn out_of_band_byte_does_not_block() {
        let (a, b) = UnixStream::pair().unwrap();
        nix::sys::socket::send(a.as_raw_fd(), b"x", MsgFlags::MSG_OOB).unwrap();
        assert_eq!(try_receive_with_fds(&b, &mut [0; 8]).unwrap_err(), Errno::EAGAIN);
        send_with_fds(&a, b"y", &[]).unwrap();
        assert_eq!(try_receive_with_fds(&b, &mut [0; 8]).unwrap().0, 1);
    }

    extern "C" fn ignore(_: libc::c_int) {}

    #[test]
    fn interrupted_receive_is_repeated() {
        // SAFETY: a sigaction of zeros has no flags and an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, and no other test of this program uses the signal.
        let installed = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) };
        assert_eq!(installed, 0);
        let (a, b) = UnixStream::pair().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let receiving = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            receive_with_fds(&b, &mut [0; 8]).map(|(count, fds)| (count, fds.len()))
        });
        let thread = receiver.recv().unwrap();
        let state = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        // proc_pid_stat(5): the state follows the name, which stands in parentheses.
        while !state().rsplit(") ").next().unwrap().starts_with('S') {
            std::thread::yield_now();
        }
        // SAFETY: takes three numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR2) };
        // An interrupted call that is not repeated has returned by then.
        std::thread::sleep(std::time::Duration::from_millis(20));
        send_with_fds(&a, b"x", &[a.as_fd()]).unwrap();
        assert_eq!(receiving.join().unwrap(), Ok((1, 1)));
    }

    #[test]
    fn a_closed_peer_is_zero_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(a);
        let (count, fds) = receive_with_fds(&b, &mut [0; 8]).unwrap();
        assert_eq!((count, fds.len()), (0, 0));
    }
}
