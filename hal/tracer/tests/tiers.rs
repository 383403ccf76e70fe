//! Tests the tiers with a program that calls ioctl(2) in every possible way (`calls.c`).
//!
//! /dev/null replaces the device: every ioctl on it fails with ENOTTY, and the tracer records
//! device number, request and argument as on a card.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_capture::record::{Event, FdSource, MmapRecord, Moment, ProcessChange, ProcessRecord};
use gaudi_tracer::{Backend, BpfRefusal, DeviceMatch, ErrorKind, Options, Tier, Tracer};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

mod support;

use support::{CS, DIRECTORY, INFO, NULL, program, run, run_command, skip, watching_null};

/// Expects each of the program's 50 ioctls, made in ten ways, that a tier can see: exactly once, on
/// a known descriptor of a known process.
fn sees_every_ioctl(backend: Backend) {
    for linking in ["", "-static"] {
        let Some(program) = program(linking) else {
            continue;
        };
        let Some(run) = run(&program, &["all"], &watching_null(backend)) else {
            return;
        };
        let expected: Vec<u32> = match (backend, linking) {
            (Backend::Preload, "") => [1..=5, 16..=35, 41..=45].into_iter().flatten().collect(),
            // No loader loads the library.
            (Backend::Preload, _) => Vec::new(),
            _ => (1..=50).collect(),
        };
        let mut numbers = run.numbers();
        numbers.sort_unstable();
        assert_eq!(
            numbers, expected,
            "{backend:?}{linking}: every ioctl exactly once"
        );
        assert_eq!(run.summary.lost.total(), 0);
        assert_eq!(run.summary.unreadable, 0);
        assert_eq!(run.summary.ioctls, expected.len() as u64);
        assert_eq!(run.output, "done\n");
        assert_eq!(
            run.summary.status.unwrap().code(),
            Some(7),
            "the program's exit status"
        );
        for ioctl in run.ioctls() {
            assert_eq!(
                (ioctl.device, ioctl.result),
                (Some(NULL), -25),
                "ENOTTY of /dev/null"
            );
            assert_eq!(ioctl.input, ioctl.output, "/dev/null writes nothing");
            assert!(!ioctl.compat && ioctl.argument != 0 && ioctl.duration_ns > 0);
        }
        known_before_use(&run.events);
    }
}

/// Checks that each ioctl follows the start of its process and the introduction of its descriptor.
fn known_before_use(events: &[Event]) {
    let mut threads = BTreeSet::new();
    let mut tables: Vec<(u32, i32)> = Vec::new();
    let mut last_end = 0;
    for event in events {
        match event {
            Event::Process(ProcessRecord {
                pid,
                tid,
                change: ProcessChange::Start { parent, .. },
                ..
            }) => {
                threads.insert((*pid, *tid));
                let inherited: Vec<_> = tables
                    .iter()
                    .filter(|row| row.0 == *parent)
                    .map(|row| (*pid, row.1))
                    .collect();
                tables.extend(inherited);
            }
            Event::Open(open) => tables.push((open.pid, open.result as i32)),
            Event::Dup { pid, result, .. } => tables.push((*pid, *result as i32)),
            Event::Ioctl(ioctl) => {
                assert!(
                    threads.contains(&(ioctl.pid, ioctl.tid)),
                    "thread {} has started",
                    ioctl.tid
                );
                assert!(
                    tables.contains(&(ioctl.pid, ioctl.fd)),
                    "descriptor {} was introduced",
                    ioctl.fd
                );
                let end = ioctl.time_ns + ioctl.duration_ns;
                // Two CPUs can reorder the end of two calls.
                assert!(end + 1_000_000 > last_end, "events are ordered by their end");
                last_end = end;
            }
            _ => {}
        }
    }
}

#[test]
fn bpf_sees_every_ioctl() {
    sees_every_ioctl(Backend::Bpf);
}

#[test]
fn ptrace_sees_every_ioctl() {
    sees_every_ioctl(Backend::Ptrace);
}

#[test]
fn preload_sees_every_ioctl_of_libc() {
    sees_every_ioctl(Backend::Preload);
}

#[test]
fn ptrace_works_unprivileged() {
    if !geteuid().is_root() {
        return skip("root: a program as another user; the other tests cover ptrace as this one");
    }
    let (Some(dynamic), Some(_)) = (program(""), program("-static")) else {
        return;
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.uid(65534).gid(65534).current_dir("/");
    command.env(DIRECTORY, dynamic.parent().unwrap());
    command.args([
        "--exact",
        "ptrace_sees_every_ioctl",
        "preload_sees_every_ioctl_of_libc",
        "bpf_refusal_names_its_remedy",
        "ptrace_detach_leaves_process_alive",
    ]);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return skip(&format!("a test program that user nobody can execute: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("4 passed"), "{text}");
}

#[test]
fn bpf_refusal_names_its_remedy() {
    if geteuid().is_root() {
        // `ptrace_works_unprivileged` runs this test as another user.
        return;
    }
    let options = Options {
        backend: Backend::Bpf,
        ..Options::default()
    };
    let error = Tracer::spawn(Command::new("true"), &options).unwrap_err();
    let ErrorKind::BpfRefused(refusal) = &error.kind else {
        panic!("{error}");
    };
    assert!(
        matches!(refusal, BpfRefusal::Permission { .. } | BpfRefusal::PidNamespace),
        "{refusal:?}"
    );
    assert!(error.grant().is_some(), "{error}");
    // Auto falls back.
    let tracer = Tracer::spawn(Command::new("true"), &Options::default()).unwrap();
    assert_eq!(tracer.tier(), Tier::Ptrace);
    tracer.run(|_| ControlFlow::Continue(())).unwrap();
}

/// Returns the tiers that can run on this system.
fn tiers() -> Vec<Backend> {
    if geteuid().is_root() {
        vec![Backend::Bpf, Backend::Ptrace]
    } else {
        vec![Backend::Ptrace]
    }
}

/// Returns the tiers that can start a program on this system.
fn starting_tiers() -> Vec<Backend> {
    let mut all = tiers();
    all.push(Backend::Preload);
    all
}

#[test]
fn signal_death_is_reported() {
    let Some(program) = program("") else {
        return;
    };
    for backend in starting_tiers() {
        for signal in [
            Signal::SIGKILL as i32,
            Signal::SIGSEGV as i32,
            Signal::SIGTERM as i32,
            nix::libc::SIGRTMIN() + 2,
        ] {
            let run = run(
                &program,
                &["signal", &signal.to_string()],
                &watching_null(backend),
            )
            .unwrap();
            assert_eq!(run.summary.status.unwrap().signal(), Some(signal), "{backend:?}");
            if backend == Backend::Preload {
                continue;
            }
            let exits = run.events.iter().filter_map(|event| match event {
                Event::Process(ProcessRecord {
                    change: ProcessChange::Exit { status },
                    ..
                }) => Some(*status),
                _ => None,
            });
            let seen: Vec<_> = exits.map(|status| status & 0x7f).collect();
            assert_eq!(
                seen,
                [signal as u32],
                "{backend:?}: the record contains the status of wait(2)"
            );
        }
    }
}

#[test]
#[expect(unsafe_code, reason = "sets an attribute between fork(2) and execve(2)")]
fn parent_death_signal_waits_for_the_tracer() {
    for backend in starting_tiers() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.3; exit 7"]).stdout(Stdio::piped());
        let set = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from);
        // SAFETY: prctl(2) is async-signal-safe.
        unsafe { command.pre_exec(set) };
        let Some(run) = run_command(command, &watching_null(backend)) else {
            continue;
        };
        let status = run.summary.status.expect("the program was started");
        assert_eq!(
            (status.code(), status.signal()),
            (Some(7), None),
            "{backend:?}: the thread that started the program must outlive it"
        );
    }
}

#[test]
fn traced_program_has_the_same_descriptors() {
    let Some(program) = program("") else {
        return;
    };
    let output = Command::new(&program)
        .arg("fds")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let untraced = String::from_utf8(output.stdout).unwrap();
    for backend in starting_tiers() {
        let run = run(&program, &["fds"], &watching_null(backend)).unwrap();
        assert_eq!(run.output, untraced, "{backend:?}");
    }
}

#[test]
fn interrupted_reads_are_restarted() {
    let Some(program) = program("") else {
        return;
    };
    for backend in starting_tiers() {
        let run = run(&program, &["restart"], &watching_null(backend)).unwrap();
        assert_eq!(run.output, "1 y\n", "{backend:?}");
        assert_eq!(run.numbers(), [2], "{backend:?}: the ioctl in the signal handler");
    }
}

#[test]
fn descriptors_and_mappings_are_recorded() {
    let Some(program) = program("") else {
        return;
    };
    for backend in starting_tiers() {
        let mut options = watching_null(backend);
        options.devices = vec![DeviceMatch {
            major: 1,
            minor: Some(5),
        }];
        for executes in [false, true] {
            if executes && backend == Backend::Preload {
                // It does not observe what exec closes.
                continue;
            }
            let arguments: &[&str] = if executes { &["files", "exec"] } else { &["files"] };
            let run = run(&program, arguments, &options).unwrap();
            let mut seen = Vec::new();
            let mut zero = -1;
            for event in &run.events {
                match event {
                    Event::Open(open) => {
                        let path = String::from_utf8(open.path.clone()).unwrap();
                        assert_eq!(open.source, FdSource::Open, "{backend:?} {open:?}");
                        if open.result >= 0 {
                            zero = open.result;
                            assert_eq!(open.flags & 3, nix::libc::O_RDWR as u32);
                        }
                        seen.push(format!("open {path} {}", open.result.min(0)));
                    }
                    Event::Dup { fd, result, .. } => {
                        assert_eq!(i64::from(*fd), zero);
                        seen.push(format!(
                            "dup to {}",
                            if *result == 40 { "40" } else { "a new one" }
                        ));
                    }
                    Event::Close { fd, result, .. } => {
                        let which = if i64::from(*fd) == zero {
                            "zero"
                        } else if *fd == 40 {
                            "40"
                        } else {
                            "copy"
                        };
                        seen.push(format!("close {which} {result}"));
                    }
                    Event::Mmap(MmapRecord { length, result, .. }) => {
                        assert!(*result > 0);
                        seen.push(format!("mmap {length}"));
                    }
                    Event::Munmap { length, result, .. } => seen.push(format!("munmap {length} {result}")),
                    _ => {}
                }
            }
            let expected = [
                "open /dev/zero 0",
                "dup to a new one",
                "dup to 40",
                "close 40 0",
                "mmap 4096",
                "munmap 4096 0",
                "close copy 0",
                "open /dev/not-there -2",
                "close zero 0",
            ];
            // The open of /dev/null is not recorded, because /dev/null is not watched.
            assert_eq!(
                seen,
                expected,
                "{backend:?}, closed by {}",
                if executes { "exec" } else { "close" }
            );
        }
    }
}

#[test]
fn pointers_are_followed_and_cut() {
    let Some(program) = program("") else {
        return;
    };
    for backend in starting_tiers() {
        let run = run(&program, &["pointers"], &watching_null(backend)).unwrap();
        let ioctls = run.ioctls();
        let [cs, info, wild, unreadable, closed, large] = ioctls[..] else {
            panic!("{backend:?}: {ioctls:?}");
        };
        assert_eq!(cs.request, CS);
        let [chunks] = &cs.memory[..] else {
            panic!("{backend:?}: {:?}", cs.memory);
        };
        assert_eq!(
            (chunks.at, chunks.whole, chunks.bytes.len()),
            (Moment::Entry, 128, 128)
        );
        assert_eq!(chunks.bytes[..12], [0x11, 0x11, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(chunks.bytes[64..66], [0x22, 0x22]);
        let [answer] = &info.memory[..] else {
            panic!("{backend:?}: {:?}", info.memory);
        };
        assert_eq!((answer.at, answer.whole), (Moment::Exit, 100));
        assert!(answer.bytes.starts_with(b"an answer\0"));
        assert_eq!(wild.memory.len(), 1, "an invalid pointer is recorded");
        assert_eq!((wild.memory[0].whole, wild.memory[0].bytes.len()), (1 << 30, 0));
        assert_eq!((unreadable.argument, unreadable.input.len()), (8, 0));
        assert_eq!((closed.fd, closed.device, closed.result), (-1, None, -9), "EBADF");
        let [chunks] = &large.memory[..] else {
            panic!("{backend:?}: {:?}", large.memory);
        };
        assert_eq!(chunks.whole, 512 * 64);
        assert!(
            (chunks.bytes.len() as u64) < chunks.whole,
            "truncated at the end of the stack or by the record's limit"
        );
        if backend == Backend::Bpf {
            assert!(chunks.bytes.len() <= 4096, "{}", chunks.bytes.len());
        }
        assert!(run.summary.cut >= 1);
        assert_eq!(
            run.summary.unreadable, 2,
            "the invalid pointer and the invalid argument"
        );
    }
}

#[test]
fn compat_calls_are_marked() {
    let Some(program) = program("") else {
        return;
    };
    let output = Command::new(&program).arg("compat").output().unwrap();
    if output.stdout != b"-25\n" {
        return skip("a kernel with the 32-bit ABI (CONFIG_IA32_EMULATION) on x86-64");
    }
    for backend in tiers() {
        let run = run(&program, &["compat"], &watching_null(backend)).unwrap();
        assert_eq!(run.output, "-25\n");
        let ioctls = run.ioctls();
        let [ioctl] = ioctls[..] else {
            panic!("{backend:?}: {ioctls:?}");
        };
        assert!(ioctl.compat);
        assert_eq!(
            (ioctl.request, ioctl.result, ioctl.device),
            (INFO, -25, Some(NULL))
        );
    }
}

#[test]
fn other_devices_are_not_recorded() {
    let Some(program) = program("") else {
        return;
    };
    for backend in starting_tiers() {
        let mut options = watching_null(backend);
        options.devices = vec![DeviceMatch {
            major: 226,
            minor: None,
        }];
        let run = run(&program, &["child"], &options).unwrap();
        assert_eq!(run.ioctls().len(), 0, "{backend:?}: filtered by device number");
        assert_eq!(run.opens().len(), 0);
        options.devices = vec![DeviceMatch {
            major: 1,
            minor: None,
        }];
        options.types = vec![b'T'];
        let run = self::run(&program, &["child"], &options).unwrap();
        assert_eq!(run.ioctls().len(), 0, "{backend:?}: filtered by type");
        options.types = vec![b'H'];
        let run = self::run(&program, &["child"], &options).unwrap();
        assert_eq!(run.ioctls().len(), 5, "{backend:?}");
    }
}

/// A program that calls ioctl(2) until it is killed, at the latest when this value is dropped.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // The program may already be dead.
        self.0.kill().unwrap_or(());
        drop(self.0.wait());
    }
}

fn sleeper(program: &Path) -> Sleeper {
    let mut child = Command::new(program)
        .arg("sleep")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line.trim(), child.id().to_string());
    Sleeper(child)
}

/// What a busy machine may take for a step.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until a condition holds. Returns without it after [`LIMIT`].
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > LIMIT {
            println!("no {what} within {LIMIT:?}");
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Attaches to a running process and stops from another thread: the process continues to run.
fn detach_leaves_process_alive(backend: Backend) {
    let Some(program) = program("") else {
        return;
    };
    let mut sleeper = sleeper(&program);
    let child = &mut sleeper.0;
    let tracer = Tracer::attach(&[child.id()], &watching_null(backend)).unwrap();
    let handle = tracer.stop_handle();
    let seen = Arc::new(AtomicUsize::new(0));
    let ioctls = Arc::clone(&seen);
    let stopper = thread::spawn(move || {
        wait_until("six ioctls", || ioctls.load(Ordering::Relaxed) >= 6);
        let began = Instant::now();
        handle.stop();
        began
    });
    let mut events = Vec::new();
    let summary = tracer
        .run(|event| {
            if matches!(event, Event::Ioctl(_)) {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            events.push(event);
            ControlFlow::Continue(())
        })
        .unwrap();
    let began = stopper.join().unwrap();
    assert!(began.elapsed() < LIMIT, "stop ends the run");
    assert!(summary.ioctls >= 6, "{backend:?}: {summary:?}");
    assert!(summary.status.is_none());
    let opens = events.iter().filter_map(|event| {
        if let Event::Open(open) = event {
            Some(open)
        } else {
            None
        }
    });
    let inherited: Vec<_> = opens.filter(|open| open.source == FdSource::Inherited).collect();
    assert_eq!(inherited[0].path, b"/dev/null");
    assert!(
        child.try_wait().unwrap().is_none(),
        "the process is still running"
    );
    let state = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    assert!(state.contains("TracerPid:\t0\n"), "{state}");
    assert!(
        !state.contains("State:\tt") && !state.contains("State:\tT"),
        "{state}"
    );
}

#[test]
fn bpf_detach_leaves_process_alive() {
    if tiers().contains(&Backend::Bpf) {
        detach_leaves_process_alive(Backend::Bpf);
    } else {
        skip("root");
    }
}

#[test]
fn ptrace_detach_leaves_process_alive() {
    detach_leaves_process_alive(Backend::Ptrace);
}

#[test]
fn stopped_process_stays_stopped() {
    let Some(program) = program("") else {
        return;
    };
    let sleeper = sleeper(&program);
    let id = sleeper.0.id();
    let pid = Pid::from_raw(id as i32);
    let tracer = Tracer::attach(&[id], &watching_null(Backend::Ptrace)).unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let ioctls = Arc::clone(&seen);
    let killer = thread::spawn(move || {
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
            stat.split(") ").nth(1).unwrap().chars().next().unwrap()
        };
        let has_more = |than: usize| ioctls.load(Ordering::Relaxed) > than;
        wait_until("ioctl", || has_more(0));
        kill(pid, Signal::SIGSTOP).unwrap();
        wait_until("stop", || matches!(state(), 'T' | 't'));
        thread::sleep(Duration::from_millis(150));
        let stopped = state();
        let before = ioctls.load(Ordering::Relaxed);
        kill(pid, Signal::SIGCONT).unwrap();
        wait_until("ioctl after SIGCONT", || has_more(before));
        let goes_on = has_more(before);
        kill(pid, Signal::SIGKILL).unwrap();
        (stopped, goes_on)
    });
    let mut times = Vec::new();
    tracer
        .run(|event| {
            if let Event::Ioctl(ioctl) = event {
                times.push(ioctl.time_ns);
                seen.fetch_add(1, Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    let (stopped, goes_on) = killer.join().unwrap();
    assert!(matches!(stopped, 'T' | 't'), "{stopped}");
    assert!(goes_on, "the program continues");
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(
        longest > Some(100_000_000),
        "the program was not stopped: longest gap {longest:?} ns"
    );
}

/// Threads exit while others are created.
#[test]
fn ptrace_knows_who_creates_each_process() {
    let mut command = Command::new("sh");
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4 5 6 7 8 9 10; do (:) & done; wait; done";
    command.args(["-c", script]).stdout(Stdio::piped());
    let run = run_command(command, &watching_null(Backend::Ptrace)).unwrap();
    let starts = run.events.iter().filter_map(|event| match event {
        Event::Process(ProcessRecord {
            change: ProcessChange::Start { parent, .. },
            ..
        }) => Some(*parent),
        _ => None,
    });
    let parents: Vec<u32> = starts.collect();
    assert_eq!(parents.len(), 101);
    assert_eq!(
        parents.iter().filter(|&&parent| parent == 0).count(),
        1,
        "{parents:?}"
    );
}

#[test]
fn failed_spawn_reports_its_cause() {
    for backend in starting_tiers() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let error = Tracer::spawn(Command::new("/not/there"), &options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Spawn, "{backend:?}");
        let errno = error.source.and_then(|source| source.raw_os_error());
        assert_eq!(errno, Some(Errno::ENOENT as i32), "{backend:?}");
        if backend == Backend::Preload {
            let error = Tracer::attach(&[std::process::id()], &options).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Unsupported(_)), "{error}");
            continue;
        }
        let gone = {
            let mut child = Command::new("true").spawn().unwrap();
            child.wait().unwrap();
            child.id()
        };
        let error = Tracer::attach(&[gone], &options).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Attach { pid: gone }, "{backend:?}");
    }
}

#[test]
fn full_ring_reports_lost_events() {
    let Some(program) = program("") else {
        return;
    };
    if !tiers().contains(&Backend::Bpf) {
        return skip("root");
    }
    let options = Options {
        ring_bytes: 1,
        ..watching_null(Backend::Bpf)
    };
    let mut command = Command::new(&program);
    command.args(["loop", "20000"]).stdout(Stdio::null());
    let tracer = Tracer::spawn(command, &options).unwrap();
    let mut first = true;
    let (mut ioctls, mut lost) = (0_u64, 0);
    let summary = tracer
        .run(|event| {
            match event {
                Event::Ioctl(_) => ioctls += 1,
                Event::Lost { count, .. } => lost += count,
                _ => {}
            }
            if std::mem::take(&mut first) {
                thread::sleep(Duration::from_millis(300));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(lost > 0);
    assert_eq!(summary.lost.total(), lost);
    // Process events can be among the lost ones.
    assert!((20_000..20_010).contains(&(ioctls + lost)), "{ioctls} + {lost}");
}

/// The variable `GAUDI_TRACER_IOCTLS` sets the number of ioctls; the release gate uses 1000000.
#[test]
fn bpf_loses_nothing_at_full_rate() {
    let Some(program) = program("") else {
        return;
    };
    if !tiers().contains(&Backend::Bpf) {
        return skip("root");
    }
    let count = std::env::var("GAUDI_TRACER_IOCTLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_000_u64);
    let mut command = Command::new(&program);
    command.args(["loop", &count.to_string()]).stdout(Stdio::null());
    let options = Options {
        ring_bytes: 64 << 20,
        ..watching_null(Backend::Bpf)
    };
    let tracer = Tracer::spawn(command, &options).unwrap();
    let mut next = 0;
    let summary = tracer
        .run(|event| {
            if let Event::Ioctl(ioctl) = event {
                let number = u32::from_ne_bytes(ioctl.input[16..20].try_into().unwrap());
                assert_eq!(number, next, "in order and complete");
                next += 1;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(
        (summary.ioctls, summary.lost.total(), summary.unreadable),
        (count, 0, 0)
    );
}
