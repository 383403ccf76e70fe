//! The constructor, and the records that introduce processes and threads.

#![allow(unsafe_code, reason = "a constructor, and system calls of signal handlers")]

use gaudi_capture::raw::{self, Stamp};
use gaudi_ring::{Author, Local, Session};
use nix::libc;

use crate::out::Out;
use crate::{calls, ioctl};

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

fn begin_session() {
    // SAFETY: getauxval(3) only reads the auxiliary vector.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let value = std::env::var(gaudi_ring::VARIABLE).ok().filter(|_| !is_secure);
    let Some(session) = Session::attach(value.as_deref()) else {
        return;
    };
    ioctl::prepare();
    with(session, |local, author| {
        let mut path = [0_u8; 4096];
        let path = crate::files::link_of(c"/proc/self/exe", &mut path);
        let at = Stamp {
            time_ns: now(),
            pid: author.pid,
            tid: author.tid,
        };
        write(session, local, |out| raw::exec(out, at, path));
    });
}

extern "C" fn constructor() {
    let errno = crate::next::errno();
    calls::resolve();
    // A panic of the standard library must not reach the loader.
    let _ = std::panic::catch_unwind(begin_session);
    crate::next::set_errno(errno);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
