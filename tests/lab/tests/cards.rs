//! The real driver on two modelled Gaudi2 at once.

use gaudi_device::{Deadline, Device};
use gaudi_lab::card;
use gaudi_seam::DeviceSpec;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn two_cards_hold_bytes_of_their_own() {
    card::load(&[]);
    let devices = ["kernel:0", "kernel:1"].map(|text| {
        let spec: DeviceSpec = text.parse().expect("a spec");
        Device::open(&spec).unwrap_or_else(|error| panic!("{text} opens: {error}"))
    });
    // Both are written before either is read.
    let filled = devices.each_ref().map(|device| {
        let buffer = device.alloc(1 << 20).expect("device memory");
        let host = device.alloc_host(1 << 20).expect("host memory");
        (buffer, host)
    });
    for ((device, (buffer, host)), value) in devices.iter().zip(&filled).zip([0x5a, 0xc3]) {
        host.fill(0, 1 << 20, value).expect("it fits");
        device
            .copy(buffer, host)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("up");
    }
    for ((device, (buffer, host)), value) in devices.iter().zip(&filled).zip([0x5a, 0xc3]) {
        host.fill(0, 1 << 20, 0).expect("it fits");
        device
            .copy(host, buffer)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("down");
        let mut got = vec![0; 1 << 20];
        host.read(0, &mut got).expect("it fits");
        assert!(got.iter().all(|&byte| byte == value), "each card has its own");
    }
}
