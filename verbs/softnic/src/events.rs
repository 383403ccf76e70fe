//! [`Events`]: the NIC's asynchronous events, a bounded queue and an eventfd.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use gaudi_seam::{Error, Result};
use gaudi_sys::lock;
use gaudi_verbs::{AsyncElement, AsyncEvent, AsyncEventType};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Limit of queued events. More are dropped and logged.
const ROOM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Events {
    queue: Mutex<VecDeque<AsyncEvent>>,
    fd: EventFd,
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        let fd = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| Error::from_errno("ibv_open_device", errno))?;
        Ok(Self {
            queue: Mutex::new(VecDeque::with_capacity(ROOM)),
            fd,
        })
    }

    pub(crate) fn raise(&self, event_type: AsyncEventType, element: AsyncElement) {
        let mut queue = lock(&self.queue);
        if queue.len() >= ROOM {
            tracing::warn!(%event_type, "softnic (software): the queue of events is full, one is dropped");
            return;
        }
        queue.push_back(AsyncEvent { event_type, element });
        // Cannot fail: the counter is the number of queued events, at most `ROOM`.
        let _ = self.fd.write(1);
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = lock(&self.queue);
        let event = queue.pop_front()?;
        // Cannot fail: the counter was raised for this event.
        let _ = self.fd.read();
        Some(event)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
