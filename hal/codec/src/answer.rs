//! [`Reply`]: conversion between answers and the words of an ioctl argument.

#![expect(
    unsafe_code,
    reason = "a file descriptor number from an answer becomes an `OwnedFd`"
)]

use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};

use gaudi_seam::{
    AnyRequest, BlockMapping, CbHandle, CbInfo, CsAnswer, CsSeq, DeviceVa, Errno, MemHandle, MultiWaitAnswer,
    TsHandle, WaitAnswer, WaitStatus,
};
use gaudi_uapi::cs::HlCsOut;
use gaudi_uapi::memory::{HlMemOut, HlMemOutBlock};
use gaudi_uapi::wait::{HlWaitCsOut, WaitCsStatus, WaitCsStatusFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The answer of an ioctl whose argument is `union { in; out; }` in C.
pub(crate) trait Reply: Sized {
    /// Reads the answer from the words of an argument.
    ///
    /// # Safety
    /// - As [`Wire::answer`](crate::Wire::answer).
    unsafe fn read(words: &[u64], request: AnyRequest<'_>) -> Result<Self, Errno>;

    /// Writes the answer as the driver does. Whether the remaining words are cleared or keep the
    /// request depends on the answer.
    fn write(self, words: &mut [u64], request: AnyRequest<'_>);
}

/// Reads a struct from the start of `words`. Missing bytes are zero.
pub(crate) fn front<T: FromBytes + IntoBytes>(words: &[u64]) -> T {
    let mut view = T::new_zeroed();
    let bytes = view.as_mut_bytes().iter_mut();
    bytes.zip(words.as_bytes()).for_each(|(to, from)| *to = *from);
    view
}

/// Writes `answer` to the start of `words`. The other words keep their values.
fn put(words: &mut [u64], answer: &(impl IntoBytes + Immutable)) {
    let bytes = words.as_mut_bytes().iter_mut();
    bytes.zip(answer.as_bytes()).for_each(|(to, from)| *to = *from);
}

/// Clears `words`, then writes `answer` to their start.
fn replace(words: &mut [u64], answer: &(impl IntoBytes + Immutable)) {
    words.fill(0);
    put(words, answer);
}

impl Reply for () {
    unsafe fn read(_: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        Ok(())
    }

    fn write(self, words: &mut [u64], request: AnyRequest<'_>) {
        // common/command_submission.c:hl_interrupt_wait_ioctl: the driver answers a registration as
        // a completed wait.
        if matches!(request, AnyRequest::RegisterTimestamp(_)) {
            words.fill(0);
        }
    }
}

macro_rules! numbers {
    ($($type:ident by $write:ident;)*) => {$(
        impl Reply for $type {
            unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
                Ok(Self(front(words)))
            }

            fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
                $write(words, &self.0);
            }
        }
    )*};
}

numbers! {
    // common/command_buffer.c:hl_cb_ioctl, common/memory.c:hl_mem_ioctl
    CbHandle by replace;
    MemHandle by replace;
    DeviceVa by replace;
    TsHandle by put;
}

impl Reply for CbInfo {
    unsafe fn read(words: &[u64], request: AnyRequest<'_>) -> Result<Self, Errno> {
        let asks_va = matches!(request, AnyRequest::CbInfo(query) if query.device_va);
        Ok(match asks_va {
            true => Self {
                usage_count: 0,
                device_va: Some(DeviceVa(front(words))),
            },
            false => Self {
                usage_count: front(words),
                device_va: None,
            },
        })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        put(
            words,
            &self.device_va.map_or(u64::from(self.usage_count), DeviceVa::get),
        );
    }
}

impl Reply for BlockMapping {
    unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        let block: HlMemOutBlock = front(words);
        Ok(Self {
            handle: block.block_handle,
            size: block.block_size,
        })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        let kept: HlMemOut = front(words);
        let block = HlMemOutBlock {
            block_handle: self.handle,
            block_size: self.size,
            ..kept.block()
        };
        put(words, &block);
    }
}

impl Reply for OwnedFd {
    unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        let number: i32 = front(words);
        if number < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: by contract the descriptor is new and belongs to the caller.
        Ok(unsafe { Self::from_raw_fd(number) })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        replace(words, &self.into_raw_fd());
    }
}

impl Reply for CsAnswer {
    unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        let answer: HlCsOut = front(words);
        Ok(Self {
            seq: CsSeq(answer.seq()),
            status: answer.status,
            sob_base_addr_offset: answer.sob_base_addr_offset,
            sob_count_before_submission: answer.sob_count_before_submission,
        })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        let answer = HlCsOut {
            arg: [self.seq.0],
            status: self.status,
            sob_base_addr_offset: self.sob_base_addr_offset,
            sob_count_before_submission: self.sob_count_before_submission,
            pad: [0; 3],
        };
        replace(words, &answer);
    }
}

/// Returns the status of a wait, and the time of the completion if the driver knows it.
fn waited(answer: &HlWaitCsOut) -> Result<(WaitStatus, Option<i64>), Errno> {
    let status = match answer.status {
        WaitCsStatus::COMPLETED => WaitStatus::Completed,
        WaitCsStatus::BUSY => WaitStatus::Busy,
        WaitCsStatus::TIMEDOUT => return Err(Errno::ETIMEDOUT),
        _ => return Err(Errno::EIO),
    };
    let valid = answer.flags.contains(WaitCsStatusFlags::TIMESTAMP_VLD);
    Ok((status, valid.then_some(answer.timestamp_nsec)))
}

fn wait_out(status: WaitStatus, gone: bool, timestamp_ns: Option<i64>) -> HlWaitCsOut {
    let flag = |is_set, flag| if is_set { flag } else { WaitCsStatusFlags::NONE };
    HlWaitCsOut {
        status: match status {
            WaitStatus::Completed => WaitCsStatus::COMPLETED,
            WaitStatus::Busy => WaitCsStatus::BUSY,
        },
        flags: flag(gone, WaitCsStatusFlags::GONE)
            | flag(timestamp_ns.is_some(), WaitCsStatusFlags::TIMESTAMP_VLD),
        timestamp_nsec: timestamp_ns.unwrap_or(0),
        ..HlWaitCsOut::default()
    }
}

impl Reply for WaitAnswer {
    unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        let answer: HlWaitCsOut = front(words);
        let (status, timestamp_ns) = waited(&answer)?;
        Ok(Self {
            status,
            gone: answer.flags.contains(WaitCsStatusFlags::GONE),
            timestamp_ns,
        })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        replace(words, &wait_out(self.status, self.gone, self.timestamp_ns));
    }
}

impl Reply for MultiWaitAnswer {
    unsafe fn read(words: &[u64], _: AnyRequest<'_>) -> Result<Self, Errno> {
        let answer: HlWaitCsOut = front(words);
        let (status, timestamp_ns) = waited(&answer)?;
        Ok(Self {
            status,
            completion_map: answer.cs_completion_map,
            timestamp_ns,
        })
    }

    fn write(self, words: &mut [u64], _: AnyRequest<'_>) {
        // common/command_submission.c:hl_multi_cs_wait_ioctl: a completion without a time has
        // HL_WAIT_CS_STATUS_FLAG_GONE.
        let gone = self.status == WaitStatus::Completed && self.timestamp_ns.is_none();
        let mut answer = wait_out(self.status, gone, self.timestamp_ns);
        answer.cs_completion_map = self.completion_map;
        replace(words, &answer);
    }
}
