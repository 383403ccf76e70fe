//! The paths by which a NIC reaches memory, best first, and the report of the one that is used.

use std::fmt;

use gaudi_seam::{DeviceId, Error, ErrorKind};
use gaudi_verbs::RegPath;

/// Whether device memory must have a dma-buf region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// A dma-buf region if it can be registered, otherwise staging.
    #[default]
    Try,
    /// A dma-buf region, otherwise an error with the reason.
    Require,
    /// Staging, without trying.
    Never,
}

/// The path that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryPath {
    /// Device memory is registered through its dma-buf: the NIC reaches it, and nothing is copied
    /// on this node.
    DmaBuf(RegPath),
    /// Device memory goes through registered host memory: the DMA engine copies between the two, a
    /// chunk at a time, while the NIC moves other chunks.
    Staged {
        /// Bytes of a chunk.
        chunk_bytes: u32,
        /// Chunks in flight.
        depth: u32,
    },
    /// Host memory, registered as it is.
    Host,
}

impl MemoryPath {
    /// Whether bytes pass through a stage.
    pub fn is_staged(self) -> bool {
        matches!(self, Self::Staged { .. })
    }
}

impl fmt::Display for MemoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DmaBuf(path) => write!(f, "dma-buf region by {}", path.name()),
            Self::Staged { chunk_bytes, depth } => {
                write!(f, "staged in {depth} chunks of {} KiB", chunk_bytes >> 10)
            }
            Self::Host => f.write_str("host memory, registered"),
        }
    }
}

/// A better path that is not used.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The reason, as the failed call returned it.
    pub error: Error,
    /// It was not tried again: it failed before on this NIC with this accelerator
    /// ([`Nic::forget`](crate::Nic::forget)).
    pub remembered: bool,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.remembered { ", remembered" } else { "" };
        write!(f, "no dma-buf region{when}: {}", self.error)
    }
}

/// The path by which a NIC reaches memory, and why no better one.
#[derive(Debug, Clone)]
pub struct PathReport {
    /// The NIC.
    pub nic: String,
    /// The memory: `mock0`, `accel3`, `host`.
    pub memory: String,
    /// The path.
    pub path: MemoryPath,
    /// Better paths that failed; empty if this is the best.
    pub failed: Vec<Attempt>,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}: {}", self.memory, self.nic, self.path)?;
        for attempt in &self.failed {
            write!(f, "; {attempt}")?;
        }
        Ok(())
    }
}

/// Registrations of one NIC that will fail again, by accelerator.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Vec<(DeviceId, Error)>);

impl Outcomes {
    /// Records a failure that every buffer and every retry would have: the NIC cannot or may not
    /// reach this accelerator.
    pub(crate) fn remember(&mut self, device: DeviceId, error: &Error) {
        let lasting = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied);
        if lasting && self.find(device).is_none() {
            self.0.push((device, error.clone()));
        }
    }

    pub(crate) fn find(&self, device: DeviceId) -> Option<&Error> {
        self.0
            .iter()
            .find(|(known, _)| *known == device)
            .map(|(_, error)| error)
    }

    pub(crate) fn forget(&mut self, device: DeviceId) {
        self.0.retain(|(known, _)| *known != device);
    }
}

/// Whether the device's memory and all copies on its engines ended with this error: no path is
/// left.
pub(crate) fn is_device_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset)
}

/// Returns the error of a policy that requires the path that failed.
pub(crate) fn required(error: &Error) -> Error {
    let mut answer = Error::new(error.kind(), "dma-buf region required").because(error.to_string());
    if let Some(errno) = error.errno() {
        answer = answer.with_errno(errno);
    }
    answer.helped_by(error.help().unwrap_or("the policy `try` stages instead"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_seam::{Backend, Errno};

    const CARD: DeviceId = DeviceId::new(Backend::Kernel, 3);

    #[test]
    fn only_permanent_failures_are_cached() {
        let mut outcomes = Outcomes::default();
        for errno in [Errno::ENOMEM, Errno::EINVAL, Errno::EBUSY, Errno::EIO] {
            outcomes.remember(CARD, &Error::from_errno("x", errno));
            assert!(outcomes.find(CARD).is_none(), "{errno} may pass");
        }
        outcomes.remember(CARD, &Error::from_errno("x", Errno::EPERM));
        assert_eq!(outcomes.find(CARD).and_then(Error::errno), Some(Errno::EPERM));
        let other = DeviceId::new(Backend::Kernel, 4);
        assert!(
            outcomes.find(other).is_none(),
            "another accelerator is another pair"
        );
        outcomes.forget(CARD);
        assert!(outcomes.find(CARD).is_none());
    }

    #[test]
    fn a_report_reads_as_a_sentence() {
        let report = PathReport {
            nic: "rxe0".into(),
            memory: "accel3".into(),
            path: MemoryPath::Staged {
                chunk_bytes: 512 << 10,
                depth: 4,
            },
            failed: vec![Attempt {
                error: Error::from_errno("ibv_reg_dmabuf_mr", Errno::EPERM),
                remembered: true,
            }],
        };
        assert_eq!(
            report.to_string(),
            "accel3 by rxe0: staged in 4 chunks of 512 KiB; no dma-buf region, remembered: ibv_reg_dmabuf_mr: permission denied [EPERM]"
        );
    }
}
