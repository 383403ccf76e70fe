//! Errors that a program injects through the mock's own INFO operation.

use std::os::fd::AsFd as _;

use gaudi_seam::{Clock, Errno, InfoRequest, KernelIo, KernelIoExt as _, MockSpec, Result};
use gaudi_spec::gaudi2::{CFG_BASE, DRAM_PAGE};
use gaudi_uapi::info::{
    ClkThrottle, DeviceStatus, FwErrType, HlInfoClkThrottle, HlInfoDeviceStatus, HlInfoEngineErrEvent,
    HlInfoFwErrEvent, HlInfoHwErrEvent, HlInfoRazwiEvent, HlInfoResetCount, InfoOp, MockFault,
    NotifierEvents as Events, RazwiFlags,
};
use nix::sys::eventfd::{EfdFlags, EventFd};

fn spec(name: &str) -> MockSpec {
    MockSpec {
        name: name.to_owned(),
        dram: DRAM_PAGE,
        clock: Clock::Virtual,
        ..MockSpec::default()
    }
}

fn inject(io: &dyn KernelIo, word: u32) -> Result<u32> {
    let request = InfoRequest {
        op: InfoOp::MOCK_FAULT,
        arg: word,
    };
    io.info(request, &mut [])
}

fn status(io: &dyn KernelIo) -> DeviceStatus {
    io.query::<HlInfoDeviceStatus>().unwrap().status
}

/// Injects an error while an eventfd is registered, so that a reset waits for the close. Returns
/// the node, the event and the notified mask.
fn notified(spec: &MockSpec, fault: MockFault) -> (std::sync::Arc<dyn KernelIo>, u32, Events) {
    let io = gaudi_mock::open(spec).unwrap();
    let eventfd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    io.register_events(eventfd.as_fd()).unwrap();
    let event = inject(&*io, fault as u32).unwrap();
    let mut mask = [0; 8];
    io.info(InfoRequest::new(InfoOp::GET_EVENTS), &mut mask).unwrap();
    (io, event, Events(u64::from_le_bytes(mask)))
}

#[test]
fn non_fatal_event_is_counted_only() {
    let (io, event, mask) = notified(&spec("inject-soft"), MockFault::NonFatalEvent);
    assert_eq!((event, mask), (38, Events::GENERAL_HW_ERR), "TPC0_ECC_SERR");
    assert_eq!(status(&*io), DeviceStatus::OPERATIONAL);
    assert_eq!(
        io.query::<HlInfoHwErrEvent>().unwrap(),
        HlInfoHwErrEvent::default()
    );
    assert_eq!(io.query::<HlInfoResetCount>().unwrap().hard_reset_cnt, 0);
}

#[test]
fn fatal_errors_reset_after_close() {
    let fatal = Events::DEVICE_RESET | Events::GENERAL_HW_ERR | Events::CRITICL_HW_ERR;
    let heartbeat = Events::DEVICE_RESET | Events::DEVICE_UNAVAILABLE | Events::CRITICL_FW_ERR;
    for (fault, event, mask) in [
        (MockFault::FatalEvent, 63, fatal),
        (MockFault::LossOfHeartbeat, 0, heartbeat),
    ] {
        let spec = spec(&format!("inject-{event}"));
        let (io, seen, events) = notified(&spec, fault);
        assert_eq!((seen, events), (event, mask), "{fault:?}");
        let control = gaudi_mock::control(&spec).unwrap();
        let hardware = io.query::<HlInfoHwErrEvent>().unwrap();
        let firmware = io.query::<HlInfoFwErrEvent>().unwrap();
        let is_hardware = fault == MockFault::FatalEvent;
        assert_eq!(hardware.event_id, event as u16);
        assert_eq!(
            (hardware.timestamp != 0, firmware.timestamp != 0),
            (is_hardware, !is_hardware)
        );
        assert_eq!(firmware.err_type, FwErrType::HEARTBEAT_ERR);
        drop(io);
        assert_eq!(control.query::<HlInfoResetCount>().unwrap().hard_reset_cnt, 1);
        let io = gaudi_mock::open(&spec).unwrap();
        assert_eq!(status(&*io), DeviceStatus::OPERATIONAL);
    }
}

#[test]
fn fatal_event_without_notifier_resets_at_once() {
    let io = gaudi_mock::open(&spec("inject-now")).unwrap();
    inject(&*io, MockFault::FatalEvent as u32).unwrap();
    assert_eq!(status(&*io), DeviceStatus::IN_RESET);
    let again = inject(&*io, MockFault::NonFatalEvent as u32).unwrap_err();
    assert_eq!(again.errno(), Some(Errno::EBUSY));
}

#[test]
fn razwi_is_recorded_until_next_open() {
    let spec = spec("inject-razwi");
    let (io, event, mask) = notified(&spec, MockFault::Razwi);
    assert_eq!(event, 540, "PDMA_CH0_AXI_ERR_RSP");
    assert_eq!(
        mask,
        Events::USER_ENGINE_ERR | Events::RAZWI | Events::DEVICE_RESET
    );
    let first = io.query::<HlInfoRazwiEvent>().unwrap();
    assert_eq!(
        (first.addr, first.num_of_possible_engines, first.engine_id[0]),
        (CFG_BASE.0, 1, 45),
        "the first register, and PDMA_0"
    );
    assert_eq!(first.flags, RazwiFlags::WRITE | RazwiFlags::LBW);
    assert_ne!(first.timestamp, 0);
    assert_eq!(io.query::<HlInfoEngineErrEvent>().unwrap().engine_id, 45);
    let control = gaudi_mock::control(&spec).unwrap();
    drop(io);
    assert_eq!(control.query::<HlInfoResetCount>().unwrap().hard_reset_cnt, 1);
    let io = gaudi_mock::open(&spec).unwrap();
    assert_eq!(
        io.query::<HlInfoRazwiEvent>().unwrap(),
        HlInfoRazwiEvent::default()
    );
}

#[test]
fn thermal_event_throttles_until_its_end() {
    let io = gaudi_mock::open(&spec("inject-hot")).unwrap();
    let reason = || io.query::<HlInfoClkThrottle>().unwrap().clk_throttling_reason;
    assert_eq!(reason(), ClkThrottle::NONE);
    assert_eq!(inject(&*io, MockFault::ThermalEvent as u32).unwrap(), 1255);
    assert_eq!(reason(), ClkThrottle::THERMAL);
    assert_eq!(inject(&*io, MockFault::ThermalEventEnd as u32).unwrap(), 1256);
    assert_eq!(reason(), ClkThrottle::NONE);
}

#[test]
fn unknown_faults_are_refused() {
    let spec = spec("inject-unknown");
    let io = gaudi_mock::open(&spec).unwrap();
    let control = gaudi_mock::control(&spec).unwrap();
    let none = MockFault::None as u32;
    assert_eq!(inject(&*io, none).unwrap(), 0);
    for (node, word) in [(&io, 7), (&io, u32::MAX), (&control, none)] {
        let error = inject(&**node, word).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{word}");
    }
}
