//! Waiting for descriptors (poll(2)).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Deadline, Errno, SysResult, uninterrupted};

/// The longest single sleep; a longer wait is made of several.
const STEP: Duration = Duration::from_secs(60);

/// Waits until one of the events of `set` occurs, or the deadline. Returns whether one did.
///
/// # Errors
/// poll(2)'s. `EINTR` is repeated.
pub fn wait(set: &mut [PollFd<'_>], deadline: Deadline) -> SysResult<bool> {
    loop {
        // A rest below a millisecond is rounded up: a wait must not become a spin.
        let millis = deadline.remaining(STEP).as_micros().div_ceil(1000);
        // A pause beyond 24 days is repeated by the loop.
        let pause = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(set, pause) {
            Err(Errno::EINTR) => {}
            Ok(0) if !deadline.has_passed() => {}
            answer => return answer.map(|count| count > 0),
        }
    }
}

/// Waits until a descriptor is readable, closed or in error, or `timeout` has passed. Returns which
/// are.
///
/// # Errors
/// As [`wait`].
pub fn readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> SysResult<[bool; N]> {
    let mut set = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let any = wait(&mut set, timeout.into())?;
    Ok(set.map(|fd| any && fd.any() == Some(true)))
}

/// Returns whether the other end of a socket is closed (`POLLHUP`), without waiting.
///
/// # Errors
/// poll(2)'s.
pub fn is_hung_up(socket: impl AsFd) -> SysResult<bool> {
    let mut set = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    uninterrupted(|| poll(&mut set, PollTimeout::ZERO))?;
    let events = set[0].revents().unwrap_or(PollFlags::empty());
    Ok(events.contains(PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn readable_descriptors_are_reported() {
        let (a, mut a_peer) = UnixStream::pair().unwrap();
        let (b, b_peer) = UnixStream::pair().unwrap();
        let look = |timeout| readable([a.as_fd(), b.as_fd()], Duration::from_millis(timeout)).unwrap();
        assert_eq!(look(1), [false, false]);
        a_peer.write_all(b"x").unwrap();
        assert_eq!(look(1000), [true, false]);
        drop(b_peer);
        assert_eq!(look(1000), [true, true], "a closed peer is an event too");
    }

    #[test]
    fn last_duplicate_of_the_peer_hangs_up() {
        let (own, peer) = UnixStream::pair().unwrap();
        own.shutdown(std::net::Shutdown::Write).unwrap();
        let twin = peer.try_clone().unwrap();
        drop(peer);
        assert_eq!(is_hung_up(&own), Ok(false));
        drop(twin);
        assert_eq!(is_hung_up(&own), Ok(true));
    }
}
