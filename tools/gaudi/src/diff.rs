//! `gaudi diff`: where two captures differ.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoded, Decoder};
use gaudi_capture::value::{Fields, Value};

use crate::common::Common;
use crate::decode::Filter;
use crate::exit;
use crate::operation::name_of;
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
        let to_b = *self.to_b.entry((sort, a)).or_insert(b);
        let to_a = *self.to_a.entry((sort, b)).or_insert(a);
        to_b == b && to_a == a
    }

    /// A new object can reuse the name of an old one.
    fn rename(&mut self, sort: Sort, a: u64, b: u64) {
        self.to_b.insert((sort, a), b);
        self.to_a.insert((sort, b), a);
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

/// The operations of one thread, in order: each with its number among all of the capture.
type Thread = Vec<(usize, Decoded)>;

/// Reads the operations of a capture, by thread in the order of their first operation.
fn read(path: &PathBuf, filter: &Filter, devices: &[String]) -> Result<Vec<Thread>> {
    let mut decoder = Decoder::new(Limits::ALL);
    let mut threads: Vec<Thread> = Vec::new();
    let mut places = HashMap::new();
    let mut count = 0;
    for event in crate::decode::open(path)?.events {
        let decoded = decoder.decode(&event?);
        if decoded.record != "ioctl" || !filter.passes(&decoded, devices) {
            continue;
        }
        count += 1;
        let place = *places.entry(decoded.thread).or_insert_with(|| {
            threads.push(Vec::new());
            threads.len() - 1
        });
        threads[place].push((count, decoded));
    }
    Ok(threads)
}

/// The first difference: the operations of both captures, with their numbers from 1.
struct Difference<'a> {
    thread: usize,
    what: String,
    a: Option<&'a (usize, Decoded)>,
    b: Option<&'a (usize, Decoded)>,
}

fn first_difference<'a>(a: &'a [Thread], b: &'a [Thread]) -> Option<Difference<'a>> {
    let mut renaming = Renaming::default();
    let none: &Thread = const { &Vec::new() };
    let mut found = Vec::new();
    for thread in 0..a.len().max(b.len()) {
        let (one, other) = (a.get(thread).unwrap_or(none), b.get(thread).unwrap_or(none));
        let pairs = (0..one.len().max(other.len())).map(|at| (one.get(at), other.get(at)));
        let first = pairs.into_iter().find_map(|pair| {
            let what = match pair {
                (Some((_, a)), Some((_, b))) => renaming.operation(a, b)?,
                (Some(_), None) => "B ends here".to_owned(),
                _ => "A ends here".to_owned(),
            };
            Some(Difference {
                thread: thread + 1,
                what,
                a: pair.0,
                b: pair.1,
            })
        });
        found.extend(first);
    }
    found
        .into_iter()
        .min_by_key(|one| one.a.map_or(usize::MAX, |(number, _)| *number))
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

fn counts(both: [&[Thread]; 2]) -> Vec<Counts> {
    let mut rows: BTreeMap<String, Counts> = BTreeMap::new();
    for (side, threads) in both.into_iter().enumerate() {
        for (_, decoded) in threads.iter().flatten() {
            let operation = name_of(decoded);
            let row = rows.entry(operation.clone()).or_default();
            row.operation = operation;
            row.calls[side] += 1;
            row.errors[side] += u64::from(decoded.result.is_some_and(|result| result < 0));
        }
    }
    rows.into_values().collect()
}

pub(crate) fn run(common: &Common, diff: &Diff, output: &mut Output) -> Result<u8> {
    let [a, b] = [&diff.a, &diff.b].map(|path| read(path, &diff.filter, &common.devices));
    let (a, b) = (a?, b?);
    let first = first_difference(&a, &b);
    let rows = counts([&a, &b]);
    let code = if first.is_some() { exit::FAILED } else { exit::DONE };
    if output.is_json() {
        let call = |one: Option<&(usize, Decoded)>| {
            one.map(|(number, decoded)| object! { number: *number, line: decoded.to_string() })
        };
        let first = first.map(|first| {
            object! { thread: first.thread, what: first.what, a: call(first.a), b: call(first.b) }
        });
        let same = first.is_none();
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
