//! Modelled cards in a guest, and the real driver that drives them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
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

/// Asks a card's control socket on the host (`vgaudi ask`), by the guest's port; its answer is JSON.
///
/// # Panics
/// Where this machine has no cards, or the host does not answer.
pub fn ask(card: u8, words: &str) -> String {
    let is_ours = |entry: &fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("name"));
        name.is_ok_and(|name| name.trim() == "lab.host")
    };
    let ports = fs::read_dir("/sys/class/virtio-ports").expect("a machine with a port");
    let port = ports.flatten().find(is_ours).expect("a machine with cards");
    let mut port = File::options()
        .read(true)
        .write(true)
        .open(Path::new("/dev").join(port.file_name()))
        .expect("the port opens");
    writeln!(port, "ask {card} {words}").expect("the host listens");
    let mut answer = String::new();
    BufReader::new(port)
        .read_line(&mut answer)
        .expect("the host answers");
    assert!(!answer.starts_with("no: "), "{words:?} of card {card}: {answer}");
    answer
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
