//! A device with a fault layer in its spec.

use std::os::fd::AsFd as _;

use gaudi_device::{Deadline, Device, ErrorKind};
use gaudi_seam::{InfoRequest, KernelIoExt as _};
use gaudi_uapi::info::{HlInfoRazwiEvent, InfoOp, MockFault, NotifierEvents as Events, RazwiFlags};
use nix::sys::eventfd::EventFd;

#[test]
fn device_reports_fault_rules_that_never_fired() {
    let spec = "mock:gaudi2?name=device-faults+fault=wait_cs:when=1:delay=1us;submit:when=900:error=EIO";
    let device = Device::open(&spec.parse().expect("a spec")).expect("opens");
    let (buffer, host) = (
        device.alloc(4096).expect("allocated"),
        device.alloc_host(4096).expect("allocated"),
    );
    let copy = device.copy(&buffer, &host).expect("submitted");
    copy.wait(Deadline::NEVER).expect("done");
    let handles = device.fault_handles();
    let [handle] = &handles[..] else {
        panic!("one layer: {handles:?}")
    };
    let unfired: Vec<String> = handle.unfired().iter().map(ToString::to_string).collect();
    assert_eq!(unfired, ["submit:when=900:error=EIO"]);
}

/// Opens a mock with a plan, and copies 1 MiB to it and back. Returns the counts of fired rules,
/// and whether the bytes arrived.
fn copied(name: &str, plan: &str) -> (Vec<u64>, gaudi_seam::Result<bool>) {
    let spec = format!("mock:gaudi2?name=chip-{name}+fault={plan}");
    let device = Device::open(&spec.parse().expect("a spec")).expect("opens");
    let (buffer, source) = (
        device.alloc(1 << 20).expect("allocated"),
        device.alloc_host(1 << 20).expect("allocated"),
    );
    let back = device.alloc_host(1 << 20).expect("allocated");
    let sent: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    source.write(0, &sent).expect("in range");
    let deadline = || Deadline::from(std::time::Duration::from_secs(2));
    let done = (|| {
        device.copy(&buffer, &source)?.wait(deadline())?;
        device.copy(&back, &buffer)?.wait(deadline())?;
        let mut seen = vec![0; sent.len()];
        back.read(0, &mut seen)?;
        Ok(seen == sent)
    })();
    let handles = device.fault_handles();
    let fired = handles[0].rules().iter().map(|count| count.fired).collect();
    (fired, done)
}

/// Rules for the chip reach the mock's chip through the layer, and their counts come back.
#[test]
fn chip_rules_reach_the_mock() {
    let (fired, same) = copied("none", "chip.packet:when=900:lose");
    assert_eq!((fired, same.expect("copied")), (vec![0], true));
    let (fired, same) = copied("flip", "chip.dma:when=1:flip=77;info:when=900:error=EIO");
    assert_eq!(
        (fired, same.expect("copied")),
        (vec![0, 1], false),
        "a bit is wrong"
    );
    let (fired, reset) = copied("ecc", "chip.dma:when=1:ecc=fatal");
    assert_eq!(fired, [1]);
    reset.expect_err("the driver resets the chip");
    let (fired, reset) = copied("razwi", "chip.dma:when=1:razwi");
    assert_eq!(fired, [1]);
    reset.expect_err("the driver resets the chip");
    let (fired, same) = copied("late", "chip.completion:when=1:late=9");
    assert_eq!(
        (fired, same.expect("completes when the chip is idle")),
        (vec![1], true)
    );
}

/// With a notifier the reset waits for the program, which reads the record.
#[test]
fn driver_records_first_razwi() {
    let spec = "mock:gaudi2?name=razwi&clock=virtual+fault=chip.dma:when=1:razwi";
    let device = Device::open(&spec.parse().expect("a spec")).expect("opens");
    let eventfd = EventFd::new().expect("an eventfd");
    device.io().register_events(eventfd.as_fd()).expect("registered");
    let buffer = device.alloc(4096).expect("allocated");
    let filled = device
        .fill(&buffer, 1)
        .and_then(|fill| fill.wait(Deadline::NEVER));
    let error = filled.expect_err("the access is refused");
    assert!(
        matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset),
        "{error}"
    );
    let mut events = [0; 8];
    let request = InfoRequest::new(InfoOp::GET_EVENTS);
    device.io().info(request, &mut events).expect("answered");
    let events = Events(u64::from_le_bytes(events));
    assert_eq!(
        events,
        Events::USER_ENGINE_ERR | Events::RAZWI | Events::DEVICE_RESET
    );
    let record = || device.io().query::<HlInfoRazwiEvent>().expect("answered");
    let first = record();
    assert_eq!(
        (first.addr, first.num_of_possible_engines, first.flags),
        (buffer.address().0, 1, RazwiFlags::WRITE | RazwiFlags::HBW)
    );
    let request = InfoRequest {
        op: InfoOp::MOCK_FAULT,
        arg: MockFault::Razwi as u32,
    };
    device.io().info(request, &mut []).expect("a second one");
    assert_eq!(record(), first, "the first one stays");
}

#[test]
fn chip_rule_is_armed_by_handle() {
    let spec = "mock:gaudi2?name=chip-handle+fault=submit:when=900:error=EIO";
    let device = Device::open(&spec.parse().expect("a spec")).expect("opens");
    let (buffer, host) = (
        device.alloc(4096).expect("allocated"),
        device.alloc_host(4096).expect("allocated"),
    );
    let armed = device.fault_handles()[0].arm("chip.dma:ecc".parse().expect("a rule"));
    let copy = || {
        device
            .copy(&buffer, &host)
            .and_then(|copy| copy.wait(Deadline::NEVER))
    };
    copy().expect("a corrected error");
    let fired = armed.fired();
    assert!(fired > 0);
    drop(armed);
    copy().expect("copied");
    let counts = device.fault_handles()[0].rules();
    assert_eq!(counts.len(), 1, "the rule is disarmed: {counts:?}");
}
