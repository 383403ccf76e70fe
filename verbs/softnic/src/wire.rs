//! Frames on the cable: a fixed header, then up to [`MAX_CHUNK`] bytes of payload.
//!
//! ```text
//! offset bytes field      little-endian
//!  0     4     magic      "gsn\0"
//!  4     1     version    2
//!  5     1     kind       see [`Kind`]
//!  6     1     flags      1 solicited, 2 a datagram with immediate data, 4 corrupt: dropped
//!  7     1     status     of a Nak, see [`NakCode`]; else 0
//!  8     4     dst_qpn    queue pair that this is for
//! 12     4     src_qpn    queue pair that it comes from
//! 16     8     msn        number of the message in its send queue
//! 24     8     raddr      first byte of the whole message in the peer's region
//! 32     4     rkey       of that region; SendInv: the key to invalidate; datagram: the qkey
//! 36     4     imm        immediate data
//! 40     4     total      bytes of the whole message
//! 44     4     offset     of this frame's payload in the message
//! 48     4     payload    bytes that follow
//! 52     4     reserved   0
//! ```
//! The payload of an atomic is its two operands, 8 bytes each; the answer to it is a read response
//! of 8 bytes. A Hello is the first frame of each direction: msn and raddr are the sender's GID.
//!
//! A message is cut into frames in order; the last one is that with `offset + payload == total`.
//! Fields that a kind does not use are 0.

/// Bytes of a header.
pub(crate) const HEADER: usize = 56;
/// The most payload in a frame. One system call moves it, so it is larger than any packet.
pub const MAX_CHUNK: u32 = 256 * 1024;
/// The longest message (`max_msg_sz` of real RC ports).
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;

const MAGIC: [u8; 4] = *b"gsn\0";
const VERSION: u8 = 2;
const SOLICITED: u8 = 1;
const WITH_IMM: u8 = 2;
const DAMAGED: u8 = 4;
/// The operands of an atomic.
pub(crate) const OPERANDS: u32 = 16;
/// The longest datagram: the MTU of the port.
pub(crate) const MAX_DATAGRAM: u32 = 4096;

/// Defines the values of a byte of the header.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$what])* $variant = $value,)*
        }

        impl $name {
            fn of(byte: u8) -> Option<Self> {
                match byte {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

byte_enum! {
    /// The kind of a frame.
    Kind {
        Write = 1,
        WriteImm = 2,
        ReadRequest = 3,
        Send = 4,
        SendImm = 5,
        ReadResponse = 6,
        Ack = 7,
        Nak = 8,
        SendInv = 9,
        FetchAdd = 10,
        CompareSwap = 11,
        Datagram = 12,
        /// A message without effect, in the place of a local operation in its queue.
        Nop = 13,
        Hello = 14,
    }
}

impl Kind {
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    pub(crate) fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    pub(crate) fn is_answered_by_data(self) -> bool {
        self == Self::ReadRequest || self.is_atomic()
    }

    /// Returns whether it takes a receive.
    pub(crate) fn takes_receive(self) -> bool {
        self.is_send() || self == Self::WriteImm
    }
}

byte_enum! {
    /// Why a message is refused. A refusal ends the connection unless it asks for a retry.
    NakCode {
        /// No receive is posted: retry later.
        ReceiverNotReady = 1,
        /// The queue pair is not connected yet: retry later.
        NotConnected = 2,
        /// The key, its domain, its bounds or its rights do not allow the access.
        Access = 3,
        /// The request cannot be accepted.
        InvalidRequest = 4,
        /// The responder cannot access its own memory.
        Operation = 5,
        /// The queue pair does not exist, is in error, or has another peer.
        NoPeer = 6,
        /// An earlier frame is missing: send again from this message.
        Sequence = 7,
    }
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) solicited: bool,
    pub(crate) with_imm: bool,
    pub(crate) damaged: bool,
    pub(crate) nak: Option<NakCode>,
    pub(crate) dst_qpn: u32,
    pub(crate) src_qpn: u32,
    pub(crate) msn: u64,
    pub(crate) raddr: u64,
    pub(crate) rkey: u32,
    pub(crate) imm: u32,
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) payload: u32,
}

impl Header {
    /// Returns a header whose other fields are 0.
    pub(crate) fn new(kind: Kind, src_qpn: u32, dst_qpn: u32, msn: u64) -> Self {
        Self {
            kind,
            solicited: false,
            with_imm: false,
            damaged: false,
            nak: None,
            dst_qpn,
            src_qpn,
            msn,
            raddr: 0,
            rkey: 0,
            imm: 0,
            total: 0,
            offset: 0,
            payload: 0,
        }
    }

    pub(crate) fn is_last(&self) -> bool {
        self.offset.checked_add(self.payload) == Some(self.total)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags =
            flag(self.solicited, SOLICITED) | flag(self.with_imm, WITH_IMM) | flag(self.damaged, DAMAGED);
        let status = self.nak.map_or(0, |code| code as u8);
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&[VERSION, self.kind as u8, flags, status]);
        put(&self.dst_qpn.to_le_bytes());
        put(&self.src_qpn.to_le_bytes());
        put(&self.msn.to_le_bytes());
        put(&self.raddr.to_le_bytes());
        for field in [self.rkey, self.imm, self.total, self.offset, self.payload] {
            put(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a header. In a decoded header all fields are in range: no sum of them overflows.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, &'static str> {
        let [m0, m1, m2, m3, version, kind, flags, status, ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err("the bytes are not a frame of a softnic");
        }
        if version != VERSION {
            return Err("the peer has another version");
        }
        let kind = Kind::of(kind).ok_or("unknown frame kind")?;
        let nak = NakCode::of(status);
        match (kind == Kind::Nak, nak, status) {
            (true, None, _) => return Err("unknown status"),
            (false, _, 1..) => return Err("a status in a frame that has none"),
            _ => {}
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let header = Self {
            kind,
            solicited: flags & SOLICITED != 0,
            with_imm: flags & WITH_IMM != 0,
            damaged: flags & DAMAGED != 0,
            nak,
            dst_qpn: u32_at(8),
            src_qpn: u32_at(12),
            msn: u64_at(16),
            raddr: u64_at(24),
            rkey: u32_at(32),
            imm: u32_at(36),
            total: u32_at(40),
            offset: u32_at(44),
            payload: u32_at(48),
        };
        if flags > SOLICITED | WITH_IMM | DAMAGED || u32_at(52) != 0 {
            return Err("reserved bits are set");
        }
        if header.dst_qpn > 0xff_ffff || header.src_qpn > 0xff_ffff {
            return Err("a queue pair number has more than 24 bits");
        }
        if header.total > MAX_MESSAGE {
            return Err("the message is too long");
        }
        if header.payload > MAX_CHUNK {
            return Err("the frame is too long");
        }
        // Both are bounded above, so that this sum cannot overflow once the offset is.
        if header.offset > header.total || header.payload > header.total - header.offset {
            return Err("the frame exceeds its message");
        }
        if kind.is_atomic() && (header.total, header.payload) != (OPERANDS, OPERANDS) {
            return Err("an atomic without its operands");
        }
        if kind == Kind::Datagram && (header.total > MAX_DATAGRAM || !header.is_last()) {
            return Err("a datagram of more than one frame");
        }
        let carries = !matches!(
            kind,
            Kind::Ack | Kind::Nak | Kind::ReadRequest | Kind::Nop | Kind::Hello
        );
        if !carries && (header.payload != 0 || header.offset != 0) {
            return Err("payload in a frame that has none");
        }
        if carries && header.payload == 0 && header.total != 0 {
            return Err("a frame without payload in the middle of a message");
        }
        Ok(header)
    }
}
