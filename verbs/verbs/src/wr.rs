//! Work requests, the keys and addresses in them, and what two ends must tell each other.

use std::fmt;

use gaudi_seam::{DeviceVa, Errno, Error, HostVa, Result};

use crate::access::Access;
use crate::device::{Gid, Mtu};
use crate::handle::{AhHandle, MrHandle, MwHandle};
use crate::invalid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }
    };
}

number! {
    /// `ibv_mr.lkey`: names a region to its own NIC.
    Lkey(u32), "{:#x}"
}
number! {
    /// `ibv_mr.rkey`: names a region to the peer's NIC.
    Rkey(u32), "{:#x}"
}
number! {
    /// A queue pair's number, 24 bits.
    Qpn(u32), "{:#x}"
}
number! {
    /// A packet sequence number, 24 bits: where one end starts to count.
    Psn(u32), "{:#x}"
}
number! {
    /// An address as keys are checked against it (`iova` of a region). It is neither a host nor a device address, although a region
    /// mostly counts from the one or the other.
    MrAddr(u64), "{:#x}"
}

impl MrAddr {
    /// The address `bytes` further on; `None` where that leaves the 64-bit space.
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
    /// First byte.
    pub addr: MrAddr,
    /// Bytes.
    pub length: u32,
    /// Of the region.
    pub lkey: Lkey,
}

/// Where a one-sided operation goes: an address of the peer's region and the region's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// First byte.
    pub addr: MrAddr,
    /// Of the peer's region.
    pub rkey: Rkey,
}

/// A region that the peer offers: what it sends us so that we can reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion {
    /// First byte.
    pub addr: MrAddr,
    /// Bytes.
    pub len: u64,
    /// The key.
    pub rkey: Rkey,
}

impl RemoteRegion {
    /// The `len` bytes at `offset`. `InvalidInput` where they leave the region: the peer's NIC would refuse and break the connection.
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

/// What the other end must know of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAddress {
    /// Its number.
    pub qpn: Qpn,
    /// Where its send queue starts to count.
    pub psn: Psn,
    /// Of its port.
    pub gid: Gid,
    /// The largest packet of its port; a connection takes the smaller one.
    pub mtu: Mtu,
    /// Reads and atomics that its NIC answers at a time on one connection (`max_qp_rd_atom`): the other end must not ask for more. 0 where
    /// it was not told.
    pub rd_atom: u8,
    /// The local identifier of its port, by which an InfiniBand fabric finds it; 0 on Ethernet.
    pub lid: u16,
}

/// What a send queue does (`enum ibv_wr_opcode`), with what it needs for it. Immediate data is a plain number here; the wire's byte
/// order is the provider's affair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// `IBV_WR_RDMA_WRITE`: local bytes into the peer's region.
    Write(RemoteAddr),
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: and a completion with a number at the peer, which consumes one of its receives.
    WriteImm(RemoteAddr, u32),
    /// `IBV_WR_RDMA_READ`: the peer's bytes into local memory.
    Read(RemoteAddr),
    /// `IBV_WR_SEND`: local bytes into the peer's next receive.
    Send,
    /// `IBV_WR_SEND_WITH_IMM`: and a number in its completion.
    SendImm(u32),
    /// `IBV_WR_SEND_WITH_INV`: and a key of the peer becomes invalid.
    SendInv(Rkey),
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds to 8 aligned bytes of the peer; what they were goes into local memory.
    FetchAdd {
        /// The 8 bytes, aligned.
        to: RemoteAddr,
        /// The summand; the sum wraps.
        add: u64,
    },
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: replaces 8 aligned bytes of the peer where they are what was expected; what they were goes into
    /// local memory.
    CompareSwap {
        /// The 8 bytes, aligned.
        to: RemoteAddr,
        /// What they must be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// `IBV_WR_BIND_MW`: gives a part of a region a key of its own.
    BindMw {
        /// The window, of type 2.
        mw: MwHandle,
        /// The key that it has now.
        old: Rkey,
        /// Its key from now on: the upper 24 bits stay.
        rkey: Rkey,
        /// The region below; it needs the local right `MW_BIND`.
        mr: MrHandle,
        /// The region's own key.
        lkey: Lkey,
        /// First byte.
        addr: MrAddr,
        /// Bytes.
        length: u64,
        /// What the window allows.
        access: Access,
    },
    /// `IBV_WR_LOCAL_INV`: a bound window's key becomes invalid.
    LocalInv(Rkey),
}

/// What a send carries.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Parts of registered memory, in order; read (or written) until the completion.
    Sges(&'a [Sge]),
    /// `IBV_SEND_INLINE`: bytes of the caller, copied before the post returns.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes in all.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it carries nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdDestination {
    /// The way.
    pub ah: AhHandle,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// What that queue pair wants to see.
    pub qkey: u32,
}

/// `struct ibv_send_wr`, borrowed for the call.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// The caller's own number, back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With what.
    pub payload: Payload<'a>,
    /// Where to, on a datagram queue pair; `None` on a connection.
    pub ud: Option<UdDestination>,
    /// `IBV_SEND_SIGNALED`: a completion also on success.
    pub signaled: bool,
    /// `IBV_SEND_SOLICITED`: the peer's completion wakes who waits for solicited ones only.
    pub solicited: bool,
    /// `IBV_SEND_FENCE`: not before the reads posted before it have completed.
    pub fence: bool,
}

/// `struct ibv_recv_wr`, borrowed for the call.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// The caller's own number, back in the completion.
    pub wr_id: u64,
    /// Local memory, in order.
    pub sges: &'a [Sge],
}

/// Checks the number of elements of a request. Some providers of rdma-core (mlx4, mlx5: qp.c) return
/// `ENOMEM` for too many elements, as for a full queue, and a caller would wait in vain.
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
