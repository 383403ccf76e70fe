//! Waits for the next event: of the engine if its copy feeds the NIC, otherwise of the NIC or of a
//! peer that hangs up.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use gaudi_device::Deadline;
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::WorkCompletion;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Requester;
use crate::job::Phase;

/// How long answers of a peer that hung up may still arrive.
const GRACE: Duration = Duration::from_millis(200);
/// The peer has closed its end, whether or not bytes are left to read.
const HANG_UP: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);

impl Requester {
    /// Waits for the next event; `false` if the deadline passed first. An error ends the
    /// connection.
    pub(crate) fn wait(&mut self, stream: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
        let waited = self.sleep(stream, deadline);
        if let Err(error) = &waited {
            self.fail(error.clone());
        }
        waited
    }

    fn sleep(&mut self, stream: BorrowedFd<'_>, deadline: Deadline) -> Result<bool> {
        let front = self
            .engine
            .front()
            .and_then(|slot| self.chunks.get(*slot)?.as_ref());
        let copy = front.and_then(|chunk| match &chunk.phase {
            // The NIC's next completion feeds a store; only without one does the engine decide.
            Phase::Engine { copy, fetches } if *fetches || self.on_wire == 0 => Some(copy),
            _ => None,
        });
        if let Some(copy) = copy {
            return match copy.wait(deadline) {
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(false),
                // The next round takes its result.
                _ => Ok(true),
            };
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.channel.cq.req_notify(false)?;
        // What came before the request raises no event.
        let mut one = [WorkCompletion::EMPTY];
        if self.channel.cq.poll(&mut one)? == 1 {
            self.completed(&one[0])?;
            return Ok(true);
        }
        let mut left = deadline
            .instant()
            .map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        let mut fds = [
            PollFd::new(self.channel.cq.event_fd(), PollFlags::POLLIN),
            PollFd::new(stream, HANG_UP),
        ];
        let mut watched = &mut fds[..];
        if let Some(since) = self.hung_up {
            let grace = GRACE.saturating_sub(since.elapsed());
            if grace.is_zero() {
                return Err(Error::new(ErrorKind::Disconnected, "transfer")
                    .because("the peer closed the connection and owes an answer"));
            }
            left = Some(left.map_or(grace, |left| left.min(grace)));
            watched = &mut watched[..1];
        }
        let pause = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
        });
        match poll(watched, pause) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Error::from_errno("poll", errno)),
        }
        // nix returns `None` if it has no name for a flag, such as POLLRDHUP.
        let (ready, hung_up) = (fds[0].any() == Some(true), fds[1].any() != Some(false));
        if ready {
            self.channel.cq.ack_event()?;
        }
        if hung_up && self.hung_up.is_none() {
            self.hung_up = Some(Instant::now());
        }
        Ok(true)
    }
}
