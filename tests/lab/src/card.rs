//! Modelled cards in a guest, and the real driver that drives them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::run;

/// How long the driver may take to end what it does by itself, such as a reset.
const MAX_WAIT: Duration = Duration::from_secs(240);
/// Bytes of a card's memory in one answer of the host, of the 64 KiB that there may be.
const MOST: usize = 16 << 10;

/// Loads the driver with its options, and the module that lets its compute nodes be opened.
///
/// # Panics
/// If one of them does not load.
pub fn load(options: &[&str]) {
    let words: Vec<_> = ["lab-card"].iter().chain(options).copied().collect();
    let output = run(&words);
    let (stdout, wrong) = (
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    );
    assert!(
        output.status.success(),
        "the driver and hl_open_flag load: {stdout}; {wrong}"
    );
}

/// Takes the driver out of the kernel.
///
/// # Panics
/// Where it stays.
pub fn unload() {
    let output = run(&["rmmod", "habanalabs"]);
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the driver has no user: {stdout}");
}

/// The kernel's log.
pub fn log() -> String {
    String::from_utf8_lossy(&run(&["dmesg"]).stdout).into_owned()
}

/// Waits until the log has a line with these words after its first `from` bytes.
///
/// # Panics
/// Where it has none in time; the end of the log is shown.
pub fn wait_for(words: &str, from: usize) {
    let begin = Instant::now();
    loop {
        let log = log();
        if log.get(from..).is_some_and(|new| new.contains(words)) {
            return;
        }
        let end: Vec<_> = log.lines().rev().take(20).collect();
        assert!(
            begin.elapsed() < MAX_WAIT,
            "{words:?} in the kernel's log, which ends: {end:#?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The port through which a guest with cards asks its host (tools/xtask/src/lab/card.rs).
fn port() -> Option<PathBuf> {
    let named = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == "lab.host")
    };
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let port = ports.flatten().find(named)?;
    Some(Path::new("/dev").join(port.file_name()))
}

/// A card's number on the host, where cards are numbered by their places on the bus. The driver
/// probes several at a time and gives its numbers to them in any order.
fn on_host(card: u8) -> u8 {
    let place = |number: u8| fs::canonicalize(format!("/sys/class/accel/accel{number}/device")).ok();
    let Some(own) = place(card) else { return card };
    let others = (0..u8::MAX).map_while(place);
    u8::try_from(others.filter(|other| *other < own).count()).unwrap_or(card)
}

/// Asks the server of a card, by its number in the guest, as `vgaudi ask` does; the answer is its
/// JSON.
///
/// # Panics
/// Where this machine has no cards, or the server does not do what is asked.
pub fn ask(card: u8, request: &str) -> String {
    let port = port().expect("a machine with cards has a port to its host");
    let mut port = File::options()
        .read(true)
        .write(true)
        .open(port)
        .expect("the card opens");
    port.write_all(format!("ask {} {request}\n", on_host(card)).as_bytes())
        .expect("the host listens");
    let mut answer = String::new();
    BufReader::new(port)
        .read_line(&mut answer)
        .expect("the host answers");
    assert!(
        answer.starts_with('{') && !answer.contains("\"error\""),
        "{request}: {answer}"
    );
    answer
}

/// Bytes of a card's memory as the host has them, past the driver and the card's engines: from a
/// place in the HBM.
///
/// # Panics
/// As [`ask`]; and where it is no memory of the card.
pub fn hbm(card: u8, offset: u64, len: usize) -> Vec<u8> {
    let part = |at: usize| {
        let bytes = MOST.min(len - at);
        let answer = ask(card, &format!("read {} {bytes}", offset + at as u64));
        let digits = answer
            .split('"')
            .nth(3)
            .expect("an answer has its data")
            .as_bytes();
        let digit = |digit: u8| char::from(digit).to_digit(16).expect("hexadecimal digits");
        let byte = |pair: &[u8]| (digit(pair[0]) * 16 + digit(pair[1])) as u8;
        let data: Vec<u8> = digits.chunks_exact(2).map(byte).collect();
        assert_eq!(data.len(), bytes, "as many as were asked for");
        data
    };
    (0..len).step_by(MOST).flat_map(part).collect()
}

/// The offset in a card's HBM of a buffer with pages of its own. The driver reports no physical
/// addresses, so bytes that are nowhere else are put to the buffer's start (`put`) and looked for
/// at the start of each page; they stay there.
///
/// # Panics
/// Where no page has them.
pub fn place(card: u8, put: impl FnOnce(&[u8; 32])) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut mark = *b"gaudi-lab was here              ";
    mark[18..24].copy_from_slice(&number.to_le_bytes()[..6]);
    mark[24..].copy_from_slice(&now.as_nanos().to_le_bytes()[..8]);
    put(&mark);
    // Pages have 768 MiB, or 640 MiB with a stack off; the first is the driver's.
    let pages = (5..64).map(|at| at << 27);
    pages
        .into_iter()
        .find(|&page| hbm(card, page, mark.len()) == mark)
        .expect("a page of the card's memory starts with these bytes")
}

/// What taints the kernel (Documentation/admin-guide/tainted-kernels.rst); 0 when nothing does.
///
/// # Panics
/// Where the kernel does not say.
pub fn taint() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/tainted").expect("the kernel lists its taints");
    text.trim().parse().expect("a number")
}
