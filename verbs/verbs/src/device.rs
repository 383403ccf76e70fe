//! What a NIC says of itself.

use std::fmt;

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

    /// Bytes; `None` for a value that this list does not know.
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

/// `enum ibv_port_state`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortState(pub u8);

impl PortState {
    /// `IBV_PORT_DOWN`.
    pub const DOWN: Self = Self(1);
    /// `IBV_PORT_ACTIVE`.
    pub const ACTIVE: Self = Self(4);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "NOP",
            1 => "DOWN",
            2 => "INIT",
            3 => "ARMED",
            4 => "ACTIVE",
            5 => "ACTIVE_DEFER",
            other => return write!(f, "Unknown({other:#x})"),
        };
        f.write_str(name)
    }
}

/// Whether a NIC can register a dma-buf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DmaBufSupport {
    /// It can.
    Yes,
    /// It cannot, and why: the provider, the kernel's gate, the device.
    No(String),
}

/// `enum ibv_atomic_cap`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicCap(pub u32);

impl AtomicCap {
    /// `IBV_ATOMIC_NONE`: no atomics.
    pub const NONE: Self = Self(0);
    /// `IBV_ATOMIC_HCA`: atomic against other atomics of this NIC, not against the processor's.
    pub const HCA: Self = Self(1);
    /// `IBV_ATOMIC_GLOB`: atomic against everybody.
    pub const GLOB: Self = Self(2);
}

impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            1 => f.write_str("within the NIC"),
            2 => f.write_str("global"),
            other => write!(f, "Unknown({other:#x})"),
        }
    }
}

/// What protocol an address of a port speaks (`enum ibv_gid_type_sysfs` and the `gid_attrs/types` files of sysfs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand, or RoCE v1 where the link layer is Ethernet.
    IbRoceV1,
    /// RoCE v2: over UDP and IP.
    RoceV2,
    /// The provider does not say.
    Unknown,
}

impl GidKind {
    /// As sysfs spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::IbRoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "unknown",
        }
    }
}

/// One row of a port's table of addresses (`struct ibv_gid_entry`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its protocol.
    pub kind: GidKind,
    /// The network interface below, where there is one.
    pub netdev: Option<String>,
}

/// `enum ibv_port_attr.link_layer`, open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkLayer(pub u8);

impl LinkLayer {
    /// `IBV_LINK_LAYER_UNSPECIFIED`.
    pub const UNSPECIFIED: Self = Self(0);
    /// `IBV_LINK_LAYER_INFINIBAND`.
    pub const INFINIBAND: Self = Self(1);
    /// `IBV_LINK_LAYER_ETHERNET`.
    pub const ETHERNET: Self = Self(2);
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("unspecified"),
            1 => f.write_str("InfiniBand"),
            2 => f.write_str("Ethernet"),
            other => write!(f, "Unknown({other:#x})"),
        }
    }
}

/// `ibv_query_device_ex`, as far as it is asked for here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The device's name, as `ibv_get_device_name` gives it.
    pub name: String,
    /// Who implements it, for tables; a software NIC says so here.
    pub provider: String,
    /// Of the node.
    pub guid: Guid,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements a work request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions a queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes a region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads and atomics that a queue pair answers at a time (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u8,
    /// Reads and atomics that a queue pair asks for at a time (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: u8,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives a shared queue.
    pub max_srq_wr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// What atomics are atomic against.
    pub atomic_cap: AtomicCap,
    /// Page sizes of regions, a bit each (`page_size_cap`).
    pub page_size_cap: u64,
    /// The firmware's version; empty where the NIC has none.
    pub fw_ver: String,
    /// Registration of dma-bufs.
    pub dmabuf: DmaBufSupport,
}

/// `ibv_query_port`, as far as it is asked for here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttr {
    /// Whether there is a peer to talk to.
    pub state: PortState,
    /// Bytes a packet.
    pub active_mtu: Mtu,
    /// Bytes a message.
    pub max_msg_sz: u32,
    /// Its number, from 1.
    pub port_num: u8,
    /// What runs below.
    pub link_layer: LinkLayer,
    /// The address that connections use.
    pub gid: Gid,
    /// Its place in the table of addresses.
    pub gid_index: u32,
    /// The local identifier; 0 on Ethernet.
    pub lid: u16,
}
