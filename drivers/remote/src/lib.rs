//! Copies between accelerator memory of two nodes: by RDMA from dma-buf to dma-buf if the NICs can register them, otherwise staged
//! through host memory.
//!
//! - *Staging is reported*: a buffer is registered through its dma-buf, otherwise staged. [`Report`] has the step taken, and the error
//!   and errno of the better ones. [`Policy`] can make staging an error.
//! - *Permanent failures are tried once*: the result is cached for each pair of NIC and accelerator; [`Nic::forget`] clears it.
//! - *A stage is a pipeline*: while the NIC moves one chunk, the engines of both nodes copy others. The processor copies nothing
//!   ([`Stats::cpu_copied_bytes`]).
//! - *Least access*: a peer can access only the range that was offered to it, with the rights of the offer: no other memory of this
//!   node, and no offer to another peer. Each endpoint has its own protection domain for its peer. Requests for staged copies are
//!   checked like other external input.
//! - *Regions are deregistered before memory is freed*: a live region keeps a buffer and its device busy and delays the device's reset.
//!   An endpoint deregisters on [`forget`](Endpoint::forget), and before the objects below it close. A thread of the [`Nic`] detects
//!   device loss by the device's status and deregisters, whatever the program does.
//! - *Errors of the peer are the peer's*: if the peer loses its device, the error here is `Disconnected`, with the reason. `DeviceLost`,
//!   `Hung` and `InReset` mean the local device only.
//! - *A buffer is registered once*: its regions stay with the [`Nic`], for all its endpoints, until the buffer is freed. An offer to a
//!   peer has a region of its own.
//! - *Waiting is for events*: no spinning, no timer. A dead peer is detected by the NIC's timeout or by the closed socket.
//!
//! ```
//! use std::time::Duration;
//! use gaudi_device::Device;
//! use gaudi_remote::{Endpoint, Nic, Options, Rights};
//! # use gaudi_softnic::{SoftNic, SoftNicConfig};
//! # let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
//! # let (stream_a, stream_b) = std::os::unix::net::UnixStream::pair()?;
//! # let nic_a = gaudi_verbs::Context::open(nic_a)?;
//! # let nic_b = gaudi_verbs::Context::open(nic_b)?;
//! // Node B offers a buffer.
//! let b = std::thread::spawn(move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
//!     let device = Device::open(&"mock:gaudi2?name=b".parse()?)?;
//!     let buffer = device.alloc_exclusive(1 << 20)?;
//!     let mut endpoint = Endpoint::over(stream_b, &Nic::new(&nic_b)?, Some(&device), Options::default())?;
//!     println!("{}", endpoint.offer(&buffer, Rights::BOTH)?);
//!     // … and hears through memory of its own that A is done.
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
//! let mut endpoint = Endpoint::over(stream_a, &Nic::new(&nic_a)?, Some(&device), Options::default())?;
//! let remote = endpoint.receive_offer(Duration::from_secs(10))?;
//! let put = endpoint.put(&buffer, &remote)?;
//! let done = endpoint.wait(put, Duration::from_secs(10))?;
//! println!("{} bytes: {} → {}", done.bytes, done.local, done.remote);
//! endpoint.offer(&device.alloc_host(1)?, Rights::PUT)?;
//! let got = b.join().unwrap().map_err(|error| error.to_string())?;
//! assert_eq!(got, vec![42; 1 << 20]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ask;
mod choose;
mod endpoint;
mod job;
mod ladder;
mod message;
mod nic;
mod offer;
mod options;
mod region;
mod serve;
mod stage;
mod stats;
mod stream;
mod watch;

pub use choose::{NicChoice, rank};
pub use endpoint::{Endpoint, Transfer, Until};
pub use gaudi_seam::{Error, ErrorKind, Result};
pub use gaudi_verbs::{Blockers, CacheLimits};
pub use job::Done;
pub use ladder::{Attempt, Policy, Report, Step};
pub use nic::Nic;
pub use offer::{Remote, RemoteRange, Rights};
pub use options::Options;
pub use region::Local;
pub use stats::Stats;
pub use stream::Stream;
