//! A hostile vfio-user client against the program `vgaudi serve`.
//!
//! The attacker holds: the path of the server's socket, any descriptors of its own, and the
//! descriptors of the BARs that the server sent it. It may send any bytes, pass any descriptors,
//! stall, and disconnect at any point. It has no other access to the server's process.
//!
//! After every attack the server must report an error to the attacker or drop it, serve the next
//! client a card with zeroed memory, and hold no descriptor and no mapping of the attacker.

mod wire;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_seam::{Errno, Event, RawMapping};
use gaudi_sys::Memfd;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vgaudi::wire::{HEADER, MAX_DATA, MAX_MESSAGE, command};
use wire::{Client, READ, WRITE};

/// Upper bound of every attack, from its first byte until the next client is served.
const LIMIT: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;
const CONFIG: u32 = 7;
const HBM_BAR: u32 = 4;
const MSIX: u32 = 2;
/// `VFIO_DMA_UNMAP_FLAG_ALL`.
const UNMAP_ALL: u32 = 1 << 1;
const TRIGGER_EVENTFD: u32 = 1 << 2 | 1 << 5;

/// A server in a process of its own.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(env!("CARGO_BIN_EXE_vgaudi"))
            .arg("serve")
            .arg("--socket")
            .arg(folder.path().join("card"))
            .stderr(Stdio::null())
            .spawn()
            .expect("vgaudi starts");
        let server = Self { child, folder };
        drop(server.connect());
        server
    }

    /// Connects; the server accepts once it dropped the client before.
    fn connect(&self) -> Client {
        let end = Instant::now() + LIMIT;
        loop {
            match UnixStream::connect(self.folder.path().join("card")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
                    return Client { stream };
                }
                Err(error) if Instant::now() > end => panic!("no server listens: {error}"),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(path).expect("the server lives").count()
    }

    fn mappings(&self) -> usize {
        let path = format!("/proc/{}/maps", self.child.id());
        fs::read_to_string(path)
            .expect("the server lives")
            .lines()
            .count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Runs `attack` as a client of a new server, then checks what the next client finds.
fn attack(attack: impl FnOnce(&Server, Client)) {
    let server = Server::start();
    let before = served(&server);
    let begin = Instant::now();
    attack(&server, server.connect());
    let after = served(&server);
    assert!(begin.elapsed() < LIMIT, "took {:?}", begin.elapsed());
    assert_eq!(after.0, before.0, "descriptors that the server holds");
    // A few mappings belong to the allocator, which may keep them.
    assert!(after.1 <= before.1 + 8, "mappings: {} -> {}", before.1, after.1);
}

/// Checks that the card works and has zeroed memory; returns the server's descriptors and mappings.
fn served(server: &Server) -> (usize, usize) {
    let client = server.connect();
    assert_eq!(client.read(CONFIG, 0, 2), Ok(vec![0xa3, 0x1d]), "the vendor's id");
    for offset in [0, 0x3000_0000] {
        let bytes = client.read(HBM_BAR, offset, 4096).expect("HBM");
        assert!(
            bytes.iter().all(|&byte| byte == 0),
            "HBM at {offset:#x} is not zero"
        );
    }
    (server.descriptors(), server.mappings())
}

/// A sealed file of `pages` pages that the server accepts.
fn memory(pages: u64) -> Memfd {
    Memfd::sparse(c"client", pages * PAGE).expect("a file")
}

/// A file made with `flags`, of two MiB, with `seals`.
fn file(flags: MFdFlags, seals: SealFlag) -> nix::Result<OwnedFd> {
    let file = memfd_create(
        c"client",
        flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?;
    nix::unistd::ftruncate(&file, 2 << 20)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Errno>, errno: Errno) {
    assert_eq!(answer.map(drop).err(), Some(errno));
}

/// The attacker's own mapping of the HBM's start.
fn map_bar(client: &Client) -> RawMapping {
    let (offset, file) = client.bar(HBM_BAR);
    RawMapping::of_fd(&file, offset, 1 << 20).expect("the BAR maps")
}

#[test]
fn bar_mapping_does_not_outlive_its_session() {
    attack(|server, client| {
        let bar = map_bar(&client);
        drop(client);
        let next = server.connect();
        next.write(HBM_BAR, 0, b"secret").expect("HBM");
        let mut seen = [0; 6];
        bar.read(0, &mut seen).expect("mapped");
        assert_ne!(&seen, b"secret", "the old mapping reads the next client's HBM");
        bar.write(0, b"attack").expect("mapped");
        assert_eq!(next.read(HBM_BAR, 0, 6), Ok(b"secret".to_vec()));
    });
}

#[test]
fn dirty_memory_is_not_left_behind() {
    attack(|_, client| {
        let bar = map_bar(&client);
        bar.write(0, &[0xa5; 4096]).expect("mapped");
        client.write(HBM_BAR, 0x3000_0000, &[0x5a; 4096]).expect("HBM");
    });
}

#[test]
fn sealed_bar_does_not_break_the_card() {
    attack(|_, client| {
        let (_, file) = client.bar(HBM_BAR);
        client.write(HBM_BAR, 0, b"kept").expect("HBM");
        for seal in [
            SealFlag::F_SEAL_FUTURE_WRITE,
            SealFlag::F_SEAL_WRITE,
            SealFlag::F_SEAL_SEAL,
        ] {
            // Refused where the server sealed the seals; harmless to the next client otherwise.
            let _ = fcntl(&file, FcntlArg::F_ADD_SEALS(seal));
        }
        client.ask(command::DEVICE_RESET, &[], &[]).expect("a reset");
    });
}

#[test]
fn bar_file_keeps_its_size() {
    attack(|_, client| {
        let (_, file) = client.bar(HBM_BAR);
        assert_eq!(nix::unistd::ftruncate(&file, 0), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(&file, i64::MAX >> 8), Err(Errno::EPERM));
    });
}

#[test]
fn map_flood_ends_with_enospc() {
    attack(|_, client| {
        let memory = memory(1);
        let full = (0..u64::from(u16::MAX)).find_map(|nth| {
            let mapped = client.map(READ | WRITE, nth * PAGE, PAGE, 0, &[memory.as_fd()]);
            mapped.err().map(|errno| (nth, errno))
        });
        let (maps, errno) = full.expect("a limit below vm.max_map_count");
        assert_eq!(errno, Errno::ENOSPC);
        assert!(maps >= 1024, "a guest needs more than {maps} mappings");
        assert!(client.read(CONFIG, 0, 2).is_ok(), "the client is still served");
    });
}

#[test]
fn maps_of_all_address_space_fail() {
    const HALF: u64 = 1 << 43;
    attack(|_, client| {
        // Sparse files cost the attacker nothing.
        let mut iova = 0;
        for bits in (12..=46).rev() {
            let (file, len) = (memory(1 << (bits - 12)), 1 << bits);
            while client.map(READ | WRITE, iova, len, 0, &[file.as_fd()]).is_ok() {
                iova += len;
            }
        }
        let (count, last) = (MAX_DATA as u32, iova);
        assert!(client.read(HBM_BAR, 0, count).is_ok(), "the server can allocate");
        let more = memory(1);
        refused(
            client.map(READ | WRITE, last, PAGE, 0, &[more.as_fd()]),
            Errno::ENOMEM,
        );
        client.unmap(UNMAP_ALL, 0, 0).expect("all");
        let half = memory(HALF / PAGE);
        for _ in 0..3 {
            for iova in [0, HALF] {
                let mapped = client.map(READ | WRITE, iova, HALF, 0, &[half.as_fd()]);
                mapped.expect("a guest may have 16 TiB");
            }
            for iova in [0, HALF] {
                client.unmap(0, iova, HALF).expect("mapped");
            }
        }
    });
}

#[test]
fn map_flood_without_files_ends_with_enospc() {
    attack(|_, client| {
        let full = (0..u64::from(u16::MAX)).find_map(|nth| client.map(READ, nth * PAGE, PAGE, 0, &[]).err());
        assert_eq!(full, Some(Errno::ENOSPC));
    });
}

#[test]
fn map_of_unsealed_file_fails() {
    attack(|_, client| {
        let open = file(MFdFlags::empty(), SealFlag::F_SEAL_GROW).expect("a file");
        refused(
            client.map(READ | WRITE, 0, PAGE, 0, &[open.as_fd()]),
            Errno::EINVAL,
        );
    });
}

#[test]
fn map_of_huge_page_file_fails() {
    attack(
        |_, client| match file(MFdFlags::MFD_HUGETLB, SealFlag::F_SEAL_SHRINK) {
            Ok(huge) => refused(
                client.map(READ | WRITE, 0, PAGE, 0, &[huge.as_fd()]),
                Errno::EINVAL,
            ),
            Err(errno) => gaudi_harness::skip_named(
                "vgaudi.hostile_client.huge",
                &format!("memfd_create(MFD_HUGETLB): {errno}"),
            ),
        },
    );
}

#[test]
fn map_of_other_descriptors_fails() {
    attack(|_, client| {
        let (pipe, _other_end) = nix::unistd::pipe().expect("a pipe");
        let socket = UnixStream::pair().expect("sockets").0;
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .expect("a device");
        let program = File::open("/proc/self/exe").expect("a file");
        let folder = File::open("/").expect("a folder");
        for fd in [
            pipe.as_fd(),
            socket.as_fd(),
            null.as_fd(),
            program.as_fd(),
            folder.as_fd(),
        ] {
            refused(client.map(READ | WRITE, 0, PAGE, 0, &[fd]), Errno::EINVAL);
        }
    });
}

#[test]
fn map_past_the_file_fails() {
    attack(|_, client| {
        let memory = memory(2);
        for (offset, len) in [
            (PAGE, 2 * PAGE),
            (2 * PAGE, PAGE),
            (u64::MAX - PAGE + 1, PAGE),
            (0, 1 << 62),
        ] {
            refused(
                client.map(READ | WRITE, 0, len, offset, &[memory.as_fd()]),
                Errno::EINVAL,
            );
        }
    });
}

#[test]
fn map_with_wrapping_iova_fails() {
    attack(|_, client| {
        let memory = memory(2);
        for (iova, len) in [
            (u64::MAX, 2),
            (u64::MAX - PAGE + 2, PAGE),
            (0, 0),
            (PAGE, u64::MAX),
        ] {
            refused(
                client.map(READ | WRITE, iova, len, 0, &[memory.as_fd()]),
                Errno::EINVAL,
            );
        }
    });
}

#[test]
fn overlapping_map_fails_with_eexist() {
    attack(|_, client| {
        let memory = memory(4);
        client
            .map(READ | WRITE, 4 * PAGE, 2 * PAGE, 0, &[memory.as_fd()])
            .expect("free");
        for (iova, len) in [
            (4 * PAGE, PAGE),
            (5 * PAGE, PAGE),
            (3 * PAGE, 2 * PAGE),
            (0, 16 * PAGE),
        ] {
            let mapped = client.map(READ | WRITE, iova, len.min(4 * PAGE), 0, &[memory.as_fd()]);
            let overlaps = iova + len.min(4 * PAGE) > 4 * PAGE;
            assert_eq!(
                mapped.err(),
                overlaps.then_some(Errno::EEXIST),
                "{len:#x} at {iova:#x}"
            );
        }
    });
}

#[test]
fn partial_unmap_fails() {
    attack(|_, client| {
        let memory = memory(4);
        client
            .map(READ | WRITE, 0, 4 * PAGE, 0, &[memory.as_fd()])
            .expect("free");
        for (iova, len) in [
            (0, PAGE),
            (PAGE, PAGE),
            (0, 5 * PAGE),
            (0, u64::MAX),
            (u64::MAX, PAGE),
        ] {
            refused(client.unmap(0, iova, len), Errno::EINVAL);
        }
        refused(client.unmap(1 << 31, 0, 0), Errno::ENOTSUP);
    });
}

#[test]
fn too_many_descriptors_drop_the_client() {
    attack(|_, client| {
        let null = File::open("/dev/null").expect("a device");
        let fds = [null.as_fd(); 5];
        let message = wire::message(command::DEVICE_GET_INFO, &[0; 16]);
        wire::send_any(&client.stream, &message, &fds);
        client.is_dropped();
    });
}

#[test]
fn unexpected_descriptors_are_closed() {
    attack(|server, client| {
        let null = File::open("/dev/null").expect("a device");
        client.read(CONFIG, 0, 2).expect("served");
        let before = server.descriptors();
        for command in 0..=u16::from(u8::MAX) {
            if ![command::DMA_MAP, command::DEVICE_SET_IRQS].contains(&command) {
                // The answer depends on the command.
                let _ = client.ask(command, &[0; 16], &[null.as_fd(), null.as_fd()]);
            }
        }
        assert_eq!(server.descriptors(), before);
        refused(
            client.map(READ | WRITE, 0, PAGE, 0, &[null.as_fd(); 2]),
            Errno::EINVAL,
        );
        assert_eq!(server.descriptors(), before);
    });
}

#[test]
fn impossible_message_sizes_drop_the_client() {
    for size in [0, 15, MAX_MESSAGE as u32 + 1, 1 << 31, u32::MAX] {
        attack(|_, client| {
            let mut message = wire::message(command::REGION_READ, &[0; 16]);
            message[4..8].copy_from_slice(&size.to_le_bytes());
            client.send(&message);
            client.is_dropped();
        });
    }
}

#[test]
fn reply_without_request_drops_the_client() {
    attack(|_, client| {
        let mut message = wire::message(command::VERSION, &[]);
        message[8] = 1;
        client.send(&message);
        client.is_dropped();
    });
}

#[test]
fn unfinished_message_drops_the_client() {
    for len in [1, HEADER - 1, HEADER, HEADER + 8] {
        attack(|_, client| {
            let message = wire::message(command::REGION_READ, &[0; 16]);
            client.send(&message[..len]);
            drop(client);
        });
    }
}

#[test]
fn stalled_message_times_out() {
    attack(|_, client| {
        client.send(&wire::message(command::REGION_READ, &[0; 16])[..HEADER + 3]);
        client.is_dropped();
    });
}

#[test]
fn trickled_message_times_out() {
    attack(|_, client| {
        let message = wire::message(command::REGION_WRITE, &[0; 4096]);
        for byte in message.chunks(1) {
            if (&client.stream).write_all(byte).is_err() {
                return; // the server hung up
            }
            thread::sleep(Duration::from_millis(500));
        }
        panic!("the server waited for {} bytes, one at a time", message.len());
    });
}

#[test]
fn answers_that_are_never_read_time_out() {
    attack(|server, client| {
        let mut body = 0u64.to_le_bytes().to_vec();
        body.extend(HBM_BAR.to_le_bytes());
        body.extend((MAX_DATA as u32).to_le_bytes());
        let message = wire::message(command::REGION_READ, &body);
        client
            .stream
            .set_write_timeout(Some(Duration::from_millis(100)))
            .expect("a timeout");
        for _ in 0..64 {
            if (&client.stream).write_all(&message).is_err() {
                break; // its buffer is full
            }
        }
        // The next client waits until the server dropped this one, which still holds its end.
        assert!(server.connect().read(CONFIG, 0, 2).is_ok());
        drop(client);
    });
}

#[test]
fn access_past_a_region_fails() {
    attack(|_, client| {
        for (region, offset, count) in [
            (CONFIG, 4096, 1),
            (CONFIG, 4095, 2),
            (CONFIG, u64::MAX, 1),
            (HBM_BAR, 8 << 30, 1),
            (HBM_BAR, u64::MAX - 3, 8),
            (0, 1 << 40, 4),
            (1, 0, 4),
            (8, 0, 1),
            (9, 0, 1),
            (u32::MAX, 0, 1),
        ] {
            refused(client.read(region, offset, count), Errno::EINVAL);
            refused(
                client.write(region, offset, &vec![1; count as usize]),
                Errno::EINVAL,
            );
        }
        refused(client.read(HBM_BAR, 0, MAX_DATA as u32 + 1), Errno::EINVAL);
        refused(client.read(HBM_BAR, 0, u32::MAX), Errno::EINVAL);
    });
}

#[test]
fn write_with_false_count_fails() {
    attack(|_, client| {
        for count in [0u32, 3, 5, u32::MAX] {
            let mut body = 0u64.to_le_bytes().to_vec();
            body.extend(HBM_BAR.to_le_bytes());
            body.extend(count.to_le_bytes());
            body.extend([0xa5; 4]);
            refused(client.ask(command::REGION_WRITE, &body, &[]), Errno::EINVAL);
        }
    });
}

#[test]
fn truncated_bodies_fail() {
    attack(|_, client| {
        for command in [
            command::VERSION,
            command::DMA_MAP,
            command::DMA_UNMAP,
            command::DEVICE_GET_REGION_INFO,
            command::DEVICE_GET_IRQ_INFO,
            command::DEVICE_SET_IRQS,
            command::REGION_READ,
            command::REGION_WRITE,
        ] {
            refused(client.ask(command, &[0; 3], &[]), Errno::EINVAL);
        }
    });
}

#[test]
fn vectors_out_of_range_fail() {
    attack(|_, client| {
        for (start, count) in [(u32::MAX, 1), (1, u32::MAX), (0, 4097), (4096, 1)] {
            refused(
                client.irqs(TRIGGER_EVENTFD, MSIX, start, count, &[]),
                Errno::EINVAL,
            );
        }
        refused(client.irqs(TRIGGER_EVENTFD, 5, 0, 1, &[]), Errno::EINVAL);
        refused(client.irqs(TRIGGER_EVENTFD, 0, 0, 1, &[]), Errno::EINVAL);
    });
}

#[test]
fn descriptors_other_than_eventfds_are_refused() {
    attack(|_, client| {
        let (_read, pipe) = nix::unistd::pipe().expect("a pipe");
        let socket = UnixStream::pair().expect("sockets").0;
        let memory = memory(1);
        for fd in [pipe.as_fd(), socket.as_fd(), memory.as_fd()] {
            refused(client.irqs(TRIGGER_EVENTFD, MSIX, 0, 1, &[fd]), Errno::EINVAL);
        }
        let event = Event::new().expect("an eventfd");
        refused(
            client.irqs(TRIGGER_EVENTFD, MSIX, 0, 2, &[event.as_fd()]),
            Errno::EINVAL,
        );
    });
}

#[test]
fn unknown_versions_and_commands_fail() {
    attack(|_, client| {
        let mut version = 0xffffu32.to_le_bytes().to_vec();
        version.extend(b"{\"capabilities\":{\"max_msg_fds\":-1}}\0");
        refused(client.ask(command::VERSION, &version, &[]), Errno::ENOTSUP);
        for body in [&b"\0\0\0\0not JSON"[..], &[0xff; 64][..]] {
            let _ = client.ask(command::VERSION, body, &[]); // either answer is right
        }
        for command in [0, 6, 11, 12, 14, 255, u16::MAX] {
            refused(client.ask(command, &[0; 64], &[]), Errno::ENOTSUP);
        }
    });
}

#[test]
fn connection_flood_leaves_nothing() {
    attack(|server, client| {
        drop(client);
        for _ in 0..20 {
            server.connect().send(&[0xff; HEADER]);
        }
    });
}

#[test]
fn killed_client_leaves_nothing() {
    attack(|server, client| {
        drop(client);
        let path = server.folder.path().join("card");
        // A shell holds the socket open in a process of its own, which SIGKILL ends.
        let client = UnixStream::connect(path).expect("a server");
        let held = OwnedFd::from(client.try_clone().expect("a descriptor"));
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(held))
            .spawn()
            .expect("sleep(1)");
        let client = Client { stream: client };
        let memory = memory(64);
        client
            .map(READ | WRITE, 0, 64 * PAGE, 0, &[memory.as_fd()])
            .expect("free");
        client.write(HBM_BAR, 0, b"left behind").expect("HBM");
        drop(client);
        child.kill().expect("SIGKILL");
        child.wait().expect("it ended");
    });
}

#[test]
fn second_client_waits_for_the_first() {
    attack(|server, client| {
        client.write(HBM_BAR, 0, b"secret").expect("HBM");
        let second = server.connect();
        second
            .stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .expect("a timeout");
        let mut byte = [0];
        second.send(&wire::message(command::DEVICE_GET_INFO, &[0; 16]));
        assert!(
            (&second.stream).read(&mut byte).is_err(),
            "two clients share one card"
        );
        drop(client);
        second.stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        assert!((&second.stream).read(&mut byte).is_ok_and(|got| got == 1));
    });
}
