//! What the chip tells its driver.

use std::fmt;

use gaudi_spec::gaudi2::packet::{DecodeError, MAX_FIXED, Opcode};
use gaudi_spec::{DeviceVa, QueueId};

/// What an access was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Fetching a command buffer.
    Fetch,
    /// Reading data.
    Read,
    /// Writing data.
    Write,
}

/// Why an access could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultCause {
    /// No mapping.
    NotMapped,
    /// Data was to be moved from or to registers.
    Registers,
    /// Data was to be moved from or to the doorbell page.
    Doorbell,
    /// The register is not modelled.
    UnknownRegister,
    /// The word written to the doorbell is no interrupt vector.
    UnknownVector,
}

/// Something asked for by name that the model does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// A packet known by name and size only.
    Packet(Opcode),
    /// A predicate other than 0.
    Predicate,
    /// A message that writes a time stamp.
    TimeStamp,
    /// The `dw` bit of MSG_SHORT.
    MessageWidth,
    /// Byte order, bf16 or fp16 conversion, offsets or context ids of LIN_DMA.
    DmaConversion,
    /// A LIN_DMA on a queue without a DMA engine.
    NoDmaEngine,
    /// A fence, or another CP_DMA, in what CP_DMA handed to the lower command processor.
    LowerProcessor,
    /// Four sync objects as one 60-bit number.
    LongSyncObject,
    /// A completion queue that counts instead of storing.
    CountingCq,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(opcode) => write!(f, "packet {opcode}"),
            Self::Predicate => f.write_str("predicates"),
            Self::TimeStamp => f.write_str("time stamps"),
            Self::MessageWidth => f.write_str("the width bit of MSG_SHORT"),
            Self::DmaConversion => f.write_str("conversion, offsets and context ids in LIN_DMA"),
            Self::NoDmaEngine => f.write_str("LIN_DMA on a queue without a DMA engine"),
            Self::LowerProcessor => f.write_str("fences and CP_DMA in the lower command processor"),
            Self::LongSyncObject => f.write_str("60-bit sync objects"),
            Self::CountingCq => f.write_str("counting completion queues"),
        }
    }
}

/// Why a stream stopped at a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The bytes are no packet.
    Malformed(DecodeError),
    /// The packet asks for what the model does not do.
    Unsupported(Unsupported),
    /// The packet writes to a register that is not modelled.
    UnknownRegister(DeviceVa),
    /// The packet rings the doorbell with a number that is no vector.
    UnknownVector(u32),
    /// The packet moves data from or to registers or the doorbell.
    NotMemory(DeviceVa),
    /// The packet is a STOP.
    Asked,
}

/// A stream that stopped at a packet it could not execute; it stays halted until a reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The queue.
    pub queue: QueueId,
    /// The tag of the command buffer.
    pub tag: u64,
    /// The packet's offset in the command buffer, or in `lower`, bytes.
    pub offset: u64,
    /// Where the packet came from by CP_DMA and ran on the lower command processor: address and bytes of what was handed down.
    pub lower: Option<(DeviceVa, u32)>,
    /// Why.
    pub reason: StopReason,
    pub(crate) bytes: [u8; MAX_FIXED],
    pub(crate) len: u8,
}

impl Stop {
    /// The packet's bytes as they were fetched, the first 24 of them.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "queue {} stopped at offset {:#x} of command buffer {}: ",
            self.queue, self.offset, self.tag
        )?;
        match self.reason {
            StopReason::Malformed(error) => write!(f, "{error}")?,
            StopReason::Unsupported(what) => write!(f, "{what}: not modelled")?,
            StopReason::UnknownRegister(at) => write!(f, "register {at} is not modelled")?,
            StopReason::UnknownVector(vector) => write!(f, "{vector} is no interrupt vector")?,
            StopReason::NotMemory(at) => write!(f, "data moved at {at}, which is no memory")?,
            StopReason::Asked => f.write_str("a STOP packet")?,
        }
        f.write_str("; bytes")?;
        self.bytes().iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop({self})")
    }
}

/// An access of a stream to an address without a mapping; the stream stays halted until a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The queue.
    pub queue: QueueId,
    /// The tag of the command buffer.
    pub tag: u64,
    /// The packet's offset in it, bytes.
    pub offset: u64,
    /// The address.
    pub address: DeviceVa,
    /// What the access was for.
    pub access: Access,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A command buffer was executed to its end.
    CbDone {
        /// The queue.
        queue: QueueId,
        /// The tag it was pushed with.
        tag: u64,
    },
    /// A stream cannot go on.
    Stop(Stop),
    /// A stream met an unmapped address.
    PageFault(PageFault),
    /// An interrupt vector was raised. Raised again before this is taken, it stays one event, as with MSI-X.
    Interrupt {
        /// The vector.
        vector: u16,
    },
    /// A monitor fired, and its write could not be done.
    MonitorFault {
        /// The die core.
        dcore: u32,
        /// The monitor.
        monitor: u32,
        /// Where it writes.
        address: DeviceVa,
        /// Why not.
        cause: FaultCause,
    },
    /// A register asked for something that is not modelled.
    Unsupported {
        /// The register.
        address: DeviceVa,
        /// What was written.
        value: u32,
        /// What it asks for.
        what: Unsupported,
    },
}
