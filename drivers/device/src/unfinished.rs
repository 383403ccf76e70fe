//! Submissions that outlive their queue. The memory that they use is not reused before they end.

use std::sync::Mutex;
use std::time::Duration;

use gaudi_seam::{CsSeq, DeviceId, Errno, Error, ErrorKind, KernelIo, Result, WaitAnswer, WaitStatus};

use crate::shared::{exclusive, lock};

/// The most repeats of a query that signals interrupt.
const MOST_SIGNALS: u32 = 64;

/// Queries a submission without waiting. Repeats a query that a signal interrupts: it proves no
/// end, and the submission's memory would stay mapped.
pub(crate) fn query(io: &dyn KernelIo, seq: u64) -> Result<WaitAnswer> {
    let mut signals = 0;
    loop {
        let answer = io.wait_cs(CsSeq(seq), Duration::ZERO);
        let is_signal = matches!(&answer, Err(error) if error.errno() == Some(Errno::EINTR));
        if !is_signal || signals == MOST_SIGNALS {
            return answer;
        }
        signals += 1;
    }
}

/// Whether no engine works on a submission any more, however the submission ended.
pub(crate) fn has_ended(io: &dyn KernelIo, seq: u64) -> bool {
    match query(io, seq) {
        Ok(answer) => answer.status == WaitStatus::Completed,
        Err(error) => is_end(&error),
    }
}

/// Whether an error of a wait proves that no engine works on the submission any more.
///
/// `ETIMEDOUT` is the result of a submission that ended late, or was aborted after the engines were
/// halted (`command_submission.c:cs_do_release`). `ENODEV` means that the device is removed. `EIO`
/// proves nothing: with device events registered, the driver aborts all waits with it, and refuses
/// later ones with `EBUSY`, while the engines run (`device.c:hl_device_cond_reset`).
pub(crate) fn is_end(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::ETIMEDOUT | Errno::ENODEV))
}

/// Submissions of dropped queues, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Submissions(Vec<u64>);

impl Submissions {
    pub(crate) fn append(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all have ended. Asks the driver about those that had not ended before.
    pub(crate) fn have_ended(&mut self, io: &dyn KernelIo) -> bool {
        self.reap(io);
        self.0.is_empty()
    }

    /// Removes those that have ended. Returns the error of a driver that refuses to answer for
    /// another one because the device was reset: most often until the node closes.
    fn reap(&mut self, io: &dyn KernelIo) -> Option<Error> {
        let mut reset = None;
        self.0.retain(|&seq| match query(io, seq) {
            Ok(answer) => answer.status != WaitStatus::Completed,
            Err(error) if is_end(&error) => false,
            Err(error) => {
                if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
                    reset = Some(error);
                }
                true
            }
        });
        reset
    }

    /// Checks that no submission may still write to memory which `operation` releases.
    ///
    /// # Errors
    /// - `InUse`: one has not ended.
    /// - `DeviceLost`, `InReset`: the device was reset before one was known to have ended.
    pub(crate) fn check(
        &mut self,
        io: &dyn KernelIo,
        device: DeviceId,
        operation: &'static str,
    ) -> Result<()> {
        let reset = self.reap(io);
        if self.0.is_empty() {
            return Ok(());
        }
        let seqs: Vec<String> = self.0.iter().map(u64::to_string).collect();
        let cause = format!(
            "a queue was dropped before its submissions ended, and submission {} may still write to the memory",
            seqs.join(", ")
        );
        if let Some(error) = reset {
            return Err(error
                .because(format!("{cause}: the device was reset"))
                .helped_by("drop the memory and close the device: the driver frees the memory then"));
        }
        Err(Error::new(ErrorKind::InUse, operation)
            .on(device)
            .because(cause)
            .helped_by(
                "close it again once the submission has ended: the driver aborts it after 30 s at the latest",
            ))
    }
}

/// The submissions of dropped queues that use one object. Shared by the object's handles.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(Mutex<Submissions>);

impl Unfinished {
    /// Adds a submission whose queue is dropped before the submission has ended.
    pub(crate) fn add(&self, seq: u64) {
        lock(&self.0).0.push(seq);
    }

    /// As [`Submissions::check`], for the owner of the last handle.
    pub(crate) fn check(
        &mut self,
        io: &dyn KernelIo,
        device: DeviceId,
        operation: &'static str,
    ) -> Result<()> {
        exclusive(&mut self.0).check(io, device, operation)
    }

    /// Removes and returns all, for the owner of the last handle.
    pub(crate) fn take(&mut self) -> Submissions {
        std::mem::take(exclusive(&mut self.0))
    }
}
