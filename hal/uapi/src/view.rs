//! Which view of the unions an operation uses, and what its pointers lead to.
//!
//! One row for each way in which the driver reads an argument: [`CALLS`] for its own ioctls,
//! [`OTHERS`] for the ioctls of dma-buf, udmabuf, dma-heap, sync_file and DRM. A tracer decodes by
//! them, and a test can walk them.

mod calls;
mod others;

use crate::cs::HlCsChunk;
use crate::{CStruct, Era, Ioctl, Print};

pub use calls::CALLS;
pub use others::{OTHERS, OtherIoctl};

/// One way in which the driver reads the argument of an ioctl.
#[derive(Clone, Copy, Debug)]
pub struct CallView {
    /// The ioctl.
    pub ioctl: Ioctl,
    /// The only interface that has it, if not all have.
    pub era: Option<Era>,
    /// The field `op` has this value, if the row is for one operation.
    pub op: Option<u32>,
    /// The field and those of its bits that are all set.
    pub flags: Option<(&'static str, u32)>,
    /// The request.
    pub input: Shape,
    /// What the driver fills on success.
    pub output: &'static [Part],
    /// The errnos that come with an answer too.
    pub answers_with: &'static [i32],
}

impl CallView {
    /// Returns the first row of [`CALLS`] that fits. `field` returns a field of the request.
    ///
    /// Every ioctl ends with a row without conditions, for operations that no header names.
    pub fn find(ioctl: Ioctl, era: Option<Era>, field: impl Fn(&str) -> u64) -> &'static Self {
        let fits = |row: &&Self| {
            row.ioctl == ioctl
                && (row.era.is_none() || row.era == era)
                && row.op.is_none_or(|op| field("op") == u64::from(op))
                && row.flags.is_none_or(|(name, bits)| {
                    let bits = u64::from(bits);
                    field(name) & bits == bits
                })
        };
        let row = CALLS.iter().find(fits);
        row.expect("every ioctl has a row without conditions")
    }
}

/// A struct as one operation reads it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The whole struct.
    pub base: &'static CStruct,
    /// What the operation uses. Other fields of `base` count only if the driver checks them.
    pub parts: &'static [Part],
    /// Fields that are addresses in the caller's process.
    pub pointers: &'static [Pointer],
}

/// Fields of a struct, at their place in the argument.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The struct, or a view of a union.
    pub of: &'static CStruct,
    /// The one field that counts, by the name in C that it has in this operation. None: all.
    pub only: Option<&'static str>,
}

/// A field that leads to memory of the caller.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    /// The field with the address, by its name in C; of memory behind the argument, its name.
    pub name: &'static str,
    /// Where the address comes from.
    pub at: At,
    /// What lies there.
    pub to: Pointee,
    /// How much of it.
    pub count: Count,
    /// The field of the answer with the number of elements, or bytes, that the driver filled.
    pub filled: Option<&'static str>,
    /// Who writes it.
    pub way: Way,
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// The field.
    Field,
    /// Directly behind the argument.
    Behind,
}

/// What lies at an address.
#[derive(Clone, Copy, Debug)]
pub enum Pointee {
    /// Structs as an operation reads them.
    Structs(&'static Shape),
    /// Structs whose fields all count and lead nowhere.
    Struct(&'static CStruct),
    /// Unsigned numbers.
    Numbers {
        /// Bytes of each.
        size: usize,
        /// How they are printed.
        print: Print,
    },
    /// Text, up to the first zero.
    Text,
    /// Bytes without a meaning that the headers define.
    Bytes,
    /// By the operation; none if the address does not count.
    ByOp(fn(u32) -> Option<Pointee>),
}

/// How much lies at an address.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Elements: the field with this name in C has the number.
    Elements(&'static str),
    /// Bytes: the field with this name in C has the number.
    Bytes(&'static str),
}

/// In which direction memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The driver reads it.
    In,
    /// The driver writes it.
    Out,
    /// The driver reads it and then writes it.
    Both,
}

/// All fields of a struct.
const fn all(of: &'static CStruct) -> Part {
    Part { of, only: None }
}

/// One field, by its name in C.
const fn only(of: &'static CStruct, name: &'static str) -> Part {
    Part { of, only: Some(name) }
}

impl Shape {
    /// Whether it is a chunk of a submission with a command buffer; chunks of waits have none.
    pub fn has_command_buffer(&self) -> bool {
        self.parts
            .iter()
            .any(|part| part.of.c_name == HlCsChunk::LAYOUT.c_name && part.only == Some("cb_handle"))
    }

    /// A struct whose fields all count and lead nowhere.
    const fn plain(base: &'static CStruct) -> Self {
        Self {
            base,
            parts: &[],
            pointers: &[],
        }
    }
}

impl Pointer {
    const fn new(name: &'static str, to: Pointee, count: Count, way: Way) -> Self {
        Self {
            name,
            at: At::Field,
            to,
            count,
            filled: None,
            way,
        }
    }
}
