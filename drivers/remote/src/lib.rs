//! Copies between accelerator memory of two nodes: by RDMA straight from dma-buf to dma-buf where the NICs can, through pipelined
//! stages where they cannot.
//!
//! - *One ladder, and it is told*: a buffer is registered through its dma-buf, else staged; [`Report`] says which and why, with the
//!   errno that came. [`Policy`] turns a silent detour into an error.
//! - *What fails for good is tried once*: the outcome is remembered for each pair of NIC and accelerator, and can be [forgotten](Nic::forget).
//! - *A stage is a pipeline*: while the NIC moves one chunk, the engines of both nodes copy others. The processor copies nothing
//!   ([`Stats::cpu_copied_bytes`]).
//! - *Narrow by default*: a peer reaches the range that was offered to it, with the rights of the offer, and nothing else: neither
//!   other memory of this node nor what was offered to another peer. Each endpoint has a protection domain of its own for what its
//!   peer reaches. A request for a staged copy is checked like any other input from outside.
//! - *Regions go before memory*: a live region keeps a buffer, its device and even the device's reset. An endpoint deregisters on
//!   [`forget`](Endpoint::forget), and before anything that it stood on goes. A thread of the [`Nic`] sees that a device is lost, by
//!   its status, and deregisters whatever the program does meanwhile.
//! - *What befalls the peer is told as the peer's*: a device that it lost is `Disconnected` here, with the reason. `DeviceLost`, `Hung`
//!   and `InReset` speak of our own device only.
//! - *A buffer is registered once*: its regions stay with the [`Nic`], for all its endpoints, until the buffer is freed. What is
//!   offered to a peer is registered for the offer alone.
//! - *Waiting is for events*: no spinning, no clock. A peer that dies is seen by its NIC's silence or by its socket's hang-up.
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
