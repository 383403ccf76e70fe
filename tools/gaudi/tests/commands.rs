//! Commands and options beyond the first: measuring, layers around devices, the mapping table, and
//! every example of every help.

mod program;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use program::{gaudi, run, settled, text};
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

fn compare(text: String, golden: snapbox::Data) {
    snapbox::Assert::new()
        .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
        .eq(text, golden);
}

const PERF: [&str; 9] = [
    "perf",
    "copy",
    "-d",
    "mock:gaudi2",
    "--sizes",
    "4KiB,1MiB",
    "--iterations",
    "10",
    "--quiet",
];

#[test]
fn perf_copy_measures_every_direction_and_memcpy() {
    let output = run(&PERF);
    assert!(output.status.success(), "{}", text(&output.stderr));
    compare(
        settled(&text(&output.stdout)),
        snapbox::file!["golden/perf-copy.txt"],
    );
}

#[test]
fn perf_copy_reports_its_method() {
    let report = json(&[&PERF[..], &["--json"]].concat());
    assert_eq!(
        (
            &report["schema"],
            &report["backend"],
            &report["clock"],
            &report["warm_up"]
        ),
        (
            &"gaudi.perf_copy".into(),
            &"mock".into(),
            &"CLOCK_MONOTONIC".into(),
            &3.into()
        )
    );
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "memcpy and three directions, two sizes");
    for row in rows {
        let time = |key: &str| row[key].as_u64().expect("a time");
        assert!(
            time("min_ns") <= time("median_ns")
                && time("median_ns") <= time("p99_ns")
                && time("p99_ns") <= time("max_ns"),
            "{row}"
        );
        assert_eq!((&row["n"], &row["verified"]), (&10.into(), &true.into()), "{row}");
        let memcpy = row["backend"] == "memcpy";
        assert!(
            memcpy || row["backend"] == "mock",
            "no row passes for hardware's: {row}"
        );
        assert_eq!(row["lin_dma_packets"], u64::from(!memcpy), "{row}");
    }
    let one = json(&[
        "perf",
        "copy",
        "-d",
        "mock",
        "device",
        "host",
        "--sizes",
        "1",
        "--iterations",
        "1",
        "--warm-up",
        "0",
        "--json",
    ]);
    assert_eq!(one["rows"].as_array().map(Vec::len), Some(2));
    for wrong in [
        &["--sizes", "0"][..],
        &["--sizes", "x"],
        &["--iterations", "0"],
        &["-d", "mock"],
    ] {
        let output = run(&[&["perf", "copy", "-d", "mock"], wrong].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn missing_huge_pages_are_not_claimed() {
    let arguments = [
        "perf",
        "copy",
        "-d",
        "mock",
        "--sizes",
        "1MiB",
        "--iterations",
        "1",
        "--pages",
        "1GiB",
    ];
    let output = run(&[&arguments[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let got = report["host_pages"].as_str().expect("reported");
    let noted = text(&output.stderr).contains("smaller ones");
    assert_eq!(
        noted,
        got != "huge pages of 1 GiB",
        "{got}: {}",
        text(&output.stderr)
    );
}

#[test]
fn every_command_can_be_traced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.jsonl");
    let path = file.to_str().expect("UTF-8");
    let commands: [&[&str]; 5] = [
        &["list", "-d", "mock"],
        &["info", "-d", "mock"],
        &["copy", "-d", "mock", "--size", "4KiB"],
        &[
            "perf",
            "copy",
            "-d",
            "mock",
            "--sizes",
            "4KiB",
            "--iterations",
            "1",
        ],
        &["demo", "--file", "Cargo.toml"],
    ];
    for command in commands {
        let _ = std::fs::remove_file(&file);
        let output = run(&[command, &["--trace", path]].concat());
        assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
        let trace = std::fs::read_to_string(&file).expect("a trace");
        let lines: Vec<Value> = trace
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines[0]["schema"], "gaudi.trace", "{command:?}");
        assert!(
            lines.iter().any(|line| line["call"] == "info"),
            "{command:?}: {trace}"
        );
    }
    let other = folder.path().join("trace.jsonl.node-b");
    assert!(other.exists(), "node B of the demo writes its own");
}

#[test]
fn seeded_fault_plan_repeats_its_failure() {
    let copy = ["copy", "-d", "mock", "--size", "4KiB"];
    let output = run(&[&copy[..], &["--fault", "submit:when=1:error=EIO"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let output = run(&[&copy[..], &["--fault", "wait_cs:when=1:reset"]].concat());
    assert_eq!(
        output.status.code(),
        Some(5),
        "a reset is one: {}",
        text(&output.stderr)
    );
    let ends = |seed: &str| -> Vec<Option<i32>> {
        let plan = ["--fault", "submit:p=8:error=EIO", "--seed", seed];
        (0..2)
            .map(|_| run(&[&copy[..], &plan].concat()).status.code())
            .collect()
    };
    let all: Vec<_> = (0..8).map(|seed| ends(&seed.to_string())).collect();
    assert!(
        all.iter().all(|two| two[0] == two[1]),
        "the same seed, the same end: {all:?}"
    );
    assert!(
        all.iter().any(|two| two[0] == Some(0)),
        "some go through: {all:?}"
    );
    assert!(all.iter().any(|two| two[0] == Some(1)), "some do not: {all:?}");
}

#[test]
fn empty_plan_is_usage_error() {
    for (arguments, whose) in [
        (
            &["info", "-d", "mock", "--fault", "submit:when=x"][..],
            "--fault: ",
        ),
        (
            &["info", "-d", "mock", "--fault", "submit", "--seed", "3"],
            "--fault: ",
        ),
        (
            &["copy", "-d", "mock:gaudi2+fault=sub:lose"],
            "the device mock:gaudi2+fault=sub:lose: ",
        ),
        // No device is asked whether it is there.
        (
            &["info", "-d", "kernel:250", "--fault", "submit:lose:lose"],
            "--fault: ",
        ),
    ] {
        let output = run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with(&format!("error: {whose}")),
            "{arguments:?}: {stderr}"
        );
        assert!(stderr.contains("  help: "), "what a plan looks like: {stderr}");
    }
}

#[test]
fn faults_on_hardware_need_confirmation() {
    let plan = ["--fault", "submit:when=1:error=EIO"];
    for command in ["info", "copy"] {
        let output = run(&[&[command, "-d", "kernel:250"], &plan[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("--on-hardware"));
        let output = run(&[&[command, "-d", "kernel:250", "--on-hardware"], &plan[..]].concat());
        assert_eq!(
            output.status.code(),
            Some(3),
            "then it is looked for: {}",
            text(&output.stderr)
        );
    }
    let output = run(&["info", "-d", "kernel:250+fault=submit:lose"]);
    assert_eq!(output.status.code(), Some(2), "in the spec too");
}

#[test]
fn active_mapping_table_can_be_reused() {
    let table =
        r#"[{"index":1,"module_id":2,"bus_id":"0000:1a:00.0"},{"index":0,"module_id":7,"bus_id":"19:00.0"}]"#;
    let wanted = r#"[{"index":0,"module_id":7,"bus_id":"0000:19:00.0"},{"index":1,"module_id":2,"bus_id":"0000:1a:00.0"}]"#;
    let print = |table: &str, arguments: &[&str]| {
        let all = [&["list", "--mapping-table"], arguments].concat();
        gaudi(&all)
            .env("GAUDI_MAPPING_TABLE", table)
            .output()
            .expect("it starts")
    };
    let output = print(table, &[]);
    assert_eq!(
        text(&output.stdout),
        format!("{wanted}\n"),
        "sorted, and whole bus ids"
    );
    let again = print(text(&output.stdout).trim(), &[]);
    assert_eq!(again.stdout, output.stdout, "what is printed can be set");
    let document: Value = serde_json::from_slice(&print(table, &["--json"]).stdout).expect("a document");
    assert_eq!(
        (&document["schema"], &document["source"]),
        (&"gaudi.mapping_table".into(), &"environment".into())
    );
    assert_eq!(
        print("[{}]", &[]).status.code(),
        Some(2),
        "a wrong table is usage"
    );
    let none = run(&["list", "--mapping-table"]);
    assert!(
        none.status.success() || none.status.code() == Some(3),
        "with no device there is none: {}",
        text(&none.stderr)
    );
}

#[test]
fn list_can_be_watched() {
    let mut child = gaudi(&["list", "-d", "mock", "--json", "--loop=0.001"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = String::new();
    let mut reader = std::io::BufReader::new(child.stdout.take().expect("piped"));
    for _ in 0..3 {
        std::io::BufRead::read_line(&mut reader, &mut lines).expect("a line");
    }
    drop(reader);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(lines.lines().count(), 3, "a document a line");
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..]),
        "a reader that goes away ends it quietly"
    );
}

#[test]
fn unwritable_help_is_a_failure() {
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["help", "copy"],
        &["demo", "--help"],
    ] {
        let to = |file: Stdio| {
            let mut command = gaudi(arguments);
            command.stdout(file).stderr(Stdio::null());
            command.status().expect("it starts").code()
        };
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("there");
        assert_eq!(to(full.into()), Some(1), "{arguments:?} to a full disk");
        assert_eq!(to(Stdio::null()), Some(0), "{arguments:?}");
    }
}

#[test]
fn colour_needs_terminal_or_option() {
    let coloured = |arguments: &[&str], variable: Option<&str>| {
        let mut command = gaudi(arguments);
        if let Some(name) = variable {
            command.env(name, "1");
        }
        text(&command.output().expect("it starts").stdout).contains('\u{1b}')
    };
    let list = ["list", "-d", "mock"];
    assert!(!coloured(&list, None), "a pipe gets none");
    assert!(coloured(&[&list[..], &["--color", "always"]].concat(), None));
    assert!(coloured(&list, Some("CLICOLOR_FORCE")));
    assert!(!coloured(
        &[&list[..], &["--color", "never"]].concat(),
        Some("CLICOLOR_FORCE")
    ));
    assert!(
        !coloured(&[&list[..], &["--json", "--color", "always"]].concat(), None),
        "a document never"
    );
    for help in [&["--help"][..], &["copy", "--help"]] {
        assert!(!coloured(help, None), "help into a pipe gets none");
        assert!(
            coloured(&[&["--color", "always"], help].concat(), None),
            "{help:?}"
        );
        assert!(coloured(&[help, &["--color=always"]].concat(), None), "{help:?}");
        assert!(
            !coloured(&[help, &["--color", "never"]].concat(), Some("CLICOLOR_FORCE")),
            "{help:?}"
        );
    }
    let wrong = run(&["--no-such-thing", "--color", "always"]);
    assert!(
        text(&wrong.stderr).contains('\u{1b}'),
        "what is wrong with a command line, too"
    );
    let root = tempfile::tempdir().expect("a folder");
    let doctor = [
        "doctor",
        "--root",
        root.path().to_str().expect("UTF-8"),
        "--color",
        "always",
    ];
    assert!(
        text(&run(&doctor).stdout).contains("\u{1b}[33mwarn"),
        "doubts are yellow"
    );
}

/// Every key of a document with the kind of its value, so that a change of a document's form is
/// seen.
fn keys(value: &Value, path: &str, into: &mut Vec<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(all) => {
            if let Some(first) = all.first() {
                keys(first, &format!("{path}[]"), into);
            }
            return;
        }
        Value::Object(fields) => {
            // The order of fields is not part of a document's form.
            for (name, value) in fields.iter().collect::<BTreeMap<_, _>>() {
                keys(value, &format!("{path}.{name}"), into);
            }
            return;
        }
    };
    into.push(format!("{path}: {kind}"));
}

#[test]
fn documents_keep_their_form() {
    let mut all = String::new();
    let perf = [&PERF[..], &["--json"]].concat();
    let documents: [(&[&str], Option<i32>); 6] = [
        (&["list", "-d", "mock:gaudi2", "--json"], Some(0)),
        (&["info", "-d", "mock:gaudi2", "--json"], Some(0)),
        (&["copy", "-d", "mock:gaudi2", "--size", "1", "--json"], Some(0)),
        (&perf, Some(0)),
        (&["demo", "--json"], Some(0)),
        (&["info", "-d", "kernel:250", "--json"], Some(3)),
    ];
    for (arguments, code) in documents {
        let output = run(arguments);
        assert_eq!(output.status.code(), code, "{arguments:?}");
        let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
        let schema = document["schema"].as_str().expect("a schema").to_owned();
        assert_eq!(document["version"], 1, "{schema}");
        let mut lines = Vec::new();
        keys(&document, "", &mut lines);
        all += &format!("{schema}\n");
        for line in lines {
            all += &format!("  {line}\n");
        }
    }
    compare(all, snapbox::file!["golden/documents.txt"]);
}

/// The lines of a help's examples, as a shell takes them.
fn examples(arguments: &[&str]) -> Vec<String> {
    let help = text(&run(&[arguments, &["--help"]].concat()).stdout);
    let (_, examples) = help
        .split_once("Examples:\n")
        .unwrap_or_else(|| panic!("{arguments:?} has examples: {help}"));
    examples.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn every_help_has_two_working_examples() {
    let commands: [&[&str]; 11] = [
        &[],
        &["list"],
        &["info"],
        &["copy"],
        &["perf", "copy"],
        &["perf", "write"],
        &["nics"],
        &["demo"],
        &["doctor"],
        &["completions"],
        &["man"],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new(env!("CARGO_BIN_EXE_gaudi"));
    let path = format!(
        "{}:{}",
        program.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    std::fs::write(folder.path().join("photo.jpg"), [7; 100_000]).expect("written");
    for inside in [
        ".local/share/bash-completion/completions",
        ".local/share/man/man1",
    ] {
        std::fs::create_dir_all(folder.path().join(inside)).expect("made");
    }
    for command in commands {
        let examples = examples(command);
        assert_eq!(examples.len(), 2, "{command:?}: {examples:?}");
        for example in examples {
            let output = Command::new("sh")
                .args(["-c", &example])
                .current_dir(folder.path())
                .env("PATH", &path)
                .env("HOME", folder.path())
                .env_remove("GAUDI_DEVICE")
                .env_remove("GAUDI_MAPPING_TABLE")
                .output()
                .expect("a shell");
            // A machine may fail its check-up; nothing else may fail.
            let expected =
                output.status.success() || (command == ["doctor"] && output.status.code() == Some(1));
            assert!(expected, "{example}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn demo_rejects_output_equal_to_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine");
    std::fs::write(&file, "precious").unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("mine", &link).unwrap();
    let name = file.to_str().unwrap();
    for (option, path) in [("--output", &file), ("--trace", &file), ("--output", &link)] {
        let output = run(&["demo", "--file", name, option, path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(
            text(&output.stderr).contains("are one file"),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{option}");
    }
}

#[test]
fn failed_run_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("before.json");
    std::fs::write(&file, "before").unwrap();
    let name = file.to_str().unwrap();
    assert!(
        !run(&["info", "-d", "mock:nope", "--output", name])
            .status
            .success()
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"before");
    assert!(
        run(&["list", "-d", "mock", "--json", "--output", name])
            .status
            .success()
    );
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["schema"], "gaudi.list");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing beside it"
    );
}

#[test]
fn plan_is_read_from_pipe() {
    let script = format!(
        "{} copy -d mock --fault <(echo submit:reset)",
        env!("CARGO_BIN_EXE_gaudi")
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(
        !output.status.success(),
        "the fault strikes: {}",
        text(&output.stdout)
    );
    let output = run(&["copy", "-d", "mock", "--fault", "# nothing"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("no rule"));
}

#[test]
fn unwritable_log_does_not_stop_the_command() {
    let script = format!(
        "{} copy -d mock --fault submit:reset 2>/dev/full",
        env!("CARGO_BIN_EXE_gaudi")
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "as without the closed log");
}

#[test]
fn layers_wrap_every_measured_device() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    let small = [
        "perf",
        "write",
        "--sizes",
        "8",
        "--iterations",
        "4",
        "--warm-up",
        "0",
    ];
    let device = [&small[..], &["--memory", "device", "--trace", trace]].concat();
    assert!(run(&device).status.success());
    for file in [trace.to_owned(), format!("{trace}.peer")] {
        let lines = std::fs::read_to_string(&file).expect("both have one");
        assert!(lines.contains("mem_alloc"), "{file}");
    }
    let fails = run(&[
        &small[..],
        &["--memory", "device", "--fault", "mem_alloc:error=ENOMEM"],
    ]
    .concat());
    assert!(!fails.status.success());
    let host = run(&[&small[..], &["--trace", trace]].concat());
    assert_eq!(host.status.code(), Some(2), "host memory has no device");
    for words in [
        &["nics", "-d", "mock"][..],
        &["completions", "bash", "-d", "mock"],
    ] {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn copy_longer_than_its_timeout_fails() {
    for command in [
        &[
            "copy",
            "-d",
            "mock",
            "host",
            "device",
            "--size",
            "256MiB",
            "--timeout",
            "0.001",
        ][..],
        &[
            "perf",
            "copy",
            "-d",
            "mock",
            "--sizes",
            "256MiB",
            "--timeout",
            "0.001",
        ],
    ] {
        let output = run(command);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{command:?}: {error}");
        assert!(error.contains("at most 0.001 s (--timeout)"), "{error}");
    }
}

#[test]
fn copy_larger_than_the_device_is_usage() {
    for (arguments, what) in [
        (
            &["--size", "18446744073709551615"][..],
            "--size: 18446744073709551615 bytes do not fit the device's memory",
        ),
        (
            &["--size", "1m", "--to-offset", "18446744073709551615"],
            "--size with --to-offset: 18446744073710600191 bytes do not fit",
        ),
        (
            &["--size", "95.5GiB"],
            "do not fit the device's memory of 102273908736 bytes",
        ),
    ] {
        let output = run(&[&["copy", "-d", "mock"], arguments].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
}
