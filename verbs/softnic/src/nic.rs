//! [`SoftNic`]: opens and closes a NIC.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaudi_seam::fault::Plan;
use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{IgnorePoison, lock};
use gaudi_verbs::{Gid, Guid};

use crate::cable::Cable;
use crate::cable::socket::Socket;
use crate::clock::Clock;
use crate::core::Shared;
use crate::counters::Counters;
use crate::cq::Stepper;
use crate::fabric::Net;
use crate::fault::{Faults, NicFaults};
use crate::link::Link;
use crate::pending::Pending;
use crate::{rx, tx};

/// Value of [`DeviceAttr::provider`](gaudi_verbs::DeviceAttr::provider).
pub const PROVIDER: &str = "softnic (software)";

/// How long a closing NIC tries to send its answers.
const LINGER: Duration = Duration::from_secs(1);

/// Configuration of a NIC.
#[derive(Debug, Clone)]
pub struct SoftNicConfig {
    /// How long the peer may take for one frame of at most 256 KiB. A cable that is slower goes
    /// down. It is also the longest time that moving a queue pair to the error state, and
    /// destroying a queue pair or a region, waits for the peer, in each direction.
    pub stall_timeout: Duration,
    /// Faults to inject: the rules for events of a NIC. Others are not this NIC's, so that one plan
    /// serves a device and its NIC.
    pub faults: Plan,
    /// Seed by which peers' writes to dma-bufs become visible late and in any order, like writes on
    /// a bus, unless a read on the same queue pair pushes them out. `None` makes them visible at
    /// once.
    pub late_writes: Option<u64>,
}

impl Default for SoftNicConfig {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(30),
            faults: Plan::default(),
            late_writes: None,
        }
    }
}

/// A software NIC with one port and any number of cables. It closes, and its threads end, when the
/// last [`Arc`] of it is dropped.
///
/// Each end of a cable sends its GID to the other. A queue pair uses the cable to its peer's GID,
/// and a loop for the NIC's own. The first live cable that claims a GID keeps it, because cables do
/// not authenticate their peers. A frame that the protocol does not allow takes its cable down with
/// a `Protocol` error, and every queue pair on it ends with `RETRY_EXC_ERR`. Late frames of an
/// earlier connection are dropped and counted.
///
/// Intended differences from hardware:
/// - Messages are split at 256 KiB, not at the MTU. A datagram has one packet of at most the MTU.
/// - A message without a posted receive is refused with "not ready". The requester sends it again
///   `rnr_retry` times, after the responder's `min_rnr_timer` (at most 1 s), and then fails with
///   `RNR_RETRY_EXC_ERR`. A peer whose queue pair is not connected yet is asked again for
///   `timeout × (retry_cnt + 1)`.
/// - A cable that goes down also flushes receives, so that no receiver waits for messages that
///   cannot arrive.
/// - A dma-buf whose `DMA_BUF_IOCTL_SYNC` fails makes its work request fail with `LOC_PROT_ERR`, or
///   the peer's with `REM_OP_ERR`.
/// - A completion queue that overflows loses completions, raises `CQ_ERR`, puts the queue pair into
///   the error state, and fails to poll once it is empty.
/// - A local operation (bind, invalidation) completes after the peer has acknowledged its place in
///   the order.
/// - The error state ends access to memory: unanswered reads are refused, and flushed work
///   completes after the last frame that used its buffers.
pub struct SoftNic {
    pub(crate) shared: Arc<Shared>,
    pub(crate) guid: Guid,
    owner: OwnerProcess,
    config: SoftNicConfig,
    threads: Mutex<Vec<JoinHandle<()>>>,
    net: Option<Arc<Net>>,
}

/// Body of a cable's thread.
type Body = Box<dyn FnOnce(&Shared, &Cable) + Send>;

impl SoftNic {
    /// Opens a NIC with one cable: one end of a connected stream socket.
    ///
    /// # Errors
    /// `InvalidInput` if `cable` is not a stream socket; the errno of eventfd(2) or clone(2).
    pub fn open(name: &str, cable: impl Into<OwnedFd>, config: SoftNicConfig) -> Result<Arc<Self>> {
        let nic = Self::unplugged(name, config)?;
        nic.plug(cable)?;
        Ok(nic)
    }

    /// Opens a NIC without a cable. It reaches itself, and others after [`plug`](Self::plug).
    ///
    /// # Errors
    /// The errno of eventfd(2).
    pub fn unplugged(name: &str, config: SoftNicConfig) -> Result<Arc<Self>> {
        Self::in_fabric(name, config, None)
    }

    /// Opens a NIC without a cable, with threads of its own or in a fabric.
    pub(crate) fn in_fabric(name: &str, config: SoftNicConfig, net: Option<&Arc<Net>>) -> Result<Arc<Self>> {
        let random = match net {
            Some(net) => net.random(),
            None => RandomState::new().build_hasher().finish(),
        };
        // Queue pair numbers start anywhere, so that those of an earlier NIC mostly do not match.
        let first = (random & 0xff_ffff) as u32;
        // Locally administered: of no vendor.
        let guid = Guid(random | 0x0200_0000_0000_0000);
        let pending = config.late_writes.map(Pending::new);
        let clock = net.map_or_else(Clock::default, |net| net.clock());
        let faults = Faults::new(name, &config.faults, clock);
        let key_seed = net.map(|net| net.random());
        let shared = Shared::new(name.to_owned(), gid_of(guid), faults, pending, first, key_seed)?;
        let shared = Arc::new(shared);
        let mut threads = Vec::new();
        if let Some(net) = net {
            net.add(&shared);
        } else if shared.faults.has_late_completions() {
            let faults = Arc::clone(&shared.faults);
            let spawned = std::thread::Builder::new()
                .name("softnic-late".to_owned())
                .spawn(move || faults.run_timers());
            let failed = |error| Error::from_errno("softnic open", gaudi_sys::fd::errno_of(error));
            threads.push(spawned.map_err(failed)?);
        }
        Ok(Arc::new(Self {
            shared,
            guid,
            owner: OwnerProcess::current(),
            config,
            threads: Mutex::new(threads),
            net: net.cloned(),
        }))
    }

    /// The fabric that it belongs to.
    pub(crate) fn net(&self) -> Option<&Arc<Net>> {
        self.net.as_ref()
    }

    /// The fabric, as completion queues use it.
    pub(crate) fn stepper(&self) -> Option<Arc<dyn Stepper>> {
        let net = self.net.clone()?;
        Some(net)
    }

    /// Adds a cable: one end of a connected stream socket. Each end sends its GID over it, and a
    /// queue pair that connects to a GID uses the cable that leads there. A NIC with one cable
    /// sends everything over it that is not for itself.
    ///
    /// # Errors
    /// `InvalidInput` if `cable` is not a stream socket, or the NIC is of a
    /// [`Fabric`](crate::Fabric); the errno of clone(2).
    pub fn plug(&self, cable: impl Into<OwnedFd>) -> Result<()> {
        if self.net.is_some() {
            return Err(Error::from_errno("softnic plug", Errno::EINVAL)
                .because("a NIC of a fabric has cables in memory only"));
        }
        self.plug_socket(Socket::new(cable.into(), self.config.stall_timeout)?, None)
    }

    fn plug_socket(&self, socket: Socket, peer: Option<Gid>) -> Result<()> {
        const OPERATION: &str = "softnic open";
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        let cable = Arc::new(Cable::Socket(socket));
        let link = self.shared.plug(&cable, peer);
        let mut spawn = |suffix: &str, body: Body| {
            let (shared, cable) = (self.shared.clone(), cable.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("softnic-{suffix}{link}"))
                .spawn(move || body(&shared, &cable));
            let thread =
                spawned.map_err(|error| Error::from_errno(OPERATION, gaudi_sys::fd::errno_of(error)));
            thread.map(|thread| threads.push(thread))
        };
        let receive: Body = Box::new(move |shared, cable| rx::run(shared, link, cable));
        let send: Body = Box::new(move |shared, cable| tx::run(shared, link, cable));
        let spawned = spawn("rx", receive).and_then(|()| spawn("tx", send));
        if let Err(error) = &spawned {
            let mut core = self.shared.lock();
            core.links[link].tx_ended = true;
            self.shared.cable_down(&mut core, link, error.clone());
        }
        spawned
    }

    /// Returns the cable that leads to a port. The loop to this NIC is created on first use.
    pub(crate) fn route(&self, operation: &'static str, gid: &Gid) -> Result<usize> {
        let (core, link) = self.shared.route(self.shared.lock(), gid);
        if let Some(link) = link {
            return match core.links[link].down.clone() {
                None => Ok(link),
                Some(error) => Err(error),
            };
        }
        drop(core);
        if *gid != self.shared.gid {
            return Err(Error::from_errno(operation, Errno::ENETUNREACH)
                .with_kind(ErrorKind::Disconnected)
                .because("no cable of this NIC leads to the peer's port")
                .saw(gid, "the GID of a cable's other end"));
        }
        match &self.net {
            Some(net) => net.plug_loop(&self.shared),
            None => {
                let socket = Socket::looped(self.config.stall_timeout)?;
                self.plug_socket(socket, Some(self.shared.gid))?;
            }
        }
        // Two threads may create two loops at once. Both work.
        let link = self.shared.route(self.shared.lock(), gid).1;
        link.ok_or_else(|| Error::new(ErrorKind::Disconnected, operation).because("the loop went down"))
    }

    /// Opens two NICs joined by a cable, in one process.
    ///
    /// # Errors
    /// The errno of socketpair(2), eventfd(2) or clone(2).
    pub fn pair(config: SoftNicConfig) -> Result<(Arc<Self>, Arc<Self>)> {
        let (a, b) = UnixStream::pair()
            .map_err(|error| Error::from_errno("softnic pair", gaudi_sys::fd::errno_of(error)))?;
        Ok((
            Self::open("softnic0", a, config.clone())?,
            Self::open("softnic1", b, config)?,
        ))
    }

    /// Returns its fault rules and their counts.
    pub fn faults(&self) -> NicFaults {
        NicFaults(Arc::clone(&self.shared.faults))
    }

    /// Returns what it has moved so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }

    /// Returns why a cable is down, or `None` while all are up.
    pub fn cable_error(&self) -> Option<Error> {
        let core = self.shared.lock();
        core.links.iter().find_map(|link| link.down.clone())
    }

    /// Returns the GID of its port, which peers route by.
    pub fn gid(&self) -> Gid {
        self.shared.gid
    }
}

fn gid_of(guid: Guid) -> Gid {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[8..].copy_from_slice(&guid.0.to_be_bytes());
    Gid(gid)
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().ignore_poison());
        if self.owner.is_foreign() {
            // The threads run in the parent, which still uses the sockets: only close descriptors.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        self.shared.faults.close();
        let mut core = self.shared.lock();
        core.closing = true;
        core.flush_pending(None);
        drop(core);
        if let Some(net) = &self.net {
            return net.remove(&self.shared);
        }
        self.shared.wake_all();
        let mut core = self.shared.lock();
        let deadline = Instant::now() + LINGER;
        while core.links.iter().any(|link| !link.tx_ended) && Instant::now() < deadline {
            core = self.shared.wait_idle_for(core, LINGER);
        }
        core.links.iter().for_each(Link::shut);
        drop(core);
        for thread in threads {
            if thread.join().is_err() {
                let nic = &self.shared.name;
                tracing::error!(nic, "softnic (software): a thread of the NIC panicked");
            }
        }
    }
}

impl fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PROVIDER} {} ({})", self.shared.name, self.guid)
    }
}
