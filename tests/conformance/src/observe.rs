//! Observes the operations of a case and their answers, as the trace layer decodes them.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use gaudi_layers::time::VirtualClock;
use gaudi_layers::trace::{Fields, Outcome, Record, TraceLayer, Value};
use gaudi_seam::{Error, KernelIo, Layer, Operation, Request, Result, SharedIo};
use gaudi_uapi::info::InfoOp;

/// A used name of the headers (an operation or a flag) and the errno of the answer; `None` is
/// success.
pub(crate) type Seen = (String, Option<String>);

/// Line starts of refusals in the log: by rule id, and without a rule.
const REFUSED: &str = "refused-by ";
const WITHOUT_RULE: &str = "refused-without-rule ";

/// Logs the rule of each refusal.
struct Refusals {
    inner: SharedIo,
    log: Log,
}

impl Layer for Refusals {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let result = next(request);
        if let Err(error) = &result {
            self.log.refused(Some(R::OPERATION), error);
        }
        result
    }
}

/// What a case was seen to do.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    pub(crate) seen: BTreeSet<Seen>,
    /// The ids of the rules that refused a request.
    pub(crate) rules: BTreeSet<String>,
    /// Refusals without a rule, as operation and errno.
    pub(crate) unexplained: BTreeSet<String>,
}

/// Where observed operations are written.
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
        let traced = Arc::new(TraceLayer::new(
            io,
            Box::new(self.clone()),
            Arc::new(VirtualClock::default()),
        ));
        Arc::new(Refusals {
            inner: traced,
            log: self.clone(),
        })
    }

    /// Logs an open, which is not an operation of a node.
    pub(crate) fn opened(&self, name: &str, error: Option<&Error>) {
        let errno = error.and_then(Error::errno).map(|errno| format!("{errno:?}"));
        // Writing to a vector cannot fail, here and below.
        let _ = writeln!(self.lock(), "{name} {}", errno.unwrap_or_default());
        if let Some(error) = error {
            self.refused(None, error);
        }
    }

    fn refused(&self, operation: Option<Operation>, error: &Error) {
        let name = operation.map_or("open", Operation::kernel_name);
        let _ = match (error.rule(), error.errno()) {
            (Some(rule), _) => writeln!(self.lock(), "{REFUSED}{}", rule.id),
            (None, Some(errno)) => writeln!(self.lock(), "{WITHOUT_RULE}{name}: {errno:?}: {error}"),
            // A deadline of the caller's is not a refusal.
            (None, None) => Ok(()),
        };
    }

    /// Returns what was observed since the last call.
    pub(crate) fn take(&self) -> Observation {
        let bytes = std::mem::take(&mut *self.lock());
        let mut observation = Observation::default();
        let seen = &mut observation.seen;
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
                    let line = String::from_utf8_lossy(line);
                    if let Some(id) = line.strip_prefix(REFUSED) {
                        observation.rules.insert(id.to_owned());
                    } else if let Some(refusal) = line.strip_prefix(WITHOUT_RULE) {
                        observation.unexplained.insert(refusal.to_owned());
                    } else if let Some((name, errno)) = line.split_once(' ') {
                        let errno = (!errno.is_empty()).then(|| errno.to_owned());
                        seen.insert((name.to_owned(), errno));
                    }
                }
            }
        }
        observation
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
    for (field, value) in fields {
        let prefix = match (field.as_str(), op) {
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
            Value::String(text) if !prefix.is_empty() => {
                let named = |flag: &&str| {
                    flag.bytes()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
                };
                let flags = text.split('|').filter(named).filter(|flag| *flag != "0");
                names.extend(flags.map(|flag| format!("{prefix}{flag}")));
            }
            Value::Array(list) => {
                for one in list {
                    if let Value::Object(fields) = one {
                        names_in(op, fields, names);
                    }
                }
            }
            Value::Object(fields) => names_in(op, fields, names),
            _ => {}
        }
    }
}
