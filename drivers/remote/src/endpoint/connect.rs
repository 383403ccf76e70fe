//! Connects an endpoint: the stream, the two queue pairs, and the frames before the first transfer.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::poll::readable;
use gaudi_verbs::{Access, Framed, Gid, LinkLayer, Message as _, PortAttr, QpAddress, Stream};

use super::Endpoint;
use crate::channel::Channel;
use crate::nic::Nic;
use crate::options::EndpointOptions;
use crate::region::{OwnRegions, Regions};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::stream::{Body, HELLO, MAX_BODY, READY, io, protocol, put_text};
use crate::watch::WatchedEndpoint;

/// A timeout that does not pass: the kernel ends a connect before.
const FOREVER: Duration = Duration::from_secs(1 << 20);

impl Endpoint {
    /// Connects over TCP to a node that [accepts](Self::accept).
    ///
    /// The engines of `device` copy staged memory. Without a device, memory that the NIC cannot
    /// register cannot be used.
    ///
    /// # Errors
    /// - `NotFound`: the name has no address.
    /// - `TimedOut`: [`EndpointOptions::connect_timeout`] passed.
    /// - That of `connect(2)`, and as [`over`](Self::over).
    pub fn connect(
        to: impl ToSocketAddrs,
        nic: &Nic,
        device: Option<&Device>,
        options: EndpointOptions,
    ) -> Result<Self> {
        let end = Instant::now().checked_add(options.connect_timeout);
        let mut last = Error::new(ErrorKind::NotFound, "connect").because("the name has no address");
        for address in to.to_socket_addrs().map_err(io("connect"))? {
            let left = end.map_or(FOREVER, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Error::timed_out("connect"));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Self::over(stream, nic, device, options),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    last = Error::timed_out("connect");
                }
                Err(error) => last = io("connect")(error).because(format!("nothing listens at {address}")),
            }
        }
        Err(last)
    }

    /// Accepts the next node that [connects](Self::connect).
    ///
    /// # Errors
    /// - `TimedOut`: [`EndpointOptions::connect_timeout`] passed.
    /// - That of `accept(2)`, and as [`over`](Self::over).
    pub fn accept(
        listener: &TcpListener,
        nic: &Nic,
        device: Option<&Device>,
        options: EndpointOptions,
    ) -> Result<Self> {
        let [came] = readable([listener.as_fd()], options.connect_timeout)
            .map_err(|errno| Error::from_errno("accept", errno))?;
        if !came {
            return Err(Error::timed_out("accept"));
        }
        let (stream, _) = listener.accept().map_err(io("accept"))?;
        Self::over(stream, nic, device, options)
    }

    /// Makes one end over any stream; the peer does the same with the stream's other end.
    ///
    /// # Errors
    /// - `InvalidInput`: an option has an invalid value.
    /// - `Protocol`: the peer sent an invalid message.
    /// - `TimedOut`: the peer sent nothing in time.
    /// - `Unsupported`: one NIC's address is IPv4 and the other's IPv6.
    pub fn over(
        stream: impl Stream,
        nic: &Nic,
        device: Option<&Device>,
        options: EndpointOptions,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        options.check()?;
        let end = Instant::now().checked_add(options.connect_timeout);
        stream.prepare().map_err(io("setsockopt"))?;
        let mut stream = Framed::new(stream);
        let domain = nic.context().alloc_pd()?;
        let (mut asking, mut serving) = (Channel::new(nic.pd())?, Channel::new(&domain)?);
        let cqs = [asking.cq.handle(), serving.cq.handle()];
        let own = [asking.qp.address()?, serving.qp.address()?];
        let mut hello = Vec::with_capacity(128);
        own.iter().for_each(|address| hello.extend(address.encode()));
        put_text(&mut hello, nic.context().name(), 64);
        stream.send(HELLO, &hello, end)?;
        let answer = stream.receive(HELLO, MAX_BODY, end)?;
        let mut body = Body::new(&answer);
        let theirs = [
            QpAddress::decode(&body.take()?)?,
            QpAddress::decode(&body.take()?)?,
        ];
        let peer = body.text()?;
        body.end()?;
        let name = |address: &QpAddress| (address.qpn, address.gid);
        if own
            .iter()
            .any(|own| theirs.iter().any(|theirs| name(own) == name(theirs)))
        {
            return Err(protocol(
                "the peer sent the addresses of this node's own queue pairs",
            ));
        }
        let port = nic.context().query_port()?;
        let [their_asking, their_serving] = &theirs;
        check_family(&port, &their_asking.gid)?;
        asking.qp.connect(their_serving, Access::empty())?;
        serving
            .qp
            .connect(their_asking, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
        // The peer answers only after this end is ready.
        asking.open(nic, nic.pd())?;
        stream.send(READY, &[], end)?;
        Body::new(&stream.receive(READY, MAX_BODY, end)?).end()?;
        let same = stream.as_fd().try_clone_to_owned().map_err(io("dup"))?;
        let regions = Arc::new(Regions::new(same));
        let watched: Arc<dyn WatchedEndpoint> = Arc::<Regions>::clone(&regions);
        nic.watch().listen(cqs, &watched)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            owner: OwnerProcess::current(),
            responder: Responder::new(serving, domain),
            requester: Requester::new(nic, device, asking),
            regions: OwnRegions::new(regions),
            stream,
            nic: nic.clone(),
            device: device.cloned(),
            options,
            peer,
            max_msg_sz: port.max_msg_sz,
            next: 0,
            offers: 0,
            scratch: None,
        })
    }
}

/// Fails with `Unsupported` if one address is IPv4 (`::ffff:a.b.c.d`) and the other IPv6: RoCE v2
/// uses one family of IP.
fn check_family(port: &PortAttr, theirs: &Gid) -> Result<()> {
    let is_v4 = |gid: &Gid| std::net::Ipv6Addr::from(gid.0).to_ipv4_mapped().is_some();
    if port.link_layer != LinkLayer::ETHERNET || is_v4(&port.gid) == is_v4(theirs) {
        return Ok(());
    }
    Err(
        Error::unsupported("connect", "one NIC's address is IPv4, the other's IPv6")
            .saw(format!("{} and {theirs}", port.gid), "two of one family")
            .helped_by("choose another GID index on one side"),
    )
}
