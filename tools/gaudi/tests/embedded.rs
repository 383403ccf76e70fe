//! A program that embeds the library is recorded on a mock, which makes no ioctl. That program is
//! this test, started again.

#![allow(unsafe_code, reason = "fork(2), which a traced program may call")]

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

use gaudi::Device;
use gaudi_harness::skip_named;
use nix::sys::wait::waitpid;
use nix::unistd::ForkResult;

/// The variable that makes this program the traced one.
const ACTION: &str = "GAUDI_TEST_EMBEDDED";
const BACKENDS: [&str; 3] = ["bpf", "ptrace", "preload"];

/// Opens a mock and queries its information a given number of times.
fn ask(times: u32) {
    let device = Device::open(&"mock:gaudi2".parse().expect("a spec")).expect("a mock");
    for _ in 0..times {
        device.info().expect("the mock answers");
    }
}

/// The traced program: a test that does nothing in an ordinary run.
#[test]
fn embedded_program() {
    let Ok(action) = std::env::var(ACTION) else {
        return;
    };
    match action.as_str() {
        "ask" => ask(10),
        "exec" => {
            ask(3);
            let status = program("ask").status().expect("this program starts");
            assert!(status.success());
        }
        "fork" => {
            ask(3);
            // SAFETY: the test's other thread only waits for this one.
            match unsafe { nix::unistd::fork() }.expect("a child") {
                ForkResult::Child => {
                    ask(4);
                    // SAFETY: ends the child without the parent's exit handlers.
                    unsafe { nix::libc::_exit(0) }
                }
                ForkResult::Parent { child } => drop(waitpid(child, None).expect("the child")),
            }
            ask(5);
        }
        "threads" => {
            let device = Device::open(&"mock:gaudi2".parse().expect("a spec")).expect("a mock");
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| (0..100).for_each(|_| drop(device.info().expect("an answer"))));
                }
            });
        }
        "kill" => {
            ask(20);
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("a signal");
        }
        other => panic!("{other}"),
    }
}

/// This program, with an action.
fn program(action: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "embedded_program", "--nocapture"]);
    command.env(ACTION, action);
    command
}

/// Records an action. Returns the decoded lines and what the tool printed; `None` if the method
/// needs root.
fn recorded(test: &str, backend: &str, program: &Command) -> Option<(Vec<String>, Output)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    command.arg("record").arg("--output").arg(&file);
    command.args(["--backend", backend, "--"]);
    command.arg(program.get_program()).args(program.get_args());
    command.envs(
        program
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.output().expect("gaudi starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if backend == "bpf" && error.contains("CAP_BPF") {
        skip_named(test, "bpf: root, or CAP_BPF and CAP_PERFMON");
        return None;
    }
    if backend == "preload" && error.contains("libgaudi_trace.so") && error.starts_with("error") {
        skip_named(
            test,
            "libgaudi_trace.so beside gaudi: cargo build -p gaudi-preload",
        );
        return None;
    }
    let decoded = Command::new(env!("CARGO_BIN_EXE_gaudi"))
        .arg("decode")
        .arg(&file)
        .output()
        .expect("gaudi starts");
    assert!(decoded.status.success(), "{decoded:?} {error}");
    let text = String::from_utf8_lossy(&decoded.stdout).into_owned();
    Some((text.lines().map(str::to_owned).collect(), output))
}

fn asked(lines: &[String]) -> usize {
    let ioctls = lines.iter().filter(|line| line.contains("op=HW_IP_INFO"));
    ioctls.count()
}

#[test]
fn every_backend_records_a_mock_once() {
    for backend in BACKENDS {
        let Some((lines, output)) = recorded("every_backend_records_a_mock_once", backend, &program("ask"))
        else {
            continue;
        };
        assert!(output.status.success(), "{backend}: {output:?}");
        let (opens, closes) = (
            lines
                .iter()
                .filter(|line| line.contains("/dev/accel/accel0\""))
                .count(),
            lines
                .iter()
                .filter(|line| line.starts_with("close{fd=1000000<"))
                .count(),
        );
        let text = lines.join("\n");
        assert_eq!((opens, closes), (1, 1), "{backend}: {text}");
        assert!(asked(&lines) >= 10, "{backend}: {text}");
        let again = recorded("every_backend_records_a_mock_once", backend, &program("ask"));
        let again = again.map(|(lines, _)| asked(&lines));
        assert_eq!(
            again,
            Some(asked(&lines)),
            "{backend}: the same number in each run"
        );
    }
}

/// After the exit, the descriptor has no device.
#[test]
fn records_precede_the_exit_of_their_process() {
    for backend in BACKENDS {
        let test = "records_precede_the_exit_of_their_process";
        for action in ["ask", "exec", "fork", "kill"] {
            let Some((lines, _)) = recorded(test, backend, &program(action)) else {
                break;
            };
            let is_late = |line: &&String| line.contains("fd=1000000,") || line.contains("fd=1000000}");
            let late = lines.iter().filter(is_late).count();
            assert_eq!(late, 0, "{backend} {action}: {}", lines.join("\n"));
        }
    }
}

#[test]
fn children_write_rings_of_their_own() {
    for backend in BACKENDS {
        let test = "children_write_rings_of_their_own";
        let Some((one, _)) = recorded(test, backend, &program("ask")) else {
            continue;
        };
        let opening = asked(&one) - 10;
        for (action, opens, asks) in [("exec", 2, 13), ("fork", 3, 12)] {
            let (lines, output) = recorded(test, backend, &program(action)).expect("as above");
            assert!(output.status.success(), "{backend} {action}: {output:?}");
            assert_eq!(
                asked(&lines),
                opens * opening + asks,
                "{backend} {action}: {}",
                lines.join("\n")
            );
        }
    }
}

#[test]
fn threads_of_one_device_lose_nothing() {
    for backend in BACKENDS {
        let test = "threads_of_one_device_lose_nothing";
        let Some((lines, output)) = recorded(test, backend, &program("threads")) else {
            continue;
        };
        assert!(asked(&lines) >= 800, "{backend}: {} {output:?}", asked(&lines));
        let notes = String::from_utf8_lossy(&output.stderr);
        assert!(notes.contains(" 0 lost"), "{backend}: {notes}");
    }
}

#[test]
fn killed_program_leaves_its_records() {
    for backend in BACKENDS {
        let test = "killed_program_leaves_its_records";
        let Some((lines, output)) = recorded(test, backend, &program("kill")) else {
            continue;
        };
        assert_eq!(output.status.signal(), Some(9), "{backend}: {output:?}");
        assert!(asked(&lines) >= 20, "{backend}: {}", lines.join("\n"));
    }
}

/// A set-group-ID copy of this program: the kernel starts it with `AT_SECURE`.
fn privileged(folder: &Path, action: &str) -> Option<Command> {
    let copy = folder.join("privileged");
    std::fs::copy(std::env::current_exe().expect("this program"), &copy).expect("a copy");
    chown(&copy, None, Some(65534)).ok()?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o2755)).ok()?;
    let own = program(action);
    let mut command = Command::new(copy);
    command.args(own.get_args());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(command)
}

#[test]
fn privileged_program_ignores_the_ring() {
    let test = "privileged_program_ignores_the_ring";
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("a folder");
    let Some(program) = privileged(folder.path(), "ask") else {
        return skip_named(test, "root, to make a set-group-ID program");
    };
    for backend in BACKENDS {
        let Some((lines, output)) = recorded(test, backend, &program) else {
            continue;
        };
        assert!(output.status.success(), "{backend}: {output:?}");
        assert_eq!(asked(&lines), 0, "{backend}: {}", lines.join("\n"));
    }
}
