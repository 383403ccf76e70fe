//! The watchers: a layer over the driver, and one between the faults and the code under test.

use gaudi_hal::layers::fault::{FaultHandle, FaultLayer};
use gaudi_seam::{
    Answer as _, AnyAnswer, AnyRequest, Errno, Error, ErrorKind, KernelIo, Layer, Operation, Request, Result,
    SharedIo, WaitStatus,
};

use crate::invariant::Invariant;
use crate::record::{Mapping, Refusal, SharedRecord};

/// The most calls of one operation of the code; more are a livelock.
const MOST_CALLS: u64 = 20_000;

/// The layer over the driver: records allocations and submissions, and reports invalid requests.
pub(crate) struct DriverWatch {
    pub(crate) inner: SharedIo,
    pub(crate) record: SharedRecord,
}

impl Layer for DriverWatch {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let answer = next(request);
        self.record.drive();
        let view = request.view();
        let lock = || self.record.lock();
        match &answer {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                lock().violated(
                    Invariant::Misuse,
                    format!("the driver rejected {view:?}: {error}"),
                );
            }
            Err(_) => {}
            Ok(answer) => match (view, answer.view()) {
                (AnyRequest::MemAlloc(_), AnyAnswer::MemHandle(handle)) => {
                    lock().allocations.push(handle.0);
                }
                (AnyRequest::MemFree(free), _) => {
                    lock().allocations.retain(|&handle| handle != free.0.0);
                }
                (AnyRequest::MemMapDevice(map), AnyAnswer::DeviceVa(va)) => {
                    lock().mappings.push(Mapping {
                        va: va.0,
                        allocation: Some(map.handle.0),
                    });
                }
                (AnyRequest::MemMapHost(_), AnyAnswer::DeviceVa(va)) => {
                    lock().mappings.push(Mapping {
                        va: va.0,
                        allocation: None,
                    });
                }
                (AnyRequest::MemUnmap(unmap), _) => {
                    lock().mappings.retain(|mapping| mapping.va != unmap.0.0);
                }
                (AnyRequest::CbCreate(_), AnyAnswer::CbHandle(handle)) => {
                    lock().buffers.push(handle.0);
                }
                (AnyRequest::CbDestroy(destroy), _) => {
                    lock().buffers.retain(|&handle| handle != destroy.0.0);
                }
                (AnyRequest::Submit(submit), AnyAnswer::Cs(taken)) if submit.is_numbered() => {
                    let queue = submit.execute.first().map_or(0, |chunk| chunk.queue_index);
                    lock().submitted(taken.seq.0, queue);
                }
                (AnyRequest::WaitCs(wait), AnyAnswer::Wait(waited)) => {
                    lock().waited(wait.seq.0, waited.status == WaitStatus::Completed);
                }
                _ => {}
            },
        }
        answer
    }
}

impl Drop for DriverWatch {
    fn drop(&mut self) {
        self.record.lock().close();
    }
}

/// The layer below the code: records the answers that the code receives.
///
/// The types of the layers below are known, so that a call passes them without a table.
pub(crate) struct CodeWatch {
    pub(crate) inner: FaultLayer<DriverWatch>,
    pub(crate) record: SharedRecord,
    pub(crate) faults: FaultHandle,
}

impl Layer for CodeWatch {
    type Below = FaultLayer<DriverWatch>;

    fn below(&self) -> &FaultLayer<DriverWatch> {
        &self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let operation = R::OPERATION;
        let number = self.record.call();
        if number > MOST_CALLS {
            if number == MOST_CALLS + 1 {
                let what = format!(
                    "one operation made {MOST_CALLS} calls, the last {:?}",
                    request.view()
                );
                self.record.lock().violated(Invariant::TimeBudget, what);
            }
            return Err(Error::new(ErrorKind::DeviceLost, operation.kernel_name())
                .because("the run stopped a livelock"));
        }
        let (state, driven) = (self.record.state(), self.record.driven());
        let happened = self.faults.happened();
        let answer = next(request);
        let faults = self.faults.happened() - happened;
        if faults > 0 {
            let met = (0..faults).map(|_| (operation, state));
            self.record.lock().met.extend(met);
        }
        let view = request.view();
        match &answer {
            Ok(answer) => match (view, answer.view()) {
                (AnyRequest::Submit(submit), AnyAnswer::Cs(taken)) if submit.is_numbered() => {
                    let queue = submit.execute.first().map_or(0, |chunk| chunk.queue_index);
                    let mut record = self.record.lock();
                    record.unproven.push((taken.seq.0, queue));
                    record.accepted += 1;
                }
                (AnyRequest::WaitCs(wait), AnyAnswer::Wait(waited)) => {
                    let mut record = self.record.lock();
                    if waited.status == WaitStatus::Completed {
                        record.ended(wait.seq.0);
                    } else {
                        record.end_uncertain |= record.work_failed;
                    }
                }
                _ => {}
            },
            Err(error) => {
                let by_driver = self.record.driven() > driven && faults == 0;
                let mut record = self.record.lock();
                record.refused(view, error, faults > 0, by_driver);
            }
        }
        answer
    }
}

impl crate::record::Record {
    /// Records that a wait proves the end of a submission and of the earlier ones of its queue.
    fn ended(&mut self, seq: u64) {
        let known = self.unproven.iter().find(|&&(other, _)| other == seq);
        if let Some(&(_, queue)) = known {
            self.unproven.retain(|&(other, of)| other > seq || of != queue);
        }
    }

    fn refused(&mut self, request: AnyRequest<'_>, error: &Error, injected: bool, by_driver: bool) {
        let operation = request.operation();
        let refusal = Refusal {
            operation,
            kind: error.kind(),
            errno: error.errno(),
        };
        self.refusals.push(refusal);
        match request {
            AnyRequest::MemUnmap(unmap) => {
                self.refused.push((operation, unmap.0.0));
            }
            AnyRequest::MemFree(free) => {
                self.refused.push((operation, free.0.0));
            }
            AnyRequest::CbDestroy(destroy) => {
                self.refused.push((operation, destroy.0.0));
            }
            AnyRequest::WaitCs(wait) if !refusal.is_retried() => {
                match refusal.errno {
                    Some(Errno::ETIMEDOUT | Errno::ENODEV) => self.ended(wait.seq.0),
                    _ => self.end_uncertain = true,
                }
                // An injected error reports the end of work that may still run.
                self.false_end |= !by_driver
                    && matches!(
                        refusal.kind,
                        ErrorKind::Hung | ErrorKind::DeviceLost | ErrorKind::Io
                    );
            }
            _ => {}
        }
        let of_work = matches!(operation, Operation::WaitCs | Operation::Submit);
        if of_work && !refusal.is_retried() {
            self.work_failed = true;
            self.ended.push(refusal);
        }
        // In reset every operation fails with one of these kinds.
        let is_reset = matches!(
            refusal.kind,
            ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Hung
        );
        self.was_reset |= is_reset && !injected;
    }
}
