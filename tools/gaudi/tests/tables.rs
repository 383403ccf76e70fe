//! Tables in the width of a terminal: golden files at 80 and 160 columns, in `golden/80` and
//! `golden/160`; 100 is checked by rule.
//!
//! To write the golden files anew, set `SNAPSHOTS=overwrite` and read the difference.

mod program;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::LazyLock;

use program::{buffers, gaudi, text};
use regex::Regex;
use snapbox::{Assert, Data};

/// Figures that differ from run to run, as the header of their column names them.
const FIGURES: [&str; 11] = [
    "time[ms]",
    "median[µs]",
    "GB/s",
    "×memcpy",
    "min[µs]",
    "p99[µs]",
    "max[µs]",
    "op/s",
    "CPU[%]",
    "peer[%]",
    "share[%]",
];

/// Replaces what differs from run to run and from machine to machine. A column of such figures is
/// then as wide as its header; every other column keeps its place in its table.
fn masked(text: &str) -> String {
    let parts: Vec<String> = text.split("\n\n").map(masked_table).collect();
    masked_words(&parts.join("\n\n"))
}

/// What differs from run to run outside the columns of figures, and its mask.
static WORDS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let words = [
        (r"inode \d+", "inode [INODE]"),
        (r"key 0x[0-9a-f]+", "key [KEY]"),
        (r"\d+ MiB", "[MEMORY]"),
        // Whether the machine has /dev/udmabuf; the longer one may be wrapped.
        (r"memfd stand-in \(no\s+dma-buf\)|\budmabuf\b", "[EXPORTER]"),
        (r"in \d+\.\d+ ms", "in [TIME] ms"),
        (r"\b\d+\.\d s\b", "[TIME] s"),
        (r"\d+ skipped", "[CASES] skipped"),
        (r"(?m)^kernel +.*", "kernel      [KERNEL]"),
        (r"(?m)^driver +.*", "driver      [DRIVER]"),
    ];
    let compiled = words.map(|(pattern, mask)| (Regex::new(pattern).expect("a pattern"), mask));
    compiled.into()
});

fn masked_words(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (pattern, mask)| {
        pattern.replace_all(&text, *mask).into_owned()
    })
}

/// Replaces the figures of the table in `part`, if there is one.
fn masked_table(part: &str) -> String {
    let lines: Vec<&str> = part.lines().collect();
    let is_head = |line: &&str| {
        line.split_whitespace()
            .any(|word| FIGURES.contains(&word) || word == "node")
    };
    let Some(head) = lines.iter().position(is_head) else {
        return part.to_owned();
    };
    let end = lines.iter().position(|line| line.starts_with("hidden for"));
    let end = end.unwrap_or(lines.len());
    let (before, table, after) = (&lines[..head], &lines[head..end], &lines[end..]);
    let table: Vec<Vec<String>> = cells(table);
    let names: Vec<&String> = table[0].iter().collect();
    let mut drawn = vec![String::new(); table.len()];
    for (column, name) in names.iter().enumerate() {
        let is_figure = FIGURES.contains(&name.trim());
        let cells: Vec<String> = table
            .iter()
            .enumerate()
            .map(|(row, cells)| match is_figure && row > 0 {
                true => "#".to_owned(),
                false => masked_words(&cells[column]),
            })
            .collect();
        // A number is aligned to the right: its cell in the table begins with blanks.
        let is_right = is_figure
            || table.iter().any(|row| {
                let cell = &row[column];
                cell.starts_with(' ') && !cell.ends_with(' ')
            });
        let width = cells.iter().map(|cell| cell.trim().chars().count()).max();
        let width = width.unwrap_or(0);
        for (line, cell) in drawn.iter_mut().zip(cells) {
            let cell = cell.trim();
            line.push_str(&match is_right {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            });
        }
    }
    let lines = before.iter().map(|line| (*line).to_owned());
    let lines = lines.chain(drawn.iter().map(|line| line.trim_end().to_owned()));
    let mut text = lines
        .chain(after.iter().map(|line| (*line).to_owned()))
        .collect::<Vec<_>>()
        .join("\n");
    if part.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// The cells of a table: between two columns every line has two blanks.
fn cells(lines: &[&str]) -> Vec<Vec<String>> {
    let lines: Vec<Vec<char>> = lines.iter().map(|line| line.chars().collect()).collect();
    let width = lines.iter().map(Vec::len).max().unwrap_or(0);
    let is_blank = |at: usize| lines.iter().all(|line| line.get(at).is_none_or(|c| *c == ' '));
    let mut columns = Vec::new();
    let mut start = 0;
    while start < width {
        let end = (start..width).find(|&at| is_blank(at) && (at + 1 >= width || is_blank(at + 1)));
        let end = end.unwrap_or(width);
        columns.push(start..end);
        start = (end..width).find(|&at| !is_blank(at)).unwrap_or(width);
    }
    let cell = |line: &Vec<char>, range: &std::ops::Range<usize>| {
        let chars = range.clone().map(|at| line.get(at).copied().unwrap_or(' '));
        chars.collect::<String>()
    };
    let row = |line| columns.iter().map(|range| cell(line, range)).collect();
    lines.iter().map(row).collect()
}

/// The standard output of one run in so many columns.
type Printed<'a> = &'a dyn Fn(Option<&str>) -> String;

fn printed(arguments: &[&str], columns: Option<&str>) -> String {
    let mut command = gaudi(arguments);
    command.envs(columns.map(|columns| ("COLUMNS", columns)));
    text(&command.output().expect("the program starts").stdout)
}

/// Checks the output of a command that prints the same in every run.
fn check(name: &str, arguments: &[&str]) {
    check_printed(name, str::to_owned, &|columns| printed(arguments, columns));
}

/// Checks the output of a command that prints figures of its run.
fn check_masked(name: &str, arguments: &[&str]) {
    check_printed(name, masked, &|columns| printed(arguments, columns));
}

/// Whether one is legible: no line is too wide, and no word or number is in pieces.
fn check_printed(name: &str, mask: fn(&str) -> String, printed: Printed<'_>) {
    let wide = mask(&printed(None));
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
        let narrow = mask(&narrow);
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
fn masks_keep_the_other_columns() {
    let table = "what\n\n\
                 copy  time[ms]  by\n\
                 a →b  15963.49  x\n\
                 c         0.10  yy\n\
                 hidden for lack of width: n\n";
    let expected = "what\n\n\
                    copy  time[ms]  by\n\
                    a →b         #  x\n\
                    c            #  yy\n\
                    hidden for lack of width: n\n";
    assert_eq!(masked(table), expected);
    assert_eq!(masked(&table.replace("15963.49", "  123.40")), expected);
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

#[test]
fn bare_call_fits_the_terminal() {
    check_printed("bare", str::to_owned, &|columns| {
        let mut command = gaudi(&[]);
        command.env("GAUDI_DEVICE", "mock:gaudi2?name=bare");
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        text(&command.output().expect("the program starts").stdout)
    });
}

#[test]
fn copy_tables_fit_the_terminal() {
    check_masked("copy", &["copy", "-d", "mock:gaudi2", "--size", "1025KiB"]);
    let measured = [
        "perf",
        "copy",
        "-d",
        "mock:gaudi2",
        "--sizes",
        "1,5MiB",
        "--iterations",
        "10",
    ];
    check_masked("perf-copy", &measured);
}

/// Few operations, and a size with grouped digits.
const FEW: [&str; 6] = ["-n", "40", "--warm-up", "5", "-s", "8,65000"];

#[test]
fn perf_tables_fit_the_terminal() {
    for (name, arguments) in [
        ("perf-write", &["perf", "write"][..]),
        ("perf-read", &["perf", "read", "--memory", "device"]),
        ("perf-send", &["perf", "send", "--bidirectional", "--qps", "2"]),
        (
            "perf-staged",
            &["perf", "write", "--memory", "device", "--dmabuf", "never"],
        ),
    ] {
        check_masked(name, &[arguments, &FEW].concat());
    }
    check_masked("perf-atomic", &["perf", "atomic", "-n", "40", "--warm-up", "5"]);
}

#[test]
fn perf_tables_of_both_ends_fit() {
    let both = |columns: Option<&str>| {
        let columns = columns.map(|columns| ("COLUMNS", columns));
        let mut server = gaudi(&["perf", "write", "--listen", "127.0.0.1:0"]);
        let mut server = server
            .envs(columns)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut notes = BufReader::new(server.stderr.take().expect("standard error"));
        let mut line = String::new();
        notes.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("waiting at ").expect("its address");
        let connect = ["perf", "write", "--connect", address];
        let mut client = gaudi(&[&connect[..], &FEW].concat());
        let client = client.envs(columns).output().expect("the program starts");
        let server = server.wait_with_output().expect("it ends");
        assert!(client.status.success(), "{}", text(&client.stderr));
        [text(&client.stdout), text(&server.stdout)]
    };
    for (end, name) in ["perf-connect", "perf-listen"].iter().enumerate() {
        check_printed(name, masked, &|columns| both(columns)[end].clone());
    }
}

#[test]
fn demo_tables_fit_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("photo.jpg");
    std::fs::write(&file, vec![7; 1_000_000]).unwrap();
    check_printed("demo", masked, &|columns| {
        let mut command = gaudi(&["demo", "--file", "photo.jpg"]);
        command.current_dir(folder.path());
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        text(&command.output().expect("the program starts").stdout)
    });
}

#[test]
fn doctor_pair_fits_the_terminal() {
    check_masked(
        "doctor-pair",
        &["doctor", "--nic", "softnic", "-d", "mock:gaudi2"],
    );
}

#[test]
fn check_fits_the_terminal() {
    let skipping = ["check", "-d", "mock:gaudi2", "--timeout", "0.001"];
    check_printed("check", masked, &|columns| {
        let printed = printed(&skipping, columns);
        // Which cases there are is no matter of the layout.
        let from = printed.find("device  ").unwrap_or(0);
        // The first case may end within the millisecond.
        printed[from..].replacen("\n1 passed", "\n0 passed", 1)
    });
    let every = printed(&[&skipping[..], &["--cases"]].concat(), Some("80"));
    assert!(every.lines().count() > 100, "{every}");
    for line in every.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
