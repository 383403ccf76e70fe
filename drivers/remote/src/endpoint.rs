//! [`Endpoint`]: one end of a connection between two nodes, and the operations on it.

mod bytes;
mod connect;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gaudi_device::{Device, HostBuffer};
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_verbs::Access;

use crate::ask::Asker;
use crate::job::{Done, End, Job};
use crate::ladder::{Report, Step};
use crate::nic::Nic;
use crate::offer::{Offer, Remote, RemoteRange, Rights, Way};
use crate::options::Options;
use crate::region::{Held, Local, Part, Place, Region, Regions};
use crate::serve::{Server, forked, hang_up};
use crate::stage::Stage;
use crate::stream::{Framed, Kind};

/// Until when a call waits. A [`Duration`] counts from the conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until(Option<Instant>);

impl Until {
    /// As long as it takes: an answer, an error or the peer's death ends every wait. Over TCP the death of the peer's whole machine, or
    /// of the way to it, is known after 30 s of silence ([`Stream`](crate::Stream::prepare)); a process that ends is known at once.
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
pub struct Transfer {
    /// Of the endpoint that began it.
    endpoint: u64,
    id: u64,
}

/// One end of a connection: puts into the peer's memory and gets from it, and lets the peer do the same with ours.
///
/// Each end has two queue pairs: one asks, one serves. Transfers move on while somebody is in [`wait`](Self::wait) or
/// [`poll`](Self::poll); what the peer asks of us needs no call of ours. Whoever drops an endpoint ends the connection: queue pairs go
/// first, then regions, then what they stood on.
///
/// After an error of the connection every call answers with it: make a new endpoint.
pub struct Endpoint {
    id: u64,
    owner: OwnerProcess,
    /// First: the peer must not reach what goes after it.
    server: Server,
    asker: Asker,
    regions: Arc<Mutex<Regions>>,
    stream: Framed,
    nic: Nic,
    device: Option<Device>,
    options: Options,
    peer: String,
    /// Our port's, once: a question for it reads all its addresses.
    max_msg_sz: u32,
    next: u64,
    offers: u32,
    /// For bytes of the program; no transfer uses it between two calls.
    scratch: Option<Arc<HostBuffer>>,
}

fn lock(regions: &Mutex<Regions>) -> MutexGuard<'_, Regions> {
    regions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    /// Transfers that can be begun and not yet waited for, at once.
    pub const MOST_TRANSFERS: usize = 1 << 14;

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
        let domain = server.domain().clone();
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
                let region = Region::new(
                    nic,
                    held,
                    Part {
                        range,
                        access,
                        offered: Some(&domain),
                    },
                    options.policy,
                    regions,
                    slots,
                )?;
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
        let sent = self.stream.send(Kind::Offer, &offer.encode(), end);
        self.heed_stream();
        if sent.is_err() {
            // Our own end may have hung up meanwhile, and knows why.
            self.check()?;
        }
        sent.map(|()| report)
    }

    /// The next memory that the peer [offers](Self::offer), in the order in which it does. `TimedOut` where nothing comes; where an
    /// offer stops in its middle, the connection is over.
    pub fn receive_offer(&mut self, until: impl Into<Until>) -> Result<Remote> {
        self.check()?;
        let until = until.into();
        let body = self.stream.receive(Kind::Offer, until.0);
        if body.is_err() {
            // If this end closed the connection, the notice has the cause.
            self.notice()?;
        }
        self.heed_stream();
        let offer = Offer::decode(&body?)?;
        Ok(Remote {
            offer: Arc::new(offer),
            endpoint: self.id,
        })
    }

    /// A stream that is out of step is the end of the connection.
    fn heed_stream(&mut self) {
        if let Some(error) = self.stream.broken() {
            self.asker.fail(error.clone());
        }
    }

    /// Begins to copy our memory into the peer's. Same length on both sides; none is fine.
    ///
    /// When it is done the bytes are in the peer's memory as far as the peer's NIC is concerned; who polls device memory there needs
    /// [`flush_remote`](Self::flush_remote). Where it fails the range at the peer holds any mixture of old and new bytes.
    ///
    /// The result stays until it is waited for. `WouldBlock` where [`MOST_TRANSFERS`](Self::MOST_TRANSFERS) have not been.
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
        if self.asker.begun() >= Self::MOST_TRANSFERS {
            return Err(Error::new(ErrorKind::WouldBlock, what)
                .because("too many transfers were begun and not waited for")
                .saw(self.asker.begun(), format!("below {}", Self::MOST_TRANSFERS))
                .helped_by("wait for the oldest first"));
        }
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
        let id = self.next;
        self.next += 1;
        let len = remote.len();
        self.asker.add(Job {
            id,
            put,
            local: local_end.0,
            chunk: Job::chunk_of(stage, &remote.remote, self.max_msg_sz),
            at: remote.range.start,
            remote: remote.remote,
            len,
            step: local_end.1,
            begun: 0,
            in_flight: 0,
            chunks: 0,
            failed: None,
            abandoned: None,
        });
        if len == 0 {
            self.asker.end_empty();
        }
        // What is wrong with the connection is told by `wait`, with the transfer that it ended.
        let _ = self.asker.progress();
        Ok(Transfer {
            endpoint: self.id,
            id,
        })
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
                asker.stage = Some(Stage::new(nic, nic.pd(), device, options, Access::LOCAL_WRITE)?);
            }
            Ok(Step::Staged {
                chunk_bytes: options.chunk_bytes,
                depth: options.depth,
            })
        };
        let region = Region::new(
            nic,
            held.clone(),
            Part {
                range: whole.clone(),
                access,
                offered: None,
            },
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

    /// `Forked` in a fork child. Other threads, which do not exist there, may have held the locks that every call takes.
    fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.owner.is_foreign() {
            return Err(forked(operation));
        }
        Ok(())
    }

    /// Moves transfers on without waiting; the result of this one where it is over. Take it once. `InvalidInput` where another endpoint
    /// began it.
    pub fn poll(&mut self, transfer: Transfer) -> Result<Option<Done>> {
        if transfer.endpoint != self.id {
            return Err(Error::new(ErrorKind::InvalidInput, "transfer").because("another endpoint began it"));
        }
        self.check_process("transfer")?;
        // An error of the connection is the result of each transfer that it ended.
        let _ = self.notice().and_then(|()| self.asker.progress());
        match self.asker.take(transfer.id) {
            // A region that went with its device fails as any other; why it went is known.
            Some(Err(error)) => Err(lock(&self.regions).lost().cloned().unwrap_or(error)),
            Some(Ok(done)) => Ok(Some(done)),
            None => Ok(None),
        }
    }

    /// Waits until a transfer is over. After any error but `TimedOut` neither the NIC nor an engine of this node accesses its memory.
    ///
    /// `TimedOut` if `until` passes first: the transfer continues with the next call.
    pub fn wait(&mut self, transfer: Transfer, until: impl Into<Until>) -> Result<Done> {
        let until = until.into();
        loop {
            if let Some(done) = self.poll(transfer)? {
                return Ok(done);
            }
            // The next poll has the result where this fails.
            if !self.asker.rest(self.stream.fd(), until.0).unwrap_or(true) {
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
        let mut number = self.asker.flush(last)?;
        loop {
            self.asker.progress()?;
            match number {
                Some(number) if self.asker.is_flushed(number) => return Ok(()),
                Some(_) => {}
                None => {
                    number = self.asker.flush(last)?;
                    if number.is_some() {
                        continue;
                    }
                }
            }
            if !self.rest(until)? {
                return Err(Error::timed_out(OPERATION));
            }
        }
    }

    /// Lets go of memory, the whole allocation that it lies in: its regions are deregistered, and the peer reaches it no more (its next
    /// access breaks the connection where the memory was offered by its own region). Needed before a buffer can be closed; host memory
    /// stays registered, and so pinned, until it is forgotten or the endpoint goes.
    ///
    /// `InUse` while transfers run, and where copies that the peer asked for are not over within [`Options::patience`]: when this
    /// returns, none lands any more.
    ///
    /// The last hold on a closed device may take a second and more: its reset runs inside this call.
    pub fn forget(&mut self, memory: impl Into<Local>) -> Result<()> {
        self.check_process("forget")?;
        let memory = memory.into();
        self.settle_abandoned();
        if !self.asker.is_idle() {
            return Err(Error::new(ErrorKind::InUse, "forget")
                .because("transfers are under way")
                .helped_by("wait for them first"));
        }
        self.server
            .withdraw(|staged| memory.is_around(staged), self.options.patience)?;
        lock(&self.regions).forget(&self.nic, &memory.held().0)
    }

    /// Waits for what only calls that timed out have left behind: nobody else could.
    fn settle_abandoned(&mut self) {
        let until = Until::from(self.options.patience);
        let _ = self.asker.progress();
        // After an error of the connection nothing is under way any more.
        while self.asker.only_abandoned() && self.rest(until).is_ok_and(|moved| moved) {
            let _ = self.asker.progress();
        }
    }

    /// For the moment before, or after, a device is reset: ends the connection and deregisters all device memory at once. A live region
    /// would hold the reset up, in this process or any other.
    pub fn device_lost(&mut self) -> Result<()> {
        self.check_process("device_lost")?;
        self.asker.fail(
            Error::new(ErrorKind::DeviceLost, "transfer").because("the device was given up for a reset"),
        );
        self.server.stop();
        hang_up(self.stream.fd());
        let freed = lock(&self.regions).forget_device_memory();
        // What the NIC keeps of the device, and what other endpoints have, would hold the reset up too.
        let kept = match &self.device {
            Some(device) => self.nic.revoke(device.id()).map(drop),
            None => Ok(()),
        };
        // Last: its thread may be at a device that does not answer, which is when a reset is wanted.
        let closed = self.server.close();
        closed.and(freed).and(kept)
    }

    /// Whether the device was lost meanwhile, or our own serving end gave up: nothing moves on then.
    fn notice(&mut self) -> Result<()> {
        let lost = lock(&self.regions).lost().cloned();
        // Whether a peer that goes still has answers on their way, the asking end knows better.
        let ended = || {
            let ended = self.server.ended();
            ended
                .filter(|error| error.kind() != ErrorKind::Disconnected)
                .cloned()
        };
        let Some(error) = lost.or_else(ended) else {
            return Ok(());
        };
        self.asker.fail(error.clone());
        Err(error)
    }

    /// Sleeps until something moves; `false` where the time passes first.
    fn rest(&mut self, until: Until) -> Result<bool> {
        let rested = self.asker.rest(self.stream.fd(), until.0);
        // The hang-up may be our own: of the NIC's thread for a device that was lost, of the serving thread for what the peer did.
        self.notice()?;
        rested
    }

    /// Fails with the reason once the connection is of no more use.
    fn check(&mut self) -> Result<()> {
        self.check_process("endpoint")?;
        let noticed = self.notice().err();
        let Some(error) = noticed.or_else(|| self.asker.broken().cloned()) else {
            return Ok(());
        };
        if matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::InReset) {
            lock(&self.regions).forget_device_memory()?;
        }
        Err(error)
    }

    /// Ends the connection in order, and says what did not go: queue pairs, regions, stages.
    pub fn close(self) -> Result<()> {
        self.check_process("close")?;
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
