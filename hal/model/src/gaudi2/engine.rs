//! The chip as a driver's [`Engine`].

use std::sync::Arc;

use gaudi_seam::Engine;
use gaudi_seam::engine::{EngineEvent, HostRange, Job, MapError, PushError, Reset};
use gaudi_seam::fault::ChipRules;
use gaudi_spec::gaudi2::sync::SobUpdate;
use gaudi_spec::gaudi2::{ASIC, DOORBELL_SIZE, DOORBELL_VA};
use gaudi_spec::{Asic, DevicePa, DeviceVa, QueueId};
use gaudi_sys::{Errno, Memfd};

use super::chip::Chip;
use super::event::{Event, FaultCause, StopReason};
use super::run::RunOutcome;
use super::stream::Cb;
use crate::config::Mode;
use crate::mmu::Backing;

impl Engine for Chip {
    fn asic(&self) -> &'static Asic {
        &ASIC
    }

    fn open_context(&mut self) -> Result<(), MapError> {
        self.bus.mmu.insert(DOORBELL_VA, DOORBELL_SIZE, Backing::Doorbell)
    }

    fn close_context(&mut self) {
        self.clear_user_sync();
        self.unmap(DOORBELL_VA);
    }

    fn map_device(&mut self, va: DeviceVa, pa: DevicePa, len: u64) -> Result<(), MapError> {
        if self.bus.dram.offset(pa, len).is_none() && self.bus.sram.offset(pa, len).is_none() {
            return Err(MapError::OutsideMemory(pa));
        }
        self.bus.mmu.insert(va, len, Backing::Device(pa))
    }

    fn map_host(&mut self, va: DeviceVa, memory: HostRange) -> Result<(), MapError> {
        self.bus
            .mmu
            .insert(va, memory.len() as u64, Backing::Host(memory))
    }

    fn unmap(&mut self, va: DeviceVa) {
        // False after a hard reset, which unmapped it.
        self.bus.mmu.unmap(va);
    }

    fn discard(&mut self, pa: DevicePa, len: u64) -> Result<(), Errno> {
        self.dram().discard(pa, len)
    }

    fn memory_file(&self) -> Option<&Memfd> {
        self.dram().memfd()
    }

    fn expose(&mut self, pa: DevicePa, len: u64) {
        self.dram().expose(pa, len);
    }

    fn submit(&mut self, tag: u64, jobs: &[Job]) -> Result<(), PushError> {
        for (nth, &Job { queue, va, len }) in jobs.iter().enumerate() {
            if let Err(error) = self.push_cb(queue, Cb { va, len, tag }) {
                for job in jobs.iter().take(nth) {
                    self.take_back(job.queue);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn run(&mut self, budget: u64) -> bool {
        Chip::run(self, budget) == RunOutcome::Budget
    }

    fn step(&mut self) -> Option<u64> {
        let before = self.counters().bytes();
        Chip::step(self)?;
        Some(self.counters().bytes() - before)
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        Some(report(Chip::next_event(self)?))
    }

    fn is_idle(&self, queue: QueueId) -> bool {
        self.queue_is_idle(queue)
    }

    fn has_completed(&mut self) -> bool {
        Chip::is_idle(self)
    }

    fn clear_sob(&mut self, sob: u32) -> Result<(), Errno> {
        self.set_sob(0, sob, SobUpdate::set(0)).ok_or(Errno::EINVAL)
    }

    fn attach_faults(&mut self, rules: &Arc<ChipRules>) -> bool {
        Chip::attach_faults(self, rules);
        true
    }

    fn restart(&mut self, order: Option<u64>) -> Result<(), Errno> {
        Chip::restart(self, order.map_or(Mode::Running, |seed| Mode::Stepped { seed }))
    }

    fn reset(&mut self, depth: Reset) -> Result<(), Errno> {
        Chip::reset(self, depth)
    }
}

/// The event in the words of drivers.
fn report(event: Event) -> EngineEvent {
    match event {
        Event::CbDone { queue, tag } => EngineEvent::Done { queue, tag },
        Event::Interrupt { vector } => EngineEvent::Interrupt { vector },
        Event::Stop(stop) => {
            let undefined = matches!(stop.reason, StopReason::Malformed(_));
            if undefined || matches!(stop.reason, StopReason::Asked | StopReason::UpperOverflow) {
                EngineEvent::QueueError {
                    queue: stop.queue,
                    undefined,
                    fetched: stop.lower,
                    text: stop.to_string(),
                }
            } else {
                EngineEvent::Note(stop.to_string())
            }
        }
        Event::PageFault(fault) => EngineEvent::PageFault {
            address: fault.address,
            text: format!(
                "queue {} met {:?} of {}, which is not mapped, at offset {:#x} of command buffer {}",
                fault.queue, fault.access, fault.address, fault.offset, fault.tag
            ),
        },
        Event::Razwi { queue, address } => EngineEvent::Razwi {
            queue,
            address,
            text: format!("a router refused queue {queue} a write to {address}"),
        },
        Event::MonitorFault {
            dcore,
            monitor,
            address,
            cause,
        } => {
            let text = format!("monitor {monitor} could not write to {address}: {cause:?}");
            match cause {
                FaultCause::NotMapped => EngineEvent::SyncFault { dcore, address, text },
                _ => EngineEvent::Note(text),
            }
        }
        Event::DoneTwice { queue, tag } => {
            EngineEvent::Note(format!("queue {queue} completed command buffer {tag} once more"))
        }
        Event::Injected(error) => EngineEvent::Injected(error),
        Event::Unsupported { address, value, what } => {
            EngineEvent::Note(format!("{what} was asked for by writing {value:#x} to {address}"))
        }
    }
}
