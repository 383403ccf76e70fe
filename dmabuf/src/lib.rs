//! DmaBuf and its life: export, windows, attach, CPU access, passing to another process.
//!
//! - *Only dma-bufs and named stand-ins are accepted*: [`DmaBuf::from_fd`] examines the descriptor
//!   itself; the memfd stand-in of
//!   [`gaudi_sys::standin`] is [`Exporter::StandIn`] and prints its name.
//! - *A [`Window`] is the unit that is registered, attached and passed*: one export, many windows;
//!   a window cannot leave its buffer.
//! - *Holders are named*: an exported mapping cannot be freed and its device cannot be closed while
//!   any attachment lives, and the driver does not name the holder. [`DmaBuf::attachments`] does.
//! - *Reasons before refusals*: the driver answers a wrong export with a bare `EINVAL`; [`export`]
//!   checks its rules first.
//! - *A message is not trusted*: [`receive`] and [`Offer::fetch`] check it against the descriptor.
//! - *Every buffer is counted, with the line that made it*: [`stats()`], [`leaks`]; [`survey()`]
//!   shows those of the whole machine.

mod attachment;
mod buffer;
mod cpu_access;
mod device_import;
pub mod export;
mod exports;
mod holders;
mod message;
mod offer;
mod part;
pub mod reach;
pub mod stats;
pub mod survey;
mod sync_file;
mod window;

pub use attachment::{Attachment, CpuAttachment};
pub use buffer::{DmaBuf, Identity};
pub use cpu_access::{CpuAccess, Directions, Editing, Reading, Writing};
pub use device_import::DeviceImport;
pub use export::Exporter;
pub use export::heap::Heap;
pub use export::udmabuf::Udmabuf;
pub use exports::Exports;
pub use gaudi_seam::{CloseError, Error, ErrorKind, Result};
pub use holders::{Hold, Holder};
pub use message::{MESSAGE_BYTES, receive, send};
pub use offer::{OFFER_BYTES, Offer};
pub use stats::{leaks, stats};
pub use survey::survey;
pub use sync_file::{Fence, FenceStatus, SyncFile};
pub use window::Window;
