//! The records that introduce processes and threads.

#![allow(unsafe_code, reason = "system calls of signal handlers")]

use gaudi_capture::raw::{self, Stamp};
use gaudi_ring::{Author, Local, Session};
use nix::libc;

use crate::out::Out;

/// Counts the bytes of a record.
#[derive(Default)]
struct Count(usize);

impl raw::Sink for Count {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Writes a record that `encode` writes twice: to count its bytes, and to the ring.
pub(crate) fn write(session: &Session, local: &Local, encode: impl Fn(&mut dyn raw::Sink)) {
    let mut count = Count::default();
    encode(&mut count);
    if let Some(reserved) = session.reserve(local, count.0) {
        let mut out = Out(reserved);
        encode(&mut out);
        out.0.publish();
    }
}

/// Returns the time for a record, which the tracer converts to nanoseconds.
#[inline]
pub(crate) fn now() -> u64 {
    Session::get().map_or(0, Session::now)
}

fn name(buffer: &mut [u8; 16]) -> &[u8] {
    // SAFETY: PR_GET_NAME writes 16 bytes, terminated.
    unsafe { libc::prctl(libc::PR_GET_NAME, buffer.as_mut_ptr()) };
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(0);
    buffer.get(..end).unwrap_or(&[])
}

/// Records the start of a process and of a thread before their first record.
pub(crate) fn introduce(session: &Session, local: &Local, author: Author) {
    if author.new_process.is_none() && !author.is_new_thread {
        return;
    }
    let time_ns = now();
    let mut buffer = [0; 16];
    let name = name(&mut buffer);
    let start = |tid: u32, parent: u32, shares: bool| {
        let at = Stamp {
            time_ns,
            pid: author.pid,
            tid,
        };
        write(session, local, |out| raw::start(out, at, parent, shares, name));
    };
    let leader = author.pid;
    if let Some(parent) = author.new_process {
        start(leader, parent, false);
    }
    if author.is_new_thread && author.tid != leader {
        start(author.tid, leader, true);
    }
}

/// Calls `record` with the thread's state and the author, introduced.
pub(crate) fn with(session: &Session, record: impl FnOnce(&Local, Author)) {
    session.with(|local, author| {
        introduce(session, local, author);
        record(local, author);
    });
}
