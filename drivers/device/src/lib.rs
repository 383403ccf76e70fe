//! Device, Buffer, HostMapping, Queue, Completion and copy: what most embedders use.
//!
//! - *Handles hold what they need*: a clone is the same object, a copy in flight holds its objects
//!   too, and the node closes with the last reference. No drop frees memory that a running engine
//!   uses.
//! - *Dropping is safe, closing is checked*: `close` names what still holds the object and returns
//!   the object; a drop that the driver refuses is logged, and memory that the device may still
//!   access is not reused.
//! - *Memory that a device touches is never a slice*: bytes are copied into and out of a
//!   [`HostMapping`].
//! - *Waiting happens in the driver*: no thread, no polling, no spinning. [`Completion::event_fd`]
//!   is the exception.
//! - *The hot path allocates nothing*: commands are written into a ring that the device reads;
//!   submitting, polling and waiting reuse what they have.
//! - *Pinned memory is cached for the next copy* ([`Device::map`], [`HostBuffer`]), and never after
//!   it was freed.
//! - *The processor copies only in the calls that say so*, and the bytes are counted
//!   ([`Stats::cpu_copied_bytes`]).
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

mod asic;
mod buffer;
mod cache;
mod calls;
mod completion;
mod context;
mod deadline;
mod device;
#[cfg(feature = "async")]
mod future;
mod heap;
mod host;
mod info;
mod keeper;
mod lane;
mod location;
mod memory;
mod owners;
mod queue;
mod ranges;
mod stats;
mod stripe;
mod sync;
mod telemetry;
mod transfer;
mod unfinished;
mod waiter;

pub use buffer::Buffer;
pub use cache::CacheStats;
pub use completion::Completion;
pub use deadline::Deadline;
pub use device::{Device, Options};
#[cfg(feature = "async")]
pub use future::CompletionFuture;
pub use host::HostMapping;
pub use info::Info;
pub use keeper::{Keeper, StatusHandle};
pub use location::Location;
pub use memory::{HostBuffer, Otherwise, Pages};
pub use queue::Queue;
#[doc(hidden)]
pub use stats::Count;
pub use stats::Stats;
pub use sync::Sob;
pub use telemetry::Telemetry;

pub use gaudi_dmabuf::DmaBuf;
pub use gaudi_seam::{DeviceId, DeviceSpec, DeviceVa, Error, ErrorKind, QueueId, Result};
/// The numbers of Gaudi2's queues.
pub use gaudi_spec::gaudi2::queue as gaudi2_queues;
pub use gaudi_uapi::info::DeviceStatus;
