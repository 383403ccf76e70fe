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
    /// Reads that a queue pair answers at a time (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u8,
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
    /// Its address (index 0).
    pub gid: Gid,
}
