//! Waits in a measured loop: for the NIC, for memory, and for the peer to end the row.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use gaudi::sys::poll::readable;
use gaudi::sys::socket::{self, Pending};
use gaudi::{Error, ErrorKind};

use super::message::Message;
use super::op::{OPERATION, Tally};
use crate::control::{Control, Reply as _, out_of_step};

/// Polls between two calls of `yield_now`: the peer may need the processor. More frequent calls
/// slow small writes.
const SPINS: u32 = 1024;
/// Polls between two checks of the clock and the control socket, which cost more than a poll.
const LOOKS: u32 = 4096;
/// Interval between two heartbeats. The peer reads them at least as often, so that the socket never
/// fills.
pub(super) const SIGN: Duration = Duration::from_millis(500);
/// Timeout of the peer's heartbeat: as long as a NIC retransmits unacknowledged packets (8 times
/// 2 s). Without work in flight the NIC never notices a stopped peer.
const SILENCE: Duration = Duration::from_secs(16);

/// Spins until the NIC or memory changes, with a deadline, and notices a peer that fails, closes
/// its end or ends the row.
pub(super) struct Watch<'a> {
    control: &'a mut Control,
    timeout: Duration,
    looks: u32,
    /// When the current wait times out. Only long waits read the clock, which may be slow.
    end: Option<Instant>,
    /// When the peer's last heartbeat arrived in this wait, or when the wait began.
    heard: Option<Instant>,
    sign: Instant,
    theirs: Option<Tally>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(control: &'a mut Control, timeout: Duration) -> Self {
        Self {
            control,
            timeout,
            looks: 0,
            end: None,
            heard: None,
            sign: Instant::now(),
            theirs: None,
        }
    }

    /// Ends a wait: the next one has a deadline of its own.
    #[inline]
    pub(super) fn renew(&mut self) {
        self.looks = 0;
        self.end = None;
        self.heard = None;
    }

    /// Does what [`renew`](Self::renew) does, in a loop that reads the clock. Sends a heartbeat if
    /// one is due.
    #[inline]
    pub(super) fn progress(&mut self, now: Instant) -> Result<()> {
        self.renew();
        match self.is_sign_due(now) {
            true => {
                self.give_sign(now)?;
                self.hear(now)
            }
            false => Ok(()),
        }
    }

    #[inline]
    fn is_sign_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.sign) >= SIGN
    }

    #[cold]
    fn give_sign(&mut self, now: Instant) -> Result<()> {
        self.sign = now;
        Ok(self.control.send(&Message::Alive)?)
    }

    /// Spins until the next poll. Returns true if the control socket was checked too.
    ///
    /// # Errors
    /// - `TimedOut`: the wait lasted too long, or the peer's process does not run.
    /// - `Disconnected`: the peer closed its end.
    /// - The peer's own failure.
    #[inline]
    pub(super) fn look_again(&mut self) -> Result<bool> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks % LOOKS == 0 {
            self.look_around()?;
            return Ok(true);
        }
        if self.looks % SPINS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        Ok(false)
    }

    #[cold]
    fn look_around(&mut self) -> Result<()> {
        std::thread::yield_now();
        let now = Instant::now();
        self.hear(now)?;
        if self.is_sign_due(now) {
            self.give_sign(now)?;
        }
        if now >= *self.end.get_or_insert(now + self.timeout) {
            return Err(Error::timed_out("wait for the NIC").into());
        }
        let heard = *self.heard.get_or_insert(now);
        if self.theirs.is_none() && now - heard >= SILENCE {
            return Err(Error::new(ErrorKind::TimedOut, OPERATION)
                .because(format!("no heartbeat from the peer for {} s", SILENCE.as_secs()))
                .into());
        }
        Ok(())
    }

    /// Takes what the peer has sent, without waiting.
    fn hear(&mut self, now: Instant) -> Result<()> {
        loop {
            let pending = socket::pending(&*self.control)
                .map_err(|errno| Error::from_errno("look at the control socket", errno))?;
            match pending {
                Pending::Nothing => return Ok(()),
                Pending::Closed => {
                    return Err(Error::new(ErrorKind::Disconnected, OPERATION)
                        .because("the peer closed the connection in the middle of a row")
                        .into());
                }
                // The peer's next message is not of this row.
                Pending::Bytes if self.theirs.is_some() => return Ok(()),
                Pending::Bytes => {
                    self.take()?;
                    self.heard = Some(now);
                }
            }
        }
    }

    fn take(&mut self) -> Result<()> {
        match self.control.receive::<Message>()?.settle()? {
            None => {}
            Some(Message::Done(tally)) => self.theirs = Some(tally),
            Some(other) => return Err(out_of_step(&other)),
        }
        Ok(())
    }

    /// Returns the peer's figures once the peer has ended the row.
    pub(super) fn theirs(&self) -> Option<&Tally> {
        self.theirs.as_ref()
    }

    /// Ends the row at this side.
    pub(super) fn done(&mut self, ours: &Tally) -> Result<()> {
        Ok(self.control.send(&Message::Done(*ours))?)
    }

    /// Waits until the peer ends the row. Each heartbeat extends the wait.
    pub(super) fn await_theirs(&mut self) -> Result<Tally> {
        const OP: &str = "wait for the peer's end of the row";
        let mut last = Instant::now();
        loop {
            if let Some(theirs) = self.theirs {
                return Ok(theirs);
            }
            let [came] = readable([self.control.as_fd()], SIGN.min(self.timeout))
                .map_err(|errno| Error::from_errno(OP, errno))?;
            let now = Instant::now();
            if came {
                self.take()?;
                last = now;
            } else if now - last >= self.timeout {
                return Err(Error::timed_out(OP).into());
            }
            // Also while messages arrive: a flood of them must not stop this end's heartbeat.
            if self.is_sign_due(now) {
                self.give_sign(now)?;
            }
        }
    }
}
