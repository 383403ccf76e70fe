//! Device, Buffer, HostMapping, Queue, Completion and copy: what most embedders use.
//!
//! - *Handles hold what they need*: a clone is the same object, a copy in flight holds its objects
//!   too, and the node closes with the last reference. No drop frees memory that a running engine
//!   uses.
//! - *Drops are safe, closes are checked*: `close` reports what still holds the object and returns
//!   the object; a drop that the driver refuses is logged, and memory that the device may still
//!   access is not reused.
//! - *Memory that a device accesses is never a slice*: bytes are copied into and out of it.
//! - *Waits happen in the driver*: no thread and no spinning, except for [`Completion::event_fd`].
//! - *The hot path allocates nothing*: submit, poll and wait reuse their memory.
//!
//! ```
//! use gaudi_device::{Deadline, Device};
//!
//! let device = Device::open(&"mock:gaudi2?name=doc".parse()?)?;
//! let (buffer, host) = (device.alloc(4096)?, device.alloc_host(4096)?);
//! host.write(0, b"hello")?;
//! device.copy(&buffer, &host)?.wait(Deadline::NEVER)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod active_queues;
mod asic;
mod buffer;
mod cache;
mod calls;
mod completion;
mod context;
mod copier;
mod device;
mod export_user;
mod free_ranges;
#[cfg(feature = "async")]
mod future;
mod heap;
mod host_buffer;
mod host_mapping;
mod info;
mod location;
mod options;
mod owners;
mod pages;
mod producer;
mod queue;
mod ring;
mod shared;
mod sob;
mod staging;
mod stats;
mod status;
mod stranded;
mod striped;
mod sync_pool;
mod telemetry;
mod transfer;
mod unfinished;
mod waiter;

pub use buffer::Buffer;
pub use completion::Completion;
pub use device::Device;
pub use export_user::ExportUser;
#[cfg(feature = "async")]
pub use future::CompletionFuture;
pub use heap::{Placement, PoolStats};
pub use host_buffer::HostBuffer;
pub use host_mapping::HostMapping;
pub use info::Info;
pub use location::Location;
pub use options::Options;
pub use pages::{Fallback, Pages};
pub use queue::Queue;
pub use sob::Sob;
#[doc(hidden)]
pub use stats::Count;
pub use stats::Stats;
pub use status::StatusHandle;
pub use telemetry::Telemetry;
pub use transfer::Direction;

pub use gaudi_dmabuf::DmaBuf;
pub use gaudi_ranges::Stats as CacheStats;
pub use gaudi_seam::{CloseError, DeviceId, DeviceSpec, DeviceVa, Error, ErrorKind, QueueId, Result};
pub use gaudi_sys::Deadline;
pub use gaudi_uapi::info::DeviceStatus;
