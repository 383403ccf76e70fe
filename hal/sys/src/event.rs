//! Signals between processes and kernel: eventfd(2).

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Errno, SysResult, aio, fd};

/// A counter that one side adds to and the other waits for.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    /// Whether another process may have created it: then its flags are unknown.
    is_foreign: bool,
}

impl Event {
    /// Creates an event with counter 0.
    ///
    /// # Errors
    /// eventfd(2)'s: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> SysResult<Self> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            fd: event.into(),
            is_foreign: false,
        })
    }

    /// Takes ownership of a peer's eventfd. Its flags are not changed: the peer's descriptors share
    /// them.
    ///
    /// # Errors
    /// - `EINVAL`: the descriptor is not an eventfd. Its link in `/proc/self/fd` decides: the link
    ///   of a named file begins with a slash, whereas a peer can put lines into fdinfo by the name
    ///   of a dma-buf.
    /// - `ENOSYS`: there is no `/proc`.
    pub fn of(descriptor: OwnedFd) -> SysResult<Self> {
        if fd::link(&descriptor)?.as_os_str() != "anon_inode:[eventfd]" {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            fd: descriptor,
            is_foreign: true,
        })
    }

    /// Returns another descriptor of the same counter.
    ///
    /// # Errors
    /// `EMFILE`: the process has no free descriptor.
    pub fn duplicate(&self) -> SysResult<Self> {
        Ok(Self {
            fd: fd::duplicate(&self.fd)?,
            is_foreign: self.is_foreign,
        })
    }

    /// Adds one to the counter unless it is at its maximum. Does not sleep, so that it may be
    /// called under a device's lock.
    ///
    /// A peer's eventfd is signalled by Linux AIO. If the kernel or a sandbox does not allow that,
    /// a peer that fills a blocking eventfd between poll(2) and write(2) can delay the caller until
    /// the peer drains it.
    ///
    /// # Errors
    /// poll(2)'s and write(2)'s.
    pub fn signal(&self) -> SysResult<()> {
        if self.is_foreign && aio::signal(self.fd.as_fd()).is_ok() {
            return Ok(());
        }
        if !self.is_ready(PollFlags::POLLOUT)? {
            return Ok(());
        }
        match nix::unistd::write(&self.fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the counter and sets it to 0; returns 0 if it is 0. For an event of this process:
    /// another reader of a peer's event can take the count first.
    ///
    /// # Errors
    /// poll(2)'s and read(2)'s.
    pub fn take(&self) -> SysResult<u64> {
        let mut count = [0; 8];
        if !self.is_ready(PollFlags::POLLIN)? {
            return Ok(0);
        }
        match nix::unistd::read(&self.fd, &mut count) {
            Ok(8) => Ok(u64::from_ne_bytes(count)),
            Ok(_) | Err(Errno::EAGAIN) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    fn is_ready(&self, event: PollFlags) -> SysResult<bool> {
        let mut set = [PollFd::new(self.fd.as_fd(), event)];
        poll(&mut set, PollTimeout::ZERO)?;
        Ok(set[0].any() == Some(true))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;
    use crate::Memfd;

    #[test]
    fn signal_is_taken_once() {
        let event = Event::new().unwrap();
        let other = Event::of(fd::duplicate(&event).unwrap()).unwrap();
        assert_eq!(other.take(), Ok(0), "nothing was signalled");
        event.signal().unwrap();
        event.signal().unwrap();
        assert_eq!(other.take(), Ok(2));
        assert_eq!(event.take(), Ok(0));
    }

    /// Two threads signal a peer's eventfd whose counter is one below its maximum: the second write
    /// would sleep.
    #[test]
    fn full_eventfd_does_not_block_signal() {
        const ROUNDS: u64 = 200;
        const ROOM: u64 = 16;
        // As a semaphore, so that one read(2) makes room for one signal.
        let held = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE).unwrap();
        held.write(u64::MAX - 1).unwrap();
        let make_room = || (0..ROOM).for_each(|_| assert_eq!(held.read(), Ok(1)));
        let signalled = [AtomicU64::new(0), AtomicU64::new(0)];
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for count in &signalled {
                let event = Event::of(fd::duplicate(&held).unwrap()).unwrap();
                let ended = &ended;
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        event.signal().unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let slept = (0..ROUNDS).find(|_| {
                let from = signalled.each_ref().map(|count| count.load(Ordering::Relaxed));
                make_room();
                let begin = Instant::now();
                // Each of them comes to the full counter.
                let is_done = || {
                    let counts = signalled.iter().zip(from);
                    let mut done =
                        counts.map(|(count, from)| count.load(Ordering::Relaxed) > from + 2 * ROOM);
                    done.all(|done| done)
                };
                // A signal that sleeps never wakes in this round.
                while !is_done() && begin.elapsed() < Duration::from_secs(60) {
                    std::thread::yield_now();
                }
                !is_done()
            });
            ended.store(true, Ordering::Relaxed);
            make_room();
            assert_eq!(slept, None, "a signal slept in this round");
        });
    }

    #[test]
    fn signal_leaves_the_flags_of_the_peer() {
        let held = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
        let flags = fcntl(&held, FcntlArg::F_GETFL).unwrap();
        let event = Event::of(fd::duplicate(&held).unwrap()).unwrap();
        event.signal().unwrap();
        event.signal().unwrap();
        assert_eq!(held.read(), Ok(2), "the peer's read(2) waits for what it gets");
        assert_eq!(fcntl(&held, FcntlArg::F_GETFL), Ok(flags));
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
