//! A guest that shows memory and takes it away: what the card reaches is what the guest thinks it
//! does.

mod wire;

use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread;

use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::PciConfig;
use gaudi_seam::{DeviceIo as _, Errno, Iova};
use gaudi_sys::Memfd;
use vgaudi::server::Server;
use wire::{Client, READ, WRITE};

const PAGE: u64 = 4096;
const ALL: u32 = 2;

struct Guest(Client);

impl Guest {
    fn map(&self, flags: u32, iova: u64, len: u64, file: Option<&Memfd>) -> Result<(), Errno> {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        self.0.map(flags, iova, len, 0, &files)
    }

    fn unmap(&self, flags: u32, iova: u64, len: u64) -> Result<(), Errno> {
        self.0.unmap(flags, iova, len)
    }
}

/// Lets a guest talk to a card of its own; the card is shown beside it.
fn with_guest(what: impl FnOnce(&Guest, &ModelDevice)) {
    let (here, there) = UnixStream::pair().expect("sockets");
    let card = ModelDevice::new(PciConfig::default()).expect("a card");
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(&card, there).run(|| false));
        let guest = Guest(Client { stream: here });
        what(&guest, &card);
        guest.0.stream.shutdown(Shutdown::Both).expect("hung up");
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
        assert_eq!(guest.unmap(0, PAGE, PAGE), Err(Errno::EINVAL), "it is unmapped");
    });
}

#[test]
fn read_only_memory_is_not_mapped() {
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

/// QEMU posts a device's writes only if no region of it has the flag.
#[test]
fn bars_are_mapped_only_if_offered() {
    /// `VFIO_REGION_INFO_FLAG_MMAP`.
    const MMAP: u32 = 1 << 2;
    const HBM_BAR: u32 = 4;
    let card = ModelDevice::new(PciConfig::default()).expect("a card");
    for offered in [true, false] {
        let (here, there) = UnixStream::pair().expect("sockets");
        thread::scope(|scope| {
            let server = || Server::new(&card, there).with_mappings(offered).run(|| false);
            let server = scope.spawn(server);
            let client = Client { stream: here };
            let (flags, _, file) = client.region_info(HBM_BAR);
            assert_eq!((flags & MMAP != 0, file.is_some()), (offered, offered));
            client.write(HBM_BAR, 0, b"kept").expect("HBM");
            assert_eq!(client.read(HBM_BAR, 0, 4), Ok(b"kept".to_vec()));
            client.stream.shutdown(Shutdown::Both).expect("hung up");
            server.join().expect("no panic");
        });
    }
}
