//! The NICs of libibverbs as a provider of gaudi-verbs.
//!
//! - *libibverbs is opened at run time*: without it [`list`] and [`open`] fail with the package to install, and the program goes on.
//! - *A dma-buf is registered by the best way that there is*: data direct, `ibv_reg_mr_ex`, `ibv_reg_dmabuf_mr`, the kernel's own ioctl.
//!   Which ways there are is asked once a context, with a descriptor that is none (`EBADF` says yes).
//! - *Handles are numbers of our own tables*: one that is gone is an error, never a dangling pointer; an object that another one
//!   stands on is not destroyed (`EBUSY`).
//! - *Posting and polling look nothing up, allocate nothing and take no lock of the device*; each queue has a gate of its own, one
//!   exchange wide, which keeps a queue from going while it is used. Datagrams and windows are looked up, under a shared lock.
//! - *RoCE, iWARP and InfiniBand*: ways carry the global address and, for InfiniBand, the local identifier. Only RoCE (rdma_rxe) has
//!   run this: no InfiniBand fabric has, and partitions other than the first, service levels and path records are not asked for.
//! - *errno is read only when a call failed*: a successful one may leave an old one behind.

mod context;
mod device;
mod dmabuf;
mod errors;
mod gate;
mod gid;
mod list;
mod objects;
mod open;
mod qp;
mod queue;
mod table;

pub use device::IbvDevice;
pub use list::{NicInfo, NodeType, Transport, list};
pub use open::OpenOptions;

use std::sync::Arc;

use gaudi_seam::Result;

/// Opens a NIC by its name (`mlx5_0`, `rxe0`), with its first active port and the address that connections mostly want.
///
/// `NotFound` where there is no libibverbs or no such NIC, with what would help.
pub fn open(name: &str) -> Result<Arc<IbvDevice>> {
    OpenOptions::default().open(name)
}
