//! Modelled cards in a guest, and the real driver that drives them.

use std::fs;
use std::time::{Duration, Instant};

use crate::run;

/// How long the driver may take to end what it does by itself, such as a reset.
const PATIENCE: Duration = Duration::from_secs(240);

/// Loads the driver with its options, and has the host mend its open bug where the kernel has it. The answer says which it was.
///
/// # Panics
/// Where the driver does not load, or finds no card.
pub fn load(options: &[&str]) -> String {
    let words: Vec<_> = ["lab-card"].iter().chain(options).copied().collect();
    let output = run(&words);
    let (said, wrong) = (
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    );
    assert!(
        output.status.success(),
        "the driver loads and opens: {said}; {wrong}"
    );
    said
}

/// Takes the driver out of the kernel.
///
/// # Panics
/// Where it stays.
pub fn unload() {
    let output = run(&["rmmod", "habanalabs"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nobody holds the driver: {said}");
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
            begin.elapsed() < PATIENCE,
            "{words:?} in the kernel's log, which ends: {end:#?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What taints the kernel (Documentation/admin-guide/tainted-kernels.rst); 0 when nothing does.
///
/// # Panics
/// Where the kernel does not say.
pub fn taint() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/tainted").expect("the kernel says what taints it");
    text.trim().parse().expect("a number")
}
