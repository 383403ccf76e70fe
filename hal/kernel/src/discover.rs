//! Which devices there are: control nodes in `/dev/accel`, links in sysfs, and questions to control nodes.

use gaudi_seam::{Era, KernelIoExt, NodeKind, PciAddress, Result};
use gaudi_uapi::Node;
use gaudi_uapi::info::{HlInfoDeviceStatus, HlInfoHwIpInfo, HlOpenStatsInfo};

use crate::open::Driver;

/// The most devices that are looked at. A server has 8; DRM's accel class ends at 256 minors.
const MOST: usize = 256;

/// A device that was found.
#[derive(Debug)]
pub struct Listed {
    /// N of `accelN` and `accel_controlDN`.
    pub index: u32,
    /// Where it sits; nothing if sysfs does not say.
    pub pci: Option<PciAddress>,
    /// What its control node answered. A failure is shown in the device's place and hides no other.
    pub identity: Result<Identity>,
}

/// What a control node tells of a device in any state.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The hardware.
    pub hw_ip: HlInfoHwIpInfo,
    /// How it is.
    pub status: HlInfoDeviceStatus,
    /// Who has had it open: `is_compute_ctx_active` says whether it is taken now.
    pub open_stats: HlOpenStatsInfo,
}

impl Driver {
    /// The numbers of all devices, in order. Only habanalabs makes control nodes, so that other drivers'
    /// accelerators are not among them.
    pub fn indices(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(self.path(Era::AccelDrm.dev_dir())) else {
            return Vec::new();
        };
        let mut indices: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| Node::from_file_name(Era::AccelDrm, entry.file_name().to_str()?))
            .filter(|node| node.kind == NodeKind::Control)
            .map(|node| node.index)
            .take(MOST)
            .collect();
        indices.sort_unstable();
        indices
    }

    /// All devices, in the order of their numbers. Compute nodes are not touched; an empty list is no error.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |index| Listed {
            index,
            pci: self.pci_address(index),
            identity: self.identity(index),
        };
        self.indices().into_iter().map(listed).collect()
    }

    fn identity(&self, index: u32) -> Result<Identity> {
        let control = self.open_node(index, NodeKind::Control)?;
        Ok(Identity {
            hw_ip: control.query()?,
            status: control.query()?,
            open_stats: control.query()?,
        })
    }

    /// Where a device sits: the last part of the link `/sys/class/accel/accelN/device`. Control nodes have no
    /// such link, and their minor tells nothing.
    pub fn pci_address(&self, index: u32) -> Option<PciAddress> {
        self.link(index, "device")?.parse().ok()
    }

    /// The driver that a compute node belongs to.
    pub(crate) fn driver_of(&self, index: u32) -> Option<String> {
        self.link(index, "device/driver")
    }

    fn link(&self, index: u32, below: &str) -> Option<String> {
        let node = Node {
            era: Era::AccelDrm,
            kind: NodeKind::Compute,
            index,
        };
        let path = self.path(&format!(
            "{}/{}/{below}",
            Era::AccelDrm.class_dir(),
            node.file_name()
        ));
        let target = std::fs::read_link(path).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
