//! `gaudi_copy` and `gaudi_cpy`: a memory domain and a copy transport on Gaudi memory, in the
//! shapes that UCX, libfabric and other communication libraries ask for.
//!
//! - *Queries need no compute node*: [`MemoryDomain::query`] uses the control node. The first
//!   allocation, registration or copy opens the compute node.
//! - *Any interior address is enough*: [`MemoryDomain::mem_query`] and [`memory_types`] find the
//!   memory around an address without a lock.
//! - *A key is not trusted*: [`key`] documents each byte, and every field is checked.
//! - *Nothing is advertised that a call refuses*: [`Attributes`] lists what works.
//!
//! ```
//! use gaudi_copy::{Attached, Local, MemoryDomain, Transport};
//!
//! let domain = MemoryDomain::new(&"mock:gaudi2?name=copydoc".parse()?)?;
//! let (device, host) = (domain.alloc(4096, Default::default())?, domain.alloc_host(4096)?);
//! host.write(0, b"hello")?;
//! let mut transport = Transport::new(&domain)?;
//! let target = Attached::to(&device);
//! transport.put_zcopy(&[Local::all(&host)], &target, target.address(), None)?;
//! transport.flush_wait(gaudi_copy::Deadline::NEVER)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attached;
mod attributes;
mod blocking;
mod card;
mod chunk;
mod completion;
mod config;
mod copier;
mod domain;
pub mod key;
mod kind;
mod lane;
mod local;
mod memory;
mod pending;
mod staged;
mod transport;
mod types;

pub use attached::Attached;
pub use attributes::{Attributes, Cost, Costs};
pub use completion::Completion;
pub use config::{Config, VARIABLES, Variable};
pub use copier::Copier;
pub use domain::{AllocOptions, DmabufPart, Export, MemInfo, MemoryDomain};
pub use kind::{MemoryType, TypeSet};
pub use local::Local;
pub use memory::Memory;
pub use transport::{Posted, Transport, TransportStats};
pub use types::{MemoryEvent, MemoryEvents, MemoryTypeCache, TypeStats, Typed, memory_types};

pub use gaudi_device::{CloseError, Deadline, DeviceId, DeviceSpec, DeviceVa, Error, ErrorKind, Result};
