//! [`Watch`]: the deadline of each case in a guest of the lab.

use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, Stdio, abort};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that the guest's init sets, with the kernel's release.
const GUEST: &str = "GAUDI_LAB";
/// Lines of the kernel's log in a report: the blocked tasks and what came before them.
const LOG_LINES: usize = 400;

/// Names each case as it begins, and aborts the process if a case passes its deadline.
///
/// A case can hang in an ioctl that no signal ends. The report before the abort has the threads of
/// this process, the kernel's blocked tasks and the end of the kernel's log. Outside of a guest of
/// the lab, a watch does nothing.
#[derive(Debug)]
pub struct Watch(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    running: Mutex<Running>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Running {
    case: Option<(String, Instant, Duration)>,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Running)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Watch {
    /// Starts a watch in a guest of the lab, and one that does nothing elsewhere.
    pub fn in_guest() -> Self {
        match std::env::var_os(GUEST) {
            Some(_) => Self::start(|case, limit| {
                report(case, limit);
                // Not `exit`: its handlers may wait for the thread that hangs.
                abort();
            }),
            None => Self(None),
        }
    }

    fn start(expired: impl Fn(&str, Duration) + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let watched = Arc::clone(&shared);
        // Without a thread, only the guest's own limit ends a case that hangs.
        let _ = thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watch(&watched, expired));
        Self(Some(shared))
    }

    /// Begins a case and ends the one before. Prints `case NAME begins` to standard error, from
    /// which the lab takes the name of a case that never ends.
    pub fn begin(&self, case: &str, limit: Duration) {
        if let Some(shared) = &self.0 {
            say(&format!("case {case} begins"));
            shared.set(|running| running.case = Some((case.to_owned(), Instant::now(), limit)));
        }
    }

    /// Ends the last case.
    pub fn end(&self) {
        if let Some(shared) = &self.0 {
            shared.set(|running| running.case = None);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.set(|running| running.is_over = true);
        }
    }
}

/// Waits for the deadline of each case until the watch is dropped.
fn watch(shared: &Shared, expired: impl Fn(&str, Duration)) {
    let mut running = shared.lock();
    while !running.is_over {
        let left = running
            .case
            .as_ref()
            .map(|(_, begin, limit)| limit.saturating_sub(begin.elapsed()));
        running = match left {
            None => shared
                .changed
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner),
            Some(left) if !left.is_zero() => {
                let waited = shared.changed.wait_timeout(running, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            Some(_) => {
                if let Some((case, _, limit)) = running.case.take() {
                    expired(&case, limit);
                }
                running
            }
        };
    }
}

/// Prints to standard error directly: the test harness captures the output of `eprintln!`.
fn say(text: &str) {
    // A closed standard error leaves no place for a report.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints the threads of this process, the kernel's blocked tasks and the end of its log.
fn report(case: &str, limit: Duration) {
    say(&format!("case {case} did not end in {} s", limit.as_secs()));
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let of = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        say(&format!(
            "thread {:?} {}: in {}, system call {}\n{}",
            thread.file_name(),
            of("comm").trim(),
            of("wchan").trim(),
            of("syscall").trim(),
            of("stack").trim_end()
        ));
    }
    // The blocked tasks, then the stack of each processor (admin-guide/sysrq.rst).
    for key in ["w", "l"] {
        let _ = fs::write("/proc/sysrq-trigger", key); // the log's end then lacks them
    }
    let log = Command::new("dmesg").stdin(Stdio::null()).output();
    let log = log.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let log = log.unwrap_or_else(|error| format!("dmesg: {error}"));
    let lines: Vec<_> = log.lines().collect();
    say(&lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(600);

    #[test]
    fn case_past_its_deadline_expires_once() {
        let (sender, expired) = mpsc::channel();
        let watch = Watch::start(move |case, limit| {
            let _ = sender.send((case.to_owned(), limit));
        });
        watch.begin("quick", LATE);
        watch.begin("hangs", SOON);
        let seen = expired.recv_timeout(LATE);
        assert_eq!(seen, Ok(("hangs".to_owned(), SOON)), "the case that expires");
        drop(watch);
        assert!(
            expired.recv_timeout(LATE).is_err(),
            "no other case expires, and the thread ends with its watch"
        );
    }
}
