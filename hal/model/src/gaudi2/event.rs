//! Events that the chip reports to its driver.

use std::fmt;

use gaudi_seam::engine::ChipError;
use gaudi_spec::gaudi2::packet::{DecodeError, MAX_FIXED, Opcode};
use gaudi_spec::{DeviceVa, QueueId};

/// The purpose of an access.
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
    /// The access moves data from or to registers.
    Registers,
    /// The access moves data from or to the doorbell page.
    Doorbell,
    /// The register is not modelled.
    UnknownRegister,
    /// The word written to the doorbell is not an interrupt vector.
    UnknownVector,
    /// A router refuses the access (RAZWI), by a fault rule.
    Refused,
}

/// A feature of the chip that the model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// A packet without public documentation.
    #[error("packet {0}")]
    Packet(Opcode),
    /// A message that writes a time stamp.
    #[error("time stamps")]
    TimeStamp,
    /// The `dw` bit of MSG_SHORT.
    #[error("the width bit of MSG_SHORT")]
    MessageWidth,
    /// Conversion to bf16 or fp16, the offset register, byte order in a fill, or more than one
    /// dimension of a DMA engine's transfer.
    #[error("conversion, offsets and dimensions of DMA transfers")]
    DmaConversion,
    /// A LIN_DMA on a queue without a DMA engine.
    #[error("LIN_DMA on a queue without a DMA engine")]
    NoDmaEngine,
    /// A CP_DMA that hands down, on the lower command processor.
    #[error("CP_DMA to below the lower command processor")]
    LowerProcessor,
    /// Four sync objects, or four monitors, as one that do not start at a multiple of four.
    #[error("60-bit sync objects at other places than multiples of four")]
    LongSyncObject,
    /// A LOAD_AND_EXE within a LOAD_AND_EXE, or a transfer's completion that starts another.
    #[error("a packet that sets off its own kind")]
    Nested,
    /// A table entry of CB_LIST that is not a CP_DMA.
    #[error("packet {0} in a table of CB_LIST")]
    Entry(Opcode),
    /// A table of CB_LIST with entries of 32 bytes.
    #[error("entries of 32 bytes in a table of CB_LIST")]
    LongEntry,
    /// An arbiter that waits for another queue manager's.
    #[error("an arbiter that is not its own master")]
    ArbiterSlave,
}

/// Why a stream stopped at a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// The bytes are not a packet.
    #[error("{0}")]
    Malformed(DecodeError),
    /// The packet requests a feature that the model does not have.
    #[error("{0}: not modelled")]
    Unsupported(Unsupported),
    /// The packet writes to a register that is not modelled.
    #[error("register {0} is not modelled")]
    UnknownRegister(DeviceVa),
    /// The doorbell value of the packet is not an interrupt vector.
    #[error("{0} is no interrupt vector")]
    UnknownVector(u32),
    /// The packet moves data from or to registers or the doorbell.
    #[error("data moved at {0}, which is no memory")]
    NotMemory(DeviceVa),
    /// The packet is a STOP.
    #[error("a STOP packet")]
    Asked,
    /// The packet pushes more buffers to its own command processor than that holds ("CPDMA Up
    /// overflow", driver gaudi2.c:mme_razwi_info).
    #[error("too many buffers pushed to its own processor")]
    UpperOverflow,
}

/// A stream, or the lower command processor on its behalf, that stopped at a packet it could not
/// execute; it stays halted until a reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The queue.
    pub queue: QueueId,
    /// The tag of the command buffer.
    pub tag: u64,
    /// The packet's offset in the command buffer, in `lower`, or in what CP_DMA pushed to the same
    /// processor, bytes.
    pub offset: u64,
    /// Where the packet came from by CP_DMA and ran on the lower command processor: address and
    /// bytes of what was handed down.
    pub lower: Option<(DeviceVa, u32)>,
    /// Why.
    pub reason: StopReason,
    pub(crate) bytes: [u8; MAX_FIXED],
    pub(crate) len: u8,
}

impl Stop {
    /// The packet's bytes as they were fetched, the first 24 of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "queue {} stopped at offset {:#x} of command buffer {}: {}; bytes",
            self.queue, self.offset, self.tag, self.reason
        )?;
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
    /// A stream stopped.
    Stop(Stop),
    /// A stream met an unmapped address.
    PageFault(PageFault),
    /// An interrupt vector was raised. Raised again before this is taken, it stays one event, as
    /// with MSI-X.
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
        /// The address that it writes.
        address: DeviceVa,
        /// The reason.
        cause: FaultCause,
    },
    /// A register asked for something that is not modelled.
    Unsupported {
        /// The register.
        address: DeviceVa,
        /// The written word.
        value: u32,
        /// The requested feature.
        what: Unsupported,
    },
    /// A command buffer completed a second time, by a fault rule.
    DoneTwice {
        /// The queue.
        queue: QueueId,
        /// The tag it was pushed with.
        tag: u64,
    },
    /// A router refused a write of a stream (RAZWI), by a fault rule. The stream stays halted until
    /// a reset.
    Razwi {
        /// The queue.
        queue: QueueId,
        /// The address.
        address: DeviceVa,
    },
    /// An error of the chip, by a fault rule.
    Injected(ChipError),
}
