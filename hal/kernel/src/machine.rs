//! [`Machine`]: the driver, its devices and its cards as `/dev`, `/sys` and `/proc` show them.
//! No node is opened.

use std::path::{Path, PathBuf};

use gaudi_seam::{Era, NodeKind, PciAddress};
use gaudi_spec::gaudi2::VENDOR;
use gaudi_uapi::Node;

/// The most devices that are listed. A server has 8; DRM's accel class ends at 256 minors.
const MOST: usize = 256;

/// A card of vendor 1da3 on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The PCI address.
    pub(crate) address: String,
    /// The driver that is bound to it.
    pub(crate) driver: Option<String>,
}

/// The file systems of a machine, or a copy of them below another root.
#[derive(Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// An absolute path, below the root.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The numbers of all devices that have a control node, in order.
    pub(crate) fn indices(&self) -> Vec<u32> {
        let names = self.names();
        self.control_nodes(names.dev_dir(), names)
    }

    /// The names of this machine's nodes: those of [`Era::HlMisc`], or those of [`Era::AccelDrm`],
    /// which [`Era::AccelH`] shares. A machine with both, for old programs, has the newer.
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

    /// The numbers of the control nodes in a directory, in order. Only habanalabs makes control
    /// nodes, so other drivers' accelerators are not among them.
    pub(crate) fn control_nodes(&self, directory: &str, names: Era) -> Vec<u32> {
        self.numbers(directory, names, NodeKind::Control)
    }

    /// The numbers of the compute nodes in a directory, in order. Other drivers' nodes are among
    /// them.
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

    /// Whether the directory exists and this user may not read it.
    pub(crate) fn is_hidden(&self, directory: &str) -> bool {
        let read = std::fs::read_dir(self.path(directory));
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    }

    /// The PCI address of a device.
    ///
    /// The newest driver has the link `/sys/class/accel/accelN/device`, older drivers have the
    /// attribute `pci_addr`. Control nodes have neither.
    pub(crate) fn pci_address(&self, index: u32) -> Option<PciAddress> {
        let link = self.link(index, "device").and_then(|target| target.parse().ok());
        link.or_else(|| self.attribute(index, "pci_addr")?.parse().ok())
    }

    /// One of the driver's attributes of a device (`pci_addr`, `module_id`, `status`, ...),
    /// trimmed. It is beside the class device or, in DRM drivers, in the PCI device's directory.
    pub(crate) fn attribute(&self, index: u32, name: &str) -> Option<String> {
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

    /// The node with a device number. `None` if the device number is not a habanalabs node's.
    ///
    /// The name comes from `/sys/dev/char/MAJOR:MINOR`, because the minors of a device's two nodes
    /// are unrelated and control nodes have their own major since Linux 6.7.
    pub(crate) fn node_of(&self, major: u64, minor: u64) -> Option<Node> {
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

    /// The driver that is bound to the device of a compute node of the accel class.
    pub(crate) fn driver_of(&self, index: u32) -> Option<String> {
        self.link(index, "device/driver")
    }

    fn link(&self, index: u32, below: &str) -> Option<String> {
        let class = class_device(self.names(), index);
        let target = std::fs::read_link(self.path(&format!("{class}/{below}"))).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The cards of vendor 1da3 on the PCI bus, sorted by address.
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

    /// Major and minor version of the running kernel.
    pub(crate) fn release(&self) -> Option<(u32, u32)> {
        let text = std::fs::read_to_string(self.path("/proc/sys/kernel/osrelease")).ok()?;
        let mut parts = text.trim().split(['.', '-', '+', '~']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether the module is the vendor's out-of-tree one: only that one has a version of its own.
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
