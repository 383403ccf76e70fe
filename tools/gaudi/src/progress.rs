//! A progress bar for long work, on a terminal only.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Shorter work has no bar.
const DELAY: Duration = Duration::from_secs(1);

/// The progress of work, drawn on standard error after the first second. Dropping it removes the
/// bar.
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    done: u64,
    start: Instant,
    allowed: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates the progress of `total` bytes or steps. It has no bar if standard error is not a
    /// terminal, or if `quiet`.
    pub(crate) fn new(what: &'static str, total: u64, quiet: bool) -> Self {
        Self {
            what,
            total,
            done: 0,
            start: Instant::now(),
            allowed: !quiet && io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Creates a progress without a bar.
    pub(crate) fn none() -> Self {
        Self::new("", 0, true)
    }

    pub(crate) fn advance(&mut self, by: u64) {
        self.done = self.done.saturating_add(by).min(self.total);
        if self.is_due(self.start.elapsed()) {
            let (what, total, start) = (self.what, self.total, self.start);
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
                // The template is part of the program.
                let style = ProgressStyle::with_template("{msg} [{wide_bar}] {percent:>3} %{left}");
                let left = |state: &ProgressState, text: &mut dyn fmt::Write| {
                    let total = state.len().unwrap_or(0);
                    if let Some(left) = time_left(state.pos(), total, state.elapsed()) {
                        let _ = write!(text, ", {} left", HumanDuration(left));
                    }
                };
                bar.set_style(
                    style
                        .unwrap_or_else(|_| ProgressStyle::default_bar())
                        .with_key("left", left),
                );
                bar.with_elapsed(start.elapsed()).with_message(what)
            });
            bar.set_position(self.done);
        }
    }

    fn is_due(&self, elapsed: Duration) -> bool {
        self.allowed && elapsed > DELAY
    }
}

/// Estimates the remaining time from that of the `done` steps. `None` before the first step.
fn time_left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let rest = total.saturating_sub(done) as f64 / done as f64;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest).ok()
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_the_whole_run() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(0, 10, second), None, "nothing is known yet");
        assert_eq!(time_left(1, 10, second), Some(9 * second));
        assert_eq!(time_left(10, 10, second), Some(Duration::ZERO));
        assert_eq!(time_left(0, 0, second), None);
    }

    #[test]
    fn bar_appears_late_and_on_terminals_only() {
        let mut progress = Progress::new("test", 10, false);
        for (allowed, elapsed, due) in [(true, 999, false), (true, 1001, true), (false, 5000, false)] {
            progress.allowed = allowed;
            assert_eq!(
                progress.is_due(Duration::from_millis(elapsed)),
                due,
                "{allowed} {elapsed}"
            );
        }
        let quiet = Progress::new("test", 10, true);
        assert!(!quiet.is_due(Duration::from_secs(9)), "quiet is quiet");
    }
}
