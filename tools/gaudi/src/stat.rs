//! `gaudi stat`: counts and durations of the operations of a capture or of a program.

mod histogram;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoded, Decoder};
use gaudi_capture::record::{Event, IoctlRecord, Losses, LostCause};

use crate::common::Common;
use crate::decode::Filter;
use crate::exit::Usage;
use crate::operation::{OTHERS, name_of, queues};
use crate::output::{Again, Output};
use crate::report::{Column, columns, object, records};
use crate::trace::{Kind, Traced};
use histogram::Histogram;

/// Count the operations of a capture or of a program, with their durations.
#[derive(Debug, Args)]
#[command(
    after_help = "--device selects the operations of a device: 0, accel0 or /dev/accel/accel0.\n\
                  With a program, the table follows the program's output, and the exit status is the program's.\n\n\
                  With --loop, the table so far is printed while the program runs.\n\n\
                  Examples:\n  gaudi stat run.gcap --by queue\n  gaudi stat --output stat.txt -- ./program"
)]
pub(crate) struct Stat {
    /// The capture file, in binary or text form.
    #[arg(value_name = "FILE", conflicts_with = "program")]
    file: Option<PathBuf>,
    /// Count the operations of each queue, thread or device separately.
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    /// Tracing method of a program, as for `gaudi trace`.
    #[arg(long, value_enum, default_value_t = Kind::Auto, value_name = "KIND")]
    backend: Kind,
    #[command(flatten)]
    again: Again,
    #[command(flatten)]
    filter: Filter,
    /// The program and its arguments.
    #[arg(last = true, value_name = "CMD")]
    program: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// By the queues of a submission.
    Queue,
    /// By the thread of the program.
    Thread,
    /// By the file of the descriptor.
    Device,
}

/// The most rows. Operations of further groups are counted in one row.
const MOST_ROWS: usize = 4096;

/// The operations of one name and group.
#[derive(Debug, Clone, Default)]
struct Row {
    group: Option<String>,
    operation: String,
    calls: u64,
    errors: u64,
    bytes: u64,
    durations: Histogram,
}

const COLUMNS: &[Column<Row>] = &columns! { Row:
    text "group" "" |row| row.group;
    text "operation" "operation" |row| row.operation;
    grouped "calls" "calls" |row| row.calls;
    grouped "errors" "errors" |row| row.errors;
    grouped "bytes" "data[bytes]" [1] |row| row.bytes;
    grouped "p50_ns" "p50[ns]" |row| row.durations.percentile(50);
    grouped "p99_ns" "p99[ns]" |row| row.durations.percentile(99);
    grouped "max_ns" "max[ns]" |row| row.durations.max();
};
/// [`COLUMNS`] with the group.
const BY_GROUP: &[Column<Row>] = &columns! { Row:
    text "" "group" |row| row.group.as_deref()?;
    text "" "operation" |row| row.operation;
    grouped "" "calls" |row| row.calls;
    grouped "" "errors" |row| row.errors;
    grouped "" "data[bytes]" [1] |row| row.bytes;
    grouped "" "p50[ns]" |row| row.durations.percentile(50);
    grouped "" "p99[ns]" |row| row.durations.percentile(99);
    grouped "" "max[ns]" |row| row.durations.max();
};

impl By {
    fn group(self, decoded: &Decoded) -> Option<String> {
        match self {
            Self::Queue => {
                let mut all = Vec::new();
                queues(&decoded.request, &mut all);
                all.sort_unstable();
                all.dedup();
                let all: Vec<String> = all.iter().map(u64::to_string).collect();
                (!all.is_empty()).then(|| all.join(","))
            }
            Self::Thread => {
                let (pid, tid) = decoded.thread?;
                Some(if pid == tid {
                    tid.to_string()
                } else {
                    format!("{pid}/{tid}")
                })
            }
            Self::Device => {
                let (fd, file) = decoded.fd.clone()?;
                Some(file.unwrap_or_else(|| format!("fd {fd}")))
            }
        }
    }
}

/// The bytes of the argument and of the memory that its pointers refer to.
fn bytes_of(ioctl: &IoctlRecord) -> u64 {
    let memory = ioctl.memory.iter().map(|piece| piece.whole);
    memory.fold(ioctl.input.len() as u64, u64::saturating_add)
}

#[derive(Debug)]
struct Table {
    by: Option<By>,
    decoder: Decoder,
    rows: BTreeMap<(Option<String>, String), Row>,
    lost: Losses,
}

impl Table {
    fn new(by: Option<By>) -> Self {
        Self {
            by,
            decoder: Decoder::new(Limits::LINE),
            rows: BTreeMap::new(),
            lost: Losses::default(),
        }
    }

    fn add(&mut self, event: &Event, filter: &Filter, devices: &[String]) {
        let decoded = self.decoder.decode(event);
        let bytes = match event {
            Event::Ioctl(ioctl) => bytes_of(ioctl),
            Event::Write(write) => write
                .memory
                .iter()
                .map(|piece| piece.whole)
                .fold(0, u64::saturating_add),
            Event::Mmap(mmap) => mmap.length,
            Event::Lost { count, cause, .. } => {
                self.lost.add(*cause, *count);
                return;
            }
            _ => return,
        };
        if !filter.passes(&decoded, devices) {
            return;
        }
        let group = self
            .by
            .map(|by| by.group(&decoded).unwrap_or_else(|| "-".to_owned()));
        let mut at = (group, name_of(&decoded));
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(&at) {
            at = (Some(OTHERS.to_owned()), OTHERS.to_owned());
        }
        let row = self.rows.entry(at.clone()).or_default();
        (row.group, row.operation) = at;
        row.calls += 1;
        row.errors += u64::from(decoded.result.is_some_and(|result| result < 0));
        row.bytes = row.bytes.saturating_add(bytes);
        row.durations.add(decoded.duration_ns.unwrap_or(0));
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        let rows: Vec<Row> = self.rows.values().cloned().collect();
        if output.is_json() {
            return output.document(
                "gaudi.stat",
                &object! {
                    lost: self.lost.total(),
                    lost_by_cause: object! {
                        buffer_full: self.lost.of(LostCause::BufferFull),
                        skipped: self.lost.of(LostCause::Skipped),
                        too_many_threads: self.lost.of(LostCause::TooManyThreads),
                        unknown: self.lost.of(LostCause::Unknown),
                    },
                    operations: records(COLUMNS, &rows),
                },
            );
        }
        if rows.is_empty() {
            output.note("no operation found");
        } else {
            output.rows(if self.by.is_some() { BY_GROUP } else { COLUMNS }, &rows)?;
        }
        if self.lost.total() > 0 {
            output.note(format!("{} lost events are not counted", self.lost.total()));
        }
        Ok(())
    }
}

pub(crate) fn run(common: &Common, stat: &Stat, output: &mut Output) -> Result<u8> {
    stat.check()?;
    let mut table = Table::new(stat.by);
    let Some(file) = &stat.file else {
        let traced = Traced::of_program(&stat.program, stat.backend);
        let tracer = traced.start(output)?;
        let mut printed = Instant::now();
        let mut failure = None;
        let summary = traced.run(tracer, |event| {
            table.add(&event, &stat.filter, &common.devices);
            // Without an event, the table does not change.
            let is_due = stat.again.every.is_some_and(|every| printed.elapsed() >= every);
            if is_due && failure.is_none() {
                printed = Instant::now();
                let done = table.print(output).and_then(|()| output.finish());
                failure = done.err();
            }
            traced.after(failure.is_some())
        })?;
        failure.map_or(Ok(()), Err)?;
        table.print(output)?;
        crate::trace::report(output, &summary);
        return crate::trace::end_as(summary.status, output);
    };
    for event in crate::decode::open(file)? {
        table.add(&event?, &stat.filter, &common.devices);
    }
    table.print(output)?;
    Ok(crate::exit::DONE)
}

impl Stat {
    /// Rejects options that have no effect.
    fn check(&self) -> Result<(), Usage> {
        match (&self.file, self.backend) {
            (None, _) if self.program.is_empty() => Err(Usage(
                "no capture and no program: `gaudi stat FILE` counts a capture's operations, and \
                 `gaudi stat -- CMD` those of a program; `gaudi record -o run.gcap -p PID` records a running one"
                    .to_owned(),
            )),
            (Some(_), _) if self.again.every.is_some() => Err(Usage(
                "--loop does nothing here: a capture does not change".to_owned(),
            )),
            (Some(_), Kind::Bpf | Kind::Ptrace | Kind::Preload) => {
                Err(Usage("--backend does nothing here: a capture is read".to_owned()))
            }
            _ => Ok(()),
        }
    }
}
