//! Waiting: for the engine where that is what feeds the NIC, else for the NIC, and for a peer that hangs up.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_verbs::WorkCompletion;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Asker;
use crate::job::Phase;

/// How long a peer that hung up may still have answers on their way.
const GRACE: Duration = Duration::from_millis(200);
/// The peer has closed its end, read or unread bytes before that.
const HANG_UP: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);

impl Asker {
    /// Waits for the next event, until `end`. `Ok(false)` where the time has passed.
    pub(crate) fn rest(&mut self, stream: BorrowedFd<'_>, end: Option<Instant>) -> Result<bool> {
        let answer = self.sleep(stream, end);
        if let Err(error) = &answer {
            self.fail(error.clone());
        }
        answer
    }

    fn sleep(&mut self, stream: BorrowedFd<'_>, end: Option<Instant>) -> Result<bool> {
        let front = self
            .engine
            .front()
            .and_then(|slot| self.chunks.get(*slot)?.as_ref());
        let completion = front.and_then(|chunk| match &chunk.phase {
            Phase::Fetching(completion) => Some(completion),
            // The NIC's next completion feeds the engine; only without one does the engine decide.
            Phase::Storing(completion) if self.on_wire == 0 => Some(completion),
            _ => None,
        });
        if let Some(completion) = completion {
            let deadline = end.map_or(gaudi_device::Deadline::NEVER, Into::into);
            return match completion.wait(deadline) {
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(false),
                // What became of it is seen in the next round.
                _ => Ok(true),
            };
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.cq.req_notify(false)?;
        // What came before the request raises no event.
        let mut one = [WorkCompletion::EMPTY];
        if self.cq.poll(&mut one)? == 1 {
            self.completed(&one[0])?;
            return Ok(true);
        }
        let mut left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
        let mut fds = [
            PollFd::new(self.cq.event_fd(), PollFlags::POLLIN),
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
        // nix tells flags that it has no name for as none at all.
        let (ready, hung_up) = (fds[0].any() == Some(true), fds[1].any() != Some(false));
        if ready {
            self.cq.ack_event()?;
        }
        if hung_up && self.hung_up.is_none() {
            self.hung_up = Some(Instant::now());
        }
        Ok(true)
    }
}
