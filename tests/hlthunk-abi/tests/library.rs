//! Compares the crate's types and the built library with the table.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gaudi_hlthunk_abi::{Claim, Contract};
use object::Endianness;
use object::elf::{DT_NEEDED, DT_SONAME, FileHeader64, STB_GLOBAL, STB_WEAK};
use object::read::elf::{Dyn as _, FileHeader as _, Sym as _};

fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

#[test]
fn structs_have_their_layouts() {
    let contract = Contract::read();
    let layouts = layouts();
    assert!(layouts.len() > 300, "the table is complete: {}", layouts.len());
    for (c_type, field, offset, bytes) in layouts {
        let known = contract.newest().find_map(|claim| match claim {
            Claim::Size { c_type: of, bytes } if of == c_type && field.is_empty() => Some((0, *bytes)),
            Claim::Field {
                c_type: of,
                name,
                offset,
                bytes,
                ..
            } if of == c_type && name == field => Some((*offset, *bytes)),
            _ => None,
        });
        assert_eq!(Some((offset, bytes)), known, "{c_type} {field}: offset and bytes");
    }
}

/// The dynamic section of a shared library.
#[derive(Debug)]
struct Dynamic {
    soname: Vec<String>,
    needed: BTreeSet<String>,
    exported: BTreeSet<String>,
}

/// Reads the library that cargo built next to this program.
fn library() -> Dynamic {
    let mut path = std::env::current_exe().unwrap();
    path.set_file_name("libhl_thunk.so");
    let path: PathBuf = match path.is_file() {
        true => path,
        false => path.parent().unwrap().with_file_name("libhl_thunk.so"),
    };
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let header = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, &*bytes).unwrap();
    let (entries, link) = sections
        .dynamic(endian, &*bytes)
        .unwrap()
        .expect("a dynamic section");
    let strings = sections.strings(endian, &*bytes, link).unwrap();
    let values = |tag: u32| {
        let of_tag = entries
            .iter()
            .filter(move |entry| entry.tag32(endian) == Some(tag));
        let text = |entry: &object::elf::Dyn64<Endianness>| {
            String::from_utf8(entry.string(endian, strings).unwrap().to_vec()).unwrap()
        };
        of_tag.map(text).collect::<Vec<_>>()
    };
    let symbols = sections
        .symbols(endian, &*bytes, object::elf::SHT_DYNSYM)
        .unwrap();
    let exported = symbols
        .iter()
        .filter(|symbol| !symbol.is_undefined(endian) && [STB_GLOBAL, STB_WEAK].contains(&symbol.st_bind()));
    let name = |symbol: &object::elf::Sym64<Endianness>| {
        let name = symbol.name(endian, symbols.strings()).unwrap();
        String::from_utf8(name.to_vec()).unwrap()
    };
    Dynamic {
        soname: values(DT_SONAME),
        needed: values(DT_NEEDED).into_iter().collect(),
        exported: exported.map(name).collect(),
    }
}

#[test]
fn library_exports_the_vendors_names() {
    let contract = Contract::read();
    let expected: BTreeSet<String> = contract.exported().map(str::to_owned).collect();
    let exported = library().exported;
    let missing: Vec<_> = expected.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&expected).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing {missing:?}, extra {extra:?}"
    );
}

#[test]
fn soname_is_the_vendors() {
    assert_eq!(library().soname, ["libhl-thunk.so"]);
}

#[test]
fn library_needs_only_the_system() {
    let system = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2"];
    for needed in library().needed {
        assert!(system.contains(&needed.as_str()), "DT_NEEDED {needed}");
    }
}
