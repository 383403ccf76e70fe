//! The driver's handling of errors that the chip reports (gaudi2.c `gaudi2_handle_eqe`).

use gaudi_seam::{DeviceVa, QueueId};
use gaudi_spec::asic::QueueEngine;
use gaudi_uapi::info::{
    DeviceStatus, FwErrType, HlInfoEngineErrEvent, HlInfoFwErrEvent, HlInfoHwErrEvent, HlInfoRazwiEvent,
    HlInfoUndefinedOpcodeEvent, HlPageFaultInfo, HlUserMapping, MockFault, NotifierEvents, RazwiFlags,
};

use crate::address_space::Mapping;
use crate::error_info::NO_ENGINE;
use crate::state::State;
use crate::time::timestamp;

impl State {
    /// An error of a queue manager: the driver resets the chip at once (gaudi2.c
    /// `gaudi2_handle_eqe`, gaudi2_async_ids_map_extended.h). `fetched` is the buffer of the lower
    /// command processor, if it stopped there.
    pub(crate) fn queue_error(&mut self, queue: QueueId, undefined: bool, fetched: Option<(DeviceVa, u32)>) {
        let Some(row) = (self.asic.queue)(queue) else {
            unreachable!("the engine reported an error of queue {queue}, which it does not have");
        };
        let Some(event) = (self.asic.events.queue_error)(&row) else {
            // The firmware reports errors of this engine in another way.
            return;
        };
        self.events.count(event);
        // gaudi2.c `gaudi2_handle_qman_err_generic`: an undefined opcode is recorded as such only
        // for the lower command processor. For a stream it is an engine error.
        let engine = (self.asic.engines.id)(&row).and_then(|id| u16::try_from(id).ok());
        let engine = engine.unwrap_or(NO_ENGINE);
        self.engine_error(engine);
        let mut mask = NotifierEvents::USER_ENGINE_ERR;
        if let Some((at, size)) = fetched.filter(|_| undefined) {
            // gaudi2.c `handle_lower_qman_data_on_err`
            let timestamp = timestamp(self.clock.now_ns());
            self.errors
                .undefined_opcode
                .get_or_insert(HlInfoUndefinedOpcodeEvent {
                    timestamp,
                    cq_addr: at.0,
                    cq_size: size,
                    engine_id: u32::from(engine),
                    stream_id: self.asic.queue_streams,
                    ..HlInfoUndefinedOpcodeEvent::default()
                });
            mask |= NotifierEvents::UNDEFINED_OPCODE;
        }
        if self.status == DeviceStatus::OPERATIONAL {
            self.cond_reset(mask | NotifierEvents::DEVICE_RESET, None, true);
        }
    }

    /// A page fault resets nothing: the submission runs into its timeout (gaudi2.c
    /// `gaudi2_handle_page_error`). guess: which of the MMUs of device memory reports it.
    pub(crate) fn page_fault(&mut self, address: DeviceVa) {
        let of_device = self.asic.dram_fault_range.contains(&address);
        let (event, addr) = match of_device {
            true => (
                self.asic.events.dram_page_fault,
                address.0 & self.asic.dram_fault_mask,
            ),
            false => (self.asic.events.host_page_fault, address.0),
        };
        self.events.count(event);
        if self.errors.page_fault.is_none() {
            let mappings = self.context.iter().flat_map(|context| &context.mappings);
            let of_kind = mappings.filter_map(|(&dev_va, mapping)| {
                let size = match mapping {
                    Mapping::Device { handle, .. } if of_device => {
                        self.allocations.get(handle)?.bytes(self.asic)
                    }
                    Mapping::Host { len, .. } if !of_device => *len,
                    _ => return None,
                };
                Some(HlUserMapping { dev_va, size })
            });
            let info = HlPageFaultInfo {
                timestamp: timestamp(self.clock.now_ns()),
                addr,
                ..HlPageFaultInfo::default()
            };
            self.errors.page_fault = Some((info, of_kind.collect()));
        }
        self.engine_error(NO_ENGINE);
        self.notify(NotifierEvents::USER_ENGINE_ERR | NotifierEvents::PAGE_FAULT);
    }

    /// A router refused a write of an engine: the driver records the first one, and resets the chip
    /// (gaudi2.c `gaudi2_ack_module_razwi_event_handler`, device.c `hl_handle_razwi`,
    /// gaudi2_async_ids_map_extended.h). Returns the event.
    pub(crate) fn razwi(&mut self, queue: QueueId, address: DeviceVa) -> u16 {
        let Some(row) = (self.asic.queue)(queue) else {
            unreachable!("the engine reported a RAZWI of queue {queue}, which it does not have");
        };
        let Some((event, engine)) = (self.asic.events.razwi)(&row) else {
            unreachable!("the engine reported a RAZWI of queue {queue}, which moves no data");
        };
        self.events.count(event);
        let registers = self.asic.cfg_base.0..self.asic.cfg_base.0 + self.asic.cfg_size;
        let width = match registers.contains(&address.0) {
            true => RazwiFlags::LBW,
            false => RazwiFlags::HBW,
        };
        let mut record = HlInfoRazwiEvent {
            timestamp: timestamp(self.clock.now_ns()),
            addr: address.0,
            num_of_possible_engines: 1,
            flags: RazwiFlags::WRITE | width,
            ..HlInfoRazwiEvent::default()
        };
        record.engine_id[0] = u16::try_from(engine).unwrap_or(NO_ENGINE);
        self.errors.razwi.get_or_insert(record);
        // gaudi2.c `event_id_to_engine_id`: the engine of the event, for the second PDMA too.
        let engine = (self.asic.engines.id)(&row).and_then(|id| u16::try_from(id).ok());
        self.engine_error(engine.unwrap_or(NO_ENGINE));
        if self.status == DeviceStatus::OPERATIONAL {
            let mask = NotifierEvents::USER_ENGINE_ERR | NotifierEvents::RAZWI;
            self.cond_reset(mask | NotifierEvents::DEVICE_RESET, None, true);
        }
        event
    }

    /// A monitor wrote to an unmapped address: a page fault, and an error of its sync manager, for
    /// which the driver resets the device (gaudi2.c `gaudi2_handle_sm_err`,
    /// gaudi2_async_ids_map_extended.h).
    pub(crate) fn sync_fault(&mut self, dcore: u32, address: DeviceVa) {
        self.page_fault(address);
        self.events.count(self.asic.events.sync_error + dcore as u16);
        if self.status == DeviceStatus::OPERATIONAL {
            let mask = NotifierEvents::USER_ENGINE_ERR | NotifierEvents::DEVICE_RESET;
            self.cond_reset(mask, None, false);
        }
    }

    /// Makes an error on purpose. Returns the event that it counted, or 0.
    pub(crate) fn inject(&mut self, fault: MockFault) -> u16 {
        use NotifierEvents as Events;
        let (events, now) = (&self.asic.events, self.clock.now_ns());
        let timestamp = timestamp(now);
        match fault {
            MockFault::None => 0,
            // gaudi2.c `gaudi2_handle_ecc_event`
            MockFault::NonFatalEvent => {
                self.events.count(events.corrected_error);
                self.notify(Events::GENERAL_HW_ERR);
                events.corrected_error
            }
            MockFault::FatalEvent => {
                let event_id = events.uncorrected_error;
                self.events.count(event_id);
                // device.c `hl_capture_hw_err`
                self.errors.hardware.get_or_insert(HlInfoHwErrEvent {
                    timestamp,
                    event_id,
                    pad: [0; 3],
                });
                let mask = Events::GENERAL_HW_ERR | Events::CRITICL_HW_ERR | Events::DEVICE_RESET;
                self.cond_reset(mask, None, true);
                event_id
            }
            // device.c `hl_device_heartbeat`
            MockFault::LossOfHeartbeat => {
                self.errors.firmware.get_or_insert(HlInfoFwErrEvent {
                    timestamp,
                    err_type: FwErrType::HEARTBEAT_ERR,
                    event_id: 0,
                    pad: 0,
                });
                let mask = Events::CRITICL_FW_ERR | Events::DEVICE_RESET | Events::DEVICE_UNAVAILABLE;
                self.cond_reset(mask, None, true);
                0
            }
            // A write of the first DMA engine to the first register, which is protected.
            MockFault::Razwi => {
                let is_pci = |queue: &QueueId| {
                    (self.asic.queue)(*queue).is_some_and(|row| row.engine == QueueEngine::Pdma)
                };
                match (0..self.asic.queue_count).map(QueueId).find(is_pci) {
                    Some(queue) => self.razwi(queue, DeviceVa(self.asic.cfg_base.0)),
                    None => unreachable!("a chip has DMA engines beside PCI"),
                }
            }
            // gaudi2.c `gaudi2_print_clk_change_info`
            MockFault::ThermalEvent | MockFault::ThermalEventEnd => {
                let starts = fault == MockFault::ThermalEvent;
                let event = if starts {
                    events.thermal_start
                } else {
                    events.thermal_end
                };
                self.events.count(event);
                self.throttling.set(starts, now);
                self.notify(Events::USER_ENGINE_ERR);
                event
            }
        }
    }

    /// device.c `hl_capture_engine_err`
    fn engine_error(&mut self, engine_id: u16) {
        let timestamp = timestamp(self.clock.now_ns());
        self.errors.engine.get_or_insert(HlInfoEngineErrEvent {
            timestamp,
            engine_id,
            error_count: 1,
            pad: 0,
        });
    }
}
