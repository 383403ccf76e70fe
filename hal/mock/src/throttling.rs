//! Throttling of the clocks because of the temperature (`struct hl_clk_throttle`).

use gaudi_uapi::info::{ClkThrottle, ClkThrottleType, HlInfoClkThrottle};

/// The last period in which the clocks were throttled, and whether it lasts.
#[derive(Debug, Default)]
pub(crate) struct Throttling {
    start_ns: Option<u64>,
    end_ns: Option<u64>,
}

impl Throttling {
    /// Throttling starts or ends. An end without a start is recorded as no period.
    pub(crate) fn set(&mut self, starts: bool, now_ns: u64) {
        (self.start_ns, self.end_ns) = match starts {
            true => (Some(now_ns), None),
            false => (self.start_ns, self.end_ns.or(Some(now_ns))),
        };
    }

    /// habanalabs_ioctl.c `clk_throttle_info`
    pub(crate) fn answer(&self, now_ns: u64) -> HlInfoClkThrottle {
        let mut answer = HlInfoClkThrottle::default();
        let Some(start) = self.start_ns else {
            return answer;
        };
        if self.end_ns.is_none() {
            answer.clk_throttling_reason = ClkThrottle::THERMAL;
        }
        let index = ClkThrottleType::THERMAL.0 as usize;
        answer.clk_throttling_timestamp_us[index] = start / 1000;
        answer.clk_throttling_duration_ns[index] = self.end_ns.unwrap_or(now_ns).saturating_sub(start);
        answer
    }
}
