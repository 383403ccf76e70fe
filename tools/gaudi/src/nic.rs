//! The NIC of a command: one of libibverbs, or the software NIC over a socket.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Result;
use gaudi::verbs::softnic::{SoftNic, SoftNicConfig};
use gaudi::verbs::{Context, WorkCompletion, ibverbs};
use gaudi::{Error, ErrorKind};

use crate::exit::Usage;

/// The name of the software NIC.
pub(crate) const SOFTNIC: &str = "softnic";
/// The operation of an error that a completion reports.
pub(crate) const RDMA: &str = "RDMA";

/// Returns the NIC's status as an error if the completion is not a success.
#[inline]
pub(crate) fn checked(completion: &WorkCompletion) -> Result<(), Error> {
    if completion.is_success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, RDMA).because(format!("a work request ended with {}", completion.status)))
}

/// Checks that two NICs can be joined.
pub(crate) fn of_one_kind(nic: &str, peer_nic: &str) -> Result<(), Usage> {
    if (nic == SOFTNIC) == (peer_nic == SOFTNIC) {
        return Ok(());
    }
    Err(Usage(format!(
        "both ends need a NIC of one kind, {SOFTNIC} or one of libibverbs: not {nic} and {peer_nic}"
    )))
}

/// An open NIC.
pub(crate) struct Nic {
    pub(crate) context: Context,
    /// Of a NIC in software: the network interface or socket that it uses.
    pub(crate) software_over: Option<String>,
    /// The software NIC, which counts its bytes.
    pub(crate) softnic: Option<Arc<SoftNic>>,
}

impl Nic {
    /// Opens the software NIC at the end of a cable. Tables print `name`.
    pub(crate) fn soft(name: &str, cable: OwnedFd, config: SoftNicConfig) -> Result<Self> {
        let nic = SoftNic::open(name, cable, config)?;
        Ok(Self {
            context: Context::open(Arc::clone(&nic) as Arc<_>)?,
            software_over: Some("a socket".to_owned()),
            softnic: Some(nic),
        })
    }

    /// Opens a NIC of libibverbs by the name that `gaudi nics` prints.
    pub(crate) fn open(name: &str, gid_index: Option<u32>) -> Result<Self> {
        let port = None;
        let device = ibverbs::OpenOptions { port, gid_index }.open(name)?;
        let software_over = device.info().netdev.clone();
        Ok(Self {
            context: Context::open(device)?,
            software_over,
            softnic: None,
        })
    }

    /// Returns the provider, which names software as such.
    pub(crate) fn provider(&self) -> String {
        let provider = &self.context.attr().provider;
        match &self.software_over {
            Some(interface) if self.softnic.is_none() => format!("{provider}, software on {interface}"),
            _ => provider.clone(),
        }
    }
}

/// Returns a NIC's name with its provider, which names the software NIC too: `mlx5_0 (mlx5)`,
/// `softnic (software)`.
pub(crate) fn with_provider(name: &str, provider: &str) -> String {
    match provider.starts_with(&format!("{name} (")) {
        true => provider.to_owned(),
        false => format!("{name} ({provider})"),
    }
}

#[cfg(test)]
mod tests {
    use super::with_provider;

    #[test]
    fn software_nic_is_named_once() {
        assert_eq!(with_provider("mlx5_0", "mlx5"), "mlx5_0 (mlx5)");
        assert_eq!(
            with_provider("softnic", "softnic (software)"),
            "softnic (software)"
        );
    }
}
