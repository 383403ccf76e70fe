//! How an endpoint comes to be: the stream, the two queue pairs, and what the two ends say before the first transfer.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::poll::readable;
use gaudi_verbs::{Access, Cq, Gid, LinkLayer, Message as _, Pd, PortAttr, Qp, QpAddress, QpInit};

use super::Endpoint;
use crate::ask::Asker;
use crate::nic::Nic;
use crate::options::Options;
use crate::region::Regions;
use crate::serve::Server;
use crate::stage::MOST;
use crate::stream::{Body, Framed, Kind, Stream, protocol, put_text};

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
        let end = Instant::now().checked_add(options.connect_timeout);
        let io = |error| Error::from_errno("connect", gaudi_sys::fd::errno_of(error));
        let mut last = Error::new(ErrorKind::NotFound, "connect").because("the name has no address");
        for address in to.to_socket_addrs().map_err(io)? {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let stream = match left {
                Some(Duration::ZERO) => return Err(Error::timed_out("connect")),
                Some(left) => TcpStream::connect_timeout(&address, left),
                None => TcpStream::connect(address),
            };
            match stream {
                Ok(stream) => return Self::over(stream, nic, device, options),
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
        stream
            .prepare()
            .map_err(|error| Error::from_errno("setsockopt", gaudi_sys::fd::errno_of(error)))?;
        let mut stream = Framed::new(Box::new(stream));
        let domain = nic.context().alloc_pd()?;
        let (mut asking, asking_cq) = queue_pair(nic.pd())?;
        let (mut serving, serving_cq) = queue_pair(&domain)?;
        let cqs = [asking_cq.handle(), serving_cq.handle()];
        let own = [asking.address()?, serving.address()?];
        let mut hello = Vec::with_capacity(128);
        own.iter().for_each(|address| hello.extend(address.encode()));
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
        let is_own = |theirs: &QpAddress| {
            own.iter()
                .any(|own| (own.qpn, own.gid) == (theirs.qpn, theirs.gid))
        };
        if is_own(&their_asking) || is_own(&their_serving) {
            return Err(protocol(
                "the peer sent the addresses of this node's own queue pairs",
            ));
        }
        let port = nic.context().query_port()?;
        check_family(&port, &their_asking.gid)?;
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
        let regions = Arc::new(Mutex::new(Regions::of(same)));
        nic.watch().listen(cqs, &regions)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            owner: OwnerProcess::current(),
            server: Server::new(serving, serving_cq, domain),
            asker,
            regions,
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

fn queue_pair(pd: &Pd) -> Result<(Qp, Cq)> {
    // Two work requests a slot, their receives, a flush.
    let (sends, receives) = (2 * MOST as u32 + 2, MOST as u32);
    let cq = pd.context().create_cq(sends + receives)?;
    let qp = pd.create_qp(&QpInit {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        ..QpInit::new(&cq)
    })?;
    Ok((qp, cq))
}

/// RoCE v2 goes over one family of IP: an IPv4 address (as `::ffff:a.b.c.d`) and an IPv6 one cannot talk.
fn check_family(port: &PortAttr, theirs: &Gid) -> Result<()> {
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
