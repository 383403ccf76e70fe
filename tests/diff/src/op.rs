//! An operation as plain data. It refers to answers of earlier operations by their numbers, so any
//! part of a sequence is a sequence.

use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;

/// The number of an operation in its sequence.
pub(crate) type OpNumber = u32;

/// The answer of an earlier operation (a handle, address or sequence number) plus an offset, or
/// the offset alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ref {
    /// The earlier operation. If it was refused or left out, an unused handle replaces its answer.
    pub(crate) of: Option<OpNumber>,
    /// Added to it, wrapping.
    pub(crate) plus: u64,
}

impl Ref {
    pub(crate) const fn to(of: OpNumber) -> Self {
        Self {
            of: Some(of),
            plus: 0,
        }
    }

    pub(crate) const fn raw(plus: u64) -> Self {
        Self { of: None, plus }
    }
}

/// Process memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The shared arena, from this offset.
    Arena(u64),
    /// A page that cannot be written.
    ReadOnly,
    /// An address where nothing is mapped.
    Raw(u64),
}

/// The packets of a command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// One NOP packet.
    Nop,
    /// One NOP packet with an engine barrier.
    Barrier,
    /// Sixty-four NOP packets.
    Nops,
    /// Sets a sync object.
    Sob,
}

/// The command buffer that a chunk refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packets {
    /// A program, with its size.
    Of(Program),
    /// An address that the driver must refuse.
    Wrong { address: Ref, size: u32 },
}

/// One chunk of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) queue: u32,
    pub(crate) packets: Packets,
    /// Without `HL_CS_CHUNK_FLAGS_USER_ALLOC_CB`.
    pub(crate) kernel_buffer: bool,
}

/// An end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Host,
    Dram,
    Sram,
    /// Device memory that an operation mapped, if it is still mapped.
    Mapped(OpNumber),
}

/// The value that a wait for an interrupt compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    User(Memory),
    Counter { buffer: Ref, offset: u64 },
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Info {
        op: InfoOp,
        arg: u32,
        room: u32,
        control: bool,
    },
    CbCreate {
        size: u32,
        map: bool,
    },
    CbDestroy {
        buffer: Ref,
    },
    CbInfo {
        buffer: Ref,
        address: bool,
    },
    Mmap {
        offset: Ref,
        len: u64,
    },
    Munmap {
        of: OpNumber,
    },
    Alloc {
        size: u64,
        page: u64,
        flags: u32,
    },
    Free {
        memory: Ref,
    },
    MapDevice {
        memory: Ref,
        hint: Option<u64>,
        flags: u32,
    },
    MapHost {
        memory: Memory,
        size: u64,
        hint: Option<u64>,
        flags: u32,
    },
    Unmap {
        address: Ref,
    },
    MapBlock {
        address: u64,
    },
    Export {
        address: Ref,
        size: u64,
        offset: u64,
        flags: u32,
        scarce: bool,
    },
    CloseExport {
        of: OpNumber,
    },
    RegisterDmabuf,
    TsAlloc {
        elements: u32,
    },
    Register {
        interrupt: u16,
        counter: Ref,
        offset: u64,
        target: u64,
        buffer: Ref,
        index: u64,
    },
    Submit {
        chunks: Vec<Chunk>,
        restore: Vec<Chunk>,
        flags: u32,
        timeout: u32,
    },
    Copy {
        queue: u32,
        to: End,
        from: End,
        at: u32,
        len: u32,
        seed: u8,
    },
    Signal {
        queue: u32,
        flags: u32,
        waits_for: Option<Ref>,
        size: u32,
    },
    Reserve {
        count: u32,
        queue: u32,
    },
    Unreserve {
        reservation: Ref,
    },
    Engines {
        cores: bool,
        ids: Vec<u32>,
        command: u32,
    },
    /// Submits a program that holds this queue until [`Op::Release`].
    Hold {
        queue: u32,
    },
    Release,
    /// Holds this queue and submits programs until it is full.
    Fill {
        queue: u32,
    },
    /// Submits a program that exceeds its timeout of one second, without a reset.
    TimeoutWithoutReset {
        queue: u32,
    },
    /// Submits a program that exceeds its timeout, receives the event, and closes and reopens the
    /// device before the driver resets it.
    TimeoutWithReset {
        queue: u32,
    },
    WaitCs {
        submission: Ref,
        micros: u64,
    },
    WaitMulti {
        submissions: Vec<Ref>,
    },
    WaitInterrupt {
        interrupt: u16,
        word: Word,
        target: u64,
        micros: u64,
    },
    RegisterEvents {
        is_eventfd: bool,
    },
    UnregisterEvents,
    Debug {
        op: DebugOp,
        index: u32,
        enable: bool,
        input: u32,
        output: u32,
    },
    SecondOpen,
    /// An operation that a control node does not support.
    OnControl(u8),
    /// Closes the device without freeing objects, optionally with live exports, and opens it again.
    Reopen {
        keep_exports: bool,
    },
}

impl Op {
    /// Returns the name in reports: the kernel's, if there is one.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Info { op, .. } => op.c_name().unwrap_or("HL_IOCTL_INFO"),
            Self::CbCreate { .. } => "HL_CB_OP_CREATE",
            Self::CbDestroy { .. } => "HL_CB_OP_DESTROY",
            Self::CbInfo { .. } => "HL_CB_OP_INFO",
            Self::Mmap { .. } => "mmap",
            Self::Munmap { .. } => "munmap",
            Self::Alloc { .. } => "HL_MEM_OP_ALLOC",
            Self::Free { .. } => "HL_MEM_OP_FREE",
            Self::MapDevice { .. } => "HL_MEM_OP_MAP",
            Self::MapHost { .. } => "HL_MEM_OP_MAP (USERPTR)",
            Self::Unmap { .. } => "HL_MEM_OP_UNMAP",
            Self::MapBlock { .. } => "HL_MEM_OP_MAP_BLOCK",
            Self::Export { .. } => "HL_MEM_OP_EXPORT_DMABUF_FD",
            Self::CloseExport { .. } => "close(dma-buf)",
            Self::RegisterDmabuf => "HL_MEM_OP_REG_DMABUF_FD",
            Self::TsAlloc { .. } => "HL_MEM_OP_TS_ALLOC",
            Self::Register { .. } => "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT",
            Self::Submit { .. } => "HL_IOCTL_CS",
            Self::Copy { .. } => "HL_IOCTL_CS (LIN_DMA)",
            Self::Signal { waits_for: None, .. } => "HL_CS_FLAGS_SIGNAL",
            Self::Signal { .. } => "HL_CS_FLAGS_WAIT",
            Self::Reserve { .. } => "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY",
            Self::Unreserve { .. } => "HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY",
            Self::Engines { cores: true, .. } => "HL_CS_FLAGS_ENGINE_CORE_COMMAND",
            Self::Engines { .. } => "HL_CS_FLAGS_ENGINES_COMMAND",
            Self::Hold { .. } | Self::Release => "HL_IOCTL_CS (held)",
            Self::Fill { .. } => "HL_IOCTL_CS (full queue)",
            Self::TimeoutWithoutReset { .. } => "HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT",
            Self::TimeoutWithReset { .. } => "HL_IOCTL_CS (expires)",
            Self::WaitCs { .. } => "HL_IOCTL_WAIT_CS",
            Self::WaitMulti { .. } => "HL_WAIT_CS_FLAGS_MULTI_CS",
            Self::WaitInterrupt { .. } => "HL_WAIT_CS_FLAGS_INTERRUPT",
            Self::RegisterEvents { .. } => "HL_INFO_REGISTER_EVENTFD",
            Self::UnregisterEvents => "HL_INFO_UNREGISTER_EVENTFD",
            Self::Debug { .. } => "HL_IOCTL_DEBUG",
            Self::SecondOpen => "open (second)",
            Self::OnControl(_) => "open(control)",
            Self::Reopen { .. } => "close, open",
        }
    }

    /// Returns the numbers of the operations that it refers to.
    pub(crate) fn names(&self) -> Vec<OpNumber> {
        let of = |refs: &[Ref]| refs.iter().filter_map(|at| at.of).collect();
        let of_chunks = |chunks: &[Chunk]| {
            chunks
                .iter()
                .filter_map(|chunk| match chunk.packets {
                    Packets::Wrong { address, .. } => address.of,
                    Packets::Of(_) => None,
                })
                .collect()
        };
        match *self {
            Self::CbDestroy { buffer } | Self::CbInfo { buffer, .. } => of(&[buffer]),
            Self::Mmap { offset, .. } => of(&[offset]),
            Self::Munmap { of } | Self::CloseExport { of } => vec![of],
            Self::Free { memory } | Self::MapDevice { memory, .. } => of(&[memory]),
            Self::Unmap { address } | Self::Export { address, .. } => of(&[address]),
            Self::Register { counter, buffer, .. } => of(&[counter, buffer]),
            Self::Submit { ref chunks, .. } => of_chunks(chunks),
            Self::Copy { to, from, .. } => [to, from]
                .iter()
                .filter_map(|end| match end {
                    End::Mapped(number) => Some(*number),
                    _ => None,
                })
                .collect(),
            Self::Signal {
                waits_for: Some(signal),
                ..
            } => of(&[signal]),
            Self::Unreserve { reservation } => of(&[reservation]),
            Self::WaitCs { submission, .. } => of(&[submission]),
            Self::WaitMulti { ref submissions } => of(submissions),
            Self::WaitInterrupt {
                word: Word::Counter { buffer, .. },
                ..
            } => of(&[buffer]),
            _ => Vec::new(),
        }
    }
}
