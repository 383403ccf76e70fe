//! The programs and the endpoints of this project between two modelled Gaudi2, on the real driver
//! and on libibverbs.

mod first_card;
mod nodes;

use std::fs;

use gaudi_lab::rxe::{Build, skips, skips_verbs};
use gaudi_lab::{card, kernel, skip, stdout_of};
use gaudi_remote::Policy;

use first_card::{perf, wait_until_free};

const CARDS: [&str; 2] = ["kernel:0", "kernel:1"];

/// Waits until no process has a card open.
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
    nodes::rxe0(Build::Patched);
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
fn endpoints_transfer_between_cards() {
    if skips_chain("endpoints_transfer_between_cards") {
        return;
    }
    let (mut a, mut b) = nodes::pair_on(CARDS, [Policy::Require; 2]);
    let (ours, theirs) = nodes::there_and_back(&mut a, &mut b);
    a.end(vec![ours]);
    b.end(vec![theirs]);
}

/// As its user runs it: two processes, a card each, and a NIC between them.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn demo_moves_a_file_between_cards() {
    const NAME: &str = "demo_moves_a_file_between_cards";
    if skips_chain(NAME) {
        return;
    }
    // More than a chunk of it, and not a whole number of pages.
    let (sent, got) = ("/tmp/sent", "/tmp/got");
    let bytes: Vec<u8> = (0..(9 << 20) + 77_u32)
        .map(|at| (at >> 3) as u8 ^ at as u8)
        .collect();
    fs::write(sent, &bytes).expect("a file");
    let stdout = stdout_of(&[
        "gaudi", "demo", "-d", "kernel:0", "-d", "kernel:1", "--nic", "rxe0", "--file", sent, "--save", got,
    ]);
    for words in [
        "accel0 (kernel)",
        "accel1 (kernel)",
        "exporter          habanalabs",
        "rxe0 (libibverbs, software on eth0)",
        "9 437 261 bytes went from device A to device B and are the same",
        "software: the NIC is this processor's work",
    ] {
        assert!(stdout.contains(words), "it must say {words:?}");
    }
    assert!(fs::read(got).expect("what B saved") == bytes, "byte for byte");
}

/// The example that the tutorial ends with, word for word: two cards, and a NIC of libibverbs.
#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_example_goes_from_card_to_card() {
    if skips_chain("the_example_goes_from_card_to_card") {
        return;
    }
    let stdout = stdout_of(&["device_to_device", "kernel:0", "kernel:1", "rxe0"]);
    assert!(stdout.contains("1048576 bytes by dma-buf"), "{stdout}");
}
