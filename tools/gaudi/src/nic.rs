//! The NIC of a command: one of libibverbs, or the software NIC over a socket.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use gaudi::layers::fault::{Plan, Rule, RuleCount};
use gaudi::verbs::softnic::{NicFaults, SoftNic, SoftNicConfig};
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

/// The argument of `--nic`: a name, and for the software NIC a fault plan, `softnic+fault=PLAN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NicSpec {
    pub(crate) name: String,
    /// Rules for events of a NIC.
    pub(crate) faults: Plan,
}

impl NicSpec {
    pub(crate) fn is_soft(&self) -> bool {
        self.name == SOFTNIC
    }

    /// Adds the rules of `--fault` for events of a NIC.
    ///
    /// # Errors
    /// [`Usage`]: the NIC is not software.
    pub(crate) fn with_faults(mut self, rules: &[Rule]) -> Result<Self, Usage> {
        if let (Some(rule), false) = (rules.first(), self.is_soft()) {
            return Err(Usage(format!(
                "--fault: {rule} needs the software NIC: {} injects no faults; write --nic {SOFTNIC}",
                self.name
            )));
        }
        self.faults.rules.extend(rules);
        Ok(self)
    }
}

impl FromStr for NicSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, plan)) = text.split_once("+fault=") else {
            return Ok(Self {
                name: text.to_owned(),
                faults: Plan::default(),
            });
        };
        if name != SOFTNIC {
            return Err(format!("only {SOFTNIC} injects faults: {SOFTNIC}+fault=PLAN"));
        }
        let faults: Plan = plan.parse().map_err(|error| format!("{error}"))?;
        match faults.rules.iter().find(|rule| !rule.target.is_nic()) {
            Some(rule) => Err(format!(
                "{rule} is not for an event of a NIC: write it in the device's spec, or to --fault"
            )),
            None => Ok(Self {
                name: name.to_owned(),
                faults,
            }),
        }
    }
}

impl fmt::Display for NicSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.faults.rules.is_empty() {
            true => Ok(()),
            false => write!(f, "+fault={}", self.faults),
        }
    }
}

/// The rules of every software NIC that this process opened.
static FAULTS: Mutex<Vec<NicFaults>> = Mutex::new(Vec::new());

/// Returns the counts of the rules of every software NIC that this process opened.
pub(crate) fn fault_counts() -> Vec<RuleCount> {
    let opened = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    opened.iter().flat_map(NicFaults::rules).collect()
}

/// Checks that two NICs can be joined.
pub(crate) fn of_one_kind(nic: &NicSpec, peer_nic: &NicSpec) -> Result<(), Usage> {
    if nic.is_soft() == peer_nic.is_soft() {
        return Ok(());
    }
    Err(Usage(format!(
        "both ends need a NIC of one kind, {SOFTNIC} or one of libibverbs: not {} and {}",
        nic.name, peer_nic.name
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
        let mut opened = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        opened.push(nic.faults());
        drop(opened);
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
    use super::{NicSpec, with_provider};

    #[test]
    fn nic_specs_round_trip() {
        for text in [
            "mlx5_0",
            "softnic",
            "softnic+fault=nic.packet:when=3+2:lose;nic.post:status=REM_OP_ERR",
        ] {
            let spec: NicSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
        for (text, cause) in [
            ("mlx5_0+fault=nic.packet:lose", "only softnic injects faults"),
            (
                "softnic+fault=submit:lose",
                "submit:lose is not for an event of a NIC",
            ),
            (
                "softnic+fault=nic.packet:gone",
                "unknown part \"gone\" at column 12",
            ),
        ] {
            let error = text.parse::<NicSpec>().expect_err(text);
            assert!(error.contains(cause), "{text}: {error}");
        }
    }

    #[test]
    fn software_nic_is_named_once() {
        assert_eq!(with_provider("mlx5_0", "mlx5"), "mlx5_0 (mlx5)");
        assert_eq!(
            with_provider("softnic", "softnic (software)"),
            "softnic (software)"
        );
    }
}
