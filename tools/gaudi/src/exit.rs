//! Exit codes, and errors as a person or a program reads them.

use std::io::Write as _;
use std::process::ExitCode;

use gaudi_seam::{Error, ErrorKind};
use serde_json::json;

/// Done, and every check passed.
pub(crate) const DONE: u8 = 0;
/// The operation or a check failed.
pub(crate) const FAILED: u8 = 1;
/// The command line, or a variable in its place, says something that means nothing.
pub(crate) const USAGE: u8 = 2;
/// No such device.
pub(crate) const NO_DEVICE: u8 = 3;
/// The user may not.
pub(crate) const NOT_PERMITTED: u8 = 4;
/// The device was lost or reset.
pub(crate) const LOST: u8 = 5;
/// A deadline passed.
pub(crate) const TIMED_OUT: u8 = 6;
/// A defect of this program.
pub(crate) const OUR_BUG: u8 = 125;

fn code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::InvalidInput
            if [gaudi_hal::CHOOSE, gaudi_hal::TABLE_VARIABLE].contains(&error.operation()) =>
        {
            USAGE
        }
        ErrorKind::NotFound => NO_DEVICE,
        ErrorKind::PermissionDenied => NOT_PERMITTED,
        ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Hung => LOST,
        ErrorKind::TimedOut => TIMED_OUT,
        _ => FAILED,
    }
}

/// Prints an error and gives its exit code. A reader that went away is no error.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    if io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
        return ExitCode::from(DONE);
    }
    let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    let code = ours.map_or(FAILED, code);
    // Nobody may be left to read either of the two.
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "error: {error:#}");
    if let Some(help) = ours.and_then(Error::help) {
        let _ = writeln!(stderr, "  help: {help}");
    }
    if json {
        let document = json!({
            "schema": "gaudi.error",
            "version": 1,
            "message": format!("{error:#}"),
            "kind": ours.map(|error| error.kind().name()),
            "operation": ours.map(Error::operation),
            "errno": ours.and_then(Error::errno).map(|errno| format!("{errno:?}")),
            "help": ours.and_then(Error::help),
            "exit_code": code,
        });
        let _ = writeln!(std::io::stdout(), "{document}");
    }
    ExitCode::from(code)
}
