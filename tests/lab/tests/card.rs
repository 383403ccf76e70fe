//! The real driver on a modelled Gaudi2: probe, memory, submissions, reset, module removal, and every conformance case.
//!
//! One test at a time, in the order of their names.

mod opened;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use gaudi_conformance::{Outcome, cases};
use gaudi_device::{Deadline, Device};
use gaudi_lab::{card, skip};
use gaudi_seam::{CbCreate, CsRequest, MmapRequest};
use gaudi_spec::DeviceVa;
use gaudi_spec::gaudi2::packet::{Encoder, Fence, LinDma, SliceSink};
use gaudi_spec::gaudi2::{HOST_VA, queue};
use gaudi_uapi::cs::HlCsChunk;

use opened::{TIMEOUT, open, spec};

/// Set in a child of this program that is to break the card, to how.
const BREAK: &str = "GAUDI_LAB_BREAK";
/// An address of host memory that the driver gives to nobody without being asked for it.
const HOLE: DeviceVa = DeviceVa(HOST_VA.start.0 + 0x7000_0000_1000);
/// Bytes go up, across and down, and are compared.
fn round_trip(device: &Device, size: u64, seed: u8) {
    let len = usize::try_from(size).expect("a length");
    let (one, other) = (
        device.alloc(size).expect("device memory"),
        device.alloc(size).expect("device memory"),
    );
    let (up, down) = (
        device.alloc_host(len).expect("host memory"),
        device.alloc_host(len).expect("host memory"),
    );
    let sent: Vec<u8> = (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect();
    up.write(0, &sent).expect("it fits");
    down.fill(0, len, 0).expect("it fits");
    device
        .copy(&one, &up)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("up");
    device
        .copy(&other, &one)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("across");
    device
        .copy(&down, &other)
        .expect("submitted")
        .wait(Deadline::NEVER)
        .expect("down");
    let mut got = vec![0; len];
    down.read(0, &mut got).expect("it fits");
    assert!(got == sent, "{size} bytes came back as they went");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn a_stock_driver_finds_the_card() {
    let done = card::load(&[TIMEOUT]);
    println!("the driver's open bug: {done}");
    let log = card::log();
    assert!(
        log.contains("Successfully added device"),
        "the driver has the card: {log}"
    );
    assert_eq!(
        card::taint(),
        0,
        "the module is the one that Debian signed, and nothing else is loaded"
    );
    let output = gaudi_lab::run(&["gaudi", "list", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("kernel:0") && text.contains("gaudi2"),
        "gaudi list has it: {text}"
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn bytes_come_back_as_they_went() {
    let device = open();
    for (size, seed) in [(1, 1), (4097, 2), (1 << 20, 3), ((3 << 20) + 13, 4)] {
        round_trip(&device, size, seed);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn ten_thousand_submissions_in_a_row() {
    let device = open();
    let buffer = device.alloc(4096).expect("device memory");
    let (up, down) = (
        device.alloc_host(4096).expect("host memory"),
        device.alloc_host(4096).expect("host memory"),
    );
    let begin = Instant::now();
    // Two submissions a turn; the rings go round more than once.
    for turn in 0..5000u32 {
        let word = turn.wrapping_mul(0x9e37_79b9).to_le_bytes();
        up.write(0, &word).expect("it fits");
        device
            .copy(&buffer, &up)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("up");
        device
            .copy(&down, &buffer)
            .expect("submitted")
            .wait(Deadline::NEVER)
            .expect("down");
        let mut got = [0; 4];
        down.read(0, &mut got).expect("it fits");
        assert_eq!(got, word, "turn {turn}");
    }
    println!("10000 submissions in {:.1} s", begin.elapsed().as_secs_f64());
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_heartbeat_is_answered() {
    let device = open();
    let from = card::log().len();
    // The driver asks every 10 s (habanalabs.h HL_HEARTBEAT_PER_USEC) and resets a card that does not answer.
    std::thread::sleep(Duration::from_secs(61));
    let log = card::log();
    let new = log.get(from..).unwrap_or_default();
    assert!(
        !new.contains("reset") && !new.contains("heartbeat"),
        "the card lives: {new}"
    );
    round_trip(&device, 4096, 5);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn the_module_goes_and_comes() {
    drop(open());
    card::unload();
    assert!(!gaudi_lab::is_loaded("habanalabs"), "it is gone");
    round_trip(&open(), 4096, 6);
}

/// Runs in a process of its own, which the driver kills.
fn break_the_card(how: &str) -> ! {
    let io = gaudi_hal::open(&spec()).expect("the card opens");
    let handle = io
        .cb_create(CbCreate {
            size: 4096,
            map_to_device: true,
        })
        .expect("a command buffer");
    let va = io
        .cb_info(handle, true)
        .expect("its state")
        .device_va
        .expect("its address");
    let memory = io
        .mmap(MmapRequest {
            offset: handle.0,
            len: 4096,
        })
        .expect("mapped");
    let mut bytes = [0; 64];
    let mut sink = SliceSink::new(&mut bytes);
    let mut program = Encoder::new(&mut sink);
    if how == "hang" {
        let fence = Fence::new(0, 1, 1).expect("a fence that nobody will release");
        program.fence(fence).expect("it fits");
    } else {
        let copy = LinDma::copy(DeviceVa(va.0 + 1024), HOLE, 64);
        program.lin_dma(copy).expect("it fits");
    }
    let len = u32::try_from(sink.used()).expect("short");
    memory.write(0, &bytes).expect("it fits");
    let chunk = HlCsChunk::user(queue::PDMA_0_0.0, va.0, len);
    io.submit(&CsRequest {
        execute: &[chunk],
        ..CsRequest::default()
    })
    .expect("submitted");
    std::thread::sleep(Duration::from_secs(600));
    panic!("the driver ends whoever breaks the card");
}

/// Breaks the card in a child, which is this very test once more and which the driver kills; afterwards the card works. What the driver
/// said meanwhile.
fn broken(test: &str, how: &str) -> String {
    if let Ok(how) = std::env::var(BREAK) {
        break_the_card(&how);
    }
    drop(open());
    let from = card::log().len();
    let child = std::env::current_exe().expect("this program");
    // Its words are kept: the harness that reads ours would take them for tests.
    let output = Command::new(child)
        .args(["--exact", test, "--include-ignored"])
        .env(BREAK, how)
        .output()
        .expect("the child runs");
    assert_eq!(
        output.status.signal(),
        Some(9),
        "the driver kills the user of a card that it resets: {output:?}"
    );
    card::wait_for("Successfully finished resetting", from);
    round_trip(&open(), 1 << 20, 7);
    card::log().get(from..).unwrap_or_default().to_owned()
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn a_hang_ends_in_a_reset_and_the_card_works() {
    let log = broken("a_hang_ends_in_a_reset_and_the_card_works", "hang");
    assert!(
        log.contains("has not finished in"),
        "the driver found the submission stuck: {log}"
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn a_page_fault_is_told_to_the_driver_and_ends_in_a_reset() {
    let log = broken("a_page_fault_is_told_to_the_driver_and_ends_in_a_reset", "fault");
    let told = format!("PMMU page fault on va {:#x}", HOLE.0);
    assert!(log.contains(&told), "{told:?}: {log}");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn zz_the_conformance_cases_hold() {
    drop(open());
    let mut failed = Vec::new();
    let mut counts = BTreeMap::new();
    let mut slowest = Vec::new();
    let begin = Instant::now();
    let report = gaudi_conformance::run(&spec(), cases::all(), |row| {
        *counts.entry(row.outcome.word()).or_insert(0) += 1;
        slowest.push((row.took_us, row.id));
        match &row.outcome {
            Outcome::Failed(failure) => failed.push(format!("{} ({}): {failure}", row.id, row.source)),
            Outcome::Skipped { need: why } | Outcome::Unsupported { why } => {
                skip(&format!("conformance {}", row.id), why);
            }
            Outcome::Passed | Outcome::ExpectedFailure { .. } => {}
        }
    });
    report.expect("the cases run");
    slowest.sort_unstable();
    println!(
        "conformance on {}: {counts:?} in {:.0} s; the slowest, in microseconds: {:?}",
        spec(),
        begin.elapsed().as_secs_f64(),
        slowest.iter().rev().take(5).collect::<Vec<_>>()
    );
    assert!(
        failed.is_empty(),
        "cases that the real driver answers otherwise: {failed:#?}"
    );
}
