//! Machines laid out from the manifests in `tests/fixtures`, with a recorder in place of the system
//! calls.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gaudi_kernel::{Driver, Syscalls};
use gaudi_seam::{Era, Error, KernelSelector, NodeKind};
use tempfile::TempDir;

use crate::recorder::{Asked, Behind, Recorder};

pub(crate) struct Machine {
    pub(crate) root: TempDir,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) driver: Driver<dyn Syscalls>,
}

impl Machine {
    /// An empty machine.
    pub(crate) fn bare(behind: Behind) -> Self {
        let root = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::of(behind));
        let driver = Driver::at(root.path(), Arc::clone(&recorder) as Arc<dyn Syscalls>);
        Self {
            root,
            recorder,
            driver,
        }
    }

    /// The machine of a manifest, and what stands behind its nodes.
    pub(crate) fn of(manifest: &str, behind: Behind) -> Self {
        let machine = Self::bare(behind);
        machine.recorder.be_strict();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let text = fs::read_to_string(fixtures.join(manifest)).expect(manifest);
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').expect(line);
            match kind {
                "d" => drop(machine.dir(rest)),
                "f" => {
                    let (path, text) = rest.split_once(' ').unwrap_or((rest, ""));
                    machine.write(path, text);
                }
                "l" => {
                    let (path, target) = rest.split_once(" -> ").expect(line);
                    machine.dir(path.rsplit_once('/').expect(line).0);
                    symlink(target, machine.root.path().join(path)).expect(line);
                }
                _ => panic!("{manifest}: {line:?} is no line of a manifest"),
            }
        }
        machine
    }

    /// Devices of the given numbers and PCI addresses, as a 7.3 kernel shows them.
    pub(crate) fn with(devices: &[(u32, &str)]) -> Self {
        let machine = Self::bare(Behind::Driver(Era::AccelDrm));
        machine.dir("sys/module/habanalabs");
        for (index, bus) in devices {
            machine.accel(*index, bus, "habanalabs");
            machine.write(&format!("dev/accel/accel_controlD{index}"), "");
            machine.dir(&format!("sys/class/accel/accel_controlD{index}"));
        }
        machine
    }

    /// A compute node of a driver.
    pub(crate) fn accel(&self, index: u32, bus: &str, driver: &str) {
        self.write(&format!("dev/accel/accel{index}"), "");
        let device = self.dir(&format!("sys/devices/pci0000:b0/{bus}"));
        let driver = self.dir(&format!("sys/bus/pci/drivers/{driver}"));
        symlink(driver, device.join("driver")).unwrap();
        let class = self.dir(&format!("sys/class/accel/accel{index}"));
        symlink(device, class.join("device")).unwrap();
    }

    pub(crate) fn dir(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.dir(path.rsplit_once('/').expect("a file lies in a folder").0);
        let end = if text.is_empty() { "" } else { "\n" };
        fs::write(self.root.path().join(path), format!("{text}{end}")).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.root.path().join(path)).unwrap();
    }

    /// The file names that were opened since the last call.
    pub(crate) fn opened(&self) -> Vec<String> {
        let name = |asked| match asked {
            Asked::Open(path) => Some(path.file_name().unwrap().to_str().unwrap().to_owned()),
            _ => None,
        };
        self.recorder.take().into_iter().filter_map(name).collect()
    }

    pub(crate) fn fails(&self, selector: KernelSelector, kind: NodeKind) -> Error {
        self.driver.open(selector, kind).expect_err("the open fails")
    }
}
