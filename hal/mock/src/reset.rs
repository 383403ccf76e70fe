//! When the driver gives up, and what it tells whom (driver common/device.c `hl_device_cond_reset`).

use gaudi_model::Reset;
use gaudi_seam::Errno;
use gaudi_uapi::info::{DeviceStatus, NotifierEvents};

use crate::interrupt::Alarm;
use crate::open::State;
use crate::submissions::Deadline;

/// How long a user that is told of a reset may take to go (device.c:24 `HL_DEVICE_RELEASE_WATCHDOG_TIMEOUT_SEC`).
const WATCHDOG_NS: u64 = 30_000_000_000;

/// A reset that waits for the user to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watchdog {
    /// When it comes at the latest, and then as a hard one.
    pub(crate) at_ns: u64,
    /// Whether it is one when the user goes before.
    pub(crate) hard: bool,
}

impl State {
    /// The driver's timers (command_submission.c:816 `cs_timedout`): a submission past its time ends itself and every other, and the
    /// device waits for its user to go before it is reset.
    pub(crate) fn expire(&mut self) {
        if self.status != DeviceStatus::OPERATIONAL {
            return;
        }
        // Most calls meet no timer: the clock is not read in vain.
        if self.watchdog.is_none() && self.next_deadline().is_none() {
            return;
        }
        let now = self.clock.now_ns();
        if self.watchdog.is_some_and(|watchdog| watchdog.at_ns <= now) {
            self.begin_reset(None);
            return;
        }
        let Some(context) = self.context.as_mut() else {
            return;
        };
        let submissions = &mut context.submissions;
        if submissions.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let late = submissions.oldest;
        let Some(record) = submissions.record(late) else {
            return;
        };
        record.deadline = Deadline::Past;
        let resets = record.resets;
        // command_submission.c:849: the first of a user is recorded, and told.
        let mut mask = NotifierEvents::NONE;
        if self.captured.cs_timeout.is_none() {
            self.captured.cs_timeout = Some((now, late));
            mask |= NotifierEvents::CS_TIMEOUT;
        }
        if resets {
            self.cond_reset(mask | NotifierEvents::DEVICE_RESET, Some(late), false);
        } else {
            // command_submission.c:893
            self.notify(mask);
        }
    }

    /// An interrupt that tells of something wrong.
    pub(crate) fn alarm(&mut self, alarm: Alarm) {
        use NotifierEvents as Told;
        let (mask, hard) = match alarm {
            // irq.c:405
            Alarm::TpcAssert => (
                Told::TPC_ASSERT | Told::USER_ENGINE_ERR | Told::DEVICE_RESET,
                false,
            ),
            // irq.c:486
            Alarm::EventQueue => (Told::DEVICE_RESET | Told::DEVICE_UNAVAILABLE, true),
        };
        if self.status == DeviceStatus::OPERATIONAL {
            self.cond_reset(mask, None, hard);
        }
    }

    /// A reset now, or, where the user asked to be told of events, once the user has gone (device.c:2033). It is a hard one now; then, only
    /// where whoever asked for it said so (device.c:1704).
    pub(crate) fn cond_reset(&mut self, mask: NotifierEvents, late: Option<u64>, hard: bool) {
        let told = self
            .context
            .as_ref()
            .is_some_and(|context| context.notifier.is_registered());
        self.notify(mask);
        if !told && self.watchdog.is_none() {
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
        self.reset_engines(Reset::Soft);
        self.watchdog = None;
        self.status = DeviceStatus::IN_RESET;
    }

    /// device.c:1273 `hl_abort_waiting_for_completions`
    fn abort_waits(&mut self) {
        let now = self.clock.now_ns();
        if let Some(context) = self.context.as_mut() {
            let submissions = &mut context.submissions;
            for seq in submissions.oldest..submissions.next {
                submissions.finish(seq, || now, Some(Errno::EIO));
            }
            context.buffers.abort_registrations(&mut self.chip);
        }
        self.interrupts.abort();
    }
}
