//! The eBPF programs, as instructions.
//!
//! The offsets of kernel structs, the device numbers and the type bytes are constants in the
//! programs, which are assembled for each run. Each thread has a slot: `enter` fills it, and `exit`
//! completes it and copies it to the ring. A call that is not recorded costs one comparison at
//! entry and one read at exit.

mod files;
mod memory;
mod threads;

use gaudi_capture::pointers::{MAX_ARGUMENT, Row};
use gaudi_capture::record::Moment;

use self::files::walk;
use self::memory::{argument_size, piece_body, response};
use crate::DeviceMatch;
use crate::bpf::asm::{
    Alu, Assembler, FP, Helper, If, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Reg, Width,
};
use crate::bpf::btf::Offsets;
use crate::bpf::slot;
use crate::calls::{COMPAT_IOCTL, Call, NUMBERS, WRITE, X32_IOCTL, registers};

/// `BPF_RB_NO_WAKEUP`: the tracer polls the ring.
const NO_WAKEUP: i32 = 1;

/// Stack offsets in `enter` and `exit`.
const KEY: i16 = -8;
const REGISTERS: i16 = -16 - registers::LEN as i16;
const FILE: i16 = REGISTERS - 16;
const SCRATCH: i16 = FILE - 16;
const SYSCALL: i16 = SCRATCH - 8;

/// The output of `walk`: [`slot::FLAGS`] bits, device number, descriptor table.
const FILE_FLAGS: i16 = FILE;
const FILE_DEV: i16 = FILE + 4;
const FILE_TABLE: i16 = FILE + 8;

/// Loss counters of 8 bytes each: records that did not fit in the ring, calls of threads without a
/// slot, threads that could not be traced, and calls whose `exit` the kernel skipped.
pub(crate) const COUNTERS: usize = 32;
pub(crate) const LOST_RING: i16 = 0;
pub(crate) const LOST_SLOT: i16 = 8;
pub(crate) const LOST_TASK: i16 = 16;
pub(crate) const LOST_EXIT: i16 = 24;

/// The scratch slots of a CPU. Each program has its own: one can preempt another.
pub(crate) const SCRATCHES: u32 = 4;

/// Which of two copies of a program. The second one does nothing if the first one ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    First,
    Second,
}

/// The descriptor numbers of the maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    pub(crate) ring: i32,
    /// Traced threads.
    pub(crate) threads: i32,
    /// Processes with recorded mappings.
    pub(crate) mappers: i32,
    pub(crate) slots: i32,
    /// A zeroed slot.
    pub(crate) empty: i32,
    pub(crate) counters: i32,
    /// [`SCRATCHES`] slots per CPU, for process events.
    pub(crate) scratch: i32,
}

/// The parameters of the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) maps: Maps,
    pub(crate) offsets: Offsets,
    pub(crate) types: Vec<u8>,
    pub(crate) devices: Vec<DeviceMatch>,
    /// The devices to which writes are recorded.
    pub(crate) rdma: Vec<DeviceMatch>,
    pub(crate) files: bool,
    /// The id of the cgroup and its depth below the root.
    pub(crate) cgroup: Option<(u64, i32)>,
    pub(crate) pointers: Vec<Row>,
    /// Whether the kernel's structs are read by loads, which the verifier checks by their types
    /// (Linux 5.15), or else by a helper call for each field.
    pub(crate) direct: bool,
}

/// The subprograms of a program.
#[derive(Clone, Copy, Debug)]
struct Locals {
    walk: Label,
    piece: Label,
}

fn argument(index: usize) -> i16 {
    REGISTERS + registers::ARGUMENTS[index]
}

fn slot_argument(index: i16) -> i16 {
    slot::ARGUMENTS + index * 8
}

impl Programs {
    /// The program for sys_enter(regs, number).
    pub(crate) fn enter(&self, copy: Copy) -> Vec<u8> {
        let mut a = Assembler::default();
        let locals = Locals {
            walk: a.label(),
            piece: a.label(),
        };
        let [out, fill, ioctl, native] = [(); 4].map(|()| a.label());
        a.mov(R6, R1);
        a.load(Width::D, R7, R6, 8);
        self.only_followed_calls(&mut a, R7, out);
        a.store(Width::D, FP, SYSCALL, R7);
        self.only_followed_threads(&mut a, KEY, out);
        self.registers(&mut a);
        if copy == Copy::Second {
            self.only_empty_slots(&mut a, out);
        }
        a.alu(Alu::And, R9, registers::COMPAT_BIT);
        a.jump_if(If::Eq, R9, 0, native);
        // Other calls of the 32-bit ABI have numbers that mean recorded calls in the native ABI.
        a.jump_if(If::Ne, R7, COMPAT_IOCTL as i32, out);
        for (from, to) in registers::COMPAT.into_iter().zip(registers::ARGUMENTS) {
            a.load(Width::W, R1, FP, REGISTERS + from);
            a.store(Width::D, FP, REGISTERS + to, R1);
        }
        a.mov(R9, slot::COMPAT);
        a.jump(ioctl);
        a.bind(native);
        self.dispatch(&mut a, locals, (ioctl, fill, out));

        a.bind(ioctl);
        a.mov(R7, Call::Ioctl as i32);
        a.load(Width::W, R1, FP, argument(1));
        a.alu(Alu::Rsh, R1, 8);
        a.alu(Alu::And, R1, 0xff);
        let type_matches = a.label();
        for &kind in &self.types {
            a.jump_if(If::Eq, R1, i32::from(kind), type_matches);
        }
        a.jump(out);
        a.bind(type_matches);
        a.load(Width::W, R1, FP, argument(0));
        walk(&mut a, locals);
        a.load(Width::W, R1, FP, FILE_FLAGS);
        let device = a.label();
        a.jump_if(If::BitSet, R1, slot::DEVICE, device);
        a.jump(fill);
        a.bind(device);
        self.only_watched_devices(&mut a, fill, out);

        a.bind(fill);
        self.fill(&mut a, locals, out);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        self.walk_body(&mut a, locals.walk);
        piece_body(&mut a, locals.piece);
        a.finish()
    }

    /// Jumps to `out` if the thread's slot already has this call. `R7` is its number.
    ///
    /// The first copy runs before the second and fills the slot in any case. So only if the kernel
    /// skipped it, and both copies of `exit` at the previous call, an equal call is taken for it.
    fn only_empty_slots(&self, a: &mut Assembler, out: Label) {
        let fill = a.label();
        lookup(a, self.maps.slots, KEY);
        a.jump_if(If::Eq, R0, 0, fill);
        a.load(Width::H, R1, R0, slot::KIND);
        a.jump_if(If::Eq, R1, 0, fill);
        a.load(Width::D, R1, R0, slot::NUMBER);
        a.jump_if(If::Ne, R1, R7, fill);
        for index in 0..3 {
            a.load(Width::D, R1, R0, slot_argument(index));
            a.load(Width::D, R2, FP, argument(index as usize));
            a.jump_if(If::Ne, R1, R2, fill);
        }
        a.jump(out);
        a.bind(fill);
    }

    /// Copies the registers of the call to the stack, and loads the task's flags into `R9`. `R6` is
    /// the context.
    fn registers(&self, a: &mut Assembler) {
        let compat = self.offsets.task_compat;
        if !self.direct {
            a.load(Width::D, R3, R6, 0);
            a.add(R3, registers::START);
            read_kernel(a, REGISTERS, registers::LEN);
            a.store(Width::W, FP, SCRATCH, 0);
            a.call(Helper::GetCurrentTask);
            a.address(R3, R0, compat as i32);
            read_kernel(a, SCRATCH, 4);
            a.load(Width::W, R9, FP, SCRATCH);
            return;
        }
        a.call(Helper::GetCurrentTaskBtf);
        a.load(Width::W, R9, R0, compat as i16);
        a.mov(R1, R0);
        a.call(Helper::TaskPtRegs);
        for offset in (0..registers::LEN as i16).step_by(8) {
            a.load(Width::D, R1, R0, registers::START as i16 + offset);
            a.store(Width::D, FP, REGISTERS + offset, R1);
        }
    }

    /// The recorded calls with their numbers.
    fn calls(&self) -> impl Iterator<Item = (Call, i64)> {
        let (files, rdma) = (self.files, !self.rdma.is_empty());
        let calls = NUMBERS
            .iter()
            .copied()
            .filter(move |row| files || row.0 == Call::Ioctl);
        calls.chain(rdma.then_some(WRITE))
    }

    /// Jumps to `out` unless `number` is a recorded call.
    fn only_followed_calls(&self, a: &mut Assembler, number: Reg, out: Label) {
        let (high, follow) = (a.label(), a.label());
        let mut low_mask = 1_u64 << COMPAT_IOCTL;
        let mut high_numbers = vec![X32_IOCTL as i32];
        for (call, number) in self.calls() {
            debug_assert!(
                self.files || matches!(call, Call::Ioctl | Call::Write),
                "{call:?}"
            );
            match u32::try_from(number) {
                Ok(number @ 0..64) => low_mask |= 1 << number,
                _ => high_numbers.push(number as i32),
            }
        }
        a.jump_if(If::Gt, number, 63, high);
        a.number(R1, low_mask);
        a.alu(Alu::Rsh, R1, number);
        a.jump_if(If::BitSet, R1, 1, follow);
        a.jump(out);
        a.bind(high);
        for number_of_call in high_numbers {
            a.jump_if(If::Eq, number, number_of_call, follow);
        }
        a.jump(out);
        a.bind(follow);
    }

    /// Jumps to `out` unless the current thread is traced. Leaves `pid_tgid` in `R8` and the thread
    /// id at `key`.
    fn only_followed_threads(&self, a: &mut Assembler, key: i16, out: Label) {
        let followed = a.label();
        a.call(Helper::GetCurrentPidTgid);
        a.mov(R8, R0);
        a.store(Width::W, FP, key, R8);
        lookup(a, self.maps.threads, key);
        a.jump_if(If::Ne, R0, 0, followed);
        match self.cgroup {
            Some((id, level)) => {
                a.mov(R1, level);
                a.call(Helper::GetCurrentAncestorCgroupId);
                a.number(R1, id);
                a.jump_if(If::Ne, R0, R1, out);
            }
            None => a.jump(out),
        }
        a.bind(followed);
    }

    /// Dispatches a native call to its checks. Leaves the call in `R7`.
    fn dispatch(&self, a: &mut Assembler, locals: Locals, (ioctl, fill, out): (Label, Label, Label)) {
        let next = a.label();
        a.jump_if(If::Ne, R7, X32_IOCTL as i32, next);
        // x32 passes arguments in the same registers as x86-64.
        a.mov(R9, slot::COMPAT);
        a.jump(ioctl);
        a.bind(next);
        let mut branches = Vec::new();
        for (call, number) in self.calls() {
            let label = if call == Call::Ioctl { ioctl } else { a.label() };
            a.jump_if(If::Eq, R7, number as i32, label);
            branches.push((call, label));
        }
        a.jump(out);
        for (call, label) in branches {
            if call == Call::Ioctl {
                continue;
            }
            a.bind(label);
            a.mov(R7, i32::from(call as u16));
            self.check(a, locals, call, (fill, out));
        }
    }

    /// Fills the thread's slot. Inputs: `R7` the call, `R8` `pid_tgid`, `R9` flags.
    fn fill(&self, a: &mut Assembler, locals: Locals, out: Label) {
        let [have, finish] = [(); 2].map(|()| a.label());
        lookup(a, self.maps.slots, KEY);
        a.jump_if(If::Ne, R0, 0, have);
        a.store(Width::W, FP, SCRATCH, 0);
        lookup(a, self.maps.empty, SCRATCH);
        a.jump_if(If::Eq, R0, 0, out);
        a.mov(R3, R0);
        a.map(R1, self.maps.slots);
        a.address(R2, FP, i32::from(KEY));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        lookup(a, self.maps.slots, KEY);
        a.jump_if(If::Ne, R0, 0, have);
        self.count(a, LOST_SLOT, SCRATCH);
        a.jump(out);

        a.bind(have);
        a.mov(R6, R0);
        let free = a.label();
        a.load(Width::H, R1, R6, slot::KIND);
        a.jump_if(If::Eq, R1, 0, free);
        // The thread's previous call has ended without its record.
        self.count(a, LOST_EXIT, SCRATCH);
        a.bind(free);
        a.load(Width::W, R1, FP, FILE_FLAGS);
        a.alu(Alu::Or, R9, R1);
        a.store(Width::H, R6, slot::KIND, 0);
        a.store(Width::H, R6, slot::FLAGS, R9);
        a.load(Width::W, R1, FP, FILE_DEV);
        a.store(Width::W, R6, slot::DEV, R1);
        a.store(Width::W, R6, slot::TID, R8);
        a.alu(Alu::Rsh, R8, 32);
        a.store(Width::W, R6, slot::PID, R8);
        a.load(Width::D, R1, FP, FILE_TABLE);
        a.store(Width::D, R6, slot::TABLE, R1);
        a.load(Width::D, R1, FP, SYSCALL);
        a.store(Width::D, R6, slot::NUMBER, R1);
        for index in 0..6 {
            a.load(Width::D, R1, FP, argument(index));
            a.store(Width::D, R6, slot_argument(index as i16), R1);
        }
        a.store(Width::D, R6, slot::INPUT, 0);
        a.store(Width::D, R6, slot::CURSOR, 0);
        a.store(Width::D, R6, slot::USED, 0);
        let [ioctl, write, first_path, second_path, how] = [(); 5].map(|()| a.label());
        a.jump_if(If::Eq, R7, Call::Ioctl as i32, ioctl);
        a.jump_if(If::Eq, R7, Call::Write as i32, write);
        if self.files {
            a.jump_if(If::Eq, R7, Call::OpenAt as i32, second_path);
            a.jump_if(If::Eq, R7, Call::Open as i32, first_path);
            a.jump_if(If::Eq, R7, Call::Creat as i32, first_path);
            a.jump_if(If::Eq, R7, Call::OpenAt2 as i32, how);
        }
        a.jump(finish);
        if self.files {
            let read = a.label();
            a.bind(how);
            // `struct open_how` starts with the flags.
            a.address(R1, R6, i32::from(slot_argument(2)));
            a.mov(R2, 8);
            a.load(Width::D, R3, R6, slot_argument(2));
            a.call(Helper::ProbeReadUser);
            a.bind(second_path);
            a.load(Width::D, R3, R6, slot_argument(1));
            a.jump(read);
            a.bind(first_path);
            a.load(Width::D, R3, R6, slot_argument(0));
            a.bind(read);
            a.address(R1, R6, i32::from(slot::DATA));
            a.mov(R2, slot::MAX_PATH);
            a.call(Helper::ProbeReadUserStr);
            a.jump_if(If::SLess, R0, 0, finish);
            a.jump_if(If::Gt, R0, slot::MAX_PATH, finish);
            a.store(Width::W, R6, slot::INPUT, R0);
            a.store(Width::W, R6, slot::CURSOR, R0);
            a.jump(finish);
        } else {
            for label in [first_path, second_path, how] {
                a.bind(label);
            }
        }
        a.bind(write);
        a.mov(R1, R6);
        a.load(Width::D, R2, R6, slot_argument(1));
        a.load(Width::D, R3, R6, slot_argument(2));
        a.mov(R4, 0);
        a.call_local(locals.piece);
        a.jump(finish);
        a.bind(ioctl);
        a.load(Width::D, R9, R6, slot_argument(2));
        a.jump_if(If::Eq, R9, 0, finish);
        argument_size(a, finish);
        a.address(R1, R6, i32::from(slot::DATA));
        a.mov(R2, R8);
        a.mov(R3, R9);
        a.call(Helper::ProbeReadUser);
        a.jump_if(If::SLess, R0, 0, finish);
        a.store(Width::W, R6, slot::INPUT, R8);
        a.store(Width::W, R6, slot::CURSOR, R8);
        self.pointers(a, locals, Moment::Entry);
        a.bind(finish);
        a.call(Helper::KtimeGetNs);
        a.store(Width::D, R6, slot::ENTER, R0);
        a.store(Width::H, R6, slot::KIND, R7);
    }

    /// The program for sys_exit(regs, result).
    pub(crate) fn exit(&self) -> Vec<u8> {
        let mut a = Assembler::default();
        let locals = Locals {
            walk: a.label(),
            piece: a.label(),
        };
        let [out, send, clear, ioctl] = [(); 4].map(|()| a.label());
        a.mov(R6, R1);
        if self.direct {
            a.call(Helper::GetCurrentTaskBtf);
            a.mov(R1, R0);
            a.call(Helper::TaskPtRegs);
            a.load(Width::D, R7, R0, registers::NUMBER as i16);
        } else {
            a.load(Width::D, R3, R6, 0);
            a.add(R3, registers::NUMBER);
            read_kernel(&mut a, SYSCALL, 8);
            a.load(Width::D, R7, FP, SYSCALL);
        }
        self.only_followed_calls(&mut a, R7, out);
        a.load(Width::D, R8, R6, 8);
        a.call(Helper::GetCurrentPidTgid);
        a.mov(R9, R0);
        a.store(Width::W, FP, KEY, R0);
        lookup(&mut a, self.maps.slots, KEY);
        a.jump_if(If::Eq, R0, 0, out);
        a.mov(R6, R0);
        a.load(Width::H, R1, R6, slot::KIND);
        a.jump_if(If::Eq, R1, 0, out);
        a.load(Width::D, R2, R6, slot::NUMBER);
        a.jump_if(If::Ne, R2, R7, out);
        a.mov(R7, R1);
        a.call(Helper::KtimeGetNs);
        a.store(Width::D, R6, slot::EXIT, R0);
        a.store(Width::D, R6, slot::RESULT, R8);
        a.jump_if(If::Eq, R7, Call::Ioctl as i32, ioctl);
        if !self.rdma.is_empty() {
            let other = a.label();
            a.jump_if(If::Ne, R7, Call::Write as i32, other);
            response(&mut a, locals, send);
            a.bind(other);
        }
        if self.files {
            self.completed(&mut a, locals, (send, clear));
        } else {
            a.jump(send);
        }

        a.bind(ioctl);
        a.load(Width::D, R7, R6, slot_argument(2));
        a.jump_if(If::Eq, R7, 0, send);
        argument_size(&mut a, send);
        let unread = a.label();
        a.load(Width::W, R1, R6, slot::CURSOR);
        a.jump_if(If::Gt, R1, MAX_ARGUMENT as i32 + slot::MAX_MEMORY, send);
        a.add(R1, R6);
        a.add(R1, i32::from(slot::DATA));
        a.mov(R2, R8);
        a.mov(R3, R7);
        a.call(Helper::ProbeReadUser);
        a.jump_if(If::SLess, R0, 0, unread);
        a.store(Width::W, R6, slot::OUTPUT, R8);
        a.load(Width::W, R1, R6, slot::CURSOR);
        a.add(R1, R8);
        a.store(Width::W, R6, slot::CURSOR, R1);
        a.bind(unread);
        a.load(Width::W, R1, R6, slot::INPUT);
        a.jump_if(If::Eq, R1, 0, send);
        self.pointers(&mut a, locals, Moment::Exit);

        a.bind(send);
        a.load(Width::W, R3, R6, slot::CURSOR);
        a.jump_if(If::Gt, R3, slot::DATA_SIZE, clear);
        a.add(R3, i32::from(slot::DATA));
        self.send(&mut a, SCRATCH);
        a.bind(clear);
        a.store(Width::H, R6, slot::KIND, 0);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        self.walk_body(&mut a, locals.walk);
        piece_body(&mut a, locals.piece);
        a.finish()
    }

    /// Decides at exit whether a call other than ioctl is recorded. Inputs: `R7` the call, `R8` the
    /// result, `R9` `pid_tgid`.
    fn completed(&self, a: &mut Assembler, locals: Locals, (send, clear): (Label, Label)) {
        let [opened, mapped, received] = [(); 3].map(|()| a.label());
        for call in [
            Call::Open,
            Call::Creat,
            Call::OpenAt,
            Call::OpenAt2,
            Call::PidfdGetfd,
        ] {
            debug_assert!(call.opens(), "{call:?} does not return a descriptor");
            a.jump_if(If::Eq, R7, i32::from(call as u16), opened);
        }
        a.jump_if(If::Eq, R7, Call::Mmap as i32, mapped);
        a.jump_if(If::Eq, R7, Call::RecvMsg as i32, received);
        a.jump(send);

        a.bind(opened);
        let (failed, found) = (a.label(), a.label());
        a.mov(R1, R8);
        walk(a, locals);
        a.load(Width::D, R1, FP, FILE_TABLE);
        a.store(Width::D, R6, slot::TABLE, R1);
        a.jump_if(If::SLess, R8, 0, failed);
        self.only_recorded_files(a, found, clear);
        a.bind(found);
        a.load(Width::W, R1, FP, FILE_FLAGS);
        a.store(Width::H, R6, slot::FLAGS, R1);
        a.load(Width::W, R1, FP, FILE_DEV);
        a.store(Width::W, R6, slot::DEV, R1);
        a.jump(send);
        a.bind(failed);
        // A failed open has no file: record it if its path is in /dev.
        a.load(Width::W, R1, R6, slot::INPUT);
        a.jump_if(If::Eq, R1, 0, clear);
        a.load(Width::W, R1, R6, slot::DATA);
        a.jump_if(If::Ne, R1, i32::from_ne_bytes(*b"/dev"), clear);
        a.load(Width::B, R1, R6, slot::DATA + 4);
        a.jump_if(If::Ne, R1, i32::from(b'/'), clear);
        a.jump(send);

        a.bind(mapped);
        a.mov(R1, -4096);
        a.jump_if(If::Gt, R8, R1, send);
        a.alu(Alu::Rsh, R9, 32);
        a.store(Width::W, FP, KEY, R9);
        a.store(Width::D, FP, SCRATCH, 1);
        a.map(R1, self.maps.mappers);
        a.address(R2, FP, i32::from(KEY));
        a.address(R3, FP, i32::from(SCRATCH));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        a.jump(send);

        a.bind(received);
        a.jump_if(If::SLess, R8, 0, clear);
        // `msg_control` and `msg_controllen` of `struct msghdr`.
        a.address(R1, FP, i32::from(SCRATCH));
        a.mov(R2, 16);
        a.load(Width::D, R3, R6, slot_argument(1));
        a.add(R3, 32);
        a.call(Helper::ProbeReadUser);
        a.jump_if(If::Ne, R0, 0, clear);
        a.load(Width::D, R2, FP, SCRATCH);
        a.load(Width::D, R3, FP, SCRATCH + 8);
        a.jump_if(If::Eq, R3, 0, clear);
        a.mov(R1, R6);
        a.mov(R4, 1);
        a.call_local(locals.piece);
        a.jump(send);
    }

    /// Copies the first `R3` bytes of the slot in `R6` to the ring.
    fn send(&self, a: &mut Assembler, scratch: i16) {
        let sent = a.label();
        a.map(R1, self.maps.ring);
        a.mov(R2, R6);
        a.mov(R4, NO_WAKEUP);
        a.call(Helper::RingbufOutput);
        a.jump_if(If::Eq, R0, 0, sent);
        self.count(a, LOST_RING, scratch);
        a.bind(sent);
    }

    /// Increments a counter.
    fn count(&self, a: &mut Assembler, counter: i16, scratch: i16) {
        let missing = a.label();
        a.store(Width::W, FP, scratch, 0);
        lookup(a, self.maps.counters, scratch);
        a.jump_if(If::Eq, R0, 0, missing);
        a.mov(R1, 1);
        a.atomic_add(R0, counter, R1);
        a.bind(missing);
    }
}

/// Looks up the key at `key`. Leaves the value's address, or 0, in `R0`.
fn lookup(a: &mut Assembler, map: i32, key: i16) {
    a.map(R1, map);
    a.address(R2, FP, i32::from(key));
    a.call(Helper::MapLookup);
}

fn delete(a: &mut Assembler, map: i32, key: i16) {
    a.map(R1, map);
    a.address(R2, FP, i32::from(key));
    a.call(Helper::MapDelete);
}

/// Copies kernel memory at `R3` to the stack. The destination is zeroed if the memory cannot be
/// read.
fn read_kernel(a: &mut Assembler, to: i16, bytes: i32) {
    a.address(R1, FP, i32::from(to));
    a.mov(R2, bytes);
    a.call(Helper::ProbeReadKernel);
}

/// Loads the 64-bit word at `from + offset` of kernel memory into `to`, through the stack at
/// `scratch`.
fn load_kernel(a: &mut Assembler, to: Reg, from: Reg, offset: u32, scratch: i16) {
    a.address(R3, from, offset as i32);
    read_kernel(a, scratch, 8);
    a.load(Width::D, to, FP, scratch);
}
