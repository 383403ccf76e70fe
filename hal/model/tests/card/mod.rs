//! A card across PCI for tests, and memory of a host that it sees.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gaudi_model::pci::{PciChip, PciConfig};
use gaudi_spec::BarOffset;
use gaudi_spec::gaudi2::firmware::{self, boot, command, packet, status};
use gaudi_spec::gaudi2::mmu::{self, STLB_ASID, STLB_BUSY, STLB_HOP0_PA43_12, STLB_HOP0_PA63_44};
use gaudi_spec::gaudi2::packet::{Encoder, LinDmaCtl, SliceSink};
use gaudi_spec::gaudi2::sync::SobUpdate;
use gaudi_spec::gaudi2::{CFG_BAR, CFG_BASE, qman, queue, sync};
use gaudi_sys::RawMapping;

/// Where registers and SRAM lie in their BAR.
pub(crate) const REGISTERS: u64 = 0x400_0000;
pub(crate) const SRAM: u64 = 0xd00_0000;
/// Host memory of the rig: where the bus shows it, and how much.
pub(crate) const HOST: u64 = 0x1_0000_0000;
pub(crate) const HOST_LEN: usize = 1 << 20;
pub(crate) const DOORBELL: u64 = HOST + 0xf_0000;

/// A card, and memory of a host that it sees.
pub(crate) struct Rig {
    pub(crate) chip: PciChip,
    pub(crate) host: Arc<RawMapping>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::of(PciConfig::default())
    }

    pub(crate) fn of(config: PciConfig) -> Self {
        let mut chip = PciChip::new(config).expect("a card");
        let host = Arc::new(RawMapping::anonymous(HOST_LEN, false).expect("memory"));
        chip.dma_map(HOST, host.clone()).expect("nothing else is there");
        Self { chip, host }
    }

    pub(crate) fn read(&mut self, register: u32) -> u32 {
        let mut word = [0; 4];
        let at = BarOffset(REGISTERS + u64::from(register));
        self.chip.bar_read(CFG_BAR.0, at, &mut word);
        u32::from_le_bytes(word)
    }

    pub(crate) fn write(&mut self, register: u32, value: u32) {
        let at = BarOffset(REGISTERS + u64::from(register));
        self.chip.bar_write(CFG_BAR.0, at, &value.to_le_bytes());
    }

    pub(crate) fn write64(&mut self, low: u32, high: u32, value: u64) {
        self.write(low, value as u32);
        self.write(high, (value >> 32) as u32);
    }

    pub(crate) fn host_word(&self, at: u64) -> u32 {
        let at = usize::try_from(at - HOST).expect("in the rig's memory");
        self.host.load_u32(at, Ordering::Acquire).expect("in range")
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at - HOST).expect("in the rig's memory");
        self.host.write(at, bytes).expect("in range");
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = usize::try_from(at - HOST).expect("in the rig's memory");
        self.host.read(at, &mut bytes).expect("in range");
        bytes
    }

    /// A command as the driver sends it: acknowledged, then done.
    pub(crate) fn command(&mut self, command: u32, size: u32) -> u32 {
        let mut say = |word| {
            self.write(firmware::KMD_MSG_TO_CPU, word);
            self.read(firmware::CMD_STATUS_TO_HOST)
        };
        assert_eq!(say(command::CLR_STS << 27), 0, "the status is cleared");
        assert_eq!(
            say(command << 27 | size) >> 28,
            status::ACK,
            "command {command} is seen"
        );
        assert_eq!(say(command::CLR_STS << 27), 0);
        let done = say(command::NOOP << 27);
        assert_eq!(done >> 28, status::OK, "command {command} is done");
        done
    }

    /// Loads both images.
    pub(crate) fn boot(&mut self) {
        self.command(command::RST_STATE, 0);
        for wanted in [boot::READY_TO_BOOT, boot::SRAM_AVAIL] {
            self.command(command::PREP_DESC, 0x1000);
            self.command(command::DATA_RDY, 0);
            self.command(command::EXEC, 0);
            assert_eq!(self.read(firmware::BOOT_STATUS), wanted);
        }
    }

    /// Sets the packet queue up, in the second page of host memory.
    pub(crate) fn queues(&mut self) {
        self.write64(firmware::PQ_BASE_LO, firmware::PQ_BASE_HI, HOST + 0x1000);
        self.write64(firmware::EQ_BASE_LO, firmware::EQ_BASE_HI, HOST + 0x4000);
        self.write(firmware::EQ_LENGTH, 64 * 64);
        self.write(firmware::QUEUE_INIT, firmware::QUEUES_SET);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        assert_eq!(self.read(firmware::QUEUE_INIT), firmware::QUEUES_TAKEN);
    }

    /// The `nth` packet to the firmware; its result, and what came of it.
    pub(crate) fn ask(&mut self, nth: u32, operation: u16, value: u64, argument: u32) -> (u64, u32) {
        let at = HOST + 0x3000;
        let mut bytes = value.to_le_bytes().to_vec();
        for word in [u32::from(operation) << 16, 0, argument, 0] {
            bytes.extend(word.to_le_bytes());
        }
        self.put(at, &bytes);
        let mut entry = at.to_le_bytes().to_vec();
        entry.extend((packet::SIZE as u64).to_le_bytes());
        self.put(HOST + 0x1000 + u64::from(nth) * 16, &entry);
        self.write(firmware::PQ_PI, nth + 1);
        self.write(firmware::GIC_HOST_PI_UPD, 1);
        assert_eq!(
            self.host_word(at + packet::FENCE as u64),
            nth + 1,
            "the fence gives the index"
        );
        let result = u64::from_le_bytes(self.bytes(at, 8).try_into().expect("8 bytes"));
        (
            result,
            self.host_word(at + packet::CTL as u64) >> packet::RC_SHIFT & 0xf,
        )
    }

    /// Sets a stream of PDMA 0 up with a ring of 8 entries.
    pub(crate) fn ring(&mut self, stream: u32, at: u64) {
        let qman = queue::row(queue::PDMA_0_0).expect("a queue").qman;
        let register = |table| qman + table + stream * 4;
        self.write64(register(qman::PQ_BASE_LO), register(qman::PQ_BASE_HI), at);
        self.write(register(qman::PQ_SIZE), 3);
        self.write(register(qman::PQ_PI), 0);
        self.write(register(qman::PQ_CI), 0);
        self.write(
            register(qman::PQC_LBW_WDATA),
            SobUpdate::add_signed(1).into_bits(),
        );
        let sob = CFG_BASE.get() + u64::from(sync::OBJS);
        self.write64(
            register(qman::PQC_LBW_BASE_LO),
            register(qman::PQC_LBW_BASE_HI),
            sob,
        );
        self.write(qman + qman::PQC_CFG, 1);
        self.write(qman + qman::GLBL_CFG0, 0xf);
    }

    /// Puts an entry into it, whose end adds one to a sync object.
    pub(crate) fn entry(&self, ring: u64, nth: u64, cb: u64, len: usize, sob: u32) {
        let mut entry = cb.to_le_bytes().to_vec();
        entry.extend(u32::try_from(len).expect("short").to_le_bytes());
        entry.extend((sob << 16).to_le_bytes());
        self.put(ring + nth * 16, &entry);
    }

    pub(crate) fn sob(&mut self, sob: u32) -> u32 {
        self.read(sync::OBJS + sob * 4)
    }

    /// Page tables of the user's context: a page of 4 KiB at a host address for the chip.
    pub(crate) fn map_host(&mut self, va: u64, to: u64) {
        let tables = HOST + 0x8_0000;
        for (hop, &shift) in (0u64..).zip(&mmu::PMMU_SHIFTS) {
            let entry = tables + hop * mmu::TABLE + (va >> shift & 0x1ff) * 8;
            let value = if hop == 5 {
                to | mmu::PRESENT | mmu::LAST
            } else {
                (tables + (hop + 1) * mmu::TABLE) | mmu::PRESENT
            };
            self.put(entry, &value.to_le_bytes());
        }
        self.table(mmu::PMMU_STLB, tables);
    }

    pub(crate) fn table(&mut self, stlb: u32, tables: u64) {
        self.write(stlb + STLB_ASID, 1);
        self.write(stlb + STLB_HOP0_PA43_12, (tables >> 12) as u32);
        self.write(stlb + STLB_HOP0_PA63_44, (tables >> 44) as u32);
        self.write(stlb + STLB_BUSY, mmu::BUSY);
        assert_eq!(self.read(stlb + STLB_BUSY) & mmu::BUSY, 0, "it is taken at once");
    }

    /// Writes registers of the kernel's DMA engine: where a completion goes and its word, and a
    /// fill of `size` bytes at `to`.
    pub(crate) fn kdma_fill(&mut self, to: u64, size: u32, (completion, word): (u64, u32)) {
        let core = |register| qman::KDMA + register;
        self.write64(core(qman::DST_BASE_LO), core(qman::DST_BASE_HI), to);
        self.write(core(qman::DST_TSIZE_0), size);
        self.write64(
            core(qman::WR_COMP_ADDR_LO),
            core(qman::WR_COMP_ADDR_HI),
            completion,
        );
        self.write(core(qman::WR_COMP_WDATA), word);
    }

    /// Gives PDMA 0 and its queue manager to the user's context.
    pub(crate) fn give(&mut self) {
        let qman = queue::row(queue::PDMA_0_0).expect("a queue").qman;
        for axuser in [qman + qman::AXUSER, qman + qman::CORE_AXUSER] {
            self.write(axuser, 0x1_0001);
            self.write(axuser + qman::AXUSER_MMU_BP, 0);
        }
    }
}

pub(crate) fn program(write: impl FnOnce(&mut Encoder<SliceSink<'_>>)) -> Vec<u8> {
    let mut whole = vec![0; 256];
    let mut encoder = Encoder::new(SliceSink::new(&mut whole));
    write(&mut encoder);
    whole
}

/// What `COMMIT` is written with to start a fill with a write completion.
pub(crate) const FILL: u32 = qman::COMMIT_LINEAR
    | LinDmaCtl::new().with_wrcomp(true).with_memset(true).into_bits() & !LinDmaCtl::new().into_bits();
