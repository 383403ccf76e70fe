//! `gaudi trace` and `gaudi record`: print or record a program's requests to the driver.

#![expect(
    unsafe_code,
    reason = "installs a SIGINT handler and raises the signal that killed the program"
)]

use std::ffi::{OsString, c_int};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use gaudi_capture::decode::{Decoder, json_header};
use gaudi_capture::gcap::{Compression, Writer};
use gaudi_capture::record::{Event, LostCause};
use gaudi_tracer::{Backend, DeviceMatch, ErrorKind, Item, Options, StopHandle, Summary, Tier, Tracer};
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

use crate::common::Common;
use crate::decode::{Drawn, Filter, limits};
use crate::exit::{self, Usage};
use crate::output::Output;

/// Print every request of a program to the driver, decoded like strace.
#[derive(Debug, Args)]
#[command(
    after_help = "Lines are printed to standard error if a program is started, and to standard output with -p.\n\
                  --device selects the events of a device: 0, accel0 or /dev/accel/accel0.\n\n\
                  Examples:\n  gaudi trace -- ./program --its-option\n  sudo gaudi trace -p 4711 --slower-than 1"
)]
pub(crate) struct Trace {
    #[command(flatten)]
    traced: Traced,
    #[command(flatten)]
    drawn: Drawn,
    #[command(flatten)]
    filter: Filter,
}

/// Record every request of a program to the driver in a .gcap file.
#[derive(Debug, Args)]
#[command(
    after_help = "After a crash the file is readable up to its last complete record. `gaudi decode` prints it.\n\n\
                  Examples:\n  gaudi record -o run.gcap -- ./program\n  gaudi record --output run.gcap --compress -p 4711"
)]
pub(crate) struct Record {
    #[command(flatten)]
    traced: Traced,
    /// Compress the file.
    #[arg(long)]
    compress: bool,
    /// Also record the memory that the device wrote, so that `gaudi replay` returns its bytes;
    /// preload only.
    #[arg(long, conflicts_with = "pids")]
    data: bool,
    /// The common option `--output`: here the capture itself, which is written in place and not
    /// renamed when complete.
    #[arg(skip)]
    file: Option<PathBuf>,
}

impl Record {
    /// Sets what the parser does not: the file, and what `--data` changes.
    pub(crate) fn prepare(&mut self, file: Option<PathBuf>) {
        self.file = file;
        self.traced.data = self.data;
    }
}

/// What to trace, and how.
#[derive(Debug, Args)]
pub(crate) struct Traced {
    /// Trace a running process and everything that it starts from now on; may be repeated. Ctrl-C
    /// ends the tracing, not the process.
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "program")]
    pids: Vec<u32>,
    /// Tracing method: auto uses bpf if permitted. bpf adds less than a microsecond per ioctl and
    /// needs root; ptrace follows every pointer; preload adds least, but misses static programs.
    #[arg(long, value_enum, default_value_t = Kind::Auto, value_name = "KIND")]
    backend: Kind,
    /// Also record the command buffers of submissions, up to this many bytes each; ptrace only.
    #[arg(long, value_name = "BYTES", value_parser = crate::common::bytes)]
    command_buffers: Option<u64>,
    /// Trace these ioctls on every device, not only on accelerators, RDMA, VFIO and dma-bufs.
    #[arg(long)]
    all_devices: bool,
    /// The program and its arguments.
    #[arg(last = true, value_name = "CMD", required_unless_present = "pids")]
    program: Vec<OsString>,
    /// `--data` of `gaudi record`.
    #[arg(skip)]
    data: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// bpf if permitted, otherwise ptrace.
    Auto,
    /// eBPF programs on the system call tracepoints.
    Bpf,
    /// ptrace(2), with a seccomp filter.
    Ptrace,
    /// A library in the program, for what goes through libc.
    Preload,
}

/// The directories of the devices whose ioctls are decoded.
const NODES: [&str; 7] = [
    "/dev",
    "/dev/accel",
    "/dev/dma_heap",
    "/dev/dri",
    "/dev/infiniband",
    "/dev/vfio",
    "/dev/vfio/devices",
];
/// Prefixes of the names of these devices in `/dev`.
const IN_DEV: [&str; 2] = ["hl", "udmabuf"];

/// Returns the device number of a node.
fn node(path: &Path) -> Option<DeviceMatch> {
    let data = fs::metadata(path).ok()?;
    let number = data.rdev();
    data.file_type().is_char_device().then(|| DeviceMatch {
        major: libc::major(number),
        minor: Some(libc::minor(number)),
    })
}

/// Returns the device numbers of the RDMA devices that take commands.
fn rdma() -> Vec<DeviceMatch> {
    // The directory is missing without such devices.
    let entries = fs::read_dir("/dev/infiniband").into_iter().flatten().flatten();
    let is_verbs = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().starts_with("uverbs"));
        name == Some(true)
    };
    let paths = entries.map(|entry| entry.path()).filter(is_verbs);
    paths.filter_map(|path| node(&path)).collect()
}

/// Returns the device numbers of this machine's devices. Returns an empty list, which traces every
/// device, if the machine has no accelerator: the program may use a userspace one.
fn devices() -> Vec<DeviceMatch> {
    let is_ours = |folder: &str, path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        folder != "/dev" || name.is_some_and(|name| IN_DEV.iter().any(|begin| name.starts_with(begin)))
    };
    let is_accelerator = |path: &Path| path.starts_with("/dev/accel") || path.starts_with("/dev/hl");
    let mut found = Vec::new();
    let mut has_accelerator = false;
    for folder in NODES {
        // The directory is missing if the machine has no device of this kind.
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if !is_ours(folder, &path) {
                continue;
            }
            has_accelerator |= is_accelerator(&path);
            found.extend(node(&path));
        }
    }
    if has_accelerator { found } else { Vec::new() }
}

impl Traced {
    /// Traces a program by a method.
    pub(crate) fn of_program(program: &[OsString], backend: Kind) -> Self {
        Self {
            pids: Vec::new(),
            backend,
            command_buffers: None,
            all_devices: false,
            program: program.to_vec(),
            data: false,
        }
    }

    /// Returns what is traced, as a title.
    fn name(&self) -> String {
        let words = self
            .program
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let pids = self.pids.iter().map(|pid| format!("process {pid}"));
        words.chain(pids).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn start(&self, output: &Output) -> Result<Tracer> {
        let mut options = Options {
            backend: match self.backend {
                // The memory must be read before the program continues.
                Kind::Auto if self.data => Backend::Preload,
                Kind::Bpf | Kind::Ptrace if self.data => {
                    return Err(Usage("--data needs --backend preload".to_owned()).into());
                }
                Kind::Auto => Backend::Auto,
                Kind::Bpf => Backend::Bpf,
                Kind::Ptrace => Backend::Ptrace,
                Kind::Preload => Backend::Preload,
            },
            devices: if self.all_devices { Vec::new() } else { devices() },
            rdma: rdma(),
            command_buffers: self.command_buffers,
            data: self.data,
            ..Options::default()
        };
        let tracer = match self.program.split_first() {
            Some((program, arguments)) => {
                let spawn = |options: &Options| {
                    let mut command = Command::new(program);
                    command.args(arguments);
                    Tracer::spawn(command, options)
                };
                let mut tracer = spawn(&options);
                let is_refused = tracer.as_ref().is_err_and(|error| {
                    matches!(error.kind, ErrorKind::PtraceRefused | ErrorKind::Attach { .. })
                });
                if is_refused && options.backend == Backend::Auto {
                    // The tier that needs no permission.
                    options.backend = Backend::Preload;
                    tracer = spawn(&options);
                }
                let name = program.to_string_lossy().into_owned();
                tracer.with_context(|| format!("cannot trace {name}"))?
            }
            None => Tracer::attach(&self.pids, &options)?,
        };
        note(output, &format!("tracing by {}", tracer.tier()));
        Ok(tracer)
    }

    /// Returns whether to continue after an event. A failed write ends the tracing of a running
    /// process; a program that was started runs to its end, as if it were not traced.
    pub(crate) fn after(&self, has_failed: bool) -> ControlFlow<()> {
        match has_failed && self.program.is_empty() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Runs the tracer. If a program was started, it handles SIGINT itself; otherwise SIGINT ends
    /// the tracing.
    pub(crate) fn run(
        &self,
        tracer: Tracer,
        mut on_event: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Summary> {
        self.run_items(tracer, |item| match item {
            Item::Event(event) => on_event(event),
            Item::Encoded(event) => on_event(event.decode()),
            Item::Idle => ControlFlow::Continue(()),
        })
    }

    /// As [`run`](Self::run), without decoding the events that are encoded.
    fn run_items(&self, tracer: Tracer, on_item: impl FnMut(Item<'_>) -> ControlFlow<()>) -> Result<Summary> {
        let watch = Watch::begin(self.program.is_empty().then(|| tracer.stop_handle()))?;
        let summary = tracer.run_items(on_item);
        drop(watch);
        Ok(summary?)
    }
}

/// Prints a note on standard error.
fn note(output: &Output, text: &str) {
    if !output.is_quiet() {
        // Ignore a closed standard error.
        let _ = writeln!(io::stderr(), "note: {text}");
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_interrupt(_: c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Keeps SIGINT from ending this process. Installs a handler, because a started program would
/// inherit an ignored signal.
pub(crate) struct Watch {
    before: SigAction,
    done: std::sync::Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn begin(stop: Option<StopHandle>) -> Result<Self> {
        let action = SigAction::new(
            SigHandler::Handler(on_interrupt),
            SaFlags::SA_RESTART,
            SigSet::empty(),
        );
        // SAFETY: the handler stores to an atomic.
        let before = unsafe { sigaction(Signal::SIGINT, &action) }.context("cannot handle SIGINT")?;
        let done = std::sync::Arc::new(AtomicBool::new(false));
        let thread = stop.map(|stop| {
            let done = std::sync::Arc::clone(&done);
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if INTERRUPTED.load(Ordering::Relaxed) {
                        return stop.stop();
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            })
        });
        Ok(Self { before, done, thread })
    }

    /// Whether this process got a SIGINT.
    pub(crate) fn is_interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread's panic was already printed.
            let _ = thread.join();
        }
        // SAFETY: restores the previous action.
        let restored = unsafe { sigaction(Signal::SIGINT, &self.before) };
        debug_assert!(restored.is_ok(), "{restored:?}");
    }
}

/// Returns the facts of a session.
fn facts(tier: Tier, traced: &Traced) -> Vec<(String, String)> {
    let words = traced.program.iter().map(|word| word.to_string_lossy());
    let pids = traced.pids.iter().map(u32::to_string);
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("program", words.collect::<Vec<_>>().join(" ")),
        fact("pids", pids.collect::<Vec<_>>().join(" ")),
        fact("tier", tier.to_string()),
        fact(
            "data",
            if traced.data {
                "1".to_owned()
            } else {
                String::new()
            },
        ),
        fact("by", format!("gaudi {}", env!("GAUDI_VERSION"))),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .collect()
}

/// Prints the numbers of recorded and missed events.
pub(crate) fn report(output: &Output, summary: &Summary) {
    let Summary {
        tier,
        events,
        ioctls,
        lost,
        cut,
        unreadable,
        not_followed,
        corrupt,
        ..
    } = summary;
    let total = lost.total();
    note(
        output,
        &format!("{tier}: {events} events, {ioctls} ioctls; {total} lost, {cut} memory ranges truncated"),
    );
    for cause in LostCause::ALL {
        let count = lost.of(cause);
        let reason = match cause {
            _ if count == 0 => continue,
            LostCause::Unknown => "incomplete records",
            LostCause::BufferFull => "the buffer was full",
            LostCause::Skipped => {
                "at most: the kernel skipped an eBPF program that a preempted thread was running"
            }
            LostCause::TooManyThreads => "too many threads at the same time",
        };
        note(output, &format!("lost: {count} ({reason})"));
    }
    if *unreadable > 0 {
        note(output, &format!("{unreadable} memory ranges could not be read"));
    }
    if *not_followed > 0 {
        note(output, &format!("{not_followed} threads could not be traced"));
    }
    for problem in corrupt {
        note(output, &format!("events are missing: {problem}"));
    }
    // One line each: the list does not fit in 80 columns.
    let unseen = tier.unseen().join("\n      ");
    note(output, &format!("{tier} cannot observe:\n      {unseen}"));
}

/// Exits like the program: with its exit code, or by raising its signal.
pub(crate) fn end_as(status: Option<ExitStatus>, output: &mut Output) -> Result<u8> {
    let Some(status) = status else {
        return Ok(exit::DONE);
    };
    if let Some(code) = status.code() {
        return Ok(u8::try_from(code & 0xff).unwrap_or(exit::FAILED));
    }
    output.finish()?;
    let signal = status.signal().unwrap_or(libc::SIGKILL);
    if let Ok(signal) = Signal::try_from(signal) {
        // Do not overwrite the program's core file.
        let limited = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
        debug_assert!(limited.is_ok(), "{limited:?}");
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no code. sigaction(2) fails for SIGKILL, whose action is
        // fixed.
        let _ = unsafe { sigaction(signal, &default) };
        raise(signal).context("cannot raise the program's signal")?;
    }
    // The signal's default action does not end a process: use the shell's exit code.
    Ok(u8::try_from(128 + signal).unwrap_or(exit::FAILED))
}

pub(crate) fn trace(common: &Common, trace: &Trace, output: &mut Output) -> Result<u8> {
    // A file that cannot be written is an error before the program starts.
    let mut drawing = trace.drawn.begin(&trace.traced.name())?;
    let tracer = trace.traced.start(output)?;
    let to_stderr = common.output.is_none() && !trace.traced.program.is_empty();
    let print = |output: &mut Output, line: &str| {
        if to_stderr {
            return writeln!(io::stderr(), "{line}").map_err(anyhow::Error::from);
        }
        // Flush each line, so that a reader sees each event when it happens.
        output.line(line).and_then(|()| {
            if common.output.is_none() {
                output.finish()
            } else {
                Ok(())
            }
        })
    };
    if output.is_json() && !drawing.replaces_lines() {
        let header = json_header(&facts(tracer.tier(), &trace.traced));
        print(output, &header.to_string())?;
    }
    let mut decoder = Decoder::new(limits(output));
    let mut failed = None;
    let summary = trace.traced.run(tracer, |event| {
        let decoded = decoder.decode(&event);
        let passes = trace.filter.passes(&decoded, &common.devices);
        drawing.add(&event, &decoded, &decoder, passes);
        if !passes || drawing.replaces_lines() {
            return ControlFlow::Continue(());
        }
        let line = if output.is_json() {
            decoded.to_json().to_string()
        } else {
            decoded.to_string()
        };
        if failed.is_none() {
            failed = print(output, &line).err();
        }
        trace.traced.after(failed.is_some())
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    drawing.write()?;
    report(output, &summary);
    end_as(summary.status, output)
}

/// Bytes that are written to a capture at once.
const FILE_BUFFER: usize = 1 << 18;

pub(crate) fn record(_: &Common, record: &Record, output: &mut Output) -> Result<u8> {
    let Some(path) = &record.file else {
        return Err(Usage("`gaudi record` needs --output FILE for the capture".to_owned()).into());
    };
    let name = path.display();
    let cannot = || format!("cannot write {name}");
    let file = File::create(path).with_context(cannot)?;
    let tracer = record.traced.start(output)?;
    let compression = if record.compress {
        Compression::Deflate
    } else {
        Compression::None
    };
    let facts = facts(tracer.tier(), &record.traced);
    let mut writer =
        Writer::new(BufWriter::with_capacity(FILE_BUFFER, file), &facts, compression).with_context(cannot)?;
    let mut failed = None;
    let mut missing = 0_u64;
    let summary = record.traced.run_items(tracer, |item| {
        if failed.is_some() {
            return record.traced.after(true);
        }
        if let Item::Encoded(event) = &item {
            missing += event.missing_data();
        }
        let written = match item {
            Item::Event(event) => writer.write(&event),
            Item::Encoded(event) => writer.write_encoded(&event),
            // Now, so that the file has every record when this process is killed.
            Item::Idle => writer.flush(),
        };
        failed = written.err();
        record.traced.after(failed.is_some())
    })?;
    if let Some(error) = failed {
        return Err(anyhow::Error::from(error).context(cannot()));
    }
    writer
        .finish()
        .and_then(|mut file| file.flush())
        .with_context(cannot)?;
    report(output, &summary);
    if missing > 0 {
        note(
            output,
            &format!("{missing} bytes of changed memory are not recorded"),
        );
    }
    end_as(summary.status, output)
}
