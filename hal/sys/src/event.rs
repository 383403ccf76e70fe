//! Signals between processes and kernel: eventfd(2).

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Errno, SysResult, fd};

/// A counter that one side adds to and the other waits for.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// A new one, at zero.
    pub fn new() -> SysResult<Self> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(event.into()))
    }

    /// Takes a descriptor that somebody else made. `EINVAL` where it is no eventfd, told by its entry in `/proc/self/fdinfo`.
    pub fn of(descriptor: OwnedFd) -> SysResult<Self> {
        let info = fd::fdinfo(&descriptor)?;
        if !info.lines().any(|line| line.starts_with("eventfd-count:")) {
            return Err(Errno::EINVAL);
        }
        Ok(Self(descriptor))
    }

    /// Another descriptor of it.
    pub fn duplicate(&self) -> SysResult<Self> {
        fd::duplicate(&self.0).map(Self)
    }

    /// Adds one. A counter at its end, which its maker may have set to wait, stays as it is: who waits for it is awake.
    pub fn signal(&self) -> SysResult<()> {
        let mut set = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        poll(&mut set, PollTimeout::ZERO)?;
        if set[0].any() != Some(true) {
            return Ok(());
        }
        match nix::unistd::write(&self.0, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes what was added; 0 where nothing was.
    pub fn take(&self) -> SysResult<u64> {
        let mut count = [0; 8];
        let mut set = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut set, PollTimeout::ZERO)?;
        if set[0].any() != Some(true) {
            return Ok(0);
        }
        match nix::unistd::read(&self.0, &mut count) {
            Ok(8) => Ok(u64::from_ne_bytes(count)),
            Ok(_) | Err(Errno::EAGAIN) => Ok(0),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memfd;

    #[test]
    fn what_is_signalled_is_taken_once() {
        let event = Event::new().unwrap();
        let other = Event::of(fd::duplicate(&event).unwrap()).unwrap();
        assert_eq!(other.take(), Ok(0), "nothing was signalled");
        event.signal().unwrap();
        event.signal().unwrap();
        assert_eq!(other.take(), Ok(2));
        assert_eq!(event.take(), Ok(0));
    }

    #[test]
    fn another_file_is_refused() {
        let file = Memfd::sparse(c"no-event", 4096).unwrap();
        let refused = Event::of(fd::duplicate(&file).unwrap());
        assert_eq!(
            refused.err(),
            Some(Errno::EINVAL),
            "a write to it would change the peer's file"
        );
    }
}
