//! The completion of operations of a transport.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_device::{Error, Result};
use gaudi_sys::lock;

type Callback = Box<dyn Fn(Result<()>) + Send + Sync>;

/// Counts operations down. Every operation that accepted it ends it once: in
/// [`progress`](crate::Transport::progress), or during the call that posted it.
///
/// A clone is the same completion. It can be used again after [`reset`](Self::reset).
#[derive(Clone)]
pub struct Completion {
    state: Arc<State>,
}

struct State {
    left: AtomicUsize,
    failure: Mutex<Option<Error>>,
    callback: Option<Callback>,
}

impl Completion {
    /// Returns a completion of `count` operations.
    pub fn new(count: usize) -> Self {
        Self::of(count, None)
    }

    /// As [`new`](Self::new). The last operation calls `callback` with the first failure, in the
    /// thread that makes progress. The callback must not use the transport.
    pub fn with(count: usize, callback: impl Fn(Result<()>) + Send + Sync + 'static) -> Self {
        Self::of(count, Some(Box::new(callback)))
    }

    fn of(count: usize, callback: Option<Callback>) -> Self {
        Self {
            state: Arc::new(State {
                left: AtomicUsize::new(count),
                failure: Mutex::default(),
                callback,
            }),
        }
    }

    /// Prepares it for `count` further operations. No operation may be in flight.
    pub fn reset(&self, count: usize) {
        *lock(&self.state.failure) = None;
        self.state.left.store(count, Ordering::Release);
    }

    /// Whether all operations have ended.
    pub fn is_done(&self) -> bool {
        self.state.left.load(Ordering::Acquire) == 0
    }

    /// Returns the first failure; `None` while operations are in flight.
    pub fn result(&self) -> Option<Result<()>> {
        self.is_done()
            .then(|| lock(&self.state.failure).clone().map_or(Ok(()), Err))
    }

    /// Adds operations that will end it too.
    pub(crate) fn expect_more(&self, count: usize) {
        self.state.left.fetch_add(count, Ordering::Relaxed);
    }

    /// Ends one operation.
    pub(crate) fn end(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.state.failure).get_or_insert(error);
        }
        // An operation beyond the count leaves it at 0.
        let counted = |left: usize| left.checked_sub(1);
        let before = self
            .state
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, counted);
        if before == Ok(1) {
            if let Some(callback) = &self.state.callback {
                let failure = lock(&self.state.failure).clone();
                callback(failure.map_or(Ok(()), Err));
            }
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({} left)", self.state.left.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use gaudi_device::ErrorKind;

    use super::*;

    #[test]
    fn last_operation_reports_first_failure() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let completion = Completion::with(3, move |result| {
            assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::Hung));
            counted.fetch_add(1, Ordering::Relaxed);
        });
        completion.end(Ok(()));
        completion.end(Err(Error::new(ErrorKind::Hung, "first")));
        assert_eq!(completion.result(), None, "one operation is left");
        completion.end(Err(Error::new(ErrorKind::Io, "second")));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        completion.end(Ok(()));
        assert_eq!(
            calls.load(Ordering::Relaxed),
            1,
            "an operation beyond the count calls nothing"
        );
        completion.reset(1);
        assert!(!completion.is_done());
    }
}
