//! Runs a child: streams its output, keeps a log of it, and ends it when its time is up.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::files;

/// Ten times what a step takes on two cores: long enough not to depend on the machine's speed,
/// short enough for CI.
pub(crate) const LIMIT: Duration = Duration::from_secs(1800);
/// Lines of a failed step's log that are printed once more, at the end of the step.
const TAIL: usize = 120;

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code; none when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) timed_out: bool,
    /// Everything that it printed.
    pub(crate) log: PathBuf,
}

impl Outcome {
    pub(crate) fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// One line for the ledger.
    pub(crate) fn why(&self, what: &str) -> String {
        let log = self.log.display();
        match self.code {
            _ if self.timed_out => format!("{what} ran out of time; log: {log}"),
            Some(code) => format!("{what} ended with exit code {code}; log: {log}"),
            None => format!("{what} was ended by a signal; log: {log}"),
        }
    }

    /// Succeeds if the child did; otherwise prints the end of its log.
    pub(crate) fn check(&self, what: &str) -> anyhow::Result<()> {
        if self.ok() {
            return Ok(());
        }
        println!("\n{}", tail(&self.log));
        bail!("{}", self.why(what))
    }

    /// The log, a line at a time, without colours.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        lines(&self.log)
    }
}

/// A log, a line at a time, without colours; nothing of one that cannot be read.
pub(crate) fn lines(log: &Path) -> impl Iterator<Item = String> {
    let reader = File::open(log).ok().map(BufReader::new);
    let lines = reader
        .into_iter()
        .flat_map(|reader| reader.split(b'\n').map_while(Result::ok));
    lines.map(|bytes| plain(&String::from_utf8_lossy(&bytes)))
}

/// The last [`TAIL`] lines of a log, under its name.
pub(crate) fn tail(log: &Path) -> String {
    let lines: Vec<_> = lines(log).collect();
    let end = lines[lines.len().saturating_sub(TAIL)..].join("\n");
    format!("-- the end of {}\n{end}", log.display())
}

/// The last line of a log, for an error.
pub(crate) fn last_line(log: &Path) -> String {
    lines(log).last().unwrap_or_else(|| "no message".to_owned())
}

/// Whether a child's output is shown while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Stream,
    Quiet,
}

/// Runs `command` for at most `limit` and logs to `log`.
pub(crate) fn run(command: &Command, log: &Path, limit: Duration, show: Show) -> anyhow::Result<Outcome> {
    log.parent().map_or(Ok(()), files::make_folder)?;
    let file = Mutex::new(files::create(log)?);
    let mut limited = limited(command, limit);
    limited
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = limited.spawn().with_context(|| cannot_run(command))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| out.map(|pipe| copy(pipe, &file, show)));
        scope.spawn(|| err.map(|pipe| copy(pipe, &file, show)));
    });
    let status = child.wait().context("cannot wait for a child")?;
    // timeout(1) exits with 124 when it ended the child with SIGTERM; when it has to kill, it is
    // killed too (137 from a shell).
    let timed_out = status.code() == Some(124);
    Ok(Outcome {
        code: status.code(),
        timed_out,
        log: log.to_owned(),
    })
}

/// Runs a command to its end, without a limit. Returns what it wrote to stdout.
///
/// Its failure is an error with what it wrote to stderr.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| cannot_run(command))?;
    if !output.status.success() {
        let (program, message) = (command.get_program(), String::from_utf8_lossy(&output.stderr));
        bail!("{} failed: {}", program.to_string_lossy(), message.trim());
    }
    Ok(output.stdout)
}

/// [`output`] as text, without the space around it.
pub(crate) fn text(command: &mut Command) -> anyhow::Result<String> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn cannot_run(command: &Command) -> String {
    format!("cannot run {}", command.get_program().to_string_lossy())
}

/// The same command under `timeout(1)`, which ends the whole process group. If this process ends
/// first, by Ctrl-C or a signal, `setpriv(1)`'s death signal reaches timeout, which then ends the
/// group. Both programs are part of every Debian.
pub(crate) fn limited(command: &Command, limit: Duration) -> Command {
    let mut limited = mortal();
    limited.args(["timeout", "--kill-after=10", &limit.as_secs().to_string()]);
    after(limited, command)
}

/// `setpriv(1)`: its child gets SIGTERM when this process ends.
pub(crate) fn mortal() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    command
}

/// A command as the last arguments of another, which will run it: with its variables and folder.
pub(crate) fn after(mut first: Command, command: &Command) -> Command {
    first.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => first.env(name, value),
            None => first.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        first.current_dir(folder);
    }
    first
}

/// Copies whole lines, so that two pipes do not mix within a line; a long line comes in pieces.
fn copy(pipe: impl Read, log: &Mutex<File>, show: Show) {
    const LONGEST: u64 = 64 << 10;
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(LONGEST).read_until(b'\n', &mut line), Ok(read) if read > 0) {
        // A closed stdout or a full disk must not stop the child: its exit code is the answer.
        if let Ok(mut log) = log.lock() {
            let _ = log.write_all(&line);
        }
        if show == Show::Stream {
            let mut out = io::stdout().lock();
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
        line.clear();
    }
}

/// `text` without ANSI escape sequences: rustdoc colours its harness when cargo asks for it.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
        } else if chars.next() == Some('[') {
            // A CSI sequence ends with a byte of '@'..='~'.
            let _end = chars.by_ref().find(|c| ('@'..='~').contains(c));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> (tempfile::TempDir, Outcome) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = folder.path().join("logs/run.log");
        let outcome = run(&command, &log, Duration::from_secs(seconds), Show::Quiet).expect("sh runs");
        (folder, outcome)
    }

    #[test]
    fn log_has_both_pipes() {
        let (_folder, outcome) = shell("echo one; echo two >&2; exit 3", 20);
        assert_eq!(outcome.code, Some(3), "the child's own exit code");
        let mut lines: Vec<_> = outcome.lines().collect();
        lines.sort();
        assert_eq!(lines, ["one", "two"], "stdout and stderr are both kept");
    }

    #[test]
    fn hung_child_times_out() {
        let (_folder, outcome) = shell("echo begun; sleep 60", 3);
        assert!(
            outcome.timed_out && !outcome.ok(),
            "a child over its limit must fail, saw {outcome:?}"
        );
        assert!(
            outcome.why("sh").contains("out of time"),
            "the ledger has the reason: {}",
            outcome.why("sh")
        );
        let tail = tail(&outcome.log);
        assert!(
            tail.ends_with("\nbegun"),
            "what it printed before is kept: {tail}"
        );
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(
            plain("test result: \u{1b}[32mok\u{1b}[m. 3 passed"),
            "test result: ok. 3 passed"
        );
        assert_eq!(
            plain("cut \u{1b}["),
            "cut ",
            "a sequence cut short must not panic"
        );
    }
}
