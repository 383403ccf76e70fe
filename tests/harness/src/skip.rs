//! Counted skips.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// The variable with the path of the file that `cargo xtask test` counts skips in.
const LOG: &str = "GAUDI_SKIP_LOG";

/// Counts the test that calls it as skipped, and prints what would un-skip it. Its "ok" is then no
/// pass.
///
/// # Panics
/// The file of `GAUDI_SKIP_LOG` cannot be written.
pub fn skip(need: &str) {
    // libtest gives the thread of a test its name.
    let thread = std::thread::current();
    skip_named(thread.name().unwrap_or("a test without a name"), need);
}

/// Counts a test, or a part of one under an id of its own, as skipped.
///
/// # Panics
/// As [`skip`].
pub fn skip_named(id: &str, need: &str) {
    println!("skipped: {need}");
    if let Some(log) = std::env::var_os(LOG) {
        append(log.as_ref(), id, need).expect("the log of skips can be written");
    }
}

fn append(log: &Path, id: &str, need: &str) -> std::io::Result<()> {
    // One write of a whole line: several test processes share the file.
    let line = format!("SKIP {id}: {}\n", need.replace('\n', " "));
    let mut file = OpenOptions::new().create(true).append(true).open(log)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skip_is_a_line() {
        let log = std::env::temp_dir().join(format!("skips-{}", std::process::id()));
        let _ = std::fs::remove_file(&log); // of a run that was killed
        for id in ["one", "two"] {
            append(&log, id, "a\nreason").expect("a line");
        }
        let text = std::fs::read_to_string(&log).expect("the log");
        std::fs::remove_file(&log).expect("the log is there");
        assert_eq!(text, "SKIP one: a reason\nSKIP two: a reason\n");
    }
}
