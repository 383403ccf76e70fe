//! Exit codes, and errors as a person or a program reads them.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use gaudi_seam::{Error, ErrorKind};
use serde::Serialize;

use crate::output::{Output, OutputError};

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

/// Arguments that the parser accepts one by one and that mean nothing together.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A check that failed, and whose result document already says so.
#[derive(Debug)]
pub(crate) struct Judged(pub(crate) Error);

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Judged {}

#[derive(Serialize)]
struct Document {
    message: String,
    kind: Option<&'static str>,
    operation: Option<&'static str>,
    errno: Option<String>,
    help: Option<String>,
    exit_code: u8,
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

/// The lines of an error: the cause; what was seen, where one value is to blame; the next step, and
/// where no device was to be had the one that works without.
fn lines_of(error: &anyhow::Error, ours: Option<&Error>, code: u8, instead: &str) -> Vec<String> {
    let evidence = ours.and_then(Error::evidence);
    let (seen, wanted) = evidence.map_or((None, None), |evidence| {
        (evidence.seen.as_ref(), evidence.wanted.as_ref())
    });
    let (seen, note) = match (seen, wanted) {
        (Some(seen), Some(wanted)) => (
            format!(" (saw {seen}, wanted {wanted})"),
            format!("saw {seen}, wanted {wanted}"),
        ),
        (Some(seen), None) => (format!(" (saw {seen})"), format!("saw {seen}")),
        (None, Some(wanted)) => (format!(" (wanted {wanted})"), format!("wanted {wanted}")),
        (None, None) => (String::new(), String::new()),
    };
    let whole = format!("{error:#}");
    let mut lines = vec![format!(
        "error: {}",
        whole.replacen(&seen, "", usize::from(!seen.is_empty()))
    )];
    if !note.is_empty() {
        lines.push(format!("  note: {note}"));
    }
    let help = ours
        .and_then(Error::help)
        .or_else(|| io_help(error))
        .or_else(|| timeout_help(ours?))
        .unwrap_or_default();
    if !help.is_empty() {
        lines.push(format!("  help: {help}"));
    }
    // A card that is missing can be done without; a NIC or its library cannot be had by another
    // device.
    let of_card = ours.is_none_or(|error| !error.operation().starts_with("ibv_"));
    if [NO_DEVICE, NOT_PERMITTED].contains(&code) && of_card && !instead.is_empty() && !help.contains(instead)
    {
        lines.push(format!("  help: on any machine, without a card: {instead}"));
    }
    let of_nic = ours.is_some_and(|error| error.operation() == "ibv_open_device");
    if [NO_DEVICE, NOT_PERMITTED].contains(&code) && of_nic {
        lines.push("  help: on any machine, without a NIC: --nic softnic".to_owned());
    }
    lines
}

/// The error of a file that the command line named.
fn io_error(error: &anyhow::Error) -> Option<&std::io::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// The next step for work that takes longer than its deadline.
fn timeout_help(error: &Error) -> Option<&'static str> {
    let is_wait = error.kind() == ErrorKind::TimedOut && error.operation().starts_with("HL_IOCTL_WAIT");
    is_wait.then_some("allow more with --timeout; if an engine hangs, the kernel's log says so")
}

/// The next step for a file that cannot be had.
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

/// Prints an error and gives its exit code. A reader of the result that went away is no error.
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
    // Nobody may be left to read either of the two.
    let mut stderr = std::io::stderr();
    for line in lines_of(error, ours, code, instead) {
        let _ = writeln!(stderr, "{line}");
    }
    if let Some(output) = output.filter(|output| output.is_json() && judged.is_none()) {
        let of_file = || io_error(error)?.raw_os_error().map(gaudi_seam::Errno::from_raw);
        let errno = ours.and_then(Error::errno).or_else(of_file);
        let document = Document {
            message: format!("{error:#}"),
            kind: ours.map(|error| error.kind().name()),
            operation: ours.map(Error::operation),
            errno: errno.map(|errno| format!("{errno:?}")),
            help: ours
                .and_then(Error::help)
                .or_else(|| io_help(error))
                .or_else(|| timeout_help(ours?))
                .map(str::to_owned),
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
            .because("no such thing")
            .saw(3, "at most 2")
            .helped_by("take less");
        let error = anyhow::Error::from(error).context("reading");
        let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        assert_eq!(
            lines_of(&error, ours, FAILED, ""),
            [
                "error: reading: open: no such thing",
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
