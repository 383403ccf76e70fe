//! A device with a fault layer in its spec.

use gaudi_device::{Deadline, Device};

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
