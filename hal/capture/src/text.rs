//! The text form of a capture: a few lines per event, suitable for version control.
//!
//! docs/src/reference/gcap.md defines the grammar. Converting to text and back preserves everything
//! except comments and the notation of bytes.
//!
//! A serialisation crate (toml, serde_json) was rejected: it would write argument structs as lists
//! of numbers, one per line.

use std::fmt;
use std::io::{self, BufRead, Read as _};

use crate::gcap::MAX_PAYLOAD;
use crate::record::{
    DataRecord, DeviceNumber, Event, FdSource, IoctlRecord, LostCause, MarkKind, MarkRecord, Memory,
    MmapRecord, Moment, OpenRecord, ProcessChange, ProcessRecord, WriteRecord,
};

/// The first line.
const HEAD: &str = "gcap-text 1";
/// The bytes that every version of the text form starts with.
pub const MAGIC: &[u8] = b"gcap-text";
/// Maximum number of bytes in a line of data.
const LINE: usize = 32;
/// Maximum length of an input line in bytes.
const MAX_LINE: u64 = 1 << 20;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextErrorKind {
    /// The text could not be read.
    Io,
    /// The first line is not the header of a capture text, or its version is not supported.
    Head,
    /// A line starts with a word that the grammar does not allow there.
    Word,
    /// A field is unknown, duplicate, or without a value.
    Field,
    /// A value is invalid for its field.
    Value,
    /// The bytes of an event exceed the format's limit.
    TooLong,
}

/// A text that is not a valid capture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("capture text, line {line}: {problem}")]
pub struct TextError {
    /// What is wrong.
    pub kind: TextErrorKind,
    /// Line number, starting at 1.
    pub line: usize,
    /// A description of the error.
    pub problem: String,
}

/// Formats the header of a text with these facts, as [`Reader`] reads it.
pub fn head(facts: &[(String, String)]) -> impl fmt::Display {
    format!("{HEAD}\n{}", Facts(facts))
}

/// Formats facts as the lines that [`Reader`] reads, also between events.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a>(pub &'a [(String, String)]);

impl fmt::Display for Facts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.0 {
            f.write_str("fact ")?;
            quote(f, name.as_bytes())?;
            f.write_str(" ")?;
            quote(f, value.as_bytes())?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Formats an event as the lines that [`Reader`] reads.
#[derive(Clone, Copy, Debug)]
pub struct EventText<'a>(pub &'a Event);

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_event(f, self.0)
    }
}

/// Writes a byte string in quotes, escaped to ASCII.
fn quote(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    f.write_char('"')?;
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => write!(f, "\\{}", char::from(byte))?,
            b' '..=b'~' => f.write_char(char::from(byte))?,
            _ => write!(f, "\\x{byte:02x}")?,
        }
    }
    f.write_char('"')
}

/// Names of enumeration values, for both directions.
const SOURCES: &[(&str, FdSource)] = &[
    ("open", FdSource::Open),
    ("inherited", FdSource::Inherited),
    ("received", FdSource::Received),
    ("taken", FdSource::Taken),
    ("created", FdSource::Created),
];
const MARKS: &[(&str, MarkKind)] = &[
    ("fault", MarkKind::Fault),
    ("device-lost", MarkKind::DeviceLost),
    ("reset", MarkKind::Reset),
    ("note", MarkKind::Note),
];
const CAUSES: &[(&str, LostCause)] = &[
    ("buffer-full", LostCause::BufferFull),
    ("skipped", LostCause::Skipped),
    ("too-many-threads", LostCause::TooManyThreads),
];
const MOMENTS: &[(&str, Moment)] = &[("entry", Moment::Entry), ("exit", Moment::Exit)];

fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let row = table.iter().find(|(_, row)| row == value);
    row.expect("the table contains every value").0
}

struct Line<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Line<'_, '_> {
    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) -> fmt::Result {
        write!(self.0, " time={time_ns} pid={pid} tid={tid}")
    }

    fn field(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        write!(self.0, " {name}={value}")
    }

    fn hex(&mut self, name: &str, value: u64) -> fmt::Result {
        write!(self.0, " {name}={value:#x}")
    }

    fn device(&mut self, device: Option<DeviceNumber>) -> fmt::Result {
        match device {
            Some(DeviceNumber { major, minor }) => self.field("device", format_args!("{major}:{minor}")),
            None => Ok(()),
        }
    }

    fn text(&mut self, name: &str, bytes: &[u8]) -> fmt::Result {
        write!(self.0, " {name}=")?;
        quote(self.0, bytes)
    }

    /// Writes the fields of memory except its bytes.
    fn memory(&mut self, memory: &Memory) -> fmt::Result {
        self.field("at", name_of(MOMENTS, &memory.at))?;
        self.hex("address", memory.address)?;
        self.field("whole", memory.whole)
    }

    fn sections(&mut self, all: &[Memory]) -> fmt::Result {
        for memory in all {
            write!(self.0, "  memory")?;
            self.memory(memory)?;
            writeln!(self.0)?;
            self.data(&memory.bytes)?;
        }
        Ok(())
    }

    /// Writes bytes in lines. A line that repeats one byte is written as `00*32`.
    fn data(&mut self, bytes: &[u8]) -> fmt::Result {
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            let same = rest.iter().take_while(|&&byte| byte == first).count();
            let len = if same >= 8 { same } else { line_len(rest) };
            write!(self.0, "    ")?;
            if same >= 8 {
                write!(self.0, "{first:02x}*{same}")?;
            } else {
                for (at, byte) in rest[..len].iter().enumerate() {
                    if at > 0 && at % 8 == 0 {
                        write!(self.0, " ")?;
                    }
                    write!(self.0, "{byte:02x}")?;
                }
            }
            writeln!(self.0)?;
            rest = &rest[len..];
        }
        Ok(())
    }
}

/// Returns the length of the next literal line: whole 8-byte words, up to a word that repeats one
/// byte.
fn line_len(bytes: &[u8]) -> usize {
    let words = bytes[..bytes.len().min(LINE)].chunks(8);
    let literal = words
        .enumerate()
        .take_while(|(at, word)| *at == 0 || word.len() < 8 || word.iter().any(|byte| *byte != word[0]));
    literal.map(|(_, word)| word.len()).sum()
}

fn write_event(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
    let word = match event {
        Event::Ioctl(_) => "ioctl",
        Event::Write(_) => "write",
        Event::Open(_) => "open",
        Event::Close { .. } => "close",
        Event::Dup { .. } => "dup",
        Event::Mmap(_) => "mmap",
        Event::Munmap { .. } => "munmap",
        Event::Process(process) => match process.change {
            ProcessChange::Start { .. } => "start",
            ProcessChange::Exec { .. } => "exec",
            ProcessChange::Exit { .. } => "exit",
        },
        Event::Lost { .. } => "lost",
        Event::Mark(_) => "mark",
        Event::Data(_) => "data",
    };
    write!(f, "{word}")?;
    let mut line = Line(f);
    if let Some((pid, tid)) = event.thread() {
        line.thread(event.time_ns(), pid, tid)?;
    }
    match event {
        Event::Ioctl(ioctl) => {
            line.field("took", ioctl.duration_ns)?;
            line.field("fd", ioctl.fd)?;
            line.device(ioctl.device)?;
            line.hex("request", ioctl.request.into())?;
            line.hex("argument", ioctl.argument)?;
            if ioctl.compat {
                line.field("compat", 1)?;
            }
            line.field("result", ioctl.result)?;
            writeln!(line.0)?;
            for (name, bytes) in [("input", &ioctl.input), ("output", &ioctl.output)] {
                if !bytes.is_empty() {
                    writeln!(line.0, "  {name}")?;
                    line.data(bytes)?;
                }
            }
            return line.sections(&ioctl.memory);
        }
        Event::Write(write) => {
            line.field("took", write.duration_ns)?;
            line.field("fd", write.fd)?;
            line.device(write.device)?;
            line.field("result", write.result)?;
            writeln!(line.0)?;
            return line.sections(&write.memory);
        }
        Event::Open(open) => {
            line.field("took", open.duration_ns)?;
            line.field("source", name_of(SOURCES, &open.source))?;
            line.text("path", &open.path)?;
            line.hex("flags", open.flags.into())?;
            line.device(open.device)?;
            line.field("result", open.result)?;
        }
        Event::Close { fd, result, .. } | Event::Dup { fd, result, .. } => {
            line.field("fd", fd)?;
            line.field("result", result)?;
        }
        Event::Mmap(mmap) => {
            line.field("took", mmap.duration_ns)?;
            line.hex("address", mmap.address)?;
            line.field("length", mmap.length)?;
            line.hex("protection", mmap.protection.into())?;
            line.hex("flags", mmap.flags.into())?;
            line.field("fd", mmap.fd)?;
            line.device(mmap.device)?;
            line.hex("offset", mmap.offset)?;
            line.field("result", mmap.result)?;
        }
        Event::Munmap {
            address,
            length,
            result,
            ..
        } => {
            line.hex("address", *address)?;
            line.field("length", length)?;
            line.field("result", result)?;
        }
        Event::Process(process) => match &process.change {
            ProcessChange::Start {
                parent,
                shares_files,
                name,
            } => {
                line.field("parent", parent)?;
                if *shares_files {
                    line.field("shares-files", 1)?;
                }
                line.text("name", name)?;
            }
            ProcessChange::Exec { path } => line.text("path", path)?,
            ProcessChange::Exit { status } => line.hex("status", (*status).into())?,
        },
        Event::Lost {
            time_ns,
            count,
            cause,
        } => {
            line.field("time", time_ns)?;
            line.field("count", count)?;
            if *cause != LostCause::Unknown {
                line.field("cause", name_of(CAUSES, cause))?;
            }
        }
        Event::Mark(mark) => {
            line.field("kind", name_of(MARKS, &mark.kind))?;
            line.text("text", &mark.text)?;
        }
        Event::Data(data) => {
            line.memory(&data.memory)?;
            writeln!(line.0)?;
            return line.data(&data.memory.bytes);
        }
    }
    writeln!(line.0)
}

/// Reads a text event by event.
///
/// The iterator returns the events. It ends with the first error.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// The number of lines read.
    line: usize,
    facts: Vec<(String, String)>,
    /// Those that follow the event that is read.
    later: Vec<(String, String)>,
    /// Their bytes.
    facts_len: usize,
    /// The event that a following section belongs to.
    event: Option<Event>,
    /// The destination of data lines, and the number of bytes in the event so far.
    data: Data,
    size: usize,
    /// The error of the lines that were read ahead.
    ahead: Option<TextError>,
    done: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line, and the facts before the first event.
    ///
    /// # Errors
    /// `Io`, and `Head` if the first line is not the header of a capture text.
    pub fn new(input: R) -> Result<Self, TextError> {
        let mut reader = Self {
            input,
            line: 0,
            facts: Vec::new(),
            later: Vec::new(),
            facts_len: 0,
            event: None,
            data: Data::None,
            size: 0,
            ahead: None,
            done: false,
        };
        let first = reader.read_line()?;
        if first.is_none_or(|first| first.trim_end() != HEAD) {
            let problem = format!("the first line is not {HEAD:?}");
            return Err(wrong(TextErrorKind::Head, 1, problem));
        }
        while reader.event.is_none() {
            // The line that starts an event leaves it incomplete: `add` returns no event.
            match reader
                .read_line()
                .and_then(|line| line.map(|line| reader.add(&line)).transpose())
            {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    reader.ahead = Some(error);
                    break;
                }
            }
        }
        Ok(reader)
    }

    /// Returns the facts before the event that the iterator returned last: at first those before
    /// the first event, and after the last event all.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    fn read_line(&mut self) -> Result<Option<String>, TextError> {
        self.line += 1;
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes);
        read.map_err(|error: io::Error| wrong(TextErrorKind::Io, self.line, error.to_string()))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() as u64 == MAX_LINE {
            let problem = format!("a line is longer than {MAX_LINE} bytes");
            return Err(wrong(TextErrorKind::TooLong, self.line, problem));
        }
        let line = String::from_utf8(bytes);
        line.map(Some)
            .map_err(|_| wrong(TextErrorKind::Value, self.line, "a line is not UTF-8".to_owned()))
    }

    /// Reads an event, which ends before the next event or at the end of the text.
    fn event(&mut self) -> Result<Option<Event>, TextError> {
        while let Some(line) = self.read_line()? {
            if let Some(event) = self.add(&line)? {
                return Ok(Some(event));
            }
        }
        Ok(self.event.take())
    }

    /// Parses a line. Returns the preceding event if the line starts a new one.
    fn add(&mut self, line: &str) -> Result<Option<Event>, TextError> {
        let number = self.line;
        let depth = line.len() - line.trim_start_matches(' ').len();
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (depth, word, &mut self.event) {
            (0, "fact", _) => {
                let (name, value) = fact(rest, number)?;
                self.facts_len += name.len() + value.len();
                if self.facts_len > MAX_PAYLOAD {
                    let problem = format!("the facts are longer than {MAX_PAYLOAD} bytes");
                    return Err(wrong(TextErrorKind::TooLong, number, problem));
                }
                match self.event {
                    Some(_) => self.later.push((name, value)),
                    None => self.facts.push((name, value)),
                }
                self.data = Data::None;
                Ok(None)
            }
            (0, word, _) => {
                let event = read_event(word, &mut Fields::parse(rest, number)?, number)?;
                self.data = match event {
                    Event::Ioctl(_) | Event::Write(_) => Data::Head,
                    Event::Data(_) => Data::Event,
                    _ => Data::None,
                };
                self.size = 0;
                Ok(self.event.replace(event))
            }
            (2, "input" | "output" | "memory", Some(Event::Ioctl(ioctl))) if self.data != Data::None => {
                self.data = read_section(word, &mut Fields::parse(rest, number)?, number, ioctl)?;
                self.size += SECTION_COST;
                limit(self.size, number)?;
                Ok(None)
            }
            (2, "memory", Some(Event::Write(write))) if self.data != Data::None => {
                write.memory.push(read_memory(&mut Fields::parse(rest, number)?)?);
                self.data = Data::Memory;
                self.size += SECTION_COST;
                limit(self.size, number)?;
                Ok(None)
            }
            (4, _, Some(Event::Write(write))) if self.data == Data::Memory => {
                let room = (MAX_PAYLOAD - SECTION_COST).saturating_sub(self.size);
                let last = write.memory.last_mut();
                let bytes = &mut last.expect("the section was pushed above").bytes;
                self.size += read_data(line, number, room, bytes)?;
                Ok(None)
            }
            (4, _, Some(Event::Data(data))) if self.data == Data::Event => {
                let room = (MAX_PAYLOAD - SECTION_COST).saturating_sub(self.size);
                self.size += read_data(line, number, room, &mut data.memory.bytes)?;
                Ok(None)
            }
            (4, _, Some(Event::Ioctl(ioctl))) if !matches!(self.data, Data::None | Data::Head) => {
                let to = match self.data {
                    Data::Input => &mut ioctl.input,
                    Data::Output => &mut ioctl.output,
                    _ => {
                        let memory = ioctl.memory.last_mut();
                        &mut memory.expect("the section was pushed above").bytes
                    }
                };
                let room = (MAX_PAYLOAD - SECTION_COST).saturating_sub(self.size);
                self.size += read_data(line, number, room, to)?;
                Ok(None)
            }
            _ => {
                let problem = format!("unexpected {:?}", shortened(word));
                Err(wrong(TextErrorKind::Word, number, problem))
            }
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.facts.append(&mut self.later);
        if self.done {
            return None;
        }
        let next = match self.ahead.take() {
            Some(error) => Some(Err(error)),
            None => self.event().transpose(),
        };
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Upper bound of the bytes that the fields of an event or a section need in the binary form.
const SECTION_COST: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    None,
    Head,
    Input,
    Output,
    Memory,
    /// The bytes of the event itself.
    Event,
}

fn wrong(kind: TextErrorKind, line: usize, problem: String) -> TextError {
    TextError { kind, line, problem }
}

/// Shortens untrusted text for a message.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

fn limit(size: usize, line: usize) -> Result<(), TextError> {
    if size <= MAX_PAYLOAD - SECTION_COST {
        return Ok(());
    }
    let problem = format!("the event is longer than {MAX_PAYLOAD} bytes");
    Err(wrong(TextErrorKind::TooLong, line, problem))
}

/// The `name=value …` fields of a line.
struct Fields<'a> {
    rows: Vec<(&'a str, &'a str)>,
    line: usize,
}

impl<'a> Fields<'a> {
    fn parse(mut rest: &'a str, line: usize) -> Result<Self, TextError> {
        let mut rows: Vec<(&str, &str)> = Vec::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                return Ok(Self { rows, line });
            }
            let Some((name, behind)) = rest.split_once('=') else {
                let problem = format!("{:?} is not name=value", shortened(rest));
                return Err(wrong(TextErrorKind::Field, line, problem));
            };
            let len = match behind.starts_with('"') {
                true => quoted_len(behind).ok_or_else(|| {
                    let problem = format!("unterminated string in the field {:?}", shortened(name));
                    wrong(TextErrorKind::Value, line, problem)
                })?,
                false => behind.find(' ').unwrap_or(behind.len()),
            };
            let (value, behind) = behind.split_at(len);
            if rows.iter().any(|(other, _)| *other == name) {
                let problem = format!("duplicate field {:?}", shortened(name));
                return Err(wrong(TextErrorKind::Field, line, problem));
            }
            rows.push((name, value));
            rest = behind;
        }
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let place = self.rows.iter().position(|(row, _)| *row == name)?;
        Some(self.rows.swap_remove(place).1)
    }

    fn value<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, TextError> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        match read(text) {
            Some(value) => Ok(Some(value)),
            None => {
                let problem = format!("invalid value {name}={}", shortened(text));
                Err(wrong(TextErrorKind::Value, self.line, problem))
            }
        }
    }

    fn u64(&mut self, name: &str) -> Result<u64, TextError> {
        // A missing field is 0.
        Ok(self.value(name, number)?.unwrap_or(0))
    }

    fn u32(&mut self, name: &str) -> Result<u32, TextError> {
        let value = self.value(name, |text| number(text)?.try_into().ok())?;
        Ok(value.unwrap_or(0))
    }

    fn bool(&mut self, name: &str) -> Result<bool, TextError> {
        let value = self.value(name, |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })?;
        Ok(value.unwrap_or(false))
    }

    fn fd(&mut self, name: &str) -> Result<i32, TextError> {
        Ok(self.value(name, |text| text.parse().ok())?.unwrap_or(0))
    }

    fn result(&mut self) -> Result<i64, TextError> {
        Ok(self.value("result", |text| text.parse().ok())?.unwrap_or(0))
    }

    fn device(&mut self) -> Result<Option<DeviceNumber>, TextError> {
        self.value("device", |text| {
            let (major, minor) = text.split_once(':')?;
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            Some(DeviceNumber { major, minor })
        })
    }

    fn text(&mut self, name: &str) -> Result<Vec<u8>, TextError> {
        Ok(self.value(name, unquote)?.unwrap_or_default())
    }

    fn optional_row<T: Copy>(&mut self, name: &str, table: &[(&str, T)]) -> Result<Option<T>, TextError> {
        self.value(name, |text| {
            let row = table.iter().find(|(row, _)| *row == text);
            row.map(|(_, value)| *value)
        })
    }

    fn row<T: Copy>(&mut self, name: &str, table: &[(&str, T)]) -> Result<T, TextError> {
        let value = self.optional_row(name, table)?;
        value.ok_or_else(|| {
            let problem = format!("missing field {name:?}");
            wrong(TextErrorKind::Field, self.line, problem)
        })
    }

    fn end(&self) -> Result<(), TextError> {
        match self.rows.first() {
            None => Ok(()),
            Some((name, _)) => {
                let problem = format!("unknown field {:?}", shortened(name));
                Err(wrong(TextErrorKind::Field, self.line, problem))
            }
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the length of the quoted string at the start of `text`.
fn quoted_len(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn unquote(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::new();
    let mut rest = inner.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                escaped @ (b'"' | b'\\') => escaped,
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    hex_byte(digits)?
                }
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

fn hex_byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    Some((high? << 4 | low?) as u8)
}

fn fact(rest: &str, line: usize) -> Result<(String, String), TextError> {
    let read = || {
        let (name, value) = rest.split_at_checked(quoted_len(rest)?)?;
        let [name, value] = [name, value.trim_start()].map(|text| {
            let bytes = unquote(text)?;
            String::from_utf8(bytes).ok()
        });
        Some((name?, value?))
    };
    read().ok_or_else(|| {
        let problem = "expected a fact: two strings in quotes".to_owned();
        wrong(TextErrorKind::Value, line, problem)
    })
}

fn read_event(word: &str, fields: &mut Fields<'_>, line: usize) -> Result<Event, TextError> {
    let time_ns = fields.u64("time")?;
    let (pid, tid) = match word {
        "lost" => (0, 0),
        _ => (fields.u32("pid")?, fields.u32("tid")?),
    };
    let process = |change| {
        Event::Process(ProcessRecord {
            time_ns,
            pid,
            tid,
            change,
        })
    };
    let event = match word {
        "ioctl" => Event::Ioctl(IoctlRecord {
            time_ns,
            pid,
            tid,
            duration_ns: fields.u64("took")?,
            fd: fields.fd("fd")?,
            device: fields.device()?,
            request: fields.u32("request")?,
            argument: fields.u64("argument")?,
            compat: fields.bool("compat")?,
            result: fields.result()?,
            ..IoctlRecord::default()
        }),
        "write" => Event::Write(WriteRecord {
            time_ns,
            pid,
            tid,
            duration_ns: fields.u64("took")?,
            fd: fields.fd("fd")?,
            device: fields.device()?,
            result: fields.result()?,
            memory: Vec::new(),
        }),
        "open" => Event::Open(OpenRecord {
            time_ns,
            pid,
            tid,
            duration_ns: fields.u64("took")?,
            source: fields.row("source", SOURCES)?,
            path: fields.text("path")?,
            flags: fields.u32("flags")?,
            device: fields.device()?,
            result: fields.result()?,
        }),
        "close" => Event::Close {
            time_ns,
            pid,
            tid,
            fd: fields.fd("fd")?,
            result: fields.result()?,
        },
        "dup" => Event::Dup {
            time_ns,
            pid,
            tid,
            fd: fields.fd("fd")?,
            result: fields.result()?,
        },
        "mmap" => Event::Mmap(MmapRecord {
            time_ns,
            pid,
            tid,
            duration_ns: fields.u64("took")?,
            address: fields.u64("address")?,
            length: fields.u64("length")?,
            protection: fields.u32("protection")?,
            flags: fields.u32("flags")?,
            fd: fields.fd("fd")?,
            device: fields.device()?,
            offset: fields.u64("offset")?,
            result: fields.result()?,
        }),
        "munmap" => Event::Munmap {
            time_ns,
            pid,
            tid,
            address: fields.u64("address")?,
            length: fields.u64("length")?,
            result: fields.result()?,
        },
        "start" => process(ProcessChange::Start {
            parent: fields.u32("parent")?,
            shares_files: fields.bool("shares-files")?,
            name: fields.text("name")?,
        }),
        "exec" => process(ProcessChange::Exec {
            path: fields.text("path")?,
        }),
        "exit" => process(ProcessChange::Exit {
            status: fields.u32("status")?,
        }),
        "lost" => Event::Lost {
            time_ns,
            count: fields.u64("count")?,
            cause: fields.optional_row("cause", CAUSES)?.unwrap_or_default(),
        },
        "mark" => Event::Mark(MarkRecord {
            time_ns,
            pid,
            tid,
            kind: fields.row("kind", MARKS)?,
            text: fields.text("text")?,
        }),
        "data" => Event::Data(DataRecord {
            time_ns,
            pid,
            tid,
            memory: read_memory(fields)?,
        }),
        _ => {
            let problem = format!("unknown event {:?}", shortened(word));
            return Err(wrong(TextErrorKind::Word, line, problem));
        }
    };
    fields.end()?;
    Ok(event)
}

/// Reads the fields of memory except its bytes.
fn read_memory(fields: &mut Fields<'_>) -> Result<Memory, TextError> {
    Ok(Memory {
        at: fields.row("at", MOMENTS)?,
        address: fields.u64("address")?,
        whole: fields.u64("whole")?,
        bytes: Vec::new(),
    })
}

fn read_section(
    word: &str,
    fields: &mut Fields<'_>,
    line: usize,
    ioctl: &mut IoctlRecord,
) -> Result<Data, TextError> {
    let twice = |bytes: &[u8]| match bytes {
        [] => Ok(()),
        _ => {
            let problem = format!("duplicate section {word:?}");
            Err(wrong(TextErrorKind::Word, line, problem))
        }
    };
    let data = match word {
        "input" => {
            twice(&ioctl.input)?;
            Data::Input
        }
        "output" => {
            twice(&ioctl.output)?;
            Data::Output
        }
        _ => {
            ioctl.memory.push(read_memory(fields)?);
            Data::Memory
        }
    };
    fields.end()?;
    Ok(data)
}

/// Appends a line of data, at most `room` bytes. Returns the number of bytes appended.
fn read_data(text: &str, line: usize, room: usize, to: &mut Vec<u8>) -> Result<usize, TextError> {
    let before = to.len();
    for token in text.split_ascii_whitespace() {
        let not_data = || {
            let problem = format!("{:?} is not hex digits or byte*count", shortened(token));
            wrong(TextErrorKind::Value, line, problem)
        };
        let room = room - (to.len() - before);
        let (digits, count) = match token.split_once('*') {
            Some((digits, count)) => (digits, count.parse().map_err(|_| not_data())?),
            None => (token, 1),
        };
        let pairs = digits.as_bytes().chunks_exact(2);
        if !pairs.remainder().is_empty() || (count != 1 && pairs.len() != 1) {
            return Err(not_data());
        }
        if pairs.len().checked_mul(count).is_none_or(|len| len > room) {
            limit(usize::MAX, line)?;
        }
        for pair in pairs {
            let byte = hex_byte([pair[0], pair[1]]).ok_or_else(not_data)?;
            to.extend(std::iter::repeat_n(byte, count));
        }
    }
    Ok(to.len() - before)
}

/// Escapes bytes from a traced program or a device for printing: the result is ASCII, with control
/// characters and other bytes as `\x1b`.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    quote(&mut text, bytes).expect("writing to a String cannot fail");
    text
}
