//! Properties of a card in the machine's files: sensors, PCI link, driver and users.

use std::fs;
use std::path::Path;

use gaudi::PciAddress;
use serde::Serialize;

use crate::machine::Machine;

/// The most users of a card that are listed.
const MOST_USERS: usize = 64;

/// Readings of a card; `None` if a file is missing or cannot be read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Readings {
    /// Of the hottest sensor.
    pub(super) temperature_celsius: Option<f64>,
    pub(super) temperature_sensors: Option<u32>,
    pub(super) power_watts: Option<f64>,
    pub(super) power_max_watts: Option<f64>,
    pub(super) pci_link_speed_mtps: Option<u32>,
    pub(super) pci_link_width: Option<u32>,
    pub(super) pci_link_max_speed_mtps: Option<u32>,
    pub(super) pci_link_max_width: Option<u32>,
    pub(super) driver_version: Option<String>,
}

/// A process that has the card's compute node open.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub(super) pid: u32,
    pub(super) name: String,
}

impl Machine {
    /// Returns the readings of the card at a PCI address.
    pub(super) fn readings(&self, bus: PciAddress) -> Readings {
        let card = format!("/sys/bus/pci/devices/{bus}");
        // As Documentation/ABI/testing/sysfs-class-hwmon has them: millidegrees and microwatts.
        let monitors = self.names(&format!("{card}/hwmon"));
        let values = |kind: &str| -> Vec<i64> {
            let folders = monitors.iter().map(|monitor| format!("{card}/hwmon/{monitor}"));
            let inputs = folders.flat_map(|folder| {
                let names = self.names(&folder).into_iter();
                let inputs = names.filter(|name| name.starts_with(kind) && name.ends_with("_input"));
                inputs
                    .map(move |name| format!("{folder}/{name}"))
                    .collect::<Vec<_>>()
            });
            inputs.filter_map(|input| self.number(&input)).collect()
        };
        let temperatures = values("temp");
        let speed = |name: &str| {
            let text = self.read(&format!("{card}/{name}"))?;
            let speed: f64 = text.split_once(" GT/s")?.0.parse().ok()?;
            (0.0..1000.0).contains(&speed).then_some((speed * 1000.0) as u32)
        };
        let width = |name: &str| {
            let width = self.number(&format!("{card}/{name}"))?;
            u32::try_from(width).ok().filter(|width| *width > 0)
        };
        Readings {
            temperature_celsius: temperatures.iter().max().map(|&value| value as f64 / 1000.0),
            temperature_sensors: (!temperatures.is_empty()).then_some(temperatures.len() as u32),
            power_watts: values("power").first().map(|&value| value as f64 / 1e6),
            // The driver's own attribute is in milliwatts
            // (Documentation/ABI/testing/sysfs-driver-habanalabs).
            power_max_watts: self
                .number(&format!("{card}/max_power"))
                .map(|milliwatts| milliwatts as f64 / 1000.0),
            pci_link_speed_mtps: speed("current_link_speed"),
            pci_link_width: width("current_link_width"),
            pci_link_max_speed_mtps: speed("max_link_speed"),
            pci_link_max_width: width("max_link_width"),
            driver_version: self
                .read("/sys/module/habanalabs/version")
                .or_else(|| self.read("/proc/sys/kernel/osrelease")),
        }
    }

    /// Returns the processes that have the compute node of a number open, by pid. Root sees those
    /// of every user.
    pub(super) fn users(&self, index: u32) -> Vec<User> {
        let nodes = [format!("/dev/accel/accel{index}"), format!("/dev/hl{index}")];
        let pids = self
            .names("/proc")
            .into_iter()
            .filter_map(|name| name.parse().ok());
        let mut users: Vec<User> = pids
            .filter(|pid: &u32| {
                let descriptors = format!("/proc/{pid}/fd");
                self.names(&descriptors).into_iter().any(|descriptor| {
                    let target = fs::read_link(self.path(&format!("{descriptors}/{descriptor}")));
                    target.is_ok_and(|target| nodes.iter().any(|node| target == Path::new(node)))
                })
            })
            .take(MOST_USERS)
            .map(|pid| User {
                pid,
                // A process that ended has no name.
                name: self.read(&format!("/proc/{pid}/comm")).unwrap_or_default(),
            })
            .collect();
        users.sort_by_key(|user| user.pid);
        users
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn readings_come_in_their_units() {
        let root = tempfile::tempdir().unwrap();
        let bus: PciAddress = "0000:b3:00.0".parse().unwrap();
        let machine = Machine::new(root.path());
        assert_eq!(machine.readings(bus), Readings::default());
        for (file, text) in [
            ("hwmon/hwmon3/temp1_input", "36000\n"),
            ("hwmon/hwmon3/temp2_input", "41500\n"),
            ("hwmon/hwmon3/power1_input", "226000000\n"),
            ("max_power", "600000\n"),
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "8\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            put(root.path(), &format!("sys/bus/pci/devices/{bus}/{file}"), text);
        }
        put(root.path(), "sys/module/habanalabs/version", "1.22.1-97ec1a4\n");
        assert_eq!(
            machine.readings(bus),
            Readings {
                temperature_celsius: Some(41.5),
                temperature_sensors: Some(2),
                power_watts: Some(226.0),
                power_max_watts: Some(600.0),
                pci_link_speed_mtps: Some(16_000),
                pci_link_width: Some(8),
                pci_link_max_speed_mtps: Some(32_000),
                pci_link_max_width: Some(16),
                driver_version: Some("1.22.1-97ec1a4".to_owned()),
            }
        );
        put(
            root.path(),
            &format!("sys/bus/pci/devices/{bus}/current_link_speed"),
            "Unknown\n",
        );
        assert_eq!(machine.readings(bus).pci_link_speed_mtps, None);
    }

    #[test]
    fn users_are_processes_with_the_node_open() {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, target) in [
            (812, "trainer", "/dev/accel/accel1"),
            (97, "other", "/dev/accel/accel10"),
            (5, "watcher", "/dev/accel/accel_controlD1"),
        ] {
            put(root.path(), &format!("proc/{pid}/comm"), &format!("{name}\n"));
            fs::create_dir_all(root.path().join(format!("proc/{pid}/fd"))).unwrap();
            symlink(target, root.path().join(format!("proc/{pid}/fd/4"))).unwrap();
        }
        let users = Machine::new(root.path()).users(1);
        assert_eq!(
            users,
            [User {
                pid: 812,
                name: "trainer".to_owned()
            }]
        );
    }
}
