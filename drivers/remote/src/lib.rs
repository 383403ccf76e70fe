//! Transfers between accelerator memory of two nodes: by RDMA from dma-buf to dma-buf if the NICs
//! can register them, otherwise staged through host memory.
//!
//! - *Staging is reported*: [`PathReport`] has the path that is used, and the errors of better
//!   ones. [`Policy`] can make staging an error. A failure that lasts is tried once
//!   ([`Nic::forget`]).
//! - *Staging is a pipeline*: engines copy some chunks while the NIC moves others; the processor
//!   copies nothing ([`NicStats::cpu_copied_bytes`]).
//! - *Least access*: a peer reaches only what was offered to it, with the rights of the offer.
//! - *Regions end before memory*: [`Endpoint::forget`] deregisters, and a thread of the [`Nic`]
//!   does so within 100 ms if the device is lost.
//! - *Errors of the peer are `Disconnected`*: `DeviceLost`, `Hung` and `InReset` mean this node.
//!
//! ```
//! use std::time::Duration;
//! use gaudi_device::Device;
//! use gaudi_remote::{Endpoint, Nic, EndpointOptions, Rights};
//! # use gaudi_softnic::{SoftNic, SoftNicConfig};
//! # let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
//! # let (stream_a, stream_b) = std::os::unix::net::UnixStream::pair()?;
//! # let nic_a = gaudi_verbs::Context::open(nic_a)?;
//! # let nic_b = gaudi_verbs::Context::open(nic_b)?;
//! // Node B offers a buffer.
//! # type Failure = Box<dyn std::error::Error + Send + Sync>;
//! let b = std::thread::spawn(move || -> Result<Vec<u8>, Failure> {
//!     let device = Device::open(&"mock:gaudi2?name=b".parse()?)?;
//!     let buffer = device.alloc_exclusive(1 << 20)?;
//!     let (nic, options) = (Nic::new(&nic_b)?, EndpointOptions::default());
//!     let mut endpoint = Endpoint::over(stream_b, &nic, Some(&device), options)?;
//!     println!("{}", endpoint.offer(&buffer, Rights::BOTH)?);
//!     // A puts a word into memory of B when it has finished.
//!     let word = endpoint.receive_offer(Duration::from_secs(10))?;
//!     let mut got = vec![0; 1 << 20];
//!     device.read(&buffer, 0, &mut got)?;
//!     endpoint.put_bytes(&[1], &word, Duration::from_secs(10))?;
//!     Ok(got)
//! });
//! // Node A puts into it.
//! let device = Device::open(&"mock:gaudi2?name=a".parse()?)?;
//! let buffer = device.alloc_exclusive(1 << 20)?;
//! device.fill(&buffer, 42)?.wait(Duration::from_secs(10))?;
//! let (nic, options) = (Nic::new(&nic_a)?, EndpointOptions::default());
//! let mut endpoint = Endpoint::over(stream_a, &nic, Some(&device), options)?;
//! let remote = endpoint.receive_offer(Duration::from_secs(10))?;
//! let put = endpoint.put(&buffer, &remote)?;
//! let done = endpoint.wait(put, Duration::from_secs(10))?;
//! println!("{} bytes: {} → {}", done.bytes, done.local, done.remote);
//! endpoint.offer(&device.alloc_host(1)?, Rights::PUT)?;
//! let got = b.join().unwrap().map_err(|error| error.to_string())?;
//! assert_eq!(got, vec![42; 1 << 20]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod channel;
mod endpoint;
mod job;
mod link;
mod local;
mod message;
mod nic;
mod offer;
mod options;
mod path;
mod region;
mod registered;
mod requester;
mod responder;
mod stage;
mod stats;
mod stream;
mod watch;

pub use endpoint::{Endpoint, Transfer};
pub use gaudi_device::Deadline;
pub use gaudi_seam::{Error, ErrorKind, Result};
pub use gaudi_verbs::{Blockers, CacheLimits, Framed, Stream};
pub use job::Done;
pub use link::{Link, LinkConfig};
pub use local::Local;
pub use nic::Nic;
pub use offer::{Remote, RemoteRange, Rights};
pub use options::EndpointOptions;
pub use path::{Attempt, MemoryPath, PathReport, Policy};
pub use stats::NicStats;
