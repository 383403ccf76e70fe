//! The NIC that a command works with: one of libibverbs, or the software one over a socket.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Result;
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

/// The name of the NIC in software.
pub(crate) const SOFTNIC: &str = "softnic";

/// An open NIC.
pub(crate) struct Nic {
    pub(crate) context: Context,
    /// What it is software over, where it is: a network interface, or a socket.
    pub(crate) software_over: Option<String>,
    /// The software one, which counts what it moves.
    pub(crate) softnic: Option<Arc<SoftNic>>,
}

impl Nic {
    /// The software NIC at the end of a cable; in tables it is called `name`.
    pub(crate) fn soft(name: &str, cable: OwnedFd, config: SoftNicConfig) -> Result<Self> {
        let nic = SoftNic::open(name, cable, config)?;
        Ok(Self {
            context: Context::open(Arc::clone(&nic) as Arc<_>)?,
            software_over: Some("a socket".to_owned()),
            softnic: Some(nic),
        })
    }

    /// A NIC of libibverbs, by the name that `gaudi nics` shows.
    pub(crate) fn open(name: &str, gid_index: Option<u32>) -> Result<Self> {
        let port = None;
        let device = gaudi_ibverbs::OpenOptions { port, gid_index }.open(name)?;
        let software_over = device.info().netdev.clone();
        Ok(Self {
            context: Context::open(device)?,
            software_over,
            softnic: None,
        })
    }

    /// Who implements it; software says so.
    pub(crate) fn provider(&self) -> String {
        let provider = &self.context.attr().provider;
        match &self.software_over {
            Some(interface) if self.softnic.is_none() => format!("{provider}, software on {interface}"),
            _ => provider.clone(),
        }
    }
}

/// A NIC's name with its provider, which names the software NIC too: `mlx5_0 (mlx5)`, `softnic
/// (software)`.
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
