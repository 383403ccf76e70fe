//! Tests tier A: the preload library and its rings.

use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gaudi_capture::record::{Event, ProcessChange, ProcessRecord};
use gaudi_tracer::{Backend, Options, Tracer};

mod support;

use support::{INFO, program, run, watching_null};

/// Options with rings of 16 MiB: a tracer that is off the processor for long loses no record.
fn with_large_rings() -> Options {
    Options {
        ring_bytes: 128 << 20,
        ..watching_null(Backend::Preload)
    }
}

#[test]
fn threads_have_their_own_rings() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["threads", "8"], &watching_null(Backend::Preload)).unwrap();
    let mut numbers = run.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..8 * 500).collect::<Vec<_>>());
    assert_eq!(run.summary.lost.total(), 0);
    let ends: Vec<u64> = run
        .ioctls()
        .iter()
        .map(|ioctl| ioctl.time_ns + ioctl.duration_ns)
        .collect();
    let mut latest = 0;
    let late = ends.iter().filter(|&&end| {
        latest = latest.max(end);
        end < latest
    });
    let late = late.count();
    // A thread that is descheduled between the end of a call and its record has one late record.
    assert!(
        late <= ends.len() / 20,
        "events are ordered by their end: {late} are late"
    );
}

#[test]
fn more_threads_than_rings_are_recorded() {
    let Some(program) = program("") else {
        return;
    };
    // One after the other: the rings of dead threads are released.
    let run = run(&program, &["sequence", "700"], &watching_null(Backend::Preload)).unwrap();
    let seen = run.ioctls().len() as u64;
    assert_eq!(seen + run.summary.lost.total(), 700, "what is missing is counted");
    // On a busy machine the tracer releases no ring in this time. The main thread has one of the
    // 256.
    assert!(seen >= 255, "{seen}");
}

#[test]
fn signal_handlers_are_recorded_inside_calls() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["storm", "20000"], &with_large_rings()).unwrap();
    assert_eq!(run.summary.lost.total(), 0);
    let (loops, handlers): (Vec<u32>, Vec<u32>) =
        run.numbers().into_iter().partition(|&number| number < 1 << 30);
    assert_eq!(loops, (0..20_000).collect::<Vec<_>>(), "in order and complete");
    let printed: usize = run.output.trim().parse().unwrap();
    assert_eq!(handlers.len(), printed, "one for each signal");
    assert!(printed > 0, "signals arrived");
}

#[test]
fn vfork_child_is_a_process_of_its_own() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["vfork"], &watching_null(Backend::Preload)).unwrap();
    let pids: Vec<(u32, u32)> = run
        .ioctls()
        .iter()
        .zip(run.numbers())
        .map(|(ioctl, number)| (number, ioctl.pid))
        .collect();
    let [(1, parent), (2, child), (3, again)] = pids[..] else {
        panic!("{pids:?}");
    };
    assert!(parent == again && child != parent, "{pids:?}");
    assert_eq!(run.output, format!("{parent} {child}\n"));
    let starts = run.events.iter().any(|event| {
        matches!(event, Event::Process(ProcessRecord {
            pid,
            change: ProcessChange::Start { parent: of, .. },
            ..
        }) if (*pid, *of) == (child, parent))
    });
    assert!(starts, "the child starts before its calls");
}

#[test]
fn vfork_child_leaves_the_state_of_its_parent() {
    let Some(program) = program("") else {
        return;
    };
    for how in ["vfork-close", "vfork-first"] {
        let run = run(&program, &[how], &watching_null(Backend::Preload)).unwrap();
        assert_eq!(run.numbers(), [1, 2], "{how}");
        let ioctls = run.ioctls();
        assert_eq!(ioctls[0].pid, ioctls[1].pid, "{how}");
        assert_eq!(
            run.output,
            format!("{}\n", ioctls[1].tid),
            "{how}: the thread's id"
        );
        let parent = ioctls[0].pid;
        assert_eq!(run.opens().len(), 1, "{how}: the descriptor is introduced once");
        let closes: Vec<bool> = run
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Close { pid, .. } => Some(*pid == parent),
                _ => None,
            })
            .collect();
        assert_eq!(closes, [false, true], "{how}: by the child, then by its parent");
    }
}

#[test]
fn loaded_library_is_recorded() {
    let Some(program) = program("") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("late.c"), folder.path().join("late.so"));
    std::fs::write(
        &source,
        "#include <sys/ioctl.h>\nint late(int fd, void *argument) { return ioctl(fd, 0xc0184801, argument); }\n",
    )
    .unwrap();
    let built = Command::new("gcc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(built.unwrap().success());
    let run = run(
        &program,
        &["dlopen", library.to_str().unwrap()],
        &watching_null(Backend::Preload),
    )
    .unwrap();
    assert_eq!(run.numbers(), [77]);
    assert_eq!(run.ioctls()[0].request, INFO);
}

#[test]
fn killed_program_leaves_whole_records() {
    let Some(program) = program("") else {
        return;
    };
    let mut command = Command::new(&program);
    command.args(["libc", "100000000"]).stdout(Stdio::null());
    let mut tracer = Tracer::spawn(command, &with_large_rings()).unwrap();
    let pid = nix::unistd::Pid::from_raw(tracer.child().unwrap().id() as i32);
    let mut next = 0_u64;
    let summary = tracer
        .run(|event| {
            if let Event::Ioctl(ioctl) = event {
                let number = u32::from_ne_bytes(ioctl.input[16..20].try_into().unwrap());
                assert_eq!(u64::from(number), next, "in order and complete");
                next += 1;
                if next == 10_000 {
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(summary.status.unwrap().signal(), Some(9));
    assert!(next >= 10_000, "{next}");
    assert!(
        summary.lost.total() <= 1,
        "at most the record that it was writing: {summary:?}"
    );
}

/// Its parent ends before the child has made its first record.
#[test]
fn daemon_is_recorded() {
    let Some(program) = program("") else {
        return;
    };
    for how in ["daemon", "renamed"] {
        let run = run(&program, &[how], &watching_null(Backend::Preload)).unwrap();
        assert_eq!(run.numbers(), [1], "{how}");
        assert_eq!(run.summary.lost.total(), 0, "{how}");
    }
}

#[test]
fn unmapped_argument_is_no_fault() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["coroutine"], &watching_null(Backend::Preload)).unwrap();
    assert_eq!(run.output, "25\n", "/dev/null answers ENOTTY");
    let inputs: Vec<usize> = run.ioctls().iter().map(|ioctl| ioctl.input.len()).collect();
    assert_eq!(inputs, [24, 24, 0], "the third is unreadable");
}

#[test]
fn overwritten_ring_is_reported() {
    let Some(program) = program("") else {
        return;
    };
    for how in ["scribble", "scribble-records"] {
        let run = run(&program, &[how], &watching_null(Backend::Preload)).unwrap();
        assert_eq!(run.output, "done\n");
        assert!(!run.summary.corrupt.is_empty(), "{how}: {:?}", run.summary);
        let events = run.events.iter().map(|event| match event {
            Event::Lost { count, .. } => *count,
            _ => 0,
        });
        assert!(run.summary.lost.total() > 0, "{how}: lost events are counted");
        assert_eq!(
            events.sum::<u64>(),
            run.summary.lost.total(),
            "{how}: each is an event"
        );
        let text = &run.summary.corrupt[0];
        assert!(
            text.contains("ring ") && text.contains("invalid record"),
            "{text}"
        );
        assert_eq!(run.summary.status.unwrap().code(), Some(0));
    }
}

#[test]
fn overwritten_position_loses_records_only() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["positions"], &watching_null(Backend::Preload)).unwrap();
    assert_eq!((run.output.as_str(), run.numbers()), ("done\n", vec![1]));
    assert!(run.summary.lost.total() > 0, "the second ioctl is counted");
}

#[test]
fn record_of_the_future_does_not_delay() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["future"], &watching_null(Backend::Preload)).unwrap();
    assert_eq!(run.numbers(), [1, 2]);
    let is_future = |event: &Event| matches!(event, Event::Lost { count: 1, .. });
    assert!(run.events.iter().any(is_future), "the record was valid");
}

#[test]
fn rings_of_dead_threads_are_released_under_load() {
    let Some(program) = program("") else {
        return;
    };
    let run = run(&program, &["busy", "600"], &watching_null(Backend::Preload)).unwrap();
    let numbers = run.numbers();
    let threads = numbers.iter().filter(|&&number| number < 600).count();
    assert!(threads >= 300, "{threads} of 600 threads; there are 256 rings");
}

#[test]
fn run_ends_while_the_program_continues() {
    let Some(program) = program("") else {
        return;
    };
    let mut command = Command::new(&program);
    command.args(["libc", "1000000000"]).stdout(Stdio::null());
    let mut tracer = Tracer::spawn(command, &watching_null(Backend::Preload)).unwrap();
    let pid = nix::unistd::Pid::from_raw(tracer.child().unwrap().id() as i32);
    let mut seen = 0;
    let summary = tracer
        .run(|event| {
            seen += u32::from(matches!(event, Event::Ioctl(_)));
            if seen < 1000 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .unwrap();
    assert_eq!((summary.status, seen), (None, 1000));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    nix::sys::wait::waitpid(pid, None).unwrap();
}

/// Whether a child has ended and was not waited for.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let state = stat.rsplit(") ").next().unwrap();
    state.starts_with('Z')
}

#[test]
fn slow_tracer_delays_and_counts() {
    let Some(program) = program("") else {
        return;
    };
    let mut options = watching_null(Backend::Preload);
    options.ring_bytes = 1;
    let mut command = Command::new(&program);
    command.args(["libc", "20000"]).stdout(Stdio::null());
    let mut tracer = Tracer::spawn(command, &options).unwrap();
    let pid = tracer.child().unwrap().id();
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
                // The program does not wait for this for ever.
                while !has_ended(pid) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(lost > 0, "the ring was full");
    assert_eq!((summary.lost.total(), ioctls + lost), (lost, 20_000));
}

/// The variable `GAUDI_TRACER_IOCTLS` sets the number of ioctls; the release gate uses 1000000.
#[test]
fn preload_loses_nothing_at_full_rate() {
    let Some(program) = program("") else {
        return;
    };
    let count = std::env::var("GAUDI_TRACER_IOCTLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(50_000_u64);
    let mut command = Command::new(&program);
    command.args(["libc", &count.to_string()]).stdout(Stdio::null());
    let tracer = Tracer::spawn(command, &with_large_rings()).unwrap();
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

/// In a mount namespace where the path of an RDMA device is /dev/null.
#[test]
fn rdma_commands_are_recorded() {
    if !nix::unistd::geteuid().is_root() {
        return support::skip("root: a mount namespace with a device node");
    }
    // DEALLOC_PD of handle 7, and a write to another file.
    let script = r#"
        mount -t tmpfs none /tmp && mkdir /tmp/infiniband && mknod /tmp/infiniband/uverbs0 c 1 3 || exit 9
        mount -t tmpfs none /dev && mv /tmp/infiniband /dev/ || exit 9
        printf '\004\000\000\000\003\000\000\000\007\000\000\000' >/dev/infiniband/uverbs0
        printf 'other' >/tmp/file
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]);
    let tracer = Tracer::spawn(command, &watching_null(Backend::Preload)).unwrap();
    let mut writes = Vec::new();
    let summary = tracer.run(|event| {
        if let Event::Write(write) = event {
            writes.push(write);
        }
        ControlFlow::Continue(())
    });
    let status = summary.unwrap().status;
    if status.is_none_or(|status| status.code() != Some(0)) {
        return support::skip("a mount namespace (CAP_SYS_ADMIN)");
    }
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].result, 12);
    assert_eq!(
        writes[0].memory.len(),
        1,
        "the command has no response: {writes:?}"
    );
    assert_eq!(writes[0].memory[0].bytes, [4, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0]);
}

/// The program is number 1 there, as another process is here.
#[test]
fn program_in_a_pid_namespace_is_recorded_whole() {
    /// Takes several of the tracer's intervals between checks for dead threads.
    const CALLS: u64 = 200_000;
    let Some(program) = program("") else {
        return;
    };
    if !nix::unistd::geteuid().is_root() {
        return support::skip("root: a PID namespace");
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(&program);
    command.args(["libc", &CALLS.to_string()]);
    command.stdout(Stdio::null());
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let tracer = Tracer::spawn(command, &watching_null(Backend::Preload)).unwrap();
        let mut ioctls = 0;
        let summary = tracer.run(|event| {
            ioctls += u64::from(matches!(event, Event::Ioctl(_)));
            ControlFlow::Continue(())
        });
        ended.send((ioctls, summary.unwrap()))
    });
    let (ioctls, summary) = end
        .recv_timeout(Duration::from_secs(120))
        .expect("the trace ends with the program");
    if summary.status.is_none_or(|status| status.code() != Some(0)) {
        return support::skip("a PID namespace (CAP_SYS_ADMIN)");
    }
    assert_eq!(ioctls + summary.lost.total(), CALLS, "what is missing is counted");
    assert!(ioctls > CALLS / 2, "{ioctls}");
}
