//! Waiting for descriptors (poll(2)).

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Errno, SysResult};

/// The longest single sleep; a longer wait is made of several.
const STEP: Duration = Duration::from_secs(60);

/// Waits until a descriptor is readable, closed or in error, or `timeout` has passed. Returns which
/// are.
///
/// # Errors
/// poll(2)'s. `EINTR` is repeated.
pub fn readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> SysResult<[bool; N]> {
    let end = Instant::now().checked_add(timeout);
    let mut set = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    loop {
        let left = end.map_or(STEP, |end| end.saturating_duration_since(Instant::now()));
        // A rest below a millisecond is rounded up: a wait must not become a spin.
        let millis = left.min(STEP).as_micros().div_ceil(1000);
        // A pause beyond 24 days is repeated by the loop.
        let pause = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut set, pause) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(0) if end.is_some_and(|end| Instant::now() >= end) => return Ok([false; N]),
            Ok(0) => {}
            Ok(_) => return Ok(std::array::from_fn(|index| set[index].any() == Some(true))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_readable_ones_are_told() {
        let (a, mut a_peer) = UnixStream::pair().unwrap();
        let (b, b_peer) = UnixStream::pair().unwrap();
        let look = |timeout| readable([a.as_fd(), b.as_fd()], Duration::from_millis(timeout)).unwrap();
        assert_eq!(look(1), [false, false]);
        a_peer.write_all(b"x").unwrap();
        assert_eq!(look(1000), [true, false]);
        drop(b_peer);
        assert_eq!(look(1000), [true, true], "a peer that is gone is an event too");
    }
}
