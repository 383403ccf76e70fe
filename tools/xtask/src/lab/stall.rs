//! [`Stall`]: detects a stalled guest, reports what it and its cards execute, and kills it.
//!
//! A case that hangs in a system call is reported by the guest itself (gaudi-harness's `Watch`). A
//! guest whose processors or whose cards hang reports nothing, so the host asks QEMU.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time for the report of a stalled guest, after the guest's own limit.
pub(super) const REPORT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// The limit of a boot. It takes 3 to 30 seconds on two busy processors.
const BOOT: Duration = Duration::from_secs(180);
/// The longest wait for one answer of QEMU's monitor.
const ANSWER: Duration = Duration::from_secs(2);
/// The time for the kernel to print its stacks and to reset the machine.
const PANIC: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

/// How long a guest may take, in time of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// From QEMU's start to its end.
    pub(super) whole: Duration,
    /// From QEMU's start to the first line, which the first process writes.
    pub(super) boot: Duration,
    /// Without a line.
    pub(super) silence: Duration,
}

impl Limits {
    /// The usual limit of a boot, and none of silence.
    pub(super) fn of(whole: Duration) -> Limits {
        Limits {
            whole,
            boot: BOOT,
            silence: Duration::MAX,
        }
    }
}

/// The limit that a guest exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    Boot,
    Silence,
    Whole,
}

/// A guest that was killed.
#[derive(Clone, Debug)]
pub(super) struct Stalled {
    pub(super) exceeded: Exceeded,
    /// What is wrong, as a sentence.
    pub(super) finding: String,
    /// What the guest and its cards executed.
    pub(super) report: String,
}

/// When the guest last wrote to its channel, and its limits.
#[derive(Debug)]
pub(super) struct Stall {
    begin: Instant,
    /// Milliseconds from `begin` to the last line; 0 before the first.
    heard: AtomicU64,
    limits: Limits,
    monitor: PathBuf,
}

impl Stall {
    /// `monitor` is the path of a socket that QEMU creates.
    pub(super) fn new(limits: Limits, monitor: PathBuf) -> Stall {
        Stall {
            begin: Instant::now(),
            heard: AtomicU64::new(0),
            limits,
            monitor,
        }
    }

    /// Adds QEMU's monitor to its options.
    pub(super) fn add_options(&self, command: &mut Command) {
        let path = self.monitor.display();
        command.args([
            "-chardev",
            &format!("socket,id=monitor,path={path},server=on,wait=off"),
        ]);
        command.args(["-mon", "chardev=monitor,mode=readline"]);
    }

    /// Records that the guest wrote a line.
    pub(super) fn hear(&self) {
        let elapsed = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(elapsed.max(1), Ordering::Relaxed);
    }

    /// Returns the limit that the guest exceeded, and the finding. `None` if it may continue.
    fn finding(&self) -> Option<(Exceeded, String)> {
        let (elapsed, limits) = (self.begin.elapsed(), &self.limits);
        let heard = self.heard.load(Ordering::Relaxed);
        let silent = elapsed.saturating_sub(Duration::from_millis(heard));
        let seconds = elapsed.as_secs();
        if heard == 0 && elapsed >= limits.boot {
            let finding = format!("the kernel did not reach init within {seconds} s and was killed");
            Some((Exceeded::Boot, finding))
        } else if silent >= limits.silence {
            let seconds = silent.as_secs();
            let finding = format!("the guest wrote nothing for {seconds} s and was killed");
            Some((Exceeded::Silence, finding))
        } else {
            let finding = || format!("the guest was killed after {seconds} s");
            (elapsed >= limits.whole).then(|| (Exceeded::Whole, finding()))
        }
    }

    /// Waits until `over` or until the guest stalls. Sends an NMI to a stalled guest. If the guest
    /// does not end, sends SIGTERM to `guest`, the timeout(1) that runs QEMU. Returns the finding
    /// and a report; `None` if `over`.
    ///
    /// `others` are the servers of the guest's cards.
    pub(super) fn watch(&self, guest: u32, others: &[u32], over: &AtomicBool) -> Option<Stalled> {
        let (exceeded, finding) = loop {
            if over.load(Ordering::Relaxed) {
                return None;
            }
            match self.finding() {
                Some(found) => break found,
                None => thread::sleep(PAUSE),
            }
        };
        let mut report = String::new();
        for pid in descendants(guest).into_iter().chain(others.iter().copied()) {
            report += &threads(pid);
        }
        // Two samples show whether the processors execute.
        for command in ["info status", "info registers -a", "info registers -a"] {
            let answer = ask(&self.monitor, command);
            let lines = answer.lines().filter(|line| is_place(line));
            report.extend(lines.map(|line| format!("{line}\n")));
        }
        // The kernel's answer is a panic with its stacks on the console (`unknown_nmi_panic`).
        ask(&self.monitor, "nmi");
        let end = Instant::now() + PANIC;
        while Instant::now() < end && !over.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
        }
        if !over.load(Ordering::Relaxed) {
            report += "no panic by the NMI ended the guest: its processors do not run\n";
            // timeout(1) passes the signal on to QEMU.
            let pid = i32::try_from(guest).map(Pid::from_raw);
            let _ = pid.map(|pid| kill(pid, Signal::SIGTERM)); // it may have ended since
        }
        Some(Stalled {
            exceeded,
            finding,
            report,
        })
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.monitor); // what stays is only a name
    }
}

/// Whether a line of the monitor shows the state of the machine or where a processor is.
fn is_place(line: &str) -> bool {
    ["VM status", "CPU#", "RIP=", "RSI=", "RAX="]
        .iter()
        .any(|begin| line.trim_start().starts_with(begin))
}

/// Sends a command to QEMU's monitor and returns the answer. A late answer is truncated.
fn ask(monitor: &Path, command: &str) -> String {
    let Ok(mut stream) = UnixStream::connect(monitor) else {
        return format!(
            "VM status: the monitor at {} does not listen\n",
            monitor.display()
        );
    };
    let sent = stream
        .set_read_timeout(Some(PAUSE))
        .and_then(|()| writeln!(stream, "{command}"));
    let (mut answer, end) = (Vec::new(), Instant::now() + ANSWER);
    let mut bytes = [0; 4096];
    while sent.is_ok() && Instant::now() < end {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&bytes[..read]),
            Err(_) => {} // the time of one read is over
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns a process and its descendants.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(&pid) = all.get(at) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default(); // it may have ended
        all.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
        at += 1;
    }
    all
}

/// The threads of a process: name, state, processor time and where in the kernel each is.
fn threads(pid: u32) -> String {
    let mut text = String::new();
    let folder = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    for thread in folder.flatten() {
        let of = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let stat = of("stat");
        // After the name, which may have spaces: the state is the first word, the times the 12th
        // and 13th (proc(5)).
        let words: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let word = |at: usize| words.get(at).copied().unwrap_or("?");
        let _ = writeln!(
            text,
            "{pid} {}: {}, {} + {} ticks, in {}, system call {}",
            of("comm").trim(),
            word(0),
            word(11),
            word(12),
            of("wchan").trim(),
            of("syscall").split_whitespace().next().unwrap_or("?"),
        ); // a string takes every text
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall([whole, boot, silence]: [u64; 3]) -> Stall {
        let [whole, boot, silence] = [whole, boot, silence].map(Duration::from_secs);
        let limits = Limits { whole, boot, silence };
        Stall::new(limits, PathBuf::from("/nowhere/monitor"))
    }

    #[test]
    fn each_exceeded_limit_is_found() {
        use Exceeded::{Boot, Silence, Whole};
        for (limits, wanted, part) in [
            ([60, 0, 60], Boot, "did not reach init within 0 s"),
            ([60, 60, 0], Silence, "wrote nothing for 0 s"),
            ([0, 60, 60], Whole, "was killed after 0 s"),
            ([0, 0, 0], Boot, "did not reach init"),
        ] {
            let (exceeded, finding) = stall(limits).finding().expect("a finding");
            assert_eq!(exceeded, wanted, "{limits:?}");
            assert!(finding.contains(part), "{finding}");
        }
        assert!(stall([60; 3]).finding().is_none(), "it has just begun");
    }

    #[test]
    fn booted_guest_has_no_boot_limit() {
        let stall = stall([60, 0, 60]);
        stall.hear();
        assert!(stall.finding().is_none(), "its first process wrote a line");
    }

    #[test]
    fn report_has_the_threads_and_ends_the_guest() {
        let mut guest = Command::new("sleep").arg("600").spawn().expect("a process");
        let over = AtomicBool::new(false);
        let (pid, others) = (guest.id(), [std::process::id()]);
        let Stalled { finding, report, .. } = thread::scope(|scope| {
            let watch = scope.spawn(|| stall([0, 60, 60]).watch(pid, &others, &over));
            let ended = guest.wait();
            assert!(ended.is_ok_and(|status| !status.success()), "a signal ended it");
            over.store(true, Ordering::Relaxed);
            watch.join().expect("no panic").expect("a finding")
        });
        assert!(finding.contains("was killed"), "{finding}");
        assert!(report.contains(" sleep: "), "the guest's threads: {report}");
        assert!(report.contains("does not listen"), "the monitor: {report}");
    }
}
