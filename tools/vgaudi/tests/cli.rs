//! The command line as a user meets it, against golden files.
//!
//! To write the golden files anew, set `SNAPSHOTS=overwrite` and read the difference.

use std::io::{BufRead as _, BufReader};
use std::process::{Command as Process, Stdio};

use snapbox::cmd::Command;
use snapbox::{Assert, file};

fn vgaudi(arguments: &[&str]) -> Command {
    let assert = Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
    Command::new(snapbox::cmd::cargo_bin!("vgaudi"))
        .with_assert(assert)
        .args(arguments)
}

#[test]
fn help_says_what_it_is_with_examples() {
    vgaudi(&["--help"])
        .assert()
        .success()
        .stdout_eq(file!["golden/help.txt"]);
    vgaudi(&["serve", "--help"])
        .assert()
        .success()
        .stdout_eq(file!["golden/serve.txt"]);
    vgaudi(&["ask", "--help"])
        .assert()
        .success()
        .stdout_eq(file!["golden/ask.txt"]);
}

#[test]
fn what_is_wrong_is_said_with_a_next_step() {
    vgaudi(&["serve", "--socket", "x", "--bar4", "3GiB"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/bar4.txt"]);
    vgaudi(&["serve", "--socket", "x", "--dram", "4GiB"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/dram.txt"]);
    vgaudi(&["ask", "--control", "/nonexistent/card", "counters"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/nobody.txt"]);
    vgaudi(&["serve"]).assert().code(2);
    // A file that is no socket stays.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "data").unwrap();
    vgaudi(&["serve", "--socket", file.to_str().unwrap()])
        .assert()
        .code(1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "data");
}

#[test]
fn a_card_answers_on_its_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, control) = (folder.path().join("card"), folder.path().join("control"));
    let mut server = Process::new(snapbox::cmd::cargo_bin!("vgaudi"))
        .args(["serve", "--socket"])
        .arg(&socket)
        .arg("--control")
        .arg(&control)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.contains("listens"), "it says where: {said}");
    let ask = |words: &[&str]| {
        let control = control.to_str().unwrap();
        let arguments: Vec<_> = ["ask", "--control", control]
            .iter()
            .chain(words)
            .copied()
            .collect();
        let output = vgaudi(&arguments).assert().get_output().clone();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), value)
    };
    let (code, counters) = ask(&["counters"]);
    assert_eq!(
        (code, &counters["register_writes"]),
        (Some(0), &serde_json::json!(0))
    );
    assert_eq!(
        ask(&["read", "0x30000000", "4"]).1,
        serde_json::json!({ "data": "00000000" })
    );
    assert_eq!(
        ask(&["event", "1255"]).1,
        serde_json::json!({ "sent": false }),
        "nobody listens"
    );
    for wrong in [
        &["read", "0x30000000", "0x20000"][..],
        &["read", "0xffffffffffffffff", "8"],
        &["burn"],
    ] {
        assert_eq!(ask(wrong).0, Some(1), "{wrong:?} is refused");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn man_pages_are_written() {
    let folder = tempfile::tempdir().unwrap();
    vgaudi(&["man", folder.path().to_str().unwrap()])
        .assert()
        .success();
    assert!(folder.path().join("vgaudi-serve.1").exists());
}
