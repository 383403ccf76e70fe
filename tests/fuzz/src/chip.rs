//! Packets, command buffers and registers of the modelled chip.
#![expect(unsafe_code, reason = "host memory is handed to the chip as a driver pins it")]

use std::cell::RefCell;
use std::sync::Arc;

use gaudi_model::pci::{ModelDevice, PciConfig};
use gaudi_model::{Cb, Chip, ChipConfig, Event, HostRange, MemoryKind, Mode, Reset, RunOutcome};
use gaudi_seam::{BarOffset, DeviceIo as _, Engine as _, Iova};
use gaudi_spec::gaudi2::packet::{HEADER, Packets};
use gaudi_spec::gaudi2::{self, DRAM_PAGE, queue};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};
use gaudi_sys::RawMapping;

pub(crate) fn packets(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut steps = 0;
    let mut walk = Packets::new(bytes);
    for item in walk.by_ref() {
        steps += 1;
        assert!(
            steps <= bytes.len() / HEADER + 1,
            "each step takes 8 bytes or ends the walk"
        );
        let Ok((offset, packet)) = item else { continue };
        assert_eq!(offset, again.len(), "packets follow one another without gaps");
        packet.emit(|bytes| again.extend_from_slice(bytes));
    }
    assert_eq!(again, bytes[..again.len()], "every bit comes back, named or not");
    assert_eq!(again.len(), walk.offset());
}

const QUEUES: [QueueId; 4] = [queue::PDMA_0_0, queue::PDMA_0_1, queue::PDMA_1_0, QueueId(20)];
/// Host memory that is mapped, with a page before and after it that is not.
const HOST: DeviceVa = DeviceVa(0xfff0_0000_0010_0000);
const HOST_LEN: usize = 16 << 10;
const GUARD: usize = 4096;
/// The command buffers, in host memory that the programs can write.
const CODE: DeviceVa = DeviceVa(HOST.0 + (1 << 20));
const CODE_LEN: usize = 16 << 10;
/// Device memory that is mapped, with as much before and after it that is not.
const WINDOW: usize = 16 << 10;
const DRAM: DeviceVa = gaudi2::DRAM_VA.start;
const DRAM_PA: u64 = gaudi2::DRAM_PHYS_BASE.0 + gaudi2::DRAM_RESERVED;
const BUDGET: u64 = 3000;
const MARK: u8 = 0xa5;

struct World {
    // Before the memory that it uses: fields drop in order.
    chip: Chip,
    host: RawMapping,
    code: RawMapping,
}

impl World {
    fn new() -> Self {
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: DRAM_PAGE,
            mode: Mode::Running,
            memory: MemoryKind::Private,
        })
        .expect("a chip");
        let host = RawMapping::anonymous(2 * GUARD + HOST_LEN, false).expect("host memory");
        let code = RawMapping::anonymous(CODE_LEN, false).expect("host memory");
        host.fill(0, host.len(), MARK).expect("inside");
        for (va, memory, at, len) in [(HOST, &host, GUARD, HOST_LEN), (CODE, &code, 0, CODE_LEN)] {
            let start = memory.at(at, len).expect("inside");
            // SAFETY: the mapping outlives the chip, which is dropped first, and no reference to
            // its bytes exists.
            let range = unsafe { HostRange::new(start, len) };
            chip.map_host(va, range).expect("free");
        }
        let window = DevicePa(DRAM_PA + WINDOW as u64);
        chip.map_device(DRAM, window, WINDOW as u64).expect("free");
        chip.open_context().expect("free");
        Self { chip, host, code }
    }

    fn run(&mut self, buffers: &[(QueueId, &[u8])]) {
        self.chip.reset(Reset::Soft).expect("no memory is touched");
        let mut at = 0;
        for (tag, (queue, bytes)) in (0..).zip(buffers) {
            self.code.write(at, bytes).expect("inside");
            let cb = Cb {
                va: DeviceVa(CODE.0 + at as u64),
                len: bytes.len() as u32,
                tag,
            };
            self.chip.push_cb(*queue, cb).expect("room in the queue");
            at += bytes.len().next_multiple_of(8);
        }
        let outcome = self.chip.run(BUDGET);
        let mut done = Vec::new();
        while let Some(event) = self.chip.next_event() {
            match event {
                Event::CbDone { tag, .. } => done.push(tag),
                Event::Stop(stop) => assert!(stop.to_string().contains("stopped at offset"), "{stop}"),
                _ => {}
            }
        }
        let ended = done.len();
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), ended, "each command buffer ends once");
        assert_eq!(
            outcome == RunOutcome::Idle,
            ended == buffers.len(),
            "idle is when all are done"
        );
        let mut guard = [0; GUARD];
        for at in [0, GUARD + HOST_LEN] {
            self.host.read(at, &mut guard).expect("inside");
            assert_eq!(guard, [MARK; GUARD], "host memory at {at} was not mapped");
        }
        let mut beside = vec![0; WINDOW];
        for at in [DRAM_PA, DRAM_PA + 2 * WINDOW as u64] {
            self.chip.dram().read(DevicePa(at), &mut beside).expect("inside");
            assert!(
                beside.iter().all(|byte| *byte == 0),
                "device memory at {at:#x} was not mapped"
            );
        }
    }
}

/// The input is up to four command buffers: the queue in one byte, the length in words in another,
/// the packets.
pub(crate) fn model(bytes: &[u8]) {
    thread_local! {
        static WORLD: RefCell<World> = RefCell::new(World::new());
    }
    let mut buffers = Vec::new();
    let mut rest = bytes;
    while let [queue, words, behind @ ..] = rest {
        if buffers.len() == 4 {
            break;
        }
        let (buffer, behind) = behind.split_at((usize::from(*words) * 8).min(behind.len()));
        buffers.push((QUEUES[usize::from(*queue) % QUEUES.len()], buffer));
        rest = behind;
    }
    WORLD.with_borrow_mut(|world| world.run(&buffers));
}

/// Bytes of host memory that the card may use, from bus address 0.
const MEMORY: usize = 256 << 10;
/// The offset of the registers in their BAR, and their number of bytes.
const REGISTERS: (u64, u64) = (0x400_0000, 128 << 20);

thread_local! {
    /// One card for all inputs of a thread; each ends with a power cycle. The tests of the targets
    /// run in threads of one process.
    pub(crate) static CARD: ModelDevice = ModelDevice::new(PciConfig {
        dram_bar: 1 << 30,
        ..PciConfig::default()
    })
    .expect("a card");
}

/// The input is accesses of 9 bytes: what, 4 bytes of an offset, 4 of a value. Every 16th value is
/// written to host memory instead, as rings, descriptors and command buffers.
pub(crate) fn registers(bytes: &[u8]) {
    CARD.with(|card| access_registers(card, bytes));
}

fn access_registers(card: &ModelDevice, bytes: &[u8]) {
    let memory = Arc::new(RawMapping::anonymous(MEMORY, false).expect("host memory"));
    card.dma_map(Iova(0), Arc::clone(&memory))
        .expect("nothing is mapped");
    for access in bytes.chunks_exact(9).take(400) {
        let word =
            |at: usize| u32::from_le_bytes([access[at], access[at + 1], access[at + 2], access[at + 3]]);
        let (at, value) = (u64::from(word(1)), word(5).to_le_bytes());
        let register = BarOffset(REGISTERS.0 + at % REGISTERS.1 / 4 * 4);
        let mut into = [0; 4];
        // The device may refuse each of them; none may panic or take long.
        let _answered = match access[0] % 16 {
            0..=8 => card.bar_write(0, register, &value),
            9..=11 => card.bar_read(0, register, &mut into),
            12 => card.bar_write((access[0] >> 4) % 6, BarOffset(at), &value),
            13 => card.config_write(at, &value),
            14 => card.config_read(at, &mut into),
            _ => memory
                .write(at as usize % MEMORY / 4 * 4, &value)
                .map_err(|_| unreachable!("inside")),
        };
        let mut turns = 0;
        while card.is_busy() && card.run() && turns < 64 {
            turns += 1;
        }
        while card.next_note().is_some() {}
    }
    card.reset().expect("a model can be reset");
    card.power_cycle().expect("memory for a card");
    assert!(!card.is_busy(), "a new card is idle");
}
