//! The file behind a descriptor, and whether its calls are recorded.

use gaudi_uapi::dmabuf::DMA_BUF_MAGIC;

use super::{
    FILE, FILE_DEV, FILE_FLAGS, FILE_TABLE, Locals, Programs, SCRATCH, argument, lookup, read_kernel,
};
use crate::DeviceMatch;
use crate::bpf::asm::{Alu, Assembler, FP, Helper, If, Label, R0, R1, R2, R3, R6, R7, R8, R9, Reg, Width};
use crate::bpf::slot;
use crate::calls::{Call, DUPLICATES, MAP_ANONYMOUS};

/// `S_IFMT`, `S_IFCHR`, `S_IFBLK` (linux/stat.h).
const S_IFMT: i32 = 0o170_000;
const S_IFCHR: i32 = 0o020_000;
const S_IFBLK: i32 = 0o060_000;
/// `ANON_INODE_FS_MAGIC` (linux/magic.h).
const ANON_INODE_FS_MAGIC: i32 = 0x0904_1934;

impl Programs {
    /// Decides at entry whether a call that takes a descriptor or memory may be recorded.
    pub(super) fn check(&self, a: &mut Assembler, locals: Locals, call: Call, (fill, out): (Label, Label)) {
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
    pub(super) fn only_recorded_files(&self, a: &mut Assembler, yes: Label, no: Label) {
        let device = a.label();
        a.load(Width::W, R1, FP, FILE_FLAGS);
        a.jump_if(If::BitSet, R1, slot::DEVICE, device);
        a.jump_if(If::BitSet, R1, slot::FROM_DRIVER, yes);
        a.jump(no);
        a.bind(device);
        self.only_watched_devices(a, yes, no);
    }

    pub(super) fn only_watched_devices(&self, a: &mut Assembler, yes: Label, no: Label) {
        match self.devices.is_empty() {
            true => a.jump(yes),
            false => only_devices(a, &self.devices, yes, no),
        }
    }

    /// walk(fd, file): writes the properties of a descriptor's file to `file`.
    pub(super) fn walk_body(&self, a: &mut Assembler, label: Label) {
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

/// Calls `walk` for the descriptor in `R1`.
pub(super) fn walk(a: &mut Assembler, locals: Locals) {
    a.address(R2, FP, i32::from(FILE));
    a.call_local(locals.walk);
}
