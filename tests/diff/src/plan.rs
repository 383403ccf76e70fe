//! Generates sequences from a seed: valid operations, invalid ones, and boundary values.

mod jobs;

use gaudi_random::Rng;
use gaudi_spec::gaudi2::{self, block, queue};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;

use crate::arena::MAPPED;
use crate::op::{Memory, Op, OpNumber, Ref, Word};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The maximum number of operations while a queue is held: the driver aborts a submission at its
/// timeout.
const MAX_HOLD_OPS: u32 = 12;
/// The driver's limit on a command buffer.
const MAX_CB_SIZE: u32 = 0x20_0000 - 32;
/// Flags of submissions (uapi `HL_CS_FLAGS_*`).
const FORCE_RESTORE: u32 = 0x1;
const SIGNAL: u32 = 0x2;
const WAIT: u32 = 0x4;
const COLLECTIVE_WAIT: u32 = 0x8;
const TIMESTAMP: u32 = 0x20;
const ENCAP_SIGNALS: u32 = 0x800;
/// Queues for user programs that no operation holds.
const QUEUES: [u32; 7] = [0, 1, 4, 8, 52, 20, 252];
/// The engines among them that copy.
const COPIES: [u32; 4] = [0, 1, 4, 8];
/// The queue that operations hold.
const HELD: u32 = queue::PDMA_0_1.0;

/// The objects that exist if no operation is refused. After a refusal the state is wrong, which
/// only makes later operations invalid.
#[derive(Debug, Default)]
struct GeneratorState {
    memories: Vec<OpNumber>,
    freed: Vec<OpNumber>,
    mappings: Vec<(OpNumber, u64)>,
    buffers: Vec<OpNumber>,
    stamps: Vec<OpNumber>,
    maps: Vec<OpNumber>,
    exports: Vec<OpNumber>,
    submissions: Vec<OpNumber>,
    reservations: Vec<OpNumber>,
    held: Option<u32>,
    pages: u64,
}

/// The generator of one sequence.
struct Plan {
    rng: Rng,
    state: GeneratorState,
    now: OpNumber,
}

/// Returns sequence `number` of a seed with `len` operations.
pub(crate) fn sequence(seed: u64, number: u64, len: usize) -> Vec<Op> {
    let mut plan = Plan {
        rng: Rng::of_case(seed, number),
        state: GeneratorState::default(),
        now: 0,
    };
    let mut ops = Vec::with_capacity(len);
    // Operations that take a second, or close the device, are in few sequences. The sequence's
    // number selects them, so that a sequence does not depend on earlier ones.
    let late = |at: usize| number % 24 == 3 && at + 60 == len;
    let fill = |at: usize| number % 24 == 5 && at + 60 == len;
    // Before any other timeout since the open: the driver reports only the first one to a user
    // (common/command_submission.c:cs_timedout).
    let expire = |at: usize| number % 48 == 33 && at + 40 == len;
    let close = |at: usize| number % 24 == 8 && at + 40 == len;
    while ops.len() < len {
        plan.now = ops.len() as OpNumber;
        let op = match plan.state.held {
            Some(0) => plan.release_held(),
            _ if close(ops.len()) => plan.reopen(),
            _ if fill(ops.len()) => Op::Fill { queue: HELD },
            _ if expire(ops.len()) => plan.timeout_with_reset(),
            _ if late(ops.len()) => Op::TimeoutWithoutReset { queue: HELD },
            _ => plan.next(),
        };
        if let Some(left) = plan.state.held.as_mut() {
            *left = left.saturating_sub(1);
        }
        ops.push(op);
    }
    ops
}

impl Plan {
    fn wrong(&mut self) -> bool {
        self.rng.percent(22)
    }

    /// Returns a live object, or sometimes a freed one, one of another kind, or an unused number.
    fn one_of(&mut self, live: &[OpNumber], freed: &[OpNumber]) -> Ref {
        let any = [live, freed].concat();
        match self.rng.below(100) {
            0..76 if !live.is_empty() => Ref::to(self.rng.pick(live)),
            76..86 if !freed.is_empty() => Ref::to(self.rng.pick(freed)),
            86..90 if !any.is_empty() => Ref {
                of: Some(self.rng.pick(&any)),
                plus: self.rng.pick(&[1, 8, PAGE, 1 << 32, 1 << 44, 1 << 59, 1 << 63]),
            },
            90..95 => Ref::to(self.rng.below(u64::from(self.now).max(1)) as OpNumber),
            _ => Ref::raw(
                self.rng
                    .pick(&[0, 1, 4096, u64::MAX, 1 << 40, 0x2 << 59, (0x2 << 59) | 0x1000]),
            ),
        }
    }

    fn freed(&self) -> Vec<OpNumber> {
        self.state.freed.clone()
    }

    fn take(&mut self, of: fn(&mut GeneratorState) -> &mut Vec<OpNumber>, at: Ref) {
        if let Some(number) = at.of.filter(|_| at.plus == 0) {
            let list = of(&mut self.state);
            if let Some(place) = list.iter().position(|other| *other == number) {
                list.remove(place);
                self.state.freed.push(number);
            }
        }
    }

    fn next(&mut self) -> Op {
        match self.rng.below(1000) {
            0..150 => self.info(),
            150..200 => self.cb_create(),
            200..235 => self.cb_destroy(),
            235..275 => self.cb_info(),
            275..310 => self.mmap(),
            310..340 => self.munmap(),
            340..400 => self.alloc(),
            400..450 => self.free(),
            450..510 => self.map_device(),
            510..575 => self.map_host(),
            575..645 => self.unmap(),
            645..655 => self.map_block(),
            655..705 => self.export(),
            705..740 => self.close_export(),
            740..744 => Op::RegisterDmabuf,
            744..750 => self.ts_alloc(),
            750..765 => self.register(),
            765..815 => self.submit(),
            815..835 => self.copy(),
            835..850 => self.signal(),
            850..858 => self.reserve(),
            858..864 => self.unreserve(),
            864..872 => self.engines(),
            872..880 => self.hold(),
            880..920 => self.wait_cs(),
            920..924 => self.wait_multi(),
            924..945 => self.wait_interrupt(),
            945..955 => Op::RegisterEvents {
                is_eventfd: !self.wrong(),
            },
            955..963 => Op::UnregisterEvents,
            963..983 => self.debug(),
            983..988 => Op::SecondOpen,
            988..998 => Op::OnControl(self.rng.below(8) as u8),
            _ => self.rare(),
        }
    }

    fn rare(&mut self) -> Op {
        if self.state.held.is_some() {
            return self.info();
        }
        self.export_scarce()
    }

    fn info(&mut self) -> Op {
        // (operation, bytes of its answer, argument)
        let questions = [
            (InfoOp::HW_IP_INFO, 304, 0),
            (InfoOp::HW_EVENTS, 4096, 0),
            (InfoOp::DRAM_USAGE, 16, 0),
            (InfoOp::HW_IDLE, 40, 0),
            (InfoOp::DEVICE_STATUS, 8, 0),
            (InfoOp::DEVICE_UTILIZATION, 8, 1),
            (InfoOp::HW_EVENTS_AGGREGATE, 4096, 0),
            (InfoOp::CLK_RATE, 8, 0),
            (InfoOp::RESET_COUNT, 8, 0),
            (InfoOp::TIME_SYNC, 24, 0),
            (InfoOp::CS_COUNTERS, 96, 0),
            (InfoOp::CS_COUNTERS, 96, 0),
            (InfoOp::PCI_COUNTERS, 24, 0),
            (InfoOp::CLK_THROTTLE_REASON, 40, 0),
            (InfoOp::SYNC_MANAGER, 16, self.rng.below(10) as u32),
            (InfoOp::TOTAL_ENERGY, 8, 0),
            (InfoOp::PLL_FREQUENCY, 8, self.rng.below(14) as u32),
            (InfoOp::POWER, 8, 0),
            (InfoOp::OPEN_STATS, 24, 0),
            (InfoOp::DRAM_REPLACED_ROWS, 128, 0),
            (InfoOp::DRAM_PENDING_ROWS, 8, 0),
            (InfoOp::LAST_ERR_OPEN_DEV_TIME, 8, 0),
            (InfoOp::CS_TIMEOUT_EVENT, 16, 0),
            (InfoOp::RAZWI_EVENT, 320, 0),
            (InfoOp::DEV_MEM_ALLOC_PAGE_SIZES, 8, 0),
            (InfoOp::SECURED_ATTESTATION, 4096, 7),
            (InfoOp::GET_EVENTS, 8, 0),
            (InfoOp::UNDEFINED_OPCODE_EVENT, 320, 0),
            (InfoOp::ENGINE_STATUS, 32 << 10, 0),
            (InfoOp::PAGE_FAULT_EVENT, 32, 0),
            (InfoOp::USER_MAPPINGS, 256, 0),
            (InfoOp::FW_GENERIC_REQ, 64, self.rng.below(5) as u32),
            (InfoOp::HW_ERR_EVENT, 32, 0),
            (InfoOp::FW_ERR_EVENT, 32, 0),
            (InfoOp::USER_ENGINE_ERR_EVENT, 32, 0),
            (InfoOp::DEV_SIGNED, 6144, 9),
            (InfoOp(5), 64, 0),
            (InfoOp(54), 64, 0),
            (InfoOp(200), 64, 0),
        ];
        let (op, size, arg) = self.rng.pick(&questions);
        let room = match self.wrong() {
            true => self.rng.pick(&[0, 1, 3, 7, 8, 16, size / 2, size + 64]),
            false => size,
        };
        Op::Info {
            op,
            arg,
            room,
            control: self.rng.percent(12),
        }
    }

    fn cb_create(&mut self) -> Op {
        let size = match self.wrong() {
            true => self.rng.pick(&[
                0,
                1,
                MAX_CB_SIZE,
                MAX_CB_SIZE + 1,
                MAX_CB_SIZE + 32,
                1 << 30,
                u32::MAX,
            ]),
            false => self.rng.pick(&[64, 4096, 4097, 8192, 12_345, 65_536]),
        };
        self.state.buffers.push(self.now);
        Op::CbCreate {
            size,
            map: self.rng.percent(60),
        }
    }

    fn buffer(&mut self) -> Ref {
        let (live, freed) = (self.state.buffers.clone(), self.freed());
        self.one_of(&live, &freed)
    }

    fn cb_destroy(&mut self) -> Op {
        let buffer = self.buffer();
        self.take(|state| &mut state.buffers, buffer);
        Op::CbDestroy { buffer }
    }

    fn cb_info(&mut self) -> Op {
        Op::CbInfo {
            buffer: self.buffer(),
            address: self.rng.percent(60),
        }
    }

    fn mmap(&mut self) -> Op {
        let offset = match self.rng.below(8) {
            0 => {
                let stamps = self.state.stamps.clone();
                self.one_of(&stamps, &[])
            }
            _ => self.buffer(),
        };
        self.state.maps.push(self.now);
        Op::Mmap {
            // The C library accepts only whole pages.
            offset: Ref {
                plus: offset.plus & !0xfff,
                ..offset
            },
            len: self
                .rng
                .pick(&[1, 4096, 4096, 4096, 8192, 8192, 16_384, 65_536, 1 << 21, 1 << 30]),
        }
    }

    fn munmap(&mut self) -> Op {
        let maps = &self.state.maps;
        let of = match maps.is_empty() {
            true => self.now,
            false => self.rng.pick(&maps.clone()),
        };
        self.state.maps.retain(|other| *other != of);
        Op::Munmap { of }
    }

    fn alloc(&mut self) -> Op {
        let page = gaudi2::DRAM_PAGE;
        let size = match self.wrong() {
            // Not more pages than the kernel can list: a larger allocation in the driver warns.
            true => self
                .rng
                .pick(&[0, u64::MAX, 1 << 50, 97_536 * MIB, 98_304 * MIB, page * 60]),
            false => self
                .rng
                .pick(&[1, 4096, MIB, page, page, page + 1, 3 * page, page - 1]),
        };
        self.state.pages += size.div_ceil(page).min(127);
        self.state.memories.push(self.now);
        Op::Alloc {
            size,
            page: self.rng.pick(&[0, 0, 0, page, 4096, 12_345, 1 << 30]),
            flags: self.rng.pick(&[0, 0, 0, 0x1, 0x1, 0x2, 0x100, 0x8]),
        }
    }

    fn memory(&mut self) -> Ref {
        let (live, freed) = (self.state.memories.clone(), self.freed());
        self.one_of(&live, &freed)
    }

    fn free(&mut self) -> Op {
        let memory = self.memory();
        self.take(|state| &mut state.memories, memory);
        Op::Free { memory }
    }

    fn map_device(&mut self) -> Op {
        let base = gaudi2::DRAM_VA.start.0;
        let page = gaudi2::DRAM_PAGE;
        let hint = match self.rng.below(10) {
            0..5 => None,
            5 => Some(base + page * self.rng.below(300)),
            6 => Some(base + page * 100 + self.rng.pick(&[1, 4096, MIB, page / 2])),
            7 => Some(gaudi2::HOST_VA.start.0 + (5 << 30)),
            8 => Some(gaudi2::DRAM_VA.end.0 - page),
            // Not the last addresses: the driver's sum of hint and size would wrap and corrupt its
            // list of free addresses.
            _ => Some(self.rng.pick(&[
                0,
                1,
                4096,
                gaudi2::DRAM_VA_RESERVED.start,
                gaudi2::DRAM_VA.start.0 - 1,
            ])),
        };
        let memory = self.memory();
        self.state.mappings.push((self.now, page));
        Op::MapDevice {
            memory,
            hint,
            flags: self.map_flags(),
        }
    }

    fn map_flags(&mut self) -> u32 {
        self.rng.pick(&[0, 0, 0, 0, 0x8, 0x8, 0x40, 0x2, 0x1000])
    }

    fn map_host(&mut self) -> Op {
        let (memory, size) = match self.rng.below(20) {
            0 => (Memory::ReadOnly, 4096),
            1 => {
                let address = self.rng.pick(&[
                    0,
                    0x1000,
                    0xffff_ffff_8000_0000,
                    0xffff_8880_0000_0000,
                    u64::MAX - 4095,
                ]);
                (Memory::Raw(address), self.rng.pick(&[1, 4096, 8192]))
            }
            2 => (Memory::Arena(0), self.rng.pick(&[0, u64::MAX, u64::MAX - 8191])),
            3 => (Memory::Arena(MAPPED - PAGE), 4096),
            _ => {
                let at = self
                    .rng
                    .pick(&[0, 1, 64, 4095, PAGE, 2 * PAGE, 3 * PAGE + 17, MIB, 2 * MIB + PAGE]);
                (
                    Memory::Arena(at),
                    self.rng
                        .pick(&[1, 100, 4095, 4096, 4097, 8192, 20_000, 65_536, 300_000, MIB]),
                )
            }
        };
        let host = gaudi2::HOST_VA.start.0;
        let hint = match self.rng.below(10) {
            0..5 => None,
            5 => Some(host + (6 << 30) + PAGE * self.rng.below(64)),
            6 => Some(host + (6 << 30) + (2 * MIB) * self.rng.below(64)),
            7 => Some(host + (7 << 30) + self.rng.pick(&[1, 64, 4095])),
            8 => Some(gaudi2::DRAM_VA.start.0),
            _ => Some(self.rng.pick(&[
                0,
                1,
                4096,
                gaudi2::HOST_VA_RESERVED.start,
                gaudi2::HOST_VA.end.0 - PAGE,
                u64::MAX,
            ])),
        };
        self.state.mappings.push((self.now, size));
        Op::MapHost {
            memory,
            size,
            hint,
            flags: self.map_flags(),
        }
    }

    fn mapping(&mut self) -> (Ref, u64) {
        let live: Vec<_> = self.state.mappings.iter().map(|row| row.0).collect();
        let freed = self.freed();
        let at = self.one_of(&live, &freed);
        let size = self.state.mappings.iter().find(|row| Some(row.0) == at.of);
        (at, size.map_or(PAGE, |row| row.1))
    }

    fn unmap(&mut self) -> Op {
        let (address, _) = self.mapping();
        if let Some(number) = address.of.filter(|_| address.plus == 0) {
            self.state.mappings.retain(|row| row.0 != number);
            self.state.freed.push(number);
        }
        Op::Unmap { address }
    }

    fn map_block(&mut self) -> Op {
        let number = self.rng.below(u64::from(block::COUNT)) as u32;
        let good = block::block(number).map_or(0, |block| block.address.0);
        let address = match self.wrong() {
            true => self.rng.pick(&[0, 4096, good + 4, good + 4096, u64::MAX]),
            false => good,
        };
        Op::MapBlock { address }
    }

    fn export(&mut self) -> Op {
        let (address, size) = self.mapping();
        let page = gaudi2::DRAM_PAGE;
        let (size, offset) = match self.wrong() {
            true => (
                self.rng
                    .pick(&[0, 1, 4095, 4097, page + PAGE, 4 * page, u64::MAX, 1 << 63]),
                // No offset whose sum with the size wraps: the driver accepts it.
                self.rng.pick(&[0, 1, 4095, page - PAGE, page, 1 << 50]),
            ),
            false => (
                self.rng
                    .pick(&[PAGE, 2 * PAGE, MIB, MIB, 80 * MIB])
                    .min(size.max(PAGE)),
                self.rng.pick(&[0, 0, PAGE, MIB, page - 80 * MIB]),
            ),
        };
        self.state.exports.push(self.now);
        Op::Export {
            address,
            size,
            offset,
            flags: self
                .rng
                .pick(&[0o2_000_002, 0o2_000_002, 0o2, 0, 0o2_000_000, 0o4000, 0x8000_0000]),
            scarce: false,
        }
    }

    fn export_scarce(&mut self) -> Op {
        let (address, _) = self.mapping();
        Op::Export {
            address,
            size: PAGE,
            offset: 0,
            flags: 0o2_000_002,
            scarce: true,
        }
    }

    fn close_export(&mut self) -> Op {
        let exports = self.state.exports.clone();
        let of = match exports.is_empty() {
            true => self.now,
            false => self.rng.pick(&exports),
        };
        self.state.exports.retain(|other| *other != of);
        Op::CloseExport { of }
    }

    fn ts_alloc(&mut self) -> Op {
        // Not 0: an empty allocation in the driver warns.
        let elements = match self.wrong() {
            true => self.rng.pick(&[(1 << 20) + 1, u32::MAX]),
            false => self.rng.pick(&[1, 511, 512]),
        };
        self.state.stamps.push(self.now);
        Op::TsAlloc { elements }
    }

    fn interrupt(&mut self) -> u16 {
        match self.wrong() {
            true => self.rng.pick(&[10, 47, 112, 0x7ff, 0xffd, 0xffff]),
            false => self.rng.pick(&[0, 9, 48, 48, 50, 111, 0xffe, 0xfff]),
        }
    }

    fn register(&mut self) -> Op {
        let stamps = self.state.stamps.clone();
        Op::Register {
            interrupt: self.interrupt(),
            counter: self.buffer(),
            offset: self.rng.pick(&[0, 0, 1, 511, 512, 1 << 32]),
            // Already reached: a pending registration would hold its buffer until the close.
            target: 0,
            buffer: self.one_of(&stamps, &[]),
            index: self.rng.pick(&[0, 0, 1, 510, 511, 512, 1 << 32]),
        }
    }

    fn wait_multi(&mut self) -> Op {
        let count = self.rng.pick(&[0, 1, 3, 32, 33]);
        Op::WaitMulti {
            submissions: (0..count).map(|_| self.submission()).collect(),
        }
    }

    fn wait_interrupt(&mut self) -> Op {
        let word = match self.rng.below(6) {
            0 => Word::User(Memory::Raw(self.rng.pick(&[0, 8, 0x1000, 0xffff_ffff_8000_0000]))),
            1..4 => Word::User(Memory::Arena(crate::arena::Arena::WORD)),
            _ => Word::Counter {
                buffer: self.buffer(),
                offset: self.rng.pick(&[0, 0, 1, 511, 512, 1 << 32]),
            },
        };
        Op::WaitInterrupt {
            interrupt: self.interrupt(),
            word,
            target: self.rng.pick(&[0, 1, 5, 6, u64::MAX]),
            micros: self.rng.pick(&[0, 1, 300]),
        }
    }

    fn debug(&mut self) -> Op {
        let op = match self.rng.below(10) {
            0..5 => DebugOp::SET_MODE,
            _ => DebugOp(self.rng.pick(&[0, 1, 2, 3, 4, 5, 6, 8, 1024, u32::MAX])),
        };
        Op::Debug {
            op,
            index: self
                .rng
                .pick(&[0, 1, 90, 91, 92, 136, 137, 139, 140, 141, 276, 385, u32::MAX]),
            enable: self.rng.percent(55),
            input: self.rng.pick(&[0, 0, 1, 8, 16, 72]),
            output: self.rng.pick(&[0, 0, 8, 16, 64, 72]),
        }
    }

    fn timeout_with_reset(&mut self) -> Op {
        self.state = GeneratorState::default();
        Op::TimeoutWithReset { queue: HELD }
    }

    fn reopen(&mut self) -> Op {
        self.state = GeneratorState::default();
        Op::Reopen {
            keep_exports: self.rng.percent(60),
        }
    }
}
