//! Captures as text, and their decoded forms: `SNAPSHOTS=overwrite` updates the files.

mod session;
mod table;

use std::collections::HashSet;

use gaudi_capture::Limits;
use gaudi_capture::decode::{Decoder, json_header};
use gaudi_capture::record::Event;
use gaudi_capture::text::{self, EventText};
use gaudi_capture::value::{Fields, Value};
use gaudi_uapi::view::{CALLS, OTHERS, Part, Pointee, Shape};
use gaudi_uapi::{CStruct, CType, Ioctl, Names};
use snapbox::{Assert, Data, file};

fn assert_file(actual: String, expected: Data) {
    let assert = Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
    assert.eq(actual, expected.raw());
}

fn events_of(text: &str) -> Vec<Event> {
    let reader = text::Reader::new(text.as_bytes()).unwrap();
    reader
        .map(|event| event.unwrap_or_else(|error| panic!("{error}")))
        .collect()
}

fn lines(events: &[Event], limits: Limits) -> String {
    let mut decoder = Decoder::new(limits);
    events
        .iter()
        .map(|event| format!("{}\n", decoder.decode(event)))
        .collect()
}

fn json(events: &[Event]) -> String {
    let mut decoder = Decoder::new(Limits::LINE);
    let header = json_header(&[]).to_string() + "\n";
    let lines = events
        .iter()
        .map(|event| decoder.decode(event).to_json().to_string() + "\n");
    header + &lines.collect::<String>()
}

const SESSION: &str = include_str!("fixtures/session.txt");
const TABLE: &str = include_str!("fixtures/table.txt");

#[test]
fn table_fixture_matches_the_tables() {
    let lines = table::capture()
        .iter()
        .map(|event| EventText(event).to_string())
        .collect::<String>();
    assert_file(text::head(&[]).to_string() + &lines, file!["fixtures/table.txt"]);
}

#[test]
fn session_fixture_matches_its_events() {
    let lines = session::capture()
        .iter()
        .map(|event| EventText(event).to_string())
        .collect::<String>();
    assert_file(
        text::head(&[]).to_string() + &lines,
        file!["fixtures/session.txt"],
    );
}

#[test]
fn captures_decode_to_their_lines() {
    let table = events_of(TABLE);
    assert_file(lines(&table, Limits::LINE), file!["fixtures/table.lines"]);
    let session = events_of(SESSION);
    assert_file(lines(&session, Limits::LINE), file!["fixtures/session.lines"]);
}

#[test]
fn captures_decode_to_their_json() {
    assert_file(json(&events_of(TABLE)), file!["fixtures/table.jsonl"]);
    assert_file(json(&events_of(SESSION)), file!["fixtures/session.jsonl"]);
}

/// Collects names in decoded fields: (call, field, name).
fn collect(call: &str, fields: &Fields, seen: &mut HashSet<(String, &'static str, String)>) {
    for field in &fields.0 {
        collect_value(call, field.name, &field.value, seen);
    }
}

fn collect_value(
    call: &str,
    name: &'static str,
    value: &Value,
    seen: &mut HashSet<(String, &'static str, String)>,
) {
    match value {
        Value::Name(names) => {
            for part in names.split('|') {
                seen.insert((call.to_owned(), name, part.to_owned()));
            }
        }
        Value::Struct(fields) => collect(call, fields, seen),
        Value::List { items, .. } => items
            .iter()
            .for_each(|item| collect_value(call, name, item, seen)),
        Value::Pointer { to: Some(to), .. } => collect_value(call, name, to, seen),
        _ => {}
    }
}

/// Collects the sets of flags and operations of a struct's fields.
fn wanted(of: &'static CStruct, wants: &mut Vec<(&'static str, &'static Names)>) {
    for field in of.fields {
        if let CType::Named(names) = field.kind {
            if names.are_flags || field.name == "op" {
                let name = field.c_names.first().map_or(field.name, |(name, _)| name);
                wants.push((name.rsplit('.').next().unwrap(), names));
            }
        }
    }
}

fn wanted_of_shape(
    shape: &Shape,
    op: Option<u32>,
    output: &[Part],
    wants: &mut Vec<(&'static str, &'static Names)>,
) {
    wanted(shape.base, wants);
    for part in shape.parts.iter().chain(output) {
        wanted(part.of, wants);
    }
    for pointer in shape.pointers {
        match pointer.to {
            Pointee::Struct(of) => wanted(of, wants),
            Pointee::Structs(inner) => wanted_of_shape(inner, None, &[], wants),
            Pointee::ByOp(of) => {
                let ops = names_of_op(shape).map(|row| row.value as u32);
                for op in ops.chain(op) {
                    if let Some(Pointee::Struct(of)) = of(op) {
                        wanted(of, wants);
                    }
                }
            }
            _ => {}
        }
    }
}

fn names_of_op(shape: &Shape) -> impl Iterator<Item = &'static gaudi_uapi::Named> {
    let names = table::names_of(shape.base, "op");
    names.into_iter().flat_map(|names| names.rows)
}

#[test]
fn every_operation_and_flag_is_decoded() {
    let mut seen = HashSet::new();
    let mut calls = HashSet::new();
    for capture in [TABLE, SESSION] {
        let mut decoder = Decoder::new(Limits::ALL);
        for event in events_of(capture) {
            let decoded = decoder.decode(&event);
            collect(&decoded.call, &decoded.request, &mut seen);
            collect(&decoded.call, &decoded.answer, &mut seen);
            calls.insert(decoded.call);
        }
    }
    let mut missing = Vec::new();
    let mut check = |call: &str, wants: Vec<(&'static str, &'static Names)>| {
        for (field, names) in wants {
            for row in names.rows {
                let short = row.c_name.strip_prefix(names.prefix).unwrap_or(row.c_name);
                if !seen.contains(&(call.to_owned(), field, short.to_owned())) {
                    missing.push(format!("{call} {field}={short}"));
                }
            }
        }
    };
    for row in CALLS {
        let call = format!("HL_IOCTL_{}", row.ioctl);
        let mut wants = Vec::new();
        wanted_of_shape(&row.input, row.op, row.output, &mut wants);
        check(&call, wants);
    }
    for other in OTHERS {
        let mut wants = Vec::new();
        wanted_of_shape(&other.input, None, other.output, &mut wants);
        check(other.name, wants);
        assert!(calls.contains(other.name), "no capture contains {}", other.name);
    }
    for ioctl in Ioctl::ALL {
        assert!(
            calls.contains(&format!("HL_IOCTL_{ioctl}")),
            "no capture contains {ioctl}"
        );
    }
    missing.sort();
    missing.dedup();
    assert!(missing.is_empty(), "no capture contains {missing:#?}");
}
