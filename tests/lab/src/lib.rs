//! What tests need of a guest: the kernel's version, its modules, and the system calls that no
//! crate wraps yet.
//!
//! - *Tests of this crate are ignored on the host and run in a guest*, by `cargo xtask lab test`:
//!   they assert what a known kernel answers, and some change the machine (they load modules).
//! - *In a guest nothing is skipped*: what the kernel must have and has not is a failure.

pub mod card;
pub mod memfd;
pub mod nic;
pub mod rxe;
pub mod uverbs;
pub mod vfio;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The running kernel's major and minor version.
///
/// # Panics
/// Where this is no guest of the lab: a test that is run by hand must not take the machine for one.
pub fn kernel() -> (u32, u32) {
    let release = std::env::var("GAUDI_LAB").expect("this test runs in the lab: cargo xtask lab test");
    let mut numbers = release.split('.').map(|part| part.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => panic!("GAUDI_LAB is a kernel's release, saw {release:?}"),
    }
}

/// Which `machine` of kernels.toml this guest is; nothing for the usual one.
///
/// # Panics
/// Where this is no guest of the lab.
pub fn machine() -> Option<String> {
    let name = std::env::var("GAUDI_LAB_MACHINE").expect("this test runs in the lab: cargo xtask lab test");
    Some(name).filter(|name| !name.is_empty())
}

/// Which of two guests this is, where a test runs in two at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest that listens; its address on `eth1` is `10.88.0.1`.
    A,
    /// The guest that connects; its address on `eth1` is `10.88.0.2`.
    B,
}

impl Side {
    /// Its IPv4 address on `eth1`, which is the network between the two.
    pub fn address(self) -> &'static str {
        match self {
            Side::A => "10.88.0.1",
            Side::B => "10.88.0.2",
        }
    }

    /// Its IPv6 address there, once [`rxe::address`] gave it.
    pub fn address6(self) -> &'static str {
        match self {
            Side::A => "fd88::1",
            Side::B => "fd88::2",
        }
    }
}

/// Which guest of a pair this is.
///
/// # Panics
/// Where it is none: such a test belongs into `pairs` of kernels.toml.
pub fn side() -> Side {
    match std::env::var("GAUDI_LAB_SIDE").as_deref() {
        Ok("a") => Side::A,
        Ok("b") => Side::B,
        other => panic!("GAUDI_LAB_SIDE is a or b in a guest of a pair, saw {other:?}"),
    }
}

/// Counts a skip, with what would un-skip it. Always true.
///
/// # Panics
/// Where the guest's init names no file for it.
pub fn skip(test: &str, need: &str) -> bool {
    let log = std::env::var_os("GAUDI_SKIP_LOG");
    assert!(log.is_some(), "the guest's init names the log of skips");
    gaudi_harness::skip_named(test, need);
    true
}

/// Whether a test must be skipped on the older kernel, where the newest one's answers say nearly
/// all; counts it.
pub fn skips_twice(test: &str) -> bool {
    kernel() < (7, 0) && skips_unnamed(test)
}

/// Whether a test that takes minutes must be skipped because its whole name was not given; counts
/// it.
pub fn skips_unnamed(test: &str) -> bool {
    let need = format!("minutes, by name: cargo xtask lab test -p gaudi-lab -- {test}");
    !std::env::args().any(|word| word == test) && skip(test, &need)
}

/// Prints a line to the lab's log even if the test passes: a figure, not a verdict. The harness
/// captures the output of `println!`.
///
/// # Panics
/// Where standard error is closed.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

/// Loads a module with all that it needs; loading it twice is no error.
///
/// # Panics
/// Where it does not load, with modprobe's output.
pub fn modprobe(name: &str) {
    let output = run(&["modprobe", name]);
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name} must load, modprobe stdout: {stdout}"
    );
    assert!(is_loaded(name), "a loaded module has a folder in sysfs: {name}");
}

/// Whether a module is in the kernel.
pub fn is_loaded(name: &str) -> bool {
    Path::new("/sys/module").join(name.replace('-', "_")).exists()
}

/// Locked shared while a fork child of this program has not exec'd or exited, exclusively while
/// there must be none.
static CHILDREN: RwLock<()> = RwLock::new(());

/// Marks the life of a fork child that holds this process's descriptors: take it before fork(2),
/// drop it after the child's execve(2) or end. The child itself must not take it.
pub fn child() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no fork child has a copy of this process's descriptors, and blocks new fork
/// children. A descriptor closed under this lock is the last copy.
pub fn no_children() -> RwLockWriteGuard<'static, ()> {
    CHILDREN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program of the guest to its end.
///
/// # Panics
/// Where there is no such program.
pub fn run(words: &[&str]) -> Output {
    let (program, rest) = words.split_first().expect("a program is named");
    let mut command = Command::new(program);
    command
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let running = {
        let _child = child(); // std returns from `spawn` after the child's execve
        command.spawn()
    };
    running
        .and_then(std::process::Child::wait_with_output)
        .unwrap_or_else(|error| panic!("{program} must run in the guest: {error}"))
}

/// Runs a program of the guest and returns its standard output.
///
/// # Panics
/// Where there is no such program, or it fails.
pub fn stdout_of(words: &[&str]) -> String {
    let output = run(words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    println!("{stdout}{stderr}");
    assert!(output.status.success(), "{words:?}: {stderr}");
    stdout
}
