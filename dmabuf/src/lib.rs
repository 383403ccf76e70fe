//! DmaBuf and its life: export, windows, attach, CPU access, passing to another process.
//!
//! - *What is not a dma-buf is refused, what stands in for one says so*: [`DmaBuf::from_fd`] looks at the descriptor itself, never at
//!   what somebody said of it; the memfd stand-in of [`gaudi_sys::standin`] is [`Exporter::StandIn`] and prints its name.
//! - *A [`Window`] is the unit that is registered, attached and passed*: one export, many windows; a window cannot leave its buffer.
//! - *Who holds on is known by name*: an exported mapping cannot be freed and its device cannot be closed while any attachment
//!   lives, and the driver does not say who is to blame. [`DmaBuf::attachments`] does.
//! - *Reasons before refusals*: the driver answers a wrong export with a bare `EINVAL`; [`export`] checks its rules first.
//! - *A passed descriptor is trusted for what it is*: [`receive`] compares the message with the descriptor and believes the latter.

mod access;
mod attach;
mod buffer;
mod export;
mod pass;
pub mod reach;
mod window;

pub use access::{CpuAccess, Directions};
pub use attach::{Attachment, CpuAttachment};
pub use buffer::{DmaBuf, Exporter, Identity};
pub use export::{Export, export};
pub use gaudi_seam::{Error, ErrorKind, Result};
pub use pass::{MESSAGE_BYTES, receive, send};
pub use window::Window;
