//! Sensors as the firmware reports them, and throttling.

use gaudi_spec::gaudi2::firmware::event;

use super::chip::PciChip;
use super::sensors::Sensors;

impl PciChip {
    /// Changes the measured values and the card's limits. A limit set by the driver stays.
    pub fn set_sensors(&mut self, sensors: Sensors) {
        self.firmware.environment.sensors = sensors;
        self.firmware.environment.measure();
        self.report_throttling();
    }

    /// Sets a value for the driver. Returns `None` if the firmware does not have it.
    pub(super) fn set_environment(&mut self, operation: u16, argument: u32, value: u64) -> Option<()> {
        self.firmware.environment.set(operation, argument, value)?;
        self.report_throttling();
        Some(())
    }

    /// Sends events for throttling that started or ended. Events that the driver cannot receive yet
    /// are sent later.
    pub(super) fn report_throttling(&mut self) {
        let now = self.firmware.environment.throttled();
        let events = [
            [event::FIX_POWER_ENV_S, event::FIX_POWER_ENV_E],
            [event::FIX_THERMAL_ENV_S, event::FIX_THERMAL_ENV_E],
        ];
        for (nth, [begin, end]) in events.into_iter().enumerate() {
            let event = if now[nth] { begin } else { end };
            let known = self.firmware.environment.reported[nth] == now[nth];
            if !known && self.send_event(event, &[0; 7]) {
                self.firmware.environment.reported[nth] = now[nth];
            }
        }
    }
}
