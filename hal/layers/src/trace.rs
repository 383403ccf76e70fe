//! The trace layer: one line of JSON for every operation.

mod decode;
mod fields;
mod info;
mod log;
mod record;
mod sink;

use std::cell::OnceCell;
use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_seam::{Answer as _, Error, KernelIo, Layer, Node, NodeKind, Request, Result, SharedIo};
use gaudi_sys::fork::OwnerProcess;

use crate::Below;
use crate::file::Form;
use crate::time::Time;
use sink::Sink;

pub(crate) use decode::name as operation_name;
pub use fields::{Fields, Value};
pub(crate) use log::over as log_over;
pub use record::{
    Call, End, Failure, Header, OperationRecord, Outcome, ReadError, Reader, Record, SCHEMA, VERSION,
};

/// JSON Lines of this layer.
pub(crate) const FORM: Form = Form {
    noun: "trace",
    check: |file| match Reader::new(BufReader::new(file)).next() {
        None | Some(Ok(Record::Header(_))) => Ok(()),
        Some(Ok(_)) => Err("its first line is not a header".to_owned()),
        Some(Err(error)) => Err(error.problem),
    },
};

/// Writes each operation that has ended as a line of JSON, with the kernel's names.
///
/// - Tracing does not change the result of an operation: the last line counts the lines that were
///   lost.
/// - The duration is that of the call: decoding happens before and after it.
/// - The chunks of a submission are traced; the contents of command buffers and of memory are not.
/// - A fork child writes nothing: the file belongs to the parent.
#[derive(Debug)]
pub struct TraceLayer {
    inner: Below,
    session: u64,
    output: Output,
    time: Arc<dyn Time>,
    opened_ns: u64,
    started: AtomicU64,
    owner: OwnerProcess,
}

/// The destination of the lines.
#[derive(Debug)]
enum Output {
    /// To a file, as JSON.
    File(Sink),
    /// To the program's log.
    Log,
}

thread_local! {
    static THREAD: OnceCell<u64> = const { OnceCell::new() };
}

/// The kernel's id of this thread, as strace and perf show it.
fn thread() -> u64 {
    // A thread id is positive.
    let ask = || u64::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0);
    THREAD
        .try_with(|id| *id.get_or_init(ask))
        .unwrap_or_else(|_| ask())
}

impl TraceLayer {
    /// A layer over `inner` that writes to `file`, with one write for each line.
    pub fn new(inner: SharedIo, file: Box<dyn Write + Send>, time: Arc<dyn Time>) -> Self {
        static SESSIONS: AtomicU64 = AtomicU64::new(0);
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let sink = Sink::new(session, file);
        let node = inner.node();
        sink.begin(&Record::Header(Header {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            session,
            backend: node.device.backend.name().to_owned(),
            device: node.device.to_string(),
            node: kind_name(node).to_owned(),
            name: node.name.clone(),
            era: node.era.to_string(),
            pid: std::process::id(),
            time_unix_ns: time.unix_ns(),
        }));
        let mut layer = Self::with_output(inner, Output::File(sink), time);
        layer.session = session;
        layer
    }

    fn with_output(inner: SharedIo, output: Output, time: Arc<dyn Time>) -> Self {
        Self {
            session: 0,
            output,
            opened_ns: time.now_ns(),
            time,
            started: AtomicU64::new(0),
            owner: OwnerProcess::current(),
            inner: Below(inner),
        }
    }
}

pub(crate) fn kind_name(node: &Node) -> &'static str {
    match node.kind {
        NodeKind::Compute => "compute",
        NodeKind::Control => "control",
    }
}

fn failure(error: &Error) -> Failure {
    Failure {
        errno: error.errno().map(|errno| format!("{errno:?}")),
        kind: error.kind().name().to_owned(),
        message: error.to_string(),
    }
}

impl Drop for TraceLayer {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            return;
        }
        match &self.output {
            Output::File(sink) => sink.end(),
            Output::Log => {
                let operations = self.started.load(Ordering::Relaxed);
                log::close(self.inner.0.node(), operations);
            }
        }
    }
}

impl Layer for TraceLayer {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner.0
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        if self.owner.is_foreign() {
            return next(request);
        }
        let decoded = match self.output {
            Output::Log if !log::wants_requests() => None,
            _ => Some(decode::request(request.view())),
        };
        let n = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let start = self.time.now_ns();
        let result = next(request);
        let end = self.time.now_ns();
        let duration_ns = end.saturating_sub(start);
        let op = decode::name(request.view());
        let answer = |answer: &R::Answer| decode::answer(request.view(), answer.view());
        match &self.output {
            Output::File(sink) => sink.operation(&Record::Operation(OperationRecord {
                n,
                session: self.session,
                thread: thread(),
                call: Call::Known(R::OPERATION),
                op,
                start_ns: start.saturating_sub(self.opened_ns),
                duration_ns,
                request: decoded.unwrap_or_default(),
                outcome: match &result {
                    Ok(value) => Outcome::Answer(answer(value)),
                    Err(error) => Outcome::Error(failure(error)),
                },
            })),
            Output::Log => log::operation(
                self.node(),
                &op,
                decoded.as_ref(),
                result.as_ref().map(answer),
                duration_ns,
            ),
        }
        result
    }
}
