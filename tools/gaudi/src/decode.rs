//! `gaudi decode`: a capture as lines, as JSON Lines, or converted between binary and text.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoded, Decoder, json_header};
use gaudi_capture::record::Event;
use gaudi_capture::{gcap, text};

use crate::common::Common;
use crate::exit;
use crate::output::Output;

/// Print a capture of `gaudi record`, decoded.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gaudi decode run.gcap --errno EINVAL\n  gaudi decode run.gcap --as text --output run.txt"
)]
pub(crate) struct Decode {
    /// The capture, binary or text.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What to write: lines as of strace, or the capture itself as text or binary.
    #[arg(long = "as", value_enum, default_value_t = Form::Lines, value_name = "FORM")]
    form: Form,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One line an event.
    Lines,
    /// The capture's text form, which loses nothing.
    Text,
    /// A .gcap file.
    Gcap,
}

/// Which events are printed.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Print events of this call only, such as HL_IOCTL_MEMORY or HL_MEM_OP_MAP; may be repeated.
    #[arg(long = "op", value_name = "NAME")]
    ops: Vec<String>,
    /// Print failures with this errno only, such as EINVAL; `any` for every failure.
    #[arg(long, value_name = "NAME")]
    errno: Option<String>,
    /// Print calls only that took longer than so many milliseconds.
    #[arg(long, value_name = "MS")]
    slower_than: Option<f64>,
    /// Print events of this thread or process only; may be repeated.
    #[arg(long = "thread", value_name = "TID")]
    threads: Vec<u32>,
}

impl Filter {
    pub(crate) fn passes(&self, decoded: &Decoded) -> bool {
        let is_op = |name: &String| {
            let op = decoded.request.get("op").map(ToString::to_string);
            decoded.call == *name || op.is_some_and(|op| op == *name || name.ends_with(&format!("_{op}")))
        };
        let failure = decoded.result.filter(|result| (-4095..0).contains(result));
        let errno = || decoded.to_json()["errno"].as_str().unwrap_or_default().to_owned();
        let took_ms = decoded.duration_ns.map(|ns| ns as f64 / 1e6);
        (self.ops.is_empty() || self.ops.iter().any(is_op))
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

/// How much of an event is decoded: a line is for a person.
pub(crate) fn limits(output: &Output) -> Limits {
    if output.is_json() {
        Limits::ALL
    } else {
        Limits::LINE
    }
}

/// A capture of either form.
struct Capture {
    facts: Vec<(String, String)>,
    events: Box<dyn Iterator<Item = Result<Event>>>,
}

fn open(path: &PathBuf) -> Result<Capture> {
    let name = path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot read {name}"))?);
    let start = file.fill_buf().with_context(|| format!("cannot read {name}"))?;
    let is_text = start.starts_with(b"gcap-text");
    Ok(if is_text {
        let reader = text::Reader::new(file).with_context(|| name.clone())?;
        Capture {
            facts: reader.facts().to_vec(),
            events: Box::new(reader.map(move |event| event.with_context(|| name.clone()))),
        }
    } else {
        let reader = gcap::Reader::new(file).with_context(|| name.clone())?;
        Capture {
            facts: reader.facts().to_vec(),
            events: Box::new(reader.map(move |event| event.with_context(|| name.clone()))),
        }
    })
}

/// Writes to an [`Output`].
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

pub(crate) fn run(_: &Common, decode: &Decode, output: &mut Output) -> Result<u8> {
    let Capture { facts, events } = open(&decode.file)?;
    let mut decoder = Decoder::new(limits(output));
    let mut kept = |event: &Event| {
        let decoded = decoder.decode(event);
        decode.filter.passes(&decoded).then_some(decoded)
    };
    match decode.form {
        Form::Lines => {
            if output.is_json() {
                output.line(json_header(&facts).to_string())?;
            }
            for event in events {
                if let Some(decoded) = kept(&event?) {
                    let json = output.is_json().then(|| decoded.to_json().to_string());
                    output.line(json.unwrap_or_else(|| decoded.to_string()))?;
                }
            }
        }
        Form::Text => {
            output.bytes(text::head(&facts).to_string().as_bytes())?;
            for event in events {
                let event = event?;
                if kept(&event).is_some() {
                    output.bytes(text::EventText(&event).to_string().as_bytes())?;
                }
            }
        }
        Form::Gcap => {
            let mut writer = gcap::Writer::new(Bytes(output), &facts, gcap::Compression::None)?;
            for event in events {
                let event = event?;
                if kept(&event).is_some() {
                    writer.write(&event)?;
                }
            }
            writer.finish()?.flush()?;
        }
    }
    Ok(exit::DONE)
}
