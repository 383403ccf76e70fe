//! The messages of a staged transfer, which the queue pairs send in the order of the data: 64 bytes
//! each.
//!
//! ```text
//! offset bytes field   little-endian
//!  0     1     what    1 store: slot → memory; 2 fetch: memory → slot; 3 done
//!  1     1     slot
//!  2     2     0
//!  4     4     offer   which memory
//!  8     8     offset  in it
//! 16     8     length
//! 24     4     errno   of an answer that failed, else 0
//! 28     4     0
//! 32    32     kind    of an answer that failed: the error's name, else zeros
//! ```

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs::{WcStatus, WorkCompletion};

use crate::stream::{Body, protocol};

/// Bytes of a message.
pub(crate) const BYTES: usize = 64;
/// The most chunks in flight, and so slots of a stage.
pub(crate) const SLOTS: usize = 16;

/// The requested copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Store,
    Fetch,
}

/// A request: the slot, and the memory to copy between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) what: RequestKind,
    pub(crate) slot: u8,
    pub(crate) offer: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The serving end's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) slot: u8,
    pub(crate) failed: Option<(ErrorKind, Option<Errno>)>,
}

fn place(bytes: &mut [u8; BYTES], at: usize, value: &[u8]) {
    // The offsets are constants of the layout above.
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = match self.what {
            RequestKind::Store => 1,
            RequestKind::Fetch => 2,
        };
        bytes[1] = self.slot;
        place(&mut bytes, 4, &self.offer.to_le_bytes());
        place(&mut bytes, 8, &self.offset.to_le_bytes());
        place(&mut bytes, 16, &self.len.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Result<Self> {
        let mut body = Body::new(bytes);
        let what = match body.u8()? {
            1 => RequestKind::Store,
            2 => RequestKind::Fetch,
            other => return Err(protocol("the peer asks for something unknown").saw(other, "1 or 2")),
        };
        let slot = body.u8()?;
        if body.u16()? != 0 || bytes[24..] != [0; 40] {
            return Err(protocol("reserved bytes of a request are set"));
        }
        Ok(Self {
            what,
            slot,
            offer: body.u32()?,
            offset: body.u64()?,
            len: body.u64()?,
        })
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = 3;
        bytes[1] = self.slot;
        if let Some((kind, errno)) = self.failed {
            let errno = errno.map_or(0, |errno| errno as i32);
            place(&mut bytes, 24, &errno.to_le_bytes());
            place(&mut bytes, 32, kind.name().as_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Result<Self> {
        let mut body = Body::new(bytes);
        let what = body.u8()?;
        if what != 3 {
            return Err(protocol("the peer answers something unknown").saw(what, 3));
        }
        let slot = body.u8()?;
        let _reserved: [u8; 22] = body.take()?;
        let errno = i32::from_le_bytes(body.take()?);
        let name = bytes[32..].split(|byte| *byte == 0).next();
        let failed = name.filter(|name| !name.is_empty()).map(|name| {
            let kind = std::str::from_utf8(name).ok().and_then(ErrorKind::of_name);
            let errno = (errno != 0).then(|| Errno::from_raw(errno));
            // A kind of a later version is an error all the same.
            (kind.unwrap_or(ErrorKind::Io), errno)
        });
        Ok(Self { slot, failed })
    }

    /// Returns the peer's failure as the error of a transfer of this node. A kind that concerns the
    /// peer's device, deadline or process is replaced: this node's card needs no reset for it.
    pub(crate) fn error(&self) -> Option<Error> {
        let (theirs, errno) = self.failed?;
        let kind = match theirs {
            ErrorKind::DeviceLost | ErrorKind::InReset => ErrorKind::Disconnected,
            ErrorKind::Hung | ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Forked => {
                ErrorKind::Io
            }
            other => other,
        };
        let error = Error::new(kind, "staged copy at the peer").because(format!(
            "the peer could not copy between its stage and its memory: {theirs} there"
        ));
        Some(match errno {
            Some(errno) => error.with_errno(errno),
            None => error,
        })
    }

    /// Whether the failure ends the peer's service.
    pub(crate) fn is_the_end(&self) -> bool {
        matches!(
            self.failed,
            Some((
                ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::TimedOut,
                _
            ))
        )
    }
}

/// Returns the error of a completion that is not a success.
pub(crate) fn failed(completion: &WorkCompletion) -> Error {
    let (kind, cause) = match completion.status {
        WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR => (
            ErrorKind::AccessDenied,
            "the peer's NIC refused the access: the memory was withdrawn, or its region does not allow it",
        ),
        WcStatus::LOC_PROT_ERR | WcStatus::LOC_ACCESS_ERR => (
            ErrorKind::AccessDenied,
            "our NIC refused the access: the region of our memory was deregistered, or does not allow it",
        ),
        WcStatus::RETRY_EXC_ERR | WcStatus::RNR_RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR => (
            ErrorKind::Disconnected,
            "the peer's NIC does not answer: its process ended, or the path to it is down",
        ),
        WcStatus::WR_FLUSH_ERR => (
            ErrorKind::Disconnected,
            "the queue pair is in error; the first failure has the cause",
        ),
        _ => (ErrorKind::Io, "the work request failed"),
    };
    Error::new(kind, "RDMA").because(format!("{cause} ({})", completion.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        #[test]
        fn requests_come_back_as_they_were(store: bool, slot: u8, offer: u32, offset: u64, len: u64) {
            let what = if store { RequestKind::Store } else { RequestKind::Fetch };
            let request = Request { what, slot, offer, offset, len };
            prop_assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(mut bytes: [u8; 32], what in 0_u8..5) {
            bytes[0] = what;
            let mut message = [0; BYTES];
            message[..32].copy_from_slice(&bytes);
            if let Ok(request) = Request::decode(&message) {
                prop_assert_eq!(request.encode(), message);
            }
            let _ = Answer::decode(&message);
        }
    }

    #[test]
    fn every_kind_of_failure_fits_an_answer() {
        for kind in [
            ErrorKind::OutOfDeviceMemory,
            ErrorKind::DeviceLost,
            ErrorKind::InReset,
            ErrorKind::Hung,
            ErrorKind::TimedOut,
        ] {
            let answer = Answer {
                slot: 3,
                failed: Some((kind, Some(Errno::ENODEV))),
            };
            let decoded = Answer::decode(&answer.encode()).unwrap();
            assert_eq!(decoded, answer);
            let error = decoded.error().unwrap();
            assert!(error.to_string().contains("peer"), "{error}");
            assert!(
                !matches!(
                    error.kind(),
                    ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Hung | ErrorKind::TimedOut
                ),
                "the peer's failure is not this node's: {error:?}"
            );
        }
    }
}
