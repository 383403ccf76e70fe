//! The peak of the host's memory that a guest and its cards use.
//!
//! - *The kernel's own peak, if [`GROUP`] names the folder of a control group*. Each guest gets a
//!   group below it, in which QEMU and the servers of cards start. The lab makes no groups
//!   elsewhere: groups belong to the administrator of the machine.
//! - *Samples otherwise*: the pages of each process that are its own, and each shared memory file
//!   once, since the guest's memory and the card's are mapped by both sides. Memory that
//!   is released before the next sample is not counted.
//! - *The figure names its source.*

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::files::At as _;
use crate::run;

/// The variable that names a control group's folder: one with the memory controller for the groups
/// below it.
const GROUP: &str = "GAUDI_LAB_CGROUP";
/// Its peak by version 2 and by version 1 (Documentation/admin-guide/cgroup-v2.rst,
/// cgroup-v1/memory.rst), bytes.
const PEAKS: [(&str, &str); 2] = [
    ("memory.peak", "the control group's memory.peak"),
    (
        "memory.max_usage_in_bytes",
        "the control group's memory.max_usage_in_bytes",
    ),
];
/// A process enters before it is what it will be: what it takes is counted from its first page on.
const ENTER: &str = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
/// Between two samples.
const PAUSE: Duration = Duration::from_millis(200);
/// What a process has of its own, and the tables that map it (proc_pid_status(5)), kilobytes.
const OWN: [&str; 3] = ["RssAnon:", "RssFile:", "VmPTE:"];

/// The most that was taken, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peak {
    pub(super) bytes: u64,
    pub(super) how: &'static str,
}

impl fmt::Display for Peak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        write!(f, "{mebibytes:.0} MiB ({})", self.how)
    }
}

/// Watches the processes of one guest.
#[derive(Debug)]
pub(super) struct Meter {
    /// A control group of this guest.
    group: Option<PathBuf>,
    processes: Mutex<Vec<u32>>,
    sampled: AtomicU64,
}

impl Meter {
    /// For one guest.
    pub(super) fn new() -> anyhow::Result<Meter> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gaudi-lab-{}-{number}", std::process::id());
        let above = env::var_os(GROUP).map(PathBuf::from);
        Ok(Meter {
            group: above
                .map(|above| group(&above, &name))
                .transpose()
                .context(GROUP)?,
            processes: Mutex::default(),
            sampled: AtomicU64::new(0),
        })
    }

    /// The command, started where it is counted.
    pub(super) fn within(&self, command: Command) -> Command {
        let Some(group) = &self.group else {
            return command;
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", ENTER]).arg(group);
        run::after(shell, &command)
    }

    /// Counts a process and what it starts.
    pub(super) fn watch(&self, process: u32) {
        self.processes().push(process);
    }

    /// Takes samples until `over`. A control group counts by itself.
    pub(super) fn sample(&self, over: &AtomicBool) {
        while self.group.is_none() && !over.load(Ordering::Relaxed) {
            let now = taken(&self.processes());
            self.sampled.fetch_max(now, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }

    /// The most so far.
    pub(super) fn peak(&self) -> anyhow::Result<Peak> {
        let Some(group) = &self.group else {
            return Ok(Peak {
                bytes: self.sampled.load(Ordering::Relaxed),
                how: "sampled: own pages of each process, shared memory once",
            });
        };
        for (file, how) in PEAKS {
            if let Ok(text) = fs::read_to_string(group.join(file)) {
                let bytes = text.trim().parse();
                let bytes = bytes.with_context(|| format!("{file} has {text:?}"))?;
                return Ok(Peak { bytes, how });
            }
        }
        bail!("{} has no peak", group.display())
    }

    fn processes(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // A group with a process that outlived us stays, under a name that shows its origin.
            let _ = fs::remove_dir(group);
        }
    }
}

/// A new group that counts memory.
fn group(above: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let group = above.join(name);
    fs::create_dir(&group).at("make", &group)?;
    if PEAKS.iter().any(|(file, _)| group.join(file).exists()) {
        return Ok(group);
    }
    let _ = fs::remove_dir(&group); // the error is the answer
    let above = above.display();
    bail!(
        "{above} has no memory controller for the groups below it: as root, `echo +memory >{above}/cgroup.subtree_control`"
    )
}

/// Bytes that these processes and their descendants use now. One that has ended uses none.
fn taken(processes: &[u32]) -> u64 {
    let mut all = processes.to_vec();
    let mut at = 0;
    let mut own = 0;
    let mut shared = BTreeMap::new();
    while let Some(process) = all.get(at).copied() {
        at += 1;
        let place = PathBuf::from(format!("/proc/{process}"));
        // A file of a process that has ended cannot be read.
        let read = |file: &str| fs::read_to_string(place.join(file)).unwrap_or_default();
        let children = read(&format!("task/{process}/children"));
        let children = children
            .split_whitespace()
            .map_while(|child| child.parse::<u32>().ok());
        all.extend(children);
        own += own_bytes(&read("status"));
        for file in fs::read_dir(place.join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default(); // closed since
            if let (true, Ok(seen)) = (
                target.to_string_lossy().starts_with("/memfd:"),
                fs::metadata(file.path()),
            ) {
                shared.insert((seen.dev(), seen.ino()), seen.blocks() * 512);
            }
        }
    }
    own + shared.values().sum::<u64>()
}

fn own_bytes(status: &str) -> u64 {
    let of_line = |line: &str| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let kilobytes: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        OWN.contains(&name).then_some(kilobytes * 1024)
    };
    status.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_not_own() {
        let status = "Name:\tqemu\nVmHWM:\t  999999 kB\nRssAnon:\t     100 kB\nRssFile:\t      20 kB\n\
                      RssShmem:\t   50000 kB\nVmPTE:\t       3 kB\nThreads:\t4\n";
        assert_eq!(own_bytes(status), 123 << 10);
        assert_eq!(
            own_bytes("RssAnon:\tmany kB\nRssFile:"),
            0,
            "a value that is not a number counts as 0"
        );
    }

    #[test]
    fn shared_files_count_once() {
        let me = [std::process::id()];
        let before = taken(&me);
        let size = 64 << 20;
        let touched = std::hint::black_box(vec![7u8; size]);
        let with_pages = taken(&me);
        assert!(
            with_pages >= before + size as u64 / 2,
            "{with_pages} after {before}: 64 MiB of pages are seen"
        );
        drop(touched);
        let file =
            nix::sys::memfd::memfd_create(c"lab", nix::sys::memfd::MFdFlags::empty()).expect("a memory file");
        let file = fs::File::from(file);
        let other = file.try_clone().expect("another name");
        let before = taken(&me);
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; size], 0).expect("written");
        let now = taken(&me);
        assert!(
            now >= before + size as u64 / 2 && now < before + size as u64 * 3 / 2,
            "{now} after {before}: once, though two descriptors have it"
        );
        drop(other);
    }

    #[test]
    fn cgroup_without_memory_controller_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = group(folder.path(), "one").expect_err("it has no peak");
        assert!(error.to_string().contains("cgroup.subtree_control"), "{error}");
        assert!(!folder.path().join("one").exists(), "nothing is left behind");
        let error = group(Path::new("/nonexistent"), "one").expect_err("no such folder");
        assert!(error.to_string().contains("cannot make"), "{error}");
    }

    /// In a guest of the lab, as root: `lab test -p xtask -- control_group`.
    #[test]
    fn cgroup_reports_the_peak() {
        if env::var_os("GAUDI_LAB").is_none() {
            let need = "a machine of one's own, cargo xtask lab test -p xtask";
            return crate::test::skip("cgroup_reports_the_peak", need);
        }
        let above = Path::new("/run/groups");
        let sh = |script: &str| {
            let status = Command::new("sh").args(["-c", script]).status().expect("a shell");
            assert!(status.success(), "{script}");
        };
        sh(
            "mkdir -p /run/groups && mount -t cgroup2 none /run/groups && echo +memory >/run/groups/cgroup.subtree_control",
        );
        let meter = Meter {
            group: Some(group(above, "guest").expect("a group")),
            processes: Mutex::default(),
            sampled: AtomicU64::new(0),
        };
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "of=/dev/shm/lab", "bs=1M", "count=48"]);
        let status = meter.within(command).status().expect("it runs");
        assert!(status.success());
        let peak = meter.peak().expect("a peak");
        fs::remove_file("/dev/shm/lab").expect("it was written");
        assert!(peak.how.contains("memory.peak"), "{peak}");
        assert!(
            (48 << 20..96 << 20).contains(&peak.bytes),
            "{peak}: 48 MiB and a program"
        );
        let folder = meter.group.clone().expect("it has one");
        drop(meter);
        assert!(!folder.exists(), "the group is removed");
    }
}
