//! Layers around the mock, chosen by a spec as a program chooses them.

#![cfg(feature = "mock")]
#![expect(unsafe_code, reason = "host memory is pinned by address")]

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gaudi_hal::layers::fault::{FaultLayer, Plan};
use gaudi_hal::layers::time::VirtualClock;
use gaudi_hal::layers::trace::{Call, Outcome, Reader, Record};
use gaudi_hal::layers::validate::{Judgement, Policy, ValidateLayer};
use gaudi_hal::{DeviceSpec, ErrorKind, Result, SharedIo, control, open};
use gaudi_seam::Operation;
use gaudi_seam::{
    CsRequest, CsSeq, DeviceVa, Errno, ExportRequest, HostVa, KernelIo, KernelIoExt as _, LayerSpec,
    MapDevice, MapHost, MemAlloc, MemHandle, RawMapping, WaitStatus,
};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};
use gaudi_uapi::memory::MemFlags;

fn spec(name: &str, layers: &[(&str, &str)]) -> DeviceSpec {
    let mut spec: DeviceSpec = format!("mock:gaudi2?name={name}&dram=1536MiB&clock=virtual")
        .parse()
        .expect("a spec");
    spec.layers = layers
        .iter()
        .map(|(name, argument)| LayerSpec {
            name: (*name).to_owned(),
            argument: (!argument.is_empty()).then(|| (*argument).to_owned()),
        })
        .collect();
    spec
}

fn alloc(io: &dyn KernelIo) -> Result<MemHandle> {
    io.mem_alloc(MemAlloc {
        size: 4096,
        page_size: 0,
        flags: MemFlags::NONE,
    })
}

fn map(io: &dyn KernelIo, handle: MemHandle) -> Result<DeviceVa> {
    io.mem_map_device(MapDevice {
        handle,
        hint: None,
        flags: MemFlags::NONE,
    })
}

/// The first line of a trace.
const OLD_TRACE: &str = concat!(
    r#"{"record":"header","schema":"gaudi.trace","version":1,"session":1,"backend":"mock","device":"mock0","#,
    r#""node":"compute","name":"mock:gaudi2","era":"accel-drm","pid":1,"time_unix_ns":0}"#,
    "\n"
);

/// Opens a mock with this trace file.
fn traced_to(path: &Path) -> Result<SharedIo> {
    open(&spec(
        "layers-file-kinds",
        &[("trace", path.to_str().expect("UTF-8"))],
    ))
}

#[test]
fn trace_keeps_files_that_are_not_traces() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("letter"), "dear reader\n").expect("written");
    fs::write(at("json"), "{\"record\":\"header\",\"schema\":\"other\"}\n").expect("written");
    fs::write(at("old"), OLD_TRACE).expect("written");
    std::os::unix::fs::symlink(at("old"), at("link")).expect("linked");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    for (name, expected) in [
        ("letter", "not a trace"),
        ("json", "not a trace"),
        ("link", "symbolic link"),
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
    ] {
        let error = traced_to(&at(name))
            .err()
            .unwrap_or_else(|| panic!("{name} is refused"));
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
    assert_eq!(fs::read_to_string(at("letter")).expect("read"), "dear reader\n");
    assert_eq!(fs::read_to_string(at("old")).expect("read"), OLD_TRACE);
    let dash = traced_to(Path::new("-")).err().expect("- is refused");
    assert!(dash.help().is_some_and(|help| help.contains("./-")), "{dash:?}");
    assert!(!Path::new("-").exists());
}

#[test]
fn trace_of_another_process_is_refused() {
    use nix::fcntl::{Flock, FlockArg};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    fs::write(&path, OLD_TRACE).expect("written");
    // A lock belongs to an open file description: to the layer this one is another process's.
    let other = fs::File::options().append(true).open(&path).expect("opens");
    let other = Flock::lock(other, FlockArg::LockExclusiveNonblock).expect("locked");
    let error = traced_to(&path).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("run.jsonl"), "{error}");
    assert_eq!(
        fs::read_to_string(&path).expect("read"),
        OLD_TRACE,
        "nothing is lost"
    );
    drop(other);
    drop(traced_to(&path).expect("the other is done"));
    let second = traced_to(&path).expect("opens again in this process");
    drop(second);
    assert_eq!(
        calls(&path),
        ["header compute", "end 0", "header compute", "end 0"]
    );
}

#[test]
fn fault_plan_from_pipe_does_not_block() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let missing = folder.path().join("missing");
    for (path, expected) in [(&pipe, "has no writer"), (&missing, "no such file")] {
        let spec = spec("layers-pipe", &[("fault", path.to_str().expect("UTF-8"))]);
        let error = open(&spec).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn fault_handle_reports_rules_that_never_fired() {
    let plan = "mem_alloc:when=2:error=ENOMEM;submit:when=77:error=EIO";
    let device = open(&spec("layers-handle", &[("fault", plan)])).expect("opens");
    let handles = gaudi_hal::fault_handles(&device);
    let [handle] = &handles[..] else {
        panic!("one layer of faults: {handles:?}")
    };
    assert_eq!(handle.unfired().len(), 2, "nothing was asked yet");
    let first = alloc(&*device).expect("the first");
    alloc(&*device).expect_err("the second");
    device.mem_free(first).expect("freed");
    let counts: Vec<(String, u64, u64)> = handle
        .rules()
        .into_iter()
        .map(|count| (count.rule.to_string(), count.seen, count.fired))
        .collect();
    assert_eq!(
        counts,
        [
            ("mem_alloc:when=2:error=ENOMEM".to_owned(), 2, 1),
            ("submit:when=77:error=EIO".to_owned(), 0, 0)
        ]
    );
    assert_eq!(handle.unfired()[0].to_string(), "submit:when=77:error=EIO");
    assert!(gaudi_hal::fault_handles(&open(&spec("layers-plain", &[])).expect("opens")).is_empty());
}

fn calls(path: &Path) -> Vec<String> {
    let file = BufReader::new(fs::File::open(path).expect("the trace"));
    let line = |record| match record {
        Record::Header(header) => format!("header {}", header.node),
        Record::Operation(operation) => match operation.outcome {
            Outcome::Answer(_) => format!("{}", operation.call),
            Outcome::Error(error) => format!("{} {}", operation.call, error.errno.unwrap_or_default()),
        },
        Record::End(end) => format!("end {}", end.operations),
        Record::Unknown(fields) => panic!("nothing unknown is written: {fields:?}"),
    };
    Reader::new(file)
        .map(|record| line(record.expect("a whole trace")))
        .collect()
}

#[test]
fn outer_trace_records_injected_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let spec = spec(
        "layers-order",
        &[
            ("trace", &text(&inside)),
            ("fault", "mem_alloc:when=2:error=ENOMEM"),
            ("validate", ""),
            ("trace", &text(&outside)),
        ],
    );
    let again: DeviceSpec = spec.to_string().parse().expect("what prints parses");
    assert_eq!(again, spec, "a plan goes through the spec's encoding: {spec}");
    let io = open(&again).expect("opens");
    let handle = alloc(&*io).expect("the first");
    let error = alloc(&*io).expect_err("the second");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::OutOfDeviceMemory, Some(Errno::ENOMEM))
    );
    io.mem_free(handle).expect("given back");
    drop(io);
    assert_eq!(
        calls(&outside),
        [
            "header compute",
            "mem_alloc",
            "mem_alloc ENOMEM",
            "mem_free",
            "end 3"
        ]
    );
    assert_eq!(
        calls(&inside),
        ["header compute", "mem_alloc", "mem_free", "end 2"],
        "the refused one never came here"
    );
}

#[test]
fn nodes_of_one_spec_share_a_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    fs::write(&path, OLD_TRACE).expect("written");
    let spec = spec("layers-shared", &[("trace", path.to_str().expect("UTF-8"))]);
    let compute = open(&spec).expect("opens");
    let watcher = control(&spec).expect("opens");
    watcher.query::<HlInfoDeviceStatus>().expect("answered");
    assert!(alloc(&*watcher).is_err(), "a control node has no memory");
    drop(compute);
    drop(watcher);
    assert_eq!(
        calls(&path),
        [
            "header compute",
            "header control",
            "info",
            "mem_alloc ENOTTY",
            "end 0",
            "end 2"
        ]
    );
}

#[test]
fn a_plan_may_be_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.txt");
    fs::write(&path, "# the device goes away\nmem_alloc:reset\n").expect("written");
    let io = open(&spec("layers-file", &[("fault", path.to_str().expect("UTF-8"))])).expect("opens");
    let error = alloc(&*io).expect_err("the reset");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceLost, Some(Errno::EBUSY))
    );
    let status: HlInfoDeviceStatus = io.query().expect("given in reset");
    assert_eq!(status.status, DeviceStatus::IN_RESET);
    drop(io);
    let io = open(&spec("layers-file", &[])).expect("opens again, and the reset is over");
    alloc(&*io).expect("as new");
}

#[test]
fn invalid_layer_is_rejected_before_open() {
    for (layer, argument, kind, expected) in [
        (
            "fault",
            "alloc:lose",
            ErrorKind::InvalidInput,
            "\"alloc:lose\" is not a file",
        ),
        ("fault", "", ErrorKind::InvalidInput, "fault needs a plan"),
        (
            "trace",
            "/nowhere/run.jsonl",
            ErrorKind::InvalidInput,
            "/nowhere/run.jsonl cannot be opened",
        ),
        ("trace", "", ErrorKind::InvalidInput, "trace needs a file"),
        (
            "validate",
            "hard",
            ErrorKind::InvalidInput,
            "validate takes no such argument",
        ),
        ("record", "", ErrorKind::InvalidInput, "record needs a file"),
    ] {
        let wrong = spec("layers-wrong", &[(layer, argument)]);
        let error = open(&wrong).err().expect("refused");
        assert_eq!(error.kind(), kind, "{layer}={argument}: {error}");
        assert!(
            error.to_string().contains(expected),
            "{layer}={argument} must say {expected:?}: {error}"
        );
        assert!(error.help().is_some(), "{layer}={argument}: a way out");
        assert_eq!(gaudi_hal::mock_ledger(&wrong), None, "no device was made");
    }
}

/// Host memory that the device sees, with commands in it that do nothing.
struct Commands {
    io: SharedIo,
    va: DeviceVa,
    _memory: RawMapping,
}

impl Commands {
    fn new(io: &SharedIo) -> Self {
        let memory = RawMapping::anonymous(4096, true).expect("memory");
        // A NOP of Gaudi2: opcode 0x8 in bits 24 to 28 of the control word, which is the second.
        memory
            .write(4, &0x0800_0000_u32.to_le_bytes())
            .expect("in bounds");
        let request = MapHost {
            address: HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64),
            size: 4096,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the mapping outlives the device's: `drop` unmaps first; nothing refers to the
        // memory.
        let va = unsafe { io.mem_map_host(request) }.expect("mapped");
        Self {
            io: io.clone(),
            va,
            _memory: memory,
        }
    }

    fn submit(&self) -> CsSeq {
        let chunks = [HlCsChunk::user(0, self.va.0, 8)];
        let request = CsRequest {
            execute: &chunks,
            ..CsRequest::default()
        };
        self.io.submit(&request).expect("taken").seq
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let _ = self.io.mem_unmap(self.va);
    }
}

#[test]
fn lost_completion_still_did_the_work() {
    let device = open(&spec("layers-lost", &[])).expect("opens");
    let plan: Plan = "submit:when=2:lose".parse().expect("a plan");
    let layer = Arc::new(FaultLayer::new(
        device.clone(),
        &plan,
        Arc::new(VirtualClock::default()),
    ));
    let handle = layer.handle();
    let io: SharedIo = layer;
    let commands = Commands::new(&io);
    let (first, second) = (commands.submit(), commands.submit());
    let status = |io: &dyn KernelIo, seq| {
        io.wait_cs(seq, Duration::from_millis(5))
            .map(|answer| answer.status)
    };
    assert_eq!(status(&*io, first), Ok(WaitStatus::Completed));
    assert_eq!(
        status(&*io, second),
        Ok(WaitStatus::Busy),
        "its completion is lost"
    );
    assert_eq!(
        status(&*device, second),
        Ok(WaitStatus::Completed),
        "below the layer it has one"
    );
    assert_eq!(handle.log().events.len(), 1);
    let error = io
        .wait_cs(second, Duration::from_secs(60))
        .expect_err("aborted after 30 s");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Hung, Some(Errno::ETIMEDOUT))
    );
}

#[test]
fn mock_rejects_what_validate_expects() {
    let layer = Arc::new(ValidateLayer::new(
        open(&spec("layers-judge", &[])).expect("opens"),
        Policy::Explain,
    ));
    let io: SharedIo = layer.clone();
    let handle = alloc(&*io).expect("good");
    let va = map(&*io, handle).expect("good");
    let export = |address, size, offset| {
        let request = ExportRequest {
            address,
            size,
            offset,
            flags: 0,
        };
        io.export_dmabuf(request)
    };
    let fd = export(va, 4096, 4096).expect("good");
    let inside = DeviceVa(va.0 + 4096);
    let refused = [
        io.mem_free(handle).err(),
        io.mem_unmap(va).err(),
        io.mem_unmap(inside).err(),
        export(va, 4096, 1).err(),
        export(va, 1 << 30, 0).err(),
        export(inside, 4096, 0).err(),
        io.wait_cs(CsSeq(9), Duration::ZERO).err(),
    ];
    for error in &refused {
        assert_eq!(
            error.as_ref().and_then(|error| error.errno()),
            Some(Errno::EINVAL),
            "{error:?}"
        );
    }
    drop(fd);
    io.mem_unmap(va).expect("the dma-buf is closed");
    let again = [
        io.mem_unmap(va).err(),
        io.mem_free(handle).err(),
        io.mem_free(handle).err(),
    ];
    assert!(
        again[0].is_some() && again[1].is_none() && again[2].is_some(),
        "{again:?}"
    );
    let findings = layer.findings();
    assert_eq!(findings.len(), 9, "{findings:?}");
    for finding in findings {
        assert_eq!(
            finding.outcome,
            Judgement::Refused(Some(Errno::EINVAL)),
            "the mock agrees: {finding}"
        );
    }
    assert!(layer.leaks().is_empty(), "{}", layer.leaks());
}

#[test]
fn correct_program_has_no_findings() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    let traced = open(&spec("layers-right", &[("trace", path.to_str().expect("UTF-8"))])).expect("opens");
    let layer = Arc::new(ValidateLayer::new(traced, Policy::Refuse));
    let io: SharedIo = layer.clone();
    let commands = Commands::new(&io);
    let seq = commands.submit();
    let answer = io.wait_cs(seq, Duration::from_secs(1)).expect("done");
    assert_eq!(answer.status, WaitStatus::Completed);
    drop(commands);
    assert_eq!(layer.findings(), []);
    assert!(layer.leaks().is_empty());
    drop((io, layer));
    let expected: Vec<String> = [
        Operation::MemMapHost,
        Operation::Submit,
        Operation::WaitCs,
        Operation::MemUnmap,
    ]
    .map(|operation| Call::Known(operation).to_string())
    .to_vec();
    let seen = calls(&path);
    assert_eq!(seen[1..seen.len() - 1], expected);
}
