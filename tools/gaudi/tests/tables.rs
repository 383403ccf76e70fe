//! Tables in the width of a terminal: golden files at 80 and 160 columns, in `golden/80` and `golden/160`; 100 is checked by rule.
//!
//! To write the golden files anew, set `SNAPSHOTS=overwrite` and read the difference.

mod program;

use std::collections::BTreeSet;

use program::{buffers, gaudi, text};
use snapbox::{Assert, Data};

/// Whether one is legible: no line is too wide, and no word or number is in pieces.
fn check(name: &str, arguments: &[&str]) {
    let printed = |columns: Option<&str>| {
        let mut command = gaudi(arguments);
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        text(&command.output().expect("the program starts").stdout)
    };
    let wide = printed(None);
    assert!(!wide.is_empty(), "{name} prints something");
    let mut words: BTreeSet<&str> = wide.split_whitespace().collect();
    // A hidden column is named with a comma behind it.
    words.extend(["hidden", "for", "lack", "of", "width:"]);
    for columns in ["80", "100", "160"] {
        let narrow = printed(Some(columns));
        for line in narrow.lines() {
            let width = line.chars().count();
            assert!(
                width <= columns.parse().unwrap(),
                "{name} at {columns} has a line of {width}: {line}"
            );
        }
        for word in narrow.split_whitespace() {
            assert!(
                words.contains(word) || words.contains(word.trim_end_matches(',')),
                "{name} at {columns} has a word in pieces: {word:?} in\n{narrow}"
            );
        }
        if columns != "100" {
            let golden = format!("{}/tests/golden/{columns}/{name}.txt", env!("CARGO_MANIFEST_DIR"));
            Assert::new()
                .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
                .eq(narrow, Data::read_from(golden.as_ref(), None));
        }
    }
}

#[test]
fn device_tables_fit_the_terminal() {
    check(
        "list",
        &["list", "-d", "mock:gaudi2", "-d", "mock:gaudi2?index=1"],
    );
    check("list-error", &["list", "-d", "mock:gaudi2", "-d", "kernel:250"]);
    check("info", &["info", "-d", "mock:gaudi2"]);
}

#[test]
fn nic_tables_fit_the_terminal() {
    check("nics", &["nics", "--example"]);
    check("nics-details", &["nics", "-v", "--example"]);
}

#[test]
fn topo_tables_fit_the_terminal() {
    let tree = |name: &str| {
        format!(
            "{}/../../dmabuf/tests/reach/fixtures/{name}.tree",
            env!("CARGO_MANIFEST_DIR")
        )
    };
    check("topo", &["topo", "--example"]);
    // The path of the tree is part of the output.
    for name in ["hls2-acs", "hls2-user", "q35-switch"] {
        let arguments = ["topo", "--all", "--sysfs", &tree(name)];
        let mut command = gaudi(&arguments);
        let output = command.env("COLUMNS", "80").output().expect("the program starts");
        let lines = text(&output.stdout);
        for line in lines.lines().filter(|line| !line.contains(".tree")) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn doctor_lines_fit_the_terminal() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("sys/bus/pci/devices/0000:b3:00.0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("vendor"), "0x1da3\n").unwrap();
    check("doctor", &["doctor", "--root", root.path().to_str().unwrap()]);
    check("doctor-explain", &["doctor", "--explain", "EINVAL"]);
}

#[test]
fn dmabuf_table_fits_the_terminal() {
    let root = buffers();
    check(
        "dmabuf",
        &["dmabuf", "list", "--root", root.path().to_str().unwrap()],
    );
}
