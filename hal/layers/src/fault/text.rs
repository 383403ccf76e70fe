//! Reads the text of a plan from a file, a pipe, or the argument itself.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as IoKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use gaudi_seam::fault::Plan;
use gaudi_seam::{Errno, Error, ErrorKind, Result};
use nix::fcntl::OFlag;

/// The longest plan.
const LONGEST: usize = 1 << 20;
/// The longest wait for the writer of a pipe.
const PIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// The source of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanSource {
    /// The argument is the plan.
    Argument,
    /// A regular file, which can be read again.
    File,
    /// A pipe, which can be read only once.
    Pipe,
}

/// Parses the plan in the file that an argument names; if there is none, the argument itself is
/// the plan. Rules with a percentage and without a seed get `seed`.
///
/// A pipe is read to its end, for 10 s at most. An argument with a `/` is a path: plans have none.
///
/// # Errors
/// `InvalidInput`: an invalid rule, no such file, neither a regular file nor a pipe, a pipe without
/// a writer, or longer than 1 MiB. Otherwise the errno of `open(2)` or `read(2)`.
pub fn load_plan(argument: &str, seed: u64) -> Result<(Plan, PlanSource)> {
    let (text, source) = read(argument)?;
    let plan = Plan::seeded(&text, seed).map_err(|error| {
        let origin = match source {
            PlanSource::Argument => format!("{:?} is not a file; as a plan: ", shortened(argument)),
            PlanSource::File | PlanSource::Pipe => format!("in the file {}: ", shortened(argument)),
        };
        Error::new(ErrorKind::InvalidInput, "open")
            .because(format!("{origin}{error}"))
            .helped_by("OP[:FIELD=RANGE][:when=FIRST[..LAST][+STEP]]:VERDICT[:p=PERCENT][:seed=N]")
    })?;
    Ok((plan, source))
}

fn read(argument: &str) -> Result<(String, PlanSource)> {
    let cannot = |why: &str| {
        Error::new(ErrorKind::InvalidInput, "open")
            .because(format!(
                "the fault plan {} cannot be read: {why}",
                shortened(argument)
            ))
            .helped_by(
                "name a file with rules, one a line, or write the rule itself: submit:when=3:error=EIO",
            )
    };
    let failed = |error: std::io::Error| match error.kind() {
        IoKind::NotFound | IoKind::NotADirectory => cannot("no such file"),
        _ => crate::file_error::failed(
            &error,
            format!("the fault plan {} cannot be read", shortened(argument)),
        ),
    };
    let path = Path::new(argument);
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if names_no_file(&error) && !argument.contains('/') => {
            return Ok((argument.to_owned(), PlanSource::Argument));
        }
        Err(error) => return Err(failed(error)),
    };
    use std::os::unix::fs::FileTypeExt as _;
    let is_pipe = found.file_type().is_fifo();
    if !found.is_file() && !is_pipe {
        return Err(cannot("neither a regular file nor a pipe"));
    }
    let mut options = OpenOptions::new();
    let nonblocking = OFlag::O_NONBLOCK.bits();
    let mut file = options
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(failed)?;
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let start = Instant::now();
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(piece.get(..count).unwrap_or(&piece)),
            Err(error) if error.kind() == IoKind::Interrupted => {}
            Err(error) if error.kind() == IoKind::WouldBlock => {
                if start.elapsed() > PIPE_TIMEOUT {
                    return Err(cannot("the pipe's writer did not close it within 10 s"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed(error)),
        }
        if bytes.len() > LONGEST {
            return Err(cannot("longer than 1 MiB"));
        }
    }
    if is_pipe && bytes.is_empty() {
        return Err(cannot("the pipe has no writer, or its writer sent nothing"));
    }
    let source = if is_pipe {
        PlanSource::Pipe
    } else {
        PlanSource::File
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, source)),
        Err(_) => Err(cannot("not UTF-8")),
    }
}

/// The first 80 characters of an argument, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Whether an error means that no file has this path, rather than that it cannot be read.
fn names_no_file(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        IoKind::NotFound | IoKind::NotADirectory | IoKind::InvalidInput
    ) || error.raw_os_error() == Some(Errno::ENAMETOOLONG as i32)
}
