//! Bytes from peers: vfio-user, the software NIC's cable, keys.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_copy::key::{ProcessKey, RemoteKey};
use gaudi_dmabuf::Offer;
use gaudi_model::pci::ModelDevice;
use gaudi_seam::Event;
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_sys::socket::send_with_fds;
use gaudi_sys::{Memfd, RawMapping};
use gaudi_verbs::{Access, Context, Gid, Mtu, Psn, QpAddress, QpInit, Qpn, WorkCompletion};
use vgaudi::server::{Disconnect, Server};
use vgaudi::wire::{HEADER, Header, MAX_MESSAGE};

use crate::chip::CARD;

/// Longer than any input takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The memory that messages pass: 1 MiB of small numbers, which rings and command buffers are made
/// of.
fn memory() -> &'static Memfd {
    static MEMORY: OnceLock<Memfd> = OnceLock::new();
    MEMORY.get_or_init(|| {
        let file = Memfd::sparse(c"peer", 1 << 20).expect("a file");
        let map = RawMapping::of_fd(&file, 0, 1 << 20).expect("mapped");
        for (at, word) in (0..1 << 20).step_by(16).zip(0u64..) {
            let entry = [word * 64 % 0x1_0000, 32 | word << 56].map(u64::to_le_bytes);
            map.write(at, &entry.concat()).expect("inside");
        }
        file
    })
}

/// Sends one message: command, what comes with it, length, body. Returns the rest of the input;
/// `None` if the server closed the connection.
fn send<'a>(stream: &UnixStream, input: &'a [u8]) -> Option<&'a [u8]> {
    let [command, how, len, rest @ ..] = input else {
        return None;
    };
    let (body, rest) = rest.split_at(usize::from(*len).min(rest.len()));
    // A header that names another length, once in 16.
    let lie = if how >> 4 == 15 { u32::from(*len) } else { 0 };
    let size = (HEADER + body.len()) as u32;
    let mut bytes = 7u16.to_le_bytes().to_vec();
    bytes.extend(u16::from(*command).to_le_bytes());
    for word in [size.wrapping_sub(lie), u32::from(how & 4) << 2, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    let event = Event::new().expect("an event");
    let fds = match how & 3 {
        1 => vec![memory().as_fd()],
        2 => vec![event.as_fd()],
        3 => vec![event.as_fd(), memory().as_fd(), event.as_fd()],
        _ => Vec::new(),
    };
    let mut stream = stream;
    let is_sent = match fds[..] {
        [] => stream.write_all(&bytes).is_ok(),
        _ => send_with_fds(stream, &bytes, &fds).is_ok_and(|sent| sent == bytes.len()),
    };
    is_sent.then_some(rest)
}

pub(crate) fn vfio_user(bytes: &[u8]) {
    CARD.with(|card| serve(card, bytes));
}

fn serve(card: &ModelDevice, bytes: &[u8]) {
    let (here, there) = UnixStream::pair().expect("sockets");
    let answers = thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(card, there).run(|| card.is_busy() && card.run()));
        let mut reader = here.try_clone().expect("a descriptor");
        let drain = scope.spawn(move || {
            let mut answers = Vec::new();
            // The end of the stream, however it comes.
            let _ = reader.read_to_end(&mut answers);
            answers
        });
        let mut rest = bytes;
        while let Some(behind) = send(&here, rest) {
            rest = behind;
        }
        // The server may have closed the connection first.
        let _ = here.shutdown(Shutdown::Write);
        let begin = Instant::now();
        while !server.is_finished() {
            assert!(begin.elapsed() < DEADLINE, "the server does not return");
            thread::sleep(Duration::from_micros(50));
        }
        let disconnect = server.join().expect("no message panics the server");
        assert!(!matches!(disconnect, Disconnect::Socket(_)), "{disconnect:?}");
        drain.join().expect("no panic")
    });
    let mut rest = &answers[..];
    while let Some((head, behind)) = rest.split_first_chunk::<HEADER>() {
        let header = Header::read(*head);
        let len = header.body().expect("a valid size");
        assert!(header.is_reply() && len + HEADER <= MAX_MESSAGE, "{header:?}");
        rest = behind.get(len..).expect("whole messages");
    }
    assert!(rest.is_empty(), "whole messages");
}

/// The length of a frame's header on the cable.
const FRAME: usize = 56;
const PEER: QpAddress = QpAddress {
    qpn: Qpn(0x77),
    psn: Psn(0),
    gid: Gid([1; 16]),
    mtu: Mtu::MTU_4096,
    rd_atom: 8,
    lid: 0,
};
/// Bytes of the registered region.
const REGION: usize = 64 << 10;

/// The input is frames: a byte of flags, the header's 56 bytes, a length, and the payload. Flag 1
/// puts the magic number in place, 2 the queue pair's number, 4 the region's key, 8 its address.
pub(crate) fn nic_wire(bytes: &[u8]) {
    let (cable, mut peer) = UnixStream::pair().expect("sockets");
    let config = SoftNicConfig {
        stall_timeout: DEADLINE / 4,
        ..SoftNicConfig::default()
    };
    let nic = SoftNic::open("softnic0", cable, config).expect("a NIC");
    let context = Context::open(nic.clone()).expect("a context");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(64).expect("a queue");
    let host = Arc::new(RawMapping::anonymous(REGION, false).expect("memory"));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let all = pd.reg_mapping(Arc::clone(&host), access).expect("a region");
    let mut qp = pd.create_qp(&QpInit::new(&cq)).expect("a queue pair");
    qp.connect(&PEER, access).expect("connected");
    for wr_id in 0..4 {
        let into = all.sge(wr_id * 1000, 1000).expect("inside");
        qp.post_recv(wr_id).post(&[into]).expect("room");
    }
    let local = [all.sge(10_000, 2000).expect("inside")];
    qp.post_send(99).send(&local).post().expect("room");
    let mut reader = peer.try_clone().expect("a descriptor");
    let drain = thread::spawn(move || {
        let mut scratch = [0; 4096];
        while matches!(reader.read(&mut scratch), Ok(count) if count > 0) {}
    });
    peer.set_write_timeout(Some(DEADLINE)).expect("a socket");
    let mut rest = bytes;
    while let [how, behind @ ..] = rest {
        let (head, behind) = behind.split_at(FRAME.min(behind.len()));
        let (len, behind) = behind.split_first().unwrap_or((&0, behind));
        let (payload, behind) = behind.split_at((usize::from(*len) * 8).min(behind.len()));
        let mut frame = head.to_vec();
        frame.resize(FRAME, 0);
        if how & 1 != 0 {
            frame[..4].copy_from_slice(b"gsn\0");
        }
        if how & 2 != 0 {
            frame[8..12].copy_from_slice(&qp.qpn().0.to_le_bytes());
        }
        if how & 4 != 0 {
            frame[32..36].copy_from_slice(&all.rkey().0.to_le_bytes());
        }
        if how & 8 != 0 {
            let offset = u64::from(u16::from_le_bytes([frame[24], frame[25]]));
            frame[24..32].copy_from_slice(&(local[0].addr.0 + offset).to_le_bytes());
        }
        frame.extend(payload);
        // The NIC may take the cable down first: that is one of the right answers.
        if peer.write_all(&frame).is_err() {
            break;
        }
        rest = behind;
    }
    let _ = peer.shutdown(Shutdown::Write);
    let mut wc = [WorkCompletion::EMPTY; 16];
    let mut ended = 0;
    while ended < 5 {
        ended += cq.wait(&mut wc, DEADLINE).expect("all work ends");
    }
    assert_eq!(ended, 5, "each request ends once");
    let begin = Instant::now();
    while nic.cable_error().is_none() {
        assert!(begin.elapsed() < DEADLINE, "the cable is down after its end");
        thread::sleep(Duration::from_micros(50));
    }
    drop((qp, all, cq, pd, context, nic));
    drain.join().expect("no panic");
}

pub(crate) fn keys(bytes: &[u8]) {
    if let Ok(key) = ProcessKey::parse(bytes) {
        assert_eq!(key.to_bytes(), bytes, "every byte of a key is checked");
    }
    if let Ok(key) = RemoteKey::parse(bytes) {
        assert_eq!(key.to_bytes(), bytes, "every byte of a key is checked");
        let region = *key.region();
        for (address, len) in [(region.address, 1), (region.address, region.len), (0, u64::MAX)] {
            if let Ok(iova) = key.iova(address, len) {
                assert!(
                    iova.wrapping_sub(region.iova) <= region.len - len,
                    "inside the region"
                );
            }
        }
    }
    if let Some(bytes) = bytes.first_chunk() {
        let offer = Offer::from_bytes(bytes);
        assert_eq!(offer.to_bytes(), *bytes, "an offer is its bytes");
    }
}
