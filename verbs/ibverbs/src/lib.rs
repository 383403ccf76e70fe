//! NICs of libibverbs as a provider of gaudi-verbs.
//!
//! - libibverbs is opened at run time. Without it, [`list`] and [`open`] fail and name the package.
//! - A dma-buf is registered by the best path that the NIC has: data direct, `ibv_reg_mr_ex`,
//!   `ibv_reg_dmabuf_mr`, or the kernel's ioctl.
//! - Handles are numbers of tables of this crate. A stale one is an error, never a dangling
//!   pointer, and an object in use is not destroyed (`EBUSY`).
//! - Posting and polling look nothing up, allocate nothing and take no lock of the device, except
//!   for datagrams and windows, which are looked up under a shared lock.
//! - Only RoCE (rdma_rxe) is tested. Partitions other than the first, service levels and path
//!   records are not supported.

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

/// Opens a NIC by its name (`mlx5_0`, `rxe0`), with its first active port and its best GID.
///
/// # Errors
/// `NotFound` if there is no libibverbs or no such NIC.
pub fn open(name: &str) -> Result<Arc<IbvDevice>> {
    OpenOptions::default().open(name)
}
