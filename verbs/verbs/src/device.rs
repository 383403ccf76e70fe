//! Attributes of a NIC and its port.

use std::fmt;

use crate::open_enum::open_enum;

/// `ibv_device_attr.node_guid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| self.0 >> shift & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

/// `union ibv_gid`: 16 bytes in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// `enum ibv_mtu`, open: 1 to 5 are 256 to 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(pub u8);

impl Mtu {
    /// `IBV_MTU_1024`.
    pub const MTU_1024: Self = Self(3);
    /// `IBV_MTU_4096`.
    pub const MTU_4096: Self = Self(5);

    /// Returns the bytes, or `None` for an unknown value.
    pub fn bytes(self) -> Option<u32> {
        (1..=5).contains(&self.0).then(|| 128 << self.0)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => bytes.fmt(f),
            None => write!(f, "Unknown({:#x})", self.0),
        }
    }
}

open_enum! {
    /// `enum ibv_port_state`, open.
    #[derive(Debug)]
    PortState(u8) {
        0 NOP "`IBV_PORT_NOP`.",
        1 DOWN "`IBV_PORT_DOWN`.",
        2 INIT "`IBV_PORT_INIT`.",
        3 ARMED "`IBV_PORT_ARMED`.",
        4 ACTIVE "`IBV_PORT_ACTIVE`.",
        5 ACTIVE_DEFER "`IBV_PORT_ACTIVE_DEFER`.",
    }
}

/// Whether a NIC can register a dma-buf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DmaBufSupport {
    /// It can.
    Yes,
    /// It cannot, with the reason.
    No(String),
}

open_enum! {
    /// `enum ibv_atomic_cap`, open.
    #[derive(Debug)]
    AtomicCap(u32) {
        0 NONE "`IBV_ATOMIC_NONE`: no atomics." = "none",
        1 HCA "`IBV_ATOMIC_HCA`: atomic only with respect to other atomics of this NIC." = "within the NIC",
        2 GLOB "`IBV_ATOMIC_GLOB`: atomic with respect to all accesses." = "global",
    }
}

/// Protocol of a GID (`enum ibv_gid_type_sysfs`, and `gid_attrs/types` in sysfs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand, or RoCE v1 where the link layer is Ethernet.
    IbRoceV1,
    /// RoCE v2: over UDP and IP.
    RoceV2,
    /// The provider does not report it.
    Unknown,
}

impl GidKind {
    /// Returns the name that sysfs uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::IbRoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "unknown",
        }
    }
}

/// An entry of a port's GID table (`struct ibv_gid_entry`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its protocol.
    pub kind: GidKind,
    /// The network interface of the address, if any.
    pub netdev: Option<String>,
}

open_enum! {
    /// `enum ibv_port_attr.link_layer`, open.
    #[derive(Debug)]
    LinkLayer(u8) {
        0 UNSPECIFIED "`IBV_LINK_LAYER_UNSPECIFIED`." = "unspecified",
        1 INFINIBAND "`IBV_LINK_LAYER_INFINIBAND`." = "InfiniBand",
        2 ETHERNET "`IBV_LINK_LAYER_ETHERNET`." = "Ethernet",
    }
}

/// Attributes of a device (`ibv_query_device`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Name (`ibv_get_device_name`).
    pub name: String,
    /// Name of the provider, for tables. A software NIC is named as one.
    pub provider: String,
    /// GUID of the node.
    pub guid: Guid,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per queue.
    pub max_qp_wr: u32,
    /// Elements per work request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions per queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes per region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads and atomics that a queue pair answers at a time (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u8,
    /// Reads and atomics that a queue pair requests at a time (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: u8,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives per shared queue.
    pub max_srq_wr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Scope of atomics.
    pub atomic_cap: AtomicCap,
    /// Bit mask of page sizes of regions.
    pub page_size_cap: u64,
    /// Firmware version; empty if the NIC has none.
    pub fw_ver: String,
    /// Registration of dma-bufs.
    pub dmabuf: DmaBufSupport,
}

/// Attributes of a port (`ibv_query_port`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttr {
    /// State of the link.
    pub state: PortState,
    /// MTU.
    pub active_mtu: Mtu,
    /// Bytes per message.
    pub max_msg_sz: u32,
    /// Its number, from 1.
    pub port_num: u8,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// GID that connections use.
    pub gid: Gid,
    /// Index of that GID.
    pub gid_index: u32,
    /// The local identifier; 0 on Ethernet.
    pub lid: u16,
}
