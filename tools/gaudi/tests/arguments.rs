//! Arguments that are wrong, useless or in conflict, and what the program answers.

mod program;

use program::{gaudi, run, text};

/// Exit code and standard error of a call.
fn fails(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(arguments);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn missing_fault_file_is_named() {
    let (code, error) = fails(&["list", "-d", "mock:gaudi2", "--fault", "/nonexist"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.contains("/nonexist cannot be read: no such file"),
        "{error}"
    );
}

#[test]
fn stat_without_input_names_both() {
    let (code, error) = fails(&["stat"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.contains("gaudi stat FILE") && error.contains("gaudi stat -- CMD"),
        "{error}"
    );
}

#[test]
fn trace_to_foreign_file_is_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let letter = folder.path().join("letter");
    std::fs::write(&letter, "dear reader\n").unwrap();
    for file in [letter.to_str().unwrap(), "-", folder.path().to_str().unwrap()] {
        let (code, error) = fails(&["list", "-d", "mock:gaudi2", "--trace", file]);
        assert_eq!(code, Some(2), "{file}: {error}");
        assert!(
            error.contains("--trace") && error.contains("help:"),
            "{file}: {error}"
        );
    }
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "dear reader\n");
}

#[test]
fn unfired_fault_rule_is_reported() {
    let plan = "submit:when=900:error=EIO";
    let (code, error) = fails(&["copy", "-d", "mock:gaudi2", "--size", "4KiB", "--fault", plan]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        error.contains(&format!("the fault rule {plan} never fired: submit was called")),
        "{error}"
    );
    // In the spec as on the command line, in every command that opens a device, and with -q.
    let spec = format!("mock:gaudi2+fault={}", plan.replace('+', "%2B"));
    for command in ["list", "info"] {
        let (code, error) = fails(&[command, "-q", "-d", &spec]);
        assert_eq!(code, Some(0), "{error}");
        assert!(
            error.contains("never fired: submit was not called"),
            "{command}: {error}"
        );
    }
    let (_, error) = fails(&["copy", "-d", "mock:gaudi2", "--fault", "submit:error=EIO"]);
    assert!(!error.contains("never fired"), "{error}");
}

#[test]
fn repeated_fault_warns_once() {
    let output = gaudi(&[
        "copy",
        "-d",
        "mock:gaudi2",
        "--size",
        "64MiB",
        "--fault",
        "wait_cs:delay=1us",
    ])
    .output()
    .unwrap();
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("fault injected").count(), 1, "{log}");
}

#[test]
fn empty_capture_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for command in ["topo", "nics"] {
        let (code, error) = fails(&[command, "--sysfs", file.path().to_str().unwrap()]);
        assert_eq!(code, Some(1), "{command}: {error}");
        assert!(error.contains("is empty"), "{command}: {error}");
    }
}

#[test]
fn doctor_checks_device_argument() {
    let (code, error) = fails(&["doctor", "-d", "bogus"]);
    assert_eq!(code, Some(2), "{error}");
    let (code, error) = fails(&["doctor", "--explain", "EPERM", "-d", "mock:gaudi2"]);
    assert_eq!(code, Some(2), "{error}");
    let good = text(&run(&["doctor", "-d", "mock:gaudi2"]).stdout);
    assert!(good.contains("mock:gaudi2: HL225"), "{good}");
}

#[test]
fn no_color_wins_over_forced_color() {
    let colored = |variables: &[(&str, &str)]| {
        let mut command = gaudi(&["list", "-d", "mock:gaudi2"]);
        command.envs(variables.iter().copied());
        text(&command.output().unwrap().stdout).contains('\x1b')
    };
    assert!(colored(&[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!colored(&[]));
}

#[test]
fn bash_completes_devices_and_nics() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("gaudi.bash");
    std::fs::write(&script, run(&["completions", "bash"]).stdout).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_gaudi"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let complete = |command: &str, option: &str, begun: &str| {
        let call = format!(
            "source {}; COMP_WORDS=(gaudi {command} {option} '{begun}'); COMP_CWORD=3; _gaudi gaudi '{begun}' {option}; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = std::process::Command::new("bash")
            .args(["--norc", "-c", &call])
            .env("PATH", &path)
            .output()
            .expect("bash starts");
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(complete("info", "--device", "mock"), "mock:gaudi2");
    assert_eq!(complete("info", "-d", "mock:"), "mock:gaudi2");
    assert_eq!(complete("demo", "--nic", "soft"), "softnic");
    assert_eq!(complete("info", "--query", "temp"), "temperature.aip");
}

#[test]
fn names_are_bare_lines() {
    let nics = text(&run(&["nics", "--example", "--names"]).stdout);
    assert_eq!(nics, "mlx5_0\nmlx5_1\nmlx5_2\nmlx5_3\n");
    assert!(run(&["list", "--names"]).status.success());
    assert_eq!(run(&["list", "--names", "--json"]).status.code(), Some(2));
}

#[test]
fn help_names_every_variable() {
    let help = text(&run(&["--help"]).stdout);
    for variable in program::VARIABLES {
        assert!(help.contains(variable), "{variable} is not in the help: {help}");
    }
    let version = text(&run(&["--version"]).stdout);
    assert!(
        version.starts_with(concat!("gaudi ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

#[test]
fn verbose_levels_add_requests_and_packets() {
    let log = |level: &str| {
        let output = run(&[
            level,
            "copy",
            "-d",
            "mock:gaudi2",
            "--size",
            "4KiB",
            "host",
            "device",
        ]);
        assert!(output.status.success());
        text(&output.stderr)
    };
    let (one, two, three) = (log("-v"), log("-vv"), log("-vvv"));
    assert!(one.contains("HL_MEM_OP_ALLOC = {handle=1}"), "{one}");
    assert!(!one.contains("mem_size=4096") && !one.contains("LinDma"), "{one}");
    assert!(two.contains("HL_MEM_OP_ALLOC {mem_size=4096"), "{two}");
    assert!(!two.contains("LinDma") && three.contains("LinDma"), "{three}");
    let mut filtered = gaudi(&["list", "-d", "mock:gaudi2"]);
    filtered.env("GAUDI_LOG", "gaudi::operation=info");
    let filtered = text(&filtered.output().unwrap().stderr);
    assert!(filtered.contains("HL_INFO_HW_IP_INFO = "), "{filtered}");
    let quiet = text(&run(&["list", "-d", "mock:gaudi2"]).stderr);
    assert_eq!(quiet, "", "nothing is logged unless asked for");
    for command in ["topo", "nics", "doctor"] {
        assert!(
            text(&run(&["-vv", command]).stderr).contains("read /"),
            "{command} logs files"
        );
    }
}

#[test]
fn help_keeps_examples_whole_at_80_columns() {
    let epilog = |command: &[&str], columns: &str| {
        let mut gaudi = gaudi(&[command, &["--help"]].concat());
        let output = gaudi.env("COLUMNS", columns).output().expect("it starts");
        let help = text(&output.stdout);
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{command:?}: {line}");
        }
        let indented = help.lines().filter(|line| {
            let inside = line.strip_prefix("  ").unwrap_or("");
            // Of an epilog: an option's description is indented by more.
            inside.starts_with("gaudi ") || inside.starts_with(|c: char| c.is_ascii_uppercase())
        });
        indented.map(str::to_owned).collect::<Vec<_>>()
    };
    for command in [
        &[][..],
        &["list"],
        &["info"],
        &["copy"],
        &["perf", "copy"],
        &["perf", "write"],
        &["demo"],
        &["dmabuf", "list"],
        &["doctor"],
        &["check"],
        &["topo"],
        &["nics"],
        &["completions"],
        &["man"],
    ] {
        let narrow = epilog(command, "80");
        assert_eq!(narrow, epilog(command, "100"), "{command:?}");
        assert!(!narrow.is_empty(), "{command:?} has examples");
        for line in narrow {
            assert!(line.chars().count() <= 80, "{command:?}: {line}");
        }
    }
}

#[test]
fn unknown_csv_format_is_usage() {
    let (code, error) = fails(&["info", "-d", "mock:gaudi2", "-Q", "name", "--format", "nohead"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("noheader"), "the known ones are listed: {error}");
}

#[test]
fn nic_errors_suggest_softnic() {
    for command in [&["demo"][..], &["perf", "write"]] {
        let (code, error) = fails(&[command, &["--nic", "absent0"]].concat());
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains("--nic softnic"), "{error}");
    }
}

#[test]
fn address_of_another_machine_is_explained() {
    let (code, error) = fails(&["perf", "write", "--listen", "192.0.2.1:18515"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("an address of this machine"), "{error}");
}

#[test]
fn options_without_a_device_are_usage() {
    for command in [
        &["doctor", "--trace", "unused"][..],
        &["doctor", "--fault", "submit:lose"],
        &["perf", "write", "-d", "mock:gaudi2"],
    ] {
        let (code, error) = fails(command);
        assert_eq!(code, Some(2), "{command:?}: {error}");
        assert!(error.contains("does nothing here"), "{command:?}: {error}");
    }
}

#[test]
fn timed_out_copy_names_its_option() {
    let lost = ["--timeout", "0.1", "--fault", "submit:when=2:lose"];
    let (code, error) = fails(&[&["copy", "-d", "mock:gaudi2", "--size", "4k"][..], &lost].concat());
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains("help: allow more with --timeout"), "{error}");
}
