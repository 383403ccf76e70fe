//! The objects of a side that live while it is open: programs, and memory for copies.

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CsRequest, CsSeq, DeviceVa, KernelIo, MapDevice, MapHost, MemAlloc, MmapRequest, QueueId,
    RawMapping, Result, WaitStatus,
};
use gaudi_spec::gaudi2::packet::{Fence, LinDma, MsgShort, Nop};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, MonArm, MonConfig, SobUpdate};
use gaudi_spec::gaudi2::{self, qman, queue};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::memory::MemFlags;

use crate::arena::{Arena, WINDOW};
use crate::op::{End, Program};

/// Longer than any submission takes that is not held.
pub(crate) const LONG: Duration = Duration::from_secs(20);
const BUFFER: usize = 16 << 10;
/// The size of a program slot.
const PLACE: usize = 1024;
/// The sync object that releases held programs, and the one that programs set.
const GATE: u32 = FIRST_USER_SOB;
const OTHER: u32 = FIRST_USER_SOB + 8;

/// A slot of the command buffer with one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramSlot {
    Ready(Program),
    Open,
    Hold,
    Copy,
}

impl ProgramSlot {
    fn at(self) -> usize {
        PLACE
            * match self {
                Self::Ready(Program::Nop) => 0,
                Self::Ready(Program::Barrier) => 1,
                Self::Ready(Program::Nops) => 2,
                Self::Ready(Program::Sob) => 3,
                Self::Open => 4,
                Self::Hold => 5,
                Self::Copy => 6,
            }
    }
}

/// Programs and memory of one side. Closing the device frees them.
#[derive(Debug)]
pub(crate) struct Fixtures {
    buffer: DeviceVa,
    memory: RawMapping,
    /// Bytes of each ready program.
    lengths: [u32; 5],
    dram: DeviceVa,
    windows: DeviceVa,
}

impl Fixtures {
    #[expect(unsafe_code, reason = "host memory is mapped to the device by address")]
    pub(crate) fn new(io: &dyn KernelIo, arena: &Arena) -> Result<Self> {
        let create = CbCreate {
            size: BUFFER as u32,
            map_to_device: true,
        };
        let handle = io.cb_create(create)?;
        let buffer = io.cb_info(handle, true)?.device_va.unwrap_or(DeviceVa(0));
        let memory = io.mmap(MmapRequest {
            offset: handle.0,
            len: BUFFER,
        })?;
        let allocation = io.mem_alloc(MemAlloc {
            size: gaudi2::DRAM_PAGE,
            page_size: 0,
            flags: MemFlags::NONE,
        })?;
        let dram = io.mem_map_device(MapDevice {
            handle: allocation,
            hint: None,
            flags: MemFlags::NONE,
        })?;
        let request = MapHost {
            address: arena.windows(),
            size: 2 * WINDOW as u64,
            hint: None,
            flags: MemFlags::NONE,
        };
        // SAFETY: the arena outlives every side, and no reference to its windows exists.
        let windows = unsafe { io.mem_map_host(request) }?;
        let mut this = Self {
            buffer,
            memory,
            lengths: [0; 5],
            dram,
            windows,
        };
        let nop = Nop::EMPTY.to_bytes();
        for (nth, (place, bytes)) in [
            (ProgramSlot::Ready(Program::Nop), nop.to_vec()),
            (
                ProgramSlot::Ready(Program::Barrier),
                Nop::EMPTY.with_engine_barrier(true).to_bytes().to_vec(),
            ),
            (ProgramSlot::Ready(Program::Nops), nop.repeat(64)),
            (ProgramSlot::Ready(Program::Sob), sob(OTHER, SobUpdate::set(7))),
            (ProgramSlot::Open, sob(GATE, SobUpdate::add_signed(1))),
        ]
        .into_iter()
        .enumerate()
        {
            this.lengths[nth] = this.put(place, &bytes);
        }
        // Initialize the memory: bytes that were never written may differ.
        for end in [End::Dram, End::Sram] {
            let to = this.end(end).unwrap_or(DeviceVa(0));
            arena.prepare(0, WINDOW, 0).map_err(fault)?;
            let seq = this.copy(io, queue::PDMA_0_0, to, this.windows, WINDOW as u32)?;
            io.wait_cs(seq, LONG)?;
        }
        Ok(this)
    }

    /// Returns the address of an end of a copy; `None` for memory that operations map.
    pub(crate) fn end(&self, end: End) -> Option<DeviceVa> {
        match end {
            End::Host => Some(self.windows),
            End::Dram => Some(self.dram),
            End::Sram => Some(DeviceVa(gaudi2::SRAM_BASE.0)),
            End::Mapped(_) => None,
        }
    }

    fn put(&self, place: ProgramSlot, bytes: &[u8]) -> u32 {
        let written = self.memory.write(place.at(), bytes);
        assert!(
            written.is_ok() && bytes.len() <= PLACE,
            "a program fits into its slot"
        );
        bytes.len() as u32
    }

    /// Returns a chunk for a prepared program.
    pub(crate) fn chunk(&self, queue: u32, place: ProgramSlot) -> HlCsChunk {
        let len = self.lengths.get(place.at() / PLACE).copied().unwrap_or(0);
        HlCsChunk::user(queue, self.buffer.0 + place.at() as u64, len)
    }

    /// Submits a copy.
    pub(crate) fn copy(
        &self,
        io: &dyn KernelIo,
        queue: QueueId,
        to: DeviceVa,
        from: DeviceVa,
        len: u32,
    ) -> Result<CsSeq> {
        let len = self.put(ProgramSlot::Copy, &LinDma::copy(to, from, len).to_bytes());
        let chunk = HlCsChunk::user(queue.0, self.buffer.0 + ProgramSlot::Copy.at() as u64, len);
        io.submit(&CsRequest::jobs(&[chunk])).map(|answer| answer.seq)
    }

    /// Returns a chunk with a program that holds `queue` until [`ProgramSlot::Open`] runs.
    pub(crate) fn holding(&self, queue: QueueId) -> HlCsChunk {
        let fence = queue::row(queue).and_then(|row| qman::fence_address(&row, 2));
        let fence = fence.expect("a user's queue has fences");
        let monitor = FIRST_USER_MONITOR;
        let arm = MonArm::for_sob(GATE, Compare::AtLeast, 1);
        let mut bytes = Vec::new();
        for packet in [
            MsgShort::monitor_config(monitor, MonConfig::for_sob(GATE)),
            MsgShort::monitor_address_low(monitor, fence),
            MsgShort::monitor_address_high(monitor, fence),
            MsgShort::monitor_data(monitor, 1),
            MsgShort::monitor_arm(monitor, arm),
        ] {
            bytes.extend(packet.expect("a user's monitor").to_bytes());
        }
        bytes.extend(Fence::new(2, 1, 1).expect("a fence").to_bytes());
        bytes.extend(sob(GATE, SobUpdate::set(0)));
        let len = self.put(ProgramSlot::Hold, &bytes);
        HlCsChunk::user(queue.0, self.buffer.0 + ProgramSlot::Hold.at() as u64, len)
    }

    /// Releases a held queue.
    pub(crate) fn open(&self, io: &dyn KernelIo) -> Result<WaitStatus> {
        let chunk = self.chunk(queue::PDMA_1_0.0, ProgramSlot::Open);
        let seq = io.submit(&CsRequest::jobs(&[chunk]))?.seq;
        io.wait_cs(seq, LONG).map(|answer| answer.status)
    }
}

fn sob(number: u32, update: SobUpdate) -> Vec<u8> {
    let packet = MsgShort::sob(number, update).expect("a user's sync object");
    packet.to_bytes().to_vec()
}

/// Converts an errno of an access to process memory to an error of the seam.
pub(crate) fn fault(errno: gaudi_seam::Errno) -> gaudi_seam::Error {
    gaudi_seam::Error::from_errno("memory of this process", errno)
}
