//! A cable under the attacker's control: it stops, resumes, repeats or cuts the traffic.

#![expect(
    unsafe_code,
    reason = "TIOCOUTQ asks a socket for the bytes that its peer has not read"
)]

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::nodes::MAX_WAIT;

nix::ioctl_read_bad!(unread, nix::libc::TIOCOUTQ, nix::libc::c_int);

#[derive(Default)]
struct State {
    /// Bytes that may still pass; all where there is no limit.
    left: Option<usize>,
    passed: Vec<u8>,
    /// Bytes taken from one end and not yet written to the other.
    held: usize,
    ended: bool,
}

/// One direction of the cable.
pub(crate) struct Direction {
    state: Arc<(Mutex<State>, Condvar)>,
    from: UnixStream,
    to: UnixStream,
}

impl Direction {
    fn new(from: &UnixStream, to: &UnixStream) -> Self {
        let [from, to] = [from, to].map(|end| end.try_clone().expect("a clone"));
        let state = Arc::<(Mutex<State>, Condvar)>::default();
        let shared = Arc::clone(&state);
        let [mut reads, mut writes] = [&from, &to].map(|end| end.try_clone().expect("a clone"));
        std::thread::spawn(move || {
            let (state, changed) = &*shared;
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = reads.read(&mut buffer) {
                let mut rest = &buffer[..count];
                while !rest.is_empty() {
                    let mut now = state.lock().expect("no panic");
                    now.held = rest.len();
                    let allowed = loop {
                        match now.left {
                            None => break rest.len(),
                            Some(0) => now = changed.wait(now).expect("no panic"),
                            Some(left) => break left.min(rest.len()),
                        }
                    };
                    now.left = now.left.map(|left| left - allowed);
                    now.passed.extend(&rest[..allowed]);
                    drop(now);
                    if writes.write_all(&rest[..allowed]).is_err() {
                        state.lock().expect("no panic").ended = true;
                        return changed.notify_all();
                    }
                    rest = &rest[allowed..];
                    state.lock().expect("no panic").held = rest.len();
                }
            }
            let _ = writes.shutdown(std::net::Shutdown::Write);
            state.lock().expect("no panic").ended = true;
            changed.notify_all();
        });
        Self { state, from, to }
    }

    /// Lets so many more bytes pass.
    pub(crate) fn stall_after(&self, bytes: usize) {
        self.state.0.lock().expect("no panic").left = Some(bytes);
    }

    /// Lets everything pass again.
    pub(crate) fn release(&self) {
        self.state.0.lock().expect("no panic").left = None;
        self.state.1.notify_all();
    }

    /// Whether the limit is used up and more is waiting.
    pub(crate) fn is_stalled(&self) -> bool {
        let state = self.state.0.lock().expect("no panic");
        state.left == Some(0) && state.held > 0
    }

    /// Bytes that have passed so far.
    pub(crate) fn passed(&self) -> Vec<u8> {
        self.state.0.lock().expect("no panic").passed.clone()
    }

    /// Waits until no bytes are in flight: all were read at the other end, or cannot arrive any
    /// more.
    pub(crate) fn drain(&self) {
        let started = Instant::now();
        let count = |end: &UnixStream| {
            let mut count = 0;
            // SAFETY: the descriptor is open and the kernel writes one int.
            unsafe { unread(end.as_raw_fd(), &raw mut count) }.map_or(0, |_| count)
        };
        let sent_to_us = || {
            let mut bytes = 0;
            // SAFETY: as above; FIONREAD counts what this end has not read.
            unsafe { nix::libc::ioctl(self.from.as_raw_fd(), nix::libc::FIONREAD, &raw mut bytes) };
            bytes
        };
        loop {
            let state = self.state.0.lock().expect("no panic");
            if state.ended || (state.held == 0 && sent_to_us() == 0 && count(&self.to) == 0) {
                return;
            }
            drop(state);
            assert!(started.elapsed() < MAX_WAIT, "bytes are still in flight");
            std::thread::yield_now();
        }
    }
}

/// A cable between two NICs.
pub(crate) struct Relay {
    pub(crate) to_victim: Direction,
    pub(crate) from_victim: Direction,
    ends: [UnixStream; 2],
}

impl Relay {
    /// Returns the relay and the ends to plug in: the victim's and the attacker's.
    pub(crate) fn new() -> (Self, UnixStream, UnixStream) {
        let (victim, inner_victim) = UnixStream::pair().expect("two sockets");
        let (attacker, inner_attacker) = UnixStream::pair().expect("two sockets");
        let relay = Self {
            to_victim: Direction::new(&inner_attacker, &inner_victim),
            from_victim: Direction::new(&inner_victim, &inner_attacker),
            ends: [inner_victim, inner_attacker],
        };
        (relay, victim, attacker)
    }

    /// Writes raw bytes to the victim's NIC.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        let _ = self.ends[0].write_all(bytes);
    }

    /// Returns the socket of the victim's NIC, from the attacker's side.
    pub(crate) fn victim_socket(&self) -> UnixStream {
        self.ends[0].try_clone().expect("a clone")
    }

    /// Cuts the cable.
    pub(crate) fn cut(&self) {
        for end in &self.ends {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.to_victim.release();
        self.from_victim.release();
        self.cut();
    }
}
