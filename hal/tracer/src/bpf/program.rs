//! The eBPF programs, as instructions.
//!
//! The offsets of kernel structs, the device numbers and the type bytes are constants in the
//! programs, which are assembled for each run. Each thread has a slot: `enter` fills it, and `exit`
//! completes it and copies it to the ring. A call that is not recorded costs one comparison at
//! entry and one read at exit.

use gaudi_capture::record::Moment;
use gaudi_uapi::dmabuf::{DMA_BUF_MAGIC, DMA_BUF_NAME_LEN, DMA_BUF_SET_NAME_B};

use crate::DeviceMatch;
use crate::bpf::asm::{
    Alu, Assembler, FP, Helper, If, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, Width,
};
use crate::bpf::btf::Offsets;
use crate::bpf::slot;
use crate::calls::{COMPAT_IOCTL, Call, DUPLICATES, MAP_ANONYMOUS, NUMBERS, WRITE, X32_IOCTL, registers};
use gaudi_capture::pointers::{Address, Length, MAX_ARGUMENT, Pointer, Row, VFIO_TYPE, of_vfio};

/// `S_IFMT`, `S_IFCHR`, `S_IFBLK` (linux/stat.h).
const S_IFMT: i32 = 0o170_000;
const S_IFCHR: i32 = 0o020_000;
const S_IFBLK: i32 = 0o060_000;
/// `ANON_INODE_FS_MAGIC` (linux/magic.h).
const ANON_INODE_FS_MAGIC: i32 = 0x0904_1934;
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
const SCRATCH_OF_FORK: i32 = 0;
const SCRATCH_OF_EXEC: i32 = 2;
const SCRATCH_OF_EXIT: i32 = 3;

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

    /// Decides at entry whether a call that takes a descriptor or memory may be recorded.
    fn check(&self, a: &mut Assembler, locals: Locals, call: Call, (fill, out): (Label, Label)) {
        match call {
            Call::Fcntl => {
                let duplicates = a.label();
                a.load(Width::W, R1, FP, argument(1));
                for command in DUPLICATES {
                    a.jump_if(If::Eq, R1, command as i32, duplicates);
                }
                a.jump(out);
                a.bind(duplicates);
            }
            Call::Mmap => {
                a.load(Width::W, R1, FP, argument(3));
                a.jump_if(If::BitSet, R1, MAP_ANONYMOUS as i32, out);
            }
            Call::Munmap => {
                a.mov(R1, R8);
                a.alu(Alu::Rsh, R1, 32);
                a.store(Width::W, FP, SCRATCH, R1);
                lookup(a, self.maps.mappers, SCRATCH);
                a.jump_if(If::Eq, R0, 0, out);
            }
            _ => {}
        }
        match call.fd() {
            Some(index) => {
                a.load(Width::W, R1, FP, argument(index));
                walk(a, locals);
                if call == Call::Write {
                    a.load(Width::W, R1, FP, FILE_FLAGS);
                    let device = a.label();
                    a.jump_if(If::BitSet, R1, slot::DEVICE, device);
                    a.jump(out);
                    a.bind(device);
                    return only_devices(a, &self.rdma, fill, out);
                }
                let no = if call == Call::DupTo { a.label() } else { out };
                self.only_recorded_files(a, fill, no);
                if call == Call::DupTo {
                    // The call may close a recorded descriptor.
                    a.bind(no);
                    a.load(Width::W, R1, FP, argument(1));
                    walk(a, locals);
                    let other = a.label();
                    self.only_recorded_files(a, other, out);
                    a.bind(other);
                    a.store(Width::W, FP, FILE_FLAGS, 0);
                    a.jump(fill);
                }
            }
            None => {
                // The call takes no descriptor: use an invalid one to read only the table.
                a.mov(R1, -1);
                walk(a, locals);
                a.store(Width::W, FP, FILE_FLAGS, 0);
                a.jump(fill);
            }
        }
    }

    /// Jumps to `yes` if opens and closes of the file found by `walk` are recorded, otherwise to
    /// `no`.
    fn only_recorded_files(&self, a: &mut Assembler, yes: Label, no: Label) {
        let device = a.label();
        a.load(Width::W, R1, FP, FILE_FLAGS);
        a.jump_if(If::BitSet, R1, slot::DEVICE, device);
        a.jump_if(If::BitSet, R1, slot::FROM_DRIVER, yes);
        a.jump(no);
        a.bind(device);
        self.only_watched_devices(a, yes, no);
    }

    fn only_watched_devices(&self, a: &mut Assembler, yes: Label, no: Label) {
        match self.devices.is_empty() {
            true => a.jump(yes),
            false => only_devices(a, &self.devices, yes, no),
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

    /// Reads the memory that pointers in the argument refer to. `R6` is the slot, which holds the
    /// argument.
    fn pointers(&self, a: &mut Assembler, locals: Locals, at: Moment) {
        let (done, vfio) = (a.label(), a.label());
        a.load(Width::W, R1, R6, slot_argument(1));
        a.mov(R2, R1);
        a.alu(Alu::And, R2, 0xffff);
        a.mov(R3, R1);
        a.alu(Alu::Rsh, R3, 16);
        a.alu(Alu::And, R3, 0x3fff);
        let rows: Vec<_> = self
            .pointers
            .iter()
            .filter(|row| row.pointers.iter().any(|pointer| pointer.at == at))
            .map(|row| (row, a.label()))
            .collect();
        for (row, label) in &rows {
            a.jump_if(If::Eq, R2, i32::from(row.selector), *label);
        }
        a.alu(Alu::Rsh, R2, 8);
        a.jump_if(If::Ne, R2, i32::from(VFIO_TYPE), done);
        a.jump_if(If::Eq, R3, 0, vfio);
        a.jump(done);
        a.bind(vfio);
        for pointer in of_vfio().iter().filter(|pointer| pointer.at == at) {
            follow(a, locals, pointer);
        }
        a.jump(done);
        for (row, label) in rows {
            a.bind(label);
            a.jump_if(If::Less, R3, row.size as i32, done);
            for pointer in row.pointers.iter().filter(|pointer| pointer.at == at) {
                follow(a, locals, pointer);
            }
            a.jump(done);
        }
        a.bind(done);
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

    /// The program for sched_process_fork(parent, child), which runs in the parent.
    pub(crate) fn fork(&self, copy: Copy) -> Vec<u8> {
        const CHILD: i16 = KEY - 8;
        const VALUE: i16 = CHILD - 8;
        let mut a = Assembler::default();
        let [out, followed] = [(); 2].map(|()| a.label());
        a.load(Width::D, R7, R1, 8);
        self.only_followed_threads(&mut a, KEY, out);
        a.store(Width::D, FP, CHILD, 0);
        a.address(R3, R7, self.offsets.task_pid as i32);
        read_kernel(&mut a, CHILD, 4);
        if copy == Copy::Second {
            lookup(&mut a, self.maps.threads, CHILD);
            a.jump_if(If::Ne, R0, 0, out);
        }
        self.scratch(&mut a, SCRATCH_OF_FORK + i32::from(copy == Copy::Second), out);
        a.store(Width::D, FP, VALUE, 1);
        a.map(R1, self.maps.threads);
        a.address(R2, FP, i32::from(CHILD));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        a.jump_if(If::Eq, R0, 0, followed);
        self.count(&mut a, LOST_TASK, VALUE);
        a.jump(out);
        a.bind(followed);
        a.load(Width::W, R1, FP, CHILD);
        a.store(Width::W, R6, slot::TID, R1);
        a.address(R3, R7, self.offsets.task_tgid as i32);
        read_kernel(&mut a, VALUE, 4);
        a.load(Width::W, R1, FP, VALUE);
        a.store(Width::W, R6, slot::PID, R1);
        load_kernel(&mut a, R1, R7, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot::TABLE, R1);
        a.mov(R1, R8);
        a.alu(Alu::Rsh, R1, 32);
        a.store(Width::D, R6, slot_argument(0), R1);
        a.load(Width::W, R1, FP, KEY);
        a.store(Width::D, R6, slot_argument(1), R1);
        a.call(Helper::GetCurrentTask);
        load_kernel(&mut a, R1, R0, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot_argument(2), R1);
        // A child process can unmap mappings that it inherited.
        let unmapped = a.label();
        a.store(Width::D, FP, VALUE, R8);
        a.alu(Alu::Rsh, R8, 32);
        a.store(Width::W, FP, VALUE, R8);
        lookup(&mut a, self.maps.mappers, VALUE);
        a.jump_if(If::Eq, R0, 0, unmapped);
        a.load(Width::W, R1, R6, slot::PID);
        a.store(Width::W, FP, CHILD, R1);
        a.map(R1, self.maps.mappers);
        a.address(R2, FP, i32::from(CHILD));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        a.bind(unmapped);
        a.address(R1, R6, i32::from(slot::DATA));
        a.mov(R2, 16);
        a.call(Helper::GetCurrentComm);
        a.store(Width::W, R6, slot::INPUT, 16);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::STARTED));
        a.mov(R3, i32::from(slot::DATA) + 16);
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// The program for sched_process_exec(task, old_pid, bprm), which runs in the task.
    pub(crate) fn exec(&self) -> Vec<u8> {
        const OLD: i16 = KEY - 8;
        const VALUE: i16 = OLD - 8;
        const LIMIT: i16 = VALUE - 8;
        let mut a = Assembler::default();
        let [out, same, sent] = [(); 3].map(|()| a.label());
        a.load(Width::D, R7, R1, 16);
        a.load(Width::W, R9, R1, 8);
        a.store(Width::D, FP, OLD, 0);
        a.store(Width::W, FP, OLD, R9);
        // If a thread other than the leader calls exec, it takes over the leader's id. The leader's
        // exit has removed that id from the map.
        a.call(Helper::GetCurrentPidTgid);
        a.store(Width::W, FP, KEY, R0);
        a.alu(Alu::Lsh, R0, 32);
        a.alu(Alu::Rsh, R0, 32);
        a.jump_if(If::Eq, R0, R9, same);
        lookup(&mut a, self.maps.threads, OLD);
        a.jump_if(If::Eq, R0, 0, same);
        a.store(Width::D, FP, VALUE, 1);
        a.map(R1, self.maps.threads);
        a.address(R2, FP, i32::from(KEY));
        a.address(R3, FP, i32::from(VALUE));
        a.mov(R4, 0);
        a.call(Helper::MapUpdate);
        delete(&mut a, self.maps.threads, OLD);
        delete(&mut a, self.maps.slots, OLD);
        a.bind(same);
        self.only_followed_threads(&mut a, KEY, out);
        self.scratch(&mut a, SCRATCH_OF_EXEC, out);
        a.store(Width::W, R6, slot::TID, R8);
        a.alu(Alu::Rsh, R8, 32);
        a.store(Width::W, R6, slot::PID, R8);
        a.store(Width::D, R6, slot_argument(0), R9);
        a.address(R3, R7, self.offsets.bprm_filename as i32);
        read_kernel(&mut a, VALUE, 8);
        a.address(R1, R6, i32::from(slot::DATA));
        a.mov(R2, slot::MAX_PATH);
        a.load(Width::D, R3, FP, VALUE);
        a.call(Helper::ProbeReadKernelStr);
        a.store(Width::W, R6, slot::INPUT, R0);
        // Records which of the first descriptors are still open after close-on-exec.
        a.call(Helper::GetCurrentTask);
        load_kernel(&mut a, R1, R0, self.offsets.task_files, VALUE);
        a.store(Width::D, R6, slot::TABLE, R1);
        load_kernel(&mut a, R7, R1, self.offsets.files_fdt, VALUE);
        a.store(Width::D, FP, LIMIT, 0);
        a.address(R3, R7, self.offsets.fdt_max as i32);
        read_kernel(&mut a, LIMIT, 4);
        a.address(R3, R7, self.offsets.fdt_open as i32);
        read_kernel(&mut a, VALUE, 8);
        let small = a.label();
        a.load(Width::W, R8, FP, LIMIT);
        a.alu(Alu::Rsh, R8, 3);
        a.jump_if(If::Less, R8, slot::MAX_OPEN + 1, small);
        a.mov(R8, slot::MAX_OPEN);
        a.bind(small);
        a.address(R1, R6, i32::from(slot::DATA) + slot::MAX_PATH);
        a.mov(R2, R8);
        a.load(Width::D, R3, FP, VALUE);
        a.call(Helper::ProbeReadKernel);
        a.jump_if(If::Ne, R0, 0, sent);
        a.store(Width::W, R6, slot::OUTPUT, R8);
        a.bind(sent);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::EXECUTED));
        a.mov(R3, i32::from(slot::DATA) + slot::MAX_PATH + slot::MAX_OPEN);
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// The program for sched_process_exit(task), which runs in the task.
    pub(crate) fn exit_task(&self) -> Vec<u8> {
        const VALUE: i16 = KEY - 8;
        let mut a = Assembler::default();
        let [out, idle, thread] = [(); 3].map(|()| a.label());
        self.only_followed_threads(&mut a, KEY, out);
        // A thread killed in a call never reaches sys_exit.
        lookup(&mut a, self.maps.slots, KEY);
        a.jump_if(If::Eq, R0, 0, idle);
        a.mov(R6, R0);
        a.load(Width::H, R1, R6, slot::KIND);
        a.jump_if(If::Ne, R1, Call::Ioctl as i32, idle);
        a.load(Width::H, R1, R6, slot::FLAGS);
        a.alu(Alu::Or, R1, slot::DIED);
        a.store(Width::H, R6, slot::FLAGS, R1);
        // Skip pointers at exit, and report the result of an interrupted call.
        a.mov(R1, -crate::ERESTARTSYS);
        a.store(Width::D, R6, slot::RESULT, R1);
        a.load(Width::W, R3, R6, slot::CURSOR);
        a.jump_if(If::Gt, R3, slot::DATA_SIZE, idle);
        a.add(R3, i32::from(slot::DATA));
        self.send(&mut a, VALUE);
        a.bind(idle);
        delete(&mut a, self.maps.slots, KEY);
        delete(&mut a, self.maps.threads, KEY);
        self.scratch(&mut a, SCRATCH_OF_EXIT, out);
        a.store(Width::W, R6, slot::TID, R8);
        a.mov(R9, R8);
        a.alu(Alu::Rsh, R9, 32);
        a.store(Width::W, R6, slot::PID, R9);
        a.load(Width::W, R1, FP, KEY);
        a.jump_if(If::Ne, R1, R9, thread);
        delete(&mut a, self.maps.mappers, KEY);
        a.bind(thread);
        a.call(Helper::GetCurrentTask);
        a.mov(R7, R0);
        a.store(Width::D, FP, VALUE, 0);
        a.address(R3, R7, self.offsets.task_exit_code as i32);
        read_kernel(&mut a, VALUE, 4);
        a.load(Width::W, R1, FP, VALUE);
        a.store(Width::D, R6, slot::RESULT, R1);
        a.store(Width::H, R6, slot::KIND, i32::from(slot::EXITED));
        a.mov(R3, i32::from(slot::DATA));
        self.send(&mut a, VALUE);
        a.bind(out);
        a.mov(R0, 0);
        a.exit();
        a.finish()
    }

    /// Points `R6` to a scratch slot of this CPU, cleared and with the current time.
    fn scratch(&self, a: &mut Assembler, which: i32, out: Label) {
        const INDEX: i16 = KEY - 40;
        a.store(Width::W, FP, INDEX, which);
        lookup(a, self.maps.scratch, INDEX);
        a.jump_if(If::Eq, R0, 0, out);
        a.mov(R6, R0);
        for field in [slot::KIND, slot::RESULT, slot::INPUT, slot::CURSOR, slot::USED] {
            a.store(Width::D, R6, field, 0);
        }
        a.call(Helper::KtimeGetNs);
        a.store(Width::D, R6, slot::ENTER, R0);
        a.store(Width::D, R6, slot::EXIT, R0);
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

    /// walk(fd, file): writes the properties of a descriptor's file to `file`.
    fn walk_body(&self, a: &mut Assembler, label: Label) {
        const WORD: i16 = -8;
        const MAX: i16 = -16;
        /// The fields of `struct inode`.
        const INODE: i16 = MAX - INODE_SPAN;
        const INODE_SPAN: i16 = 96;
        let offsets = &self.offsets;
        let [done, device, found] = [(); 3].map(|()| a.label());
        let read = |a: &mut Assembler, base: Reg, offset: u32, at: i16, bytes: i32| {
            a.address(R3, base, offset as i32);
            read_kernel(a, at, bytes);
        };
        a.bind(label);
        a.mov(R6, R1);
        a.alu(Alu::Lsh, R6, 32);
        a.alu(Alu::Rsh, R6, 32);
        a.mov(R7, R2);
        a.store(Width::D, R7, 0, 0);
        a.store(Width::D, R7, 8, 0);
        if self.direct {
            a.call(Helper::GetCurrentTaskBtf);
            a.load(Width::D, R8, R0, offsets.task_files as i16);
            a.jump_if(If::Eq, R8, 0, done);
            a.store(Width::D, R7, FILE_TABLE - FILE, R8);
            a.load(Width::D, R8, R8, offsets.files_fdt as i16);
            a.jump_if(If::Eq, R8, 0, done);
            a.load(Width::W, R1, R8, offsets.fdt_max as i16);
            a.jump_if(If::Ge, R6, R1, done);
            a.load(Width::D, R1, R8, offsets.fdt_fd as i16);
        } else {
            a.call(Helper::GetCurrentTask);
            read(a, R0, offsets.task_files, WORD, 8);
            a.load(Width::D, R8, FP, WORD);
            a.jump_if(If::Eq, R8, 0, done);
            a.store(Width::D, R7, FILE_TABLE - FILE, R8);
            read(a, R8, offsets.files_fdt, WORD, 8);
            a.load(Width::D, R8, FP, WORD);
            a.store(Width::D, FP, MAX, 0);
            read(a, R8, offsets.fdt_max, MAX, 4);
            a.load(Width::D, R1, FP, MAX);
            a.jump_if(If::Ge, R6, R1, done);
            read(a, R8, offsets.fdt_fd, WORD, 8);
            a.load(Width::D, R1, FP, WORD);
        }
        a.alu(Alu::Lsh, R6, 3);
        a.add(R1, R6);
        read(a, R1, 0, WORD, 8);
        a.load(Width::D, R1, FP, WORD);
        a.jump_if(If::Eq, R1, 0, done);
        read(a, R1, offsets.file_inode, WORD, 8);
        a.load(Width::D, R8, FP, WORD);
        // One read of all three fields, if they are near each other, costs less than two.
        let fields = [
            (offsets.inode_mode, 2),
            (offsets.inode_rdev, 4),
            (offsets.inode_sb, 8),
        ];
        let first = fields.iter().map(|&(at, _)| at & !7).min().unwrap_or(0);
        let end = fields.iter().map(|&(at, len)| at + len as u32).max().unwrap_or(0);
        let span = end - first;
        let place = |index: usize| match span <= INODE_SPAN as u32 {
            true => INODE + (fields[index].0 - first) as i16,
            false => INODE + 8 * index as i16,
        };
        for at in (0..INODE_SPAN).step_by(8) {
            a.store(Width::D, FP, INODE + at, 0);
        }
        if span <= INODE_SPAN as u32 {
            read(a, R8, first, INODE, span as i32);
        } else {
            for (index, &(at, len)) in fields.iter().enumerate() {
                read(a, R8, at, place(index), len);
            }
        }
        a.load(Width::H, R9, FP, place(0));
        a.alu(Alu::And, R9, S_IFMT);
        a.mov(R6, slot::OPEN);
        a.jump_if(If::Eq, R9, S_IFCHR, device);
        a.jump_if(If::Eq, R9, S_IFBLK, device);
        a.load(Width::D, R1, FP, place(2));
        read(a, R1, offsets.sb_magic, WORD, 8);
        a.load(Width::D, R1, FP, WORD);
        let (driver, other) = (a.label(), a.label());
        a.jump_if(If::Eq, R1, DMA_BUF_MAGIC as i32, driver);
        a.jump_if(If::Ne, R1, ANON_INODE_FS_MAGIC, other);
        a.bind(driver);
        a.mov(R6, slot::OPEN | slot::FROM_DRIVER);
        a.bind(other);
        a.jump(found);
        a.bind(device);
        a.mov(R6, slot::OPEN | slot::DEVICE);
        a.load(Width::W, R1, FP, place(1));
        a.store(Width::W, R7, FILE_DEV - FILE, R1);
        a.bind(found);
        a.store(Width::W, R7, FILE_FLAGS - FILE, R6);
        a.bind(done);
        a.mov(R0, 0);
        a.exit();
    }
}

/// Jumps to `yes` if the device found by `walk` is one of `devices`, otherwise to `no`.
fn only_devices(a: &mut Assembler, devices: &[DeviceMatch], yes: Label, no: Label) {
    a.load(Width::W, R1, FP, FILE_DEV);
    a.mov(R2, R1);
    a.alu(Alu::Rsh, R2, 20);
    for device in devices {
        let (reg, value) = match device.minor {
            Some(minor) => (R1, u64::from(device.major) << 20 | u64::from(minor)),
            None => (R2, u64::from(device.major)),
        };
        a.number(R3, value);
        a.jump_if(If::Eq, reg, R3, yes);
    }
    a.jump(no);
}

/// Reads the response of the RDMA command in the slot in `R6`, then jumps to `send`. `R8` is the
/// result. Equivalent to [`WriteCommand`](gaudi_capture::WriteCommand).
fn response(a: &mut Assembler, locals: Locals, send: Label) {
    /// Fields of the headers: the lengths of the response and of the driver's part of it, and the
    /// address.
    const OUT_WORDS: i16 = slot::DATA + 6;
    const RESPONSE: i16 = slot::DATA + 8;
    const PROVIDER_OUT_WORDS: i16 = slot::DATA + 18;
    let [extended, read] = [(); 2].map(|()| a.label());
    a.jump_if(If::SLess, R8, 0, send);
    a.load(Width::W, R2, R6, slot::PIECE_LENGTH);
    a.jump_if(If::Less, R2, 16, send);
    a.load(Width::H, R3, R6, OUT_WORDS);
    a.load(Width::B, R1, R6, slot::DATA + 3);
    a.jump_if(If::BitSet, R1, 0x80, extended);
    a.alu(Alu::Lsh, R3, 2);
    a.jump(read);
    a.bind(extended);
    a.jump_if(If::Less, R2, 24, send);
    a.load(Width::H, R1, R6, PROVIDER_OUT_WORDS);
    a.add(R3, R1);
    a.alu(Alu::Lsh, R3, 3);
    a.bind(read);
    a.load(Width::D, R2, R6, RESPONSE);
    a.mov(R1, R6);
    a.mov(R4, 1);
    a.call_local(locals.piece);
    a.jump(send);
}

/// Calls `walk` for the descriptor in `R1`.
fn walk(a: &mut Assembler, locals: Locals) {
    a.address(R2, FP, i32::from(FILE));
    a.call_local(locals.walk);
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

/// Loads the argument's size, from the request in the slot, into `R8`; jumps to `none` if there is
/// no argument. Equivalent to [`argument_size`](gaudi_capture::pointers::argument_size).
fn argument_size(a: &mut Assembler, none: Label) {
    let [numbered, name, done] = [(); 3].map(|()| a.label());
    a.load(Width::W, R1, R6, slot_argument(1));
    a.jump_if(If::Eq, R1, DMA_BUF_SET_NAME_B as i32, name);
    a.mov(R8, R1);
    a.alu(Alu::Rsh, R8, 16);
    a.alu(Alu::And, R8, 0x3fff);
    a.jump_if(If::Ne, R8, 0, numbered);
    a.alu(Alu::Rsh, R1, 8);
    a.alu(Alu::And, R1, 0xff);
    a.jump_if(If::Ne, R1, i32::from(VFIO_TYPE), none);
    a.mov(R8, 8);
    a.jump(done);
    a.bind(name);
    a.mov(R8, DMA_BUF_NAME_LEN as i32);
    a.jump(done);
    a.bind(numbered);
    a.jump_if(If::Less, R8, MAX_ARGUMENT as i32 + 1, done);
    a.mov(R8, MAX_ARGUMENT as i32);
    a.bind(done);
}

/// Reads the memory that one pointer refers to. Equivalent to [`Pointer::target`].
fn follow(a: &mut Assembler, locals: Locals, pointer: &Pointer) {
    let skip = a.label();
    let field = |offset: usize| slot::DATA + offset as i16;
    if let Some(when) = pointer.when {
        a.load(Width::W, R1, R6, field(when.offset));
        a.alu(Alu::And, R1, when.mask as i32);
        a.jump_if(If::Ne, R1, when.value as i32, skip);
    }
    match pointer.length {
        Length::Fixed(bytes) => a.mov(R3, bytes as i32),
        Length::Counted {
            field: counter,
            scale,
            less,
        } => {
            let width = match counter.width {
                1 => Width::B,
                2 => Width::H,
                4 => Width::W,
                _ => Width::D,
            };
            a.load(width, R3, R6, field(counter.offset));
            a.alu(Alu::Mul, R3, scale as i32);
            if less > 0 {
                a.jump_if(If::Less, R3, less as i32, skip);
                a.alu(Alu::Sub, R3, less as i32);
            }
        }
    }
    match pointer.address {
        Address::In(offset) => a.load(Width::D, R2, R6, field(offset)),
        Address::Behind(bytes) => {
            a.load(Width::D, R2, R6, slot_argument(2));
            a.add(R2, bytes as i32);
        }
    }
    a.mov(R1, R6);
    a.mov(R4, i32::from(pointer.at == Moment::Exit));
    a.call_local(locals.piece);
    a.bind(skip);
}

/// piece(slot, address, bytes, moment): appends a piece of the program's memory to the slot.
fn piece_body(a: &mut Assembler, label: Label) {
    let [done, fits, retry, read] = [(); 4].map(|()| a.label());
    a.bind(label);
    a.mov(R6, R1);
    a.mov(R7, R2);
    a.mov(R8, R3);
    a.jump_if(If::Eq, R7, 0, done);
    a.jump_if(If::Eq, R8, 0, done);
    a.load(Width::W, R1, R6, slot::PIECES);
    a.jump_if(If::Gt, R1, slot::MAX_PIECES - 1, done);
    a.mov(R9, R1);
    a.alu(Alu::Mul, R9, slot::PIECE_SIZE);
    a.add(R9, R6);
    a.add(R1, 1);
    a.store(Width::W, R6, slot::PIECES, R1);
    a.store(Width::D, R9, slot::PIECE_ADDRESS, R7);
    a.store(Width::D, R9, slot::PIECE_WHOLE, R8);
    a.store(Width::W, R9, slot::PIECE_LENGTH, 0);
    a.store(Width::W, R9, slot::PIECE_MOMENT, R4);
    a.load(Width::W, R3, R6, slot::USED);
    a.jump_if(If::Gt, R3, slot::MAX_MEMORY, done);
    a.mov(R2, slot::MAX_MEMORY);
    a.alu(Alu::Sub, R2, R3);
    a.jump_if(If::Ge, R8, R2, fits);
    a.mov(R2, R8);
    a.bind(fits);
    // Older verifiers do not derive a bound from comparing two registers.
    a.jump_if(If::Gt, R2, slot::MAX_MEMORY, done);
    a.jump_if(If::Eq, R2, 0, done);
    a.mov(R8, R2);
    let read_user = |a: &mut Assembler| {
        a.load(Width::W, R1, R6, slot::CURSOR);
        a.jump_if(If::Gt, R1, 2 * MAX_ARGUMENT as i32 + slot::MAX_MEMORY, done);
        a.add(R1, R6);
        a.add(R1, i32::from(slot::DATA));
        a.mov(R2, R8);
        a.mov(R3, R7);
        a.call(Helper::ProbeReadUser);
    };
    read_user(a);
    a.jump_if(If::SLess, R0, 0, retry);
    a.jump(read);
    a.bind(retry);
    // bpf_probe_read_user copies all bytes or none. Retry with the first page, which may be
    // resident even if the rest is not.
    a.mov(R1, R7);
    a.alu(Alu::And, R1, 4095);
    a.mov(R5, 4096);
    a.alu(Alu::Sub, R5, R1);
    a.jump_if(If::Ge, R5, R8, done);
    a.mov(R8, R5);
    a.jump_if(If::Gt, R8, slot::MAX_MEMORY, done);
    read_user(a);
    a.jump_if(If::SLess, R0, 0, done);
    a.bind(read);
    a.store(Width::W, R9, slot::PIECE_LENGTH, R8);
    for field in [slot::CURSOR, slot::USED] {
        a.load(Width::W, R1, R6, field);
        a.add(R1, R8);
        a.store(Width::W, R6, field, R1);
    }
    a.bind(done);
    a.mov(R0, 0);
    a.exit();
}
