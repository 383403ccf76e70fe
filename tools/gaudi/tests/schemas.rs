//! Every document of `--json` fits its JSON Schema in `docs/src/reference/schema`, and every schema
//! is strict.
//!
//! The schemas use a small part of JSON Schema, and the check knows that part and nothing else: a
//! keyword that it does not know fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value};

/// What stands in a schema without saying anything of a value.
const WORDS: &[&str] = &["$schema", "title", "description"];
const KEYWORDS: &[&str] = &[
    "type",
    "const",
    "enum",
    "pattern",
    "minimum",
    "items",
    "properties",
    "required",
    "additionalProperties",
];

/// The text form of a capture.
const SESSION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../hal/capture/tests/fixtures/session.txt"
);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/schema")
}

fn schemas() -> BTreeMap<String, Value> {
    let files = std::fs::read_dir(folder()).expect("the folder of the schemas");
    files
        .map(|file| {
            let path = file.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a schema");
            let schema: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let name = schema["title"].as_str().expect("a title").to_owned();
            assert_eq!(
                path.file_stem().and_then(|stem| stem.to_str()),
                Some(name.as_str()),
                "a schema's file has its name"
            );
            (name, schema)
        })
        .collect()
}

fn object(schema: &Value) -> &Map<String, Value> {
    schema.as_object().expect("a schema is an object")
}

/// The names of a value's types, of which a schema names one or more.
fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("no such type: {other}"),
    }
}

/// What of a value does not fit.
fn misfits(value: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
    let mut wrong = |what: String| found.push(format!("{at}: {what}"));
    match &schema["type"] {
        Value::String(name) if !is_of_type(value, name) => {
            return wrong(format!("{value} is not of type {name}"));
        }
        Value::Array(names)
            if !names
                .iter()
                .any(|name| is_of_type(value, name.as_str().expect("a name"))) =>
        {
            return wrong(format!("{value} has none of the types {names:?}"));
        }
        _ => {}
    }
    if schema.get("const").is_some_and(|only| only != value) {
        wrong(format!("{value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        wrong(format!("{value} is not one of {}", schema["enum"]));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str()) {
        let pattern = regex::Regex::new(pattern).expect("a pattern");
        if !pattern.is_match(text) {
            wrong(format!("{text:?} does not match {pattern}"));
        }
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64()) {
        if number < least {
            wrong(format!("{number} is below {least}"));
        }
    }
    if let (Some(items), Some(all)) = (schema.get("items"), value.as_array()) {
        for (nth, item) in all.iter().enumerate() {
            misfits(item, items, &format!("{at}[{nth}]"), found);
        }
    }
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for name in properties.keys().filter(|name| !fields.contains_key(*name)) {
            found.push(format!("{at}: no {name}"));
        }
        for (name, field) in fields {
            match properties.get(name) {
                Some(schema) => misfits(field, schema, &format!("{at}.{name}"), found),
                None => found.push(format!("{at}: {name} is in no schema")),
            }
        }
    }
}

fn all_misfits(value: &Value, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    misfits(value, schema, "", &mut found);
    found
}

/// A schema gives the type of each value, every field of each object, and nothing that
/// the check does not look at.
fn strict(schema: &Value, at: &str) {
    let keywords = object(schema);
    for name in keywords.keys() {
        let known = KEYWORDS.contains(&name.as_str()) || WORDS.contains(&name.as_str());
        assert!(known, "{at}: the check does not know {name:?}");
    }
    assert!(
        keywords.contains_key("type") || keywords.contains_key("const"),
        "{at}: anything may stand there"
    );
    let has = |name: &str| match &schema["type"] {
        Value::Array(names) => names.iter().any(|own| own == name),
        own => own == name,
    };
    if has("array") {
        strict(&schema["items"], &format!("{at}[]"));
    }
    if has("object") {
        assert_eq!(
            schema["additionalProperties"], false,
            "{at}: other fields are refused"
        );
        let properties = object(&schema["properties"]);
        let required = schema["required"].as_array().expect("a list");
        assert!(
            properties
                .keys()
                .all(|name| required.iter().any(|own| own == name)),
            "{at}: every field is there always"
        );
        assert_eq!(
            required.len(),
            properties.len(),
            "{at}: every property is required"
        );
        for (name, field) in properties {
            strict(field, &format!("{at}.{name}"));
        }
    }
}

#[test]
fn every_schema_is_strict() {
    for (name, schema) in schemas() {
        strict(&schema, &name);
        assert_eq!(schema["properties"]["schema"]["const"], name.as_str());
        assert_eq!(schema["properties"]["version"]["const"], 1, "{name}");
    }
}

#[test]
fn every_document_fits_its_schema() {
    let table = r#"[{"index": 0, "module_id": 3, "bus_id": "0000:19:00.0"}]"#;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("small");
    std::fs::write(&file, [7; 5000]).expect("it is written");
    let small = file.to_str().expect("UTF-8");
    let schemas = schemas();
    let mut seen = BTreeMap::new();
    let commands: &[&[&str]] = &[
        &["list", "-d", "mock:gaudi2"],
        &["list", "-d", "mock:gaudi2", "-d", "kernel:250"],
        &["list", "--mapping-table"],
        &["info", "-d", "mock:gaudi2"],
        &["info", "-d", "kernel:250"],
        &["copy", "-d", "mock:gaudi2", "--size", "4097"],
        &["stat", SESSION, "--by", "thread"],
        &["diff", SESSION, SESSION],
        &["diff", SESSION, SESSION, "--op", "HL_IOCTL_MEMORY"],
        &[
            "perf",
            "copy",
            "-d",
            "mock:gaudi2",
            "--sizes",
            "4KiB",
            "--iterations",
            "3",
        ],
        &["demo", "--file", small],
        &["demo", "--file", small, "--corrupt", "nic"],
        &["dmabuf", "list"],
        &["doctor"],
        &["doctor", "--nic", "softnic", "-d", "mock:gaudi2"],
        &["doctor", "--explain", "EINVAL"],
        &["caps", "-d", "mock:gaudi2"],
        &["caps", "-c"],
        &["check", "-d", "mock:gaudi2"],
        &["faults", "run", "--cases", "64", "--seed", "1", "--jobs", "1"],
        &["faults", "replay", "1", "--case", "2"],
        &["faults", "list"],
        &["faults", "run", "--seeds", "0..2", "--json", "--", "true"],
        &["nics"],
        &["nics", "--example"],
        &[
            "perf",
            "write",
            "--sizes",
            "8",
            "--iterations",
            "20",
            "--warm-up",
            "2",
        ],
        &[
            "perf",
            "atomic",
            "--memory",
            "device",
            "--iterations",
            "20",
            "--warm-up",
            "2",
        ],
        &[
            "perf",
            "send",
            "--sizes",
            "8",
            "--duration",
            "0.05",
            "--histogram",
            "--bidirectional",
        ],
        &["topo"],
        &["topo", "--example"],
    ];
    for arguments in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_gaudi"))
            .args(*arguments)
            .arg("--json")
            .env("GAUDI_MAPPING_TABLE", table)
            .env_remove("GAUDI_DEVICE")
            .output()
            .expect("it starts");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            panic!("{arguments:?} is no document: {error}: {stderr}")
        });
        let name = document["schema"].as_str().expect("a name").to_owned();
        let schema = schemas
            .get(&name)
            .unwrap_or_else(|| panic!("{name} has no schema"));
        assert_eq!(
            all_misfits(&document, schema),
            Vec::<String>::new(),
            "{arguments:?}"
        );
        seen.insert(name, document);
    }
    let without: Vec<_> = schemas.keys().filter(|name| !seen.contains_key(*name)).collect();
    assert!(without.is_empty(), "schemas of no document: {without:?}");
    // The check can fail: at every field of every document.
    for (name, document) in &seen {
        for field in object(document).keys() {
            let mut less = document.clone();
            less.as_object_mut().expect("an object").remove(field);
            assert!(
                !all_misfits(&less, &schemas[name]).is_empty(),
                "{name} without {field}"
            );
            let mut other = document.clone();
            other[field] = serde_json::json!({"unknown": [1.5]});
            assert!(
                !all_misfits(&other, &schemas[name]).is_empty(),
                "{name} with another {field}"
            );
        }
        let mut more = document.clone();
        more["more"] = Value::Null;
        assert!(!all_misfits(&more, &schemas[name]).is_empty(), "{name} with more");
    }
}
