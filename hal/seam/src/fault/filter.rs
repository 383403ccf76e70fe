//! [`Filter`]: the fields that a request or an event must have.

use std::fmt;

use super::piece::{Piece, Wrong};
use super::target::{ChipEvent, NicEvent, Target};
use crate::operation::{AnyRequest, Operation};
use crate::request::CsRequest;

/// A field of a request or an event, as a filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// The number of the device: N of `accelN` and of `mock:…?index=N`.
    Device,
    /// The queue of the chip (of a submission: of any chunk), or the number of the queue pair.
    Queue,
    /// The addresses that the request or event accesses: any of them.
    Address,
    /// Bytes; elements of a timestamps buffer.
    Size,
    /// What the request or event is about: see [`Field::number_of`].
    Id,
    /// The flags of the request.
    Flags,
}

impl Field {
    /// Every field.
    pub const ALL: [Self; 6] = [
        Self::Device,
        Self::Queue,
        Self::Address,
        Self::Size,
        Self::Id,
        Self::Flags,
    ];

    /// The name in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Queue => "queue",
            Self::Address => "addr",
            Self::Size => "size",
            Self::Id => "id",
            Self::Flags => "flags",
        }
    }

    /// What [`Id`](Self::Id) is of a target. `None` if it has none.
    pub const fn number_of(target: Target) -> Option<&'static str> {
        use Operation as Op;
        Some(match target {
            Target::Only(Op::Info | Op::Debug | Op::Nic) => "the operation's number in the header",
            Target::Only(Op::CbDestroy | Op::CbInfo) => "the command buffer's handle",
            Target::Only(Op::WaitCs | Op::WaitMultiCs) => "the submission",
            Target::Only(Op::WaitInterrupt | Op::RegisterTimestamp) => "the interrupt",
            Target::Only(Op::MemFree | Op::MemMapDevice) => "the allocation's handle",
            Target::Chip(ChipEvent::Packet | ChipEvent::Firmware) => "the packet's opcode",
            Target::Chip(ChipEvent::Sob) => "the sync object",
            Target::Chip(ChipEvent::Interrupt) => "the vector",
            Target::Chip(ChipEvent::Completion) => "the submission",
            Target::Nic(NicEvent::Region) => "the key of the region",
            _ => return None,
        })
    }

    /// Whether requests or events of a target have this field.
    pub fn is_of(self, target: Target) -> bool {
        use Operation as Op;
        match (self, target) {
            (Self::Device, Target::Nic(_)) => false,
            (Self::Device, _) => true,
            (Self::Id, target) => Self::number_of(target).is_some(),
            (Self::Queue, Target::Only(Op::Submit)) => true,
            (Self::Queue, Target::Chip(ChipEvent::Packet | ChipEvent::Dma | ChipEvent::Completion)) => true,
            (Self::Queue, Target::Nic(_)) => true,
            (
                Self::Address,
                Target::Only(
                    Op::Submit | Op::MemMapHost | Op::MemUnmap | Op::MapBlock | Op::ExportDmabuf | Op::Mmap,
                ),
            ) => true,
            (Self::Address, Target::Chip(ChipEvent::Dma | ChipEvent::PageWalk)) => true,
            (Self::Address, Target::Nic(NicEvent::Region)) => true,
            (
                Self::Size,
                Target::Only(
                    Op::Info
                    | Op::Submit
                    | Op::CbCreate
                    | Op::MemAlloc
                    | Op::MemMapHost
                    | Op::TsAlloc
                    | Op::ExportDmabuf
                    | Op::RegisterDmabuf
                    | Op::Mmap,
                ),
            ) => true,
            (Self::Size, Target::Chip(ChipEvent::Dma)) => true,
            (Self::Size, Target::Nic(NicEvent::Post | NicEvent::Packet | NicEvent::Region)) => true,
            (
                Self::Flags,
                Target::Only(
                    Op::Submit | Op::MemAlloc | Op::MemMapDevice | Op::MemMapHost | Op::ExportDmabuf,
                ),
            ) => true,
            _ => false,
        }
    }
}

/// Values from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldRange {
    first: u64,
    last: u64,
}

impl FieldRange {
    /// Every value.
    pub const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// The values from `first` to `last`; a `last` below `first` means `first`.
    pub fn new(first: u64, last: u64) -> Self {
        let last = last.max(first);
        Self { first, last }
    }

    /// Whether the value is one of them.
    pub fn has(self, value: u64) -> bool {
        value >= self.first && value <= self.last
    }

    /// Whether any of `len` values from `start` is one of them; 0 means 1.
    pub fn overlaps(self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len.saturating_sub(1));
        start <= self.last && end >= self.first
    }

    fn parse(text: Piece<'_>) -> Result<Self, Wrong> {
        let (first, last) = text.split_once("..");
        let first = first.any_number()?;
        match last {
            None => Ok(Self::new(first, first)),
            Some(last) if last.text.is_empty() => Ok(Self::new(first, u64::MAX)),
            Some(last) => match last.any_number()? {
                number if number < first => last.wrong("the end of a range before its start", "FIRST..LAST"),
                number => Ok(Self::new(first, number)),
            },
        }
    }
}

/// The fields of an event of a chip or a NIC. A field that the event does not have is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventFields {
    /// The number of the device.
    pub device: u32,
    /// The queue of the chip, or the number of the queue pair.
    pub queue: u64,
    /// The first accessed address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The number of the event's subject: see [`Field::number_of`].
    pub id: u64,
}

/// Fields that a request or an event must have, each in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Filter {
    /// The devices.
    pub device: FieldRange,
    /// The queues, or queue pairs.
    pub queue: FieldRange,
    /// The addresses.
    pub address: FieldRange,
    /// The sizes.
    pub size: FieldRange,
    /// The numbers.
    pub id: FieldRange,
    /// Flags that must be set.
    pub flags: u64,
}

impl Filter {
    /// Everything passes.
    pub const NONE: Self = Self {
        device: FieldRange::ALL,
        queue: FieldRange::ALL,
        address: FieldRange::ALL,
        size: FieldRange::ALL,
        id: FieldRange::ALL,
        flags: 0,
    };

    /// Sets the field of a part. `None` if the part is not a filter.
    pub(super) fn set(&mut self, key: &str, value: Piece<'_>) -> Option<Result<Field, Wrong>> {
        let field = Field::ALL.into_iter().find(|field| field.name() == key)?;
        Some(
            match self.range(field) {
                Some(range) => FieldRange::parse(value).map(|parsed| *range = parsed),
                None => match value.any_number() {
                    Ok(0) => value.wrong("no flag", "at least one bit"),
                    flags => flags.map(|flags| self.flags = flags),
                },
            }
            .map(|()| field),
        )
    }

    /// `None` for the flags.
    fn range(&mut self, field: Field) -> Option<&mut FieldRange> {
        Some(match field {
            Field::Device => &mut self.device,
            Field::Queue => &mut self.queue,
            Field::Address => &mut self.address,
            Field::Size => &mut self.size,
            Field::Id => &mut self.id,
            Field::Flags => return None,
        })
    }

    /// Whether an event passes. A filter names only fields that its event has.
    pub fn passes_event(&self, event: &EventFields) -> bool {
        *self == Self::NONE
            || (self.device.has(event.device.into())
                && self.queue.has(event.queue)
                && self.id.has(event.id)
                && self.has_range(event.address, event.size))
    }

    /// Whether a request to a device passes.
    pub fn passes(&self, device: u32, request: AnyRequest<'_>) -> bool {
        // Most rules have no filter.
        *self == Self::NONE || (self.device.has(device.into()) && self.passes_request(request))
    }

    fn passes_request(&self, request: AnyRequest<'_>) -> bool {
        match request {
            AnyRequest::Submit(submit) => self.passes_submission(submit),
            AnyRequest::Info(info) => {
                self.id.has(info.request.op.0.into()) && self.size.has(info.answer.len() as u64)
            }
            AnyRequest::Debug(debug) => self.id.has(debug.op.0.into()),
            AnyRequest::Nic(nic) => self.id.has(nic.op.into()),
            AnyRequest::CbCreate(create) => self.size.has(create.size.into()),
            AnyRequest::CbDestroy(destroy) => self.id.has(destroy.0.0),
            AnyRequest::CbInfo(query) => self.id.has(query.handle.0),
            AnyRequest::WaitCs(wait) => self.id.has(wait.seq.0),
            AnyRequest::WaitMultiCs(wait) => {
                self.id == FieldRange::ALL || wait.seqs.iter().any(|seq| self.id.has(seq.0))
            }
            AnyRequest::WaitInterrupt(wait) => self.id.has(wait.interrupt.0.into()),
            AnyRequest::RegisterTimestamp(register) => self.id.has(register.interrupt.0.into()),
            AnyRequest::MemAlloc(alloc) => self.size.has(alloc.size) && self.has_flags(alloc.flags.0),
            AnyRequest::MemFree(free) => self.id.has(free.0.0),
            AnyRequest::MemMapDevice(map) => self.id.has(map.handle.0) && self.has_flags(map.flags.0),
            AnyRequest::MemMapHost(map) => {
                self.has_range(map.address.0, map.size) && self.has_flags(map.flags.0)
            }
            AnyRequest::MemUnmap(unmap) => self.address.has(unmap.0.0),
            AnyRequest::TsAlloc(alloc) => self.size.has(alloc.0.into()),
            AnyRequest::MapBlock(block) => self.address.has(block.0),
            AnyRequest::ExportDmabuf(export) => {
                let start = export.address.0.saturating_add(export.offset);
                self.has_range(start, export.size) && self.has_flags(export.flags)
            }
            AnyRequest::RegisterDmabuf(register) => self.size.has(register.len),
            AnyRequest::Mmap(map) => self.has_range(map.offset, map.len as u64),
            AnyRequest::RegisterEvents(_) | AnyRequest::UnregisterEvents(_) => true,
        }
    }

    /// One chunk must have the queue, the address and the size.
    fn passes_submission(&self, submit: &CsRequest<'_>) -> bool {
        let of_chunk = [self.queue, self.address, self.size];
        let mut chunks = submit.execute.iter().chain(submit.restore);
        self.has_flags(submit.cs_flags().0)
            && (of_chunk == [FieldRange::ALL; 3]
                || chunks.any(|chunk| {
                    self.queue.has(chunk.queue_index.into())
                        && self.has_range(chunk.cb_handle, chunk.cb_size.into())
                }))
    }

    fn has_range(&self, start: u64, size: u64) -> bool {
        self.address.overlaps(start, size) && self.size.has(size)
    }

    fn has_flags(&self, flags: u32) -> bool {
        u64::from(flags) & self.flags == self.flags
    }
}

impl fmt::Display for Filter {
    /// The parts of a rule, each after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        for field in Field::ALL {
            let Some(&mut FieldRange { first, last }) = copy.range(field) else {
                continue;
            };
            let name = field.name();
            match (first, last) {
                (0, u64::MAX) => continue,
                (first, _) if field == Field::Address => write!(f, ":{name}={first:#x}")?,
                (first, _) => write!(f, ":{name}={first}")?,
            }
            match last {
                last if last == first => {}
                u64::MAX => f.write_str("..")?,
                last if field == Field::Address => write!(f, "..{last:#x}")?,
                last => write!(f, "..{last}")?,
            }
        }
        match self.flags {
            0 => Ok(()),
            flags => write!(f, ":flags={flags:#x}"),
        }
    }
}
