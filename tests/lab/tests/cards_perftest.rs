//! perftest with `--use_hl`, as its user built it, on the installed `libhl-thunk.so`: between two
//! modelled Gaudi2.
//!
//! perftest does not initialize a card's memory, so each test first fills the page that the driver
//! gives its next user. The host reads the memory of both cards past the driver.

mod first_card;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_lab::nic::pattern;
use gaudi_lab::rxe::{self, Build, skips, skips_verbs};
use gaudi_lab::{card, kernel, skip};

use first_card::wait_until_free;

/// Where the lab puts the programs of `PEER_PERFTEST`, and below it the installed libraries.
const FOLDER: &str = "/opt/perftest";
/// The library with the registration that soft-RoCE's provider lacks (examples/reg_dmabuf_mr.rs).
const PRELOAD: &str = "/lab/bin/libreg_dmabuf_mr.so";
/// Bytes of a card's memory with a pattern: more than perftest uses.
const LEN: usize = 1 << 20;
/// Bytes of a message; a multiple of the pages and chunks below perftest.
const SIZE: usize = 64 << 10;
/// What perftest aligns its buffers to.
const ALIGNMENT: usize = 64;
const CARDS: [&str; 2] = ["kernel:0", "kernel:1"];
/// How long one of the programs may take.
const MAX_WAIT: Duration = Duration::from_secs(240);

fn skips_perftest(test: &str) -> bool {
    let old = "Linux 7.0 or newer: Debian's older kernels have no peer-to-peer DMA (CONFIG_PCI_P2PDMA)";
    let peer = "PEER_PERFTEST=DIR, a folder with ib_write_bw, ib_read_bw and ib_send_bw of a perftest \
                configured with --enable-hl: Debian's has no --use_hl";
    skips(test)
        || skips_verbs(test)
        || (kernel() < (7, 0) && skip(test, old))
        || (!Path::new(FOLDER).exists() && skip(test, peer))
}

/// Fills the page of each card's memory that its next user gets. Returns the pages' places in the
/// memory.
fn filled(seeds: [u8; 2]) -> [u64; 2] {
    let mut places = [0; 2];
    for (number, spec) in CARDS.into_iter().enumerate() {
        let spec = spec.parse().expect("a spec");
        wait_until_free(&spec);
        let device = Device::open(&spec).expect("the card opens");
        let buffer = device.alloc_exclusive(LEN as u64).expect("device memory");
        let card = u8::try_from(number).expect("two cards");
        places[number] = card::place(card, |mark| device.write(&buffer, 0, mark).expect("marked"));
        let bytes = pattern(seeds[number], LEN);
        device.write(&buffer, 0, &bytes).expect("filled");
        buffer.close().expect("freed");
        drop(device);
        wait_until_free(&spec);
        assert!(
            card::hbm(card, places[number], LEN) == bytes,
            "card {number}: a reset leaves the card's memory as it is"
        );
    }
    places
}

fn bus_id(card: usize) -> String {
    let device = fs::canonicalize(format!("/sys/class/accel/accel{card}/device"));
    let name = device
        .expect("a card of the driver")
        .file_name()
        .map(ToOwned::to_owned);
    name.and_then(|name| name.into_string().ok()).expect("a bus id")
}

fn start(program: &str, gid: u8, card: usize, more: &[&str]) -> Child {
    Command::new(format!("{FOLDER}/{program}"))
        .env("LD_LIBRARY_PATH", format!("{FOLDER}/lib"))
        .env("LD_PRELOAD", PRELOAD)
        .args(["-d", "rxe0", "-F", "-n", "16", "-x", &gid.to_string()])
        .args(["-s", &SIZE.to_string(), &format!("--use_hl={}", bus_id(card))])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("perftest runs")
}

/// Waits for a program's end and requires that it succeeded.
fn ends(what: &str, mut child: Child) {
    let begin = Instant::now();
    while child.try_wait().expect("it is a child").is_none() {
        if begin.elapsed() > MAX_WAIT {
            child.kill().expect("it is a child");
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().expect("it ended");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{what}: {}\n{out}{err}", output.status);
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
}

/// Runs perftest from card 0 to card 1. Requires that one message of `from`'s memory is in `to`'s,
/// and no other byte of the two changed.
fn moves(program: &str, from: u8, to: u8) {
    card::load(&[]);
    let (gid, _) = rxe::device(Build::Patched, "rxe0", "eth0", "10.77.0.1");
    let seeds = [0x31, 0xc7];
    let places = filled(seeds);
    let server = start(program, gid, 1, &[]);
    std::thread::sleep(Duration::from_secs(5)); // it opens its card, then listens
    let client = start(program, gid, 0, &["127.0.0.1"]);
    ends("the client", client);
    ends("the server", server);

    let of = |card: u8| {
        let number = usize::from(card);
        (card::hbm(card, places[number], LEN), pattern(seeds[number], LEN))
    };
    let (seen, sent) = of(from);
    assert!(seen == sent, "{program}: card {from}, whose memory is only read");
    let (seen, before) = of(to);
    let first = seen.iter().zip(&before).position(|(seen, before)| seen != before);
    // A byte of the message may be the byte that was there.
    let start = first.expect("the other card's memory changed") & !(ALIGNMENT - 1);
    let message = &seen[start..start + SIZE];
    let source = sent
        .chunks(ALIGNMENT)
        .position(|chunk| message.starts_with(chunk));
    let source = source.expect("the message begins with bytes of the other card") * ALIGNMENT;
    assert!(
        message == &sent[source..source + SIZE],
        "{program}: {SIZE} bytes at {start} of card {to} are those at {source} of card {from}"
    );
    let rest = [0..start, start + SIZE..LEN];
    for range in rest {
        assert!(
            seen[range.clone()] == before[range.clone()],
            "{program}: no byte of card {to} changed in {range:?}"
        );
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn perftest_writes_from_card_to_card() {
    if !skips_perftest("perftest_writes_from_card_to_card") {
        moves("ib_write_bw", 0, 1);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn perftest_reads_from_card_to_card() {
    if !skips_perftest("perftest_reads_from_card_to_card") {
        moves("ib_read_bw", 1, 0);
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn perftest_sends_from_card_to_card() {
    if !skips_perftest("perftest_sends_from_card_to_card") {
        moves("ib_send_bw", 0, 1);
    }
}
