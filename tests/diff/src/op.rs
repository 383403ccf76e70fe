//! An operation as plain data: what it takes of earlier operations it names by their numbers, so that a sequence stays a sequence when
//! some of it is left out.

use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;

/// The number of an operation in its sequence.
pub(crate) type Number = u32;

/// A handle, address or sequence number that an operation was given, and so much more; without an operation, the number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ref {
    /// Who was given it. One that was refused, or left out, gave nobody's number.
    pub(crate) of: Option<Number>,
    /// Added to it, wrapping.
    pub(crate) plus: u64,
}

impl Ref {
    pub(crate) const fn to(of: Number) -> Self {
        Self {
            of: Some(of),
            plus: 0,
        }
    }

    pub(crate) const fn raw(plus: u64) -> Self {
        Self { of: None, plus }
    }
}

/// Memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Readable and writable, from so many bytes in.
    Arena(u64),
    /// A page that cannot be written.
    ReadOnly,
    /// An address as it stands: nothing is mapped there.
    Raw(u64),
}

/// What a command buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// One packet that does nothing.
    Nop,
    /// The same behind a barrier.
    Barrier,
    /// Sixty-four of them.
    Nops,
    /// Sets a sync object.
    Sob,
}

/// Where a chunk says that its command buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packets {
    /// At a program, whose size the chunk gives.
    Of(Program),
    /// Elsewhere, where the driver must refuse it.
    Wrong { address: Ref, size: u32 },
}

/// One chunk of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) queue: u32,
    pub(crate) packets: Packets,
    /// Without `HL_CS_CHUNK_FLAGS_USER_ALLOC_CB`.
    pub(crate) of_kernel: bool,
}

/// An end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Host,
    Dram,
    Sram,
    /// Device memory that an operation mapped, if it is mapped still.
    Mapped(Number),
}

/// What a wait for an interrupt looks at.
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
        of: Number,
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
        of: Number,
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
    /// A program on this queue that waits until another lets it go; what follows on the queue waits behind it.
    Hold {
        queue: u32,
    },
    LetGo,
    /// As many programs behind one that waits as the queue has room for.
    Fill {
        queue: u32,
    },
    /// A program that does not end in the second that it has, and resets nothing.
    Late {
        queue: u32,
    },
    /// The same, of which the user is told by an event before the device is reset; then closes and opens.
    Expire {
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
    /// An operation that a control node does not have.
    OnControl(u8),
    /// Closes with all that is there, exports too where they are to be kept, and opens again.
    Reopen {
        keep_exports: bool,
    },
}

impl Op {
    /// The name for tables: the kernel's where it has one.
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
            Self::Hold { .. } | Self::LetGo => "HL_IOCTL_CS (held)",
            Self::Fill { .. } => "HL_IOCTL_CS (full queue)",
            Self::Late { .. } => "HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT",
            Self::Expire { .. } => "HL_IOCTL_CS (expires)",
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

    /// The operations whose numbers it names.
    pub(crate) fn names(&self) -> Vec<Number> {
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
