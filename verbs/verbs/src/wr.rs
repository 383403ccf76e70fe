//! Work requests, their keys and addresses, and the addresses that two ends exchange.

use std::fmt;

use gaudi_seam::{DeviceVa, Errno, Error, HostVa, Result};

use crate::access::Access;
use crate::device::{Gid, Mtu};
use crate::handle::{AhHandle, MrHandle, MwHandle};
use crate::invalid;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

numbers! {
    /// `ibv_mr.lkey`: names a region to its own NIC.
    Lkey(u32);
    /// `ibv_mr.rkey`: names a region to the peer's NIC.
    Rkey(u32);
    /// A queue pair's number, 24 bits.
    Qpn(u32);
    /// A packet sequence number, 24 bits.
    Psn(u32);
    /// An address in a region, as keys count it (`iova`). It is neither a host nor a device
    /// address, although most regions count from one of them.
    MrAddr(u64);
}

impl MrAddr {
    /// Returns the address `bytes` later, or `None` on overflow.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl From<DeviceVa> for MrAddr {
    fn from(address: DeviceVa) -> Self {
        Self(address.get())
    }
}

impl From<HostVa> for MrAddr {
    fn from(address: HostVa) -> Self {
        Self(address.get())
    }
}

/// `struct ibv_sge`: a part of a local region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: MrAddr,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// Target of a one-sided operation: an address in the peer's region and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address of the first byte.
    pub addr: MrAddr,
    /// Key of the peer's region.
    pub rkey: Rkey,
}

/// A region that a peer offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of the first byte.
    pub addr: MrAddr,
    /// Length in bytes.
    pub len: u64,
    /// Key of the region.
    pub rkey: Rkey,
}

impl RemoteRegion {
    /// Returns the address of the `len` bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if they leave the region: the peer's NIC would break the connection.
    pub fn at(&self, offset: u64, len: u64) -> Result<RemoteAddr> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        match self.addr.checked_add(offset).filter(|_| inside) {
            Some(addr) => Ok(RemoteAddr {
                addr,
                rkey: self.rkey,
            }),
            None => Err(Error::from_errno("remote region", Errno::EINVAL)
                .because("the range leaves the peer's region")
                .saw(
                    format!("{len} bytes at offset {offset:#x}"),
                    format!("inside {} bytes", self.len),
                )),
        }
    }
}

/// Address of a queue pair, for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAddress {
    /// Its number.
    pub qpn: Qpn,
    /// First packet sequence number of its send queue.
    pub psn: Psn,
    /// GID of its port.
    pub gid: Gid,
    /// MTU of its port. A connection uses the smaller one.
    pub mtu: Mtu,
    /// Reads and atomics that its NIC answers at a time on a connection (`max_qp_rd_atom`). The
    /// peer must not request more. 0 is unknown.
    pub rd_atom: u8,
    /// Local identifier of its port on InfiniBand; 0 on Ethernet.
    pub lid: u16,
}

/// An operation of a send queue (`enum ibv_wr_opcode`) with its operands. Immediate data is in host
/// byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// `IBV_WR_RDMA_WRITE`: writes local bytes to the peer's region.
    Write(RemoteAddr),
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: also completes a receive of the peer with immediate data.
    WriteImm(RemoteAddr, u32),
    /// `IBV_WR_RDMA_READ`: reads from the peer's region into local memory.
    Read(RemoteAddr),
    /// `IBV_WR_SEND`: sends local bytes to the peer's next receive.
    Send,
    /// `IBV_WR_SEND_WITH_IMM`: also sends immediate data.
    SendImm(u32),
    /// `IBV_WR_SEND_WITH_INV`: also invalidates a key of the peer.
    SendInv(Rkey),
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds to 8 aligned bytes of the peer and returns the old
    /// value.
    FetchAdd {
        /// The 8 bytes, aligned.
        to: RemoteAddr,
        /// Summand. The sum wraps.
        add: u64,
    },
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: replaces 8 aligned bytes of the peer if they equal `compare`,
    /// and returns the old value.
    CompareSwap {
        /// The 8 bytes, aligned.
        to: RemoteAddr,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// `IBV_WR_BIND_MW`: binds a window to a part of a region.
    BindMw(WindowBind),
    /// `IBV_WR_LOCAL_INV`: invalidates the key of a bound window.
    LocalInv(Rkey),
}

/// A bind of a window to a part of a region (`struct ibv_mw_bind_info`, with the window's keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBind {
    /// The window.
    pub mw: MwHandle,
    /// Its current key.
    pub old: Rkey,
    /// Its new key, with the same upper 24 bits.
    pub rkey: Rkey,
    /// The region, which needs the right `MW_BIND`.
    pub mr: MrHandle,
    /// The region's local key.
    pub lkey: Lkey,
    /// Address of the first byte.
    pub addr: MrAddr,
    /// Length in bytes.
    pub length: u64,
    /// Rights of the window.
    pub access: Access,
}

/// Payload of a send.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Parts of registered memory, in order. The NIC accesses them until the completion.
    Sges(&'a [Sge]),
    /// `IBV_SEND_INLINE`: bytes of the caller, which the post copies.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Returns the total length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdDestination {
    /// Address handle of the port.
    pub ah: AhHandle,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Key that the peer's queue pair requires.
    pub qkey: u32,
}

/// `struct ibv_send_wr`, borrowed for the call.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Payload.
    pub payload: Payload<'a>,
    /// Destination of a datagram; `None` on a connection.
    pub ud: Option<UdDestination>,
    /// `IBV_SEND_SIGNALED`: success also generates a completion.
    pub signaled: bool,
    /// `IBV_SEND_SOLICITED`: the peer's completion signals a waiter for solicited ones.
    pub solicited: bool,
    /// `IBV_SEND_FENCE`: starts after earlier reads and atomics have completed.
    pub fence: bool,
}

/// `struct ibv_recv_wr`, borrowed for the call.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Local memory, in order.
    pub sges: &'a [Sge],
}

/// Checks the number of elements of a request. Some providers of rdma-core (mlx4, mlx5: qp.c)
/// return `ENOMEM` for too many elements, as for a full queue, and a caller would wait for room
/// forever.
#[inline]
pub(crate) fn check_elements(operation: &'static str, count: usize, limit: u32, what: &str) -> Result<()> {
    if count <= limit as usize {
        return Ok(());
    }
    Err(
        invalid(operation, "more elements than a request of the queue can have")
            .saw(count, format!("at most {limit} ({what})")),
    )
}
