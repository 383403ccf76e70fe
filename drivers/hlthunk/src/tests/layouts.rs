//! Compares the Rust structs with the facts that the C headers are checked against.

use std::collections::BTreeMap;

use crate::shim_table::SLOTS;
use crate::types::LAYOUTS;

const FACTS: &str = include_str!("../../../../tests/hlthunk-abi/facts/hlthunk.tsv");

/// Returns the C name of a Rust struct such as `HlthunkHwIpInfo`.
fn c_name(name: &str) -> String {
    let mut text = "struct".to_owned();
    for letter in name.chars() {
        if letter.is_uppercase() {
            text.push(if text == "struct" { ' ' } else { '_' });
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// Returns the rows of a kind, split at tabs. Rows of the newer header come last.
fn rows(kind: &str) -> Vec<Vec<&'static str>> {
    let rows = FACTS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let mut rows: Vec<_> = rows.filter(|row| row[0] == kind).collect();
    rows.sort_by_key(|row| row[1] == "gaudi3");
    rows
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

#[test]
fn structs_have_their_c_sizes() {
    let sizes: BTreeMap<_, _> = rows("size")
        .into_iter()
        .map(|row| (row[2], number(row[3])))
        .collect();
    let own: BTreeMap<_, _> = LAYOUTS
        .iter()
        .map(|(name, size, _)| (c_name(name), *size))
        .collect();
    assert!(own.len() > 60, "{}", own.len());
    for (name, size) in sizes {
        let seen = match name {
            "struct hlthunk_functions_pointers" => size_of::<crate::HlthunkFunctionsPointers>(),
            name => *own.get(name).unwrap_or_else(|| panic!("no {name} in types.rs")),
        };
        assert_eq!(seen, size, "{name}");
    }
}

#[test]
fn fields_have_their_c_offsets() {
    let place = |row: Vec<&'static str>| ((row[2], row[3]), (number(row[5]), number(row[6])));
    let fields: BTreeMap<_, _> = rows("field").into_iter().map(place).collect();
    let mut checked = 0;
    for (name, _, own) in LAYOUTS {
        let name = c_name(name);
        for (field, offset, size) in *own {
            let field = field.trim_start_matches("r#");
            let wanted = fields.get(&(name.as_str(), field));
            assert_eq!(wanted, Some(&(*offset, *size)), "{name}.{field}");
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
    for (at, slot) in SLOTS.iter().enumerate() {
        let wanted = fields.get(&("struct hlthunk_functions_pointers", *slot));
        assert_eq!(wanted, Some(&(at * 8, 8)), "{slot}");
    }
}
