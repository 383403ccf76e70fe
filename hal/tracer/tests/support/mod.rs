//! The test program and its traced runs.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;

use gaudi_capture::record::{DeviceNumber, Event, IoctlRecord, OpenRecord};
use gaudi_tracer::{Backend, DeviceMatch, ErrorKind, Options, Summary, Tracer};
use nix::unistd::geteuid;

pub(crate) use gaudi_harness::skip;

/// mem(4): /dev/null.
pub(crate) const NULL: DeviceNumber = DeviceNumber { major: 1, minor: 3 };
/// `_IOWR('H', 1, struct hl_info_args)`.
pub(crate) const INFO: u32 = 0xc018_4801;
/// `_IOWR('d', 0x42, union hl_cs_args)`.
pub(crate) const CS: u32 = 0xc030_6442;
/// Environment variable: the directory of the compiled program, when another user runs this file.
pub(crate) const DIRECTORY: &str = "GAUDI_TRACER_TEST_PROGRAMS";

/// Compiles the test program; `None` if it cannot be compiled on this system.
pub(crate) fn program(linking: &str) -> Option<PathBuf> {
    static BUILT: Mutex<()> = Mutex::new(());
    let _guard = BUILT.lock().unwrap();
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return Some(Path::new(&directory).join(format!("calls{linking}")));
    }
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        folder
    });
    let path = folder.path().join(format!("calls{linking}"));
    if path.exists() {
        return Some(path);
    }
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls.c");
    let mut command = Command::new(&compiler);
    command
        .args(["-O1", "-Wall", "-pthread", source, "-o"])
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
            skip(&format!("a C compiler ({compiler:?}): {error}"));
            None
        }
    }
}

/// The result of a traced run.
pub(crate) struct Run {
    pub(crate) events: Vec<Event>,
    pub(crate) summary: Summary,
    pub(crate) output: String,
}

impl Run {
    pub(crate) fn ioctls(&self) -> Vec<&IoctlRecord> {
        let ioctls = self.events.iter();
        ioctls
            .filter_map(|event| {
                if let Event::Ioctl(ioctl) = event {
                    Some(ioctl)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Returns the numbers that the program wrote into its arguments.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let questions = self.ioctls().into_iter().filter(|ioctl| ioctl.request == INFO);
        questions
            .map(|ioctl| u32::from_ne_bytes(ioctl.input[16..20].try_into().unwrap()))
            .collect()
    }

    pub(crate) fn opens(&self) -> Vec<&OpenRecord> {
        let opens = self.events.iter();
        opens
            .filter_map(|event| {
                if let Event::Open(open) = event {
                    Some(open)
                } else {
                    None
                }
            })
            .collect()
    }
}

/// Returns options that select only /dev/null.
pub(crate) fn watching_null(backend: Backend) -> Options {
    let devices = vec![DeviceMatch {
        major: NULL.major,
        minor: Some(NULL.minor),
    }];
    Options {
        backend,
        devices,
        ring_bytes: 4 << 20,
        ..Options::default()
    }
}

/// Runs a program under a tier; `None` if the tier cannot run on this system.
pub(crate) fn run(program: &Path, arguments: &[&str], options: &Options) -> Option<Run> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stdin(Stdio::null());
    run_command(command, options)
}

pub(crate) fn run_command(command: Command, options: &Options) -> Option<Run> {
    let mut tracer = match Tracer::spawn(command, options) {
        Ok(tracer) => tracer,
        Err(error) if matches!(error.kind, ErrorKind::BpfRefused(_)) && !geteuid().is_root() => {
            skip(&format!("root: {error}"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut pipe = tracer.child().and_then(|child| child.stdout.take()).unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    let mut events = Vec::new();
    let summary = tracer
        .run(|event| {
            events.push(event);
            ControlFlow::Continue(())
        })
        .unwrap();
    Some(Run {
        events,
        summary,
        output: reader.join().unwrap(),
    })
}
