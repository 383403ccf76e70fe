//! The driver's resets of the chip (device.c `hl_device_cond_reset`), and the effects of a close.

use gaudi_model::MemoryKind;
use gaudi_seam::engine::Reset;
use gaudi_seam::{DeviceVa, Errno};
use gaudi_uapi::info::{DeviceStatus, NotifierEvents};

use crate::interrupt::Alarm;
use crate::state::{State, Watchdog};
use crate::submissions::Deadline;

/// The time in which a notified user must close the device before a reset (device.c
/// `HL_DEVICE_RELEASE_WATCHDOG_TIMEOUT_SEC`).
const WATCHDOG_NS: u64 = 30_000_000_000;

impl State {
    /// Does the driver's deferred work: a release after the last export, and expired timeouts.
    pub(crate) fn settle(&mut self) {
        self.expire();
        if self.closed && self.context.is_some() && !self.has_export() {
            self.release();
        }
    }

    /// The driver's timers (command_submission.c `cs_timedout`): a submission past its time ends
    /// itself and every other, and the device waits for its user to close before it is reset.
    pub(crate) fn expire(&mut self) {
        if self.status != DeviceStatus::OPERATIONAL {
            return;
        }
        // Most calls find no timer, so the clock is not read.
        if self.watchdog.is_none() && self.next_deadline().is_none() {
            return;
        }
        let now = self.clock.now_ns();
        if self.watchdog.is_some_and(|watchdog| watchdog.at_ns <= now) {
            self.begin_reset(None);
            return;
        }
        let Some(context) = self.context.as_mut() else {
            // A closed device whose reset is not due yet.
            return;
        };
        let submissions = &mut context.submissions;
        if submissions.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let late = submissions.oldest;
        let Some(record) = submissions.record(late) else {
            unreachable!("a submission with a deadline has a record");
        };
        record.deadline = Deadline::Past;
        let resets = record.resets;
        // command_submission.c `cs_timedout`: the first of a user is recorded, and the user is
        // notified.
        let mut mask = NotifierEvents::NONE;
        if self.errors.cs_timeout.is_none() {
            self.errors.cs_timeout = Some((now, late));
            mask |= NotifierEvents::CS_TIMEOUT;
        }
        if resets {
            self.cond_reset(mask | NotifierEvents::DEVICE_RESET, Some(late), false);
        } else {
            self.notify(mask);
        }
    }

    /// Handles an interrupt that reports an error.
    pub(crate) fn alarm(&mut self, alarm: Alarm) {
        use NotifierEvents as Events;
        let (mask, hard) = match alarm {
            // irq.c `handle_tpc_interrupt`
            Alarm::TpcAssert => (
                Events::TPC_ASSERT | Events::USER_ENGINE_ERR | Events::DEVICE_RESET,
                false,
            ),
            // irq.c `hl_irq_eq_error_interrupt_thread_handler`
            Alarm::EventQueue => (Events::DEVICE_RESET | Events::DEVICE_UNAVAILABLE, true),
        };
        if self.status == DeviceStatus::OPERATIONAL {
            self.cond_reset(mask, None, hard);
        }
    }

    /// Resets the device now or, if the user registered for events, once the user has closed it. An
    /// immediate reset is always hard; a later one only if `hard` is set (device.c
    /// `hl_device_reset`).
    pub(crate) fn cond_reset(&mut self, mask: NotifierEvents, late: Option<u64>, hard: bool) {
        let notified = self
            .context
            .as_ref()
            .is_some_and(|context| context.notifier.is_registered());
        self.notify(mask);
        if !notified && self.watchdog.is_none() {
            self.begin_reset(late);
            return;
        }
        let now = self.clock.now_ns();
        let watchdog = self.watchdog.get_or_insert(Watchdog {
            at_ns: now.saturating_add(WATCHDOG_NS),
            hard: false,
        });
        watchdog.hard |= hard;
        self.abort_waits();
    }

    /// The hard reset, as far as it goes while the user has the device open.
    fn begin_reset(&mut self, late: Option<u64>) {
        let now = self.clock.now_ns();
        if let (Some(context), Some(late)) = (self.context.as_mut(), late) {
            context.submissions.finish(late, || now, Some(Errno::ETIMEDOUT));
        }
        self.abort_waits();
        self.reset_engine(Reset::Soft);
        self.watchdog = None;
        self.status = DeviceStatus::IN_RESET;
    }

    /// device.c `hl_abort_waiting_for_completions`
    fn abort_waits(&mut self) {
        let now = self.clock.now_ns();
        if let Some(context) = self.context.as_mut() {
            let submissions = &mut context.submissions;
            for seq in submissions.oldest..submissions.next {
                submissions.finish(seq, || now, Some(Errno::EIO));
            }
            context.buffers.abort_registrations(&mut *self.engine);
        }
        self.interrupts.abort();
    }

    /// Drops the context and all that it holds (context.c `hl_ctx_fini`); then the driver resets
    /// the engines (`reset_upon_device_release` of this chip).
    fn release(&mut self) {
        // A reset that waited for the user comes now (device.c `hl_device_release`). So does one if
        // work that has not ended or signals that stay reserved hold the context: only a hard reset
        // frees it (device.c `device_kill_open_processes`).
        let in_use = self.context().submissions.in_flight() > 0
            || self.signals.has_reserved()
            || !self.engine.has_completed();
        let ordinary = !self.watchdog.take().is_some_and(|watchdog| watchdog.hard)
            && self.status == DeviceStatus::OPERATIONAL
            && !in_use;
        self.reset_engine(if ordinary { Reset::Soft } else { Reset::Hard });
        let mapped: Vec<u64> = self.context().mappings.keys().copied().collect();
        for address in mapped {
            self.unmap(DeviceVa(address));
        }
        // context.c `hl_ctx_fini`
        self.debugging.restart();
        // The next user does not get the stop texts of this one.
        self.stops.clear();
        if let Some(mut context) = self.context.take() {
            debug_assert!(context.va.are_whole(), "every mapping was unmapped");
            self.past_drops = self.past_drops.plus(context.submissions.drops);
            context.buffers.release(&mut *self.engine);
            context.driver_buffers.release(&mut *self.engine);
            if self.memory != MemoryKind::Shared {
                context.restart();
                self.spare = Some(context);
            }
        }
        self.engine.close_context();
        for (_, allocation) in std::mem::take(&mut self.allocations) {
            self.discard(&allocation);
        }
        let now = self.clock.now_ns();
        self.closed = false;
        self.closed_ns = Some((self.opened_ns, now));
        // device.c `hl_device_reset`: the reset after an ordinary close is not counted.
        if !ordinary {
            self.hard_resets += 1;
            // gaudi2.c `gaudi2_hw_fini`
            self.events.clear();
            self.status = DeviceStatus::OPERATIONAL;
        }
    }
}
