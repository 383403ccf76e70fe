//! A capture with every operation and flag in gaudi-uapi's tables, generated from the tables.

use gaudi_capture::pointers::is_vfio;
use gaudi_capture::record::{Event, FdSource, IoctlRecord, Memory, Moment, OpenRecord};
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::view::{At, CALLS, CallView, Count, OTHERS, Part, Pointee, Pointer, Shape, Way};
use gaudi_uapi::{CField, CStruct, CType, Era, Ioctl, Names, Print};

/// A request under construction.
struct Draft {
    bytes: Vec<u8>,
    memory: Vec<Memory>,
    /// The address of the next piece of memory.
    free: u64,
}

/// Returns the field with this name in C, and its offset in the outer struct.
fn field(of: &'static CStruct, name: &str) -> Option<(&'static CField, usize)> {
    let fits = |field: &&CField| {
        let c_names = field
            .c_names
            .iter()
            .map(|(name, _)| name.rsplit('.').next().unwrap());
        field.name == name || c_names.into_iter().any(|other| other == name)
    };
    let found = of.fields.iter().find(fits)?;
    Some((found, of.view_at.unwrap_or(0) + found.offset))
}

fn set(bytes: &mut [u8], (of, offset): (&CField, usize), value: u64) {
    let end = (offset + of.size).min(offset + 8);
    bytes[offset..end].copy_from_slice(&value.to_le_bytes()[..end - offset]);
}

/// Returns the union of all flags of a set.
fn every_flag(names: &Names) -> u64 {
    names.rows.iter().fold(0, |all, row| all | row.value)
}

/// Sets each field of a struct to a unique value. `nth` selects the values of open enums.
fn fill(of: &'static CStruct, bytes: &mut [u8], nth: usize) {
    for (place, field) in of.fields.iter().enumerate() {
        let offset = of.view_at.unwrap_or(0) + field.offset;
        if field.print == Print::Hidden || offset + field.size > bytes.len() {
            continue;
        }
        let counts = of.fields.iter().any(|other| other.counted_by == Some(field.name));
        match field.kind {
            _ if counts => set(bytes, (field, offset), 2),
            CType::Named(names) if names.are_flags => set(bytes, (field, offset), every_flag(names)),
            CType::Named(names) => {
                let row = names.rows[nth % names.rows.len()];
                set(bytes, (field, offset), row.value);
            }
            CType::Array { .. } => bytes[offset..offset + field.size].fill(b'A' + place as u8 % 26),
            CType::Signed => set(bytes, (field, offset), 10 + place as u64),
            CType::Unsigned => set(bytes, (field, offset), 1 + place as u64),
        }
    }
}

fn fill_parts(shape: &Shape, bytes: &mut [u8], nth: usize) {
    for Part { of, only } in shape.parts {
        match only {
            None => fill(of, bytes, nth),
            Some(name) => {
                let (found, offset) = field(of, name).unwrap_or_else(|| panic!("{name} of {}", of.c_name));
                match found.kind {
                    CType::Named(names) if names.are_flags => set(bytes, (found, offset), every_flag(names)),
                    CType::Array {
                        of: &CType::Unsigned, ..
                    } if found.print == Print::Text => {
                        bytes[offset..offset + 4].copy_from_slice(b"name");
                    }
                    _ => set(bytes, (found, offset), 3 + offset as u64),
                }
            }
        }
    }
}

/// Returns the field of a shape with this name.
fn in_shape(shape: &Shape, name: &str) -> (&'static CField, usize) {
    let mut all = shape.parts.iter().map(|part| part.of).chain([shape.base]);
    let found = all.find_map(|of| field(of, name));
    found.unwrap_or_else(|| panic!("{name} of {}", shape.base.c_name))
}

impl Draft {
    /// Sets a pointer to two elements, or to some bytes.
    fn follow(&mut self, shape: &Shape, pointer: &Pointer, op: u32, nth: usize, at: usize) {
        let to = match pointer.to {
            Pointee::ByOp(of) => match of(op) {
                Some(to) => to,
                None => return,
            },
            to => to,
        };
        let is_one = matches!(pointer.count, Count::Bytes(_)) && InfoOp(op) != InfoOp::USER_MAPPINGS;
        let (unit, content) = match to {
            Pointee::Struct(of) => (of.size, 1),
            Pointee::Structs(inner) => (inner.base.size, 1),
            Pointee::Numbers { size, .. } => (size, 1),
            Pointee::Text | Pointee::Bytes | Pointee::ByOp(_) => (1, 10),
        };
        let elements = if is_one { 1 } else { 2 } * content;
        let mut bytes = vec![0; unit * elements];
        for (place, element) in bytes.chunks_mut(unit).enumerate() {
            match to {
                Pointee::Struct(of) => fill(of, element, nth),
                Pointee::Structs(inner) => fill_parts(inner, element, nth),
                Pointee::Numbers { .. } => element[0] = 7 + place as u8,
                _ => element[0] = b"habanalabs and more"[place],
            }
        }
        let address = match pointer.at {
            At::Field => self.free,
            At::Behind => 0x7ffd_0000_0000 + shape.base.size as u64,
        };
        self.free += 0x10000;
        if let Pointee::Structs(inner) = to {
            for element in bytes.chunks_mut(unit) {
                let mut of_element = Self {
                    bytes: element.to_vec(),
                    memory: Vec::new(),
                    free: self.free,
                };
                for pointer in inner.pointers {
                    of_element.follow(inner, pointer, 0, nth, 0);
                }
                element.copy_from_slice(&of_element.bytes);
                self.memory.extend(of_element.memory);
                self.free = of_element.free;
            }
        }
        let (Count::Elements(count) | Count::Bytes(count)) = pointer.count;
        let number = match pointer.count {
            Count::Elements(_) => elements,
            Count::Bytes(_) => bytes.len(),
        };
        set(&mut self.bytes[at..], in_shape(shape, count), number as u64);
        if matches!(pointer.at, At::Field) {
            set(&mut self.bytes[at..], in_shape(shape, pointer.name), address);
        }
        let moments: &[Moment] = match pointer.way {
            Way::In => &[Moment::Entry],
            Way::Out => &[Moment::Exit],
            Way::Both => &[Moment::Entry, Moment::Exit],
        };
        let whole = bytes.len() as u64;
        self.memory.extend(moments.iter().map(|&at| Memory {
            address,
            at,
            bytes: bytes.clone(),
            whole,
        }));
    }
}

/// Returns an ioctl in which every field has a value.
fn record(
    request: u32,
    shape: &Shape,
    output: &'static [Part],
    prepare: impl Fn(&mut [u8]),
    nth: usize,
) -> IoctlRecord {
    let size = match Parts::of(request).size {
        0 => shape.base.size,
        size => size,
    };
    let mut draft = Draft {
        bytes: vec![0; size],
        memory: Vec::new(),
        free: 0x7f00_0000_0000,
    };
    fill_parts(shape, &mut draft.bytes, nth);
    prepare(&mut draft.bytes);
    let op = field(shape.base, "op").map_or(0, |(_, offset)| {
        let word = draft.bytes[offset..].first_chunk();
        u32::from_le_bytes(*word.unwrap())
    });
    for pointer in shape.pointers {
        draft.follow(shape, pointer, op, nth, 0);
    }
    let mut answer = draft.bytes.clone();
    let outputs = Shape {
        base: shape.base,
        parts: output,
        pointers: &[],
    };
    fill_parts(&outputs, &mut answer, nth);
    for pointer in shape.pointers {
        // The driver returned fewer elements than the buffer can hold.
        if let Some(name) = pointer.filled {
            let found = output.iter().find_map(|part| field(part.of, name));
            let units = match name {
                "user_buffer_actual_size" => 7,
                name if name.ends_with("_len") => 10,
                _ => 1,
            };
            set(&mut answer, found.unwrap_or_else(|| in_shape(shape, name)), units);
        }
    }
    IoctlRecord {
        time_ns: 1000 * nth as u64,
        duration_ns: 750,
        pid: 42,
        tid: 42,
        fd: 3,
        request,
        argument: 0x7ffd_0000_0000,
        input: draft.bytes,
        output: answer,
        memory: draft.memory,
        ..IoctlRecord::default()
    }
}

fn set_named(shape: &Shape, bytes: &mut [u8], name: &str, value: u64) {
    set(bytes, field(shape.base, name).unwrap(), value);
}

/// Returns a record of a row with its operation and flags; sets the flags in `more` as well.
fn of_row(row: &CallView, op: Option<u32>, more: u64, nth: usize) -> IoctlRecord {
    let era = row.era.unwrap_or(match (row.ioctl, nth % 3) {
        (Ioctl::Nic, _) | (_, 0 | 1) => Era::AccelDrm,
        _ => Era::AccelH,
    });
    let request = era.request(row.ioctl).unwrap();
    let prepare = |bytes: &mut [u8]| {
        if let Some(op) = op.or(row.op) {
            set_named(&row.input, bytes, "op", op.into());
        }
        if let Some((name, bits)) = row.flags {
            set_named(&row.input, bytes, name, u64::from(bits) | more);
        } else if more != 0 {
            let names = ["flags", "cs_flags"];
            let name = names
                .into_iter()
                .find(|name| field(row.input.base, name).is_some());
            set_named(&row.input, bytes, name.unwrap(), more);
        }
    };
    record(request, &row.input, row.output, prepare, nth)
}

/// Returns the names of a field's values.
pub(crate) fn names_of(base: &'static CStruct, name: &str) -> Option<&'static Names> {
    match field(base, name)?.0.kind {
        CType::Named(names) => Some(names),
        _ => None,
    }
}

/// Returns a record for each row, each operation without its own row, and each flag.
pub(crate) fn capture() -> Vec<Event> {
    let mut records = Vec::new();
    let mut nodes = Vec::new();
    for row in CALLS {
        records.push(of_row(row, None, 0, records.len()));
    }
    for other in OTHERS {
        // All fields count if a row names none.
        let prepare = |bytes: &mut [u8]| {
            if other.input.parts.is_empty() {
                fill(other.input.base, bytes, records.len());
            }
        };
        let mut each = record(other.request, &other.input, other.output, prepare, records.len());
        if let Some(node) = other.node {
            each.fd = NODE_FD;
            nodes.push(node);
        }
        if is_vfio(other.request) {
            split(&mut each);
        }
        records.push(each);
    }
    for ioctl in Ioctl::ALL {
        let of_ioctl = || CALLS.iter().filter(|row| row.ioctl == ioctl);
        let base = of_ioctl().next().unwrap().input.base;
        let last = of_ioctl().next_back().unwrap();
        for op in names_of(base, "op").into_iter().flat_map(|names| names.rows) {
            let op = op.value as u32;
            if !of_ioctl().any(|row| row.op == Some(op) && row.era.is_none()) {
                records.push(of_row(last, Some(op), 0, records.len()));
            }
        }
        for name in ["flags", "cs_flags"] {
            let flags = names_of(base, name).into_iter().flat_map(|names| names.rows);
            for flag in flags {
                let fits = |row: &&CallView| {
                    row.flags
                        .is_none_or(|(_, bits)| u64::from(bits) & flag.value != 0)
                };
                let row = of_ioctl().find(|row| row.era.is_none() && fits(row));
                records.push(of_row(row.unwrap_or(last), None, flag.value, records.len()));
            }
        }
        // An operation and flags without a name in the headers.
        if names_of(base, "op").is_some() {
            records.push(of_row(last, Some(77), 0, records.len()));
        }
    }
    nodes.dedup();
    let opens = nodes.into_iter().map(|node| {
        Event::Open(OpenRecord {
            time_ns: 0,
            duration_ns: 0,
            pid: 42,
            tid: 42,
            source: FdSource::Open,
            path: node.into(),
            flags: 0,
            device: None,
            result: NODE_FD.into(),
        })
    });
    opens.chain(records.into_iter().map(Event::Ioctl)).collect()
}

/// The descriptor of an ioctl that only one node has.
const NODE_FD: i32 = 4;

/// Splits the argument of a VFIO ioctl as tracers record it: the first 8 bytes, and memory.
fn split(ioctl: &mut IoctlRecord) {
    let size = ioctl.input.len();
    for bytes in [&mut ioctl.input, &mut ioctl.output] {
        bytes[..4].copy_from_slice(&(size as u32).to_le_bytes());
    }
    for (at, bytes) in [
        (Moment::Entry, &mut ioctl.input),
        (Moment::Exit, &mut ioctl.output),
    ] {
        let behind = bytes.split_off(8);
        ioctl.memory.extend((!behind.is_empty()).then(|| Memory {
            address: ioctl.argument + 8,
            at,
            whole: behind.len() as u64,
            bytes: behind,
        }));
    }
}
