//! What `/dev`, `/sys` and `/proc` say of the driver, its devices and its cards, without opening a node.

use std::path::PathBuf;

use gaudi_seam::{Era, NodeKind, PciAddress};
use gaudi_spec::gaudi2::VENDOR;
use gaudi_uapi::Node;

use crate::open::Driver;
use crate::system::Syscalls;

/// The most devices that are looked at. A server has 8; DRM's accel class ends at 256 minors.
const MOST: usize = 256;

/// A card of our vendor on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Where it sits.
    pub(crate) address: String,
    /// The driver that has it.
    pub(crate) driver: Option<String>,
}

impl<S: Syscalls + ?Sized> Driver<S> {
    /// The path of an absolute path below the root.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root().join(absolute.trim_start_matches('/'))
    }

    /// Which of the two kinds of names this machine's nodes have: [`Era::HlMisc`] or [`Era::AccelDrm`] (whose names
    /// [`Era::AccelH`] shares). A set-up that makes both, for old programs' sake, counts as the newer.
    pub(crate) fn names(&self) -> Era {
        let places = |era: Era| [era.dev_dir(), era.class_dir()];
        let accel = Era::AccelDrm;
        // Compute nodes of the accel class may be another driver's.
        let new = places(accel)
            .iter()
            .any(|place| !self.control_nodes(place, accel).is_empty());
        let hl = Era::HlMisc;
        let old = || {
            places(hl)
                .iter()
                .any(|place| !self.nodes_in(place, hl).is_empty())
        };
        if !new && old() { hl } else { accel }
    }

    /// The numbers of the control nodes whose names stand in a directory, in order. Only habanalabs makes control
    /// nodes, so that other drivers' accelerators are not among them.
    pub(crate) fn control_nodes(&self, directory: &str, names: Era) -> Vec<u32> {
        self.numbers(directory, names, NodeKind::Control)
    }

    /// The numbers of the compute nodes whose names stand in a directory, in order: those of other drivers too.
    pub(crate) fn compute_nodes(&self, directory: &str, names: Era) -> Vec<u32> {
        self.numbers(directory, names, NodeKind::Compute)
    }

    fn numbers(&self, directory: &str, names: Era, kind: NodeKind) -> Vec<u32> {
        let nodes = self.nodes_in(directory, names);
        let of_kind = nodes.into_iter().filter(|node| node.kind == kind);
        let mut numbers: Vec<u32> = of_kind.map(|node| node.index).take(MOST).collect();
        numbers.sort_unstable();
        numbers
    }

    fn nodes_in(&self, directory: &str, names: Era) -> Vec<Node> {
        let entries = std::fs::read_dir(self.path(directory));
        let names = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(move |entry| Node::from_file_name(names, entry.file_name().to_str()?));
        names.collect()
    }

    /// Whether a directory is there that this user may not read.
    pub(crate) fn is_hidden(&self, directory: &str) -> bool {
        let read = std::fs::read_dir(self.path(directory));
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// Where a device sits.
    ///
    /// The newest driver shows it by the link `/sys/class/accel/accelN/device`; the older ones by their attribute
    /// `pci_addr`. Control nodes have neither, and their minor tells nothing.
    pub fn pci_address(&self, index: u32) -> Option<PciAddress> {
        let link = self.link(index, "device").and_then(|target| target.parse().ok());
        link.or_else(|| self.attribute(index, "pci_addr")?.parse().ok())
    }

    /// One of the driver's attributes of a device (`pci_addr`, `module_id`, `status`, …), without white space at
    /// its ends: beside the class device, or, since the driver is DRM's, in the PCI device's directory.
    pub fn attribute(&self, index: u32, name: &str) -> Option<String> {
        let places = match self.names() {
            Era::HlMisc => &[Era::HlMisc][..],
            _ => &[Era::AccelH, Era::AccelDrm],
        };
        places.iter().find_map(|era| {
            let class = class_device(*era, index);
            let below = era.attributes_below();
            let text = std::fs::read_to_string(self.path(&format!("{class}/{below}/{name}"))).ok()?;
            Some(text.trim().to_owned())
        })
    }

    /// The node that a device number belongs to: what fstat(2) says of an open file (`st_rdev`).
    ///
    /// By name, through `/sys/dev/char/MAJOR:MINOR`: control nodes have their own major since Linux 6.7, and no
    /// arithmetic leads from one node's minor to the other's. Nothing for files that are no node of ours; the era
    /// is that of the names only.
    pub fn node_of(&self, major: u64, minor: u64) -> Option<Node> {
        let target = std::fs::read_link(self.path(&format!("/sys/dev/char/{major}:{minor}"))).ok()?;
        let name = target.file_name()?.to_str()?;
        let node = [Era::AccelDrm, Era::HlMisc]
            .into_iter()
            .find_map(|names| Node::from_file_name(names, name))?;
        let other = node.era == Era::AccelDrm && node.kind == NodeKind::Compute;
        let foreign = other
            && self
                .driver_of(node.index)
                .is_some_and(|driver| driver != "habanalabs");
        (!foreign).then_some(node)
    }

    /// The driver that a compute node of the accel class belongs to, if its device has one.
    pub(crate) fn driver_of(&self, index: u32) -> Option<String> {
        self.link(index, "device/driver")
    }

    fn link(&self, index: u32, below: &str) -> Option<String> {
        let class = class_device(self.names(), index);
        let target = std::fs::read_link(self.path(&format!("{class}/{below}"))).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The cards of our vendor on the PCI bus, by address.
    pub(crate) fn cards(&self) -> Vec<Card> {
        let devices = std::fs::read_dir(self.path("/sys/bus/pci/devices"));
        let mut cards: Vec<Card> = devices
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let vendor = std::fs::read_to_string(entry.path().join("vendor")).ok()?;
                let ours = u16::from_str_radix(vendor.trim().strip_prefix("0x")?, 16).ok()? == VENDOR;
                let driver = std::fs::read_link(entry.path().join("driver")).ok();
                let name = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
                ours.then_some(Card {
                    address: entry.file_name().to_str()?.to_owned(),
                    driver: driver.and_then(name),
                })
            })
            .take(MOST)
            .collect();
        cards.sort_unstable_by(|a, b| a.address.cmp(&b.address));
        cards
    }

    /// Whether the module is loaded, or built in with devices or parameters.
    pub(crate) fn is_loaded(&self) -> bool {
        self.path("/sys/module/habanalabs").exists()
    }

    /// Major and minor of the running kernel's version, if it has one that reads so.
    pub(crate) fn release(&self) -> Option<(u32, u32)> {
        let text = std::fs::read_to_string(self.path("/proc/sys/kernel/osrelease")).ok()?;
        let mut parts = text.trim().split(['.', '-', '+', '~']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether the module is the vendor's, from outside the kernel's tree: only that one has a version of its own.
    pub(crate) fn is_vendors(&self) -> bool {
        self.path("/sys/module/habanalabs/version").exists()
    }
}

fn class_device(names: Era, index: u32) -> String {
    let kind = NodeKind::Compute;
    let node = Node {
        era: names,
        kind,
        index,
    };
    format!("{}/{}", names.class_dir(), node.file_name())
}
