//! Errors that the driver records until the next user opens the device (`struct hl_error_info`),
//! and counts of events.

use gaudi_spec::Asic;
use gaudi_uapi::info::{
    HlInfoEngineErrEvent, HlInfoFwErrEvent, HlInfoHwErrEvent, HlInfoRazwiEvent, HlInfoUndefinedOpcodeEvent,
    HlPageFaultInfo, HlUserMapping,
};

/// The engine number of an error that has no engine (gaudi2.c `gaudi2_handle_eqe`).
pub(crate) const NO_ENGINE: u16 = u16::MAX;

/// The first error of each kind since the device was opened.
#[derive(Debug, Default)]
pub(crate) struct ErrorInfo {
    /// When a submission timed out, and its sequence number.
    pub(crate) cs_timeout: Option<(u64, u64)>,
    pub(crate) page_fault: Option<(HlPageFaultInfo, Vec<HlUserMapping>)>,
    pub(crate) razwi: Option<HlInfoRazwiEvent>,
    pub(crate) undefined_opcode: Option<HlInfoUndefinedOpcodeEvent>,
    pub(crate) engine: Option<HlInfoEngineErrEvent>,
    pub(crate) hardware: Option<HlInfoHwErrEvent>,
    pub(crate) firmware: Option<HlInfoFwErrEvent>,
}

/// Events since the last hard reset and since the device was made (`events_stat`,
/// `events_stat_aggregate`).
#[derive(Debug)]
pub(crate) struct EventCounts {
    pub(crate) now: Vec<u32>,
    pub(crate) ever: Vec<u32>,
}

impl EventCounts {
    pub(crate) fn new(asic: &Asic) -> Self {
        let zeros = vec![0; asic.events.count.into()];
        Self {
            now: zeros.clone(),
            ever: zeros,
        }
    }

    pub(crate) fn count(&mut self, event: u16) {
        for counts in [&mut self.now, &mut self.ever] {
            let count = &mut counts[usize::from(event)];
            *count = count.wrapping_add(1);
        }
    }

    /// As [`new`](Self::new).
    pub(crate) fn restart(&mut self) {
        self.now.fill(0);
        self.ever.fill(0);
    }

    /// After a hard reset.
    pub(crate) fn clear(&mut self) {
        self.now.fill(0);
    }
}
