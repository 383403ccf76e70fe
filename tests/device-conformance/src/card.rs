//! A card in a case's hands: registers, memory that it is shown, its own engine for copies, interrupts.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use gaudi_seam::{BarOffset, DeviceIo, Event, Iova, RawMapping};
use gaudi_spec::gaudi2::firmware::{self, packet};
use gaudi_spec::gaudi2::{CFG_BAR, qman};
use gaudi_sys::poll;

/// Where registers lie in their BAR (driver gaudi2.c:3837 `gaudi2_set_pci_memory_regions`).
pub const REGISTERS: u64 = 0x400_0000;
/// Where cases show memory to the card: below every IOMMU's end, and away from the addresses of interrupts and of the chip itself.
pub const HOST: u64 = 0x1_0000_0000;
/// How long a card may take for what it does at once, on a machine that is busy and emulated.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a case waits for what must not come.
const MOMENT: Duration = Duration::from_millis(100);

/// `PCI_COMMAND` with memory and bus mastering on (linux/pci_regs.h).
const COMMAND: u64 = 4;
const COMMAND_ON: u16 = 1 << 1 | 1 << 2;

/// The word that the engine writes when it is done.
const DONE: u32 = 0x600d_d0e5;
/// Flags of `COMMIT`: write that word (arc_farm_kdma_ctx_masks.h `CTX_COMMIT_WR_COMP_EN`).
const COMMIT_COMPLETION: u32 = 1;

/// A card, with the page of memory in which its engine and firmware tell what they did.
#[derive(Debug)]
pub struct Card<'a> {
    /// What is judged.
    pub device: &'a dyn DeviceIo,
    told: Arc<RawMapping>,
}

// What lies in the page that tells, and the page whose writes are interrupts.
const TOLD: u64 = HOST - 0x10_0000;
const TOLD_LEN: usize = 0x4000;
const QUEUE: u64 = 0x1000;
const PACKET: u64 = 0x2000;
const DOORBELL: u64 = TOLD + 0x3000;

impl<'a> Card<'a> {
    /// A card that may write to memory, as a driver has it when it begins.
    pub fn new(device: &'a dyn DeviceIo) -> Self {
        let told = memory(TOLD_LEN);
        device
            .dma_map(Iova(TOLD), told.clone())
            .expect("nothing is shown yet");
        let card = Self { device, told };
        card.enable();
        card
    }

    /// Switches memory and bus mastering on in the command register.
    pub fn enable(&self) {
        let on = COMMAND_ON.to_le_bytes();
        self.device
            .config_write(COMMAND, &on)
            .expect("the command register");
    }

    /// A register's word.
    pub fn read(&self, register: u32) -> u32 {
        let mut word = [0; 4];
        let at = BarOffset(REGISTERS + u64::from(register));
        self.device
            .bar_read(CFG_BAR.0, at, &mut word)
            .expect("in the BAR");
        u32::from_le_bytes(word)
    }

    /// Writes one.
    pub fn write(&self, register: u32, value: u32) {
        let at = BarOffset(REGISTERS + u64::from(register));
        let done = self.device.bar_write(CFG_BAR.0, at, &value.to_le_bytes());
        done.expect("in the BAR");
    }

    fn write64(&self, low: u32, high: u32, value: u64) {
        self.write(low, value as u32);
        self.write(high, (value >> 32) as u32);
    }

    /// Shows memory to the card.
    pub fn show(&self, iova: u64, memory: &Arc<RawMapping>) {
        let shown = self.device.dma_map(Iova(iova), memory.clone());
        shown.unwrap_or_else(|error| panic!("{iova:#x} is free: {error:?}"));
    }

    /// Has the kernel's DMA engine copy, and write a word when it is done; or never.
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

    /// Starts a copy; whether it ends is for [`is_refused`](Self::is_refused) to say.
    pub fn start_copy(&self, to: u64, from: u64, len: u32) {
        self.told.write(0, &[0; 4]).expect("in the page");
        self.program(to, from, len, (TOLD, DONE));
    }

    /// Has it copy, and waits until it has.
    pub fn copy(&self, to: u64, from: u64, len: u32) {
        self.start_copy(to, from, len);
        self.wait("the copy is done", || self.word(0) == DONE);
    }

    /// Whether the copy that was started last has not come to its end. Writes arrive in order, so a read after them says that they were
    /// heard.
    pub fn is_refused(&self) -> bool {
        let _ = self.read(qman::KDMA + qman::COMMIT);
        thread::sleep(MOMENT);
        self.word(0) == 0
    }

    fn word(&self, at: u64) -> u32 {
        let at = usize::try_from(at).expect("in the page");
        self.told.load_u32(at, Ordering::Acquire).expect("in the page")
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < PATIENCE, "{what}, but not in {PATIENCE:?}");
            thread::yield_now();
        }
    }

    /// Tells the firmware which page's writes are interrupts, as a driver does when it has its vectors.
    pub fn take_interrupts(&self) {
        self.write64(firmware::PQ_BASE_LO, firmware::PQ_BASE_HI, TOLD + QUEUE);
        self.write(firmware::QUEUE_INIT, firmware::QUEUES_SET);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        self.wait("the firmware takes its queue", || {
            self.read(firmware::QUEUE_INIT) == firmware::QUEUES_TAKEN
        });
        let mut request = DOORBELL.to_le_bytes().to_vec();
        request.extend((u32::from(packet::ENABLE_PCI_ACCESS) << 16).to_le_bytes());
        request.resize(packet::SIZE, 0);
        let mut entry = (TOLD + PACKET).to_le_bytes().to_vec();
        entry.extend((packet::SIZE as u64).to_le_bytes());
        for (at, bytes) in [(PACKET, request), (QUEUE, entry)] {
            let at = usize::try_from(at).expect("in the page");
            self.told.write(at, &bytes).expect("in the page");
        }
        self.write(firmware::PQ_PI, 1);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        let fence = PACKET + packet::FENCE as u64;
        self.wait("the firmware answers", || self.word(fence) == 1);
    }

    /// Has the engine raise a vector: when it is done it writes the vector's number into that page. Needs
    /// [`take_interrupts`](Self::take_interrupts).
    pub fn raise(&self, vector: u16) {
        self.program(TOLD + 12, TOLD + 8, 4, (DOORBELL, u32::from(vector)));
    }
}

impl Drop for Card<'_> {
    fn drop(&mut self) {
        // The next case shows a page of its own there. One that failed has said so already.
        let _ = self.device.dma_unmap(Iova(TOLD), TOLD_LEN as u64);
    }
}

/// Zeroed memory of this process, in whole pages.
pub(crate) fn memory(len: usize) -> Arc<RawMapping> {
    Arc::new(RawMapping::anonymous(len, false).expect("memory"))
}

/// Bytes of memory.
pub(crate) fn bytes(memory: &RawMapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).expect("in the memory");
    bytes
}

/// Bytes that no other place has: `seed` tells patterns apart.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

/// Waits for an event that must come, and says how often it was signalled.
pub(crate) fn signalled(event: &Event) -> u64 {
    let ready = poll::readable([event.as_fd()], PATIENCE).expect("polled");
    assert_eq!(ready, [true], "an event comes within {PATIENCE:?}");
    event.take().expect("taken")
}

/// Whether an event stays away for a moment.
pub(crate) fn is_silent(event: &Event) -> bool {
    poll::readable([event.as_fd()], MOMENT).expect("polled") == [false]
}
