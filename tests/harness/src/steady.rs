//! [`steady`]: repeats a case that failed while this process did not run.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of the clock that detects a stall.
const TICK: Duration = Duration::from_millis(50);
/// A stall that can fail a case: the shortest timeout of a submission is one second.
const STALL: Duration = Duration::from_millis(500);
/// Maximum number of runs of a case.
const RUNS: usize = 4;

/// Ticks of the clock, and the milliseconds that this process did not run.
static TICKS: AtomicU64 = AtomicU64::new(0);
static STALLED: AtomicU64 = AtomicU64::new(0);

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

/// Calls `run`. Returns its result and, if it fails, how long this process did not run meanwhile.
fn measured<T, E>(run: impl FnOnce() -> Result<T, E>) -> (Result<T, E>, Duration) {
    static START: Once = Once::new();
    // Once and not for each case: a thread that starts maps memory, and cases use addresses at
    // which nothing is mapped.
    START.call_once(|| {
        thread::spawn(tick);
        wait_for_tick();
    });
    let before = STALLED.load(Ordering::Relaxed);
    let outcome = run();
    if outcome.is_err() {
        wait_for_tick();
    }
    let stalled = STALLED.load(Ordering::Relaxed) - before;
    (outcome, Duration::from_millis(stalled))
}

/// Measures stalls. Allocates nothing.
fn tick() {
    let mut last = Instant::now();
    loop {
        thread::sleep(TICK);
        let late = last.elapsed().saturating_sub(TICK);
        last = Instant::now();
        // A busy machine is a little late at every tick.
        if late > TICK {
            STALLED.fetch_add(late.as_millis() as u64, Ordering::Relaxed);
        }
        TICKS.fetch_add(1, Ordering::Release);
    }
}

/// Waits until the clock has counted a stall that ended before the call; for 5 seconds at most,
/// because a fork child has no clock.
fn wait_for_tick() {
    let (before, begin) = (TICKS.load(Ordering::Acquire), Instant::now());
    while TICKS.load(Ordering::Acquire) == before && begin.elapsed() < 100 * TICK {
        thread::sleep(TICK / 10);
    }
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
