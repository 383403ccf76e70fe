//! What the driver keeps of errors until the next user opens the device (device.c:2864), and whom it tells.

use std::os::fd::BorrowedFd;

use gaudi_model::{Event, FaultCause, Stop, StopReason};
use gaudi_seam::{DeviceVa, Errno, Error, Result};
use gaudi_spec::gaudi2::{self, firmware::event};
use gaudi_uapi::info::{
    DeviceStatus, HlInfoEngineErrEvent, HlInfoUndefinedOpcodeEvent, HlPageFaultInfo, HlUserMapping,
    NotifierEvents,
};

use crate::engine;
use crate::memory::Mapping;
use crate::open::{Device, State};

/// Events that the firmware can send (gaudi2_async_events.h `GAUDI2_EVENT_SIZE`).
pub(crate) const EVENTS: usize = 1329;
/// Of a fault in device memory the driver knows the 64 MiB around it (gaudi2.c:165).
const HMMU_KNOWN: u64 = !((64 << 20) - 1);

/// The first error of each kind since the device was opened (`struct hl_error_info`).
#[derive(Debug, Default)]
pub(crate) struct Captured {
    pub(crate) cs_timeout: Option<(u64, u64)>,
    pub(crate) page_fault: Option<(HlPageFaultInfo, Vec<HlUserMapping>)>,
    pub(crate) undefined_opcode: Option<HlInfoUndefinedOpcodeEvent>,
    pub(crate) engine: Option<HlInfoEngineErrEvent>,
}

/// Events since the last hard reset and since the device was made (`events_stat`, `events_stat_aggregate`).
#[derive(Debug)]
pub(crate) struct EventCounts {
    pub(crate) now: Vec<u32>,
    pub(crate) ever: Vec<u32>,
}

impl Default for EventCounts {
    fn default() -> Self {
        Self {
            now: vec![0; EVENTS],
            ever: vec![0; EVENTS],
        }
    }
}

impl EventCounts {
    fn count(&mut self, event: u16) {
        for counts in [&mut self.now, &mut self.ever] {
            if let Some(count) = counts.get_mut(usize::from(event)) {
                *count = count.wrapping_add(1);
            }
        }
    }
}

/// Whom the driver tells of events (`struct hl_notifier_event`).
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    eventfd: Option<gaudi_sys::Event>,
    mask: NotifierEvents,
}

impl Notifier {
    pub(crate) fn is_registered(&self) -> bool {
        self.eventfd.is_some()
    }

    /// What happened since the last time (habanalabs_ioctl.c:146).
    pub(crate) fn take(&mut self) -> NotifierEvents {
        std::mem::take(&mut self.mask)
    }

    /// device.c:2100
    fn send(&mut self, mask: NotifierEvents) {
        self.mask |= mask;
        if let Some(eventfd) = &self.eventfd {
            // A counter that is full says already that there is something, and one that its maker lets wait must not hold the device.
            let _ = eventfd.signal();
        }
    }

    /// habanalabs_ioctl.c:794
    pub(crate) fn unregister(&mut self) -> std::result::Result<(), Errno> {
        self.eventfd.take().map(drop).ok_or(Errno::EINVAL)
    }
}

/// What `eventfd_ctx_fdget` takes: a descriptor of an eventfd and of nothing else.
fn eventfd(fd: BorrowedFd<'_>) -> std::result::Result<gaudi_sys::Event, Errno> {
    gaudi_sys::fd::duplicate(fd).and_then(gaudi_sys::Event::of)
}

impl Device {
    pub(crate) fn register_events(&self, fd: BorrowedFd<'_>) -> Result<()> {
        const OP: &str = "HL_INFO_REGISTER_EVENTFD";
        let mut state = self.lock();
        self.operational(&mut state, OP)?;
        let refuse = |why: &str| Err(self.refusal(OP, Errno::EINVAL).because(why.to_owned()));
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        let notifier = &mut context.notifier;
        if notifier.is_registered() {
            // habanalabs_ioctl.c:774
            return refuse("an eventfd is registered already");
        }
        match eventfd(fd) {
            Ok(fd) => notifier.eventfd = Some(fd),
            Err(_) => return refuse("the descriptor is no eventfd"),
        }
        Ok(())
    }

    pub(crate) fn unregister_events(&self) -> Result<()> {
        const OP: &str = "HL_INFO_UNREGISTER_EVENTFD";
        let mut state = self.lock();
        state.settle();
        let context = state.context.as_mut();
        context
            .map_or(Err(Errno::EINVAL), |context| context.notifier.unregister())
            .map_err(|errno| self.refusal(OP, errno).because("no eventfd is registered"))
    }

    /// What the compute node's users alone may ask (habanalabs_ioctl.c:1165).
    pub(crate) fn not_on_control(&self, operation: &'static str) -> Error {
        self.refusal(operation, Errno::EOPNOTSUPP)
            .because("events are the compute node's")
    }
}

impl State {
    /// Tells the user, if there is one (device.c:2118).
    pub(crate) fn notify(&mut self, mask: NotifierEvents) {
        if let Some(context) = self.context.as_mut().filter(|_| mask != NotifierEvents::NONE) {
            context.notifier.send(mask);
        }
    }

    /// What firmware would tell the driver of a fault, and what the driver keeps of it (gaudi2.c:10143 `gaudi2_handle_eqe`).
    ///
    /// For an error of a queue manager the driver resets the chip at once (gaudi2.c:10596, gaudi2_async_ids_map_extended.h); a page
    /// fault alone resets nothing, and the submission runs into its timeout.
    pub(crate) fn capture(&mut self, event: &Event) {
        match event {
            Event::Stop(stop) => self.capture_stop(stop),
            Event::PageFault(fault) => self.capture_page_fault(fault.address),
            Event::MonitorFault {
                dcore,
                address,
                cause: FaultCause::NotMapped,
                ..
            } => self.capture_monitor_fault(*dcore, *address),
            _ => {}
        }
    }

    fn capture_stop(&mut self, stop: &Stop) {
        // What the model does not know is no error of the chip (gaudi2.c:1122 has those).
        let undefined = matches!(stop.reason, StopReason::Malformed(_));
        if !undefined && !matches!(stop.reason, StopReason::Asked | StopReason::UpperOverflow) {
            return;
        }
        let Some(row) = (gaudi2::ASIC.queue)(stop.queue) else {
            return;
        };
        let Some(event) = engine::qman_event(&row) else {
            return;
        };
        self.events.count(event);
        // gaudi2.c:8340: an undefined opcode is told as one only where the lower command processor meets it, which runs what CP_DMA
        // brings; a stream's own is an engine's error and no more.
        let engine = engine::id(&row).and_then(|id| u16::try_from(id).ok());
        self.capture_engine(engine.unwrap_or(engine::NO_ENGINE));
        let mut mask = NotifierEvents::USER_ENGINE_ERR;
        if let Some((at, size)) = stop.lower.filter(|_| undefined) {
            // gaudi2.c:8291
            let timestamp = self.timestamp();
            self.captured
                .undefined_opcode
                .get_or_insert(HlInfoUndefinedOpcodeEvent {
                    timestamp,
                    cq_addr: at.0,
                    cq_size: size,
                    engine_id: u32::from(engine.unwrap_or(engine::NO_ENGINE)),
                    stream_id: gaudi2::queue::STREAMS,
                    ..HlInfoUndefinedOpcodeEvent::default()
                });
            mask |= NotifierEvents::UNDEFINED_OPCODE;
        }
        if self.status == DeviceStatus::OPERATIONAL {
            self.cond_reset(mask | NotifierEvents::DEVICE_RESET, None, true);
        }
    }

    /// gaudi2.c:9359. guess: which of the thirteen MMUs of device memory tells it.
    fn capture_page_fault(&mut self, address: DeviceVa) {
        let device = gaudi2::DRAM_PHYS_BASE.0..gaudi2::VA_HBM_SPACE_END.0;
        let of_device = device.contains(&address.0);
        let (event, addr) = match of_device {
            true => (event::HMMU0_PAGE_FAULT, address.0 & HMMU_KNOWN),
            false => (event::PMMU_PAGE_FAULT, address.0),
        };
        self.events.count(event);
        if self.captured.page_fault.is_none() {
            let mappings = self.context.as_ref().map(|context| {
                let of_kind = context
                    .mappings
                    .iter()
                    .filter_map(|(&dev_va, mapping)| match mapping {
                        Mapping::Device { handle, .. } if of_device => Some(HlUserMapping {
                            dev_va,
                            size: self.allocations.get(handle)?.bytes(),
                        }),
                        Mapping::Host { len, .. } if !of_device => Some(HlUserMapping { dev_va, size: *len }),
                        _ => None,
                    });
                of_kind.collect()
            });
            let info = HlPageFaultInfo {
                timestamp: self.timestamp(),
                addr,
                ..HlPageFaultInfo::default()
            };
            self.captured.page_fault = Some((info, mappings.unwrap_or_default()));
        }
        self.capture_engine(engine::NO_ENGINE);
        self.notify(NotifierEvents::USER_ENGINE_ERR | NotifierEvents::PAGE_FAULT);
    }

    /// A monitor wrote to an unmapped address: a page fault, and an error of its sync manager, for
    /// which the driver resets the device (gaudi2.c `gaudi2_handle_sm_err`,
    /// gaudi2_async_ids_map_extended.h).
    fn capture_monitor_fault(&mut self, dcore: u32, address: DeviceVa) {
        self.capture_page_fault(address);
        self.events.count(event::SM0_AXI_ERROR + dcore as u16);
        if self.status == DeviceStatus::OPERATIONAL {
            let mask = NotifierEvents::USER_ENGINE_ERR | NotifierEvents::DEVICE_RESET;
            self.cond_reset(mask, None, false);
        }
    }

    /// device.c:2850
    fn capture_engine(&mut self, engine_id: u16) {
        let timestamp = self.timestamp();
        self.captured.engine.get_or_insert(HlInfoEngineErrEvent {
            timestamp,
            engine_id,
            error_count: 1,
            pad: 0,
        });
    }

    fn timestamp(&self) -> i64 {
        i64::try_from(self.clock.now_ns()).unwrap_or(i64::MAX)
    }
}
