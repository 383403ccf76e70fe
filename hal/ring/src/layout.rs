//! Offsets in the session's memory. All fields are words of 64 bits in the machine's byte order:
//! writers and tracer run on one machine.
//!
//! The memory is a header, the table of owners, and the rings. A ring is a page of positions, its
//! data, and scratch memory of its thread.

/// The first word of the memory, with the version of the layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"GAUDIRG1");
/// Header words: magic, session number (two words), sizes, flags, and the filter.
pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_NONCE: usize = 8;
pub(crate) const AT_RINGS: usize = 16;
pub(crate) const AT_RING_BYTES: usize = 24;
/// 1 while the tracer drains.
pub(crate) const AT_OPEN: usize = 32;
/// Bit 0: records descriptors and mappings. Bit 1: a preload library records the ioctls of libc.
/// Bit 2: times in records are values of the processor's counter.
/// Bit 3: records changed memory.
pub(crate) const AT_FLAGS: usize = 40;
/// Bytes of each command buffer to record.
pub(crate) const AT_COMMAND_BUFFERS: usize = 48;
/// Records of threads that found no ring.
pub(crate) const AT_LOST: usize = 56;
/// A set of 256 ioctl type bytes.
pub(crate) const AT_TYPES: usize = 64;
pub(crate) const AT_DEVICE_COUNT: usize = 96;
pub(crate) const AT_DEVICES: usize = 104;
/// One word a ring: 0, or the thread id of its owner in the low half and the process id above.
pub(crate) const AT_OWNERS: usize = 4096;

/// Words of a ring's page: the next position to reserve, the next to read, and lost records.
pub(crate) const RING_HEAD: usize = 0;
pub(crate) const RING_TAIL: usize = 64;
pub(crate) const RING_LOST: usize = 128;
pub(crate) const RING_PAGE: usize = 4096;
/// Bytes of a ring's scratch memory.
pub(crate) const SCRATCH: usize = 256 << 10;

/// The high half of the word before a record: its low half is the length in bytes.
pub(crate) const RECORD: u64 = 0x4745_4352 << 32;
/// The same for the unused end of a ring.
pub(crate) const PAD: u64 = 0x4745_4350 << 32;
pub(crate) const KIND: u64 = 0xffff_ffff << 32;

/// Maximum number of device rows in a filter.
pub const MAX_DEVICES: usize = 256;
const MAX_RINGS: usize = 1 << 14;
const MIN_RING: usize = 1 << 16;
const MAX_RING: usize = 1 << 28;

/// One device number: major and minor; `None` for every minor number.
pub type DeviceRow = (u32, Option<u32>);

/// What a process records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The type bytes of ioctls.
    pub types: Vec<u8>,
    /// The devices; if empty, every device. At most [`MAX_DEVICES`].
    pub devices: Vec<DeviceRow>,
    /// Whether opens, closes and mappings are recorded.
    pub files: bool,
    /// Whether a preload library records the ioctls that go through libc. Otherwise only devices
    /// that no kernel driver serves are recorded.
    pub preload: bool,
    /// Whether a preload library records the memory that the device wrote.
    pub data: bool,
    /// Bytes of each command buffer to record.
    pub command_buffers: Option<u64>,
}

/// The number and the size of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub(crate) rings: usize,
    pub(crate) ring_bytes: usize,
}

impl Sizes {
    /// Rounds the sizes to what the layout permits: a ring has a power of two of at least 64 KiB.
    pub fn new(rings: usize, ring_bytes: usize) -> Self {
        Self {
            rings: rings.clamp(1, MAX_RINGS),
            ring_bytes: ring_bytes.clamp(MIN_RING, MAX_RING).next_power_of_two(),
        }
    }

    /// Returns the sizes in a header; `None` if the layout does not permit them.
    pub(crate) fn of_header(rings: u64, ring_bytes: u64) -> Option<Self> {
        let sizes = Self {
            rings: usize::try_from(rings).ok()?,
            ring_bytes: usize::try_from(ring_bytes).ok()?,
        };
        (sizes == Self::new(sizes.rings, sizes.ring_bytes)).then_some(sizes)
    }

    fn owners_bytes(self) -> usize {
        (self.rings * 8).next_multiple_of(RING_PAGE)
    }

    fn stride(self) -> usize {
        RING_PAGE + self.ring_bytes + SCRATCH
    }

    /// Returns the offset of a ring's page of positions.
    #[inline]
    pub(crate) fn ring(self, index: usize) -> usize {
        AT_OWNERS + self.owners_bytes() + index * self.stride()
    }

    pub(crate) fn total(self) -> usize {
        self.ring(self.rings)
    }

    /// Returns the maximum length of a record in bytes.
    pub(crate) fn longest(self) -> usize {
        self.ring_bytes / 4
    }
}
