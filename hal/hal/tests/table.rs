//! Mapping tables of any text: read, or refused with the entry and the field.
//! `GAUDI_TEST_CASES=1000000` makes the long run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use gaudi_hal::{Environment, Error, ErrorKind, MappingEntry, MappingTable, TABLE_VARIABLE};
use gaudi_seam::PciAddress;
use proptest::prelude::*;

/// Entries of distinct index, module id and address, in any order of the indices.
fn entries() -> impl Strategy<Value = Vec<MappingEntry>> {
    let key = (
        any::<u32>(),
        any::<u32>(),
        (any::<u32>(), any::<u8>(), 0..32u8, 0..8u8),
    );
    prop::collection::vec(key, 1..12).prop_map(|keys| {
        let mut modules = BTreeMap::new();
        for (index, module_id, (domain, bus, device, function)) in keys {
            modules.insert(
                module_id,
                (
                    index,
                    PciAddress {
                        domain,
                        bus,
                        device,
                        function,
                    },
                ),
            );
        }
        let (mut indices, mut buses) = (Vec::new(), Vec::new());
        let mut entries = Vec::new();
        for (module_id, (index, bus)) in modules {
            if !indices.contains(&index) && !buses.contains(&bus) {
                indices.push(index);
                buses.push(bus);
                entries.push(MappingEntry {
                    index,
                    module_id,
                    bus,
                });
            }
        }
        entries
    })
}

/// An entry as text, its fields in one of six orders.
fn text(entry: &MappingEntry, order: usize) -> Vec<String> {
    let mut fields = vec![
        format!(r#""index": {}"#, entry.index),
        format!(r#""module_id": {}"#, entry.module_id),
        format!(r#""bus_id": "{}""#, entry.bus),
    ];
    fields.rotate_left(order % 3);
    if order >= 3 {
        fields.swap(0, 1);
    }
    fields
}

fn join(rows: &[Vec<String>]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|fields| format!("{{{}}}", fields.join(", ")))
        .collect();
    format!("[{}]", rows.join(",\n "))
}

/// What every refusal has.
fn is_a_refusal(error: &Error) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::InvalidInput, TABLE_VARIABLE)
    );
    prop_assert!(error.help().is_some(), "there is a next step: {error:?}");
    Ok(())
}

/// A value that is wrong in a field: index and module id are numbers of 32 bits, bus_id is text in
/// the form of an address.
fn wrong_value(number: bool) -> impl Strategy<Value = String> {
    let common = prop_oneof![
        Just("null"),
        Just("true"),
        Just("[]"),
        Just("{}"),
        Just("-1"),
        Just("0.5"),
        Just("4294967296"),
        Just("1e400"),
        Just(r#""""#),
        Just(r#""0000:19:20.0""#),
        Just(r#""0000:19:00.8""#),
        Just(r#""100000000:19:00.0""#),
        Just(r#""\u0000""#),
        Just(r#""0000:19:00.0 ""#),
    ]
    .prop_map(str::to_owned);
    let own = if number { r#""7""# } else { "7" };
    prop_oneof![9 => common, 1 => Just(own.to_owned())]
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn valid_table_round_trips_in_any_order(entries in entries(), order in 0..6usize) {
        let rows: Vec<_> = entries.iter().map(|entry| text(entry, order)).collect();
        let table = MappingTable::parse(&join(&rows)).expect("a right table");
        let mut wanted = entries;
        wanted.sort_by_key(|entry| entry.index);
        prop_assert_eq!(table.entries(), &wanted[..]);
        let again = MappingTable::parse(&table.to_string()).expect("what it prints");
        prop_assert_eq!(again, table);
    }

    #[test]
    fn invalid_value_is_named_by_field(
        (entries, which, field) in entries().prop_flat_map(|e| { let n = e.len(); (Just(e), 0..n, 0..3usize) }),
        order in 0..6usize,
        values in (wrong_value(true), wrong_value(false)),
    ) {
        let name = ["index", "module_id", "bus_id"][field];
        let value = if name == "bus_id" { values.1 } else { values.0 };
        let mut rows: Vec<_> = entries.iter().map(|entry| text(entry, order)).collect();
        let place = rows[which].iter().position(|text| text.starts_with(&format!("\"{name}\""))).unwrap();
        rows[which][place] = format!("\"{name}\": {value}");
        let error = MappingTable::parse(&join(&rows)).expect_err("a wrong value");
        is_a_refusal(&error)?;
        // A number that JSON itself cannot hold ends the reading of the whole text.
        let whole = error.to_string().contains("not a JSON array");
        let named = error.to_string().contains(&format!("entry {which}: {name}: "));
        prop_assert!(named || whole && value == "1e400", "entry {which} and {name} are named: {error}");
    }

    #[test]
    fn wrong_field_count_is_named(
        (entries, which, field) in entries().prop_flat_map(|e| { let n = e.len(); (Just(e), 0..n, 0..3usize) }),
        order in 0..6usize,
        how in 0..3u8,
    ) {
        let mut rows: Vec<_> = entries.iter().map(|entry| text(entry, order)).collect();
        let name = rows[which][field].split('"').nth(1).unwrap().to_owned();
        let expected = match how {
            0 => { rows[which].remove(field); format!("missing field `{name}`") }
            1 => { rows[which].insert(field, "\"uuid\": 7".to_owned()); "unknown field `uuid`".to_owned() }
            _ => { let twin = rows[which][field].clone(); rows[which].push(twin); format!("duplicate field `{name}`") }
        };
        let error = MappingTable::parse(&join(&rows)).expect_err("a wrong entry");
        is_a_refusal(&error)?;
        prop_assert!(error.to_string().contains(&format!("entry {which}: {expected}")), "{expected} in entry {which}: {error}");
    }

    #[test]
    fn two_entries_of_one_card_are_named(
        (entries, which) in entries().prop_flat_map(|e| { let n = e.len(); (Just(e), 0..n) }),
        field in 0..3usize,
    ) {
        let mut rows: Vec<_> = entries.iter().map(|entry| text(entry, 0)).collect();
        let free = |taken: &dyn Fn(u32) -> bool| (0..).find(|n| !taken(*n)).unwrap();
        let fresh = MappingEntry {
            index: free(&|n| entries.iter().any(|entry| entry.index == n)),
            module_id: free(&|n| entries.iter().any(|entry| entry.module_id == n)),
            bus: (0..=u8::MAX)
                .map(|bus| PciAddress { domain: 1, bus, device: 1, function: 1 })
                .find(|bus| entries.iter().all(|entry| entry.bus != *bus))
                .unwrap(),
        };
        let mut twin = text(&fresh, 0);
        twin[field] = rows[which][field].clone();
        rows.push(twin);
        let name = ["index", "module_id", "bus_id"][field];
        let error = MappingTable::parse(&join(&rows)).expect_err("a card that stands twice");
        is_a_refusal(&error)?;
        let expected = format!("entry {}: its {name} is that of entry {which}", entries.len());
        prop_assert!(error.to_string().contains(&expected), "{expected}: {error}");
    }

    #[test]
    fn mutated_table_parses_or_fails(
        entries in entries(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let rows: Vec<_> = entries.iter().map(|entry| text(entry, 0)).collect();
        let mut bytes = join(&rows).into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.drain(at..=at)),
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        takes_or_refuses(bytes)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        takes_or_refuses(bytes)?;
    }

    #[test]
    fn any_json_like_text_parses_or_fails(text in r#"[\[\]{}":,0-9a-f. \\-]{0,120}"#) {
        takes_or_refuses(text.into_bytes())?;
    }
}

/// As the environment gives it: bytes that need not be text.
fn takes_or_refuses(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let is_text = std::str::from_utf8(&bytes).is_ok();
    let environment = Environment {
        device: None,
        mapping_table: Some(OsString::from_vec(bytes)),
        ..Environment::default()
    };
    match environment.table() {
        Ok(table) => {
            let table = table.expect("the variable is set");
            prop_assert!(!table.entries().is_empty());
            prop_assert_eq!(MappingTable::parse(&table.to_string()).ok(), Some(table));
        }
        Err(error) if is_text => is_a_refusal(&error)?,
        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidInput),
    }
    Ok(())
}
