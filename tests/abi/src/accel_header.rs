//! Generates `drm/habanalabs_accel.h` from the tables of gaudi-uapi.
//!
//! - **A single source.** Names, values, offsets and sizes are those of gaudi-uapi; the compiled
//!   checks that compare gaudi-uapi with the kernel's headers also compare it with this header.
//! - **All versions in one header**: the definitions of Linux 6.1 to 7 and those of the Gaudi3
//!   release. A field that the release renamed has both names, in an anonymous union.
//! - **It does not include headers that a Debian without `drm/drm.h` lacks.**

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use gaudi_uapi::{CType, Ioctl, Named};

use crate::layouts::{Field, Layout, gaudi3_layouts, layouts};
use crate::{Header, constants, gaudi3_constants, tables};

/// The path of the generated header, relative to the workspace's root.
pub const ACCEL_HEADER: &str = "drivers/hlthunk/include/drm/habanalabs_accel.h";

const HEAD: &str = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The ioctls of the habanalabs driver on accel nodes (/dev/accel/accelN), for systems whose kernel
 * headers lack this file. Generated from the tables of gaudi-uapi, whose documentation describes
 * every field: SNAPSHOTS=overwrite cargo test -p gaudi-abi --test accel_header
 *
 * The include guard is that of the kernel's header, so that a program uses only one of the two.
 */

#ifndef HABANALABS_H_
#define HABANALABS_H_

#include <linux/ioctl.h>
#include <linux/types.h>

/* The kernel's header includes drm.h, which linux-libc-dev before 6.12 may lack. */
#ifdef __has_include
#if __has_include(<drm/drm.h>)
#include <drm/drm.h>
#endif
#endif
";

/// Returns the text of the header.
pub fn accel_header() -> String {
    let mut c = HEAD.to_owned();
    for table in tables() {
        names(&mut c, table.tag, table.place, table.names);
    }
    // Constants that belong to no table. Those derived from the ioctl numbers are written below.
    let tables = tables();
    let known: Vec<&str> = tables.iter().flat_map(|t| t.names).map(|n| n.c_name).collect();
    let of_linux = constants()
        .into_iter()
        .filter(|(header, _)| *header == Header::Accel7);
    let mut others: Vec<Named> = of_linux.map(|(_, n)| n).chain(gaudi3_constants()).collect();
    let is_ioctl = |name: &str| {
        ["HL_IOCTL_", "DRM_IOCTL_", "HL_COMMAND_"]
            .iter()
            .any(|p| name.starts_with(p))
    };
    others.retain(|n| !known.contains(&n.c_name) && !is_ioctl(n.c_name));
    names(&mut c, "", "Other sizes and limits", &others);

    let driver = layouts().into_iter().filter(|l| l.home.contains(&Header::Accel7));
    let mut rest: Vec<Layout> = driver.chain(gaudi3_layouts()).collect();
    while let Some(first) = rest.first() {
        let c_type = first.c_type;
        let (same, others) = rest.into_iter().partition(|l| l.c_type == c_type);
        rest = others;
        structure(&mut c, c_type, same);
    }
    c.push_str("\n/* Indices of the ioctls; DRM_IOCTL_HL_* are the request numbers */\n");
    let requests = Ioctl::ALL.map(|ioctl| (ioctl.name(), ioctl.index(), args(ioctl)));
    for (name, index, _) in requests {
        let _ = writeln!(c, "#define HL_IOCTL_{name} {index:#04x}");
    }
    c.push_str("\n/* 0x40: DRM_COMMAND_BASE */\n");
    for (name, _, args) in requests {
        let _ = writeln!(
            c,
            "#define DRM_IOCTL_HL_{name} _IOWR('d', 0x40 + HL_IOCTL_{name}, {args})"
        );
    }
    c.push_str("\n#define HL_COMMAND_START (0x40 + HL_IOCTL_INFO)\n");
    c.push_str("#define HL_COMMAND_END (0x40 + HL_IOCTL_NIC + 1)\n");
    c.push_str("\n#endif /* HABANALABS_H_ */\n");
    c
}

fn args(ioctl: Ioctl) -> &'static str {
    match ioctl {
        Ioctl::Info => "struct hl_info_args",
        Ioctl::Cb => "union hl_cb_args",
        Ioctl::Cs => "union hl_cs_args",
        Ioctl::WaitCs => "union hl_wait_cs_args",
        Ioctl::Memory => "union hl_mem_args",
        Ioctl::Debug => "struct hl_debug_args",
        Ioctl::Nic => "struct hl_nic_args",
    }
}

fn names(c: &mut String, tag: &str, place: &str, names: &[Named]) {
    let _ = write!(c, "\n/* {place} */\n");
    if tag.is_empty() {
        // Values that do not fit in an int are hexadecimal, so that C treats them as unsigned.
        let large = names.iter().any(|n| n.value > i32::MAX as u64);
        for n in names {
            let _ = match large || place.ends_with("flags") {
                true => writeln!(c, "#define {} {:#x}", n.c_name, n.value),
                false => writeln!(c, "#define {} {}", n.c_name, n.value),
            };
        }
        return;
    }
    let _ = writeln!(c, "enum {tag} {{");
    for n in names {
        let _ = writeln!(c, "\t{} = {},", n.c_name, n.value);
    }
    // C++98 does not allow a trailing comma.
    c.truncate(c.len() - 2);
    c.push_str("\n};\n");
}

/// An interpretation of a range of a struct's bytes.
struct Variant {
    bytes: Range<usize>,
    /// The name of the inner struct, for `alloc.mem_size`.
    prefix: &'static str,
    fields: Vec<Field>,
}

fn split(c_path: &'static str) -> (&'static str, &'static str) {
    c_path.split_once('.').unwrap_or(("", c_path))
}

/// The interpretations of the bytes of a layout: a view of a union is one interpretation with
/// several fields; otherwise each name of each field is one.
fn variants(layout: Layout) -> Vec<Variant> {
    let mut fields = layout.fields;
    fields.sort_by_key(|field| field.offset);
    let is_view = layout.size.is_none()
        && fields.first().map(|f| f.offset) != fields.last().map(|f| f.offset)
        && fields
            .windows(2)
            .all(|w| w[1].offset == w[0].offset || w[1].offset == w[0].offset + w[0].size);
    let variant = |fields: Vec<Field>| {
        let (first, last) = (&fields[0], &fields[fields.len() - 1]);
        Variant {
            bytes: first.offset..last.offset + last.size,
            prefix: split(first.c_path).0,
            fields,
        }
    };
    match is_view {
        true => vec![variant(fields)],
        false => fields.into_iter().map(|field| variant(vec![field])).collect(),
    }
}

fn structure(c: &mut String, c_type: &str, layouts: Vec<Layout>) {
    let _ = write!(c, "\n{c_type} {{\n");
    if let Some(name) = c_type
        .strip_prefix("union ")
        .and_then(|n| n.strip_suffix("_args"))
    {
        let _ = write!(c, "\tstruct {name}_in in;\n\tstruct {name}_out out;\n}};\n");
        return;
    }
    let mut all: Vec<Variant> = layouts.into_iter().flat_map(variants).collect();
    // Two operations can share a struct, which the tables then contain twice.
    let mut seen = BTreeSet::new();
    all.retain(|v| seen.insert((v.bytes.start, v.fields[0].c_path)));
    members(c, 1, all);
    c.push_str("};\n");
}

/// Writes variants. Variants that share bytes become a union.
fn members(c: &mut String, depth: usize, mut variants: Vec<Variant>) {
    variants.sort_by_key(|v| v.bytes.start);
    let mut variants = variants.into_iter().peekable();
    let tabs = "\t".repeat(depth);
    while let Some(first) = variants.next() {
        let mut end = first.bytes.end;
        let mut group = vec![first];
        while let Some(next) = variants.next_if(|next| next.bytes.start < end) {
            end = end.max(next.bytes.end);
            group.push(next);
        }
        if group.len() == 1 {
            group.into_iter().for_each(|v| member(c, depth, v));
            continue;
        }
        let _ = writeln!(c, "{tabs}union {{");
        group.into_iter().for_each(|v| member(c, depth + 1, v));
        let _ = writeln!(c, "{tabs}}};");
    }
}

fn member(c: &mut String, depth: usize, variant: Variant) {
    let tabs = "\t".repeat(depth);
    if variant.fields.len() == 1 && variant.prefix.is_empty() {
        for field in &variant.fields {
            let _ = writeln!(c, "{tabs}{};", declaration(field));
        }
        return;
    }
    let _ = writeln!(c, "{tabs}struct {{");
    let inner = variant.fields.into_iter().map(|field| {
        let c_path = split(field.c_path).1;
        Variant {
            bytes: field.offset..field.offset + field.size,
            prefix: "",
            fields: vec![Field { c_path, ..field }],
        }
    });
    members(c, depth + 1, inner.collect());
    let space = if variant.prefix.is_empty() { "" } else { " " };
    let _ = writeln!(c, "{tabs}}}{space}{};", variant.prefix);
}

/// Returns the declaration of a field in C: `__u64 name[4][8]` for nested arrays, and an integer of
/// the same size for an open enum.
fn declaration(field: &Field) -> String {
    let (mut element, mut dimensions, mut count) = (&field.kind, String::new(), 1);
    while let CType::Array { of, len } = element {
        count *= len;
        // An array of one element is a plain field.
        if *len != 1 {
            let _ = write!(dimensions, "[{len}]");
        }
        element = of;
    }
    let sign = if matches!(element, CType::Signed) {
        's'
    } else {
        'u'
    };
    let bits = field.size / count * 8;
    format!("__{sign}{bits} {}{dimensions}", field.c_path)
}
