//! The lines of a trace, for the layer that writes them and for readers.

use std::fmt;
use std::io::{BufRead, Read as _};

use serde::{Deserialize, Serialize};

use super::fields::{Fields, Value};
use gaudi_seam::Operation;

/// The `schema` of a trace's first line.
pub const SCHEMA: &str = "gaudi.trace";
/// The `version` of a trace's first line. It increases if a reader of the old form would misread a
/// line.
pub const VERSION: u32 = 1;
/// The longest line of a trace: several times the largest submission.
const LONGEST_LINE: u64 = 1 << 20;

/// One line. The key `record` has the kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line of a session.
    Header(Header),
    /// An operation that has ended.
    Operation(OperationRecord),
    /// The last line of a session. It is missing if the process was killed.
    End(End),
    /// A line of an unknown kind, unchanged.
    #[serde(untagged)]
    Unknown(Fields),
}

/// The traced node, and the start of the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`VERSION`].
    pub version: u32,
    /// The number of this trace in its process, from 1: a file may hold several.
    pub session: u64,
    /// `kernel` or `mock`.
    pub backend: String,
    /// `accel0`, `mock0`.
    pub device: String,
    /// `compute` or `control`.
    pub node: String,
    /// The node's path, or the mock's spec.
    pub name: String,
    /// The ioctl numbers in use: `accel-drm`.
    pub era: String,
    /// The process id.
    pub pid: u32,
    /// The time at which `start_ns` is 0, in nanoseconds since 1970 (UTC).
    pub time_unix_ns: u64,
}

/// One operation: its request, and its answer or error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// The operation's number by its start, from 1. Lines are in the order of their end; a missing
    /// number was lost.
    pub n: u64,
    /// The header's.
    pub session: u64,
    /// The kernel's id of the calling thread.
    pub thread: u64,
    /// The seam's method.
    pub call: Call,
    /// The kernel's name of the operation, as fine as it has one: `HL_INFO_DRAM_USAGE`.
    pub op: String,
    /// Nanoseconds since the header's time.
    pub start_ns: u64,
    /// Nanoseconds from start to end.
    pub duration_ns: u64,
    /// The request, by the kernel's names.
    pub request: Fields,
    /// The answer or the error.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer, by the kernel's names.
    Answer(Fields),
    /// The error.
    Error(Failure),
}

/// An error in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// `EINVAL`. Missing if the error is not the driver's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// The error's kind: `invalid_input`.
    pub kind: String,
    /// The whole error in one line.
    pub message: String,
}

/// The end of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The header's.
    pub session: u64,
    /// Operations that were traced.
    pub operations: u64,
    /// The number of operations that could not be written.
    pub lost: u64,
}

/// A method of the seam, or the name of an unknown one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Call {
    /// A known method.
    Known(Operation),
    /// An unknown method.
    Unknown(String),
}

impl From<String> for Call {
    fn from(name: String) -> Self {
        Operation::of_name(&name).map_or(Self::Unknown(name), Self::Known)
    }
}

impl From<Call> for String {
    fn from(call: Call) -> Self {
        call.to_string()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(operation) => f.pad(operation.name()),
            Self::Unknown(name) => f.pad(name),
        }
    }
}

impl Record {
    /// The record as its line, newline included.
    pub fn to_line(&self) -> Vec<u8> {
        let line = serde_json::to_vec(self);
        let mut line = line.expect("all keys are strings, so nothing fails to serialise");
        line.push(b'\n');
        line
    }

    /// Parses the record of one line.
    ///
    /// # Errors
    /// The line is not a JSON object, or not a record of this format.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let fields: Fields = serde_json::from_slice(line)?;
        match fields.get("record").and_then(Value::as_str) {
            Some("header") => serde_json::from_slice(line).map(Self::Header),
            Some("operation") => serde_json::from_slice(line).map(Self::Operation),
            Some("end") => serde_json::from_slice(line).map(Self::End),
            _ => Ok(Self::Unknown(fields)),
        }
    }
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("trace, line {line}: {problem}")]
pub struct ReadError {
    /// The line's number, from 1.
    pub line: u64,
    /// The problem.
    pub problem: String,
}

/// Reads a trace line by line.
///
/// An invalid line is an error, and reading continues after it: a full disk can truncate a line. A
/// file that does not begin with a header of this schema and a known version returns one error and
/// ends.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: u64,
    done: bool,
}

impl<R: BufRead> Reader<R> {
    /// A reader from a file's start.
    pub fn new(input: R) -> Self {
        Self {
            input,
            line: 0,
            done: false,
        }
    }

    /// The next line without its newline. `Err` if the line is too long; it is skipped.
    fn line(&mut self) -> std::io::Result<Option<Result<Vec<u8>, String>>> {
        let mut bytes = Vec::new();
        self.input
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            return Ok(Some(Ok(bytes)));
        }
        if (bytes.len() as u64) < LONGEST_LINE {
            return Ok(Some(Ok(bytes)));
        }
        loop {
            bytes.clear();
            self.input
                .by_ref()
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut bytes)?;
            if bytes.last().is_none_or(|last| *last == b'\n') {
                return Ok(Some(Err(format!("longer than {LONGEST_LINE} bytes"))));
            }
        }
    }

    /// Checks the first line.
    fn begins(record: &Result<Record, String>) -> Result<(), String> {
        match record {
            Ok(Record::Header(header)) if header.schema != SCHEMA => {
                Err(format!("the schema is {:?}, not {SCHEMA:?}", header.schema))
            }
            Ok(Record::Header(header)) if header.version > VERSION => Err(format!(
                "version {} is newer than this reader, which knows up to {VERSION}",
                header.version
            )),
            Ok(Record::Header(_)) => Ok(()),
            _ => Err("not the header of a trace".to_owned()),
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        self.line += 1;
        let record = match self.line() {
            Ok(None) => {
                self.done = true;
                return None;
            }
            Ok(Some(Ok(bytes))) => Record::parse(&bytes).map_err(|error| error.to_string()),
            Ok(Some(Err(problem))) => Err(problem),
            Err(error) => {
                self.done = true;
                Err(error.to_string())
            }
        };
        let record = match self.line {
            1 => Self::begins(&record).and(record),
            _ => record,
        };
        self.done |= self.line == 1 && record.is_err();
        let line = self.line;
        Some(record.map_err(|problem| ReadError { line, problem }))
    }
}
