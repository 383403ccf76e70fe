//! Instructions an operation, counted by valgrind: steadier than any time on a machine with other
//! work.

use std::process::Command;

use crate::rows;
use crate::stub;
use std::time::Duration;

/// What is counted.
pub const SUBJECTS: &[&str] = &[
    "bare",
    "submit",
    "submit-layer-off",
    "submit-layer-off-dyn",
    "submit-hlthunk",
    "bare-wait",
    "poll",
    "wait",
    "wait-hlthunk",
    "lin-dma-64",
    "mock-copy",
    "mock-copy-no-rule",
];

/// A subject, what it is compared with, and the most that it may cost beside that.
pub const RATIOS: &[(&str, &str, f64)] = &[("mock-copy-no-rule", "mock-copy", 1.02)];

/// Runs one subject `times` times, and nothing else.
///
/// # Errors
/// The subject's first error.
pub fn perform(subject: &str, times: u32) -> Result<(), String> {
    let kernel = || stub::kernel().map_err(|error| error.to_string());
    let second = Duration::from_secs(1);
    let mut work = match subject {
        "bare" => rows::bare(stub::SUBMIT),
        "submit" => rows::submits(kernel()?),
        "submit-layer-off" => {
            let known = stub::known_kernel().map_err(|error| error.to_string())?;
            rows::submits(rows::idle_layer(known))
        }
        "submit-layer-off-dyn" => rows::submits(rows::idle_layer(kernel()?)),
        "submit-hlthunk" => rows::peer_submits()?,
        "bare-wait" => rows::bare(stub::WAIT),
        "poll" => rows::waits(kernel()?, Duration::ZERO),
        "wait" => rows::waits(kernel()?, second),
        "wait-hlthunk" => rows::peer_waits(second)?,
        "lin-dma-64" => {
            rows::engine_copies(64, 1, rows::Memory::Pinned).map_err(|error| error.to_string())?
        }
        "mock-copy" => rows::mock_copies(|io| io).map_err(|error| error.to_string())?,
        "mock-copy-no-rule" => rows::mock_copies(rows::idle_layer).map_err(|error| error.to_string())?,
        other => {
            return Err(format!(
                "no such subject: {other}; known: {}",
                SUBJECTS.join(", ")
            ));
        }
    };
    work(times);
    Ok(())
}

/// Returns the instructions per operation: the difference of two runs of different length under
/// valgrind.
///
/// # Errors
/// Why there is no count, for example a missing valgrind.
pub fn instructions(subject: &str) -> Result<f64, String> {
    const FEW: u32 = 1000;
    const MANY: u32 = 11_000;
    let (few, many) = (run(subject, FEW)?, run(subject, MANY)?);
    Ok((many - few) as f64 / f64::from(MANY - FEW))
}

fn run(subject: &str, times: u32) -> Result<i64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(own)
        .args(["--perform", subject, "--times", &times.to_string()])
        .output()
        .map_err(|error| format!("valgrind absent ({error})"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text
        .lines()
        .find(|line| line.contains("I refs:") || line.contains("I   refs:"));
    let number: String = line
        .and_then(|line| line.rsplit(':').next())
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    if !output.status.success() {
        return Err(text.lines().last().unwrap_or("valgrind failed").to_owned());
    }
    number.parse().map_err(|_| "valgrind printed no count".to_owned())
}
