//! Decodes records to strace-like lines and JSON objects.

use std::borrow::Cow;
use std::fmt;

use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsChunkFlags, HlCsChunk};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::view::{At, Pointee, Shape, Way};
use nix::errno::Errno;
use serde_json::{Map, json};

use crate::foreign;
use crate::names::{IoctlView, Names, view};
use crate::pointers::is_vfio;
use crate::record::{Event, FdSource, IoctlRecord, LostCause, MarkKind, Moment, ProcessChange};
use crate::value::{Field, Fields, Value};
use crate::walk::{Bytes, Limits, Walk, recorded, target};

/// The `schema` value in the first line of a decoded capture.
pub const SCHEMA: &str = "gaudi.trace";
/// The version of [`SCHEMA`]. Version 1 is the output of the layer `trace`.
pub const VERSION: u32 = 2;

/// Bytes of changed memory that are printed.
pub(crate) const DATA_BYTES: usize = 16;

/// Decodes the events of a capture. Events must be passed in order, because the meaning of a handle
/// depends on earlier events.
#[derive(Debug)]
pub struct Decoder {
    names: Names,
    limits: Limits,
}

/// A decoded event. [`Display`](fmt::Display) prints it as a line, [`to_json`](Self::to_json) as a
/// JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The kind of event, such as `ioctl` or `open`.
    pub record: &'static str,
    /// When the event began, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Duration in nanoseconds; `None` for an event without duration.
    pub duration_ns: Option<u64>,
    /// The process id and the thread id.
    pub thread: Option<(u32, u32)>,
    /// The name of the call: `HL_IOCTL_MEMORY`, `open`.
    pub call: String,
    /// The descriptor, and the file that it refers to.
    pub fd: Option<(i32, Option<String>)>,
    /// The arguments.
    pub request: Fields,
    /// The return value of the call; `None` for an event that is not a call.
    pub result: Option<i64>,
    /// The values that the kernel returned.
    pub answer: Fields,
    /// Recorded memory that the decoder did not use: address and length.
    pub extra: Vec<(u64, u64)>,
}

impl Decoder {
    /// Returns a decoder without knowledge of earlier events.
    pub fn new(limits: Limits) -> Self {
        Self {
            names: Names::default(),
            limits,
        }
    }

    /// Returns what the decoder knows about descriptors, handles and addresses.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Decodes an event and updates the known descriptors, handles and addresses.
    pub fn decode(&mut self, event: &Event) -> Decoded {
        let mut decoded = self.describe(event);
        self.names.apply(event);
        // Apply the event first, so that the answer can refer to the object that the call created.
        if let (Event::Ioctl(ioctl), Some(0..)) = (event, decoded.result) {
            for field in &mut decoded.answer.0 {
                if let Value::Signed(fd) = field.value {
                    field.is = self.names.describe(ioctl, None, field.name, fd as u64);
                }
            }
        }
        decoded
    }

    fn describe(&self, event: &Event) -> Decoded {
        let mut decoded = Decoded {
            record: "ioctl",
            time_ns: event.time_ns(),
            duration_ns: None,
            thread: event.thread(),
            call: String::new(),
            fd: None,
            request: Fields::default(),
            result: None,
            answer: Fields::default(),
            extra: Vec::new(),
        };
        let of_fd = |pid: u32, fd: i32| Some((fd, self.names.fd(pid, fd).map(str::to_owned)));
        let request = &mut decoded.request;
        let text = |bytes: &[u8]| Value::Text {
            bytes: bytes.to_vec(),
            more: 0,
        };
        match event {
            Event::Ioctl(ioctl) => {
                decoded.duration_ns = Some(ioctl.duration_ns);
                decoded.fd = of_fd(ioctl.pid, ioctl.fd);
                decoded.result = Some(ioctl.result);
                self.ioctl(ioctl, &mut decoded);
                return decoded;
            }
            Event::Write(write) => {
                decoded.record = "write";
                decoded.duration_ns = Some(write.duration_ns);
                decoded.fd = of_fd(write.pid, write.fd);
                decoded.result = Some(write.result);
                (decoded.call, decoded.request, decoded.answer) = crate::write::write_command(&write.memory);
                return decoded;
            }
            Event::Open(open) => {
                decoded.record = "open";
                decoded.duration_ns = Some(open.duration_ns);
                decoded.result = Some(open.result);
                request.push("path", text(&open.path));
                if open.flags != 0 {
                    request.push("flags", Value::Hex(open.flags.into()));
                }
                let source = match open.source {
                    FdSource::Open => None,
                    FdSource::Inherited => Some("inherited"),
                    FdSource::Received => Some("received"),
                    FdSource::Taken => Some("taken"),
                    FdSource::Created => Some("created"),
                };
                if let Some(source) = source {
                    request.push("source", Value::Name(source.to_owned()));
                }
            }
            Event::Close { pid, fd, result, .. } => {
                decoded.record = "close";
                decoded.fd = of_fd(*pid, *fd);
                decoded.result = Some(*result);
            }
            Event::Dup { pid, fd, result, .. } => {
                decoded.record = "dup";
                decoded.fd = of_fd(*pid, *fd);
                decoded.result = Some(*result);
            }
            Event::Mmap(mmap) => {
                decoded.record = "mmap";
                decoded.duration_ns = Some(mmap.duration_ns);
                decoded.fd = of_fd(mmap.pid, mmap.fd);
                request.push("address", Value::Hex(mmap.address));
                request.push("length", Value::Unsigned(mmap.length));
                request.push("prot", Value::Hex(mmap.protection.into()));
                request.push("flags", Value::Hex(mmap.flags.into()));
                request.push("offset", Value::Hex(mmap.offset));
                match mmap.result {
                    -4095..0 => decoded.result = Some(mmap.result),
                    address => {
                        decoded.result = Some(0);
                        decoded.answer.push("address", Value::Hex(address as u64));
                    }
                }
            }
            Event::Munmap {
                address,
                length,
                result,
                ..
            } => {
                decoded.record = "munmap";
                request.push("address", Value::Hex(*address));
                request.push("length", Value::Unsigned(*length));
                decoded.result = Some(*result);
            }
            Event::Process(process) => match &process.change {
                ProcessChange::Start {
                    parent,
                    shares_files,
                    name,
                } => {
                    decoded.record = "start";
                    request.push("name", text(name));
                    request.push("parent", Value::Unsigned((*parent).into()));
                    if *shares_files {
                        request.push("shares_files", Value::Unsigned(1));
                    }
                }
                ProcessChange::Exec { path } => {
                    decoded.record = "exec";
                    request.push("path", text(path));
                }
                ProcessChange::Exit { status } => {
                    decoded.record = "exit";
                    // The encoding of wait(2): the low seven bits are the signal.
                    match status & 0x7f {
                        0 => request.push("status", Value::Unsigned((status >> 8 & 0xff).into())),
                        signal => request.push("signal", Value::Unsigned(signal.into())),
                    }
                }
            },
            Event::Lost { count, cause, .. } => {
                decoded.record = "lost";
                request.push("count", Value::Unsigned(*count));
                if *cause != LostCause::Unknown {
                    request.push("cause", Value::Name(cause.name().to_owned()));
                }
            }
            Event::Mark(mark) => {
                decoded.record = "mark";
                let kind = match mark.kind {
                    MarkKind::Fault => "fault",
                    MarkKind::DeviceLost => "device_lost",
                    MarkKind::Reset => "reset",
                    MarkKind::Note => "note",
                };
                request.push("kind", Value::Name(kind.to_owned()));
                request.push("text", text(&mark.text));
            }
            Event::Data(data) => {
                decoded.record = "data";
                let memory = &data.memory;
                let moment = match memory.at {
                    Moment::Entry => "entry",
                    Moment::Exit => "exit",
                };
                request.push("at", Value::Name(moment.to_owned()));
                request.push("address", Value::Hex(memory.address));
                request.push("length", Value::Unsigned(memory.whole));
                let shown = memory.bytes.len().min(DATA_BYTES);
                request.push(
                    "bytes",
                    Value::Bytes {
                        bytes: memory.bytes[..shown].to_vec(),
                        more: memory.whole.saturating_sub(shown as u64),
                    },
                );
            }
        }
        decoded.call = decoded.record.to_owned();
        decoded
    }

    fn ioctl(&self, ioctl: &IoctlRecord, decoded: &mut Decoded) {
        let path = self.names.fd(ioctl.pid, ioctl.fd).unwrap_or_default();
        let unknown = || {
            let Parts {
                direction,
                kind,
                nr,
                size,
            } = Parts::of(ioctl.request);
            let direction = ["_IO", "_IOW", "_IOR", "_IOWR"][direction as usize & 3];
            match char::from(kind).is_ascii_graphic() {
                true => format!("{direction}('{}', {nr:#x}, {size})", char::from(kind)),
                false => format!("{direction}({kind:#x}, {nr:#x}, {size})"),
            }
        };
        if ioctl.compat {
            decoded.call = unknown();
            decoded
                .request
                .push("compat", Value::Name("not decoded".to_owned()));
            return;
        }
        if let Some(view) = self.names.view_of(ioctl) {
            match view.call {
                Some(call) => decoded.call = format!("HL_IOCTL_{call}"),
                None => view.name.clone_into(&mut decoded.call),
            }
            return self.fill(ioctl, &view, decoded);
        }
        match foreign::name(ioctl.request, path) {
            Some(name) => name.clone_into(&mut decoded.call),
            None if ioctl.request == foreign::RDMA_VERBS_IOCTL => {
                "RDMA_VERBS_IOCTL".clone_into(&mut decoded.call);
                (decoded.request, decoded.answer) = foreign::uverbs(ioctl, self.limits);
                return;
            }
            None => decoded.call = unknown(),
        }
        decoded.request.push("argument", Value::Hex(ioctl.argument));
    }

    /// Decodes the argument of an ioctl at entry and at exit.
    fn fill(&self, ioctl: &IoctlRecord, view: &IoctlView, decoded: &mut Decoded) {
        let IoctlView {
            call,
            input: ref shape,
            output,
            ..
        } = *view;
        let mut walk = Walk::new(&ioctl.memory, self.limits);
        let [before, after] = [Moment::Entry, Moment::Exit].map(|at| argument(ioctl, at));
        // The size field of the request number is the size of the program's struct; of VFIO, its
        // first word.
        let size = match is_vfio(ioctl.request) {
            true => stated_size(&before),
            false => Parts::of(ioctl.request).size,
        };
        let whole = size.min(shape.base.size);
        let input = Bytes {
            bytes: &before[..before.len().min(whole)],
            whole,
        };
        decoded.request = walk.shape(shape, input, ioctl.argument);
        if before.is_empty() && decoded.request.0.is_empty() {
            decoded.request.push("argument", Value::Hex(ioctl.argument));
        }
        self.describe_fields(ioctl, call, &mut decoded.request);
        if call == Some(Ioctl::Cs) {
            self.command_buffers(ioctl, shape, input.bytes, &mut walk, &mut decoded.request);
        }
        if view.has_answer(ioctl.result) {
            let bytes = &after[..after.len().min(size)];
            decoded.answer = walk.answer(output, Bytes { bytes, whole: size });
            for pointer in shape.pointers.iter().filter(|pointer| pointer.way != Way::In) {
                let filled = Some((output, bytes));
                let Some(target) = target(shape, pointer, (input.bytes, filled), ioctl.argument) else {
                    continue;
                };
                if target.address != 0 && target.len != 0 && matches!(pointer.at, At::Field) {
                    let value = walk.pointee(target, Moment::Exit);
                    decoded.answer.push(pointer.name, value);
                }
            }
        }
        if is_vfio(ioctl.request) {
            // What follows the struct has a meaning that depends on the request.
            if let Some(rest) = before
                .get(whole..size.min(before.len()))
                .filter(|rest| rest.iter().any(|byte| *byte != 0))
            {
                decoded.request.push("data", walk.plain_bytes(rest, size - whole));
            }
            return;
        }
        let unused = ioctl.memory.iter().zip(&walk.used).filter(|(_, used)| !**used);
        decoded.extra = unused.map(|(memory, _)| (memory.address, memory.whole)).collect();
    }

    /// Adds a description of the object that each handle, address or descriptor refers to.
    fn describe_fields(&self, ioctl: &IoctlRecord, call: Option<Ioctl>, fields: &mut Fields) {
        for Field { name, value, is } in &mut fields.0 {
            match value {
                Value::Unsigned(number) | Value::Hex(number) => {
                    *is = self.names.describe(ioctl, call, name, *number);
                }
                Value::Signed(number) => {
                    *is = self.names.describe(ioctl, call, name, *number as u64);
                }
                Value::Pointer { to: Some(to), .. } => self.describe_inside(ioctl, call, to),
                _ => {}
            }
        }
    }

    fn describe_inside(&self, ioctl: &IoctlRecord, call: Option<Ioctl>, value: &mut Value) {
        match value {
            Value::Struct(fields) => self.describe_fields(ioctl, call, fields),
            Value::List { items, .. } => {
                for item in items {
                    self.describe_inside(ioctl, call, item);
                }
            }
            _ => {}
        }
    }

    /// Adds the packets of recorded command buffers to the fields of the jobs.
    fn command_buffers(
        &self,
        ioctl: &IoctlRecord,
        shape: &Shape,
        input: &[u8],
        walk: &mut Walk<'_>,
        fields: &mut Fields,
    ) {
        for pointer in shape.pointers {
            let Some(target) = target(shape, pointer, (input, None), ioctl.argument) else {
                continue;
            };
            // Chunks of a wait have no command buffer.
            let Pointee::Structs(chunk) = target.to else {
                continue;
            };
            if !chunk.has_command_buffer() {
                continue;
            }
            let Some((_, bytes)) = recorded(&ioctl.memory, target.address, Moment::Entry) else {
                continue;
            };
            let field = fields.0.iter_mut().find(|field| field.name == pointer.name);
            let Some(Field {
                value: Value::Pointer { to: Some(list), .. },
                ..
            }) = field
            else {
                continue;
            };
            let Value::List { items, .. } = &mut **list else {
                continue;
            };
            for (item, bytes) in items.iter_mut().zip(bytes.chunks(chunk.base.size)) {
                let Value::Struct(fields) = item else { continue };
                if let Some(packets) = self.packets(ioctl, &view(bytes), walk) {
                    fields.push("packets", packets);
                }
            }
        }
    }

    fn packets(&self, ioctl: &IoctlRecord, chunk: &HlCsChunk, walk: &mut Walk<'_>) -> Option<Value> {
        let is_mapped = chunk.cs_chunk_flags.contains(CsChunkFlags::USER_ALLOC_CB);
        let (pid, fd) = (ioctl.pid, ioctl.fd);
        let address = self.names.command_buffer(pid, fd, chunk.cb_handle, is_mapped)?;
        let asic = self.names.asic(pid, fd)?;
        walk.packets(asic, address, u64::from(chunk.cb_size))
    }
}

/// Returns the argument's bytes at a moment. A tracer that does not know its size from the request
/// number records the start as the argument, and the rest as memory behind it.
fn argument(ioctl: &IoctlRecord, at: Moment) -> Cow<'_, [u8]> {
    let start = match at {
        Moment::Entry => &ioctl.input,
        Moment::Exit => &ioctl.output,
    };
    if !is_vfio(ioctl.request) {
        return Cow::Borrowed(start);
    }
    let behind = recorded(&ioctl.memory, ioctl.argument.wrapping_add(start.len() as u64), at);
    let rest = behind.map_or(&[][..], |(_, rest)| rest);
    Cow::Owned([start, rest].concat())
}

/// Returns the size that the first word of an argument states.
fn stated_size(bytes: &[u8]) -> usize {
    let word = bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    usize::try_from(word).unwrap_or(usize::MAX)
}

/// Returns the name of the errno in `-errno`.
fn errno_name(result: i64) -> String {
    let number = i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX);
    match number {
        // Errnos that only tracers see, because the kernel handles them itself (linux/errno.h).
        512 => "ERESTARTSYS".to_owned(),
        513 => "ERESTARTNOINTR".to_owned(),
        514 => "ERESTARTNOHAND".to_owned(),
        515 => "ENOIOCTLCMD".to_owned(),
        516 => "ERESTART_RESTARTBLOCK".to_owned(),
        number => match Errno::from_raw(number) {
            Errno::UnknownErrno => format!("errno {number}"),
            errno => format!("{errno:?}"),
        },
    }
}

/// A duration in a readable unit.
struct Duration(u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        match ns {
            0..1_000_000 => write!(f, "{}.{}us", ns / 1000, ns % 1000 / 100),
            1_000_000..1_000_000_000 => write!(f, "{}.{}ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
            _ => write!(f, "{}.{:03}s", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000_000),
        }
    }
}

impl fmt::Display for Decoded {
    /// Formats one line without newline, time and thread.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{", self.call)?;
        if let Some((fd, label)) = &self.fd {
            write!(f, "fd={fd}")?;
            if let Some(label) = label {
                write!(f, "<{label}>")?;
            }
            if !self.request.0.is_empty() {
                f.write_str(", ")?;
            }
        }
        write!(f, "{}}}", self.request)?;
        match self.result {
            Some(error @ -4095..0) => write!(f, " = -1 {}", errno_name(error))?,
            Some(value) => write!(f, " = {value}")?,
            None => {}
        }
        if !self.answer.0.is_empty() {
            write!(f, " → {}", self.answer)?;
        }
        for (address, len) in &self.extra {
            write!(f, " [{len} bytes at {address:#x}]")?;
        }
        match self.duration_ns {
            Some(ns) => write!(f, "  <{}>", Duration(ns)),
            None => Ok(()),
        }
    }
}

impl Decoded {
    /// Returns the event as a JSON object of schema [`SCHEMA`].
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = Map::new();
        let mut set = |name: &str, value: serde_json::Value| {
            object.insert(name.to_owned(), value);
        };
        set("record", self.record.into());
        set("time_ns", Value::Unsigned(self.time_ns).to_json());
        if let Some(ns) = self.duration_ns {
            set("duration_ns", Value::Unsigned(ns).to_json());
        }
        if let Some((pid, tid)) = self.thread {
            set("pid", pid.into());
            set("tid", tid.into());
        }
        set("call", self.call.as_str().into());
        if let Some((fd, label)) = &self.fd {
            set("fd", (*fd).into());
            if let Some(label) = label {
                set("fd_is", label.as_str().into());
            }
        }
        set("request", self.request.to_json());
        if let Some(result) = self.result {
            set("result", Value::Signed(result).to_json());
            if (-4095..0).contains(&result) {
                set("errno", errno_name(result).into());
            }
        }
        if !self.answer.0.is_empty() {
            set("answer", self.answer.to_json());
        }
        if !self.extra.is_empty() {
            let extra = self.extra.iter();
            let extra = extra.map(|&(address, len)| {
                let size = Value::Unsigned(len).to_json();
                json!({"address": Value::Hex(address).to_json(), "size_bytes": size})
            });
            set("extra", extra.collect());
        }
        object.into()
    }
}

/// Returns the first line of a decoded capture.
pub fn json_header(facts: &[(String, String)]) -> serde_json::Value {
    let facts = facts
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()));
    let facts: Map<_, _> = facts.collect();
    json!({"record": "header", "schema": SCHEMA, "version": VERSION, "facts": facts})
}
