//! The record that the programs fill and the tracer decodes: the byte offsets of its fields, and
//! the decoder.

use gaudi_capture::record::{DeviceNumber, IoctlRecord, Memory, Moment, WriteRecord};

use crate::process::FileKind;

/// `u16`: a [`Call`](crate::calls::Call), or one of the process event kinds below. 0: the slot is
/// free.
pub(crate) const KIND: i16 = 0;
/// `u16`: the flag bits below.
pub(crate) const FLAGS: i16 = 2;
/// `u32`: the kernel's `dev_t` of a device node.
pub(crate) const DEV: i16 = 4;
pub(crate) const ENTER: i16 = 8;
pub(crate) const EXIT: i16 = 16;
pub(crate) const PID: i16 = 24;
pub(crate) const TID: i16 = 28;
pub(crate) const RESULT: i16 = 32;
pub(crate) const ARGUMENTS: i16 = 40;
pub(crate) const NUMBER: i16 = 88;
/// The address of the thread's `struct files_struct`.
pub(crate) const TABLE: i16 = 96;
/// Lengths of the parts of the data area, in order: argument at entry (or path), pieces at entry,
/// argument at exit, pieces at exit.
pub(crate) const INPUT: i16 = 104;
pub(crate) const OUTPUT: i16 = 108;
pub(crate) const CURSOR: i16 = 112;
/// The number of pieces, and their total length in bytes.
pub(crate) const PIECES: i16 = 116;
pub(crate) const USED: i16 = 120;
/// A piece: address, full length, bytes read, moment.
pub(crate) const PIECE: i16 = 128;
pub(crate) const PIECE_ADDRESS: i16 = PIECE;
pub(crate) const PIECE_WHOLE: i16 = PIECE + 8;
pub(crate) const PIECE_LENGTH: i16 = PIECE + 16;
pub(crate) const PIECE_MOMENT: i16 = PIECE + 20;
pub(crate) const PIECE_SIZE: i32 = 24;
pub(crate) const MAX_PIECES: i32 = 4;
pub(crate) const DATA: i16 = PIECE + (PIECE_SIZE * MAX_PIECES) as i16;

/// Maximum total length of the pieces in a record, in bytes.
pub(crate) const MAX_MEMORY: i32 = 4096;
/// Maximum length of a path with its NUL, and of the bitmap of open descriptors, in bytes.
pub(crate) const MAX_PATH: i32 = 256;
pub(crate) const MAX_OPEN: i32 = 128;
/// The verifier bounds each length and position separately, not their sum, so there must be room
/// for the maximum of each.
pub(crate) const DATA_SIZE: i32 = 2 * gaudi_capture::pointers::MAX_ARGUMENT as i32 + 2 * MAX_MEMORY;
pub(crate) const SIZE: i32 = DATA as i32 + DATA_SIZE;

/// Record kinds in addition to [`Call`](crate::calls::Call).
pub(crate) const STARTED: u16 = 32;
pub(crate) const EXECUTED: u16 = 33;
pub(crate) const EXITED: u16 = 34;

/// The call was made through a 32-bit ABI.
pub(crate) const COMPAT: i32 = 1;
/// The descriptor is open; its file is an anonymous inode or dma-buf; its file is a device node.
pub(crate) const OPEN: i32 = 2;
pub(crate) const FROM_DRIVER: i32 = 4;
pub(crate) const DEVICE: i32 = 8;
/// The thread died inside the call.
pub(crate) const DIED: i32 = 16;

/// A record from the ring. Fields past its end read as zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a>(pub(crate) &'a [u8]);

impl<'a> Record<'a> {
    fn bytes<const N: usize>(self, at: i16) -> [u8; N] {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    pub(crate) fn word(self, at: i16) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }

    pub(crate) fn half(self, at: i16) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    pub(crate) fn kind(self) -> u16 {
        u16::from_ne_bytes(self.bytes(KIND))
    }

    pub(crate) fn has(self, flag: i32) -> bool {
        i32::from(u16::from_ne_bytes(self.bytes(FLAGS))) & flag != 0
    }

    pub(crate) fn result(self) -> i64 {
        self.word(RESULT) as i64
    }

    pub(crate) fn arguments(self) -> [u64; 6] {
        [0, 1, 2, 3, 4, 5].map(|index| self.word(ARGUMENTS + index * 8))
    }

    pub(crate) fn duration_ns(self) -> u64 {
        if self.has(DIED) {
            0
        } else {
            self.word(EXIT).saturating_sub(self.word(ENTER))
        }
    }

    pub(crate) fn file(self) -> FileKind {
        // `MAJOR` and `MINOR` of linux/kdev_t.h.
        let dev = self.half(DEV);
        let number = DeviceNumber {
            major: dev >> 20,
            minor: dev & 0xf_ffff,
        };
        FileKind {
            device: self.has(DEVICE).then_some(number),
            from_driver: self.has(FROM_DRIVER),
            open: self.has(OPEN),
        }
    }

    /// Returns bytes of the data area.
    pub(crate) fn data(self, at: usize, length: usize) -> &'a [u8] {
        let data = self.0.get(DATA as usize..).unwrap_or(&[]);
        let data = data.get(at..).unwrap_or(&[]);
        data.get(..length).unwrap_or(data)
    }

    /// Returns the path of an open or exec, without the NUL.
    pub(crate) fn path(self) -> &'a [u8] {
        let text = self.data(0, self.half(INPUT) as usize);
        text.split(|&byte| byte == 0).next().unwrap_or(text)
    }

    /// Returns the pieces with their bytes, in order.
    fn pieces(self) -> Vec<Memory> {
        let input = self.half(INPUT) as usize;
        let output = self.half(OUTPUT) as usize;
        let mut at = input;
        let mut was_exit = false;
        let count = self.half(PIECES).min(MAX_PIECES as u32) as i16;
        let mut pieces = Vec::with_capacity(count as usize);
        for base in (0..count).map(|index| index * PIECE_SIZE as i16) {
            let is_exit = self.half(PIECE_MOMENT + base) != 0;
            if is_exit && !was_exit {
                at = at.saturating_add(output);
                was_exit = true;
            }
            let length = self.half(PIECE_LENGTH + base) as usize;
            pieces.push(Memory {
                address: self.word(PIECE_ADDRESS + base),
                at: if is_exit { Moment::Exit } else { Moment::Entry },
                bytes: self.data(at, length).to_vec(),
                whole: self.word(PIECE_WHOLE + base),
            });
            at = at.saturating_add(length);
        }
        pieces
    }

    /// Returns the length of the pieces read at entry, which precede the argument at exit.
    fn entry_bytes(self) -> usize {
        let count = self.half(PIECES).min(MAX_PIECES as u32) as i16;
        let bases = (0..count).map(|index| index * PIECE_SIZE as i16);
        let entry = bases.filter(|&base| self.half(PIECE_MOMENT + base) == 0);
        entry.map(|base| self.half(PIECE_LENGTH + base) as usize).sum()
    }

    /// Returns the control data of a received message.
    pub(crate) fn control(self) -> &'a [u8] {
        self.data(0, self.half(PIECE_LENGTH) as usize)
    }

    pub(crate) fn write(self) -> WriteRecord {
        let [fd, ..] = self.arguments();
        WriteRecord {
            time_ns: self.word(ENTER),
            duration_ns: self.duration_ns(),
            pid: self.half(PID),
            tid: self.half(TID),
            fd: fd as i32,
            device: self.file().device,
            result: self.result(),
            memory: self.pieces(),
        }
    }

    pub(crate) fn ioctl(self) -> IoctlRecord {
        let [fd, request, argument, ..] = self.arguments();
        let input = self.half(INPUT) as usize;
        IoctlRecord {
            time_ns: self.word(ENTER),
            duration_ns: self.duration_ns(),
            pid: self.half(PID),
            tid: self.half(TID),
            fd: fd as i32,
            device: self.file().device,
            request: request as u32,
            argument,
            compat: self.has(COMPAT),
            result: self.result(),
            input: self.data(0, input).to_vec(),
            output: self
                .data(input + self.entry_bytes(), self.half(OUTPUT) as usize)
                .to_vec(),
            memory: self.pieces(),
        }
    }
}
