//! Safe RDMA objects over a provider: protection domains, memory regions and windows, queues, and
//! queue pairs.
//!
//! - A NIC implements the traits in [`provider`]. This crate checks arguments before it calls them.
//! - Names are rdma-core's. Keys and addresses are types of their own: [`Lkey`], [`Rkey`],
//!   [`MrAddr`].
//! - Parents outlive children. `close` reports which objects still hold one; drop only logs.
//! - Device memory is registered through its dma-buf ([`Pd::reg_dmabuf_mr`]). A live region blocks
//!   the device's reset, so a [`RegionGroup`] deregisters all regions of a device.
//! - Posting and polling allocate nothing.
//!
//! `tests/rules` shows misuse that does not compile. The first four:
//! ```compile_fail
//! # fn f(qp: &mut gaudi_verbs::Qp) {
//! qp.post_send(1).post(); // no operation
//! # }
//! ```
//! ```compile_fail,E0499
//! # fn f(qp: &mut gaudi_verbs::Qp, to: gaudi_verbs::RemoteAddr) {
//! let first = qp.post_send(1);
//! let second = qp.post_send(2); // while another is being built
//! first.write(&[], to);
//! # }
//! ```
//! ```compile_fail,E0308
//! # use gaudi_verbs::{MrAddr, Rkey, Sge};
//! let sge = Sge { addr: MrAddr(0), length: 1, lkey: Rkey(7) }; // a remote key
//! ```
//! ```compile_fail,E0599
//! # use gaudi_verbs::{AddressHandle, RemoteAddr, UdQp};
//! # fn f(qp: &mut UdQp, to: &AddressHandle, there: RemoteAddr) {
//! qp.post_send(1, to, gaudi_verbs::Qpn(2), 3).write(&[], there); // only a connection writes
//! # }
//! ```

mod access;
mod ah;
pub mod cache;
mod connect;
mod context;
mod cq;
mod device;
mod event;
mod frame;
mod group;
mod handle;
mod holders;
mod mr;
mod mw;
pub mod nldev;
mod object;
mod open_enum;
mod post;
pub mod provider;
mod qp;
mod qp_core;
mod reaper;
mod region;
mod relaxed;
mod srq;
mod ud;
mod wc;
mod wr;

pub use access::Access;
pub use ah::AddressHandle;
pub use cache::{CachedMr, Invalidated, MrCache, MrKey};
pub use connect::{Message, exchange, receive, send};
pub use context::{Context, Pd};
pub use cq::Cq;
pub use device::{
    AtomicCap, DeviceAttr, DmaBufSupport, Gid, GidEntry, GidKind, Guid, LinkLayer, Mtu, PortAttr, PortState,
};
pub use event::{AsyncElement, AsyncEvent, AsyncEventType};
pub use frame::{Framed, Stream};
pub use gaudi_ranges::{Limits as CacheLimits, Stats as CacheStats};
pub use gaudi_seam::{CloseError, Error, ErrorKind, Result};
pub use group::{Blockers, RegionGroup};
pub use handle::{AhHandle, MrHandle, MwHandle};
pub use mr::Mr;
pub use mw::{BindReady, Mw};
pub use post::{Connection, Datagram, RecvPost, SendPost, SendReady, UdSendPost};
pub use provider::{MrState, RegPath};
pub use qp::Qp;
pub use qp_core::QpInit;
pub use reaper::Closing;
pub use region::RegionInfo;
pub use relaxed::{OrderedMr, WriteOrder};
pub use srq::{Srq, SrqRecvPost};
pub use ud::{GRH_BYTES, UdQp};
pub use wc::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    Lkey, MrAddr, Payload, Psn, QpAddress, Qpn, RecvWr, RemoteAddr, RemoteRegion, Rkey, SendOp, SendWr, Sge,
    UdDestination, WindowBind,
};

/// Returns the error of an operation in a fork child.
fn forked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Forked, operation).because("the object belongs to the parent of this fork child")
}

fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::from_errno(operation, gaudi_seam::Errno::EINVAL).because(cause)
}
