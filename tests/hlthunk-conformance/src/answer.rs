//! Checks the result of a C function against the conventions of hl-thunk.
//!
//! Each check reads errno first, so that it is the errno of the last call.

use std::ffi::c_int;

use gaudi_conformance::{Failure, Verdict};
use nix::errno::Errno;

fn seen(value: impl std::fmt::Display, errno: i32) -> String {
    format!("{value}, errno {}", Errno::from_raw(errno))
}

/// Checks that a call returned 0.
pub(crate) fn ok(what: &str, code: c_int) -> Verdict {
    let errno = Errno::last_raw();
    match code {
        0 => Ok(()),
        code => Err(Failure::new(what, "0", seen(code, errno))),
    }
}

/// Checks that a call returned a descriptor or a count.
pub(crate) fn number(what: &str, code: c_int) -> Result<c_int, Failure> {
    let errno = Errno::last_raw();
    if code >= 0 {
        return Ok(code);
    }
    Err(Failure::new(what, "0 or more", seen(code, errno)))
}

/// Checks that a call returned a handle or an address.
pub(crate) fn handle(what: &str, value: u64) -> Result<u64, Failure> {
    let errno = Errno::last_raw();
    if value != 0 {
        return Ok(value);
    }
    Err(Failure::new(what, "not 0", seen(value, errno)))
}

/// Checks that the driver rejected a call: returns `-errno` and sets errno.
pub(crate) fn refused(what: &str, code: c_int, errno: Errno) -> Verdict {
    let last = Errno::last_raw();
    if code == -(errno as i32) && last == errno as i32 {
        return Ok(());
    }
    let expected = seen(-(errno as i32), errno as i32);
    Err(Failure::new(what, expected, seen(code, last)))
}

/// Checks that the library rejected a call: returns `-errno`. errno is not checked.
pub(crate) fn rejected(what: &str, code: c_int, errno: Errno) -> Verdict {
    let last = Errno::last_raw();
    if code == -(errno as i32) {
        return Ok(());
    }
    Err(Failure::new(
        what,
        (-(errno as i32)).to_string(),
        seen(code, last),
    ))
}

/// Checks that a call returned -1 and set errno, like a system call.
pub(crate) fn minus_one(what: &str, code: c_int, errno: Errno) -> Verdict {
    let last = Errno::last_raw();
    if code == -1 && last == errno as i32 {
        return Ok(());
    }
    Err(Failure::new(what, seen(-1, errno as i32), seen(code, last)))
}

/// Checks that a call returned 0 instead of a handle or an address, and set errno.
pub(crate) fn none(what: &str, value: u64, errno: Errno) -> Verdict {
    let last = Errno::last_raw();
    if value == 0 && last == errno as i32 {
        return Ok(());
    }
    Err(Failure::new(
        what,
        seen(0, errno as i32),
        seen(format!("{value:#x}"), last),
    ))
}

/// Checks that a call failed, where clients do not depend on the errno.
pub(crate) fn fails(what: &str, code: c_int) -> Verdict {
    let last = Errno::last_raw();
    if code < 0 {
        return Ok(());
    }
    Err(Failure::new(what, "less than 0", seen(code, last)))
}
