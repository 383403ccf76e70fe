//! The time limit of a case: a thread that spins in the library cannot be ended, only left behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The case that a thread runs. The thread reads no clock.
#[derive(Debug)]
pub(crate) struct Running<F>(Arc<State<F>>);

#[derive(Debug)]
struct State<F> {
    number: AtomicU64,
    /// The failure that the thread reduces.
    failure: Mutex<Option<F>>,
}

/// The thread waits for a case.
const NONE: u64 = u64::MAX;

impl<F> Clone for Running<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F> Default for Running<F> {
    fn default() -> Self {
        Self(Arc::new(State {
            number: AtomicU64::new(NONE),
            failure: Mutex::new(None),
        }))
    }
}

impl<F> Running<F> {
    /// The thread begins the case with this number.
    pub(crate) fn begin(&self, number: u64) {
        self.0.number.store(number, Ordering::Relaxed);
    }

    /// The thread waits for a case.
    pub(crate) fn rest(&self) {
        self.0.number.store(NONE, Ordering::Relaxed);
    }

    /// The case has failed, and the thread reduces it: `failure` is the smallest one so far. The
    /// time of the reduction begins with the first.
    pub(crate) fn reduce(&self, failure: F) {
        *self.failure() = Some(failure);
    }

    fn number(&self) -> u64 {
        self.0.number.load(Ordering::Relaxed)
    }

    fn failure(&self) -> MutexGuard<'_, Option<F>> {
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that runs cases, seen from the one that waits for it.
pub(crate) struct Worker<T, F> {
    thread: JoinHandle<T>,
    running: Running<F>,
    /// The case that it was last seen to begin, or to begin to reduce, and when.
    seen: ((u64, bool), Instant),
}

/// A case that took too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stuck<F> {
    /// The case with this number does not end.
    Case(u64),
    /// Its reduction does not end. The smallest failure so far.
    Reduction(F),
}

impl<T, F> Worker<T, F> {
    pub(crate) fn new(thread: JoinHandle<T>, running: Running<F>) -> Self {
        let seen = ((running.number(), false), Instant::now());
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

    /// The case that runs, or is reduced, for longer than `limit`.
    pub(crate) fn stuck(&mut self, limit: Duration) -> Option<Stuck<F>> {
        let number = self.running.number();
        let mut failure = self.running.failure();
        let now = (number, failure.is_some());
        if now != self.seen.0 {
            self.seen = (now, Instant::now());
        }
        let is_stuck = number != NONE && self.seen.1.elapsed() > limit;
        is_stuck.then(|| failure.take().map_or(Stuck::Case(number), Stuck::Reduction))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn case_that_does_not_end_is_named() {
        let (running, (end, ended)) = (Running::<&str>::default(), mpsc::channel::<()>());
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
        assert_eq!(worker.stuck(limit), Some(Stuck::Case(8)));
        running.reduce("large");
        assert_eq!(worker.stuck(limit), None, "its reduction began just now");
        running.reduce("small");
        thread::sleep(long);
        assert_eq!(worker.stuck(limit), Some(Stuck::Reduction("small")));
        assert!(!worker.is_finished());
        drop(end);
        assert!(worker.join());
    }
}
