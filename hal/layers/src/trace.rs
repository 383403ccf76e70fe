//! The trace layer: every operation as one line of JSON.

mod decode;
mod fields;
mod file;
mod info;
mod log;
mod record;
mod sink;

use std::cell::OnceCell;
use std::io::Write;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, DeviceVa, Error,
    ExportRequest, InfoRequest, InterruptWait, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle,
    MmapRequest, MultiWaitAnswer, NicRequest, Node, NodeKind, RawMapping, RegisterDmabuf, Result, SharedIo,
    TimestampRegistration, TsHandle, WaitAnswer,
};
use gaudi_sys::fork::Birth;

use crate::operation::Operation;
use crate::time::Time;
use sink::Sink;

pub use fields::{Fields, Value};
pub(crate) use file::TraceFile;
pub(crate) use log::over as log_over;
pub use record::{
    Call, End, Failure, Header, OperationRecord, Outcome, ReadError, Reader, Record, SCHEMA, VERSION,
};

/// Writes each operation as a line of JSON, decoded by the kernel's names, once it has ended.
///
/// - Tracing never changes the result of an operation: the last line counts the lines that could not be written.
/// - The request is decoded before the call and the answer after it, so that the duration is the call's alone.
/// - The contents of command buffers and of memory are not traced; chunks of a submission are.
/// - A fork child writes nothing: the file is its parent's.
#[derive(Debug)]
pub struct TraceLayer {
    inner: Inner,
    session: u64,
    output: Output,
    time: Arc<dyn Time>,
    opened_ns: u64,
    started: AtomicU64,
    birth: Birth,
}

/// The destination of the lines.
#[derive(Debug)]
enum Output {
    /// To a file, as JSON.
    File(Sink),
    /// To the program's log.
    Log,
}

struct Inner(SharedIo);

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.node().fmt(f)
    }
}

thread_local! {
    static THREAD: OnceCell<u64> = const { OnceCell::new() };
}

/// The kernel's id of this thread, as strace and perf show it.
fn thread() -> u64 {
    let ask = || u64::try_from(nix::unistd::gettid().as_raw()).unwrap_or(0);
    THREAD
        .try_with(|id| *id.get_or_init(ask))
        .unwrap_or_else(|_| ask())
}

impl TraceLayer {
    /// A layer over `inner` that writes to `file`: one write for each line, so a file needs no buffer.
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
            node: match node.kind {
                NodeKind::Compute => "compute",
                NodeKind::Control => "control",
            }
            .to_owned(),
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
            birth: Birth::here(),
            inner: Inner(inner),
        }
    }

    fn traced<T>(
        &self,
        operation: Operation,
        request: impl FnOnce() -> Fields,
        call: impl FnOnce(&dyn KernelIo) -> Result<T>,
        answer: impl FnOnce(&T) -> Fields,
    ) -> Result<T> {
        // The kernel calls a mapping of host memory by the same name, and tells it by a flag.
        let name = || match operation {
            Operation::MemMapHost => Operation::MemMapDevice.kernel_name().to_owned(),
            other => other.kernel_name().to_owned(),
        };
        self.named(operation, name, request, call, answer)
    }

    fn named<T>(
        &self,
        operation: Operation,
        name: impl FnOnce() -> String,
        request: impl FnOnce() -> Fields,
        call: impl FnOnce(&dyn KernelIo) -> Result<T>,
        answer: impl FnOnce(&T) -> Fields,
    ) -> Result<T> {
        let io = &*self.inner.0;
        if self.birth.is_elsewhere() {
            return call(io);
        }
        let request = match self.output {
            Output::Log if !log::wants_requests() => None,
            _ => Some(request()),
        };
        let n = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let start = self.time.now_ns();
        let result = call(io);
        let end = self.time.now_ns();
        let duration_ns = end.saturating_sub(start);
        match &self.output {
            Output::File(sink) => sink.operation(&Record::Operation(OperationRecord {
                n,
                session: self.session,
                thread: thread(),
                call: Call::Known(operation),
                op: name(),
                start_ns: start.saturating_sub(self.opened_ns),
                duration_ns,
                request: request.unwrap_or_default(),
                outcome: match &result {
                    Ok(value) => Outcome::Answer(answer(value)),
                    Err(error) => Outcome::Error(failure(error)),
                },
            })),
            Output::Log => log::operation(
                io.node(),
                &name(),
                request.as_ref(),
                result.as_ref().map(answer),
                duration_ns,
            ),
        }
        result
    }
}

fn failure(error: &Error) -> Failure {
    Failure {
        errno: error.errno().map(|errno| format!("{errno:?}")),
        kind: error.kind().name().to_owned(),
        message: error.to_string(),
    }
}

fn nothing<T>(_: &T) -> Fields {
    Fields::new()
}

impl Drop for TraceLayer {
    fn drop(&mut self) {
        if self.birth.is_elsewhere() {
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

impl KernelIo for TraceLayer {
    fn node(&self) -> &Node {
        self.inner.0.node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        let decoded = || {
            Fields::new()
                .with("return_size", answer.len())
                .with("arg", request.arg)
        };
        // Decoded now: the closure that calls borrows the answer for itself.
        let decoded = decoded();
        self.named(
            Operation::Info,
            || info::name(request.op),
            || decoded,
            |io| io.info(request, answer).map(|arg| (arg, answer)),
            |(arg, answer)| Fields(info::answer(request.op, answer).with("arg", *arg).0),
        )
        .map(|(arg, _)| arg)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        self.traced(
            Operation::CbCreate,
            || decode::cb_create(&request),
            |io| io.cb_create(request),
            |handle| Fields::new().with("cb_handle", Value::hex(handle.0)),
        )
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.traced(
            Operation::CbDestroy,
            || Fields::new().with("cb_handle", Value::hex(handle.0)),
            |io| io.cb_destroy(handle),
            nothing,
        )
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.traced(
            Operation::CbInfo,
            || decode::cb_info(handle.0, device_va),
            |io| io.cb_info(handle, device_va),
            decode::cb_info_answer,
        )
    }

    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.traced(
            Operation::Submit,
            || decode::submit(request),
            |io| io.submit(request),
            decode::submit_answer,
        )
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        self.traced(
            Operation::WaitCs,
            || decode::wait_cs(seq, timeout),
            |io| io.wait_cs(seq, timeout),
            decode::wait_answer,
        )
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        self.traced(
            Operation::WaitMultiCs,
            || decode::wait_multi_cs(seqs, timeout),
            |io| io.wait_multi_cs(seqs, timeout),
            decode::multi_wait_answer,
        )
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        self.traced(
            Operation::WaitInterrupt,
            || decode::wait_interrupt(request),
            |io| io.wait_interrupt(request),
            decode::wait_answer,
        )
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        self.traced(
            Operation::RegisterTimestamp,
            || decode::register_timestamp(request),
            |io| io.register_timestamp(request),
            nothing,
        )
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        self.traced(
            Operation::MemAlloc,
            || decode::mem_alloc(&request),
            |io| io.mem_alloc(request),
            |handle| Fields::new().with("handle", handle.0),
        )
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.traced(
            Operation::MemFree,
            || Fields::new().with("handle", handle.0),
            |io| io.mem_free(handle),
            nothing,
        )
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        self.traced(
            Operation::MemMapDevice,
            || decode::map_device(&request),
            |io| io.mem_map_device(request),
            mapped,
        )
    }

    #[expect(unsafe_code, reason = "the caller's promise is handed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        self.traced(
            Operation::MemMapHost,
            || decode::map_host(&request),
            // SAFETY: the promise is the same, and it was made by the caller.
            |io| unsafe { io.mem_map_host(request) },
            mapped,
        )
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.traced(
            Operation::MemUnmap,
            || mapped(&address),
            |io| io.mem_unmap(address),
            nothing,
        )
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        self.traced(
            Operation::TsAlloc,
            || Fields::new().with("num_of_elements", elements),
            |io| io.ts_alloc(elements),
            |handle| Fields::new().with("handle", Value::hex(handle.0)),
        )
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        self.traced(
            Operation::MapBlock,
            || Fields::new().with("block_addr", Value::hex(address)),
            |io| io.map_block(address),
            decode::block_answer,
        )
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.traced(
            Operation::ExportDmabuf,
            || decode::export(&request),
            |io| io.export_dmabuf(request),
            |fd| Fields::new().with("fd", i64::from(fd.as_raw_fd())),
        )
    }

    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.traced(
            Operation::RegisterDmabuf,
            || {
                Fields::new()
                    .with("fd", i64::from(request.dmabuf.as_raw_fd()))
                    .with("length", request.len)
            },
            |io| io.register_dmabuf(request),
            mapped,
        )
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let DebugRequest {
            op,
            reg_idx,
            enable,
            input,
            output,
        } = request;
        let decoded = || {
            Fields::new()
                .with("op", Value::shown(op))
                .with("reg_idx", reg_idx)
                .with("enable", u32::from(enable))
                .with("input", info::debug_input(op, input))
        };
        let call = |io: &dyn KernelIo| {
            let request = DebugRequest {
                op,
                reg_idx,
                enable,
                input,
                output: &mut *output,
            };
            io.debug(request).map(|()| output)
        };
        let answer = |output: &&mut [u8]| Fields::new().with("output", Value::bytes(output));
        self.traced(Operation::Debug, decoded, call, answer).map(|_| ())
    }

    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        let NicRequest { op, input, output } = request;
        let decoded = || Fields::new().with("op", op).with("input", Value::bytes(input));
        let call = |io: &dyn KernelIo| {
            let request = NicRequest {
                op,
                input,
                output: &mut *output,
            };
            io.nic(request).map(|()| output)
        };
        let answer = |output: &&mut [u8]| Fields::new().with("output", Value::bytes(output));
        self.traced(Operation::Nic, decoded, call, answer).map(|_| ())
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        self.traced(
            Operation::Mmap,
            || decode::mmap(&request),
            |io| io.mmap(request),
            |map| Fields::new().with("address", Value::hex(map.as_ptr().as_ptr().addr() as u64)),
        )
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.traced(
            Operation::RegisterEvents,
            || Fields::new().with("eventfd", i64::from(eventfd.as_raw_fd())),
            |io| io.register_events(eventfd),
            nothing,
        )
    }

    fn unregister_events(&self) -> Result<()> {
        self.traced(
            Operation::UnregisterEvents,
            Fields::new,
            KernelIo::unregister_events,
            nothing,
        )
    }
}

fn mapped(address: &DeviceVa) -> Fields {
    Fields::new().with("device_virt_addr", Value::hex(address.0))
}
