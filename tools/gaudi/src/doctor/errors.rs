//! The causes of each errno of an export or a registration, and their remedies: the errno alone
//! does not identify the cause.
//!
//! The refusals of the driver are its rules ([`gaudi_seam::rules`]); the other rows are from the
//! sources of the kernel and rdma-core.

use std::collections::BTreeSet;

use gaudi::Errno;
use gaudi_seam::Operation;
use gaudi_seam::rules::{Rule, Subject};
use gaudi_uapi::NodeKind;
use serde::Serialize;

use crate::exit::Usage;

/// The step that failed with an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    /// Opening the accelerator.
    Open,
    /// Exporting its memory as a dma-buf.
    Export,
    /// Opening the NIC.
    Nic,
    /// Registering the dma-buf with the NIC.
    Registration,
    /// Registering host memory with the NIC.
    Host,
}

impl Step {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Open => "open the accelerator",
            Self::Export => "export",
            Self::Nic => "open the NIC",
            Self::Registration => "register the dma-buf",
            Self::Host => "register host memory",
        }
    }
}

/// One cause of an errno at a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Meaning {
    pub(super) step: Step,
    pub(super) errno: String,
    pub(super) number: i32,
    pub(super) cause: &'static str,
    /// `None` if the cause implies it.
    pub(super) remedy: Option<&'static str>,
    /// The function that decides it.
    pub(super) source: &'static str,
}

impl Meaning {
    /// Returns the meaning of a rule of the driver. `None` if it is not of an open or an export.
    fn of_rule(rule: &Rule) -> Option<Self> {
        let step = match rule.subject {
            Subject::Open(NodeKind::Compute) => Step::Open,
            Subject::Operations(all) if all.contains(&Operation::ExportDmabuf) => Step::Export,
            _ => return None,
        };
        Some(Self {
            step,
            errno: format!("{:?}", rule.errno),
            number: rule.errno as i32,
            cause: rule.condition,
            remedy: rule.advice,
            source: rule.source,
        })
    }
}

/// Makes the rows that are not rules of the driver: step and errno, cause, remedy, source.
macro_rules! meanings {
    (@number ENOTSUPP) => { 524 };
    (@number $errno:ident) => { Errno::$errno as i32 };
    ($($step:ident $errno:ident $cause:literal, $remedy:literal, $source:literal;)*) => {
        /// Returns every meaning. Of one step and errno, the most likely is first.
        pub(super) fn all() -> Vec<Meaning> {
            let mut rules: Vec<_> = Rule::all().collect();
            rules.sort_by_key(|rule| rule.is_rare);
            let mut all: Vec<Meaning> = rules.into_iter().filter_map(Meaning::of_rule).collect();
            all.extend([$(Meaning {
                step: Step::$step,
                errno: stringify!($errno).to_owned(),
                number: meanings!(@number $errno),
                cause: $cause,
                remedy: Some($remedy),
                source: $source,
            }),*]);
            all.sort_by_key(|meaning| meaning.step);
            all
        }
    };
}

meanings! {
    Open EACCES
        "this user may not open the card's node",
        "join the group that owns /dev/accel (render)",
        "udev";
    Export ENOTTY
        "the driver is older than the export of device memory",
        "Linux 6.1 or later, or the vendor's driver",
        "habanalabs memory.c";
    Export EOPNOTSUPP
        "the driver was built without DMA_SHARED_BUFFER, or the chip has no window for it",
        "a kernel with DMA_SHARED_BUFFER",
        "habanalabs memory.c";
    Nic ENOENT
        "libibverbs is not installed, or there is no NIC of that name",
        "apt install libibverbs1 ibverbs-providers; `gaudi nics` lists names",
        "libibverbs";
    Nic EACCES
        "this user may not open /dev/infiniband/uverbsN",
        "join the group that owns it (rdma), or a udev rule with MODE=\"0666\" as rdma-core ships",
        "udev";
    Registration EOPNOTSUPP
        "neither the NIC's provider library (rxe, siw, erdma) nor the kernel's driver has the operation",
        "a NIC with mlx5, efa, irdma, bnxt_re, ionic or mana (see `gaudi nics`); otherwise transfers are \
         staged",
        "rdma-core dummy_ops.c; uverbs_std_types_mr.c";
    Registration EOPNOTSUPP
        "vfio-pci (Linux 7.2 and later) accepts only NICs whose regions it can revoke: mlx5 without data \
         direct, irdma",
        "such a NIC, or the habanalabs driver's export, which accepts every NIC",
        "vfio_pci_dmabuf.c";
    Registration ENOTSUPP
        "the driver lacks the operation and returns the kernel's internal ENOTSUPP, which should not reach \
         programs",
        "read it as EOPNOTSUPP: another NIC, a newer driver, or staging",
        "include/linux/errno.h";
    Registration EPERM
        "no peer-to-peer path: no switch above both and an untrusted host bridge, ACS redirects, or the NIC \
         is not a PCI device",
        "`gaudi topo` shows the cause: a NIC below the card's switch, pci=disable_acs_redir=…, or a kernel \
         with CONFIG_PCI_P2PDMA",
        "habanalabs memory.c `hl_dmabuf_attach`; p2pdma.c";
    Registration EINVAL
        "the region's address (iova) and the offset in the dma-buf differ within a page of 4096 bytes",
        "count the region from the device address of its first byte",
        "uverbs_std_types_mr.c";
    Registration EINVAL
        "the range is empty or leaves the dma-buf, or the descriptor is another file (a memfd)",
        "a range inside the dma-buf, and its descriptor",
        "uverbs_std_types_mr.c";
    Registration EINVAL
        "an access flag is not allowed: ON_DEMAND, ZERO_BASED, HUGETLB, or REMOTE_WRITE without LOCAL_WRITE",
        "LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC, RELAXED_ORDERING only",
        "uverbs_std_types_mr.c; rdma/ib_verbs.h `ib_check_mr_access`";
    Registration EINVAL
        "the memory is vfio-pci's, and the kernel forbids peer-to-peer between the two",
        "as for EPERM: `gaudi topo --exporter ADDRESS`",
        "p2pdma.c";
    Registration EBADF
        "the descriptor is closed, or is not a dma-buf",
        "register while the dma-buf is open; it may be closed afterwards",
        "dma-buf.c `dma_buf_get`";
    Registration EFAULT
        "the address was registered as host memory: device memory that is mapped into a process has no \
         pages to pin",
        "export it as a dma-buf and register that",
        "mm/gup.c";
    Registration ENOMEM
        "the NIC has no room for more regions, or for the page tables of a large one",
        "fewer or smaller regions; `ibv_devinfo -v` shows max_mr and max_mr_size",
        "the NIC's driver";
    Registration ENODEV
        "the exporter has revoked the memory: it is being reset or removed, or its memory decoding is off",
        "wait until the card is operational, then export and register again",
        "vfio_pci_dmabuf.c; habanalabs memory.c";
    Registration EBUSY
        "the memory is pinned elsewhere in a way that excludes this",
        "`gaudi dmabuf list` names the holders",
        "dma-buf.c";
    Host ENOMEM
        "more memory than this user may pin (RLIMIT_MEMLOCK)",
        "ulimit -l unlimited, LimitMEMLOCK=infinity in the service, or docker run --ulimit memlock=-1",
        "umem.c `ib_umem_get`";
    Host EFAULT
        "the range is not mapped, or not with the rights that the region has, or is a mapping of a device",
        "register memory that is mapped for reading and writing; device memory by its dma-buf",
        "mm/gup.c";
    Host EPERM
        "this process may not pin memory at all",
        "CAP_IPC_LOCK, or a limit above 0: ulimit -l",
        "umem.c `ib_umem_get`";
}

/// Returns the causes of an errno at a step, the most likely first.
pub(super) fn explain(step: Step, number: i32) -> Vec<Meaning> {
    let found = all().into_iter();
    found
        .filter(|meaning| meaning.step == step && meaning.number == number)
        .collect()
}

/// Returns every cause of an errno, by name or number.
///
/// # Errors
/// [`Usage`]: no cause has the errno.
pub(super) fn named(wanted: &str) -> Result<Vec<Meaning>, Usage> {
    let number: Option<i32> = wanted.parse().ok();
    let is_wanted = |meaning: &Meaning| {
        meaning.errno.eq_ignore_ascii_case(wanted) || Some(meaning.number) == number.map(i32::abs)
    };
    let found: Vec<Meaning> = all().into_iter().filter(is_wanted).collect();
    if found.is_empty() {
        let names: BTreeSet<String> = all().into_iter().map(|meaning| meaning.errno).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Usage(format!(
            "{wanted:?} is no errno that is explained here: {names}"
        )));
    }
    Ok(found)
}

/// Returns the page of the documentation.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(
        "# Errors of exports and registrations\n\n\
         This page lists the causes of each errno of a failed export or registration, the most likely of a\n\
         step first. `gaudi doctor --nic NIC --device DEVICE` tries every step and prints the causes of\n\
         failures; `gaudi doctor --explain EPERM` prints those of one errno.\n\n\
         | step | errno | cause | remedy | decided in |\n|---|---|---|---|---|\n",
    );
    for meaning in all() {
        page.push_str(&format!(
            "| {} | {} ({}) | {} | {} | {} |\n",
            meaning.step.name(),
            meaning.errno,
            meaning.number,
            meaning.cause,
            meaning.remedy.unwrap_or(""),
            meaning.source
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_page_matches_the_table() {
        snapbox::Assert::new()
            .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
            .eq(
                page(),
                snapbox::file!["../../../../docs/src/reference/rdma-errors.md"],
            );
    }

    #[test]
    fn names_and_numbers_agree() {
        for meaning in all().iter().filter(|meaning| meaning.number != 524) {
            let named = format!("{:?}", Errno::from_raw(meaning.number));
            assert_eq!(named, meaning.errno);
        }
        assert_eq!(
            Errno::from_raw(524),
            Errno::UnknownErrno,
            "the C library has no name for it: that is the trouble"
        );
    }

    #[test]
    fn common_errnos_explain_registration() {
        for number in [95, 22, 1, 14, 12, 524] {
            assert!(!explain(Step::Registration, number).is_empty(), "errno {number}");
        }
        assert!(explain(Step::Host, 12)[0].cause.contains("RLIMIT_MEMLOCK"));
        assert_eq!(explain(Step::Registration, 22).len(), 4, "EINVAL has four causes");
        assert!(explain(Step::Registration, 77).is_empty());
    }

    #[test]
    fn errno_is_found_by_name_and_number() {
        assert_eq!(named("eperm").unwrap(), named("1").unwrap());
        assert_eq!(named("-524").unwrap(), named("ENOTSUPP").unwrap());
        assert!(named("x").is_err() && named("").is_err());
    }
}
