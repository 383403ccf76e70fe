//! Messages of the vfio-user protocol, version 0.0, as bytes.
//!
//! Layouts are those of QEMU's docs/interop/vfio-user.rst and of linux/vfio.h. Everything that is
//! read here comes from a peer: each length is checked before use, and no allocation is larger than
//! the received bytes, except for a read's answer of up to [`MAX_DATA`].

use gaudi_seam::Errno;

/// Bytes in a message's header.
pub const HEADER: usize = 16;
/// Most bytes of data in one read or write of a region, as this server reports to its peer.
pub const MAX_DATA: usize = 1 << 20;
/// Most bytes in a message: the header, a write's own words, and its data.
pub const MAX_MESSAGE: usize = HEADER + 16 + MAX_DATA;

/// Commands (vfio-user.rst "Commands").
pub mod command {
    /// Versions and capabilities, the first message.
    pub const VERSION: u16 = 1;
    /// Maps memory of the guest for the device.
    pub const DMA_MAP: u16 = 2;
    /// Unmaps it.
    pub const DMA_UNMAP: u16 = 3;
    /// Returns the device's regions and interrupts.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Describes a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Describes a kind of interrupts.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Sets the descriptors that interrupts signal.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// Resets the device.
    pub const DEVICE_RESET: u16 = 13;
}

/// Flags of a header: the kind, in the lowest bits.
const REPLY: u32 = 1;
const KIND: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's number of the message.
    pub id: u16,
    /// The command.
    pub command: u16,
    /// Bytes of the whole message.
    pub size: u32,
    flags: u32,
}

impl Header {
    /// Parses a header.
    pub fn read(bytes: [u8; HEADER]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self {
            id: word as u16,
            command: (word >> 16) as u16,
            size: (word >> 32) as u32,
            flags: (word >> 64) as u32,
        }
    }

    /// Bytes that follow the header. `None` if the size is invalid.
    pub fn body(&self) -> Option<usize> {
        let size = usize::try_from(self.size).ok()?;
        (HEADER..=MAX_MESSAGE).contains(&size).then(|| size - HEADER)
    }

    /// Whether the message is an answer. This server sends no requests, so it expects none.
    pub fn is_reply(&self) -> bool {
        self.flags & KIND == REPLY
    }

    /// Whether the peer wants an answer.
    pub fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }
}

/// Encodes the answer to a message, or the errno of a failed one.
pub fn answer(to: &Header, body: Result<&[u8], Errno>) -> Vec<u8> {
    let (flags, errno, body) = match body {
        Ok(body) => (REPLY, 0, body),
        Err(errno) => (REPLY | ERROR, errno as u32, &[][..]),
    };
    // A body is a few words, and at most `MAX_DATA`.
    let size = (HEADER + body.len()) as u32;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(to.id.to_le_bytes());
    message.extend(to.command.to_le_bytes());
    for word in [size, flags, errno] {
        message.extend(word.to_le_bytes());
    }
    message.extend(body);
    message
}

/// Numbers at the front of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(pub &'a [u8]);

impl<'a> Words<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (front, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::EINVAL)?;
        self.0 = rest;
        Ok(*front)
    }

    /// Takes the next 32 bits.
    ///
    /// # Errors
    /// `EINVAL` if fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    /// Takes the next 64 bits.
    ///
    /// # Errors
    /// `EINVAL` if fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }

    /// The remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// An access to a region: REGION_READ and REGION_WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset in the region.
    pub offset: u64,
    /// The region's index.
    pub region: u32,
    /// Bytes.
    pub count: u32,
}

impl Access {
    /// Parses an access. The remaining bytes are the data.
    ///
    /// # Errors
    /// `EINVAL` if there are too few bytes.
    pub fn read(words: &mut Words<'_>) -> Result<Self, Errno> {
        Ok(Self {
            offset: words.u64()?,
            region: words.u32()?,
            count: words.u32()?,
        })
    }

    /// The first bytes of the answer.
    pub fn bytes(&self) -> Vec<u8> {
        let word = u128::from(self.offset) | u128::from(self.region) << 64 | u128::from(self.count) << 96;
        word.to_le_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back() {
        let mut bytes = [0; HEADER];
        bytes[..12].copy_from_slice(&[7, 0, 9, 0, 32, 0, 0, 0, 0x10, 0, 0, 0]);
        let header = Header::read(bytes);
        assert_eq!(
            (header.id, header.command, header.body()),
            (7, command::REGION_READ, Some(16))
        );
        assert!(!header.wants_reply() && !header.is_reply());
        let sent = answer(&header, Ok(b"abcd"));
        let back = Header::read(sent[..HEADER].try_into().unwrap());
        assert_eq!(
            (back.id, back.command, back.body(), back.is_reply()),
            (7, 9, Some(4), true)
        );
        let failed = answer(&header, Err(Errno::EINVAL));
        assert_eq!(failed[12..16], [22, 0, 0, 0], "the errno is in the header");
        assert_eq!(failed[8] & 0x20, 0x20, "the error bit is set");
    }

    #[test]
    fn sizes_that_no_message_has_are_refused() {
        let sized = |size| Header {
            id: 0,
            command: 0,
            size,
            flags: 0,
        };
        assert_eq!(sized(0).body(), None, "shorter than a header");
        assert_eq!(sized(15).body(), None);
        assert_eq!(sized(16).body(), Some(0));
        assert_eq!(
            sized(u32::MAX).body(),
            None,
            "a peer cannot make us wait for 4 GiB"
        );
    }
}
