//! Observes the operations of a case and their answers, as the trace layer decodes them.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use gaudi_layers::time::VirtualTime;
use gaudi_layers::trace::{Fields, Outcome, Record, TraceLayer, Value};
use gaudi_seam::{Error, SharedIo};
use gaudi_uapi::info::InfoOp;

/// A used name of the headers (an operation or a flag) and the errno of the answer; `None` is
/// success.
pub(crate) type Seen = (String, Option<String>);

/// The log of observed operations.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a node that logs its operations here.
    pub(crate) fn over(&self, io: SharedIo) -> SharedIo {
        Arc::new(TraceLayer::new(
            io,
            Box::new(self.clone()),
            Arc::new(VirtualTime::new()),
        ))
    }

    /// Logs an open, which is not an operation of a node.
    pub(crate) fn opened(&self, name: &str, error: Option<&Error>) {
        let errno = error.and_then(Error::errno).map(|errno| format!("{errno:?}"));
        let _ = writeln!(self.lock(), "{name} {}", errno.unwrap_or_default());
    }

    /// Returns what was observed since the last call.
    pub(crate) fn take(&self) -> BTreeSet<Seen> {
        let bytes = std::mem::take(&mut *self.lock());
        let mut seen = BTreeSet::new();
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            match Record::parse(line) {
                Ok(Record::Operation(operation)) => {
                    let errno = match operation.outcome {
                        Outcome::Answer(_) => None,
                        Outcome::Error(failure) => failure.errno,
                    };
                    let mut names = BTreeSet::from([operation.op.clone()]);
                    names_in(&operation.op, &operation.request, &mut names);
                    seen.extend(names.into_iter().map(|name| (known(name), errno.clone())));
                }
                Ok(_) => {}
                Err(_) => {
                    if let Some((name, errno)) = String::from_utf8_lossy(line).split_once(' ') {
                        let errno = (!errno.is_empty()).then(|| errno.to_owned());
                        seen.insert((name.to_owned(), errno));
                    }
                }
            }
        }
        seen
    }
}

/// Maps the name of an INFO operation that no header defines to `HL_IOCTL_INFO`.
fn known(name: String) -> String {
    let is_question = name.starts_with("HL_INFO_");
    match is_question && !InfoOp::NAMES.iter().any(|one| one.c_name == name) {
        true => "HL_IOCTL_INFO".to_owned(),
        false => name,
    }
}

/// Adds the names of the headers in a request's fields.
fn names_in(op: &str, fields: &Fields, names: &mut BTreeSet<String>) {
    for (field, value) in &fields.0 {
        let prefix = match (&**field, op) {
            ("cs_flags", _) => "HL_CS_FLAGS_",
            ("cs_chunk_flags", _) => "HL_CS_CHUNK_FLAGS_",
            ("core_command" | "engine_command", _) => "HL_ENGINE_",
            ("flags", "HL_CB_OP_CREATE" | "HL_CB_OP_INFO") => "HL_CB_FLAGS_",
            ("flags", "HL_MEM_OP_ALLOC" | "HL_MEM_OP_MAP") => "HL_MEM_",
            ("op", "HL_IOCTL_DEBUG") => "HL_DEBUG_OP_",
            ("interrupt", _) => "HL_WAIT_CS_FLAGS_",
            ("cq_counters_handle", _) => {
                names.insert("HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ".to_owned());
                continue;
            }
            _ => "",
        };
        match value {
            Value::Text(text) if !prefix.is_empty() => {
                let named = |flag: &&str| {
                    flag.bytes()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
                };
                let flags = text.split('|').filter(named).filter(|flag| *flag != "0");
                names.extend(flags.map(|flag| format!("{prefix}{flag}")));
            }
            Value::List(list) => {
                for one in list {
                    if let Value::Record(fields) = one {
                        names_in(op, fields, names);
                    }
                }
            }
            Value::Record(fields) => names_in(op, fields, names),
            _ => {}
        }
    }
}
