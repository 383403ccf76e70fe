//! `gaudi decode`: prints a capture as lines or JSON Lines, or converts it between binary and text.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoded, Decoder, json_header};
use gaudi_capture::record::Event;
use gaudi_capture::value::Value;
use gaudi_capture::{gcap, text};

use crate::common::Common;
use crate::exit::{self, Usage};
use crate::output::Output;
use crate::picture::Picture;
use crate::saved::Saved;

/// Decode and print a capture of `gaudi record`.
#[derive(Debug, Args)]
#[command(
    after_help = "--device selects the events of a device: 0, accel0 or /dev/accel/accel0.\n\n\
                  Examples:\n  gaudi decode run.gcap --errno EINVAL\n  gaudi decode run.gcap --as text --output run.txt\n  gaudi decode run.gcap --html run.html"
)]
pub(crate) struct Decode {
    /// The capture file, in binary or text form.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output form: decoded lines like strace, or the capture in text or binary form.
    #[arg(long = "as", value_enum, default_value_t = Form::Lines, value_name = "FORM")]
    form: Form,
    #[command(flatten)]
    drawn: Drawn,
    #[command(flatten)]
    filter: Filter,
}

/// Files into which the events are drawn instead of printed.
#[derive(Debug, Args)]
pub(crate) struct Drawn {
    /// Draw the events into a page of one file, which any browser shows offline, instead of
    /// printing them.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the events in the trace event format, which Perfetto shows, instead of printing them.
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Pictures under construction, and the files that they go to.
pub(crate) struct Drawing {
    page: Option<(Target, Picture)>,
    trace: Option<(Target, Picture)>,
}

/// A file, and its name for messages.
struct Target(Saved, PathBuf);

impl Target {
    fn save(mut self, text: &str) -> Result<()> {
        let written = self.0.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write to {}", self.1.display()))?;
        self.0.keep()
    }
}

impl Drawn {
    /// Creates the files. `name` is the pictures' title.
    pub(crate) fn begin(&self, name: &str) -> Result<Drawing> {
        let picture = |path: &Option<PathBuf>| {
            let path = path.as_ref();
            let target = |path: &PathBuf| Ok::<_, anyhow::Error>(Target(Saved::create(path)?, path.clone()));
            let target = path.map(target).transpose()?;
            Ok::<_, anyhow::Error>(target.map(|target| (target, Picture::new(name.to_owned()))))
        };
        Ok(Drawing {
            page: picture(&self.html)?,
            trace: picture(&self.perfetto)?,
        })
    }
}

impl Drawing {
    /// Returns whether the events are drawn only.
    pub(crate) fn replaces_lines(&self) -> bool {
        self.page.is_some() || self.trace.is_some()
    }

    /// Adds an event, if it passes a filter or is not a call.
    pub(crate) fn add(&mut self, event: &Event, decoded: &Decoded, decoder: &Decoder, passes: bool) {
        if passes || decoded.duration_ns.is_none() {
            let pictures = self.page.iter_mut().chain(&mut self.trace);
            pictures.for_each(|(_, picture)| picture.add(event, decoded, decoder.names()));
        }
    }

    /// Writes the files.
    pub(crate) fn write(self) -> Result<()> {
        if let Some((target, picture)) = self.page {
            target.save(&picture.html())?;
        }
        if let Some((target, picture)) = self.trace {
            target.save(&picture.perfetto().to_string())?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One line per event, decoded.
    Lines,
    /// The capture's text form. The conversion is lossless.
    Text,
    /// A .gcap file.
    Gcap,
}

/// Selects the events to print.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Print only events of this call, such as HL_IOCTL_MEMORY or HL_MEM_OP_MAP; may be repeated.
    #[arg(long = "op", value_name = "NAME")]
    ops: Vec<String>,
    /// Print only calls that failed with this errno, such as EINVAL; `any` selects every failure.
    #[arg(long, value_name = "NAME")]
    errno: Option<String>,
    /// Print only calls that took longer than this many milliseconds.
    #[arg(long, value_name = "MS")]
    slower_than: Option<f64>,
    /// Print only events of this thread or process; may be repeated.
    #[arg(long = "thread", value_name = "TID")]
    threads: Vec<u32>,
}

impl Filter {
    /// Returns whether to print an event. `devices` are those of `--device`; none selects all.
    pub(crate) fn passes(&self, decoded: &Decoded, devices: &[String]) -> bool {
        let is_of = |device: &String| is_of_device(decoded, device);
        let is_op = |name: &String| {
            let op = decoded.request.get("op").map(ToString::to_string);
            decoded.call == *name || op.is_some_and(|op| op == *name || name.ends_with(&format!("_{op}")))
        };
        let failure = decoded.result.filter(|result| (-4095..0).contains(result));
        let errno = || decoded.to_json()["errno"].as_str().unwrap_or_default().to_owned();
        let took_ms = decoded.duration_ns.map(|ns| ns as f64 / 1e6);
        (devices.is_empty() || devices.iter().any(is_of))
            && (self.ops.is_empty() || self.ops.iter().any(is_op))
            && self
                .errno
                .as_ref()
                .is_none_or(|wanted| failure.is_some() && (wanted == "any" || *wanted == errno()))
            && self
                .slower_than
                .is_none_or(|limit| took_ms.is_some_and(|took| took > limit))
            && (self.threads.is_empty()
                || decoded
                    .thread
                    .is_some_and(|(pid, tid)| self.threads.iter().any(|id| [pid, tid].contains(id))))
    }
}

/// Returns whether an event is of a device: a path, its last part, or its number.
fn is_of_device(decoded: &Decoded, device: &str) -> bool {
    let opened = match decoded.request.get("path") {
        Some(Value::Text { bytes, .. }) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let file = decoded.fd.clone().and_then(|(_, file)| file).or(opened);
    file.is_some_and(|file| {
        let name = file.rsplit('/').next().unwrap_or_default();
        let number = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        file == device || name == device || (file.starts_with("/dev/") && number == device)
    })
}

/// Returns the decoder's limits for the output: lines are short, JSON is complete.
pub(crate) fn limits(output: &Output) -> Limits {
    if output.is_json() {
        Limits::ALL
    } else {
        Limits::LINE
    }
}

enum Reader {
    Text(text::Reader<BufReader<File>>),
    Binary(gcap::Reader<BufReader<File>>),
}

/// A capture in either form.
pub(crate) struct Capture {
    name: String,
    reader: Reader,
    /// Facts that [`new_facts`](Self::new_facts) has returned.
    passed: usize,
}

pub(crate) fn open(path: &PathBuf) -> Result<Capture> {
    let name = path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot read {name}"))?);
    let start = file.fill_buf().with_context(|| format!("cannot read {name}"))?;
    let reader = if start.starts_with(text::MAGIC) {
        Reader::Text(text::Reader::new(file).with_context(|| name.clone())?)
    } else {
        Reader::Binary(gcap::Reader::new(file).with_context(|| name.clone())?)
    };
    Ok(Capture {
        name,
        reader,
        passed: 0,
    })
}

impl Capture {
    /// Returns the facts before the event that was read last, from the last call on.
    fn new_facts(&mut self) -> &[(String, String)] {
        let facts = match &self.reader {
            Reader::Text(reader) => reader.facts(),
            Reader::Binary(reader) => reader.facts(),
        };
        &facts[std::mem::replace(&mut self.passed, facts.len())..]
    }
}

impl Iterator for Capture {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        let name = || self.name.clone();
        match &mut self.reader {
            Reader::Text(reader) => Some(reader.next()?.with_context(name)),
            Reader::Binary(reader) => Some(reader.next()?.with_context(name)),
        }
    }
}

/// Adapts an [`Output`] to [`std::io::Write`].
struct Bytes<'a>(&'a mut Output);

impl std::io::Write for Bytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.bytes(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Draws a capture into the files of `--html` and `--perfetto`.
fn draw(common: &Common, decode: &Decode, mut drawing: Drawing, capture: Capture) -> Result<u8> {
    let mut decoder = Decoder::new(Limits::LINE);
    for event in capture {
        let event = event?;
        let decoded = decoder.decode(&event);
        let passes = decode.filter.passes(&decoded, &common.devices);
        drawing.add(&event, &decoded, &decoder, passes);
    }
    drawing.write()?;
    Ok(exit::DONE)
}

pub(crate) fn run(common: &Common, decode: &Decode, output: &mut Output) -> Result<u8> {
    let mut capture = open(&decode.file)?;
    let drawing = decode.drawn.begin(&decode.file.display().to_string())?;
    if drawing.replaces_lines() {
        if decode.form != Form::Lines {
            return Err(Usage("--as does not go with --html and --perfetto".to_owned()).into());
        }
        return draw(common, decode, drawing, capture);
    }
    let mut decoder = Decoder::new(limits(output));
    let mut kept = |event: &Event| {
        let decoded = decoder.decode(event);
        decode.filter.passes(&decoded, &common.devices).then_some(decoded)
    };
    match decode.form {
        Form::Lines => {
            if output.is_json() {
                output.line(json_header(capture.new_facts()).to_string())?;
            }
            for event in capture {
                if let Some(decoded) = kept(&event?) {
                    let json = output.is_json().then(|| decoded.to_json().to_string());
                    output.line(json.unwrap_or_else(|| decoded.to_string()))?;
                }
            }
        }
        Form::Text => {
            output.bytes(text::head(capture.new_facts()).to_string().as_bytes())?;
            while let Some(event) = capture.next().transpose()? {
                output.bytes(text::Facts(capture.new_facts()).to_string().as_bytes())?;
                if kept(&event).is_some() {
                    output.bytes(text::EventText(&event).to_string().as_bytes())?;
                }
            }
            output.bytes(text::Facts(capture.new_facts()).to_string().as_bytes())?;
        }
        Form::Gcap => {
            let mut writer = gcap::Writer::new(Bytes(output), capture.new_facts(), gcap::Compression::None)?;
            while let Some(event) = capture.next().transpose()? {
                writer.facts(capture.new_facts())?;
                if kept(&event).is_some() {
                    writer.write(&event)?;
                }
            }
            writer.facts(capture.new_facts())?;
            writer.finish()?.flush()?;
        }
    }
    Ok(exit::DONE)
}
