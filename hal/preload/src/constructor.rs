//! The constructor: what the loader calls before the program begins.

#![allow(unsafe_code, reason = "a constructor, and the auxiliary vector")]

use gaudi_capture::raw::{self, Stamp};
use gaudi_ring::Session;
use nix::libc;

use crate::author::{now, with, write};
use crate::next::{errno, set_errno};
use crate::{calls, files, ioctl, vfork};

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
        let path = files::link_of(c"/proc/self/exe", &mut path);
        let at = Stamp {
            time_ns: now(),
            pid: author.pid,
            tid: author.tid,
        };
        write(session, local, |out| raw::exec(out, at, path));
    });
}

extern "C" fn constructor() {
    let errno = errno();
    calls::resolve();
    vfork::resolve();
    // A panic of the standard library must not reach the loader.
    let _ = std::panic::catch_unwind(begin_session);
    set_errno(errno);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
