//! What no package ships, against the committed tables of facts.

use std::collections::BTreeMap;

use gaudi_abi::{facts, gaudi3_constants, gaudi3_layouts};
use gaudi_uapi::{Era, Ioctl, Node, NodeKind};

const GAUDI3: &str = include_str!("../facts/gaudi3.tsv");
const ACCEL_H: &str = include_str!("../facts/accel-h.tsv");

/// The table as a map: name to numbers.
fn table_map(table: &str) -> BTreeMap<String, Vec<u64>> {
    let number = |word: &String| match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => word.parse().unwrap(),
    };
    let mut all = BTreeMap::new();
    for fact in facts(table) {
        let names = if fact.kind == "field" { 2 } else { 1 };
        let (names, numbers) = fact.words.split_at(names);
        let key = format!("{} {}", fact.kind, names.join(" "));
        let twice = all.insert(key.clone(), numbers.iter().map(number).collect());
        assert_eq!(twice, None, "{key} stands in the table once");
    }
    all
}

/// The facts of gaudi-uapi, in the same form.
fn ours() -> BTreeMap<String, Vec<u64>> {
    let mut all = BTreeMap::new();
    for layout in gaudi3_layouts() {
        if let Some(size) = layout.size {
            all.insert(format!("size {}", layout.c_type), vec![size as u64]);
        }
        for field in layout.fields {
            let key = format!("field {} {}", layout.c_type, field.c_path);
            all.insert(key, vec![field.offset as u64, field.size as u64]);
        }
    }
    for named in gaudi3_constants() {
        all.insert(format!("value {}", named.c_name), vec![named.value]);
    }
    all
}

#[test]
fn gaudi3_header_matches_committed_facts() {
    let (table_map, ours) = (table_map(GAUDI3), ours());
    assert!(
        table_map.len() > 500,
        "the table has its lines: {}",
        table_map.len()
    );
    for (what, numbers) in &table_map {
        assert_eq!(ours.get(what), Some(numbers), "{what}");
    }
    for what in ours.keys() {
        assert!(
            table_map.contains_key(what),
            "{what} has no line in the table: where is it from?"
        );
    }
}

#[test]
fn nodes_before_drm_match_committed_facts() {
    let era = Era::AccelH;
    for fact in facts(ACCEL_H) {
        let words: Vec<&str> = fact.words.iter().map(String::as_str).collect();
        match (fact.kind.as_str(), words.as_slice()) {
            ("request", [name, number, bytes]) => {
                let ioctl = Ioctl::ALL
                    .into_iter()
                    .find(|ioctl| ioctl.name() == *name)
                    .expect(name);
                let ours = era.request(ioctl).map(|request| format!("{request:#x}"));
                assert_eq!(ours.as_deref(), Some(*number), "{name}");
                assert_eq!(ioctl.args_size().to_string(), *bytes, "{name}");
            }
            ("absent", [name]) => {
                let ioctl = Ioctl::ALL
                    .into_iter()
                    .find(|ioctl| ioctl.name() == *name)
                    .expect(name);
                assert_eq!(era.request(ioctl), None, "{name}");
            }
            ("place", [what, path]) => {
                let node = |kind| Node { era, kind, index: 7 }.to_string();
                let ours = match *what {
                    "compute" => node(NodeKind::Compute),
                    "control" => node(NodeKind::Control),
                    "attributes" => format!("{}/accel7/{}", era.class_dir(), era.attributes_below()),
                    other => panic!("{other} is no place"),
                };
                assert_eq!(ours, *path, "{what}");
            }
            other => panic!("{other:?} is no line of this table"),
        }
    }
}

#[test]
#[should_panic(expected = "cites its source")]
fn a_table_without_a_source_is_refused() {
    facts("size\tstruct hl_nic_args\t32\n");
}
