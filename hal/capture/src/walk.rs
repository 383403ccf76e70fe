//! Decodes bytes to values with the layout tables of gaudi-uapi.

use gaudi_spec::Asic;
use gaudi_uapi::view::{At, Count, Part, Pointee, Pointer, Shape, Way};
use gaudi_uapi::{CField, CStruct, CType, Print};

use crate::record::{Memory, Moment};
use crate::value::{Fields, Value};

/// Limits on what is decoded of an event. Omitted elements and bytes are counted in `more`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of elements of a list.
    pub items: usize,
    /// Maximum number of bytes of a text or of uninterpreted bytes.
    pub bytes: usize,
    /// Maximum number of values of an event.
    pub values: usize,
}

impl Limits {
    /// Limits for a line on a terminal.
    pub const LINE: Self = Self {
        items: 16,
        bytes: 64,
        values: 1024,
    };
    /// Limits for a program that reads JSON.
    pub const ALL: Self = Self {
        items: 4096,
        bytes: 1 << 20,
        values: 1 << 16,
    };
}

/// Decodes the structs of one ioctl.
pub(crate) struct Walk<'a> {
    memory: &'a [Memory],
    limits: Limits,
    /// Number of values that may still be decoded.
    values: usize,
    /// Number of bytes of text that may still be decoded.
    bytes: usize,
    /// Number of addresses that may still be looked up.
    look_ups: usize,
    /// The pieces of memory that were decoded.
    pub(crate) used: Vec<bool>,
}

/// A field of a shape: its offset in the base struct, and its name in C.
#[derive(Clone, Copy)]
struct Found {
    of: &'static CStruct,
    field: &'static CField,
    offset: usize,
}

/// Returns the last component of a path in C.
fn short(path: &'static str) -> &'static str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Finds a field of a struct by its name in C.
fn find_in(of: &'static CStruct, name: &str) -> Option<Found> {
    let has_name =
        |field: &&CField| field.name == name || field.c_names.iter().any(|(c_name, _)| short(c_name) == name);
    let field = of.fields.iter().find(has_name)?;
    let offset = of.view_at.unwrap_or(0) + field.offset;
    Some(Found { of, field, offset })
}

/// Finds a field of a shape by its name in C, first in its parts.
fn find(shape: &Shape, name: &str) -> Option<Found> {
    let parts = shape.parts.iter().map(|part| part.of);
    parts.chain([shape.base]).find_map(|of| find_in(of, name))
}

/// Returns a field's number. Missing bytes are zero, as in the rest of a shorter struct.
fn number(bytes: &[u8], Found { field, offset, .. }: Found) -> u64 {
    let mut word = [0; 8];
    let there = bytes.get(offset..).unwrap_or_default();
    let len = field.size.min(8);
    word[..len]
        .iter_mut()
        .zip(there)
        .for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// Returns the number in a field of a struct, by its name in C; 0 if the struct has no such field.
pub(crate) fn number_of(of: &'static CStruct, bytes: &[u8], name: &str) -> u64 {
    find_in(of, name).map_or(0, |found| number(bytes, found))
}

/// The recorded bytes of a struct, and the struct's full length.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) whole: usize,
}

/// The memory that a pointer refers to.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) to: Pointee,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Whether structs at the address are printed as a list even if there is only one.
    pub(crate) is_list: bool,
}

/// The fields of an answer, and its bytes.
pub(crate) type Answer<'a> = (&'static [Part], &'a [u8]);

/// Returns the memory that a pointer refers to; `None` if the operation does not use it.
///
/// `output` is the answer, if the driver has written it.
pub(crate) fn target(
    shape: &Shape,
    pointer: &Pointer,
    (input, output): (&[u8], Option<Answer<'_>>),
    argument: u64,
) -> Option<Target> {
    let named = |name| find(shape, name).map_or(0, |found| number(input, found));
    let address = match pointer.at {
        At::Field => named(pointer.name),
        At::Behind => argument.wrapping_add(shape.base.size as u64),
    };
    let to = match pointer.to {
        Pointee::ByOp(of) => of(named("op") as u32)?,
        to => to,
    };
    let unit = match to {
        Pointee::Structs(shape) => shape.base.size,
        Pointee::Struct(of) => of.size,
        Pointee::Numbers { size, .. } => size,
        _ => 1,
    } as u64;
    let len = |count: u64| match pointer.count {
        Count::Elements(_) => count.saturating_mul(unit),
        Count::Bytes(_) => count,
    };
    let (Count::Elements(name) | Count::Bytes(name)) = pointer.count;
    let mut bytes = len(named(name));
    if let (Some(name), Some((parts, output))) = (pointer.filled, output) {
        let found = parts.iter().find_map(|part| find_in(part.of, name));
        // A field that holds a number of bytes in the request holds a number of elements in the
        // answer.
        let filled = found
            .or_else(|| find(shape, name))
            .map_or(0, |found| number(output, found));
        bytes = bytes.min(filled.saturating_mul(unit));
    }
    Some(Target {
        address,
        to,
        len: bytes,
        is_list: matches!(pointer.count, Count::Elements(_)) || pointer.filled.is_some(),
    })
}

/// Returns the recorded bytes at an address, and the index of the piece that contains them.
pub(crate) fn recorded(memory: &[Memory], address: u64, at: Moment) -> Option<(usize, &[u8])> {
    let offset_in = |piece: &Memory| {
        let offset = address.checked_sub(piece.address)?;
        (offset < piece.whole.max(1)).then_some(offset)
    };
    let places = memory.iter().enumerate().filter(|(_, piece)| piece.at == at);
    let best = places
        .filter_map(|(place, piece)| Some((offset_in(piece)?, place, piece)))
        .min_by_key(|(offset, ..)| *offset)?;
    let (offset, place, piece) = best;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    Some((place, piece.bytes.get(from..).unwrap_or_default()))
}

/// Returns how many addresses of an event are looked up at most: each look-up compares the address
/// with every piece.
pub(crate) fn look_ups(memory: &[Memory]) -> usize {
    (1 << 22) / memory.len().max(1)
}

impl<'a> Walk<'a> {
    pub(crate) fn new(memory: &'a [Memory], limits: Limits) -> Self {
        Self {
            memory,
            limits,
            values: limits.values,
            bytes: limits.bytes.saturating_mul(16),
            look_ups: look_ups(memory),
            used: vec![false; memory.len()],
        }
    }

    fn look_up(&mut self, address: u64, at: Moment) -> Option<(usize, &'a [u8])> {
        self.look_ups = self.look_ups.checked_sub(1)?;
        recorded(self.memory, address, at)
    }

    /// Counts a value. Returns false if the limit is reached.
    fn spend(&mut self) -> bool {
        let left = self.values > 0;
        self.values -= usize::from(left);
        left
    }

    /// Decodes a struct as the operation uses it: the operation, its parts, then all other nonzero
    /// fields, because the driver checks some of them.
    pub(crate) fn shape(&mut self, shape: &Shape, data: Bytes<'_>, argument: u64) -> Fields {
        let mut fields = Fields::default();
        // Bytes of the base struct that are already printed.
        let mut shown: Vec<(usize, usize)> = Vec::new();
        if let Some(op) = shape.base.fields.iter().find(|field| field.name == "op") {
            let found = Found {
                of: shape.base,
                field: op,
                offset: op.offset,
            };
            if data.bytes.len() >= op.offset + op.size {
                let value = self.field(found, data);
                fields.push(op.name, value);
            }
            shown.push((op.offset, op.size));
        }
        for part in shape.parts {
            for (name, found) in Self::part(part) {
                shown.push((found.offset, found.field.size));
                if found.field.print != Print::Hidden || number(data.bytes, found) != 0 {
                    let value = self.followed(shape, name, found, data, argument);
                    fields.push(name, value);
                    if fields.ends_cut() {
                        return fields;
                    }
                }
            }
        }
        for field in shape.base.fields {
            let found = Found {
                of: shape.base,
                field,
                offset: field.offset,
            };
            let end = found.offset + field.size;
            let is_shown = shown.iter().any(|&(at, len)| at < end && found.offset < at + len);
            let bytes = data.bytes.get(found.offset..).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(field.size)];
            let is_zero = bytes.iter().all(|byte| *byte == 0);
            let is_cut = bytes.is_empty() && found.offset < data.whole;
            if !is_shown && (!is_zero || is_cut) && found.offset < data.whole {
                let name = field.c_names.first().map_or(field.name, |(name, _)| short(name));
                let value = self.followed(shape, name, found, data, argument);
                fields.push(name, value);
                if fields.ends_cut() {
                    return fields;
                }
            }
        }
        for pointer in shape
            .pointers
            .iter()
            .filter(|pointer| matches!(pointer.at, At::Behind))
        {
            if let Some(target) = target(shape, pointer, (data.bytes, None), argument) {
                let value = self.pointee(target, Moment::Entry);
                fields.push(pointer.name, value);
            }
        }
        fields
    }

    /// Returns the fields of a part with their names.
    fn part(part: &Part) -> impl Iterator<Item = (&'static str, Found)> {
        let of = part.of;
        let only = part.only;
        let one = only.and_then(|name| Some((name, find_in(of, name)?)));
        let fields = of.fields.iter().filter(move |_| only.is_none());
        let all = fields.map(move |field| {
            let name = field.c_names.first().map_or(field.name, |(name, _)| short(name));
            let offset = of.view_at.unwrap_or(0) + field.offset;
            (name, Found { of, field, offset })
        });
        one.into_iter().chain(all)
    }

    /// Decodes what the driver wrote.
    pub(crate) fn answer(&mut self, parts: &[Part], data: Bytes<'_>) -> Fields {
        let mut fields = Fields::default();
        // A shorter struct is an older version.
        let fields_of = parts.iter().flat_map(Self::part);
        for (name, found) in fields_of.filter(|(_, found)| found.offset < data.whole) {
            if found.field.print != Print::Hidden || number(data.bytes, found) != 0 {
                let value = self.field(found, data);
                fields.push(name, value);
                if fields.ends_cut() {
                    break;
                }
            }
        }
        fields
    }

    /// Decodes a field, and the memory it points to if the driver reads that memory.
    fn followed(
        &mut self,
        shape: &Shape,
        name: &'static str,
        found: Found,
        data: Bytes<'_>,
        argument: u64,
    ) -> Value {
        let mut pointers = shape.pointers.iter();
        let pointer = pointers.find(|pointer| {
            matches!(pointer.at, At::Field) && pointer.name == name && pointer.way != Way::Out
        });
        let target = pointer.and_then(|pointer| target(shape, pointer, (data.bytes, None), argument));
        match target {
            // A truncated pointer is not followed.
            Some(target) if data.bytes.len() >= found.offset + found.field.size => {
                self.pointee(target, Moment::Entry)
            }
            _ => self.field(found, data),
        }
    }

    /// Decodes an address and the value at that address.
    pub(crate) fn pointee(&mut self, target: Target, at: Moment) -> Value {
        let Target {
            address,
            to,
            len,
            is_list,
        } = target;
        let whole = usize::try_from(len).unwrap_or(usize::MAX);
        if address == 0 || whole == 0 {
            return match address {
                0 => Value::Pointer { address, to: None },
                _ => Value::Hex(address),
            };
        }
        let found = self.look_up(address, at).filter(|(_, bytes)| !bytes.is_empty());
        let Some((place, bytes)) = found else {
            return Value::Pointer { address, to: None };
        };
        self.used[place] = true;
        let bytes = &bytes[..bytes.len().min(whole)];
        let value = match to {
            Pointee::Structs(shape) => self.list(bytes, whole, shape.base.size, true, |walk, data| {
                Value::Struct(walk.shape(shape, data, 0))
            }),
            Pointee::Struct(of) => {
                let is_list = is_list || whole / of.size > 1;
                self.list(bytes, whole, of.size, is_list, |walk, data| {
                    Value::Struct(walk.answer(&[Part { of, only: None }], data))
                })
            }
            Pointee::Numbers { size, print } => self.list(bytes, whole, size, true, |_, data| {
                let mut word = [0; 8];
                word.iter_mut().zip(data.bytes).for_each(|(to, from)| *to = *from);
                match print {
                    Print::Hex => Value::Hex(u64::from_le_bytes(word)),
                    _ => Value::Unsigned(u64::from_le_bytes(word)),
                }
            }),
            Pointee::Text => self.text(bytes, whole),
            Pointee::Bytes | Pointee::ByOp(_) => self.plain_bytes(bytes, whole),
        };
        let to = Some(Box::new(value));
        Value::Pointer { address, to }
    }

    /// Decodes the packets of the command buffer at an address of the process, if it was recorded.
    pub(crate) fn packets(&mut self, asic: &Asic, address: u64, len: u64) -> Option<Value> {
        let (place, bytes) = self.look_up(address, Moment::Entry)?;
        let whole = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(whole)];
        if bytes.is_empty() {
            return None;
        }
        self.used[place] = true;
        let mut items = Vec::new();
        let end = (asic.packets)(bytes, &mut |packet| {
            let fits = items.len() < self.limits.items && self.spend();
            if fits {
                items.push(Value::Name(brief(&packet.to_string())));
            }
            fits
        });
        let rest = &bytes[end.min(bytes.len())..];
        let left = whole - bytes.len() + rest.len();
        if left > 0 {
            // Bytes that are not a valid packet, or that are beyond the limit.
            items.push(self.plain_bytes(rest, left));
        }
        Some(Value::List { items, more: 0 })
    }

    /// Decodes elements of the same size. A single struct may be shorter than its definition.
    fn list(
        &mut self,
        bytes: &[u8],
        whole: usize,
        size: usize,
        is_list: bool,
        mut item: impl FnMut(&mut Self, Bytes<'_>) -> Value,
    ) -> Value {
        if !is_list {
            let whole = whole.min(size);
            let bytes = &bytes[..bytes.len().min(whole)];
            return item(self, Bytes { bytes, whole });
        }
        let mut items = Vec::new();
        for chunk in bytes.chunks(size) {
            let is_cut = chunk.len() < size;
            if items.len() == self.limits.items || is_cut || !self.spend() {
                break;
            }
            let whole = size;
            items.push(item(self, Bytes { bytes: chunk, whole }));
        }
        let more = (whole.div_ceil(size) - items.len()) as u64;
        Value::List { items, more }
    }

    fn text(&mut self, bytes: &[u8], whole: usize) -> Value {
        let end = bytes.iter().position(|byte| *byte == 0);
        let text = &bytes[..end.unwrap_or(bytes.len())];
        // Nothing is missing after the first zero byte.
        let whole = end.unwrap_or(whole);
        let len = text.len().min(self.bytes).min(self.limits.bytes);
        self.bytes -= len;
        Value::Text {
            bytes: text[..len].to_vec(),
            more: (whole - len) as u64,
        }
    }

    pub(crate) fn plain_bytes(&mut self, bytes: &[u8], whole: usize) -> Value {
        let len = bytes.len().min(self.bytes).min(self.limits.bytes);
        self.bytes -= len;
        Value::Bytes {
            bytes: bytes[..len].to_vec(),
            more: (whole - len) as u64,
        }
    }

    /// Decodes a field of a struct.
    fn field(&mut self, found: Found, data: Bytes<'_>) -> Value {
        let Found { of, field, offset } = found;
        let there = data.bytes.get(offset..).unwrap_or_default();
        let bytes = &there[..there.len().min(field.size)];
        if bytes.len() < field.size || !self.spend() {
            return Value::Cut;
        }
        let most = match field.counted_by.and_then(|name| find_in(of, name)) {
            Some(count) => number(data.bytes, count),
            None => u64::MAX,
        };
        self.value(&field.kind, field.print, bytes, most)
    }

    fn value(&mut self, kind: &CType, print: Print, bytes: &[u8], most: u64) -> Value {
        let word = || {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            u64::from_le_bytes(word)
        };
        match kind {
            CType::Array { .. } if print == Print::Text => self.text(bytes, bytes.len()),
            CType::Array {
                of: CType::Unsigned,
                len,
            } if *len == bytes.len() => self.plain_bytes(bytes, bytes.len()),
            CType::Array { of, len: 1 } => self.value(of, print, bytes, u64::MAX),
            CType::Array { of, len } => {
                let size = bytes.len() / len.max(&1);
                let count = usize::try_from(most).unwrap_or(usize::MAX).min(*len);
                let mut items = Vec::new();
                for item in bytes.chunks_exact(size).take(count) {
                    if items.len() == self.limits.items || !self.spend() {
                        break;
                    }
                    items.push(self.value(of, print, item, u64::MAX));
                }
                let more = (count - items.len()) as u64;
                Value::List { items, more }
            }
            CType::Named(names) => Value::Name(names.text(word()).to_string()),
            CType::Unsigned | CType::Signed if print == Print::Hex => Value::Hex(word()),
            CType::Unsigned => Value::Unsigned(word()),
            CType::Signed => {
                let unused = u64::BITS - 8 * bytes.len() as u32;
                Value::Signed((word() << unused) as i64 >> unused)
            }
        }
    }
}

/// Shortens a packet's `Debug` text: removes the inner type name, the opcode and zero fields.
fn brief(packet: &str) -> String {
    let (variant, inner) = packet.split_once('(').unwrap_or(("", packet));
    let inner = match inner.starts_with(variant) {
        true => inner.strip_suffix(')').unwrap_or(inner),
        false => packet,
    };
    let mut text = String::new();
    for field in inner.split(", ") {
        let start = field.rfind("{ ").map_or(0, |at| at + 2);
        let end = field.find(" }").unwrap_or(field.len()).max(start);
        let (front, middle, back) = (&field[..start], &field[start..end], &field[end..]);
        text += front;
        let is_zero = middle.ends_with(": false") || middle.ends_with(": 0");
        if !is_zero && !middle.starts_with("opcode: ") {
            let first = text.is_empty() || text.ends_with("{ ");
            text += if first { "" } else { ", " };
            text += middle;
        }
        text += back;
    }
    text.replace(" {  }", "")
}
