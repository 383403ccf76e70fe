//! Ioctl request numbers (`asm-generic/ioctl.h`): direction in bits 31:30, size 29:16, type 15:8,
//! number 7:0.

/// The caller writes, the kernel reads (`_IOC_WRITE`).
pub const WRITE: u32 = 1;
/// The kernel writes, the caller reads (`_IOC_READ`).
pub const READ: u32 = 2;
/// The largest argument size that a request number can carry, in bytes.
pub const MAX_SIZE: usize = (1 << 14) - 1;

/// A request number from its parts, as `_IOC` of `asm-generic/ioctl.h`. A size above [`MAX_SIZE`]
/// is a compile error in constants.
#[inline]
pub const fn ioc(direction: u32, kind: u8, nr: u8, size: usize) -> u32 {
    assert!(size <= MAX_SIZE, "an ioctl argument has at most 16383 bytes");
    (direction << 30) | ((size as u32) << 16) | ((kind as u32) << 8) | nr as u32
}

/// `_IOWR(kind, nr, size)`: the argument goes both ways.
#[inline]
pub const fn iowr(kind: u8, nr: u8, size: usize) -> u32 {
    ioc(READ | WRITE, kind, nr, size)
}

/// `_IOW(kind, nr, size)`: the kernel reads the argument.
pub const fn iow(kind: u8, nr: u8, size: usize) -> u32 {
    ioc(WRITE, kind, nr, size)
}

/// A request number taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// [`READ`], [`WRITE`], both or none.
    pub direction: u32,
    /// The type byte, `'H'` or `'d'` for habanalabs.
    pub kind: u8,
    /// The number within the type.
    pub nr: u8,
    /// The argument's size in bytes.
    pub size: usize,
}

impl Parts {
    /// Takes a request number apart. Every number has parts.
    #[inline]
    pub const fn of(request: u32) -> Self {
        Self {
            direction: request >> 30,
            kind: (request >> 8) as u8,
            nr: request as u8,
            size: (request >> 16) as usize & MAX_SIZE,
        }
    }

    /// The request number again.
    pub const fn request(self) -> u32 {
        ioc(self.direction, self.kind, self.nr, self.size)
    }
}
