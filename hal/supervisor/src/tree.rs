//! [`Tree`]: the paths of the devices in `/dev` and `/sys`, as Linux 6.7 and later show them.

use std::collections::{BTreeMap, BTreeSet};

use gaudi_seam::NodeKind;

/// The major number of compute nodes (`ACCEL_MAJOR`, include/drm/drm_accel.h).
pub(crate) const ACCEL_MAJOR: u32 = 261;
/// The major number of control nodes. The driver's is dynamic: this is a number of that range.
pub(crate) const CONTROL_MAJOR: u32 = 508;
/// The first bus of the devices. A mock has no PCI address.
const FIRST_BUS: u32 = 0x10;
/// PCI ids of the modelled chip.
const VENDOR: u32 = 0x1da3;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    File(Vec<u8>),
    Link(String),
    Node { kind: NodeKind, index: u32 },
}

/// The paths that the supervisor answers.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
    /// Directories whose other paths do not exist.
    owned: BTreeSet<String>,
}

/// A device for [`Tree::new`].
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) device_id: u32,
    pub(crate) module_id: u32,
}

/// Returns the major and minor number of a node.
pub(crate) fn number(kind: NodeKind, index: u32) -> (u32, u32) {
    match kind {
        NodeKind::Compute => (ACCEL_MAJOR, index),
        NodeKind::Control => (CONTROL_MAJOR, index),
    }
}

impl Tree {
    /// The paths of devices, by their index.
    pub(crate) fn new(devices: &[Described]) -> Self {
        let mut tree = Self::default();
        for owned in ["/dev/accel", "/sys/class/accel", "/sys/module/habanalabs"] {
            tree.owned.insert(owned.to_owned());
            tree.directory(owned);
        }
        tree.file("/sys/module/habanalabs/initstate", "live");
        for (index, device) in (0..).zip(devices) {
            let bus = format!("0000:{:02x}:00.0", FIRST_BUS + index);
            tree.nodes(index);
            let class = format!("/sys/class/accel/accel{index}");
            let pci = format!("/sys/bus/pci/devices/{bus}");
            tree.owned.insert(pci.clone());
            let attributes = [
                ("pci_addr", bus.clone()),
                ("vendor", format!("{VENDOR:#06x}")),
                ("device", format!("{:#06x}", device.device_id)),
                ("module_id", device.module_id.to_string()),
                ("status", "Operational".to_owned()),
            ];
            tree.insert(
                &format!("{pci}/driver"),
                Entry::Link("../../../bus/pci/drivers/habanalabs".to_owned()),
            );
            tree.insert(&format!("{class}/device"), Entry::Link(format!("../../../{bus}")));
            let below = format!("{class}/device/driver");
            tree.insert(
                &below,
                Entry::Link("../../../bus/pci/drivers/habanalabs".to_owned()),
            );
            for (name, value) in attributes {
                tree.file(&format!("{pci}/{name}"), &value);
                tree.file(&format!("{class}/device/{name}"), &value);
            }
        }
        tree
    }

    fn nodes(&mut self, index: u32) {
        for (kind, name, old) in [
            (NodeKind::Compute, "accel", "hl"),
            (NodeKind::Control, "accel_controlD", "hl_controlD"),
        ] {
            let node = Entry::Node { kind, index };
            self.insert(&format!("/dev/accel/{name}{index}"), node.clone());
            // For programs of the driver before Linux 6.7. `/dev` itself does not list it.
            self.insert_hidden(&format!("/dev/{old}{index}"), node);
            let (major, minor) = number(kind, index);
            let class = format!("/sys/class/accel/{name}{index}");
            self.file(&format!("{class}/dev"), &format!("{major}:{minor}"));
            let link = format!("../../class/accel/{name}{index}");
            self.insert_hidden(&format!("/sys/dev/char/{major}:{minor}"), Entry::Link(link));
        }
    }

    fn directory(&mut self, path: &str) {
        self.entries.entry(path.to_owned()).or_insert(Entry::Directory);
    }

    fn insert_hidden(&mut self, path: &str, entry: Entry) {
        self.entries.insert(path.to_owned(), entry);
    }

    /// Inserts an entry and its directories up to an owned one.
    fn insert(&mut self, path: &str, entry: Entry) {
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            if !self.owned.iter().any(|owned| parent.starts_with(owned.as_str())) {
                break;
            }
            self.directory(parent);
            above = parent;
        }
        self.entries.insert(path.to_owned(), entry);
    }

    fn file(&mut self, path: &str, value: &str) {
        self.insert(path, Entry::File(format!("{value}\n").into_bytes()));
    }

    /// Returns what a path names. `None` if the path is not the supervisor's. `Some(None)` if it
    /// does not exist.
    pub(crate) fn find(&self, path: &str) -> Option<Option<(&str, &Entry)>> {
        let path = plain(path);
        if let Some((path, entry)) = self.entries.get_key_value(&path) {
            return Some(Some((path.as_str(), entry)));
        }
        let inside = |owned: &String| {
            path.strip_prefix(owned.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.owned.iter().any(inside).then_some(None)
    }

    /// Returns the names and entries directly in a directory.
    pub(crate) fn list(&self, directory: &str) -> Vec<(&str, &Entry)> {
        let entries = self.entries.range(directory.to_owned()..);
        let inside = entries.filter_map(|(path, entry)| {
            let name = path.strip_prefix(directory)?.strip_prefix('/')?;
            (!name.contains('/')).then_some((name, entry))
        });
        inside.collect()
    }

    /// Whether the entries below a link are those of its target: stat(2) then sees a directory.
    pub(crate) fn is_directory(&self, path: &str, entry: &Entry) -> bool {
        *entry == Entry::Directory || (matches!(entry, Entry::Link(_)) && !self.list(path).is_empty())
    }
}

/// Removes empty and `.` components, and resolves `..` textually. The tree's links do not lead out
/// of a directory that a program would leave by `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let device = Described {
            device_id: 0x1020,
            module_id: 3,
        };
        Tree::new(&[device.clone(), device])
    }

    #[test]
    fn discovery_paths_are_answered() {
        let tree = tree();
        let names = |directory| {
            tree.list(directory)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names("/dev/accel"),
            ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]
        );
        assert_eq!(
            names("/sys/class/accel/accel1/device"),
            ["device", "driver", "module_id", "pci_addr", "status", "vendor"]
        );
        let file = |path| match tree.find(path) {
            Some(Some((_, Entry::File(bytes)))) => String::from_utf8(bytes.clone()).unwrap(),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(file("/sys/class/accel//accel1/device/pci_addr"), "0000:11:00.0\n");
        assert_eq!(file("/sys/class/accel/accel_controlD0/dev"), "508:0\n");
        assert_eq!(file("/sys/class/accel/accel0/../accel1/dev"), "261:1\n");
        let node = Entry::Node {
            kind: NodeKind::Control,
            index: 1,
        };
        for path in ["/dev/accel/accel_controlD1", "/dev/hl_controlD1"] {
            assert_eq!(
                tree.find(path).flatten().map(|(_, entry)| entry),
                Some(&node),
                "{path}"
            );
        }
    }

    #[test]
    fn other_paths_are_not_answered() {
        let tree = tree();
        for path in [
            "/dev/null",
            "/dev",
            "/sys/class",
            "/dev/accelerator",
            "/",
            "relative",
            "/dev/hl2",
        ] {
            assert!(tree.find(path).is_none(), "{path}");
        }
        for path in [
            "/dev/accel/accel2",
            "/sys/class/accel/accel0/nothing",
            "/sys/class/accel/accel9/dev",
        ] {
            assert_eq!(tree.find(path), Some(None), "{path} does not exist");
        }
    }
}
