//! [`steady`]: repeats a case that failed while this process did not run.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of the clock that detects a stall.
const TICK: Duration = Duration::from_millis(50);
/// A stall that can fail a case: the shortest timeout of a submission is one second.
const STALL: Duration = Duration::from_millis(500);
/// Maximum number of runs of a case.
const RUNS: usize = 4;

/// Runs a case, and runs it again if it fails and this process did not run for half a second
/// meanwhile: the host paused the guest, or a signal stopped the process. The driver aborts a
/// submission in such a pause, before the case has seen what it checks.
///
/// Each of these failures is printed to standard error. The failure of a run without a stall is
/// final, so a case that always fails still fails.
///
/// # Errors
/// Those of the last run.
pub fn steady<T, E: Display>(case: &str, mut run: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..RUNS {
        let (outcome, stalled) = measured(&mut run);
        match outcome {
            Err(failure) if stalled >= STALL => {
                // Directly: the test harness captures the output of `eprintln!`. Without a standard
                // error, only the note is lost.
                let _ = writeln!(
                    io::stderr(),
                    "case {case} runs again: it failed while this process stalled for {stalled:?}: {failure}"
                );
            }
            outcome => return outcome,
        }
    }
    run()
}

/// Calls `run`. Returns its result and how long this process did not run meanwhile.
fn measured<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let (end, ended) = channel::<()>();
    // Not in the thread: a stall may come before the thread first runs.
    let mut last = Instant::now();
    let clock = thread::spawn(move || {
        let mut stalled = Duration::ZERO;
        loop {
            let waited = ended.recv_timeout(TICK);
            let late = last.elapsed().saturating_sub(TICK);
            last = Instant::now();
            // A busy machine is a little late at every tick.
            stalled += if late > TICK { late } else { Duration::ZERO };
            if waited != Err(RecvTimeoutError::Timeout) {
                return stalled;
            }
        }
    });
    let outcome = run();
    drop(end);
    (outcome, clock.join().expect("the clock does not panic"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Stops this process for 1.5 seconds.
    fn stop() {
        let script = format!("kill -STOP {0}; sleep 1.5; kill -CONT {0}", std::process::id());
        let stopped = Command::new("sh").args(["-c", &script]).status();
        assert!(stopped.expect("a shell").success(), "it stops this process");
    }

    fn runs_of(outcomes: impl Fn(usize) -> Result<(), &'static str>) -> (Result<(), &'static str>, usize) {
        let mut runs = 0;
        let outcome = steady("test", || {
            runs += 1;
            outcomes(runs)
        });
        (outcome, runs)
    }

    /// One test, because each stop stops the tests beside it.
    #[test]
    fn case_runs_again_after_failure_in_stall() {
        let recovers = runs_of(|run| {
            (run == 3).then_some(()).ok_or_else(|| {
                stop();
                "late"
            })
        });
        assert_eq!(recovers, (Ok(()), 3), "the run without a stall decides");
        let never = runs_of(|_| {
            stop();
            Err("late")
        });
        assert_eq!(never, (Err("late"), RUNS), "a case that always fails");
        let passes = runs_of(|_| {
            stop();
            Ok(())
        });
        assert_eq!(passes, (Ok(()), 1), "a case that passes in spite of a stall");
        // This machine can stall too.
        let fails = (0..20).map(|_| runs_of(|_| Err("wrong")));
        assert_eq!(
            fails.min_by_key(|(_, runs)| *runs),
            Some((Err("wrong"), 1)),
            "no stall"
        );
    }
}
