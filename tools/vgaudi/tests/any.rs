//! Arbitrary peers: whatever comes over the socket, the server answers or hangs up, and never more.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::PciConfig;
use gaudi_seam::{Event, RawMapping};
use gaudi_spec::gaudi2::{firmware, mmu, qman, queue, sync};
use gaudi_sys::Memfd;
use gaudi_sys::socket::send_with_fds;
use proptest::prelude::*;
use vgaudi::server::{Disconnect, Server};
use vgaudi::wire::{HEADER, Header, MAX_MESSAGE, command};

/// Longer than any case takes on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);

/// One card for all cases: each ends with a disconnected peer, after which a card is as new.
fn card() -> &'static ModelDevice {
    static CARD: OnceLock<ModelDevice> = OnceLock::new();
    CARD.get_or_init(|| ModelDevice::new(PciConfig::default()).expect("a card"))
}

/// What to send with a message.
#[derive(Clone, Debug)]
enum With {
    Nothing,
    Memory,
    Event,
    Several(usize),
}

#[derive(Clone, Debug)]
struct Message {
    command: u16,
    flags: u32,
    body: Vec<u8>,
    /// How many bytes the header adds to the length of the message.
    lie: i32,
    with: With,
}

/// Registers that do something, as offsets in their BAR: doorbells, the kernel's DMA engine,
/// queues, the firmware's mailbox.
fn register() -> impl Strategy<Value = u64> {
    const REGISTERS: u64 = 0x400_0000;
    let qman = queue::row(queue::PDMA_0_0).expect("a queue").qman;
    let starts = [
        (qman, 0x300),
        (qman + qman::DMA_CORE + qman::WR_COMP_ADDR_HI, 0x80),
        (qman::KDMA + qman::WR_COMP_ADDR_HI, 0x80),
        (sync::OBJS, 0x80),
        (sync::OBJS + sync::MON_ARM, 0x40),
        (sync::GLBL, 0x100),
        (mmu::PMMU_STLB, 0x80),
        (firmware::PQ_BASE_LO, 0x40),
    ];
    let single = [
        qman::KDMA + qman::COMMIT,
        firmware::KMD_MSG_TO_CPU,
        firmware::QUEUE_INIT,
        firmware::GIC_HOST_PI_UPD,
        firmware::GIC_HOST_INTS,
        firmware::PQ_PI,
        firmware::EQ_LENGTH,
    ];
    let near = (proptest::sample::select(starts.to_vec()), 0..0x300u32)
        .prop_map(|((start, len), at)| start + at % len / 4 * 4);
    prop_oneof![near, proptest::sample::select(single.to_vec())]
        .prop_map(|register| REGISTERS + u64::from(register))
}

fn message() -> impl Strategy<Value = Message> {
    let small = prop_oneof![Just(0u32), 0..16u32, any::<u32>()];
    let near = prop_oneof![
        Just(0u64),
        0..0x2000u64,
        0x400_0000..0xc00_0000u64, // registers
        Just(u64::MAX),
        any::<u64>()
    ];
    let words = proptest::collection::vec(small, 0..8).prop_map(|words| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    });
    // An access, most often to where something is.
    let access = (
        near,
        0..10u32,
        prop_oneof![0..9u32, any::<u32>()],
        proptest::collection::vec(any::<u8>(), 0..16),
    )
        .prop_map(|(offset, region, count, data)| {
            let mut body = offset.to_le_bytes().to_vec();
            body.extend(region.to_le_bytes());
            body.extend(count.to_le_bytes());
            body.extend(data);
            body
        });
    // A word written to a register that does something, most often small or an address of what is
    // shown.
    let word = prop_oneof![
        0..16u32,
        (0..0x1_0000u32).prop_map(|page| page << 12),
        any::<u32>()
    ];
    let write = (register(), word).prop_map(|(offset, word)| {
        let mut body = offset.to_le_bytes().to_vec();
        for word in [0, 4, word] {
            body.extend(word.to_le_bytes());
        }
        body
    });
    // Memory shown, and taken away.
    let shown = (any::<u32>(), 0..8u32, 0..3u64, 0..0x1_0000u64, 0..0x4000u64).prop_map(
        |(size, flags, offset, iova, len)| {
            let mut body = size.to_le_bytes().to_vec();
            body.extend(flags.to_le_bytes());
            for word in [offset << 12, iova << 12, len << 10] {
                body.extend(word.to_le_bytes());
            }
            body
        },
    );
    let body = prop_oneof![
        words,
        access,
        shown,
        proptest::collection::vec(any::<u8>(), 0..64)
    ];
    let any_message = any_message(body);
    let aimed = write.prop_map(|body| Message {
        command: command::REGION_WRITE,
        flags: 0,
        body,
        lie: 0,
        with: With::Nothing,
    });
    // Pages that the card may read and write, at the first addresses.
    let memory = (0..0x10u64, 1..0x10u64).prop_map(|(page, pages)| {
        let mut body = [32u32, 3].map(u32::to_le_bytes).concat();
        body.extend([0, page << 12, pages << 12].map(u64::to_le_bytes).concat());
        Message {
            command: command::DMA_MAP,
            flags: 0,
            body,
            lie: 0,
            with: With::Memory,
        }
    });
    prop_oneof![4 => any_message, 4 => aimed, 1 => memory]
}

fn any_message(body: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Message> {
    let with = prop_oneof![
        6 => Just(With::Nothing),
        2 => Just(With::Memory),
        2 => Just(With::Event),
        1 => (2..5usize).prop_map(With::Several),
    ];
    let flags = prop_oneof![8 => Just(0u32), 2 => Just(0x10u32), 1 => any::<u32>()];
    let lie = prop_oneof![20 => Just(0i32), 1 => -40..40i32, 1 => any::<i32>()];
    let command = prop_oneof![10 => 0..16u16, 1 => any::<u16>()];
    (command, flags, body, lie, with).prop_map(|(command, flags, body, lie, with)| Message {
        command,
        flags,
        body,
        lie,
        with,
    })
}

/// A guest's memory: what lies in it is taken for entries of rings, command buffers and packets.
/// Made once; what a card writes into it the next one finds.
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

fn send(stream: &UnixStream, message: &Message) -> bool {
    let size = (HEADER + message.body.len()) as u32;
    let mut bytes = 7u16.to_le_bytes().to_vec();
    bytes.extend(message.command.to_le_bytes());
    for word in [size.wrapping_add_signed(message.lie), message.flags, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&message.body);
    let event = Event::new().expect("an event");
    let fds = match message.with {
        With::Nothing => Vec::new(),
        With::Memory => vec![memory().as_fd()],
        With::Event => vec![event.as_fd()],
        With::Several(count) => vec![event.as_fd(); count.min(4)],
    };
    if fds.is_empty() {
        let mut stream = stream;
        stream.write_all(&bytes).is_ok()
    } else {
        send_with_fds(stream, &bytes, &fds).is_ok_and(|sent| sent == bytes.len())
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(400))]

    #[test]
    fn no_message_breaks_the_server(messages in proptest::collection::vec(message(), 1..40)) {
        let (here, there) = UnixStream::pair().expect("sockets");
        thread::scope(|scope| {
            let server = scope.spawn(move || Server::new(card(), there).run(|| card().is_busy() && card().run()));
            let mut reader = here.try_clone().expect("a descriptor");
            let drain = scope.spawn(move || {
                let mut answers = Vec::new();
                let _ = reader.read_to_end(&mut answers);
                answers
            });
            for message in &messages {
                if !send(&here, message) {
                    break; // it hung up
                }
            }
            let _ = here.shutdown(Shutdown::Write);
            // It finishes earlier requests before it sees the disconnect, in bounded time.
            let begin = Instant::now();
            while !server.is_finished() {
                if begin.elapsed() > PATIENCE {
                    eprintln!("the server does not come back from {messages:?}");
                    std::process::abort(); // its thread can be ended in no other way
                }
                thread::sleep(Duration::from_millis(1));
            }
            let disconnect = server.join().expect("no message panics the server");
            prop_assert!(!matches!(disconnect, Disconnect::Socket(_)), "the socket is whole: {disconnect:?}");
            let answers = drain.join().expect("no panic");
            // What came back are whole messages, none longer than may be.
            let mut rest = &answers[..];
            while let Some((head, behind)) = rest.split_first_chunk::<HEADER>() {
                let header = Header::read(*head);
                let len = header.body().expect("a size that a message can have");
                prop_assert!(header.is_reply() && len + HEADER <= MAX_MESSAGE);
                rest = behind.get(len..).expect("it is whole");
            }
            prop_assert!(rest.is_empty(), "nothing is behind the last");
            Ok(())
        })?;
    }
}

#[test]
fn peer_sees_card_and_memory() {
    let (here, there) = UnixStream::pair().expect("sockets");
    let card = ModelDevice::new(PciConfig::default()).expect("a card");
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(&card, there).run(|| false));
        let ask = |command: u16, body: &[u8]| -> Vec<u8> {
            let message = Message {
                command,
                flags: 0,
                body: body.to_vec(),
                lie: 0,
                with: With::Nothing,
            };
            assert!(send(&here, &message));
            let mut head = [0; HEADER];
            (&here).read_exact(&mut head).expect("an answer");
            assert_eq!(head[12..], [0; 4], "command {command} succeeds");
            let mut body = vec![0; Header::read(head).body().expect("a size")];
            (&here).read_exact(&mut body).expect("the rest of it");
            body
        };
        let version = ask(command::VERSION, &[0, 0, 0, 0, b'{', b'}', 0]);
        assert!(
            String::from_utf8_lossy(&version).contains("max_msg_fds"),
            "it lists its capabilities"
        );
        let info = ask(command::DEVICE_GET_INFO, &[0; 16]);
        assert_eq!(
            info[4..],
            [3, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0],
            "a PCI device that can be reset"
        );
        let mut read = 0u64.to_le_bytes().to_vec();
        read.extend(7u32.to_le_bytes());
        read.extend(4u32.to_le_bytes());
        assert_eq!(
            ask(command::REGION_READ, &read)[16..],
            [0xa3, 0x1d, 0x20, 0x10],
            "its identity"
        );
        let mut region = 64u32.to_le_bytes().to_vec();
        region.extend([0; 4]);
        region.extend(4u32.to_le_bytes());
        region.resize(32, 0);
        let bar = ask(command::DEVICE_GET_REGION_INFO, &region);
        assert_eq!(
            u64::from_le_bytes(bar[16..24].try_into().unwrap()),
            8 << 30,
            "8 GiB of memory"
        );
        here.shutdown(Shutdown::Both).expect("hung up");
        assert!(matches!(server.join().expect("no panic"), Disconnect::Closed));
    });
}
