//! Memory that one end allows the other to access.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs::{Access, Message as _, RegPath, RemoteRegion};

use crate::message::SLOTS;
use crate::path::{Attempt, MemoryPath, PathReport};
use crate::stream::{Body, protocol, put_text};

/// What the peer may do with memory that is offered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Put into it.
    pub put: bool,
    /// Get from it. Needed to [flush](crate::Endpoint::flush_remote) as well.
    pub get: bool,
}

impl Rights {
    /// Only to put.
    pub const PUT: Self = Self {
        put: true,
        get: false,
    };
    /// Only to get.
    pub const GET: Self = Self {
        put: false,
        get: true,
    };
    /// Both.
    pub const BOTH: Self = Self { put: true, get: true };

    pub(crate) fn access(self) -> Access {
        let mut access = Access::empty();
        if self.put {
            access |= Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        }
        if self.get {
            access |= Access::REMOTE_READ;
        }
        access
    }
}

/// How the peer reaches offered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfferPath {
    /// By the memory's own region.
    Direct(RemoteRegion),
    /// Through the slots of its stage.
    Slots {
        slots: RemoteRegion,
        chunk: u32,
        depth: u32,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) id: u32,
    pub(crate) rights: Rights,
    pub(crate) len: u64,
    pub(crate) path: OfferPath,
    pub(crate) report: PathReport,
}

/// The most reasons that an offer reports, and the bytes of each.
const REASONS: usize = 2;
const TEXT: u16 = 300;

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(512);
        body.extend(self.id.to_le_bytes());
        body.push(u8::from(self.rights.put) | u8::from(self.rights.get) << 1);
        body.extend(self.len.to_le_bytes());
        let (staged, region, chunk, depth) = match self.path {
            OfferPath::Direct(region) => (0, region, 0, 0),
            OfferPath::Slots { slots, chunk, depth } => (1, slots, chunk, depth),
        };
        body.push(staged);
        body.extend(region.encode());
        body.extend(chunk.to_le_bytes());
        body.extend(depth.to_le_bytes());
        body.push(match self.report.path {
            MemoryPath::DmaBuf(path) => {
                let at = RegPath::ALL.iter().position(|known| *known == path);
                1 + u8::try_from(at.unwrap_or(1)).unwrap_or(0) // `ALL` has a few
            }
            MemoryPath::Host | MemoryPath::Staged { .. } => 0,
        });
        put_text(&mut body, &self.report.nic, 64);
        put_text(&mut body, &self.report.memory, 64);
        let failed = self.report.failed.get(..REASONS).unwrap_or(&self.report.failed);
        body.push(u8::try_from(failed.len()).unwrap_or(0));
        for attempt in failed {
            let error = &attempt.error;
            body.push(u8::from(attempt.remembered));
            body.extend(error.errno().map_or(0, |errno| errno as i32).to_le_bytes());
            put_text(&mut body, error.kind().name(), 32);
            // An error may have no cause: the operation alone is sent.
            let cause = error.cause().unwrap_or_default();
            put_text(&mut body, &format!("{}: {cause}", error.operation()), TEXT);
        }
        body
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut body = Body::new(bytes);
        let id = body.u32()?;
        let rights = match body.u8()? {
            bits @ 0..=3 => Rights {
                put: bits & 1 != 0,
                get: bits & 2 != 0,
            },
            other => return Err(protocol("unknown rights").saw(other, "0 to 3")),
        };
        let len = body.u64()?;
        let staged = body.u8()?;
        let region = RemoteRegion::decode(&body.take()?)?;
        let (chunk, depth) = (body.u32()?, body.u32()?);
        let path = match staged {
            0 if chunk == 0 && depth == 0 && region.len >= len => OfferPath::Direct(region),
            1 if (4096..=64 << 20).contains(&chunk)
                && (1..=SLOTS as u32).contains(&depth)
                && u64::from(chunk) * u64::from(depth) <= region.len =>
            {
                OfferPath::Slots {
                    slots: region,
                    chunk,
                    depth,
                }
            }
            _ => return Err(protocol("an offer that cannot be")),
        };
        let code = body.u8()?;
        let known = code.checked_sub(1).map(|at| RegPath::ALL.get(usize::from(at)));
        let memory_path = match (path, known) {
            (OfferPath::Slots { chunk, depth, .. }, _) => MemoryPath::Staged {
                chunk_bytes: chunk,
                depth,
            },
            (OfferPath::Direct(_), None) => MemoryPath::Host,
            (OfferPath::Direct(_), Some(Some(path))) => MemoryPath::DmaBuf(*path),
            (OfferPath::Direct(_), Some(None)) => {
                let wanted = format!("0 to {}", RegPath::ALL.len());
                return Err(protocol("an unknown path of registration").saw(code, wanted));
            }
        };
        let (nic, memory) = (body.text()?, body.text()?);
        let count = body.u8()?;
        if usize::from(count) > REASONS {
            return Err(protocol("too many reasons").saw(count, format!("at most {REASONS}")));
        }
        let failed = (0..count)
            .map(|_| {
                let remembered = body.u8()? != 0;
                let errno = i32::from_le_bytes(body.take()?);
                let kind = ErrorKind::of_name(&body.text()?).unwrap_or(ErrorKind::Io);
                let mut error = Error::new(kind, "at the peer").because(body.text()?);
                if errno != 0 {
                    error = error.with_errno(Errno::from_raw(errno));
                }
                Ok(Attempt { error, remembered })
            })
            .collect::<Result<_>>()?;
        body.end()?;
        Ok(Self {
            id,
            rights,
            len,
            path,
            report: PathReport {
                nic,
                memory,
                path: memory_path,
                failed,
            },
        })
    }
}

/// Memory that the peer offered. A clone is the same.
#[derive(Clone)]
pub struct Remote {
    pub(crate) offer: Arc<Offer>,
    /// The endpoint that it was offered to.
    pub(crate) endpoint: u64,
}

impl Remote {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.offer.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns this node's rights.
    pub fn rights(&self) -> Rights {
        self.offer.rights
    }

    /// Returns the peer's path to the memory, and why no better one.
    pub fn report(&self) -> &PathReport {
        &self.offer.report
    }

    /// Returns a part.
    ///
    /// # Errors
    /// `InvalidInput`: the range exceeds the memory.
    pub fn at(&self, range: Range<u64>) -> Result<RemoteRange> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::new(ErrorKind::InvalidInput, "Remote::at")
                .because("the range leaves the peer's memory")
                .saw(format!("{range:?}"), format!("within 0..{}", self.len())));
        }
        Ok(RemoteRange {
            remote: self.clone(),
            range,
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({} bytes; {})", self.len(), self.report())
    }
}

/// A part of the peer's memory.
#[derive(Debug, Clone)]
pub struct RemoteRange {
    pub(crate) remote: Remote,
    pub(crate) range: Range<u64>,
}

impl RemoteRange {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl From<&Remote> for RemoteRange {
    fn from(remote: &Remote) -> Self {
        Self {
            remote: remote.clone(),
            range: 0..remote.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_verbs::{MrAddr, Rkey};
    use proptest::prelude::*;

    fn offer(staged: bool) -> Offer {
        let region = RemoteRegion {
            addr: MrAddr(0x1001_0000_0000_0000),
            len: 8 << 20,
            rkey: Rkey(7),
        };
        let (path, memory_path) = if staged {
            let (chunk, depth) = (1 << 20, 8);
            let slots = OfferPath::Slots {
                slots: region,
                chunk,
                depth,
            };
            let staged = MemoryPath::Staged {
                chunk_bytes: chunk,
                depth,
            };
            (slots, staged)
        } else {
            (OfferPath::Direct(region), MemoryPath::DmaBuf(RegPath::DataDirect))
        };
        Offer {
            id: 5,
            rights: Rights::GET,
            len: 8 << 20,
            path,
            report: PathReport {
                nic: "mlx5_0".into(),
                memory: "accel3".into(),
                path: memory_path,
                failed: vec![Attempt {
                    error: Error::from_errno("x", Errno::EPERM).because("no path"),
                    remembered: true,
                }],
            },
        }
    }

    #[test]
    fn an_offer_arrives_as_it_was_made() {
        for staged in [false, true] {
            let (sent, got) = (offer(staged), Offer::decode(&offer(staged).encode()).unwrap());
            assert_eq!(
                (sent.id, sent.rights, sent.len, sent.path, sent.report.path),
                (got.id, got.rights, got.len, got.path, got.report.path)
            );
            let attempt = &got.report.failed[0];
            assert!(attempt.remembered);
            assert_eq!(
                (attempt.error.kind(), attempt.error.errno()),
                (ErrorKind::PermissionDenied, Some(Errno::EPERM))
            );
        }
    }

    proptest! {
        #![proptest_config(gaudi_random::config(512))]

        /// An offer of a peer of another version, or of a hostile one: cut or changed anywhere.
        #[test]
        fn any_offer_is_understood_or_refused(staged: bool, at: prop::sample::Index, byte: u8, cut: Option<prop::sample::Index>) {
            let mut bytes = offer(staged).encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            match Offer::decode(&bytes) {
                Ok(got) => {
                    if let OfferPath::Slots { slots, chunk, depth } = got.path {
                        prop_assert!(u64::from(chunk) * u64::from(depth) <= slots.len);
                        prop_assert!((1..=SLOTS as u32).contains(&depth));
                    }
                }
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Protocol),
            }
        }
    }
}
