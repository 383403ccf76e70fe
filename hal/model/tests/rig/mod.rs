//! A chip with host memory beside it, and a writer of command buffers.
#![expect(unsafe_code, reason = "host memory is handed to the chip as a driver pins it")]
#![allow(dead_code, reason = "each test file uses a part")]

use gaudi_model::{Cb, Chip, ChipConfig, Event, HostRange, MemoryKind, Mode, RunOutcome};
use gaudi_spec::gaudi2::packet::{CpDma, Encoder, Fence, Full, LinDma, MsgLong, MsgShort, Nop, Packet, Sink};
use gaudi_spec::gaudi2::sync::{Compare, MonArm, MonConfig, SobUpdate};
use gaudi_spec::gaudi2::{self, DRAM_PAGE, qman, queue};
use gaudi_spec::{DevicePa, DeviceVa, QueueId};
use gaudi_sys::RawMapping;

pub(crate) const HOST: DeviceVa = DeviceVa(0xfff0_0000_0010_0000);
pub(crate) const HOST_BYTES: usize = 1 << 20;
/// Command buffers lie in the upper half of host memory.
pub(crate) const CBS: usize = HOST_BYTES / 2;
pub(crate) const DRAM: DeviceVa = gaudi2::DRAM_VA.start;
pub(crate) const DRAM_PA: DevicePa = DevicePa(gaudi2::DRAM_PHYS_BASE.0 + gaudi2::DRAM_RESERVED);
pub(crate) const BUDGET: u64 = 1_000_000;

pub(crate) struct Rig {
    // Before the memory it was given: fields drop in order.
    pub(crate) chip: Chip,
    pub(crate) host: RawMapping,
    pub(crate) cb_end: usize,
}

pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A command buffer under construction.
pub(crate) struct Program(pub(crate) Encoder<Bytes>);

impl Program {
    pub(crate) fn new() -> Self {
        Self(Encoder::new(Bytes(Vec::new())))
    }
    pub(crate) fn nop(mut self) -> Self {
        self.0.nop(Nop::new()).expect("grows");
        self
    }
    pub(crate) fn copy(mut self, to: DeviceVa, from: DeviceVa, size: usize) -> Self {
        self.0
            .lin_dma(LinDma::copy(to, from, size as u32))
            .expect("grows");
        self
    }
    pub(crate) fn dma(mut self, packet: LinDma) -> Self {
        self.0.lin_dma(packet).expect("grows");
        self
    }
    pub(crate) fn long(mut self, to: DeviceVa, value: u32) -> Self {
        self.0.msg_long(MsgLong::new(to, value)).expect("grows");
        self
    }
    pub(crate) fn short(mut self, packet: Option<MsgShort>) -> Self {
        self.0.msg_short(packet.expect("in reach")).expect("grows");
        self
    }
    pub(crate) fn sob(self, sob: u32, update: SobUpdate) -> Self {
        self.short(MsgShort::sob(sob, update))
    }
    pub(crate) fn fence(mut self, id: u8, target: u8, by: u8) -> Self {
        self.0
            .fence(Fence::new(id, target, by).expect("in range"))
            .expect("grows");
        self
    }
    /// Sets a monitor up to write `data` to `to` when the sync object is at or above `value`.
    pub(crate) fn monitor(self, monitor: u32, sob: u32, value: u16, to: DeviceVa, data: u32) -> Self {
        self.short(MsgShort::monitor_config(monitor, MonConfig::for_sob(sob)))
            .short(MsgShort::monitor_address_low(monitor, to))
            .short(MsgShort::monitor_address_high(monitor, to))
            .short(MsgShort::monitor_data(monitor, data))
            .short(MsgShort::monitor_arm(
                monitor,
                MonArm::for_sob(sob, Compare::AtLeast, value),
            ))
    }
    /// Waits for a sync object by a monitor that releases fence 2 of the queue that runs this.
    pub(crate) fn wait(self, queue: QueueId, monitor: u32, sob: u32, value: u16) -> Self {
        self.monitor(monitor, sob, value, fence_address(queue, 2), 1)
            .fence(2, 1, 1)
    }
    pub(crate) fn cp_dma(mut self, from: DeviceVa, len: usize) -> Self {
        self.0.cp_dma(CpDma::new(from, len as u32)).expect("grows");
        self
    }
    pub(crate) fn barrier(mut self) -> Self {
        self.0.nop(Nop::new().with_engine_barrier(true)).expect("grows");
        self
    }
    pub(crate) fn packet(mut self, packet: Packet<'_>) -> Self {
        self.0.packet(&packet).expect("grows");
        self
    }
    /// Words that are a packet of no encoder.
    pub(crate) fn words(self, words: &[u32]) -> Self {
        let mut sink = self.0.into_sink();
        sink.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Self(Encoder::new(sink))
    }
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0.into_sink().0
    }
}

pub(crate) fn fence_address(queue: QueueId, fence: u32) -> DeviceVa {
    qman::fence_address(&queue::row(queue).expect("a queue"), fence).expect("a fence")
}

pub(crate) fn va(base: DeviceVa, offset: usize) -> DeviceVa {
    base.checked_add(offset as u64).expect("inside the space")
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Mode::Running)
    }

    pub(crate) fn with(mode: Mode) -> Self {
        let mut chip = Chip::new(ChipConfig {
            dram_user_bytes: DRAM_PAGE,
            mode,
            memory: MemoryKind::Shared,
        })
        .expect("a chip");
        let host = RawMapping::anonymous(HOST_BYTES, false).expect("host memory");
        // SAFETY: the mapping outlives the chip, which is dropped first; no caller holds references
        // to it.
        let range = unsafe { HostRange::new(host.as_ptr(), HOST_BYTES) };
        chip.mmu_map_host(HOST, range).expect("a free range");
        chip.mmu_map_device(DRAM, DRAM_PA, DRAM_PAGE)
            .expect("a free range");
        chip.mmu_map_doorbell(gaudi2::DOORBELL_VA).expect("a free range");
        Self {
            chip,
            host,
            cb_end: CBS,
        }
    }

    /// Puts bytes into host memory as a command buffer and queues it.
    pub(crate) fn push(&mut self, queue: QueueId, tag: u64, bytes: &[u8]) -> DeviceVa {
        let at = self.cb_end;
        self.host.write(at, bytes).expect("room for command buffers");
        self.cb_end += bytes.len().next_multiple_of(64);
        let va = va(HOST, at);
        self.chip
            .push_cb(
                queue,
                Cb {
                    va,
                    len: bytes.len() as u32,
                    tag,
                },
            )
            .expect("room in the queue");
        va
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.chip.next_event()).collect()
    }

    /// Runs one command buffer to its end and demands that nothing else happened.
    pub(crate) fn run_ok(&mut self, queue: QueueId, program: Program) {
        self.push(queue, 99, &program.bytes());
        assert_eq!(self.chip.run(BUDGET), RunOutcome::Idle, "the program ends");
        assert_eq!(
            self.events(),
            [Event::CbDone { queue, tag: 99 }],
            "the only event is the program's end"
        );
    }

    /// As `run_ok` where another stream is halted.
    pub(crate) fn run_beside(&mut self, queue: QueueId, program: Program) {
        self.push(queue, 99, &program.bytes());
        self.chip.run(BUDGET);
        assert_eq!(self.events(), [Event::CbDone { queue, tag: 99 }]);
    }

    pub(crate) fn host_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.host.read(at, &mut bytes).expect("inside host memory");
        bytes
    }

    pub(crate) fn dram_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.chip
            .dram()
            .read(DevicePa(DRAM_PA.0 + at as u64), &mut bytes)
            .expect("inside device memory");
        bytes
    }
}
