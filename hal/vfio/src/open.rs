//! Opens the function of a spec, and explains each failure with a next step.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gaudi_seam::{BackendSpec, DeviceIo, DeviceSpec, Errno, Error, ErrorKind, PciAddress, Result};
use vfio_ioctls::VfioError;

use crate::VfioDevice;

pub(crate) const OPEN: &str = "open a function of vfio-pci";

/// Opens the function that a spec such as `vfio:0000:65:00.0` names.
///
/// # Errors
/// - `Unsupported` for other backends, which are not PCI functions, and for layers, which wrap the
///   kernel's driver.
/// - Those of [`VfioDevice::open`].
pub fn open(spec: &DeviceSpec) -> Result<Arc<dyn DeviceIo>> {
    let BackendSpec::Vfio(address) = spec.backend else {
        return Err(
            Error::unsupported(OPEN, format!("{spec} does not name a function of vfio-pci"))
                .saw(spec, "vfio:0000:65:00.0, with the function's own address"),
        );
    };
    if !spec.layers.is_empty() {
        return Err(Error::unsupported(
            OPEN,
            "layers wrap a driver's answers, and a vfio function has no driver here",
        )
        .saw(spec, format!("vfio:{address}")));
    }
    Ok(Arc::new(VfioDevice::open(address)?))
}

/// Returns the commands that bind a function to vfio-pci and unbind its current driver, one line
/// each. They need root.
pub fn bind_commands(address: PciAddress) -> [String; 4] {
    let folder = format!("/sys/bus/pci/devices/{address}");
    [
        "modprobe vfio-pci".to_owned(),
        format!("echo vfio-pci > {folder}/driver_override"),
        format!("[ ! -e {folder}/driver ] || echo {address} > {folder}/driver/unbind"),
        format!("echo {address} > /sys/bus/pci/drivers_probe"),
    ]
}

/// A function in sysfs, before it is opened.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its folder in sysfs.
    pub(crate) folder: PathBuf,
    /// Its IOMMU group, the unit that a process opens.
    group: String,
}

/// Checks the conditions for which the kernel's errno alone would not name the cause. `sysfs` is
/// the folder of the PCI functions, `dev` the folder of the groups' files.
pub(crate) fn look(sysfs: &Path, dev: &Path, address: PciAddress) -> Result<Found> {
    let folder = sysfs.join(address.to_string());
    if !folder.exists() {
        return Err(Error::from_errno(OPEN, Errno::ENOENT)
            .because(format!("there is no PCI function {address}"))
            .helped_by("`lspci -Dnn -d 1da3:` lists the Gaudis of this machine"));
    }
    let driver = name_of_link(&folder.join("driver"));
    if driver.as_deref().is_none_or(|name| !is_vfio(name)) {
        let (kind, errno, cause) = match driver {
            Some(name) => (
                ErrorKind::Busy,
                Errno::EBUSY,
                format!("the kernel's driver {name} is bound to {address}"),
            ),
            None => (
                ErrorKind::NotFound,
                Errno::ENODEV,
                format!("no driver is bound to {address}"),
            ),
        };
        return Err(Error::from_errno(OPEN, errno)
            .with_kind(kind)
            .because(cause)
            .helped_by(format!(
                "bind it to vfio-pci as root: {}",
                bind_commands(address).join("; ")
            )));
    }
    let Some(group) = name_of_link(&folder.join("iommu_group")) else {
        return Err(no_iommu(format!("{address} has no IOMMU group")));
    };
    // The kernel's mode without an IOMMU (`enable_unsafe_noiommu_mode`) names its groups so.
    if !dev.join(&group).exists() && dev.join(format!("noiommu-{group}")).exists() {
        return Err(no_iommu(format!(
            "the group of {address} has no IOMMU, so its devices can access all memory of the machine"
        )));
    }
    Ok(Found { folder, group })
}

fn no_iommu(cause: String) -> Error {
    Error::unsupported(OPEN, cause)
        .with_errno(Errno::ENODEV)
        .helped_by(
            "enable the IOMMU in the firmware's setup (VT-d, AMD-Vi) and on the kernel's command line (intel_iommu=on)",
        )
}

fn name_of_link(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

// Whether the driver is vfio-pci or a variant of it (mlx5_vfio_pci, nvgrace-gpu-vfio-pci).
fn is_vfio(driver: &str) -> bool {
    driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

/// Converts an error of `vfio-ioctls`, with its errno and a next step.
pub(crate) fn explain(error: VfioError, found: &Found, address: PciAddress) -> Error {
    let group = format!("/dev/vfio/{}", found.group);
    let of = |errno: Option<Errno>| match errno {
        Some(errno) => Error::from_errno(OPEN, errno),
        None => Error::new(ErrorKind::Io, OPEN),
    };
    match error {
        VfioError::OpenContainer(error) => match of(errno_of(&error)) {
            error if error.kind() == ErrorKind::NotFound => error
                .because("/dev/vfio/vfio does not exist")
                .helped_by("modprobe vfio-pci"),
            error => error
                .because("/dev/vfio/vfio does not open")
                .helped_by("its mode is 0666 where udev is as it comes"),
        },
        VfioError::VfioExtension | VfioError::VfioApiVersion | VfioError::VfioType1V2 => {
            Error::unsupported(OPEN, "the kernel's VFIO has no IOMMU of type 1, version 2")
                .helped_by("modprobe vfio_iommu_type1")
        }
        VfioError::OpenGroup(error, _) => match of(errno_of(&error)) {
            error if error.kind() == ErrorKind::Busy => error
                .because(format!("another process has {group}, the group of {address}"))
                .helped_by(format!("`fuser -v {group}` names it")),
            error if error.kind() == ErrorKind::PermissionDenied => error
                .because(format!("this user may not open {group}, the group of {address}"))
                .helped_by(format!("as a superuser: chown USER {group}")),
            error => error.because(format!("{group}, the group of {address}, does not open")),
        },
        // The crate checks the group's status before VFIO_GROUP_SET_CONTAINER, which would return
        // EPERM (iommu.c `iommu_group_claim_dma_owner`).
        VfioError::GroupViable => of(Some(Errno::EPERM))
            .because(format!(
                "drivers of the kernel have devices of the same IOMMU group: {}",
                others(&found.folder, address)
            ))
            .helped_by(
                "give them to vfio-pci too, or unbind them: what shares a group can reach one another's memory",
            ),
        VfioError::ContainerSetIOMMU(error) => match of(Some(Errno::from_raw(error.errno()))) {
            error if error.errno() == Some(Errno::EPERM) => error
                .because("the machine does not remap interrupts, so a device could raise any")
                .helped_by(
                    "switch interrupt remapping on in the firmware's setup, or, where the device is trusted, \
                     modprobe vfio_iommu_type1 allow_unsafe_interrupts=1",
                ),
            error => error.because("the IOMMU takes no new address space"),
        },
        VfioError::GroupGetDeviceFD(error) => of(Some(Errno::from_raw(error.errno())))
            .because(format!("vfio-pci does not give {address} away"))
            .helped_by("see the kernel's log (dmesg) for the cause"),
        VfioError::VfioDeviceGetInfo(error) | VfioError::VfioDeviceGetRegionInfo(error) => {
            of(Some(Errno::from_raw(error.errno()))).because(format!("vfio-pci does not describe {address}"))
        }
        // These come without an errno.
        other => of(None)
            .because(other.to_string())
            .helped_by("see the kernel's log (dmesg) for the cause"),
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

// Returns the devices of the same group that are bound to a driver of the kernel. Bridges and stubs
// are harmless.
fn others(folder: &Path, address: PciAddress) -> String {
    let harmless = |driver: &str| is_vfio(driver) || ["pci-stub", "pcieport"].contains(&driver);
    let mut found: Vec<_> = fs::read_dir(folder.join("iommu_group/devices"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().to_string_lossy().into_owned();
            let driver = name_of_link(&folder.join("iommu_group/devices").join(&name).join("driver"))?;
            let counts = name != address.to_string() && !harmless(&driver);
            counts.then(|| format!("{name} ({driver})"))
        })
        .collect();
    found.sort();
    if found.is_empty() {
        return "sysfs does not list them".to_owned();
    }
    found.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::os::unix::fs::symlink;

    const ADDRESS: &str = "0000:65:00.0";

    /// A machine's sysfs and /dev/vfio.
    struct Machine {
        root: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a folder");
            for folder in ["devices", "dev", "groups/7/devices"] {
                fs::create_dir_all(root.path().join(folder)).expect("a folder");
            }
            Self { root }
        }

        fn link(&self, target: &str, link: &str) {
            symlink(self.root.path().join(target), self.root.path().join(link)).expect("a link");
        }

        /// A function with its driver, in group 7 or in none.
        fn function(&self, address: &str, driver: Option<&str>, grouped: bool) {
            let folder = format!("devices/{address}");
            fs::create_dir_all(self.root.path().join(&folder)).expect("a folder");
            if let Some(driver) = driver {
                self.link(&format!("drivers/{driver}"), &format!("{folder}/driver"));
            }
            if grouped {
                self.link("groups/7", &format!("{folder}/iommu_group"));
                self.link(&folder, &format!("groups/7/devices/{address}"));
            }
        }

        fn look(&self) -> Result<Found> {
            let address = ADDRESS.parse().expect("an address");
            look(
                &self.root.path().join("devices"),
                &self.root.path().join("dev"),
                address,
            )
        }

        fn refused(&self) -> Error {
            self.look().expect_err("it cannot be opened")
        }
    }

    fn failed(error: VfioError, found: &Found) -> Error {
        explain(error, found, ADDRESS.parse().expect("an address"))
    }

    #[test]
    fn function_must_be_bound_with_iommu() {
        let machine = Machine::new();
        let error = machine.refused();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::NotFound, Some(Errno::ENOENT))
        );
        machine.function(ADDRESS, None, false);
        let error = machine.refused();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::NotFound, Some(Errno::ENODEV))
        );
        let help = error.help().expect("a next step");
        assert!(
            help.contains("echo vfio-pci > /sys/bus/pci/devices/0000:65:00.0/driver_override"),
            "the commands: {help}"
        );
        let machine = Machine::new();
        machine.function(ADDRESS, Some("habanalabs"), true);
        let error = machine.refused();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Busy, Some(Errno::EBUSY))
        );
        assert!(
            error.to_string().contains("habanalabs"),
            "names the driver: {error}"
        );
        let machine = Machine::new();
        machine.function(ADDRESS, Some("vfio-pci"), false);
        let error = machine.refused();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Unsupported, Some(Errno::ENODEV))
        );
        assert!(error.to_string().contains("no IOMMU group"), "{error}");
        let machine = Machine::new();
        machine.function(ADDRESS, Some("vfio-pci"), true);
        fs::write(machine.root.path().join("dev/noiommu-7"), "").expect("a file");
        assert_eq!(
            machine.refused().kind(),
            ErrorKind::Unsupported,
            "nothing would bound it"
        );
        fs::write(machine.root.path().join("dev/7"), "").expect("a file");
        assert_eq!(machine.look().expect("all is there").group, "7");
    }

    #[test]
    fn each_refusal_has_errno_and_next_step() {
        let machine = Machine::new();
        machine.function(ADDRESS, Some("vfio-pci"), true);
        machine.function("0000:65:00.1", Some("snd_hda_intel"), true);
        machine.function("0000:64:00.0", Some("pcieport"), true);
        let found = machine.look().expect("it is there");
        let error = failed(VfioError::GroupViable, &found);
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::PermissionDenied, Some(Errno::EPERM))
        );
        assert!(
            error
                .to_string()
                .contains("group: 0000:65:00.1 (snd_hda_intel) ["),
            "only the bound functions: {error}"
        );
        let os = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        let group = |errno| failed(VfioError::OpenGroup(os(errno), "7".to_owned()), &found);
        let busy = group(Errno::EBUSY);
        assert_eq!((busy.kind(), busy.errno()), (ErrorKind::Busy, Some(Errno::EBUSY)));
        assert!(busy.help().is_some_and(|help| help.contains("fuser")), "{busy:?}");
        let denied = group(Errno::EACCES);
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
        assert!(
            denied.help().is_some_and(|help| help.contains("chown")),
            "{denied:?}"
        );
        let none = failed(VfioError::OpenContainer(os(Errno::ENOENT)), &found);
        assert_eq!(
            (none.kind(), none.help()),
            (ErrorKind::NotFound, Some("modprobe vfio-pci"))
        );
        assert_eq!(
            failed(VfioError::VfioExtension, &found).kind(),
            ErrorKind::Unsupported
        );
        let lost = failed(VfioError::GroupSetContainer, &found);
        assert_eq!(
            (lost.kind(), lost.errno()),
            (ErrorKind::Io, None),
            "it came without"
        );
        assert!(lost.help().is_some());
    }

    #[test]
    fn only_bare_vfio_pci_functions_open() {
        for (text, word) in [
            ("mock:gaudi2", "mock:gaudi2"),
            ("kernel:0", "kernel:0"),
            ("vfio:0000:65:00.0+trace=f.jsonl", "layers"),
        ] {
            let spec: DeviceSpec = text.parse().expect("a spec");
            let error = open(&spec).expect_err("it does not open");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}: {error}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
        // No machine has a function with this address.
        let spec: DeviceSpec = "vfio:fffe:fe:1e.6".parse().expect("a spec");
        assert_eq!(
            open(&spec).expect_err("nothing there").kind(),
            ErrorKind::NotFound
        );
    }
}
