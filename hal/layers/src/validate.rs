//! The validate layer: misuse is named before the driver meets it.

mod counters;
mod held;
mod ledger;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbHandle, CbInfo, CsAnswer, CsRequest, CsSeq, DebugRequest, DeviceVa, Errno,
    Error, ExportRequest, InfoRequest, InterruptWait, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle,
    MmapRequest, MultiWaitAnswer, NicRequest, Node, NodeKind, RawMapping, RegisterDmabuf, Result, SharedIo,
    TimestampRegistration, TsHandle, WaitAnswer,
};
use gaudi_sys::fork::Birth;

use crate::operation::Operation;
use ledger::{Ledger, Misuse};

pub use held::{HeldAllocation, HeldBuffer, HeldMapping, Leaks, Mapped};

/// Findings kept; older ones are counted only.
const FINDINGS: usize = 1024;

/// What is done with an operation that the driver is known to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// It is passed on: the driver refuses it as ever, and its error is told with the cause.
    #[default]
    Explain,
    /// The layer refuses it with the driver's errno, and the driver never sees it.
    Refuse,
}

/// A mistake of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which operation.
    pub operation: Operation,
    /// What is wrong, in a sentence.
    pub sentence: String,
    /// What the driver answers; none where it accepts the operation and the harm comes later, or never.
    pub expected: Option<Errno>,
    /// What became of it.
    pub outcome: Judgement,
}

/// What became of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The layer below accepted it.
    Accepted,
    /// The layer below refused it, with this errno.
    Refused(Option<Errno>),
    /// This layer refused it ([`Policy::Refuse`]).
    Stopped,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.sentence)
    }
}

/// Keeps books of what a program holds, and names what it does wrong before the driver meets it.
///
/// - *The driver stays the judge.* A finding is said through `tracing` before the call, and then the operation is passed on; if the driver
///   refuses it as expected, its error (kind and errno untouched) carries the sentence. So no program behaves differently, valid or not:
///   an errno of this layer is the driver's by construction. [`Policy::Refuse`] keeps from the driver what it is known to refuse.
/// - *What the driver accepts silently is a finding too*: a command buffer that nothing maps, host memory that is pinned twice.
/// - *What is not certain is no finding until the driver refuses*: whether a dma-buf is still alive is known to nobody but the kernel.
/// - *At the end*, what was not given back is told through `tracing`, and by [`leaks`](Self::leaks).
///
/// The books are right where every operation of the open node goes through this layer. Chunks and pages are judged as Gaudi2's.
#[derive(Debug)]
pub struct ValidateLayer {
    inner: Inner,
    policy: Policy,
    ledger: Mutex<Ledger>,
    findings: Mutex<Findings>,
    birth: Birth,
}

struct Inner(SharedIo);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.node().fmt(f)
    }
}

#[derive(Debug, Default)]
struct Findings {
    kept: VecDeque<Finding>,
    forgotten: u64,
}

impl ValidateLayer {
    /// A layer over a node that was just opened.
    pub fn new(inner: SharedIo, policy: Policy) -> Self {
        Self {
            inner: Inner(inner),
            policy,
            ledger: Mutex::default(),
            findings: Mutex::default(),
            birth: Birth::here(),
        }
    }

    /// What was found so far, oldest first: the newest 1024.
    pub fn findings(&self) -> Vec<Finding> {
        lock(&self.findings).kept.iter().cloned().collect()
    }

    /// How many older findings are not kept.
    pub fn forgotten(&self) -> u64 {
        lock(&self.findings).forgotten
    }

    /// What the program holds now: at the end, what it has not given back.
    pub fn leaks(&self) -> Leaks {
        lock(&self.ledger).leaks()
    }

    /// Whether everything is refused below for another reason: on a control node, and in a fork child, where moreover the lock may be held
    /// by a thread that is not there.
    fn is_silent(&self) -> bool {
        self.node().kind == NodeKind::Control || self.birth.is_elsewhere()
    }

    fn book(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Performs an operation that `check` may have something to say about, and books its answer. The books are not locked meanwhile.
    fn judged<T>(
        &self,
        operation: Operation,
        check: impl FnOnce(&Ledger) -> Option<Misuse>,
        call: impl FnOnce(&dyn KernelIo) -> Result<T>,
        book: impl FnOnce(&mut Ledger, &T),
    ) -> Result<T> {
        let io = &*self.inner.0;
        if self.is_silent() {
            return call(io);
        }
        let misuse = check(&self.book());
        let result = match misuse {
            None => call(io),
            Some(misuse) => self.confront(operation, misuse, || call(io)),
        };
        if let Ok(answer) = &result {
            book(&mut self.book(), answer);
        }
        result
    }

    #[cold]
    fn confront<T>(
        &self,
        operation: Operation,
        misuse: Misuse,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let device = self.node().device;
        if misuse.certain {
            tracing::warn!("device {device}: {operation}: {}", misuse.sentence);
        }
        let stopped = misuse
            .errno
            .filter(|_| misuse.certain && self.policy == Policy::Refuse);
        let result = match stopped {
            Some(errno) => {
                let error = Error::from_errno(operation.kernel_name(), errno)
                    .on(device)
                    .with_kind(misuse.kind);
                self.find(operation, &misuse, Judgement::Stopped);
                return Err(explain(error, misuse));
            }
            None => call(),
        };
        match result {
            Ok(answer) => {
                if misuse.certain {
                    self.find(operation, &misuse, Judgement::Accepted);
                }
                Ok(answer)
            }
            Err(error) => {
                let expected = misuse.errno.is_some() && error.errno() == misuse.errno;
                if !misuse.certain && expected {
                    tracing::warn!("device {device}: {operation}: {}", misuse.sentence);
                }
                if misuse.certain || expected {
                    self.find(operation, &misuse, Judgement::Refused(error.errno()));
                }
                // Another errno has another cause: a device in reset refuses good and bad alike.
                Err(if expected { explain(error, misuse) } else { error })
            }
        }
    }

    fn find(&self, operation: Operation, misuse: &Misuse, outcome: Judgement) {
        let mut findings = lock(&self.findings);
        if findings.kept.len() == FINDINGS {
            findings.kept.pop_front();
            findings.forgotten += 1;
        }
        findings.kept.push_back(Finding {
            operation,
            sentence: misuse.sentence.clone(),
            expected: misuse.errno,
            outcome,
        });
    }

    /// Gives something back: it leaves the books before the call, since its name may be given out again before the call returns, and
    /// comes back to them if the call fails.
    fn gives_back<H>(
        &self,
        operation: Operation,
        check: impl FnOnce(&Ledger) -> Option<Misuse>,
        take: impl FnOnce(&mut Ledger) -> Option<H>,
        call: impl FnOnce(&dyn KernelIo) -> Result<()>,
        restore: impl FnOnce(&mut Ledger, H),
    ) -> Result<()> {
        let perform = |io: &dyn KernelIo| {
            if self.is_silent() {
                return call(io);
            }
            let taken = take(&mut self.book());
            let result = call(io);
            if let (Err(_), Some(taken)) = (&result, taken) {
                restore(&mut self.book(), taken);
            }
            result
        };
        self.judged(operation, check, perform, |_, ()| {})
    }

    /// Asks where command buffers lie for which the program did not ask, since a chunk may name one.
    fn place_buffers(&self, request: &CsRequest<'_>) {
        if self.is_silent() {
            return;
        }
        let ledger = self.book();
        if !ledger.has_stray_chunk(request) {
            return;
        }
        let unplaced = ledger.unplaced();
        drop(ledger);
        for handle in unplaced {
            if let Ok(CbInfo {
                device_va: Some(va), ..
            }) = self.inner.0.cb_info(handle, true)
            {
                self.book().cb_va(handle, va);
            }
        }
    }
}

/// The driver's error with what is known of its cause.
fn explain(error: Error, misuse: Misuse) -> Error {
    let error = error.because(misuse.sentence);
    let error = match misuse.seen {
        Some((seen, wanted)) => error.saw(seen, wanted),
        None => error,
    };
    match misuse.help {
        Some(help) => error.helped_by(help),
        None => error,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ValidateLayer {
    fn drop(&mut self) {
        if self.is_silent() {
            return;
        }
        let leaks = self.leaks();
        if !leaks.is_empty() {
            tracing::warn!(
                "device {}: closed without giving back: {leaks}",
                self.node().device
            );
        }
    }
}

fn nothing<T>(_: &mut Ledger, _: &T) {}

impl KernelIo for ValidateLayer {
    fn node(&self) -> &Node {
        self.inner.0.node()
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> Result<u32> {
        self.inner.0.info(request, answer)
    }

    fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        self.judged(
            Operation::CbCreate,
            |_| Ledger::check_cb_create(&request),
            |io| io.cb_create(request),
            |ledger, handle| ledger.cb_create(&request, *handle),
        )
    }

    fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        self.gives_back(
            Operation::CbDestroy,
            |ledger| ledger.check_cb_destroy(handle),
            |ledger| ledger.cb_destroy(handle),
            |io| io.cb_destroy(handle),
            Ledger::cb_undestroy,
        )
    }

    fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        self.judged(
            Operation::CbInfo,
            |ledger| ledger.check_cb(handle, device_va),
            |io| io.cb_info(handle, device_va),
            |ledger, info| {
                if let Some(va) = info.device_va {
                    ledger.cb_va(handle, va);
                }
            },
        )
    }

    fn submit(&self, request: &CsRequest<'_>) -> Result<CsAnswer> {
        self.place_buffers(request);
        let perform = |io: &dyn KernelIo| {
            if self.is_silent() {
                return io.submit(request);
            }
            self.book().submit_starts();
            let result = io.submit(request);
            self.book().submit_ends(request, result.as_ref().ok());
            result
        };
        self.judged(
            Operation::Submit,
            |ledger| ledger.check_submit(request),
            perform,
            nothing,
        )
    }

    fn wait_cs(&self, seq: CsSeq, timeout: Duration) -> Result<WaitAnswer> {
        self.judged(
            Operation::WaitCs,
            |ledger| ledger.check_wait(&[seq]),
            |io| io.wait_cs(seq, timeout),
            nothing,
        )
    }

    fn wait_multi_cs(&self, seqs: &[CsSeq], timeout: Duration) -> Result<MultiWaitAnswer> {
        self.judged(
            Operation::WaitMultiCs,
            |ledger| ledger.check_wait(seqs),
            |io| io.wait_multi_cs(seqs, timeout),
            nothing,
        )
    }

    fn wait_interrupt(&self, request: &InterruptWait) -> Result<WaitAnswer> {
        self.judged(
            Operation::WaitInterrupt,
            |ledger| ledger.check_wait_interrupt(request),
            |io| io.wait_interrupt(request),
            nothing,
        )
    }

    fn register_timestamp(&self, request: &TimestampRegistration) -> Result<()> {
        self.judged(
            Operation::RegisterTimestamp,
            |ledger| ledger.check_register_timestamp(request),
            |io| io.register_timestamp(request),
            nothing,
        )
    }

    fn mem_alloc(&self, request: MemAlloc) -> Result<MemHandle> {
        self.judged(
            Operation::MemAlloc,
            |_| Ledger::check_alloc(&request),
            |io| io.mem_alloc(request),
            |ledger, handle| ledger.alloc(&request, *handle),
        )
    }

    fn mem_free(&self, handle: MemHandle) -> Result<()> {
        self.gives_back(
            Operation::MemFree,
            |ledger| ledger.check_free(handle),
            |ledger| ledger.free(handle),
            |io| io.mem_free(handle),
            Ledger::unfree,
        )
    }

    fn mem_map_device(&self, request: MapDevice) -> Result<DeviceVa> {
        self.judged(
            Operation::MemMapDevice,
            |ledger| ledger.check_map_device(request.handle),
            |io| io.mem_map_device(request),
            |ledger, address| ledger.map_device(request.handle, *address),
        )
    }

    #[expect(unsafe_code, reason = "the caller's promise is handed on")]
    unsafe fn mem_map_host(&self, request: MapHost) -> Result<DeviceVa> {
        self.judged(
            Operation::MemMapHost,
            |ledger| ledger.check_map_host(&request),
            // SAFETY: the promise is the same, and it was made by the caller.
            |io| unsafe { io.mem_map_host(request) },
            |ledger, address| ledger.map_host(&request, *address),
        )
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        self.gives_back(
            Operation::MemUnmap,
            |ledger| ledger.check_unmap(address),
            |ledger| ledger.unmap(address),
            |io| io.mem_unmap(address),
            Ledger::ununmap,
        )
    }

    fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        self.judged(
            Operation::TsAlloc,
            |_| Ledger::check_ts_alloc(elements),
            |io| io.ts_alloc(elements),
            |ledger, handle| ledger.ts_alloc(elements, *handle),
        )
    }

    fn map_block(&self, address: u64) -> Result<BlockMapping> {
        self.inner.0.map_block(address)
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.judged(
            Operation::ExportDmabuf,
            |ledger| ledger.check_export(&request),
            |io| io.export_dmabuf(request),
            |ledger, _| ledger.export(request.address),
        )
    }

    fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        self.judged(
            Operation::RegisterDmabuf,
            |_| None,
            |io| io.register_dmabuf(request),
            |ledger, address| ledger.import(request.len, *address),
        )
    }

    fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        self.inner.0.debug(request)
    }

    fn nic(&self, request: NicRequest<'_>) -> Result<()> {
        self.inner.0.nic(request)
    }

    fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        self.judged(
            Operation::Mmap,
            |ledger| ledger.check_mmap(&request),
            |io| io.mmap(request),
            nothing,
        )
    }

    fn register_events(&self, eventfd: BorrowedFd<'_>) -> Result<()> {
        self.inner.0.register_events(eventfd)
    }

    fn unregister_events(&self) -> Result<()> {
        self.inner.0.unregister_events()
    }
}
