//! Information needs a control node and nothing more.

use gaudi_device::{Device, DeviceSpec, Info};

#[test]
fn control_node_reports_info_without_open() {
    let spec: DeviceSpec = "mock:gaudi2?name=info&dram=3GiB".parse().expect("a spec");
    let control = gaudi_hal::control(&spec).expect("a control node");
    let free = Info::query(&*control).expect("a control node answers");
    assert_eq!((free.asic, free.device_id), (Some("gaudi2"), 0x1020));
    assert_eq!(
        (free.dram_bytes, free.dram_page_bytes, free.sram_bytes),
        (3 << 30, 768 << 20, 48 << 20)
    );
    assert_eq!(
        (free.in_use, free.opens),
        (Some(false), Some(0)),
        "looking opens no compute node"
    );
    let device = Device::open(&spec).expect("the mock opens");
    let used = Info::query(&*control).expect("a control node answers");
    assert_eq!((used.in_use, used.opens), (Some(true), Some(1)));
    assert_eq!(device.info().expect("an open device answers").dram_bytes, 3 << 30);
    assert_eq!(device.page_bytes(), 768 << 20);
    assert_eq!(
        Device::open(&spec).map(drop).map_err(|error| error.kind()),
        Err(gaudi_device::ErrorKind::Busy),
        "one user at a time"
    );
}
