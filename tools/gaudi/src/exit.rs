//! Exit codes, and errors as text and as documents.

use std::io::Write as _;
use std::process::ExitCode;

use gaudi::{Errno, Error, ErrorKind};

use crate::output::{Output, OutputError};
use crate::report::object;

/// Done, and every check passed.
pub(crate) const DONE: u8 = 0;
/// The operation or a check failed.
pub(crate) const FAILED: u8 = 1;
/// The command line, or a variable in its place, is invalid.
pub(crate) const USAGE: u8 = 2;
/// No such device.
pub(crate) const NO_DEVICE: u8 = 3;
/// The user is not permitted.
pub(crate) const NOT_PERMITTED: u8 = 4;
/// The device was lost or reset.
pub(crate) const LOST: u8 = 5;
/// A deadline passed.
pub(crate) const TIMED_OUT: u8 = 6;
/// A defect of this program.
pub(crate) const OUR_BUG: u8 = 125;

/// Arguments that the parser accepts one by one and that mean nothing together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A failed check whose verdict the result already has.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Judged(pub(crate) Error);

/// Returns the exit code of a printed verdict. A failed check counts even if printing failed.
pub(crate) fn judged(
    is_good: bool,
    printed: anyhow::Result<()>,
    error: impl FnOnce() -> Error,
) -> anyhow::Result<u8> {
    match is_good {
        true => printed.map(|()| DONE),
        false => Err(Judged(error()).into()),
    }
}

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

/// Returns the lines of an error: the cause, the evidence, the next step, and what works without a
/// device if none was found.
fn lines_of(error: &anyhow::Error, ours: Option<&Error>, code: u8, instead: &str) -> Vec<String> {
    let evidence = ours.and_then(Error::evidence);
    let evidence = evidence.and_then(|evidence| match (&evidence.seen, &evidence.wanted) {
        (Some(seen), Some(wanted)) => Some(format!("saw {seen}, wanted {wanted}")),
        (Some(seen), None) => Some(format!("saw {seen}")),
        (None, Some(wanted)) => Some(format!("wanted {wanted}")),
        (None, None) => None,
    });
    let mut whole = format!("{error:#}");
    if let Some(evidence) = &evidence {
        whole = whole.replacen(&format!(" ({evidence})"), "", 1);
    }
    let mut lines = vec![format!("error: {whole}")];
    lines.extend(evidence.map(|evidence| format!("  note: {evidence}")));
    let help = help_of(error, ours);
    lines.extend(help.map(|help| format!("  help: {help}")));
    // A mock replaces a missing card, but not a NIC or its library.
    let of_card = ours.is_none_or(|error| !error.operation().starts_with("ibv_"));
    let is_named = help.is_some_and(|help| help.contains(instead));
    if [NO_DEVICE, NOT_PERMITTED].contains(&code) && of_card && !instead.is_empty() && !is_named {
        lines.push(format!("  help: on any machine, without a card: {instead}"));
    }
    let of_nic = ours.is_some_and(|error| error.operation() == "ibv_open_device");
    if [NO_DEVICE, NOT_PERMITTED].contains(&code) && of_nic {
        lines.push("  help: on any machine, without a NIC: --nic softnic".to_owned());
    }
    lines
}

/// Returns the next step.
fn help_of<'a>(error: &anyhow::Error, ours: Option<&'a Error>) -> Option<&'a str> {
    ours.and_then(Error::help)
        .or_else(|| io_help(error))
        .or_else(|| timeout_help(ours?))
}

/// Returns the error of a file that the command line named.
fn io_error(error: &anyhow::Error) -> Option<&std::io::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// Returns the next step for work that takes longer than its deadline.
fn timeout_help(error: &Error) -> Option<&'static str> {
    let is_wait = error.kind() == ErrorKind::TimedOut && error.operation().starts_with("HL_IOCTL_WAIT");
    is_wait.then_some("allow more with --timeout; the kernel's log reports an engine that hangs")
}

/// Returns the next step for a file that cannot be used.
pub(crate) fn io_help(error: &anyhow::Error) -> Option<&'static str> {
    Some(match io_error(error)?.kind() {
        std::io::ErrorKind::NotFound => "look at the path: it or a folder on the way is not there",
        std::io::ErrorKind::PermissionDenied => "choose a file that you may use, or run as its owner",
        std::io::ErrorKind::IsADirectory => "name a file, not a folder",
        std::io::ErrorKind::StorageFull => "make room on that disk, or choose another",
        std::io::ErrorKind::AddrNotAvailable => "listen at an address of this machine: ip -brief address",
        std::io::ErrorKind::AddrInUse => "choose another port: ss -ltnp lists what listens",
        _ => return None,
    })
}

/// Prints an error and returns its exit code. A closed pipe of the result is not an error.
pub(crate) fn report(error: &anyhow::Error, output: Option<&mut Output>, instead: &str) -> ExitCode {
    if error
        .downcast_ref::<OutputError>()
        .is_some_and(OutputError::is_broken_pipe)
    {
        return ExitCode::from(DONE);
    }
    let judged = error.downcast_ref::<Judged>();
    let ours = judged
        .map(|judged| &judged.0)
        .or_else(|| error.chain().find_map(|cause| cause.downcast_ref::<Error>()));
    let usage = error.downcast_ref::<Usage>().is_some();
    let code = if usage { USAGE } else { ours.map_or(FAILED, code) };
    // A closed standard error or output cannot be reported either.
    let mut stderr = std::io::stderr();
    for line in lines_of(error, ours, code, instead) {
        let _ = writeln!(stderr, "{line}");
    }
    if let Some(output) = output.filter(|output| output.is_json() && judged.is_none()) {
        let of_file = || io_error(error)?.raw_os_error().map(Errno::from_raw);
        let errno = ours.and_then(Error::errno).or_else(of_file);
        let document = object! {
            message: format!("{error:#}"),
            kind: ours.map(|error| error.kind().name()),
            operation: ours.map(Error::operation),
            errno: errno.map(|errno| format!("{errno:?}")),
            help: help_of(error, ours),
            exit_code: code,
        };
        let _ = output
            .document("gaudi.error", &document)
            .and_then(|()| output.finish());
    }
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_parts_have_lines_of_their_own() {
        let error = Error::new(ErrorKind::InvalidInput, "open")
            .because("bad number")
            .saw(3, "at most 2")
            .helped_by("take less");
        let error = anyhow::Error::from(error).context("reading");
        let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        assert_eq!(
            lines_of(&error, ours, FAILED, ""),
            [
                "error: reading: open: bad number",
                "  note: saw 3, wanted at most 2",
                "  help: take less"
            ]
        );
        assert_eq!(
            lines_of(&anyhow::anyhow!("plain"), None, FAILED, ""),
            ["error: plain"]
        );
    }

    #[test]
    fn device_and_permission_errors_have_next_steps() {
        for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied] {
            let ours = Error::new(kind, "open");
            let code = code(&ours);
            let lines = lines_of(
                &ours.clone().into(),
                Some(&ours),
                code,
                "gaudi list -d mock:gaudi2",
            );
            assert!(lines.last().unwrap().ends_with("-d mock:gaudi2"), "{lines:?}");
        }
    }
}
