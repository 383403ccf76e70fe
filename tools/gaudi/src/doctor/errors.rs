//! The causes of each errno of an export or a registration, and their remedies, from the sources of
//! the kernel and rdma-core: the errno alone does not identify the cause.

use serde::Serialize;

/// Where the errno came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

/// One cause of an errno at a step, the most likely first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Meaning {
    pub(super) step: Step,
    pub(super) errno: &'static str,
    pub(super) number: i32,
    pub(super) cause: &'static str,
    pub(super) mend: &'static str,
    /// Where it is decided.
    pub(super) source: &'static str,
}

const fn meaning(
    step: Step,
    (errno, number): (&'static str, i32),
    cause: &'static str,
    mend: &'static str,
    source: &'static str,
) -> Meaning {
    Meaning {
        step,
        errno,
        number,
        cause,
        mend,
        source,
    }
}

const EPERM: (&str, i32) = ("EPERM", 1);
const ENOENT: (&str, i32) = ("ENOENT", 2);
const EBADF: (&str, i32) = ("EBADF", 9);
const EAGAIN: (&str, i32) = ("EAGAIN", 11);
const ENOMEM: (&str, i32) = ("ENOMEM", 12);
const EACCES: (&str, i32) = ("EACCES", 13);
const EFAULT: (&str, i32) = ("EFAULT", 14);
const EBUSY: (&str, i32) = ("EBUSY", 16);
const ENODEV: (&str, i32) = ("ENODEV", 19);
const EINVAL: (&str, i32) = ("EINVAL", 22);
const ENOTTY: (&str, i32) = ("ENOTTY", 25);
const EOPNOTSUPP: (&str, i32) = ("EOPNOTSUPP", 95);
const ENOTSUPP: (&str, i32) = ("ENOTSUPP", 524);

/// Every meaning.
pub(super) const MEANINGS: &[Meaning] = &[
    meaning(
        Step::Open,
        EBUSY,
        "another process has the card open, or a memory region of its memory lives in any process, also after the card is closed",
        "end that process, or deregister the region; `gaudi dmabuf list` names the holders of its dma-bufs",
        "habanalabs device.c, memory.c `hl_release_dmabuf`",
    ),
    meaning(
        Step::Open,
        EAGAIN,
        "the card is being reset; a memory region of its memory in any process delays the reset",
        "wait; if it lasts, deregister the regions that `gaudi dmabuf list` names",
        "habanalabs device.c `hl_device_reset`",
    ),
    meaning(
        Step::Open,
        EACCES,
        "this user may not open the card's node",
        "join the group that owns /dev/accel (render)",
        "udev",
    ),
    meaning(
        Step::Export,
        EINVAL,
        "start or length is not a multiple of 4096, or the range leaves its mapping",
        "export whole pages of memory with pages of its own (Device::alloc_exclusive)",
        "habanalabs memory.c `export_dmabuf_from_addr`",
    ),
    meaning(
        Step::Export,
        ENOTTY,
        "the driver is older than the export of device memory",
        "Linux 6.1 or later, or the vendor's driver",
        "habanalabs memory.c",
    ),
    meaning(
        Step::Export,
        EOPNOTSUPP,
        "the driver was built without DMA_SHARED_BUFFER, or the chip has no window for it",
        "a kernel with DMA_SHARED_BUFFER",
        "habanalabs memory.c",
    ),
    meaning(
        Step::Nic,
        ENOENT,
        "libibverbs is not installed, or there is no NIC of that name",
        "apt install libibverbs1 ibverbs-providers; `gaudi nics` lists names",
        "libibverbs",
    ),
    meaning(
        Step::Nic,
        EACCES,
        "this user may not open /dev/infiniband/uverbsN",
        "join the group that owns it (rdma), or a udev rule with MODE=\"0666\" as rdma-core ships",
        "udev",
    ),
    meaning(
        Step::Registration,
        EOPNOTSUPP,
        "neither the NIC's provider library (rxe, siw, erdma) nor the kernel's driver has the operation",
        "a NIC with mlx5, efa, irdma, bnxt_re, ionic or mana (see `gaudi nics`); otherwise transfers are staged",
        "rdma-core dummy_ops.c; uverbs_std_types_mr.c",
    ),
    meaning(
        Step::Registration,
        EOPNOTSUPP,
        "vfio-pci (Linux 7.2 and later) accepts only NICs whose regions it can revoke: mlx5 without data direct, irdma",
        "such a NIC, or the habanalabs driver's export, which accepts every NIC",
        "vfio_pci_dmabuf.c",
    ),
    meaning(
        Step::Registration,
        ENOTSUPP,
        "the driver lacks the operation and returns the kernel's internal ENOTSUPP, which should not reach programs",
        "read it as EOPNOTSUPP: another NIC, a newer driver, or staging",
        "include/linux/errno.h",
    ),
    meaning(
        Step::Registration,
        EPERM,
        "no peer-to-peer path: no switch above both and an untrusted host bridge, ACS redirects, or the NIC is not a PCI device",
        "`gaudi topo` shows the cause: a NIC below the card's switch, pci=disable_acs_redir=…, or a kernel with CONFIG_PCI_P2PDMA",
        "habanalabs memory.c `hl_dmabuf_attach`; p2pdma.c",
    ),
    meaning(
        Step::Registration,
        EINVAL,
        "the region's address (iova) and the offset in the dma-buf differ within a page of 4096 bytes",
        "count the region from the device address of its first byte",
        "uverbs_std_types_mr.c",
    ),
    meaning(
        Step::Registration,
        EINVAL,
        "the range is empty or leaves the dma-buf, or the descriptor is another file (a memfd)",
        "a range inside the dma-buf, and its descriptor",
        "uverbs_std_types_mr.c",
    ),
    meaning(
        Step::Registration,
        EINVAL,
        "an access flag is not allowed: ON_DEMAND, ZERO_BASED, HUGETLB, or REMOTE_WRITE without LOCAL_WRITE",
        "LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC, RELAXED_ORDERING only",
        "uverbs_std_types_mr.c; rdma/ib_verbs.h `ib_check_mr_access`",
    ),
    meaning(
        Step::Registration,
        EINVAL,
        "the memory is vfio-pci's, and the kernel forbids peer-to-peer between the two",
        "as for EPERM: `gaudi topo --exporter ADDRESS`",
        "p2pdma.c",
    ),
    meaning(
        Step::Registration,
        EBADF,
        "the descriptor is closed, or is not a dma-buf",
        "register while the dma-buf is open; it may be closed afterwards",
        "dma-buf.c `dma_buf_get`",
    ),
    meaning(
        Step::Registration,
        EFAULT,
        "the address was registered as host memory: device memory that is mapped into a process has no pages to pin",
        "export it as a dma-buf and register that",
        "mm/gup.c",
    ),
    meaning(
        Step::Registration,
        ENOMEM,
        "the NIC has no room for more regions, or for the page tables of a large one",
        "fewer or smaller regions; `ibv_devinfo -v` shows max_mr and max_mr_size",
        "the NIC's driver",
    ),
    meaning(
        Step::Registration,
        ENODEV,
        "the exporter has revoked the memory: it is being reset or removed, or its memory decoding is off",
        "wait until the card is operational, then export and register again",
        "vfio_pci_dmabuf.c; habanalabs memory.c",
    ),
    meaning(
        Step::Registration,
        EBUSY,
        "the memory is pinned elsewhere in a way that excludes this",
        "`gaudi dmabuf list` names the holders",
        "dma-buf.c",
    ),
    meaning(
        Step::Host,
        ENOMEM,
        "more memory than this user may pin (RLIMIT_MEMLOCK)",
        "ulimit -l unlimited, LimitMEMLOCK=infinity in the service, or docker run --ulimit memlock=-1",
        "umem.c `ib_umem_get`",
    ),
    meaning(
        Step::Host,
        EFAULT,
        "the range is not mapped, or not with the rights that the region has, or is a mapping of a device",
        "register memory that is mapped for reading and writing; device memory by its dma-buf",
        "mm/gup.c",
    ),
    meaning(
        Step::Host,
        EPERM,
        "this process may not pin memory at all",
        "CAP_IPC_LOCK, or a limit above 0: ulimit -l",
        "umem.c `ib_umem_get`",
    ),
];

/// Returns the causes of an errno at a step, the most likely first.
pub(super) fn explain(step: Step, number: i32) -> Vec<&'static Meaning> {
    let found = MEANINGS
        .iter()
        .filter(|meaning| meaning.step == step && meaning.number == number);
    found.collect()
}

/// Returns every cause of an errno, by name or number.
pub(super) fn named(wanted: &str) -> Vec<&'static Meaning> {
    let number: Option<i32> = wanted.parse().ok();
    let found = MEANINGS.iter().filter(|meaning| {
        meaning.errno.eq_ignore_ascii_case(wanted) || Some(meaning.number) == number.map(i32::abs)
    });
    found.collect()
}

/// The page of the documentation.
#[cfg(test)]
fn page() -> String {
    let mut page = String::from(
        "# Errors of exports and registrations\n\n\
         This page lists the causes of each errno of a failed export or registration, the most likely of a\n\
         step first. `gaudi doctor --nic NIC --device DEVICE` tries every step and prints the causes of\n\
         failures; `gaudi doctor --explain EPERM` prints those of one errno.\n\n\
         | step | errno | cause | remedy | decided in |\n|---|---|---|---|---|\n",
    );
    for meaning in MEANINGS {
        page.push_str(&format!(
            "| {} | {} ({}) | {} | {} | {} |\n",
            meaning.step.name(),
            meaning.errno,
            meaning.number,
            meaning.cause,
            meaning.mend,
            meaning.source
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_seam::Errno;

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
        for meaning in MEANINGS.iter().filter(|meaning| meaning.number != 524) {
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
    fn what_users_meet_is_explained_at_registration() {
        for number in [95, 22, 1, 14, 12, 524] {
            assert!(!explain(Step::Registration, number).is_empty(), "errno {number}");
        }
        assert!(explain(Step::Host, 12)[0].cause.contains("RLIMIT_MEMLOCK"));
        assert_eq!(explain(Step::Registration, 22).len(), 4, "EINVAL has four causes");
        assert!(explain(Step::Registration, 77).is_empty());
    }

    #[test]
    fn errno_is_found_by_name_and_number() {
        assert_eq!(named("eperm"), named("1"));
        assert_eq!(named("-524"), named("ENOTSUPP"));
        assert!(named("x").is_empty() && named("").is_empty());
    }
}
