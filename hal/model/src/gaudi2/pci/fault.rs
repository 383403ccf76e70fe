//! Errors of engines: the registers that they set, and the events that the firmware sends.

use gaudi_seam::engine::ChipError;
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::firmware::event;
use gaudi_spec::gaudi2::mmu::{self, Mmu};
use gaudi_spec::gaudi2::{ASIC, DCORE_STRIDE, qman, queue, router, sync};
use gaudi_spec::{DeviceVa, QueueId};

use super::chip::PciChip;
use crate::gaudi2::event::{Event, FaultCause, Stop, StopReason};
use crate::gaudi2::space::is_drivers;

impl PciChip {
    /// Reports an engine's event to the driver, if the firmware has an event for it.
    pub(super) fn report_to_driver(&mut self, event: &Event) {
        match event {
            Event::PageFault(fault) => self.page_fault(fault.address),
            Event::Stop(stop) => self.stopped(stop),
            Event::Razwi { queue, address } => self.refused(*queue, *address),
            Event::MonitorFault {
                dcore,
                monitor,
                address,
                cause: FaultCause::NotMapped,
            } => {
                // The driver's own monitors pass the MMU by.
                if !is_drivers(*dcore, *monitor) {
                    self.page_fault(*address);
                }
                self.monitor_failed(*dcore);
            }
            // gaudi2.c `gaudi2_handle_eqe`; guess: an ECC event without an address.
            Event::Injected(ChipError::CorrectedEcc) => {
                self.send_event(ASIC.events.corrected_error, &[0; 7]);
            }
            Event::Injected(ChipError::Ecc) => {
                self.send_event(ASIC.events.uncorrected_error, &[0; 7]);
            }
            Event::Injected(ChipError::Heartbeat) => self.hang_firmware(),
            _ => {}
        }
    }

    // The first fault stays until the driver has taken it.
    fn page_fault(&mut self, address: DeviceVa) {
        let (stlb, va, event) = match self.stacks.mmu(address) {
            Some(Mmu::Hbm(_)) => (
                mmu::HMMU_STLB,
                self.stacks.scramble(address.get()),
                event::HMMU0_PAGE_FAULT,
            ),
            _ => (mmu::PMMU_STLB, address.get(), event::PMMU_PAGE_FAULT),
        };
        let register = |offset| stlb - mmu::MMU_BEFORE_STLB + offset;
        if self.kept(register(mmu::PAGE_ERROR_VALID)) & 1 == 0 {
            self.keep(register(mmu::PAGE_ERROR_VA_63_32), (va >> 32) as u32);
            self.keep(register(mmu::PAGE_ERROR_VA_31_0), va as u32);
            self.keep(register(mmu::PAGE_ERROR_VALID), 1);
        }
        let causes = self.kept(register(mmu::SPI_SEI_CAUSE)) | 1;
        self.keep(register(mmu::SPI_SEI_CAUSE), causes);
        self.send_event(event, &[0; 7]);
    }

    // The first refusal stays until the driver has taken it.
    fn refused(&mut self, queue: QueueId, address: DeviceVa) {
        let row = queue::row(queue).expect("a queue whose engine moves data has a row");
        let routed = router::of(&row).zip((ASIC.events.razwi)(&row));
        let Some((block, (event, _))) = routed else { return };
        if self.kept(block + router::WRITE_REFUSED) & 1 == 0 {
            self.keep(block + router::WRITE_ADDRESS_63_32, (address.get() >> 32) as u32);
            self.keep(block + router::WRITE_ADDRESS_31_0, address.get() as u32);
            self.keep(block + router::WRITE_REFUSED, 1);
        }
        self.send_event(event, &[0; 7]);
    }

    // A monitor's write was answered with an error. guess: the log beside the cause, which the
    // driver calls an "AXI id", is 0.
    fn monitor_failed(&mut self, dcore: u32) {
        let register = sync::GLBL + sync::SM_SEI_CAUSE + dcore * DCORE_STRIDE;
        let causes = self.kept(register) | sync::SEI_WRITE_ERROR;
        self.keep(register, causes);
        self.send_event(event::SM0_AXI_ERROR + dcore as u16, &[0; 7]);
    }

    fn stopped(&mut self, stop: &Stop) {
        let row = queue::row(stop.queue).expect("a queue that stopped has a row");
        let processor = match stop.lower {
            Some(_) => qman::LOWER_CP,
            None => u32::from(row.stream),
        };
        // `source: inferred`: what the chip cannot do for another reason than an opcode, it stops
        // at as at one.
        let cause = match stop.reason {
            StopReason::Asked => qman::ERR_STOP,
            StopReason::UnknownRegister(_) => qman::ERR_WREG,
            _ => qman::ERR_UNDEFINED,
        };
        if let Some((at, bytes)) = stop.lower {
            for (register, value) in [
                (qman::CQ_PTR_LO_STS, at.get() as u32),
                (qman::CQ_PTR_HI_STS, (at.get() >> 32) as u32),
                (qman::CQ_TSIZE_STS, bytes),
            ] {
                self.keep(row.qman + register + qman::LOWER_CP * 4, value);
            }
        }
        let status = row.qman + qman::GLBL_ERR_STS + processor * 4;
        let causes = self.kept(status) | cause;
        self.keep(status, causes);
        if matches!(row.engine, QueueEngine::Pdma | QueueEngine::Edma) {
            if let Some(event) = (ASIC.events.queue_error)(&row) {
                self.send_event(event, &[0; 7]);
            }
        }
    }
}
