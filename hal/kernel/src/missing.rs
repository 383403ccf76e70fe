//! The errors of opening a device that is missing, foreign or forbidden, each with the next step.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gaudi_seam::{DeviceId, Era, Error, ErrorKind, NodeKind};
use gaudi_sys::Errno;
use gaudi_uapi::drm::DRIVER_NAME;
use nix::unistd::{Gid, Group, Uid, User};

use crate::machine::{Card, Machine};
use crate::probe::Stranger;

/// The operation that these errors name.
pub(crate) const OPEN: &str = "open";

/// The next step after a wrong choice.
const CHOOSE: &str = "choose one of the devices that gaudi list shows";

impl Machine {
    /// The error for a missing node: other numbers exist, the device lacks its node, or no device
    /// exists.
    pub(crate) fn missing(&self, node: gaudi_uapi::Node) -> Error {
        let error = Error::new(ErrorKind::NotFound, OPEN);
        let there = self.indices();
        if there.contains(&node.index) && node.kind == NodeKind::Compute {
            return error
                .because(format!("the device has its control node, but {node} is missing"))
                .helped_by(make_nodes(node.era));
        }
        if !there.is_empty() {
            let list: Vec<_> = there.iter().map(|&index| compute_name(node.era, index)).collect();
            return error
                .because("there is no such device")
                .saw(compute_name(node.era, node.index), list.join(", "))
                .helped_by(CHOOSE);
        }
        self.no_device()
    }

    /// The error for a machine without devices. The first cause that holds is reported: the nodes
    /// are hidden or missing; the driver is too old for control nodes; it has no device; it is not
    /// loaded.
    pub(crate) fn no_device(&self) -> Error {
        let names = self.names();
        let error = Error::new(ErrorKind::NotFound, OPEN);
        let dir = names.dev_dir();
        if self.is_hidden(dir) {
            let (cause, help) = ownership(&self.path(dir));
            return error
                .with_kind(ErrorKind::PermissionDenied)
                .with_errno(Errno::EACCES)
                .because(cause)
                .helped_by(help);
        }
        let shown = self.control_nodes(names.class_dir(), names);
        if !shown.is_empty() {
            let list: Vec<_> = shown.iter().map(|&index| compute_name(names, index)).collect();
            return error
                .because(format!("the driver has devices, but {dir} lacks their nodes"))
                .saw("no node", list.join(", "))
                .helped_by(make_nodes(names));
        }
        if names == Era::HlMisc && !self.compute_nodes(dir, names).is_empty() {
            return too_old(
                error
                    .with_kind(ErrorKind::Unsupported)
                    .because("this driver is too old: it makes no control nodes"),
            );
        }
        let cards = self.cards();
        if self.is_loaded() {
            return idle_driver(error, &cards);
        }
        self.no_driver(error, &cards)
    }

    fn no_driver(&self, error: Error, cards: &[Card]) -> Error {
        const LOAD: &str = "load it with: modprobe habanalabs";
        if !cards.is_empty() {
            return error
                .because("the habanalabs driver is not loaded, and there are cards")
                .saw(listed(cards), "the driver habanalabs")
                .helped_by(LOAD);
        }
        let accel = Era::AccelDrm;
        let others: Vec<_> = self
            .compute_nodes(accel.class_dir(), accel)
            .into_iter()
            .filter_map(|index| Some(format!("accel{index} of {}", self.driver_of(index)?)))
            .collect();
        if !others.is_empty() {
            return error
                .because("the habanalabs driver is not loaded; the accelerators here are other drivers'")
                .saw(others.join(", "), DRIVER_NAME)
                .helped_by(LOAD);
        }
        error
            .because("the habanalabs driver is not loaded")
            .helped_by(LOAD)
    }
}

/// The driver is loaded and has no device: there is no card, or the driver did not bind to it.
fn idle_driver(error: Error, cards: &[Card]) -> Error {
    let error = error.because("the habanalabs driver is loaded and has no device");
    if cards.is_empty() {
        return error.saw("no card of PCI vendor 1da3", "a card").helped_by(
            "lspci -nn -d 1da3: shows the cards; one that is plugged in and not shown has failed on the bus",
        );
    }
    let free = cards.iter().all(|card| card.driver.is_none());
    error.saw(listed(cards), "a card that habanalabs has").helped_by(if free {
        "see why habanalabs did not bind the card: dmesg | grep habanalabs"
    } else {
        "take the card from the other driver: echo ADDRESS | sudo tee /sys/bus/pci/devices/ADDRESS/driver/unbind, then \
         the same into /sys/bus/pci/drivers/habanalabs/bind"
    })
}

fn listed(cards: &[Card]) -> String {
    let list: Vec<_> = cards
        .iter()
        .map(|card| match &card.driver {
            Some(driver) => format!("{} (driver {driver})", card.address),
            None => format!("{} (no driver)", card.address),
        })
        .collect();
    list.join(", ")
}

fn compute_name(names: Era, index: u32) -> String {
    let kind = NodeKind::Compute;
    let era = names;
    gaudi_uapi::Node { era, kind, index }.file_name().to_string()
}

fn make_nodes(names: Era) -> &'static str {
    match names {
        Era::HlMisc => {
            "udev makes them: sudo udevadm trigger --subsystem-match=habanalabs; a container is given them by --device=/dev/hl0 \
             --device=/dev/hl_controlD0"
        }
        Era::AccelH | Era::AccelDrm => {
            "udev makes them: sudo udevadm trigger --subsystem-match=accel; a container is given them by --device=/dev/accel"
        }
    }
}

/// Adds the next step for a driver that is older than the oldest known header.
pub(crate) fn too_old(error: Error) -> Error {
    error.helped_by("use a kernel from 6.1 on; information may still work, through a control node")
}

/// The error for a node of another driver.
pub(crate) fn not_ours(stranger: Stranger, device: DeviceId) -> Error {
    let error = Error::new(ErrorKind::NotFound, OPEN).on(device);
    match stranger {
        Stranger::Driver(driver) => error
            .because("the node belongs to another driver")
            .saw(driver, DRIVER_NAME)
            .helped_by(CHOOSE),
        Stranger::Unknown => error
            .with_kind(ErrorKind::Unsupported)
            .with_errno(Errno::ENOTTY)
            .because("the node answers none of the driver's interfaces")
            .helped_by("a file that is no device node, or a driver that this program does not know"),
    }
}

/// The cause and the next step for a node that this user may not open: its owner, its group and its
/// mode.
pub(crate) fn ownership(path: &Path) -> (String, String) {
    let Ok(meta) = std::fs::metadata(path) else {
        let cause = format!(
            "permission denied: {} is not to be seen by this user",
            path.display()
        );
        return (
            cause,
            "ask the administrator for access to the directory".to_owned(),
        );
    };
    let user = User::from_uid(Uid::from_raw(meta.uid())).ok().flatten();
    let user = user.map_or_else(|| meta.uid().to_string(), |user| user.name);
    let group = group_name(Gid::from_raw(meta.gid()));
    // Without the process's groups, the message still names the node's group.
    let mine: Vec<_> = nix::unistd::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(group_name)
        .collect();
    let mode = meta.mode() & 0o777;
    let cause = format!(
        "permission denied: {} belongs to {user}:{group} with mode {mode:04o}; you are in: {}",
        path.display(),
        mine.join(", ")
    );
    let help = if mode & 0o060 == 0o060 && meta.gid() != 0 {
        format!("sudo usermod -aG {group} $USER, then log in again")
    } else {
        let nodes = match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.starts_with("hl") => "hl*",
            _ => "accel*",
        };
        format!(
            "a udev rule must give the node to a group: KERNEL==\"{nodes}\", GROUP=\"render\", MODE=\"0660\""
        )
    };
    (cause, help)
}

fn group_name(gid: Gid) -> String {
    Group::from_gid(gid)
        .ok()
        .flatten()
        .map_or_else(|| gid.to_string(), |group| group.name)
}
