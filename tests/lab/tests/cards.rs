//! The real driver on two modelled Gaudi2 at once, and bytes from the one's memory to the other's.

mod far;
mod opened;

use gaudi_device::{Deadline, Device};
use gaudi_lab::rxe::{Build, skips, skips_verbs};
use gaudi_lab::{card, kernel, skip};
use gaudi_remote::Policy;
use gaudi_seam::DeviceSpec;

use opened::{perf, wait_until_free};

const CARDS: [&str; 2] = ["kernel:0", "kernel:1"];

/// Waits until nobody has a card.
fn both_are_free() {
    for text in CARDS {
        wait_until_free(&text.parse().expect("a spec"));
    }
}

/// Whether a test of two cards and a NIC must be skipped; counts it. Else they are ready.
fn skips_chain(test: &str) -> bool {
    let need = "Linux 7.0 or newer: Debian's older kernels have no peer-to-peer DMA (CONFIG_PCI_P2PDMA)";
    if skips(test) || skips_verbs(test) || (kernel() < (7, 0) && skip(test, need)) {
        return true;
    }
    card::load(&[]);
    far::rxe0(Build::Patched);
    both_are_free();
    false
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn gaudi_perf_measures_from_card_to_card() {
    if skips_chain("gaudi_perf_measures_from_card_to_card") {
        return;
    }
    perf("write", CARDS);
    both_are_free();
    perf("read", CARDS);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn endpoints_put_and_get_from_card_to_card() {
    if skips_chain("endpoints_put_and_get_from_card_to_card") {
        return;
    }
    let (mut a, mut b) = far::pair_on(CARDS, [Policy::Require; 2]);
    let (ours, theirs) = far::there_and_back(&mut a, &mut b);
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn two_cards_hold_bytes_of_their_own() {
    card::load(&[]);
    both_are_free();
    let devices = CARDS.map(|text| {
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
