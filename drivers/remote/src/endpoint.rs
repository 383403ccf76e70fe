//! [`Endpoint`]: one end of a connection between two nodes, and the operations on it.

mod bytes;
mod connect;

use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use gaudi_device::{Deadline, Device, HostBuffer};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_verbs::{Access, Framed, Sge};

use crate::job::{Done, Job, LocalEnd};
use crate::local::{Allocation, Local, Memory};
use crate::nic::Nic;
use crate::offer::{Offer, OfferPath, Remote, RemoteRange, Rights};
use crate::options::EndpointOptions;
use crate::path::{MemoryPath, PathReport, is_device_loss};
use crate::region::{OwnRegions, Region, RegionRequest};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::stage::Stage;
use crate::stream::{MAX_BODY, OFFER, forked, hang_up};
use crate::watch::WatchedEndpoint as _;

/// A transfer in flight: [`Endpoint::wait`] returns its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "only `wait` and `poll` report whether a transfer failed"]
pub struct Transfer {
    /// Of the endpoint that began it.
    endpoint: u64,
    id: u64,
}

/// One end of a connection: puts into the peer's memory, gets from it, and serves the peer.
///
/// Each end has two queue pairs: one for its own requests, one for the peer's. Own transfers
/// advance while a thread is in [`wait`](Self::wait) or [`poll`](Self::poll); the peer's need no
/// call. Dropping an endpoint ends the connection: queue pairs are destroyed first, then regions,
/// then the memory below them.
///
/// After an error of the connection every call returns that error: make a new endpoint.
///
/// A [`Deadline::NEVER`] is safe: a result, an error or the death of the peer ends every wait. The
/// end of a process is detected at once; over TCP, the loss of its machine or of the network after
/// 30 s ([`Stream::prepare`](crate::Stream::prepare)).
pub struct Endpoint {
    id: u64,
    owner: OwnerProcess,
    /// First: the peer must not access what is dropped after it.
    responder: Responder,
    requester: Requester,
    regions: OwnRegions,
    stream: Framed,
    nic: Nic,
    device: Option<Device>,
    options: EndpointOptions,
    peer: String,
    /// The port's, read once: a query reads all its addresses.
    max_msg_sz: u32,
    next: u64,
    offers: u32,
    /// For `put_bytes` and `get_bytes`; no transfer uses it between two calls.
    scratch: Option<Arc<HostBuffer>>,
}

impl Endpoint {
    /// The most transfers that can be started before one of them is waited for.
    pub const MOST_TRANSFERS: usize = 1 << 14;

    /// Returns the name of the peer's NIC.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns this end's NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Allows the peer to access memory of this node, and sends the offer; the peer calls
    /// [`receive_offer`](Self::receive_offer). Returns the path to the memory.
    ///
    /// Only the range is registered, with these rights. The peer may access it until
    /// [`forget`](Self::forget), or until the endpoint is dropped.
    ///
    /// # Errors
    /// - `InvalidInput`: the memory has no bytes.
    /// - `TimedOut`: the peer does not read within [`EndpointOptions::connect_timeout`].
    /// - With [`Policy::Require`](crate::Policy::Require), that of the registration.
    pub fn offer(&mut self, memory: impl Into<Local>, rights: Rights) -> Result<PathReport> {
        let memory = memory.into();
        self.check()?;
        if memory.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "offer").because("there are no bytes to offer"));
        }
        let (allocation, offset) = memory.allocation();
        let domain = self.responder.domain().clone();
        let request = RegionRequest {
            range: offset..offset + memory.len(),
            access: rights.access(),
            offered: Some(&domain),
        };
        let (nic, policy, regions) = (self.nic.clone(), self.options.policy, self.regions.clone());
        let staged = || {
            let OfferPath::Slots { chunk, depth, .. } = self.slots()? else {
                unreachable!("`slots` returns slots");
            };
            Ok(MemoryPath::Staged {
                chunk_bytes: chunk,
                depth,
            })
        };
        let read = |region: &Region| (region.report().clone(), region.remote());
        let (report, direct) = regions.reach(&nic, allocation, &request, policy, staged, read)?;
        let id = self.offers;
        let path = match (direct, &memory.0) {
            (Some(region), _) => OfferPath::Direct(region),
            (None, Memory::Device(location)) => {
                let slots = self.slots()?;
                self.responder.offer(id, location.clone(), rights);
                slots
            }
            (None, Memory::Host(..)) => unreachable!("host memory is never staged"),
        };
        let offer = Offer {
            id,
            rights,
            len: memory.len(),
            path,
            report: report.clone(),
        };
        self.offers = self.offers.wrapping_add(1);
        let end = Instant::now().checked_add(self.options.connect_timeout);
        let sent = self.stream.send(OFFER, &offer.encode(), end);
        self.check_stream();
        if sent.is_err() {
            // If this end closed the connection, the notice has the cause.
            self.check()?;
        }
        sent.map(|()| report)
    }

    /// Returns the slots through which the peer reaches staged memory.
    fn slots(&mut self) -> Result<OfferPath> {
        self.responder.slots(
            &self.nic,
            staging_device(self.device.as_ref())?,
            &self.options,
            &self.regions,
            self.stream.as_fd(),
        )
    }

    /// Receives the next memory that the peer [offers](Self::offer), in the peer's order.
    ///
    /// # Errors
    /// `TimedOut`: the peer offers nothing in time. An offer that stops in its middle ends the
    /// connection.
    pub fn receive_offer(&mut self, deadline: impl Into<Deadline>) -> Result<Remote> {
        self.check()?;
        let body = self.stream.receive(OFFER, MAX_BODY, deadline.into().instant());
        if body.is_err() {
            // If this end closed the connection, the notice has the cause.
            self.notice()?;
        }
        self.check_stream();
        let offer = Offer::decode(&body?)?;
        Ok(Remote {
            offer: Arc::new(offer),
            endpoint: self.id,
        })
    }

    /// Ends the connection if the two ends are out of step.
    fn check_stream(&mut self) {
        if let Some(error) = self.stream.broken() {
            self.requester.fail(error.clone());
        }
    }

    /// Starts a copy of local memory into the peer's, of the same length.
    ///
    /// When it is complete, the peer's NIC has the bytes; a peer that polls device memory needs
    /// [`flush_remote`](Self::flush_remote). If it fails, the peer's range holds a mixture of old
    /// and new bytes. The result is kept until it is waited for.
    ///
    /// # Errors
    /// - `InvalidInput`: the lengths differ, or the memory was offered to another endpoint.
    /// - `AccessDenied`: the peer did not offer the right to put.
    /// - `WouldBlock`: [`MOST_TRANSFERS`](Self::MOST_TRANSFERS) are not waited for yet.
    /// - That of the registration of local memory.
    pub fn put(&mut self, from: impl Into<Local>, to: impl Into<RemoteRange>) -> Result<Transfer> {
        self.transfer("put", from.into(), to.into(), true)
    }

    /// Starts a copy of the peer's memory into local memory, of the same length.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&mut self, into: impl Into<Local>, from: impl Into<RemoteRange>) -> Result<Transfer> {
        self.transfer("get", into.into(), from.into(), false)
    }

    fn transfer(
        &mut self,
        operation: &'static str,
        local: Local,
        remote: RemoteRange,
        put: bool,
    ) -> Result<Transfer> {
        self.check()?;
        let invalid = |cause: &str| Error::new(ErrorKind::InvalidInput, operation).because(cause);
        let started = self.requester.started();
        if started >= Self::MOST_TRANSFERS {
            return Err(Error::new(ErrorKind::WouldBlock, operation)
                .because("too many transfers were started and not waited for")
                .saw(started, format!("below {}", Self::MOST_TRANSFERS))
                .helped_by("wait for the oldest first"));
        }
        same_length(operation, local.len(), &remote)?;
        if remote.remote.endpoint != self.id {
            return Err(invalid("the memory was offered to another endpoint"));
        }
        let rights = remote.remote.rights();
        if (put && !rights.put) || (!put && !rights.get) {
            return Err(Error::new(ErrorKind::AccessDenied, operation)
                .because("the peer did not offer the memory for that")
                .saw(format!("{rights:?}"), operation));
        }
        let (allocation, offset) = local.allocation();
        let access = if put { Access::empty() } else { Access::LOCAL_WRITE };
        let read = |region: &Region| (region.first_byte(), region.report().path);
        let (first, path) = self.reach(allocation, access, read)?;
        let local = match (first, local.0) {
            (Some(first), _) => {
                let addr = first
                    .addr
                    .checked_add(offset)
                    .ok_or_else(|| invalid("the range leaves the address space"))?;
                LocalEnd::Region(Sge { addr, ..first })
            }
            (None, Memory::Device(location)) => LocalEnd::Staged(location),
            (None, Memory::Host(..)) => unreachable!("host memory is never staged"),
        };
        let staged = matches!(local, LocalEnd::Staged(_));
        let stage = self.requester.stage.as_ref().filter(|_| staged).map(Stage::chunk);
        let id = self.next;
        self.next += 1;
        let len = remote.len();
        self.requester.add(Job {
            id,
            put,
            local,
            chunk: Job::chunk_of(stage, &remote.remote, self.max_msg_sz),
            at: remote.range.start,
            remote: remote.remote,
            len,
            path,
            begun: 0,
            in_flight: 0,
            chunks: 0,
            failed: None,
            abandoned: None,
        });
        // `wait` reports an error of the connection, with each transfer that it ended.
        let _ = self.requester.progress();
        Ok(Transfer {
            endpoint: self.id,
            id,
        })
    }

    /// Reads this node's region of a whole allocation, which is registered on first use.
    fn reach<T>(
        &mut self,
        allocation: Allocation,
        access: Access,
        read: impl FnOnce(&Region) -> T,
    ) -> Result<T> {
        let request = RegionRequest {
            range: 0..allocation.len(),
            access,
            offered: None,
        };
        let Self {
            requester,
            regions,
            nic,
            device,
            options,
            ..
        } = self;
        let staged = || {
            if requester.stage.is_none() {
                let device = staging_device(device.as_ref())?;
                let stage = Stage::new(nic, nic.pd(), device, options, Access::LOCAL_WRITE)?;
                requester.stage = Some(stage);
            }
            Ok(MemoryPath::Staged {
                chunk_bytes: options.chunk_bytes,
                depth: options.depth,
            })
        };
        regions.reach(nic, allocation, &request, options.policy, staged, read)
    }

    /// Returns the path to local memory, and why no better one. Registers it as a transfer would.
    ///
    /// # Errors
    /// That of the registration.
    pub fn report(&mut self, memory: impl Into<Local>) -> Result<PathReport> {
        self.check()?;
        let (allocation, _) = memory.into().allocation();
        self.reach(allocation, Access::LOCAL_WRITE, |region| region.report().clone())
    }

    /// `Forked` in a fork child. Other threads, which do not exist there, may have held the locks
    /// that every call takes.
    fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.owner.is_foreign() {
            return Err(forked(operation));
        }
        Ok(())
    }

    /// Advances transfers without waiting. Returns the result of this one once it is complete;
    /// a result can be taken once.
    ///
    /// # Errors
    /// - `InvalidInput`: another endpoint started the transfer.
    /// - `NotFound`: its result was taken before.
    /// - That of the transfer.
    pub fn poll(&mut self, transfer: Transfer) -> Result<Option<Done>> {
        if transfer.endpoint != self.id {
            return Err(Error::new(ErrorKind::InvalidInput, "transfer").because("another endpoint began it"));
        }
        self.check_process("transfer")?;
        // An error of the connection is the result of each transfer that it ended.
        let _ = self.notice().and_then(|()| self.requester.progress());
        match self.requester.take(transfer.id) {
            // A region that was deregistered with its device fails like any other; `lost` has the
            // cause.
            Some(Err(error)) => Err(self.regions.lost().unwrap_or(error)),
            Some(Ok(done)) => Ok(Some(done)),
            None => Ok(None),
        }
    }

    /// Waits until a transfer is complete. After any error but `TimedOut`, neither the NIC nor an
    /// engine of this node accesses its memory.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed; the transfer continues with the next call.
    /// - `Disconnected`: the peer closed the connection, died, or lost its device.
    /// - As [`poll`](Self::poll).
    pub fn wait(&mut self, transfer: Transfer, deadline: impl Into<Deadline>) -> Result<Done> {
        let deadline = deadline.into();
        loop {
            if let Some(done) = self.poll(transfer)? {
                return Ok(done);
            }
            // After an error, the next poll has the result.
            if !self.requester.wait(self.stream.as_fd(), deadline).unwrap_or(true) {
                return match self.poll(transfer)? {
                    Some(done) => Ok(done),
                    None => Err(Error::timed_out("transfer")),
                };
            }
        }
    }

    /// Makes the bytes of complete puts visible to a peer that polls its memory: a read after the
    /// writes, which pushes them out of every bridge on the way.
    ///
    /// Does nothing for staged memory: the peer's engine has stored those bytes already.
    ///
    /// # Errors
    /// - `AccessDenied`: the peer did not offer the right to get.
    /// - `TimedOut`: the deadline passed.
    pub fn flush_remote(&mut self, remote: &Remote, deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "flush_remote";
        self.check()?;
        let deadline = deadline.into();
        let OfferPath::Direct(region) = remote.offer.path else {
            return Ok(());
        };
        if !remote.rights().get {
            return Err(Error::new(ErrorKind::AccessDenied, OPERATION)
                .because("a flush reads, and the memory was not offered to get from")
                .helped_by("offer it with Rights::BOTH"));
        }
        let last = region.at(region.len.saturating_sub(1), 1)?;
        let mut number = None;
        loop {
            self.requester.progress()?;
            if number.is_none() {
                number = self.requester.flush(last)?;
            }
            if number.is_some_and(|number| self.requester.is_flushed(number)) {
                return Ok(());
            }
            if !self.wait_for_event(deadline)? {
                return Err(Error::timed_out(OPERATION));
            }
        }
    }

    /// Deregisters the whole allocation that contains this memory, here and for the peer: the
    /// peer's next access to its region ends the connection. Required before a buffer can be
    /// closed; host memory stays registered, and so pinned, until then or until the endpoint is
    /// dropped.
    ///
    /// If this drops the last reference to a closed device, the device's reset runs inside this
    /// call and can take a second or more.
    ///
    /// # Errors
    /// `InUse`: transfers are in flight, or copies for the peer do not end within
    /// [`EndpointOptions::copy_timeout`].
    pub fn forget(&mut self, memory: impl Into<Local>) -> Result<()> {
        self.check_process("forget")?;
        let (allocation, _) = memory.into().allocation();
        self.settle_abandoned();
        if !self.requester.is_idle() {
            return Err(Error::new(ErrorKind::InUse, "forget")
                .because("transfers are in flight")
                .helped_by("wait for them first"));
        }
        self.responder.withdraw(
            |staged| Allocation::of(staged).0.is_same(&allocation),
            self.options.copy_timeout,
        )?;
        self.regions.forget(&self.nic, &allocation)
    }

    /// Waits for transfers of calls that timed out: the caller cannot.
    fn settle_abandoned(&mut self) {
        let deadline = Deadline::from(self.options.copy_timeout);
        // Errors of the connection end the transfers.
        let _ = self.requester.progress();
        while self.requester.only_abandoned() && self.wait_for_event(deadline).is_ok_and(|moved| moved) {
            let _ = self.requester.progress();
        }
    }

    /// Ends the connection and deregisters all device memory at once, before or after a reset of
    /// the device. A live region of any process delays the reset.
    ///
    /// # Errors
    /// Of the first region or queue pair that the NIC does not release.
    pub fn device_lost(&mut self) -> Result<()> {
        self.check_process("device_lost")?;
        self.requester.fail(
            Error::new(ErrorKind::DeviceLost, "transfer").because("the device is lost or about to be reset"),
        );
        self.responder.stop();
        hang_up(self.stream.as_fd());
        let freed = self.regions.forget_device_memory();
        // Regions in the NIC's cache and of other endpoints delay the reset too.
        let kept = match &self.device {
            Some(device) => self.nic.revoke(device.id()).map(drop),
            None => Ok(()),
        };
        // Last: its thread may wait for a device that does not answer.
        let closed = self.responder.close();
        closed.and(freed).and(kept)
    }

    /// Fails the connection if the device was lost, or if this end stopped serving.
    fn notice(&mut self) -> Result<()> {
        // `Disconnected` is left to the requester: answers may still arrive after the hang-up.
        let ended = self.responder.ended();
        let ended = ended.filter(|error| error.kind() != ErrorKind::Disconnected);
        let Some(error) = self.regions.lost().or(ended.cloned()) else {
            return Ok(());
        };
        self.requester.fail(error.clone());
        Err(error)
    }

    /// Sleeps until the next event; `false` if the deadline passed first.
    fn wait_for_event(&mut self, deadline: Deadline) -> Result<bool> {
        let waited = self.requester.wait(self.stream.as_fd(), deadline);
        // This end may have hung up itself: for a lost device, or for what the peer sent.
        self.notice()?;
        waited
    }

    /// Fails with the cause once the connection has ended.
    fn check(&mut self) -> Result<()> {
        self.check_process("endpoint")?;
        let noticed = self.notice().err();
        let Some(error) = noticed.or_else(|| self.requester.broken.clone()) else {
            return Ok(());
        };
        if is_device_loss(&error) {
            self.regions.forget_device_memory()?;
        }
        Err(error)
    }

    /// Ends the connection: destroys queue pairs, then deregisters regions, then frees stages.
    ///
    /// # Errors
    /// Of the first object that does not close; all are tried.
    pub fn close(self) -> Result<()> {
        self.check_process("close")?;
        let Self {
            mut responder,
            requester,
            regions,
            ..
        } = self;
        let served = responder.close();
        let requested = requester.close();
        served.and(requested).and(regions.clear())
    }
}

fn same_length(operation: &'static str, local: u64, remote: &RemoteRange) -> Result<()> {
    if local == remote.len() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, operation)
        .because("both ends of a transfer have the same length")
        .saw(local, remote.len()))
}

fn staging_device(device: Option<&Device>) -> Result<&Device> {
    device.ok_or_else(|| {
        Error::unsupported(
            "staged copy",
            "the endpoint was made without a device whose engines could stage",
        )
    })
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({} to {})", self.nic.context().name(), self.peer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use gaudi_softnic::{SoftNic, SoftNicConfig};
    use gaudi_verbs::Context;

    use super::*;

    #[test]
    fn endpoint_can_move_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<Endpoint>();
    }

    #[test]
    fn dropped_endpoint_leaves_nothing_to_the_watching_thread() {
        let (nic, other) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
        let (context, other) = [nic, other]
            .map(|nic| Context::open(nic).expect("a context"))
            .into();
        let (stream, peer) = UnixStream::pair().expect("a socket pair");
        let connect = |stream, context: &Context| {
            let nic = Nic::new(context).expect("a NIC");
            Endpoint::over(stream, &nic, None, EndpointOptions::default()).expect("an endpoint")
        };
        let (mut endpoint, _peer) = std::thread::scope(|scope| {
            let other = scope.spawn(|| connect(peer, &other));
            (connect(stream, &context), other.join().expect("no panic"))
        });
        let memory = Arc::new(HostBuffer::new(64).expect("memory"));
        endpoint.offer(&memory, Rights::BOTH).expect("an offer");
        // As the thread does while it ends the use of a lost device.
        let held = Arc::clone(&endpoint.regions);
        drop(endpoint);
        context.close().expect("nothing holds the context");
        drop(held);
    }
}
