//! Instructions an operation, counted by valgrind: steadier than any time on a machine with other work.

use std::process::Command;

use gaudi_seam::{CsSeq, SharedIo};
use gaudi_uapi::cs::HlCsChunk;
use std::time::Duration;

use crate::peer::HlThunk;
use crate::rows::{idle_layer, submit_one};
use crate::stub;

/// What is counted.
pub const SUBJECTS: &[&str] = &[
    "bare",
    "submit",
    "submit-layer-off",
    "submit-hlthunk",
    "poll",
    "wait",
    "wait-hlthunk",
];

/// Does one of the subjects so many times, and nothing else.
pub fn perform(subject: &str, times: u32) -> Result<(), String> {
    let kernel = || stub::kernel().map_err(|error| error.to_string());
    let chunk = HlCsChunk::user(0, 0x1000_0000, 64);
    let submits = |io: SharedIo| {
        for _ in 0..times {
            let _ = std::hint::black_box(submit_one(&*io, &chunk));
        }
    };
    let waits = |io: SharedIo, timeout| {
        for _ in 0..times {
            let _ = std::hint::black_box(io.wait_cs(CsSeq(7), timeout));
        }
    };
    match subject {
        "bare" => (0..times).for_each(|_| bare_call()),
        "submit" => submits(kernel()?),
        "submit-layer-off" => submits(idle_layer(kernel()?)),
        "poll" => waits(kernel()?, Duration::ZERO),
        "wait" => waits(kernel()?, Duration::from_secs(1)),
        "submit-hlthunk" => {
            let thunk = HlThunk::load()?;
            for _ in 0..times {
                std::hint::black_box(thunk.submit(0, &chunk));
            }
        }
        "wait-hlthunk" => {
            let thunk = HlThunk::load()?;
            for _ in 0..times {
                std::hint::black_box(thunk.wait(0, 7, 1_000_000));
            }
        }
        other => {
            return Err(format!(
                "no such subject: {other}; known: {}",
                SUBJECTS.join(", ")
            ));
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the stub is called as the C library's function is")]
fn bare_call() {
    let ioctl = stub::called();
    let mut words = [0_u64; 16];
    // SAFETY: the argument of this request is smaller than the 128 bytes that are there.
    std::hint::black_box(unsafe { ioctl(0, stub::SUBMIT, words.as_mut_ptr().cast()) });
}

/// Instructions an operation: two runs of different length under valgrind, and their difference.
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
