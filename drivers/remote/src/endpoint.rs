//! [`Endpoint`]: one end of a connection between two nodes, and the operations on it.

use std::fmt;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gaudi_device::{Buffer, Device, HostBuffer};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::poll::readable;
use gaudi_verbs::{Access, Cq, Gid, LinkLayer, Message as _, Qp, QpAddress, QpInit};

use crate::ask::Asker;
use crate::job::{Done, End, Job};
use crate::ladder::{Report, Step};
use crate::nic::Nic;
use crate::offer::{Offer, Remote, RemoteRange, Rights, Way};
use crate::options::Options;
use crate::region::{Held, Local, Place, Region, Regions};
use crate::serve::{Server, hang_up};
use crate::stage::{MOST, Stage};
use crate::stream::{Body, Framed, Kind, Stream, put_text};

/// Bytes that [`Endpoint::put_bytes`] and [`Endpoint::get_bytes`] move at a time.
const BYTES: usize = 256 << 10;

/// Until when a call waits. A [`Duration`] counts from the conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until(Option<Instant>);

impl Until {
    /// As long as it takes: an answer, an error or the peer's death ends every wait.
    pub const DONE: Self = Self(None);
}

impl From<Duration> for Until {
    fn from(time: Duration) -> Self {
        Self(Instant::now().checked_add(time))
    }
}

impl From<Instant> for Until {
    fn from(end: Instant) -> Self {
        Self(Some(end))
    }
}

/// A transfer under way: [`Endpoint::wait`] for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a transfer that nobody waits for may fail unseen"]
pub struct Transfer(u64);

/// One end of a connection: puts into the peer's memory and gets from it, and lets the peer do the same with ours.
///
/// Each end has two queue pairs: one asks, one serves. Transfers move on while somebody is in [`wait`](Self::wait) or
/// [`poll`](Self::poll); what the peer asks of us needs no call of ours. Whoever drops an endpoint ends the connection: queue pairs go
/// first, then regions, then what they stood on.
///
/// After an error of the connection every call answers with it: make a new endpoint.
pub struct Endpoint {
    id: u64,
    /// First: the peer must not reach what goes after it.
    server: Server,
    asker: Asker,
    regions: Arc<Mutex<Regions>>,
    stream: Framed,
    nic: Nic,
    device: Option<Device>,
    options: Options,
    peer: String,
    next: u64,
    offers: u32,
    /// For bytes of the program.
    scratch: Option<Arc<HostBuffer>>,
}

fn lock(regions: &Mutex<Regions>) -> MutexGuard<'_, Regions> {
    regions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    /// Connects to a node that [accepts](Self::accept), over TCP.
    ///
    /// `device` is whose engines stage; without one, memory that the NIC does not reach by its dma-buf cannot be used.
    pub fn connect(
        to: impl ToSocketAddrs,
        nic: &Nic,
        device: Option<&Device>,
        options: Options,
    ) -> Result<Self> {
        let end = Instant::now() + options.connect_timeout;
        let io = |error| Error::from_errno("connect", gaudi_sys::fd::errno_of(error));
        let mut last = Error::new(ErrorKind::NotFound, "connect").because("the name has no address");
        for address in to.to_socket_addrs().map_err(io)? {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::timed_out("connect"));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Self::over_tcp(stream, nic, device, options),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    last = Error::timed_out("connect");
                }
                Err(error) => last = io(error).because(format!("nobody listens at {address}")),
            }
        }
        Err(last)
    }

    /// Accepts the next node that [connects](Self::connect).
    pub fn accept(
        listener: &TcpListener,
        nic: &Nic,
        device: Option<&Device>,
        options: Options,
    ) -> Result<Self> {
        let [came] = readable([listener.as_fd()], options.connect_timeout)
            .map_err(|errno| Error::from_errno("accept", errno))?;
        if !came {
            return Err(Error::timed_out("accept"));
        }
        let (stream, _) = listener
            .accept()
            .map_err(|error| Error::from_errno("accept", gaudi_sys::fd::errno_of(error)))?;
        Self::over_tcp(stream, nic, device, options)
    }

    fn over_tcp(stream: TcpStream, nic: &Nic, device: Option<&Device>, options: Options) -> Result<Self> {
        // Small messages that somebody waits for.
        stream
            .set_nodelay(true)
            .map_err(|error| Error::from_errno("TCP_NODELAY", gaudi_sys::fd::errno_of(error)))?;
        Self::over(stream, nic, device, options)
    }

    /// Makes one end over any stream; the peer does the same with the other end of it.
    ///
    /// `Protocol` where the peer says what it must not, `TimedOut` where it says nothing in time, `Unsupported` where the two NICs'
    /// addresses do not fit one another.
    pub fn over(stream: impl Stream, nic: &Nic, device: Option<&Device>, options: Options) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        options.check()?;
        let end = Instant::now().checked_add(options.connect_timeout);
        let mut stream = Framed::new(Box::new(stream));
        let (mut asking, asking_cq) = queue_pair(nic)?;
        let (mut serving, serving_cq) = queue_pair(nic)?;
        let mut hello = Vec::with_capacity(128);
        hello.extend(asking.address()?.encode());
        hello.extend(serving.address()?.encode());
        put_text(&mut hello, nic.context().name(), 64);
        stream.send(Kind::Hello, &hello, end)?;
        let answer = stream.receive(Kind::Hello, end)?;
        let mut body = Body::new(&answer);
        let (their_asking, their_serving) = (
            QpAddress::decode(&body.take()?)?,
            QpAddress::decode(&body.take()?)?,
        );
        let peer = body.text()?;
        body.end()?;
        check_family(nic, &their_asking.gid)?;
        asking.connect(&their_serving, Access::empty())?;
        serving.connect(&their_asking, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        // Receives stand before the peer may send.
        let asker = Asker::new(nic, device, asking, asking_cq)?;
        stream.send(Kind::Ready, &[], end)?;
        Body::new(&stream.receive(Kind::Ready, end)?).end()?;
        let same = stream
            .fd()
            .try_clone_to_owned()
            .map_err(|error| Error::from_errno("dup", gaudi_sys::fd::errno_of(error)))?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            server: Server::new(serving, serving_cq),
            asker,
            regions: Arc::new(Mutex::new(Regions::of(same))),
            stream,
            nic: nic.clone(),
            device: device.cloned(),
            options,
            peer,
            next: 0,
            offers: 0,
            scratch: None,
        })
    }

    /// The peer's NIC, as it calls itself.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Our NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Lets the peer reach memory of ours, and tells it so: the peer [receives](Self::receive_offer) the offer. Says which way its
    /// NIC comes to it, and why no better one.
    ///
    /// Only the range is registered, with these rights. The peer may use it until it is [forgotten](Self::forget) or the endpoint goes.
    pub fn offer(&mut self, memory: impl Into<Local>, rights: Rights) -> Result<Report> {
        let memory = memory.into();
        self.check()?;
        if memory.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "offer").because("there are no bytes to offer"));
        }
        let (held, offset) = memory.held();
        let range = offset..offset + memory.len();
        let id = self.offers;
        let Self {
            server,
            regions,
            nic,
            device,
            options,
            stream,
            ..
        } = self;
        let access = rights.access();
        let found = lock(regions).find(&held, &range, access, true).map(|region| {
            (
                region.report.clone(),
                region.registered.as_ref().map(|r| r.mr().remote()),
            )
        });
        let (report, direct) = match found {
            Some(found) => found,
            None => {
                let slots = || {
                    let device = staging_device(device.as_ref())?;
                    let (_, chunk_bytes, depth) = server.slots(nic, device, options, regions, stream.fd())?;
                    Ok(Step::Staged { chunk_bytes, depth })
                };
                let region = Region::new(nic, held, range, access, options.policy, regions, slots)?;
                let mut regions = lock(regions);
                let region = regions.keep(region);
                (
                    region.report.clone(),
                    region.registered.as_ref().map(|r| r.mr().remote()),
                )
            }
        };
        let way = match (direct, &memory.0) {
            (Some(region), _) => Way::Direct(region),
            (None, Place::Device(location)) => {
                let (slots, chunk, depth) = server.slots(
                    nic,
                    staging_device(device.as_ref())?,
                    options,
                    regions,
                    stream.fd(),
                )?;
                server.offer(id, location.clone(), rights);
                Way::Slots { slots, chunk, depth }
            }
            (None, Place::Host(..)) => unreachable!("host memory is never staged"),
        };
        let offer = Offer {
            id,
            rights,
            len: memory.len(),
            way,
            report: report.clone(),
        };
        self.offers = self.offers.wrapping_add(1);
        let end = Instant::now().checked_add(self.options.connect_timeout);
        self.stream.send(Kind::Offer, &offer.encode(), end)?;
        Ok(report)
    }

    /// The next memory that the peer [offers](Self::offer), in the order in which it does. `TimedOut` where nothing comes.
    pub fn receive_offer(&mut self, until: impl Into<Until>) -> Result<Remote> {
        self.check()?;
        let until = until.into();
        let body = self.stream.receive(Kind::Offer, until.0)?;
        let offer = Offer::decode(&body)?;
        Ok(Remote {
            offer: Arc::new(offer),
            endpoint: self.id,
        })
    }

    /// Begins to copy our memory into the peer's. Same length on both sides; none is fine.
    ///
    /// When it is done the bytes are in the peer's memory as far as the peer's NIC is concerned; who polls device memory there needs
    /// [`flush_remote`](Self::flush_remote). Where it fails the range at the peer holds any mixture of old and new bytes.
    pub fn put(&mut self, from: impl Into<Local>, to: impl Into<RemoteRange>) -> Result<Transfer> {
        self.transfer("put", from.into(), to.into(), true)
    }

    /// Begins to copy the peer's memory into ours.
    pub fn get(&mut self, into: impl Into<Local>, from: impl Into<RemoteRange>) -> Result<Transfer> {
        self.transfer("get", into.into(), from.into(), false)
    }

    fn transfer(
        &mut self,
        what: &'static str,
        local: Local,
        remote: RemoteRange,
        put: bool,
    ) -> Result<Transfer> {
        self.check()?;
        let wrong = |cause: &str| Error::new(ErrorKind::InvalidInput, what).because(cause);
        if local.len() != remote.len() {
            return Err(wrong("both ends of a transfer have the same length").saw(local.len(), remote.len()));
        }
        if remote.remote.endpoint != self.id {
            return Err(wrong("the memory was offered to another endpoint"));
        }
        let rights = remote.remote.rights();
        if (put && !rights.put) || (!put && !rights.get) {
            return Err(Error::new(ErrorKind::AccessDenied, what)
                .because("the peer did not offer the memory for that")
                .saw(format!("{rights:?}"), what));
        }
        let (held, offset) = local.held();
        let access = if put { Access::empty() } else { Access::LOCAL_WRITE };
        let whole = 0..held.len();
        let found = self.reach(&held, &whole, access)?;
        let local_end = match (found, local.0) {
            ((Some(first), step), _) => (End::Region(first.at(offset)?), step),
            ((None, step), Place::Device(location)) => (End::Staged(location), step),
            ((None, _), Place::Host(..)) => unreachable!("host memory is never staged"),
        };
        let staged = matches!(local_end.0, End::Staged(_));
        let stage = self.asker.stage.as_ref().filter(|_| staged).map(Stage::chunk);
        let most = self.nic.context().query_port()?.max_msg_sz;
        let id = self.next;
        self.next += 1;
        let len = remote.len();
        self.asker.add(Job {
            id,
            put,
            local: local_end.0,
            chunk: Job::chunk_of(stage, &remote.remote, most),
            at: remote.range.start,
            remote: remote.remote,
            len,
            step: local_end.1,
            begun: 0,
            in_flight: 0,
            chunks: 0,
            failed: None,
        });
        if len == 0 {
            self.asker.end_empty();
        }
        // What is wrong with the connection is told by `wait`, with the transfer that it ended.
        let _ = self.asker.progress();
        Ok(Transfer(id))
    }

    /// How our NIC comes to memory of ours: registered whole, once, and kept.
    fn reach(
        &mut self,
        held: &Held,
        whole: &std::ops::Range<u64>,
        access: Access,
    ) -> Result<(Option<First>, Step)> {
        let first = |region: &Region| (First::of(region), region.report.step);
        if let Some(found) = lock(&self.regions).find(held, whole, access, false).map(first) {
            if found.0.is_some() || self.asker.stage.is_some() {
                return Ok(found);
            }
        }
        let Self {
            asker,
            regions,
            nic,
            device,
            options,
            ..
        } = self;
        let staged = || {
            if asker.stage.is_none() {
                let device = staging_device(device.as_ref())?;
                asker.stage = Some(Stage::new(nic, device, options, Access::LOCAL_WRITE)?);
            }
            Ok(Step::Staged {
                chunk_bytes: options.chunk_bytes,
                depth: options.depth,
            })
        };
        let region = Region::new(
            nic,
            held.clone(),
            whole.clone(),
            access,
            options.policy,
            regions,
            staged,
        )?;
        let mut regions = lock(regions);
        Ok(first(regions.keep(region)))
    }

    /// How our NIC comes to memory of ours, and why no better way: registers it as a transfer would.
    pub fn report(&mut self, memory: impl Into<Local>) -> Result<Report> {
        self.check()?;
        let (held, _) = memory.into().held();
        let whole = 0..held.len();
        self.reach(&held, &whole, Access::LOCAL_WRITE)?;
        let regions = lock(&self.regions);
        let region = regions.find(&held, &whole, Access::LOCAL_WRITE, false);
        region
            .map(|region| region.report.clone())
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "report"))
    }

    /// Moves transfers on without waiting; the result of this one where it is over. Take it once.
    pub fn poll(&mut self, transfer: Transfer) -> Result<Option<Done>> {
        let moved = self.notice().and_then(|()| self.asker.progress());
        match self.asker.take(transfer.0) {
            // A region that went with its device fails as any other; why it went is known.
            Some(Err(error)) => Err(lock(&self.regions).lost().cloned().unwrap_or(error)),
            Some(Ok(done)) => Ok(Some(done)),
            None => moved.map(|()| None),
        }
    }

    /// Waits until a transfer is over. `TimedOut` where the time passes first: it goes on with the next call.
    pub fn wait(&mut self, transfer: Transfer, until: impl Into<Until>) -> Result<Done> {
        let until = until.into();
        loop {
            if let Some(done) = self.poll(transfer)? {
                return Ok(done);
            }
            if !self.rest(until)? {
                return match self.poll(transfer)? {
                    Some(done) => Ok(done),
                    None => Err(Error::timed_out("transfer")),
                };
            }
        }
    }

    /// Makes what was put into the peer's memory visible to whoever polls it there: a read after the writes, which pushes them out of
    /// every bridge on the way. Puts that are waited for before this call are covered.
    ///
    /// Staged puts need none, since the peer's engine has copied them when they are done. Needs the right to get.
    pub fn flush_remote(&mut self, remote: &Remote, until: impl Into<Until>) -> Result<()> {
        const OPERATION: &str = "flush_remote";
        self.check()?;
        let until = until.into();
        let Way::Direct(region) = remote.offer.way else {
            return Ok(());
        };
        if !remote.rights().get {
            return Err(Error::new(ErrorKind::AccessDenied, OPERATION)
                .because("a flush reads, and the memory was not offered to get from")
                .helped_by("offer it with Rights::BOTH"));
        }
        let last = region.at(region.len.saturating_sub(1), 1)?;
        self.asker.flush(last)?;
        loop {
            self.asker.progress()?;
            if self.asker.is_flushed() {
                return Ok(());
            }
            if !self.rest(until)? {
                return Err(Error::timed_out(OPERATION));
            }
        }
    }

    /// Puts bytes of the program and waits for it. The processor copies them once ([`Stats::cpu_copied_bytes`](crate::Stats)).
    pub fn put_bytes(
        &mut self,
        bytes: &[u8],
        to: impl Into<RemoteRange>,
        until: impl Into<Until>,
    ) -> Result<()> {
        let (to, until, scratch) = (to.into(), until.into(), self.scratch()?);
        same_length("put_bytes", bytes.len(), &to)?;
        let mut at = to.range.start;
        for part in bytes.chunks(BYTES) {
            scratch.write(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            let end = at + part.len() as u64;
            let put = self.put(Local::host(&scratch, 0..part.len())?, to.remote.at(at..end)?)?;
            self.wait(put, until)?;
            at = end;
        }
        Ok(())
    }

    /// Gets bytes for the program; the counterpart of [`put_bytes`](Self::put_bytes).
    pub fn get_bytes(
        &mut self,
        into: &mut [u8],
        from: impl Into<RemoteRange>,
        until: impl Into<Until>,
    ) -> Result<()> {
        let (from, until, scratch) = (from.into(), until.into(), self.scratch()?);
        same_length("get_bytes", into.len(), &from)?;
        let mut at = from.range.start;
        for part in into.chunks_mut(BYTES) {
            let end = at + part.len() as u64;
            let get = self.get(Local::host(&scratch, 0..part.len())?, from.remote.at(at..end)?)?;
            self.wait(get, until)?;
            scratch.read(0, part)?;
            self.nic.counters().cpu_copied_bytes.add(part.len() as u64);
            at = end;
        }
        Ok(())
    }

    fn scratch(&mut self) -> Result<Arc<HostBuffer>> {
        if let Some(scratch) = &self.scratch {
            return Ok(Arc::clone(scratch));
        }
        let scratch = Arc::new(HostBuffer::new(BYTES)?);
        self.scratch = Some(Arc::clone(&scratch));
        Ok(scratch)
    }

    /// Lets go of a buffer: its regions are deregistered, and the peer reaches it no more (its next access breaks the connection where
    /// the memory was offered by its own region). Needed before the buffer can be closed. `InUse` while transfers run.
    ///
    /// The last hold on a closed device may take a second and more: its reset runs inside this call.
    pub fn forget(&mut self, buffer: &Buffer) -> Result<()> {
        if !self.asker.is_idle() {
            return Err(Error::new(ErrorKind::InUse, "forget")
                .because("transfers are under way")
                .helped_by("wait for them first"));
        }
        self.server
            .withdraw(|memory| memory.in_device().is_some_and(|(held, _)| held.is_same(buffer)));
        lock(&self.regions).forget(&self.nic, &Held::Buffer(buffer.clone()))
    }

    /// For the moment before, or after, a device is reset: ends the connection and deregisters all device memory at once. A live region
    /// would hold the reset up, in this process or any other.
    pub fn device_lost(&mut self) -> Result<()> {
        self.asker.fail(
            Error::new(ErrorKind::DeviceLost, "transfer").because("the device was given up for a reset"),
        );
        let closed = self.server.close();
        hang_up(self.stream.fd());
        let freed = lock(&self.regions).forget_device_memory();
        // What the NIC keeps of the device, and what other endpoints have, would hold the reset up too.
        let kept = match &self.device {
            Some(device) => self.nic.revoke(device.id()).map(drop),
            None => Ok(()),
        };
        closed.and(freed).and(kept)
    }

    /// Whether the device was lost meanwhile: nothing moves on then.
    fn notice(&mut self) -> Result<()> {
        let Some(error) = lock(&self.regions).lost().cloned() else {
            return Ok(());
        };
        self.asker.fail(error.clone());
        Err(error)
    }

    /// Sleeps until something moves; `false` where the time passes first.
    fn rest(&mut self, until: Until) -> Result<bool> {
        let rested = self.asker.rest(self.stream.fd(), until.0);
        // The hang-up may be our own NIC's, for a device that was lost.
        self.notice()?;
        rested
    }

    /// Fails with the reason once the connection is of no more use.
    fn check(&mut self) -> Result<()> {
        if let Err(error) = self.notice() {
            lock(&self.regions).forget_device_memory()?;
            return Err(error);
        }
        if let Some(error) = self.server.ended() {
            if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
                self.asker.fail(error);
            }
        }
        if let Some(error) = self.asker.broken() {
            let error = error.clone();
            if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
                lock(&self.regions).forget_device_memory()?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Ends the connection in order, and says what did not go: queue pairs, regions, stages.
    pub fn close(self) -> Result<()> {
        let Self {
            mut server,
            asker,
            regions,
            ..
        } = self;
        let served = server.close();
        let asked = asker.close();
        let freed = lock(&regions).clear();
        served.and(asked).and(freed)
    }
}

/// The first byte of an allocation, for the NIC.
#[derive(Clone, Copy)]
struct First(gaudi_verbs::Sge);

impl First {
    fn of(region: &Region) -> Option<Self> {
        region.sge(0).map(Self)
    }

    fn at(self, offset: u64) -> Result<gaudi_verbs::Sge> {
        let addr = self.0.addr.checked_add(offset).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "transfer").because("the range leaves the address space")
        })?;
        Ok(gaudi_verbs::Sge { addr, ..self.0 })
    }
}

fn staging_device(device: Option<&Device>) -> Result<&Device> {
    device.ok_or_else(|| {
        Error::unsupported(
            "staged copy",
            "the endpoint was made without a device whose engines could stage",
        )
    })
}

fn same_length(what: &'static str, local: usize, remote: &RemoteRange) -> Result<()> {
    if local as u64 == remote.len() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, what)
        .because("both ends of a transfer have the same length")
        .saw(local, remote.len()))
}

fn queue_pair(nic: &Nic) -> Result<(Qp, Cq)> {
    // Two work requests a slot, their receives, a flush.
    let (sends, receives) = (2 * MOST as u32 + 2, MOST as u32);
    let cq = nic.context().create_cq(sends + receives)?;
    let qp = nic.pd().create_qp(&QpInit {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        ..QpInit::new(&cq)
    })?;
    Ok((qp, cq))
}

/// RoCE v2 goes over one family of IP: an IPv4 address (as `::ffff:a.b.c.d`) and an IPv6 one cannot talk.
fn check_family(nic: &Nic, theirs: &Gid) -> Result<()> {
    let port = nic.context().query_port()?;
    let is_v4 = |gid: &Gid| std::net::Ipv6Addr::from(gid.0).to_ipv4_mapped().is_some();
    if port.link_layer != LinkLayer::ETHERNET || is_v4(&port.gid) == is_v4(theirs) {
        return Ok(());
    }
    Err(
        Error::unsupported("connect", "one NIC's address is IPv4, the other's IPv6")
            .saw(format!("{} and {theirs}", port.gid), "two of one family")
            .helped_by("choose another GID index on one side: gaudi nics lists them"),
    )
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({} to {})", self.nic.context().name(), self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_moves_between_threads() {
        fn sends<T: Send>() {}
        sends::<Endpoint>();
    }
}
