//! [`Op`]: an operation of a case.

use std::fmt;

use crate::words::pick;

macro_rules! kinds {
    (
        $($(#[$doc:meta])* $name:ident $weight:literal,)*;
        $($(#[$more:meta])* $other:ident,)*;
        $($(#[$far:meta])* $remote:ident,)*;
        $($(#[$of:meta])* $domain:ident,)*;
        $($(#[$on:meta])* $fabric:ident,)*
    ) => {
        /// The kind of an operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $name,)*
            $($(#[$more])* $other,)*
            $($(#[$far])* $remote,)*
            $($(#[$of])* $domain,)*
            $($(#[$on])* $fabric,)*
        }

        /// The kinds that need real descriptors.
        const OF_DESCRIPTORS: &[Kind] = &[$(Kind::$other,)*];

        /// The kinds between two nodes.
        const OF_NODES: &[Kind] = &[$(Kind::$remote,)*];

        /// The kinds of a memory domain.
        const OF_DOMAINS: &[Kind] = &[$(Kind::$domain,)*];

        /// The kinds of queue pairs between nodes in memory.
        const OF_FABRICS: &[Kind] = &[$(Kind::$fabric,)*];

        impl Kind {
            /// The kinds of operations in memory, each with its weight among random operations.
            pub const IN_MEMORY: &[(Self, u32)] = &[$((Self::$name, $weight),)*];
        }

        /// Each kind as often as its weight.
        const KINDS: &[Kind] = &{
            const COUNT: usize = 0 $(+ $weight)*;
            let mut all = [Kind::Check; COUNT];
            let mut at = 0;
            $(
                let end = at + $weight;
                while at < end {
                    all[at] = Kind::$name;
                    at += 1;
                }
            )*
            // The last value is not read.
            let _ = at;
            all
        };
    };
}

kinds! {
    /// The bytes of a buffer or a mapping are compared with the expected ones.
    Check 4,
    /// `Device::alloc`.
    Alloc 8,
    /// `Device::alloc_host`.
    AllocHost 8,
    /// The processor writes into a host mapping.
    HostWrite 8,
    /// `Device::copy` from host to device memory.
    CopyToDevice 14,
    /// `Device::copy` from device to host memory.
    CopyToHost 12,
    /// `Device::copy` within device memory.
    CopyInDevice 8,
    /// `Device::fill`.
    Fill 8,
    /// `Device::write`, through staging memory.
    Write 4,
    /// `Device::read`, through staging memory.
    Read 4,
    /// A host buffer is mapped by the cache, in the place of a mapping.
    Map 6,
    /// A host buffer is dropped, and so leaves the cache.
    DropCached 3,
    /// `Completion::poll`.
    Poll 6,
    /// `Completion::wait` without a deadline.
    Wait 8,
    /// `Completion::wait` with a timeout of zero.
    WaitNot 3,
    /// `Device::drain`.
    Drain 3,
    /// `Device::info`.
    Info 4,
    /// A buffer is dropped.
    DropBuffer 4,
    /// A buffer is closed.
    CloseBuffer 5,
    /// A host mapping is dropped.
    DropHost 4,
    /// A host mapping is closed.
    CloseHost 4,
    ;
    /// `Device::alloc_exclusive`.
    AllocExclusive,
    /// `Buffer::export`.
    Export,
    /// The bytes of an export are compared with the expected ones.
    ReadExport,
    /// An export is dropped.
    DropExport,
    ;
    /// `Endpoint::put` from device memory to that of the other node.
    RemotePut,
    /// `Endpoint::get` from device memory of the other node.
    RemoteGet,
    /// `Endpoint::put_bytes`.
    RemotePutBytes,
    /// `Endpoint::get_bytes`.
    RemoteGetBytes,
    /// `Endpoint::flush_remote`.
    RemoteFlush,
    /// `Device::fill` of memory that is put later.
    RemoteFill,
    ;
    /// `MemoryDomain::alloc`.
    DomainAlloc,
    /// `MemoryDomain::alloc_host`.
    DomainAllocHost,
    /// `MemoryDomain::register` of memory of the process.
    DomainRegister,
    /// `MemoryDomain::register_device` of a part of device memory, and its end.
    DomainRegisterDevice,
    /// `MemoryDomain::free` or `deregister`.
    DomainFree,
    /// The last handle of memory is dropped.
    DomainDrop,
    /// `MemoryDomain::query`, `mem_query` and keys.
    DomainQuery,
    /// `MemoryDomain::dmabuf`.
    DomainExport,
    /// `Transport::put_short`.
    PutShort,
    /// `Transport::put_bcopy`.
    PutBcopy,
    /// `Transport::put_zcopy`.
    PutZcopy,
    /// `Transport::get_short`.
    GetShort,
    /// `Transport::get_bcopy`.
    GetBcopy,
    /// `Transport::get_zcopy`.
    GetZcopy,
    /// `Transport::put_zcopy` within device memory.
    CopyZcopy,
    /// `Transport::progress`.
    Progress,
    /// `Transport::flush_wait`.
    Flush,
    ;
    /// `SendPost::write`.
    RdmaWrite,
    /// `SendPost::write_imm`.
    RdmaWriteImm,
    /// `SendPost::read`.
    RdmaRead,
    /// `SendPost::send`.
    Send,
    /// `SendPost::send_inline`.
    SendInline,
    /// `SendPost::fetch_add`.
    FetchAdd,
}

/// One operation. Its numbers choose slots, lengths and values; on an unsuitable slot it does
/// nothing, so any part of a sequence is a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The kind.
    pub kind: Kind,
    /// Chooses among slots.
    pub a: u16,
    /// Chooses among other slots.
    pub b: u16,
    /// Chooses lengths and values.
    pub c: u16,
}

/// Operations of a case.
pub const OPERATIONS: usize = 20;
/// Words that make one operation.
pub(crate) const OP: usize = 4;

impl Op {
    pub(crate) fn of([kind, a, b, c]: [u16; OP]) -> Self {
        let kind = pick(KINDS, kind);
        Self { kind, a, b, c }
    }

    /// As [`of`](Self::of); every fourth operation needs real descriptors.
    pub(crate) fn with_descriptors([kind, a, b, c]: [u16; OP]) -> Self {
        match kind % 4 {
            0 => Self {
                kind: pick(OF_DESCRIPTORS, kind),
                a,
                b,
                c,
            },
            _ => Self::of([kind, a, b, c]),
        }
    }

    /// An operation between two nodes.
    pub(crate) fn between_nodes([kind, a, b, c]: [u16; OP]) -> Self {
        let kind = pick(OF_NODES, kind);
        Self { kind, a, b, c }
    }

    /// An operation of a memory domain.
    pub(crate) fn on_domain([kind, a, b, c]: [u16; OP]) -> Self {
        let kind = pick(OF_DOMAINS, kind);
        Self { kind, a, b, c }
    }

    /// A request of a queue pair between nodes in memory.
    pub(crate) fn on_fabric([kind, a, b, c]: [u16; OP]) -> Self {
        let kind = pick(OF_FABRICS, kind);
        Self { kind, a, b, c }
    }

    /// Makes the first operations allocate and copy in a memory domain.
    pub(crate) fn begin_with_domain(ops: &mut [Self]) {
        const FIRST: [Kind; 6] = [
            Kind::DomainAlloc,
            Kind::DomainAllocHost,
            Kind::PutZcopy,
            Kind::GetZcopy,
            Kind::Flush,
            Kind::DomainQuery,
        ];
        for (op, kind) in ops.iter_mut().zip(FIRST) {
            op.kind = kind;
        }
    }

    /// Makes the first operations export the only buffer.
    pub(crate) fn begin_with_export(ops: &mut [Self]) {
        for (op, kind) in ops.iter_mut().zip([Kind::AllocExclusive, Kind::Export]) {
            op.kind = kind;
        }
    }

    /// Makes the first operations allocate and copy, so that later ones have memory to use.
    pub(crate) fn begin_with_memory(ops: &mut [Self]) {
        const FIRST: [Kind; 5] = [
            Kind::Alloc,
            Kind::AllocHost,
            Kind::HostWrite,
            Kind::CopyToDevice,
            Kind::Wait,
        ];
        for (op, kind) in ops.iter_mut().zip(FIRST) {
            op.kind = kind;
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {}", self.kind, self.a, self.b, self.c)
    }
}
