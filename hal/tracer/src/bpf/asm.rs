//! An assembler for eBPF: instructions as values, labels as jump targets.
//!
//! `rbpf` was rejected: its builder has no labels, and it includes an interpreter and a compiler.
//! `aya-obj` was rejected: it loads objects built by clang. Neither can put values known only at
//! run time (device numbers, struct offsets of the running kernel) into the program as constants,
//! which saves map lookups. Instruction set: Documentation/bpf/standardization/instruction-set.rst.

/// A register. `R0` holds results, `R1` to `R5` hold arguments, calls preserve `R6` to `R9`, and
/// `FP` points to the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(u8);

pub(crate) const R0: Reg = Reg(0);
pub(crate) const R1: Reg = Reg(1);
pub(crate) const R2: Reg = Reg(2);
pub(crate) const R3: Reg = Reg(3);
pub(crate) const R4: Reg = Reg(4);
pub(crate) const R5: Reg = Reg(5);
pub(crate) const R6: Reg = Reg(6);
pub(crate) const R7: Reg = Reg(7);
pub(crate) const R8: Reg = Reg(8);
pub(crate) const R9: Reg = Reg(9);
pub(crate) const FP: Reg = Reg(10);

/// The width of a load or store (`BPF_W` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    B = 0x10,
    H = 0x08,
    W = 0x00,
    D = 0x18,
}

/// 64-bit arithmetic (`BPF_ADD` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Mov = 0xb0,
}

/// The condition of a jump. Comparisons are unsigned unless the name starts with `S`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum If {
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    BitSet = 0x40,
    Ne = 0x50,
    Less = 0xa0,
    SLess = 0xc0,
}

/// The second operand: a register or a sign-extended immediate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Imm(number)
    }
}

/// A kernel helper function, with its number in `enum bpf_func_id`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    KtimeGetNs = 5,
    GetCurrentPidTgid = 14,
    GetCurrentComm = 16,
    GetCurrentTask = 35,
    ProbeReadUser = 112,
    ProbeReadKernel = 113,
    ProbeReadUserStr = 114,
    ProbeReadKernelStr = 115,
    GetCurrentAncestorCgroupId = 123,
    RingbufOutput = 130,
    GetCurrentTaskBtf = 158,
    TaskPtRegs = 175,
}

/// A jump target in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// The fields of `struct bpf_insn`.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    /// Instructions whose label is not resolved yet: jumps, and calls of a subprogram.
    jumps: Vec<(usize, Label)>,
    calls: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, dst: Reg, src: Reg, offset: i16, immediate: i32) {
        let registers = src.0 << 4 | dst.0;
        self.code.push(Instruction {
            code,
            registers,
            offset,
            immediate,
        });
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the next instruction.
    pub(crate) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    pub(crate) fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.push(0x07 | 0x08 | op as u8, dst, src, 0, 0),
            Operand::Imm(number) => self.push(0x07 | op as u8, dst, R0, 0, number),
        }
    }

    pub(crate) fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Mov, dst, operand);
    }

    pub(crate) fn add(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Add, dst, operand);
    }

    /// `dst = src + offset`.
    pub(crate) fn address(&mut self, dst: Reg, src: Reg, offset: i32) {
        self.mov(dst, src);
        self.add(dst, offset);
    }

    fn wide(&mut self, dst: Reg, src: Reg, number: u64) {
        self.push(0x18, dst, src, 0, number as u32 as i32);
        self.push(0, R0, R0, 0, (number >> 32) as u32 as i32);
    }

    /// Loads a 64-bit immediate.
    pub(crate) fn number(&mut self, dst: Reg, number: u64) {
        self.wide(dst, R0, number);
    }

    /// Loads the address of a map (`BPF_PSEUDO_MAP_FD`).
    pub(crate) fn map(&mut self, dst: Reg, fd: i32) {
        self.wide(dst, Reg(1), u64::from(fd as u32));
    }

    /// `dst = *(src + offset)`, zero-extended.
    pub(crate) fn load(&mut self, width: Width, dst: Reg, src: Reg, offset: i16) {
        self.push(0x61 | width as u8, dst, src, offset, 0);
    }

    /// `*(dst + offset) = operand`.
    pub(crate) fn store(&mut self, width: Width, dst: Reg, offset: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.push(0x63 | width as u8, dst, src, offset, 0),
            Operand::Imm(number) => self.push(0x62 | width as u8, dst, R0, offset, number),
        }
    }

    /// `*(u64 *)(dst + offset) += src`, atomically.
    pub(crate) fn atomic_add(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.push(0xdb, dst, src, offset, 0);
    }

    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(0x05, R0, R0, 0, 0);
    }

    pub(crate) fn jump_if(&mut self, condition: If, dst: Reg, operand: impl Into<Operand>, label: Label) {
        self.jumps.push((self.code.len(), label));
        match operand.into() {
            Operand::Reg(src) => self.push(0x05 | 0x08 | condition as u8, dst, src, 0, 0),
            Operand::Imm(number) => self.push(0x05 | condition as u8, dst, R0, 0, number),
        }
    }

    /// Calls a helper, which clobbers `R1` to `R5`.
    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(0x85, R0, R0, 0, helper as i32);
    }

    /// Calls a subprogram of this program (`BPF_PSEUDO_CALL`), which clobbers `R1` to `R5`.
    pub(crate) fn call_local(&mut self, label: Label) {
        self.calls.push((self.code.len(), label));
        self.push(0x85, R0, Reg(1), 0, 0);
    }

    pub(crate) fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    /// Returns the program as the kernel expects it: `struct bpf_insn` in native byte order.
    ///
    /// # Panics
    /// Panics if a label is unbound or out of range. The programs are the same in every run, so
    /// this is a bug in this crate.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let distance = |labels: &[Option<usize>], from: usize, label: Label| {
            let to = labels[label.0].expect("every label is bound before the program ends");
            to as i64 - from as i64 - 1
        };
        for (at, label) in std::mem::take(&mut self.jumps) {
            let distance = distance(&self.labels, at, label);
            self.code[at].offset = i16::try_from(distance).expect("a jump reaches the whole program");
        }
        for (at, label) in std::mem::take(&mut self.calls) {
            let distance = distance(&self.labels, at, label);
            self.code[at].immediate = i32::try_from(distance).expect("a call reaches the whole program");
        }
        self.code.iter().flat_map(Instruction::bytes).collect()
    }
}

impl Instruction {
    fn bytes(&self) -> [u8; 8] {
        // The two nibbles of `registers` are bit fields, which are swapped on big-endian machines.
        // This crate supports little-endian machines only.
        let [o0, o1] = self.offset.to_ne_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_ne_bytes();
        [self.code, self.registers, o0, o1, i0, i1, i2, i3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_the_kernels_encoding() {
        let mut a = Assembler::default();
        let end = a.label();
        a.mov(R6, R1);
        a.load(Width::W, R2, R1, 8);
        a.jump_if(If::Ne, R2, 16, end);
        a.number(R3, 0x1_0000_0002);
        a.store(Width::D, FP, -8, R3);
        a.bind(end);
        a.mov(R0, 0);
        a.exit();
        let expected: [u64; 8] = [
            0x0000_0000_0000_16bf,
            0x0000_0000_0008_1261,
            0x0000_0010_0003_0255,
            0x0000_0002_0000_0318,
            0x0000_0001_0000_0000,
            0x0000_0000_fff8_3a7b,
            0x0000_0000_0000_00b7,
            0x0000_0000_0000_0095,
        ];
        let bytes: Vec<u8> = expected.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(a.finish(), bytes);
    }
}
