//! Messages through UCX's logger, so that `UCX_LOG_FILE` and `UCX_LOG_LEVEL` apply to them.

#![allow(unsafe_code, reason = "calls UCX's variadic logger")]

use std::ffi::CString;
use std::io::Write as _;

use crate::abi::LogComponent;
use crate::library;

/// `UCS_LOG_LEVEL_ERROR`.
const ERROR: u32 = 1;

struct Component(LogComponent);

// SAFETY: constant, and its pointer is to a string literal.
unsafe impl Sync for Component {}

static COMPONENT: Component = Component(LogComponent {
    level: ERROR,
    name: *b"GAUDI\0\0\0\0\0\0\0\0\0\0\0",
    file_filter: c"*".as_ptr(),
});

/// Writes to stderr. `eprintln!` panics if the write fails, and nothing catches a panic of the
/// logger.
fn to_stderr(text: &str) {
    if cfg!(test) {
        return eprintln!("{text}"); // for the test harness, which prints it if the test fails
    }
    let _ = writeln!(std::io::stderr(), "libuct_gaudi: ERROR {text}");
}

/// Logs one error: through UCX, or to stderr while UCX's logger has no handler yet.
pub(crate) fn error(message: &str) {
    let text = message.replace(['\0', '\n'], " ");
    let Some(logger) = library::logger() else {
        to_stderr(&text);
        return;
    };
    // SAFETY: the function takes nothing and reads a counter.
    if unsafe { (logger.handlers)() } == 0 {
        to_stderr(&text);
        return;
    }
    let text = CString::new(text).unwrap_or_default(); // has no NUL: replaced above
    // SAFETY: terminated strings, a constant component, and one argument for the one `%s`.
    unsafe {
        (logger.dispatch)(
            c"gaudi".as_ptr(),
            0,
            c"gaudi".as_ptr(),
            ERROR,
            &raw const COMPONENT.0,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}
