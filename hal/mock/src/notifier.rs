//! Notification of the user (`struct hl_notifier_event`).

use gaudi_uapi::info::NotifierEvents;

/// The user's eventfd, and the events since the user last took them.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    eventfd: Option<gaudi_sys::Event>,
    mask: NotifierEvents,
}

impl Notifier {
    pub(crate) fn is_registered(&self) -> bool {
        self.eventfd.is_some()
    }

    pub(crate) fn register(&mut self, eventfd: gaudi_sys::Event) {
        self.eventfd = Some(eventfd);
    }

    /// habanalabs_ioctl.c `eventfd_unregister`
    pub(crate) fn unregister(&mut self) {
        self.eventfd = None;
    }

    /// The events since the last call (habanalabs_ioctl.c `get_events`).
    pub(crate) fn take(&mut self) -> NotifierEvents {
        std::mem::take(&mut self.mask)
    }

    /// device.c `hl_notifier_event_send`
    pub(crate) fn send(&mut self, mask: NotifierEvents) {
        self.mask |= mask;
        if let Some(eventfd) = &self.eventfd {
            // A full counter already signals an event. A blocking eventfd must not block the
            // device.
            let _ = eventfd.signal();
        }
    }
}
