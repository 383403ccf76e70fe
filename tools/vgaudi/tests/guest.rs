//! A guest that shows memory and takes it away: what the card reaches is what the guest thinks it does.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use gaudi_model::pci::PciConfig;
use gaudi_seam::{DeviceIo as _, Errno, Iova};
use gaudi_sys::Memfd;
use gaudi_sys::socket::send_with_fds;
use gaudi_vfio::ModelDevice;
use vgaudi::server::Server;
use vgaudi::wire::{HEADER, Header, command};

const PAGE: u64 = 4096;
const READ: u32 = 1;
const WRITE: u32 = 2;
const ALL: u32 = 2;

struct Guest<'a> {
    stream: &'a UnixStream,
}

impl Guest<'_> {
    fn ask(&self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Errno> {
        let mut bytes = 7u16.to_le_bytes().to_vec();
        bytes.extend(command.to_le_bytes());
        for word in [(HEADER + body.len()) as u32, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(body);
        let mut stream = self.stream;
        if fds.is_empty() {
            stream.write_all(&bytes).expect("sent");
        } else {
            assert_eq!(send_with_fds(stream, &bytes, fds), Ok(bytes.len()));
        }
        let mut head = [0; HEADER];
        stream.read_exact(&mut head).expect("an answer");
        let mut body = vec![0; Header::read(head).body().expect("a size")];
        stream.read_exact(&mut body).expect("the rest of it");
        match i32::from_le_bytes(head[12..].try_into().expect("4 bytes")) {
            0 => Ok(body),
            errno => Err(Errno::from_raw(errno)),
        }
    }

    fn map(&self, flags: u32, iova: u64, len: u64, file: Option<&Memfd>) -> Result<(), Errno> {
        let mut body = 32u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        for word in [0, iova, len] {
            body.extend(word.to_le_bytes());
        }
        let fds: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        self.ask(command::DMA_MAP, &body, &fds).map(drop)
    }

    fn unmap(&self, flags: u32, iova: u64, len: u64) -> Result<(), Errno> {
        let mut body = 24u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        body.extend(iova.to_le_bytes());
        body.extend(len.to_le_bytes());
        self.ask(command::DMA_UNMAP, &body, &[]).map(drop)
    }
}

/// Lets a guest talk to a card of its own; the card is shown beside it.
fn with_guest(what: impl FnOnce(&Guest<'_>, &ModelDevice)) {
    let (here, there) = UnixStream::pair().expect("sockets");
    let card = ModelDevice::new(PciConfig::default()).expect("a card");
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(&card, there).run(|| false));
        what(&Guest { stream: &here }, &card);
        here.shutdown(Shutdown::Both).expect("hung up");
        server.join().expect("no panic");
    });
}

// Bytes that the card reaches; it reaches none of them afterwards.
fn in_reach(card: &ModelDevice) -> u64 {
    card.dma_unmap(Iova(0), u64::MAX).expect("always")
}

#[test]
fn only_a_whole_region_is_taken_away() {
    with_guest(|guest, card| {
        let memory = Memfd::sparse(c"guest", 4 * PAGE).expect("a file");
        guest
            .map(READ | WRITE, PAGE, 2 * PAGE, Some(&memory))
            .expect("free");
        guest
            .map(READ | WRITE, 8 * PAGE, PAGE, None)
            .expect("another device's memory");
        for (iova, len) in [
            (PAGE, PAGE),
            (2 * PAGE, PAGE),
            (0, 8 * PAGE),
            (PAGE, 4 * PAGE),
            (20 * PAGE, PAGE),
            (PAGE, 0),
            (0, u64::MAX),
        ] {
            assert_eq!(
                guest.unmap(0, iova, len),
                Err(Errno::EINVAL),
                "{len:#x} bytes at {iova:#x}"
            );
        }
        assert_eq!(
            guest.map(READ, 2 * PAGE, PAGE, None),
            Err(Errno::EEXIST),
            "a part is mapped"
        );
        assert_eq!(
            guest.map(READ, 8 * PAGE, PAGE, None),
            Err(Errno::EEXIST),
            "and remembered without a file"
        );
        assert_eq!(guest.unmap(0, 8 * PAGE, PAGE), Ok(()));
        assert_eq!(guest.unmap(0, 8 * PAGE, PAGE), Err(Errno::EINVAL), "once");
        assert_eq!(guest.unmap(0, PAGE, 2 * PAGE), Ok(()));
        assert_eq!(in_reach(card), 0, "the card reaches nothing");
        assert_eq!(
            guest.map(READ | WRITE, PAGE, 2 * PAGE, Some(&memory)),
            Ok(()),
            "it is free again"
        );
        assert_eq!(in_reach(card), 2 * PAGE);
    });
}

#[test]
fn all_is_taken_away_by_its_flag() {
    with_guest(|guest, card| {
        let memory = Memfd::sparse(c"guest", 4 * PAGE).expect("a file");
        for at in [PAGE, 5 * PAGE] {
            guest.map(READ | WRITE, at, PAGE, Some(&memory)).expect("free");
        }
        assert_eq!(guest.unmap(ALL, PAGE, PAGE), Err(Errno::EINVAL));
        for other in [1, 1 << 2, 1 << 31] {
            assert_eq!(guest.unmap(other, 0, 0), Err(Errno::ENOTSUP), "flag {other:#x}");
        }
        assert_eq!(guest.unmap(ALL, 0, 0), Ok(()));
        assert_eq!(in_reach(card), 0, "the card reaches nothing");
        assert_eq!(guest.unmap(0, PAGE, PAGE), Err(Errno::EINVAL), "it is gone");
    });
}

#[test]
fn what_may_not_be_written_is_not_in_reach() {
    with_guest(|guest, card| {
        let memory = Memfd::sparse(c"guest", 4 * PAGE).expect("a file");
        for (flags, at) in [(READ, 0), (WRITE, PAGE), (0, 2 * PAGE)] {
            assert_eq!(guest.map(flags, at, PAGE, Some(&memory)), Ok(()));
        }
        assert_eq!(in_reach(card), 0, "none of them");
        assert_eq!(guest.map(1 << 2, 4 * PAGE, PAGE, None), Err(Errno::EINVAL));
        assert_eq!(guest.unmap(0, 0, PAGE), Ok(()), "they are remembered");
    });
}
