//! Safe RDMA objects over a provider: protection domains, memory regions and windows, completion and shared receive queues, connected and
//! datagram queue pairs.
//!
//! - *One seam, many NICs*: [`provider`] is what a NIC implements; everything here checks first and then asks it.
//! - *Names are rdma-core's*: `lkey`, `rkey`, `wr_id`, `WcStatus::REM_ACCESS_ERR`; what is known there need not be learnt again.
//! - *Keys and addresses have types*: an rkey is no lkey, and an address that a key is checked against is a [`MrAddr`].
//! - *Parents outlive children*: an [`Mr`] holds its [`Pd`], a [`Qp`] its [`Cq`]s and [`Srq`], all hold the [`Context`]; there is no
//!   wrong order to drop them in. `close` is the checked way and names who is in it, drop the one that can only log.
//! - *Device memory is registered through its dma-buf*: [`Pd::reg_dmabuf_mr`] takes a checked [`Window`](gaudi_dmabuf::Window) and
//!   keeps it attached by name, since a live region blocks the mapping, the device and even its reset: a [`RegionGroup`] ends all
//!   regions of a device in time, whoever holds them, and [`nldev`] lists those of other processes.
//! - *A region has a state*: [`MrState`], fed by resets, by async events and by the provider.
//! - *Posting and polling allocate nothing.*
//!
//! What the compiler forbids is proved by the files of `tests/rules`, whose names are the rules. The first four:
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
//! # fn f(qp: &mut gaudi_verbs::UdQp, to: &gaudi_verbs::AddressHandle, there: gaudi_verbs::RemoteAddr) {
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
mod holders;
mod mr;
mod mw;
pub mod nldev;
mod post;
pub mod provider;
mod qp;
mod reaper;
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
pub use gaudi_seam::{Error, ErrorKind, Result};
pub use group::{Blockers, RegionGroup};
pub use mr::{Mr, MrState, RegPath, RegionInfo};
pub use mw::{BindReady, Mw};
pub use post::{RecvPost, SendPost, SendReady};
pub use qp::{Qp, QpInit};
pub use reaper::Closing;
pub use relaxed::{OrderedMr, WriteOrder};
pub use srq::{Srq, SrqRecvPost};
pub use ud::{GRH_BYTES, UdQp, UdSendPost};
pub use wc::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    AhHandle, Lkey, MrAddr, MrHandle, MwHandle, Payload, Psn, QpAddress, Qpn, RecvWr, RemoteAddr,
    RemoteRegion, Rkey, SendOp, SendWr, Sge, UdDestination,
};

/// `ErrorKind::Forked` of one operation: the objects belong to the parent of this fork child.
fn forked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Forked, operation).because("the object belongs to the parent of this fork child")
}

fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::from_errno(operation, gaudi_seam::Errno::EINVAL).because(cause)
}
