//! The pointers in ioctl arguments: one table, which the eBPF tracer compiles to instructions and
//! the other tracers interpret.

use std::mem::offset_of;

use crate::record::Moment;
use gaudi_uapi::cs::{CsFlags, HlCsChunk, HlCsIn};
use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::dmabuf::{DMA_BUF_NAME_LEN, DMA_BUF_SET_NAME_B};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::nic::HlNicArgs;
use gaudi_uapi::view::{self, At, Count, OTHERS, Pointee, Shape, Way};
use gaudi_uapi::wait::{HlWaitCsIn, WaitCsFlags};
use gaudi_uapi::{Era, Ioctl};

/// Maximum number of bytes recorded of an argument struct.
pub const MAX_ARGUMENT: usize = 512;

/// The type byte of VFIO ioctls. Their numbers contain no size; the struct starts with it
/// (`argsz`).
const VFIO: u8 = b';';
/// The RDMA ioctl's type byte (rdma/rdma_user_ioctl_cmds.h).
const RDMA: u8 = 0x1b;
/// The size of `struct ib_uverbs_ioctl_hdr`. Its `length` covers the header and the attributes.
const RDMA_HEADER: usize = 24;

/// A field of the argument struct: offset in bytes and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The offset.
    pub offset: usize,
    /// The width: 1, 2, 4 or 8.
    pub width: usize,
}

/// The start of the memory range.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// The address is the field's value.
    In(usize),
    /// The memory follows the argument struct, at this offset from its start.
    Behind(usize),
}

/// The length of the memory range.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// The field's value times `scale`, minus `less`, in bytes.
    Counted {
        /// The number of elements.
        field: Field,
        /// Bytes of an element.
        scale: usize,
        /// Bytes that the number includes and the range does not.
        less: usize,
    },
    /// A constant number of bytes.
    Fixed(usize),
}

/// A condition on a `u32` of the argument: the bits in `mask` equal `value`.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The offset of the field in bytes.
    pub offset: usize,
    /// The bits that are compared.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

/// A pointer.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    /// Where the range starts.
    pub address: Address,
    /// How long it is.
    pub length: Length,
    /// When it is read.
    pub at: Moment,
    /// When the pointer is valid; always if `None`.
    pub when: Option<When>,
}

/// An ioctl whose argument contains pointers.
#[derive(Clone, Debug)]
pub struct Row {
    /// The type and number: the low 16 bits of the request.
    pub selector: u16,
    /// The minimum length of an argument that contains the fields, in bytes.
    pub size: usize,
    /// Its pointers.
    pub pointers: Vec<Pointer>,
}

macro_rules! field {
    ($struct:ident.$field:ident: $width:literal) => {
        Field {
            offset: offset_of!($struct, $field),
            width: $width,
        }
    };
    ($struct:ident.$field:ident + $more:literal: $width:literal) => {
        Field {
            offset: offset_of!($struct, $field) + $more,
            width: $width,
        }
    };
}

const fn counted(address: usize, field: Field, scale: usize, at: Moment) -> Pointer {
    let length = Length::Counted {
        field,
        scale,
        less: 0,
    };
    Pointer {
        address: Address::In(address),
        length,
        at,
        when: None,
    }
}

const fn when(pointer: Pointer, offset: usize, mask: u32, value: u32) -> Pointer {
    Pointer {
        when: Some(When { offset, mask, value }),
        ..pointer
    }
}

/// Returns the pointers of one of the driver's ioctls, one level deep.
fn of_driver(ioctl: Ioctl) -> Vec<Pointer> {
    match ioctl {
        Ioctl::Info => {
            let address = offset_of!(HlInfoArgs, return_pointer);
            let size = field!(HlInfoArgs.return_size: 4);
            let op = offset_of!(HlInfoArgs, op);
            vec![
                // The only INFO operation whose buffer is both input and output.
                when(
                    counted(address, size, 1, Moment::Entry),
                    op,
                    u32::MAX,
                    InfoOp::FW_GENERIC_REQ.0,
                ),
                counted(address, size, 1, Moment::Exit),
            ]
        }
        Ioctl::Cs => {
            let arg = offset_of!(HlCsIn, arg);
            let flags = offset_of!(HlCsIn, cs_flags);
            let reserve = CsFlags::RESERVE_SIGNALS_ONLY.0 | CsFlags::UNRESERVE_SIGNALS_ONLY.0;
            let cores = CsFlags::ENGINE_CORE_COMMAND.0;
            let engines = CsFlags::ENGINES_COMMAND.0;
            let chunk = size_of::<HlCsChunk>();
            let ids = counted(arg, field!(HlCsIn.arg + 8: 4), 4, Moment::Entry);
            let restore = counted(arg, field!(HlCsIn.num_chunks_restore: 4), chunk, Moment::Entry);
            let execute = counted(
                arg + 8,
                field!(HlCsIn.num_chunks_execute: 4),
                chunk,
                Moment::Entry,
            );
            let special = reserve | cores | engines;
            vec![
                when(execute, flags, special, 0),
                when(restore, flags, special, 0),
                when(ids, flags, cores, cores),
                when(ids, flags, engines, engines),
            ]
        }
        Ioctl::WaitCs => {
            let arg = offset_of!(HlWaitCsIn, arg);
            let flags = offset_of!(HlWaitCsIn, flags);
            let multi = WaitCsFlags::MULTI_CS.0;
            let user_word = WaitCsFlags::INTERRUPT.0;
            let kernel_counter = WaitCsFlags::INTERRUPT_KERNEL_CQ.0;
            let word = |at| Pointer {
                address: Address::In(arg),
                length: Length::Fixed(8),
                at,
                when: Some(When {
                    offset: flags,
                    mask: user_word | kernel_counter,
                    value: user_word,
                }),
            };
            let list = counted(arg, field!(HlWaitCsIn.arg2: 1), 8, Moment::Entry);
            vec![
                when(list, flags, multi | user_word, multi),
                word(Moment::Entry),
                word(Moment::Exit),
            ]
        }
        Ioctl::Debug => vec![
            counted(
                offset_of!(HlDebugArgs, input_ptr),
                field!(HlDebugArgs.input_size: 4),
                1,
                Moment::Entry,
            ),
            counted(
                offset_of!(HlDebugArgs, output_ptr),
                field!(HlDebugArgs.output_size: 4),
                1,
                Moment::Exit,
            ),
        ],
        Ioctl::Nic => vec![
            counted(
                offset_of!(HlNicArgs, input_ptr),
                field!(HlNicArgs.input_size: 4),
                1,
                Moment::Entry,
            ),
            counted(
                offset_of!(HlNicArgs, output_ptr),
                field!(HlNicArgs.output_size: 4),
                1,
                Moment::Exit,
            ),
        ],
        // The host memory of a mapping is program data, not part of the request.
        Ioctl::Cb | Ioctl::Memory => Vec::new(),
    }
}

/// Returns a pointer of the decoder's table, once for each moment.
fn of_view(shape: &Shape, pointer: &view::Pointer) -> Vec<Pointer> {
    let of = shape.base;
    let field = |name: &str| {
        let found = of.fields.iter().find(|field| field.name == name);
        let field = found.unwrap_or_else(|| unreachable!("{} has no field {name}", of.c_name));
        Field {
            offset: field.offset,
            width: field.size,
        }
    };
    let address = match pointer.at {
        At::Field => Address::In(field(pointer.name).offset),
        At::Behind => Address::Behind(of.size),
    };
    let unit = match pointer.to {
        Pointee::Struct(of) => of.size,
        Pointee::Numbers { size, .. } => size,
        _ => 1,
    };
    let length = match pointer.count {
        Count::Elements(name) => (field(name), unit),
        Count::Bytes(name) => (field(name), 1),
    };
    let moments: &[Moment] = match pointer.way {
        Way::In => &[Moment::Entry],
        Way::Out => &[Moment::Exit],
        Way::Both => &[Moment::Entry, Moment::Exit],
    };
    let at = |&at: &Moment| Pointer {
        address,
        length: Length::Counted {
            field: length.0,
            scale: length.1,
            less: 0,
        },
        at,
        when: None,
    };
    moments.iter().map(at).collect()
}

/// Returns every ioctl with pointers.
pub fn table() -> Vec<Row> {
    let row = |request: u32, size: usize, pointers| Row {
        selector: request as u16,
        size,
        pointers,
    };
    let mut rows = Vec::new();
    for era in [Era::HlMisc, Era::AccelDrm] {
        for ioctl in Ioctl::ALL {
            let pointers = of_driver(ioctl);
            if let (Some(request), false) = (era.request(ioctl), pointers.is_empty()) {
                rows.push(row(request, ioctl.args_size(), pointers));
            }
        }
    }
    for other in OTHERS {
        let pointers: Vec<_> = other
            .input
            .pointers
            .iter()
            .flat_map(|pointer| of_view(&other.input, pointer))
            .collect();
        if !pointers.is_empty() {
            rows.push(row(other.request, other.input.base.size, pointers));
        }
    }
    let behind = |address, field, scale, less, at| Pointer {
        address: Address::Behind(address),
        length: Length::Counted { field, scale, less },
        at,
        when: None,
    };
    // `RDMA_VERBS_IOCTL`: the attributes follow the header, whose first word is the length of both.
    let length = Field { offset: 0, width: 2 };
    let attributes = |at| behind(RDMA_HEADER, length, 1, RDMA_HEADER, at);
    let both = vec![attributes(Moment::Entry), attributes(Moment::Exit)];
    rows.push(Row {
        selector: u16::from(RDMA) << 8 | 1,
        size: RDMA_HEADER,
        pointers: both,
    });
    rows
}

/// Returns the rest of a VFIO argument, for every number of the type.
pub fn of_vfio() -> [Pointer; 2] {
    [Moment::Entry, Moment::Exit].map(|at| Pointer {
        address: Address::Behind(8),
        length: Length::Counted {
            field: Field { offset: 0, width: 4 },
            scale: 1,
            less: 8,
        },
        at,
        when: None,
    })
}

/// Returns whether the first word of the argument is its size.
pub fn is_vfio(request: u32) -> bool {
    let parts = Parts::of(request);
    parts.kind == VFIO && parts.size == 0
}

/// The type byte of VFIO ioctls.
pub const VFIO_TYPE: u8 = VFIO;

/// Returns the size of the argument struct: the size in the request number, at most
/// [`MAX_ARGUMENT`].
pub fn argument_size(request: u32) -> usize {
    if is_vfio(request) {
        return 8;
    }
    // The argument is the string itself, although the request number contains the size of a
    // pointer.
    if request == DMA_BUF_SET_NAME_B {
        return DMA_BUF_NAME_LEN;
    }
    Parts::of(request).size.min(MAX_ARGUMENT)
}

impl Field {
    /// Returns the field's value in `argument`; `None` if the argument is too short.
    pub fn of(self, argument: &[u8]) -> Option<u64> {
        let bytes = argument.get(self.offset..self.offset.checked_add(self.width)?)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

impl Pointer {
    /// Returns the address and length of the memory that a pointer in `argument` refers to.
    /// `argument` was read at entry from `base`. Returns `None` for a null pointer, a length of 0,
    /// or if a condition does not hold.
    pub fn target(&self, base: u64, argument: &[u8]) -> Option<(u64, u64)> {
        if let Some(when) = self.when {
            let word = Field {
                offset: when.offset,
                width: 4,
            }
            .of(argument)?;
            if word & u64::from(when.mask) != u64::from(when.value) {
                return None;
            }
        }
        let address = match self.address {
            Address::In(offset) => Field { offset, width: 8 }.of(argument)?,
            Address::Behind(bytes) => base.checked_add(bytes as u64)?,
        };
        let length = match self.length {
            Length::Fixed(bytes) => bytes as u64,
            Length::Counted { field, scale, less } => {
                let bytes = field.of(argument)?.checked_mul(scale as u64)?;
                bytes.saturating_sub(less as u64)
            }
        };
        (address != 0 && length != 0).then_some((address, length))
    }
}
