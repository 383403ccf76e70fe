//! DmaBuf and its life: export, windows, attach, CPU access, passing to another process.
//!
//! - *What is not a dma-buf is refused, what stands in for one says so*: [`DmaBuf::from_fd`] looks at the descriptor itself, never at
//!   what somebody said of it; the memfd stand-in of [`gaudi_sys::standin`] is [`Exporter::StandIn`] and prints its name.
//! - *A [`Window`] is the unit that is registered, attached and passed*: one export, many windows; a window cannot leave its buffer.
//! - *Who holds on is known by name*: an exported mapping cannot be freed and its device cannot be closed while any attachment
//!   lives, and the driver does not say who is to blame. [`DmaBuf::attachments`] does.
//! - *Reasons before refusals*: the driver answers a wrong export with a bare `EINVAL`; [`export()`] checks its rules first.
//! - *One order of closing*: regions, descriptors, mapping, allocation, device. [`DeviceMemory`] keeps to it and names who is in the way.
//! - *A passed descriptor is trusted for what it is*: [`receive`] and [`Offer::fetch`] compare what they were told with the descriptor and
//!   believe the latter.
//! - *Every buffer is counted, with the line that made it*: [`stats()`], [`leaks`]; [`survey()`] shows those of the whole machine.

mod access;
mod attach;
mod buffer;
pub mod export;
mod fence;
mod fetch;
mod import;
mod memory;
mod pass;
pub mod reach;
pub mod stats;
pub mod survey;
mod window;

pub use access::{CpuAccess, Directions, Editing, Reading, Writing};
pub use attach::{Attachment, CpuAttachment, Hold, Holder};
pub use buffer::{DmaBuf, Exporter, Identity};
pub use export::habanalabs::{Export, Rule, Source, export, export_by};
pub use export::heap::Heap;
pub use export::udmabuf::Udmabuf;
pub use fence::{Fence, FenceStatus, SyncFile};
pub use fetch::{OFFER_BYTES, Offer};
pub use gaudi_seam::{Error, ErrorKind, Result};
pub use import::DeviceImport;
pub use memory::{DeviceMemory, Exports};
pub use pass::{MESSAGE_BYTES, receive, send};
pub use stats::{leaks, stats};
pub use survey::survey;
pub use window::Window;
