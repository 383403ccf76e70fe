//! The memory of the program that a call passes: the argument, and what pointers refer to.

use gaudi_capture::pointers::{Address, Length, MAX_ARGUMENT, Pointer, VFIO_TYPE, of_vfio};
use gaudi_capture::record::Moment;
use gaudi_uapi::dmabuf::{DMA_BUF_NAME_LEN, DMA_BUF_SET_NAME_B};

use super::{Locals, Programs, slot_argument};
use crate::bpf::asm::{Alu, Assembler, Helper, If, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Width};
use crate::bpf::slot;

impl Programs {
    /// Reads the memory that pointers in the argument refer to. `R6` is the slot, which holds the
    /// argument.
    pub(super) fn pointers(&self, a: &mut Assembler, locals: Locals, at: Moment) {
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
}

/// Reads the response of the RDMA command in the slot in `R6`, then jumps to `send`. `R8` is the
/// result. Equivalent to [`WriteCommand`](gaudi_capture::WriteCommand).
pub(super) fn response(a: &mut Assembler, locals: Locals, send: Label) {
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

/// Loads the argument's size, from the request in the slot, into `R8`; jumps to `none` if there is
/// no argument. Equivalent to [`argument_size`](gaudi_capture::pointers::argument_size).
pub(super) fn argument_size(a: &mut Assembler, none: Label) {
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
pub(super) fn piece_body(a: &mut Assembler, label: Label) {
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
