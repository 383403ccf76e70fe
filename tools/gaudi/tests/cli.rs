//! The command line as a user meets it: output, exit codes and next steps, against golden files.
//!
//! To write the golden files anew, set `SNAPSHOTS=overwrite` and read the difference.

mod program;

use std::io::Write as _;
use std::process::{Command as Process, Stdio};

use snapbox::cmd::Command;
use snapbox::{Assert, file};

use program::{VARIABLES, settled};

/// The program, without the variables of the caller's environment that it reads.
fn gaudi(arguments: &[&str]) -> Command {
    let assert = Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
    let mut command = Command::new(snapbox::cmd::cargo_bin!("gaudi")).with_assert(assert);
    for name in VARIABLES {
        command = command.env_remove(name);
    }
    command.args(arguments)
}

/// What a successful call prints, without what differs from run to run.
fn printed(arguments: &[&str]) -> String {
    let output = gaudi(arguments).assert().success().get_output().stdout.clone();
    settled(&String::from_utf8(output).unwrap())
}

fn compare(text: String, golden: snapbox::Data) {
    Assert::new()
        .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
        .eq(text, golden);
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = gaudi(arguments).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("standard output is one JSON document")
}

fn write_file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn help_shows_commands_exit_codes_and_examples() {
    gaudi(&["--help"])
        .assert()
        .success()
        .stdout_eq(file!["golden/help.txt"]);
    gaudi(&["demo", "--help"])
        .assert()
        .success()
        .stdout_eq(file!["golden/demo-help.txt"]);
}

#[test]
fn bare_call_lists_devices() {
    gaudi(&[])
        .env("GAUDI_DEVICE", "mock:gaudi2")
        .assert()
        .success()
        .stdout_eq(file!["golden/list.txt"]);
    gaudi(&["list", "-d", "mock:gaudi2"])
        .assert()
        .success()
        .stdout_eq(file!["golden/list.txt"]);
}

#[test]
fn machine_without_devices_suggests_the_mock() {
    // On a machine with a device there is a table instead; either way nothing fails.
    let output = gaudi(&["list"]).assert().success();
    let output = output.get_output();
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.stdout.is_empty() || note.contains("gaudi list -d mock:gaudi2"),
        "{note}"
    );
}

#[test]
fn failed_device_keeps_its_row() {
    gaudi(&[
        "list",
        "-d",
        "mock:gaudi2?dram=3GiB",
        "-d",
        "mock:gaudi2?index=1",
        "-d",
        "kernel:250",
    ])
    .assert()
    .success()
    .stdout_eq(file!["golden/list-several.txt"]);
}

#[test]
fn info_reports_device_properties() {
    gaudi(&["info", "-d", "mock:gaudi2"])
        .assert()
        .success()
        .stdout_eq(file!["golden/info.txt"]);
}

#[test]
fn json_has_schema_and_units() {
    let list = json(&["list", "-d", "mock:gaudi2", "--json"]);
    assert_eq!(
        (&list["schema"], &list["version"]),
        (&"gaudi.list".into(), &1.into())
    );
    assert_eq!(list["devices"][0]["dram_size_bytes"], 97_536_u64 << 20);
    let info = json(&["info", "-d", "mock:gaudi2", "--json"]);
    assert_eq!(info["schema"], "gaudi.info");
    assert_eq!(
        info["devices"][0]["dram_base"], "0x1001001800000000",
        "64-bit addresses are texts"
    );
    assert_eq!(info["devices"][0]["backend"], "mock");
    let copy = json(&["copy", "-d", "mock:gaudi2", "--size", "4097", "--json"]);
    assert_eq!(
        (&copy["schema"], copy["copies"].as_array().map(Vec::len)),
        (&"gaudi.copy".into(), Some(3))
    );
    assert_eq!(copy["copies"][0]["verified"], true);
    let demo = json(&["demo", "--json"]);
    assert_eq!(
        (&demo["schema"], &demo["mock"], &demo["verified"]),
        (&"gaudi.demo".into(), &true.into(), &true.into())
    );
    assert_eq!(demo["sha256_source"], demo["sha256_far_end"]);
    assert_eq!(demo["stages"].as_array().map(Vec::len), Some(5));
}

#[test]
fn copy_moves_and_checks_in_all_directions() {
    compare(
        printed(&["copy", "-d", "mock:gaudi2", "--size", "1MiB"]),
        file!["golden/copy.txt"],
    );
    let odd = [
        "copy",
        "-d",
        "mock:gaudi2",
        "device",
        "device",
        "--size",
        "4097",
        "--from-offset",
        "3",
        "--to-offset",
        "7",
    ];
    gaudi(&odd).assert().success();
    gaudi(&["copy", "-d", "mock:gaudi2", "--size", "0"])
        .assert()
        .success();
}

#[test]
fn caps_prints_offers_and_variables() {
    gaudi(&["caps", "-d", "mock:gaudi2"])
        .assert()
        .success()
        .stdout_eq(file!["golden/caps.txt"]);
    gaudi(&["caps", "-c"])
        .assert()
        .success()
        .stdout_eq(file!["golden/caps-variables.txt"]);
    gaudi(&["caps", "-d", "mock:gaudi2"])
        .env("GAUDI_COPY_BATCH", "65")
        .assert()
        .code(1)
        .stderr_eq(file!["golden/caps-refused.txt"]);
}

#[test]
fn host_to_host_copy_is_usage_error() {
    gaudi(&["copy", "-d", "mock:gaudi2", "host", "host"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/host-to-host.txt"]);
}

#[test]
fn errors_have_cause_next_step_and_code() {
    gaudi(&["info", "-d", "mock:gaudi9"])
        .assert()
        .code(2)
        .stderr_eq(file!["golden/bad-spec.txt"]);
    gaudi(&["info", "-d", "mock:gaudi2?dram=1GiB"])
        .assert()
        .code(2)
        .stderr_eq(file!["golden/bad-dram.txt"]);
    let none = gaudi(&["info", "-d", "kernel:250"]).assert().code(3);
    let text = String::from_utf8_lossy(&none.get_output().stderr).into_owned();
    assert!(
        text.contains("mock:gaudi2"),
        "no device is not a dead end: {text}"
    );
    gaudi(&["fly"]).assert().code(2);
    gaudi(&["demo", "--file", "/nowhere/at-all"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/no-file.txt"]);
    gaudi(&["demo", "--file", "/"]).assert().code(1);
}

#[test]
fn an_error_is_a_document_too() {
    let output = gaudi(&["info", "-d", "kernel:250", "--json"])
        .assert()
        .code(3)
        .get_output()
        .stdout
        .clone();
    let error: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(
        (&error["schema"], &error["kind"]),
        (&"gaudi.error".into(), &"not_found".into())
    );
    assert_eq!(error["exit_code"], 3);
}

#[test]
fn the_demo_shows_every_stage() {
    compare(printed(&["demo"]), file!["golden/demo.txt"]);
}

#[test]
fn files_of_every_size_arrive_whole() {
    let most: Vec<u8> = (0..20_000_003_u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect();
    for len in [0, 1, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, most.len()] {
        let file = write_file(&most[..len]);
        let saved = tempfile::NamedTempFile::new().unwrap();
        let (from, to) = (file.path().to_str().unwrap(), saved.path().to_str().unwrap());
        gaudi(&["demo", "--quiet", "--file", from, "--save", to])
            .assert()
            .success();
        let got = std::fs::read(saved.path()).unwrap();
        assert!(
            got == most[..len],
            "{len} bytes were sent, {} others arrived",
            got.len()
        );
    }
}

#[test]
fn corrupted_stage_is_named() {
    for stage in ["host-a", "dma-a", "nic", "dma-b", "host-b"] {
        for file in [write_file(b"x"), write_file(&vec![7; 9 << 20])] {
            let path = file.path().to_str().unwrap();
            let failed = gaudi(&["demo", "--corrupt", stage, "--file", path])
                .assert()
                .code(1);
            let text = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
            assert!(
                text.contains(&format!("stage {stage} changed the data")),
                "{stage}: {text}"
            );
        }
    }
    gaudi(&["demo", "--corrupt", "nic", "--file", "/dev/null"])
        .assert()
        .code(1);
}

#[test]
fn the_doctor_looks_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("sys/bus/pci/devices/0000:b3:00.0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("vendor"), "0x1da3\n").unwrap();
    let root = root.path().to_str().unwrap();
    gaudi(&["doctor", "--root", root])
        .assert()
        .code(1)
        .stdout_eq(file!["golden/doctor.txt"]);
    let report = gaudi(&["doctor", "--json"]).assert().get_output().stdout.clone();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["schema"], "gaudi.doctor");
    let mock = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "mock")
        .unwrap();
    assert_eq!(mock["verdict"], "ok", "the mock works on every machine");
}

#[test]
fn every_command_has_completions_and_man_page() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let script = gaudi(&["completions", shell])
            .assert()
            .success()
            .get_output()
            .stdout
            .clone();
        assert!(
            String::from_utf8_lossy(&script).contains("doctor"),
            "{shell}'s script knows the commands"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    gaudi(&["man", folder.path().to_str().unwrap()])
        .assert()
        .success();
    for page in [
        "gaudi",
        "gaudi-list",
        "gaudi-info",
        "gaudi-copy",
        "gaudi-demo",
        "gaudi-doctor",
    ] {
        let text = std::fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH OPTIONS"), "{page}.1 is a man page");
    }
}

#[test]
fn failed_check_fails_despite_closed_reader() {
    let closed = || {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        Stdio::from(std::os::fd::OwnedFd::from(writer))
    };
    let program = snapbox::cmd::cargo_bin!("gaudi");
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let status = |arguments: &[&str], stdout: Stdio| {
        Process::new(program)
            .args(arguments)
            .stdout(stdout)
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .code()
    };
    assert_eq!(
        status(&["demo", "--corrupt", "nic"], closed()),
        Some(1),
        "the verdict counts, not the reader"
    );
    assert_eq!(
        status(&["list", "--json", "-d", "mock:gaudi2"], closed()),
        Some(0),
        "a closed pipe is no error"
    );
    assert_eq!(
        status(&["list", "--json", "-d", "mock:gaudi2"], full()),
        Some(1),
        "a full disk is one"
    );
    let failed = gaudi(&["demo", "--corrupt", "nic", "--json"]).assert().code(1);
    let text = String::from_utf8_lossy(&failed.get_output().stdout).into_owned();
    assert_eq!(
        text.lines().count(),
        1,
        "one document, which carries the failure: {text}"
    );
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&report["verified"], &report["corrupted_by"]),
        (&false.into(), &"nic".into())
    );
}

#[test]
fn output_file_is_complete_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("file");
    std::fs::write(&name, vec![7; 9 << 20]).unwrap();
    let path = name.to_str().unwrap();
    gaudi(&["demo", "--file", path, "--save", path])
        .assert()
        .success();
    assert!(
        std::fs::read(&name).unwrap() == vec![7; 9 << 20],
        "a file may be saved over itself"
    );
    let other = folder.path().join("other");
    gaudi(&[
        "demo",
        "--file",
        path,
        "--save",
        other.to_str().unwrap(),
        "--corrupt",
        "nic",
    ])
    .assert()
    .code(1);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "wrong data gets no name"
    );
    let full = gaudi(&["demo", "--file", path, "--save", "/dev/full"])
        .assert()
        .code(1);
    let text = String::from_utf8_lossy(&full.get_output().stderr).into_owned();
    assert!(
        text.contains("No space left"),
        "node B's reason is reported: {text}"
    );
}

#[test]
fn truncated_source_file_fails() {
    gaudi(&["demo", "--file", "/proc/self/status"]).assert().code(1);
}

#[test]
fn a_real_card_is_refused_by_name() {
    let refused = gaudi(&["demo", "-d", "kernel:0", "-d", "kernel:1"])
        .assert()
        .code(1);
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.contains("kernel:0") && text.contains("gaudi demo"), "{text}");
}

#[test]
fn arguments_that_mean_nothing_together_are_usage() {
    gaudi(&["copy", "-d", "mock", "-d", "mock"]).assert().code(2);
    gaudi(&["demo", "-d", "mock", "-d", "mock", "-d", "mock"])
        .assert()
        .code(2);
    gaudi(&["info", "-d", "mock", "--loop=nan"]).assert().code(2);
    gaudi(&["info"])
        .env("GAUDI_MAPPING_TABLE", "[{}]")
        .assert()
        .code(2);
    for name in ["HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"] {
        let refused = gaudi(&["info"]).env(name, "0,one").assert().code(2);
        let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(
            text.contains(name) && text.contains("\"one\" is not a number"),
            "{text}"
        );
        gaudi(&["info", "-d", "mock"]).env(name, "0,one").assert().code(0);
    }
    gaudi(&[
        "copy",
        "-d",
        "mock",
        "--size",
        "8GiB",
        "--from-offset",
        "18446744073709551615",
    ])
    .assert()
    .code(2);
}

#[test]
fn a_mocks_figure_says_mock() {
    for arguments in [
        &["list", "-d", "mock"][..],
        &["info", "-d", "mock"],
        &["copy", "-d", "mock"],
        &["demo"],
    ] {
        let output = gaudi(arguments).assert().success().get_output().stdout.clone();
        assert!(String::from_utf8_lossy(&output).contains("mock"), "{arguments:?}");
    }
}

#[test]
fn closed_reader_is_no_error() {
    let program = snapbox::cmd::cargo_bin!("gaudi");
    let mut child = Process::new(program)
        .args(["info", "-d", "mock:gaudi2", "--loop=0.001"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), &b""[..]),
        "a closed pipe ends it quietly"
    );
}

#[test]
fn node_b_is_not_started_by_hand() {
    gaudi(&["demo", "--node-b", "-d", "mock:gaudi2"])
        .stdin("hello")
        .assert()
        .code(1);
}

#[test]
fn the_result_can_go_to_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let done = gaudi(&["list", "-d", "mock:gaudi2", "--json", "--output", path])
        .assert()
        .success();
    assert!(
        done.get_output().stdout.is_empty(),
        "nothing goes to standard output"
    );
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.starts_with("{\"schema\":\"gaudi.list\""), "{text}");
}

#[test]
fn dmabuf_list_shows_buffers_with_their_holders() {
    let root = program::buffers();
    let folder = root.path().to_str().unwrap();
    gaudi(&["dmabuf", "list", "--root", folder])
        .assert()
        .success()
        .stdout_eq(file!["golden/dmabuf-list.txt"]);
    let listing = json(&["dmabuf", "list", "--json", "--root", folder]);
    assert_eq!(listing["schema"], "gaudi.dmabuf.list");
    assert_eq!(listing["buffers"][0]["holders"][1]["mappings"], 1);
    assert_eq!(listing["buffers"][1]["attached_devices"][0], "0000:b3:00.0");
    let missing = listing["unread"][0]["why"].as_str().unwrap();
    assert!(missing.contains("CONFIG_DMABUF_SYSFS_STATS"), "{missing}");
}
