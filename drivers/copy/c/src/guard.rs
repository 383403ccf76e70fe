//! The boundary of a C function: its errno, its message, panics, fork children and thread
//! cancellation.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use gaudi_seam::{Error, ErrorKind};
use gaudi_sys::Errno;
use gaudi_sys::cancel::Uncancelled;
use gaudi_sys::fork::OwnerProcess;

use crate::abi::FunctionRow;

/// Why a function fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    message: String,
}

impl Failure {
    pub(crate) fn new(errno: Errno, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { errno, message }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Errno::EINVAL, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let own = match error.kind() {
            // The driver reports some objects that are in use as EINVAL.
            ErrorKind::InUse => None,
            _ => error.errno(),
        };
        let errno = own.unwrap_or_else(|| match error.kind() {
            ErrorKind::InvalidInput => Errno::EINVAL,
            ErrorKind::Unsupported => Errno::EOPNOTSUPP,
            ErrorKind::NotFound => Errno::ENOENT,
            ErrorKind::PermissionDenied | ErrorKind::AccessDenied => Errno::EACCES,
            ErrorKind::Busy | ErrorKind::InUse | ErrorKind::InReset => Errno::EBUSY,
            ErrorKind::WouldBlock => Errno::EAGAIN,
            ErrorKind::TimedOut | ErrorKind::Hung => Errno::ETIMEDOUT,
            ErrorKind::OutOfMemory | ErrorKind::OutOfDeviceMemory => Errno::ENOMEM,
            ErrorKind::BadAddress => Errno::EFAULT,
            ErrorKind::TooManyFiles => Errno::EMFILE,
            ErrorKind::Forked | ErrorKind::DeviceLost => Errno::ENODEV,
            ErrorKind::Disconnected => Errno::ECONNRESET,
            ErrorKind::Protocol => Errno::EPROTO,
            _ => Errno::EIO,
        });
        Self::new(errno, error.to_string())
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::new(errno, errno.desc())
    }
}

thread_local! {
    /// The message of this thread's last failure.
    static MESSAGE: RefCell<Cow<'static, CStr>> = const { RefCell::new(Cow::Borrowed(c"")) };
}

/// The process that made the first call.
static OWNER: OnceLock<OwnerProcess> = OnceLock::new();

/// Runs the body of a C function. Returns 0 or `-errno`. In a fork child of a process that used the
/// library, `body` does not run: its locks may be held by threads that the child does not have.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    if OWNER.get_or_init(OwnerProcess::current).is_foreign() {
        let message = c"the library belongs to the parent of this process; the child can exec";
        return fail(Errno::ENODEV, Cow::Borrowed(message));
    }
    let _uncancelled = Uncancelled::begin();
    // A panic leaves no inconsistent state: the crate's locks recover from poison.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            // Dropping the payload may panic again.
            std::mem::forget(panic);
            Failure::new(Errno::EIO, "internal error (panic); see stderr")
        }
    };
    let text: Vec<u8> = failure.message.bytes().filter(|&byte| byte != 0).collect();
    fail(failure.errno, Cow::Owned(CString::new(text).unwrap_or_default()))
}

fn fail(errno: Errno, text: Cow<'static, CStr>) -> c_int {
    // No message is kept in a thread that is ending.
    let _ = MESSAGE.try_with(|message| message.replace(text));
    -(errno as c_int)
}

/// Describes the last failure of a function of this library in this thread: cause, evidence, next
/// step. The text is empty if none failed, and valid until the next failure in this thread.
#[expect(unsafe_code, reason = "a function of the C ABI, with a fixed name")]
#[unsafe(no_mangle)]
pub extern "C" fn gaudi_copy_error() -> *const c_char {
    let text = MESSAGE.try_with(|message| message.borrow().as_ptr());
    text.unwrap_or(c"".as_ptr())
}

pub(crate) const FUNCTIONS: &[FunctionRow] = &[FunctionRow {
    text: &[
        " Describes the last failure of a function of this library in this thread: cause, evidence, next",
        " step. The text is empty if none failed, and valid until the next failure in this thread.",
    ],
    name: "gaudi_copy_error",
    result: |name| format!("const char *{name}"),
    parameters: &[],
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the text of a C function")]
    fn panic_and_failure_become_errno() {
        assert_eq!(guarded(|| panic!("a defect")), -(Errno::EIO as c_int));
        assert_eq!(
            guarded(|| Err(Failure::invalid("a\0b"))),
            -(Errno::EINVAL as c_int)
        );
        assert_eq!(guarded(|| Ok(())), 0);
        // SAFETY: the text of this thread's last failure.
        let text = unsafe { CStr::from_ptr(gaudi_copy_error()) };
        assert_eq!(text, c"ab", "a success keeps the text");
    }
}
