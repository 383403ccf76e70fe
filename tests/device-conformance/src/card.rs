//! The device under test: registers, DMA mappings, the kernel's DMA engine, interrupts.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use gaudi_seam::{BarOffset, DeviceIo, Event, Iova, RawMapping};
use gaudi_spec::gaudi2::firmware::{self, packet};
use gaudi_spec::gaudi2::{CFG_BAR, qman};
use gaudi_sys::poll;

/// Offset of the registers in their BAR (`gaudi2.c:gaudi2_set_pci_memory_regions`).
pub const REGISTERS: u64 = 0x400_0000;
/// Bus address at which cases map memory: below every IOMMU's limit, and outside the addresses of
/// interrupts and of the chip.
pub const HOST: u64 = 0x1_0000_0000;
/// Timeout of an action that the card does at once, on a busy emulated machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a case waits for an event that must not come.
const SILENCE: Duration = Duration::from_millis(100);

/// `PCI_COMMAND` with memory and bus mastering on (linux/pci_regs.h).
const COMMAND: u64 = 4;
const COMMAND_ON: u16 = 1 << 1 | 1 << 2;

/// The word that the engine writes on completion.
const DONE: u32 = 0x600d_d0e5;
/// Flags of `COMMIT`: write that word (arc_farm_kdma_ctx_masks.h `CTX_COMMIT_WR_COMP_EN`).
const COMMIT_COMPLETION: u32 = 1;

/// A card, with mapped memory for the completions of its engine and the queue of its firmware.
#[derive(Debug)]
pub struct Card<'a> {
    /// The device under test.
    pub device: &'a dyn DeviceIo,
    status: Arc<RawMapping>,
}

// Offsets in that memory, and the page whose writes are interrupts.
const STATUS: u64 = HOST - 0x10_0000;
const STATUS_LEN: usize = 0x4000;
const QUEUE: u64 = 0x1000;
const PACKET: u64 = 0x2000;
const DOORBELL: u64 = STATUS + 0x3000;

impl<'a> Card<'a> {
    /// Maps the status memory and enables bus mastering, as a driver does first.
    pub fn new(device: &'a dyn DeviceIo) -> Self {
        let status = memory(STATUS_LEN);
        device
            .dma_map(Iova(STATUS), status.clone())
            .expect("nothing is mapped yet");
        let card = Self { device, status };
        card.enable();
        card
    }

    /// Enables memory access and bus mastering in the command register.
    pub fn enable(&self) {
        let on = COMMAND_ON.to_le_bytes();
        self.device
            .config_write(COMMAND, &on)
            .expect("the command register");
    }

    /// Reads a register.
    pub fn read(&self, register: u32) -> u32 {
        let mut word = [0; 4];
        let at = BarOffset(REGISTERS + u64::from(register));
        self.device
            .bar_read(CFG_BAR.0, at, &mut word)
            .expect("in the BAR");
        u32::from_le_bytes(word)
    }

    /// Writes a register.
    pub fn write(&self, register: u32, value: u32) {
        let at = BarOffset(REGISTERS + u64::from(register));
        let done = self.device.bar_write(CFG_BAR.0, at, &value.to_le_bytes());
        done.expect("in the BAR");
    }

    fn write64(&self, low: u32, high: u32, value: u64) {
        self.write(low, value as u32);
        self.write(high, (value >> 32) as u32);
    }

    /// Maps memory for DMA at a bus address.
    pub fn map(&self, iova: u64, memory: &Arc<RawMapping>) {
        let mapped = self.device.dma_map(Iova(iova), memory.clone());
        mapped.unwrap_or_else(|error| panic!("{iova:#x} is free: {error:?}"));
    }

    /// Programs the kernel's DMA engine to copy, and to write a word on completion.
    fn program(&self, to: u64, from: u64, len: u32, (at, word): (u64, u32)) {
        let context = |register: u32| qman::KDMA + register;
        let pair = |low: u32, high: u32, value| self.write64(context(low), context(high), value);
        pair(qman::SRC_BASE_LO, qman::SRC_BASE_HI, from);
        pair(qman::DST_BASE_LO, qman::DST_BASE_HI, to);
        pair(qman::WR_COMP_ADDR_LO, qman::WR_COMP_ADDR_HI, at);
        self.write(context(qman::WR_COMP_WDATA), word);
        self.write(context(qman::DST_TSIZE_0), len);
        self.write(context(qman::COMMIT), qman::COMMIT_LINEAR | COMMIT_COMPLETION);
    }

    /// Starts a copy. [`is_refused`](Self::is_refused) reports whether it was aborted.
    pub fn start_copy(&self, to: u64, from: u64, len: u32) {
        self.status.write(0, &[0; 4]).expect("in the page");
        self.program(to, from, len, (STATUS, DONE));
    }

    /// Copies, and waits for the completion.
    pub fn copy(&self, to: u64, from: u64, len: u32) {
        self.start_copy(to, from, len);
        self.wait("the copy is done", || self.word(0) == DONE);
    }

    /// Whether the newest copy has not completed. Writes arrive in order, so a read after them
    /// proves that the card received them.
    pub fn is_refused(&self) -> bool {
        // Only the order matters, not the value.
        let _ = self.read(qman::KDMA + qman::COMMIT);
        thread::sleep(SILENCE);
        self.word(0) == 0
    }

    fn word(&self, at: u64) -> u32 {
        let at = usize::try_from(at).expect("in the page");
        self.status.load_u32(at, Ordering::Acquire).expect("in the page")
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < TIMEOUT, "{what}, but not in {TIMEOUT:?}");
            thread::yield_now();
        }
    }

    /// Sets the page whose writes are interrupts in the firmware, as a driver does once it has its
    /// vectors.
    pub fn enable_interrupts(&self) {
        self.write64(firmware::PQ_BASE_LO, firmware::PQ_BASE_HI, STATUS + QUEUE);
        self.write(firmware::QUEUE_INIT, firmware::QUEUES_SET);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        self.wait("the firmware accepts its queue", || {
            self.read(firmware::QUEUE_INIT) == firmware::QUEUES_TAKEN
        });
        let mut request = DOORBELL.to_le_bytes().to_vec();
        request.extend((u32::from(packet::ENABLE_PCI_ACCESS) << 16).to_le_bytes());
        request.resize(packet::SIZE, 0);
        let mut entry = (STATUS + PACKET).to_le_bytes().to_vec();
        entry.extend((packet::SIZE as u64).to_le_bytes());
        for (at, bytes) in [(PACKET, request), (QUEUE, entry)] {
            let at = usize::try_from(at).expect("in the page");
            self.status.write(at, &bytes).expect("in the page");
        }
        self.write(firmware::PQ_PI, 1);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        let fence = PACKET + packet::FENCE as u64;
        self.wait("the firmware answers", || self.word(fence) == 1);
    }

    /// Raises a vector: the engine writes its number into that page as a completion. Call
    /// [`enable_interrupts`](Self::enable_interrupts) first.
    pub fn raise(&self, vector: u16) {
        self.program(STATUS + 12, STATUS + 8, 4, (DOORBELL, u32::from(vector)));
    }
}

impl Drop for Card<'_> {
    fn drop(&mut self) {
        // The next case maps its own memory there. A case that failed has reported it already.
        let _ = self.device.dma_unmap(Iova(STATUS), STATUS_LEN as u64);
    }
}

/// Zeroed memory of this process, in whole pages.
pub(crate) fn memory(len: usize) -> Arc<RawMapping> {
    Arc::new(RawMapping::anonymous(len, false).expect("memory"))
}

/// Returns bytes of memory.
pub(crate) fn bytes(memory: &RawMapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).expect("in the memory");
    bytes
}

/// A pattern that differs at each offset and for each `seed`.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

/// Waits for an event, and returns how often it was signalled.
pub(crate) fn signalled(event: &Event) -> u64 {
    let ready = poll::readable([event.as_fd()], TIMEOUT).expect("polled");
    assert_eq!(ready, [true], "an event is signalled within {TIMEOUT:?}");
    event.take().expect("taken")
}

/// Whether an event is not signalled for a moment.
pub(crate) fn is_silent(event: &Event) -> bool {
    poll::readable([event.as_fd()], SILENCE).expect("polled") == [false]
}
