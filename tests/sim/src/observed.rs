//! The part of an answer that the watchers compare.

use gaudi_seam::{
    Answer, AnyAnswer, CsAnswer, CsSeq, Errno, ErrorKind, Request, Result, WaitAnswer, WaitStatus,
};

/// The compared part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observed {
    /// Success, with a value that is not compared.
    Success,
    /// A handle, an address or a sequence number.
    Number(u64),
    /// The end of a wait.
    Wait(WaitStatus),
    /// An error.
    Refused(ErrorKind, Option<Errno>),
}

impl Observed {
    pub(crate) fn of<T: Answer>(answer: &Result<T>) -> Self {
        match answer.as_ref().map(Answer::view) {
            Ok(AnyAnswer::CbHandle(handle)) => Self::Number(handle.0),
            Ok(AnyAnswer::MemHandle(handle)) => Self::Number(handle.0),
            Ok(AnyAnswer::DeviceVa(address)) => Self::Number(address.0),
            Ok(AnyAnswer::Cs(cs)) => Self::Number(cs.seq.0),
            Ok(AnyAnswer::Wait(wait)) => Self::Wait(wait.status),
            Ok(_) => Self::Success,
            Err(error) => Self::Refused(error.kind(), error.errno()),
        }
    }

    /// An answer to `R` that the driver did not give. `None` if `R` has answers of another type.
    pub(crate) fn forge<R: Request>(self) -> Option<R::Answer> {
        match self {
            Self::Success => R::Answer::of(()),
            Self::Number(seq) => R::Answer::of(CsAnswer {
                seq: CsSeq(seq),
                status: gaudi_uapi::cs::CsStatus::SUCCESS,
                sob_base_addr_offset: 0,
                sob_count_before_submission: 0,
            }),
            Self::Wait(status) => R::Answer::of(WaitAnswer {
                status,
                gone: false,
                timestamp_ns: None,
            }),
            Self::Refused(..) => None,
        }
    }
}
