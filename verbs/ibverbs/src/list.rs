//! [`list`]: NICs of this machine.

#![expect(
    unsafe_code,
    reason = "the list of devices is an array of the library's own structs"
)]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_verbs::Guid;
use gaudi_verbs_sys::Library;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::types::ibv_device;

use crate::errors::no_library;
use crate::objects::Object;

/// `enum ibv_node_type`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeType(pub i32);

/// `enum ibv_transport_type`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transport(pub i32);

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            IBV_NODE_CA => "channel adapter",
            IBV_NODE_SWITCH => "switch",
            IBV_NODE_ROUTER => "router",
            IBV_NODE_RNIC => "iWARP NIC",
            IBV_NODE_USNIC => "usNIC",
            IBV_NODE_USNIC_UDP => "usNIC UDP",
            IBV_NODE_UNSPECIFIED => "unspecified",
            other => return write!(f, "Unknown({other})"),
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            IBV_TRANSPORT_IB => "InfiniBand",
            IBV_TRANSPORT_IWARP => "iWARP",
            IBV_TRANSPORT_USNIC => "usNIC",
            IBV_TRANSPORT_USNIC_UDP => "usNIC UDP",
            IBV_TRANSPORT_UNSPECIFIED => "unspecified",
            other => return write!(f, "Unknown({other})"),
        })
    }
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicInfo {
    /// `ibv_get_device_name`.
    pub name: String,
    /// Type of the node.
    pub node_type: NodeType,
    /// Transport.
    pub transport: Transport,
    /// GUID of the node.
    pub guid: Guid,
    /// Name of its node in `/dev/infiniband`: `uverbs0`.
    pub uverbs: String,
    /// Its directory in sysfs: `/sys/class/infiniband/NAME`.
    pub sysfs: PathBuf,
    /// Its PCI function, or that of a software NIC's network interface.
    pub pci: Option<String>,
    /// Network interface of a software NIC.
    pub netdev: Option<String>,
    /// NUMA node of the function.
    pub numa_node: Option<u32>,
}

impl NicInfo {
    /// Returns whether it is Linux's soft-RoCE. No other driver has an attribute `parent`.
    pub fn is_rxe(&self) -> bool {
        self.netdev.is_some()
    }
}

/// Returns the NICs that libibverbs finds, in its order.
///
/// # Errors
/// `NotFound` if there is no libibverbs.
pub fn list() -> Result<Vec<NicInfo>> {
    const OPERATION: &str = "ibv_get_device_list";
    let library = Library::open().map_err(|error| no_library(OPERATION, &error))?;
    Ok(Devices::get(library, OPERATION)?.iter().map(info).collect())
}

/// The array of devices, freed when dropped.
pub(crate) struct Devices {
    library: &'static Library,
    list: Object<*mut ibv_device>,
    len: usize,
}

impl Devices {
    pub(crate) fn get(library: &'static Library, operation: &'static str) -> Result<Self> {
        let mut count = 0;
        // SAFETY: the count is a live int.
        let list = unsafe { (library.symbols().ibv_get_device_list)(&raw mut count) };
        let list = Object::new(operation, list).map_err(|error| match error.errno() {
            // No ib_uverbs in the kernel: nothing to list.
            Some(Errno::ENOSYS | Errno::EOPNOTSUPP) => error
                .with_kind(ErrorKind::NotFound)
                .because("the kernel has no RDMA")
                .helped_by("modprobe ib_uverbs, and the NIC's driver (a software NIC: rdma_rxe)"),
            _ => error,
        })?;
        // The library never reports a negative number.
        let len = usize::try_from(count).unwrap_or(0);
        Ok(Self { library, list, len })
    }

    /// Iterates over the devices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ibv_device> {
        // SAFETY: the library wrote `len` devices, which live as long as the array.
        let all = unsafe { std::slice::from_raw_parts(self.list.as_ptr().cast::<&ibv_device>(), self.len) };
        all.iter().copied()
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the array is the library's, and no borrow of it exists. Opened devices stay.
        unsafe { (self.library.symbols().ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// Returns the text of an array, up to a NUL or its end.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

pub(crate) fn info(device: &ibv_device) -> NicInfo {
    let sysfs = PathBuf::from(text(&device.ibdev_path));
    let read = |path: &Path| Some(std::fs::read_to_string(path).ok()?.trim().to_owned());
    let netdev = read(&sysfs.join("parent")).filter(|name| !name.is_empty());
    let function = match &netdev {
        Some(name) => Path::new("/sys/class/net").join(name).join("device"),
        None => sysfs.join("device"),
    };
    let guid =
        read(&sysfs.join("node_guid")).and_then(|text| u64::from_str_radix(&text.replace(':', ""), 16).ok());
    NicInfo {
        name: text(&device.name),
        node_type: NodeType(device.node_type),
        transport: Transport(device.transport_type),
        // A NIC without a readable GUID is listed with 0.
        guid: Guid(guid.unwrap_or(0)),
        uverbs: text(&device.dev_name),
        pci: pci_of(&function),
        numa_node: read(&function.join("numa_node")).and_then(|text| text.parse().ok()),
        netdev,
        sysfs,
    }
}

/// Returns the PCI address of a device's directory. That of a virtio NIC is one level up.
fn pci_of(folder: &Path) -> Option<String> {
    let real = folder.canonicalize().ok()?;
    let is_address = |name: &str| {
        let parts: Vec<_> = name.split([':', '.']).collect();
        parts.len() == 4 && parts.iter().all(|part| u32::from_str_radix(part, 16).is_ok())
    };
    let mut names = real
        .ancestors()
        .take(2)
        .filter_map(|path| path.file_name()?.to_str());
    names.find(|name| is_address(name)).map(str::to_owned)
}

/// Returns the error for an unknown name, with the existing ones.
pub(crate) fn not_found(operation: &'static str, name: &str, devices: &Devices) -> Error {
    let names: Vec<_> = devices.iter().map(|device| text(&device.name)).collect();
    let seen = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    Error::new(ErrorKind::NotFound, operation)
        .with_errno(Errno::ENODEV)
        .because("libibverbs sees no NIC of this name")
        .saw(seen, name)
        .helped_by("`rdma link` shows the kernel's NICs; a provider of rdma-core must know the driver (ibverbs-providers)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_nul_or_end() {
        let chars = |bytes: &[u8]| bytes.iter().map(|byte| *byte as c_char).collect::<Vec<_>>();
        assert_eq!(text(&chars(b"rxe0\0\0garbage")), "rxe0");
        assert_eq!(text(&chars(b"full")), "full", "a full array has no NUL");
    }

    #[test]
    fn unknown_types_print() {
        assert_eq!(NodeType(1).to_string(), "channel adapter");
        assert_eq!(NodeType(99).to_string(), "Unknown(99)");
        assert_eq!(Transport(-1).to_string(), "Unknown(-1)");
    }
}
