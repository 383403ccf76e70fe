//! `gaudi diff`: where two captures differ.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoded, Decoder};
use gaudi_capture::record::Event;
use gaudi_capture::value::{Fields, Value};

use crate::common::Common;
use crate::decode::{Capture, Filter};
use crate::exit;
use crate::operation::{OTHERS, name_of};
use crate::output::{Output, Style};
use crate::report::{Column, columns, object, records};

/// Compare the operations of two captures.
///
/// Threads are compared in the order of their first operation. Handles, device addresses, sequence
/// numbers and descriptors are equal if each of A always stands for the same of B. Addresses of the
/// program, timeouts, durations and the answers of queries are not compared.
#[derive(Debug, Args)]
#[command(
    after_help = "--device selects the operations of a device: 0, accel0 or /dev/accel/accel0.\n\
                  The exit status is 1 if the captures differ.\n\nExamples:\n  gaudi diff good.gcap bad.gcap\n  gaudi diff --json good.gcap bad.gcap"
)]
pub(crate) struct Diff {
    /// The first capture.
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The second capture.
    #[arg(value_name = "B")]
    b: PathBuf,
    #[command(flatten)]
    filter: Filter,
}

/// What a name stands for in both captures.
#[derive(Debug, Default)]
struct Renaming {
    to_b: HashMap<(Sort, u64), u64>,
    to_a: HashMap<(Sort, u64), u64>,
}

/// Names of one sort are renamed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    Handle,
    DeviceAddress,
    Sequence,
    Descriptor,
}

/// How a field is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Renamed(Sort),
    /// Only whether it is 0.
    Presence,
    No,
    Exactly,
}

fn compared(name: &str) -> Compared {
    let has = |part: &str| name.contains(part);
    match name {
        _ if has("timeout") || has("timestamp_ns") || name == "pad" => Compared::No,
        _ if has("host_virt") || has("return_pointer") || has("_ptr") || name == "addr" => Compared::Presence,
        _ if has("handle") => Compared::Renamed(Sort::Handle),
        _ if has("seq") => Compared::Renamed(Sort::Sequence),
        _ if has("fd") => Compared::Renamed(Sort::Descriptor),
        _ if has("virt_addr") || has("_va") || has("hint_addr") => Compared::Renamed(Sort::DeviceAddress),
        _ => Compared::Exactly,
    }
}

impl Renaming {
    fn matches(&mut self, sort: Sort, a: u64, b: u64) -> bool {
        if a == 0 || b == 0 {
            return a == b;
        }
        match (self.to_b.get(&(sort, a)), self.to_a.get(&(sort, b))) {
            (None, None) => {
                self.rename(sort, a, b);
                true
            }
            // A difference changes no name: later operations are compared with the names before it.
            (to_b, to_a) => to_b == Some(&b) && to_a == Some(&a),
        }
    }

    /// A new object can reuse the name of an old one, which no longer stands for anything.
    fn rename(&mut self, sort: Sort, a: u64, b: u64) {
        if let Some(old) = self.to_b.insert((sort, a), b).filter(|&old| old != b) {
            self.to_a.remove(&(sort, old));
        }
        if let Some(old) = self.to_a.insert((sort, b), a).filter(|&old| old != a) {
            self.to_b.remove(&(sort, old));
        }
    }

    /// Returns the first field that differs.
    fn fields(&mut self, a: &Fields, b: &Fields) -> Option<String> {
        for (one, other) in a.0.iter().zip(&b.0) {
            if one.name != other.name {
                return Some(format!("{} / {}", one.name, other.name));
            }
            if !self.value(one.name, &one.value, &other.value) {
                return Some(format!("{}: {} / {}", one.name, one.value, other.value));
            }
        }
        let rest = a.0.get(b.0.len()).or(b.0.get(a.0.len()));
        rest.map(|field| format!("{}: in one capture only", field.name))
    }

    fn value(&mut self, name: &str, a: &Value, b: &Value) -> bool {
        let numbers = number(a).zip(number(b));
        match (compared(name), numbers) {
            (Compared::No, _) => true,
            (Compared::Presence, Some((a, b))) => (a == 0) == (b == 0),
            (Compared::Renamed(sort), Some((a, b))) => self.matches(sort, a, b),
            _ => self.inner(name, a, b),
        }
    }

    fn inner(&mut self, name: &str, a: &Value, b: &Value) -> bool {
        match (a, b) {
            (Value::Struct(a), Value::Struct(b)) => self.fields(a, b).is_none(),
            (Value::List { items: a, more: x }, Value::List { items: b, more: y }) => {
                let same = a.iter().zip(b).all(|(a, b)| self.value(name, a, b));
                same && (a.len(), x) == (b.len(), y)
            }
            (Value::Pointer { address: x, to: a }, Value::Pointer { address: y, to: b }) => {
                (*x == 0) == (*y == 0)
                    && match (a, b) {
                        (Some(a), Some(b)) => self.value(name, a, b),
                        // One tracer followed the pointer, the other did not.
                        _ => true,
                    }
            }
            (a, b) => a == b,
        }
    }

    /// Returns what differs between two operations.
    fn operation(&mut self, a: &Decoded, b: &Decoded) -> Option<String> {
        if name_of(a) != name_of(b) {
            return Some("the operation".to_owned());
        }
        if let Some(field) = self.fields(&a.request, &b.request) {
            return Some(field);
        }
        let (one, other) = (a.result.unwrap_or(0), b.result.unwrap_or(0));
        if one.min(0) != other.min(0) {
            return Some("the result".to_owned());
        }
        for (one, other) in a.answer.0.iter().zip(&b.answer.0) {
            let numbers = number(&one.value).zip(number(&other.value));
            if let (Compared::Renamed(sort), Some((a, b))) = (compared(one.name), numbers) {
                self.rename(sort, a, b);
            }
        }
        None
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Unsigned(number) | Value::Hex(number) => Some(*number),
        Value::Signed(number) => Some(*number as u64),
        Value::Pointer { address, .. } => Some(*address),
        _ => None,
    }
}

/// An operation and its number among all of its capture.
type Operation = (usize, Decoded);

/// The most bytes of operations of a capture that wait for the other capture's.
const MOST_WAITING: usize = 256 << 20;
/// The memory of a decoded operation, for each recorded byte and besides.
const DECODED: usize = 16;
const DECODED_EACH: usize = 1024;
/// The most threads of a capture, names of objects, and rows of the summary.
const MOST_THREADS: usize = 1 << 16;
const MOST_NAMES: usize = 1 << 22;
const MOST_ROWS: usize = 4096;

/// A capture that is read.
struct Side<'a> {
    name: &'a Path,
    events: Capture,
    decoder: Decoder,
    /// The number of each thread, in the order of their first operation.
    threads: HashMap<Option<(u32, u32)>, usize>,
    count: usize,
    /// Bytes of the operations that wait.
    waiting: usize,
}

impl<'a> Side<'a> {
    fn open(path: &'a PathBuf) -> Result<Self> {
        Ok(Self {
            name: path,
            events: crate::decode::open(path)?,
            decoder: Decoder::new(Limits::ALL),
            threads: HashMap::new(),
            count: 0,
            waiting: 0,
        })
    }

    /// Returns the next operation with the number of its thread and its size in memory.
    fn next(&mut self, filter: &Filter, devices: &[String]) -> Result<Option<(usize, usize, Decoded)>> {
        for event in self.events.by_ref() {
            let event = event?;
            let decoded = self.decoder.decode(&event);
            let Event::Ioctl(ioctl) = &event else {
                continue;
            };
            if !filter.passes(&decoded, devices) {
                continue;
            }
            self.count += 1;
            let next = self.threads.len();
            let thread = *self.threads.entry(decoded.thread).or_insert(next);
            if next >= MOST_THREADS {
                bail!(
                    "{}: more than {MOST_THREADS} threads: select some with --thread",
                    self.name.display()
                );
            }
            let memory: usize = ioctl.memory.iter().map(|piece| piece.bytes.len()).sum();
            let size = DECODED_EACH + DECODED * (memory + ioctl.input.len() + ioctl.output.len());
            return Ok(Some((thread, size, decoded)));
        }
        Ok(None)
    }
}

/// The operations of a thread that wait for the other capture's, with their sizes.
#[derive(Default)]
struct Thread {
    waiting: [VecDeque<(usize, Operation)>; 2],
    differs: bool,
}

/// The first difference of a thread: the operations of both captures, with their numbers from 1.
struct Difference {
    thread: usize,
    what: String,
    a: Option<Operation>,
    b: Option<Operation>,
}

/// Compares two captures while they are read.
struct Comparison<'a> {
    sides: [Side<'a>; 2],
    threads: Vec<Thread>,
    renaming: Renaming,
    rows: BTreeMap<String, Counts>,
    found: Option<Difference>,
}

impl<'a> Comparison<'a> {
    fn new(a: &'a PathBuf, b: &'a PathBuf) -> Result<Self> {
        Ok(Self {
            sides: [Side::open(a)?, Side::open(b)?],
            threads: Vec::new(),
            renaming: Renaming::default(),
            rows: BTreeMap::new(),
            found: None,
        })
    }

    /// Reads both captures alternately, so that little waits.
    fn run(&mut self, filter: &Filter, devices: &[String]) -> Result<()> {
        let mut has_more = [true; 2];
        while has_more != [false; 2] {
            for (side, more) in has_more.iter_mut().enumerate() {
                if !*more {
                    continue;
                }
                match self.sides[side].next(filter, devices)? {
                    Some((thread, size, decoded)) => self.add(side, thread, size, decoded)?,
                    None => *more = false,
                }
            }
        }
        for thread in 0..self.threads.len() {
            let [a, b] = &mut self.threads[thread].waiting;
            let (a, b) = (a.pop_front(), b.pop_front());
            let what = match (&a, &b) {
                (Some(_), _) => "B ends here",
                (_, Some(_)) => "A ends here",
                _ => continue,
            };
            self.differ(thread, what.to_owned(), a, b);
        }
        Ok(())
    }

    fn add(&mut self, side: usize, thread: usize, size: usize, decoded: Decoded) -> Result<()> {
        self.count(side, &decoded);
        if self.threads.len() <= thread {
            self.threads.resize_with(thread + 1, Thread::default);
        }
        if self.threads[thread].differs {
            return Ok(());
        }
        let number = self.sides[side].count;
        self.threads[thread].waiting[side].push_back((size, (number, decoded)));
        self.sides[side].waiting += size;
        if self.sides[side].waiting > MOST_WAITING {
            let ahead = self.sides[side].name.display();
            bail!("{ahead}: too many operations have no counterpart: select some with --op or --thread");
        }
        let [a, b] = &mut self.threads[thread].waiting;
        if a.is_empty() || b.is_empty() {
            return Ok(());
        }
        let (a, b) = (a.pop_front(), b.pop_front());
        if let (Some((x, (_, one))), Some((y, (_, other)))) = (&a, &b) {
            self.sides[0].waiting -= x;
            self.sides[1].waiting -= y;
            if let Some(what) = self.renaming.operation(one, other) {
                self.differ(thread, what, a, b);
            }
        }
        if self.renaming.to_b.len() > MOST_NAMES {
            bail!(
                "more than {MOST_NAMES} handles and addresses: select some operations with --op or --thread"
            );
        }
        Ok(())
    }

    fn differ(
        &mut self,
        thread: usize,
        what: String,
        a: Option<(usize, Operation)>,
        b: Option<(usize, Operation)>,
    ) {
        let done = &mut self.threads[thread];
        done.differs = true;
        for (side, waiting) in done.waiting.iter_mut().enumerate() {
            self.sides[side].waiting -= waiting.drain(..).map(|(size, _)| size).sum::<usize>();
        }
        let [a, b] = [a, b].map(|one| one.map(|(_, operation)| operation));
        let number = |one: &Option<Operation>| one.as_ref().map_or(usize::MAX, |(number, _)| *number);
        if self
            .found
            .as_ref()
            .is_none_or(|first| number(&a) < number(&first.a))
        {
            let thread = thread + 1;
            self.found = Some(Difference { thread, what, a, b });
        }
    }

    fn count(&mut self, side: usize, decoded: &Decoded) {
        let mut operation = name_of(decoded);
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(&operation) {
            operation = OTHERS.to_owned();
        }
        let row = self.rows.entry(operation.clone()).or_default();
        row.operation = operation;
        row.calls[side] += 1;
        row.errors[side] += u64::from(decoded.result.is_some_and(|result| result < 0));
    }
}

/// The counts of an operation in both captures.
#[derive(Debug, Default)]
struct Counts {
    operation: String,
    calls: [u64; 2],
    errors: [u64; 2],
}

const COLUMNS: &[Column<Counts>] = &columns! { Counts:
    text "operation" "operation" |row| row.operation;
    grouped "calls_a" "calls in A" |row| row.calls[0];
    grouped "calls_b" "calls in B" |row| row.calls[1];
    grouped "errors_a" "errors in A" |row| row.errors[0];
    grouped "errors_b" "errors in B" |row| row.errors[1];
};

pub(crate) fn run(common: &Common, diff: &Diff, output: &mut Output) -> Result<u8> {
    let mut comparison = Comparison::new(&diff.a, &diff.b)?;
    comparison.run(&diff.filter, &common.devices)?;
    let first = comparison.found;
    let rows: Vec<Counts> = comparison.rows.into_values().collect();
    let code = if first.is_some() { exit::FAILED } else { exit::DONE };
    if output.is_json() {
        let call = |one: Option<Operation>| {
            one.map(|(number, decoded)| object! { number: number, line: decoded.to_string() })
        };
        let same = first.is_none();
        let first = first.map(|first| {
            object! { thread: first.thread, what: first.what, a: call(first.a), b: call(first.b) }
        });
        output.document(
            "gaudi.diff",
            &object! { same: same, first: first, operations: records(COLUMNS, &rows) },
        )?;
        return Ok(code);
    }
    match first {
        None => output.line("no difference")?,
        Some(first) => {
            output.line(format!(
                "first difference, in thread {}: {}",
                first.thread, first.what
            ))?;
            for (sign, side, one, style) in
                [('-', 'A', first.a, Style::Bad), ('+', 'B', first.b, Style::Good)]
            {
                if let Some((number, decoded)) = one {
                    let line = format!("{sign} {side} {number}: {decoded}");
                    output.line(output.styled(style, &line))?;
                }
            }
        }
    }
    if !rows.is_empty() {
        output.line("")?;
        output.rows(COLUMNS, &rows)?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_renamed_one_to_one() {
        let mut renaming = Renaming::default();
        assert!(renaming.matches(Sort::Handle, 1, 7));
        assert!(renaming.matches(Sort::Handle, 1, 7));
        assert!(!renaming.matches(Sort::Handle, 1, 8), "1 is 7");
        assert!(!renaming.matches(Sort::Handle, 2, 7), "7 is 1");
        assert!(renaming.matches(Sort::Sequence, 2, 7), "another sort");
        assert!(!renaming.matches(Sort::Handle, 0, 9), "no handle is a handle");
        renaming.rename(Sort::Handle, 1, 9);
        assert!(renaming.matches(Sort::Handle, 1, 9), "a new object");
        assert!(
            renaming.matches(Sort::Handle, 3, 7),
            "7 stands for nothing else now"
        );
    }

    #[test]
    fn difference_changes_no_name() {
        let mut renaming = Renaming::default();
        assert!(renaming.matches(Sort::Handle, 1, 7));
        assert!(!renaming.matches(Sort::Handle, 2, 7));
        assert!(renaming.matches(Sort::Handle, 2, 8), "2 has no other name");
    }

    #[test]
    fn fields_are_compared_by_their_names() {
        assert_eq!(compared("handle"), Compared::Renamed(Sort::Handle));
        assert_eq!(
            compared("device_virt_addr"),
            Compared::Renamed(Sort::DeviceAddress)
        );
        assert_eq!(compared("host_virt_addr"), Compared::Presence);
        assert_eq!(compared("timeout_us"), Compared::No);
        assert_eq!(compared("mem_size"), Compared::Exactly);
    }
}
