//! The time limit of a case: a thread that spins in the library cannot be ended, only left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The case that a thread runs. The thread reads no clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running(Arc<AtomicU64>);

/// The thread waits for a case.
const NONE: u64 = u64::MAX;

impl Running {
    /// The thread begins the case with this number.
    pub(crate) fn begin(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// The thread waits for a case.
    pub(crate) fn rest(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread that runs cases, seen from the one that waits for it.
pub(crate) struct Worker<T> {
    thread: JoinHandle<T>,
    running: Running,
    /// The case that it was last seen to begin, and when.
    seen: (u64, Instant),
}

impl<T> Worker<T> {
    pub(crate) fn new(thread: JoinHandle<T>, running: Running) -> Self {
        let seen = (running.number(), Instant::now());
        Self {
            thread,
            running,
            seen,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread. A panic of it is one of the caller's.
    pub(crate) fn join(self) -> T {
        let answer = self.thread.join();
        answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The case that runs for longer than `limit`.
    pub(crate) fn stuck(&mut self, limit: Duration) -> Option<u64> {
        let number = self.running.number();
        if number != self.seen.0 {
            self.seen = (number, Instant::now());
        }
        (number != NONE && self.seen.1.elapsed() > limit).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn case_that_does_not_end_is_named() {
        let (running, (end, ended)) = (Running::default(), mpsc::channel::<()>());
        let thread = thread::spawn(move || ended.recv().is_err());
        let mut worker = Worker::new(thread, running.clone());
        running.begin(7);
        let (limit, long) = (Duration::from_millis(20), Duration::from_millis(30));
        assert_eq!(worker.stuck(limit), None, "it began just now");
        thread::sleep(long);
        running.rest();
        assert_eq!(worker.stuck(limit), None, "it has ended");
        thread::sleep(long);
        assert_eq!(worker.stuck(limit), None, "no case runs");
        running.begin(7);
        assert_eq!(worker.stuck(limit), None, "it began just now");
        thread::sleep(long);
        running.begin(8);
        assert_eq!(worker.stuck(limit), None, "the next one began");
        thread::sleep(long);
        assert_eq!(worker.stuck(limit), Some(8));
        assert!(!worker.is_finished());
        drop(end);
        assert!(worker.join());
    }
}
