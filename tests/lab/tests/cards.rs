//! The real driver on two modelled Gaudi2 at once.

use std::fs;

use gaudi_device::{Deadline, Device};
use gaudi_lab::rxe::{self, Build, skips, skips_verbs};
use gaudi_lab::{card, kernel, run};
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

/// As its user runs it: two processes, a card each, and a NIC between them.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_demo_carries_a_file_from_card_to_card() {
    const NAME: &str = "the_demo_carries_a_file_from_card_to_card";
    if skips(NAME) || skips_verbs(NAME) {
        return;
    }
    card::load(&[]);
    rxe::device(Build::Patched, "rxe0", "eth0", "10.77.0.1");
    // More than a chunk of it, and not a whole number of pages.
    let (sent, got) = ("/tmp/sent", "/tmp/got");
    let bytes: Vec<u8> = (0..(9 << 20) + 77_u32)
        .map(|at| (at >> 3) as u8 ^ at as u8)
        .collect();
    fs::write(sent, &bytes).expect("a file");
    let output = run(&[
        "gaudi", "demo", "-d", "kernel:0", "-d", "kernel:1", "--nic", "rxe0", "--file", sent, "--save", got,
    ]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, cried) = (text(&output.stdout), text(&output.stderr));
    println!("{said}{cried}");
    if kernel() < (7, 0) {
        assert!(!output.status.success(), "{said}");
        assert!(
            cried.contains("EPERM"),
            "no peer-to-peer DMA, common/memory.c:1724: {cried}"
        );
        return;
    }
    assert!(output.status.success(), "{cried}");
    for words in [
        "accel0 (kernel)",
        "accel1 (kernel)",
        "(habanalabs)",
        "rxe0 (libibverbs, software on eth0)",
        "9 437 261 bytes went from device A to device B and are the same, by a NIC in software",
    ] {
        assert!(said.contains(words), "it must say {words:?}");
    }
    assert!(fs::read(got).expect("what B saved") == bytes, "byte for byte");
}
