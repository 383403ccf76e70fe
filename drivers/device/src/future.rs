//! A completion as a future. The device's waiter thread wakes the task; no runtime is needed.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use gaudi_seam::Result;

use crate::completion::Completion;
use crate::shared::lock;

/// The waker of a future's last poll, shared with the waiter thread.
#[derive(Debug, Clone)]
struct Task(Arc<Mutex<Waker>>);

impl Task {
    fn wake(&self) {
        let waker = lock(&self.0).clone();
        // Not under the lock: a waker may poll the future at once.
        waker.wake();
    }
}

/// The future of a [`Completion`]: ready when the work has ended. Dropping it cancels nothing.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct CompletionFuture {
    completion: Completion,
    /// `None` until the waiter thread knows this future.
    task: Option<Task>,
}

impl IntoFuture for Completion {
    type Output = Result<()>;
    type IntoFuture = CompletionFuture;

    /// Uses the device's waiter thread, which [`event_fd`](Completion::event_fd) describes.
    fn into_future(self) -> CompletionFuture {
        CompletionFuture {
            completion: self,
            task: None,
        }
    }
}

impl Future for CompletionFuture {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.completion.poll()? {
            return Poll::Ready(Ok(()));
        }
        match &self.task {
            Some(task) => lock(&task.0).clone_from(context.waker()),
            None => {
                let task = Task(Arc::new(Mutex::new(context.waker().clone())));
                let other = task.clone();
                self.completion.on_end(Box::new(move || other.wake()))?;
                self.task = Some(task);
            }
        }
        // The thread may have woken the previous waker after the poll above.
        match self.completion.poll()? {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}
