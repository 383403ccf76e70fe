//! Runs a C program for the driver's ioctls, dynamic and static, on a mock and on a recording.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use gaudi_hal::DeviceSpec;
use gaudi_harness::skip;
use gaudi_seam::DeviceVa;
use gaudi_spec::gaudi2::packet::LinDma;
use gaudi_supervisor::{Error, Supervisor};
use nix::errno::Errno;

/// The steps of the program.
const STEPS: usize = 33;

/// Compiles a program; `None` if it cannot be compiled on this system.
fn compile(name: &str, linking: &str) -> Option<PathBuf> {
    static BUILT: Mutex<()> = Mutex::new(());
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let _guard = BUILT.lock().unwrap();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
    let path = folder.path().join(format!("{name}{linking}"));
    if path.exists() {
        return Some(path);
    }
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()));
    command
        .args(["-O1", "-Wall", "-pthread", &source, "-o"])
        .arg(&path);
    if !linking.is_empty() {
        command.arg(linking);
    }
    match command.output() {
        Ok(output) if output.status.success() => Some(path),
        Ok(output) => {
            skip(&format!(
                "gcc{linking} with libc: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
            None
        }
        Err(error) => {
            skip(&format!("a C compiler: {error}"));
            None
        }
    }
}

/// Runs a command. Returns its output and exit code; `None` if this system forbids seccomp's user
/// notification.
fn run(command: Command, spec: &str) -> Option<(String, Option<i32>)> {
    run_on(command, &[spec])
}

fn run_on(mut command: Command, specs: &[&str]) -> Option<(String, Option<i32>)> {
    let specs: Vec<DeviceSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    command.stdout(Stdio::piped());
    let mut supervisor = match Supervisor::spawn(command, specs) {
        Ok(supervisor) => supervisor,
        Err(Error::System("seccomp(2)", Errno::EINVAL | Errno::ENOSYS | Errno::EBUSY)) => {
            skip("user notification of seccomp(2): Linux 5.14, and no supervisor of this process");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut pipe = supervisor.child().stdout.take().unwrap();
    let mut output = String::new();
    pipe.read_to_string(&mut output).unwrap();
    let status = supervisor.wait().unwrap();
    Some((output, status.code()))
}

/// The control word of a packet that copies.
fn copy_control() -> String {
    let bytes = LinDma::copy(DeviceVa(1), DeviceVa(2), 3).to_bytes();
    u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]).to_string()
}

fn passes(linking: &str, spec: &str) {
    let Some(program) = compile("program", linking) else {
        return;
    };
    let mut command = Command::new(program);
    command.arg(copy_control());
    let Some((output, code)) = run(command, spec) else {
        return;
    };
    assert_eq!(code, Some(0), "{spec}: {output}");
    assert!(output.ends_with("all\n"), "{output}");
    let steps = output.lines().filter(|line| line.ends_with(": ok")).count();
    assert_eq!(steps, STEPS, "{output}");
}

#[test]
fn program_runs_on_the_mock() {
    passes("", "mock:gaudi2?name=run");
}

#[test]
fn static_program_runs_on_the_mock() {
    passes("-static", "mock:gaudi2?name=static");
}

#[test]
fn program_runs_on_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.gcap");
    let file = file.display();
    passes("", &format!("mock:gaudi2?name=recorded+record={file},data"));
    passes("", &format!("replay:{file}"));
    passes("", &format!("replay:{file}?match=strict"));
}

/// Recordings of the program on the stock driver, made in the lab: docs/src/how-to/lab.md.
#[test]
fn program_runs_on_the_drivers_recordings() {
    // A process replays each open of a file once, so every run has a copy.
    let folder = tempfile::tempdir().unwrap();
    for kernel in ["6.12", "7.3"] {
        let recording = format!("{}/tests/driver-{kernel}.txt", env!("CARGO_MANIFEST_DIR"));
        for (linking, how) in [("", ""), ("-static", ""), ("", "?match=strict")] {
            let copy = folder.path().join(format!("{kernel}{linking}{}.txt", how.len()));
            std::fs::copy(&recording, &copy).unwrap();
            passes(linking, &format!("replay:{}{how}", copy.display()));
        }
    }
}

#[test]
fn injected_fault_reaches_the_program() {
    let Some(program) = compile("program", "") else {
        return;
    };
    let mut command = Command::new(program);
    command.arg(copy_control());
    let spec = "mock:gaudi2?name=faulty+fault=submit:error%3DEIO";
    if let Some((output, code)) = run(command, spec) {
        assert_eq!(code, Some(1), "{output}");
        assert!(output.ends_with("submit: Input/output error\n"), "{output}");
    }
}

#[test]
fn exit_code_and_other_paths_are_the_programs() {
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, "mock:gaudi2?name=shell")
    };
    let Some((output, code)) =
        shell("ls /dev/accel; cat /sys/class/accel/accel0/dev; test -c /dev/null; exit 7")
    else {
        return;
    };
    assert_eq!(output, "accel0\naccel_controlD0\n261:0\n");
    assert_eq!(code, Some(7));
    let Some((output, _)) =
        shell("readlink /sys/class/accel/accel0/device; cat /dev/accel/accel9 2>&1 | tail -c 28")
    else {
        return;
    };
    assert!(output.starts_with("../../../0000:10:00.0\n"), "{output}");
    assert!(output.contains("No such file or directory"), "{output}");
}

#[test]
fn children_outlive_the_program() {
    let mut command = Command::new("sh");
    command.args(["-c", "(sleep 0.2; ls /dev/accel) & exit 3"]);
    if let Some((output, code)) = run(command, "mock:gaudi2?name=children") {
        assert_eq!(code, Some(3));
        assert_eq!(output, "accel0\naccel_controlD0\n");
    }
}

#[test]
fn invalid_device_is_reported() {
    let spec: DeviceSpec = "replay:/nonexistent.gcap".parse().unwrap();
    let error = Supervisor::spawn(Command::new("true"), vec![spec]).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
}

/// Runs a case of `edge.c` on a mock with a fault plan or nothing.
fn edge(case: &str, fault: &str) {
    edge_ends_with(case, fault, Some(0));
}

fn edge_ends_with(case: &str, fault: &str, status: Option<i32>) {
    let Some(program) = compile("edge", "") else {
        return;
    };
    let mut command = Command::new(program);
    command.args([&copy_control(), case]);
    if let Some((output, code)) = run(command, &format!("mock:gaudi2?name={case}{fault}")) {
        assert_eq!(code, status, "{output}");
    }
}

#[test]
fn short_request_reaches_no_own_memory() {
    edge("short_size", "");
}

#[test]
fn direction_bits_decide_what_is_copied() {
    edge("directions", "");
}

#[test]
fn failed_call_leaves_the_struct() {
    edge("failed_call", "+fault=mem_map_host:error%3DENOSPC");
}

#[test]
fn threads_map_and_unmap_at_once() {
    edge("race", "");
}

#[test]
fn waiting_threads_do_not_stop_others() {
    edge("waiting", "");
}

/// Its wait ends in an hour.
#[test]
fn killed_program_is_not_waited_for() {
    edge_ends_with("killed", "", None);
}

#[test]
fn mapping_beyond_the_machine_is_refused() {
    edge("too_much", "");
}

#[test]
fn file_has_no_directory_entries() {
    edge("entries_of_file", "");
}

#[test]
fn device_writes_no_memory_of_an_executed_program() {
    edge("executed", "");
}

#[test]
fn slow_open_does_not_delay_other_devices() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let io = gaudi_hal::open(
        &format!("mock:gaudi2?name=slow+record={}", path("whole"))
            .parse()
            .unwrap(),
    );
    drop(io.unwrap());
    std::os::unix::fs::symlink(path("whole"), path("run.gcap")).unwrap();
    // The open of a pipe waits for its writer.
    let script = "cd \"$1\"; mkfifo pipe; ln -sf pipe run.gcap; (cat /dev/accel/accel1 2>/dev/null; echo late) & \
                  sleep 0.5; timeout 60 sh -c 'exec 3</dev/accel/accel0; cat /proc/self/fdinfo/3 >/dev/null; test -e /dev/stdin <&3' && echo early; \
                  echo no capture >pipe; wait";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(folder.path());
    let replay = format!("replay:{}", path("run.gcap"));
    if let Some((output, code)) = run_on(command, &["mock:gaudi2?name=quick", &replay]) {
        assert_eq!((output.as_str(), code), ("early\nlate\n", Some(0)));
    }
}
