//! The command line as a user meets it, against golden files.
//!
//! To write the golden files anew, set `SNAPSHOTS=overwrite` and read the difference.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command as Process, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
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
fn errors_have_a_next_step() {
    vgaudi(&["serve", "--socket", "x", "--bar4", "3GiB"])
        .assert()
        .code(2)
        .stderr_eq(file!["golden/bar4.txt"]);
    vgaudi(&["serve", "--socket", "x", "--dram", "4GiB"])
        .assert()
        .code(2)
        .stderr_eq(file!["golden/dram.txt"]);
    vgaudi(&["ask", "--control", "/nonexistent/card", "counters"])
        .assert()
        .code(1)
        .stderr_eq(file!["golden/no_card.txt"]);
    for (plan, cause) in [
        ("hang-firmware", "an unknown operation or event at column 1"),
        ("submit:lose", "submit:lose is not for an event of the chip"),
    ] {
        let refused = vgaudi(&["serve", "--socket", "x", "--fault", plan])
            .assert()
            .code(2);
        let error = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(error.contains(cause), "{plan}: {error}");
    }
    vgaudi(&["serve"]).assert().code(2);
    // A file that is not a socket stays.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "data").unwrap();
    vgaudi(&["serve", "--socket", file.to_str().unwrap()])
        .assert()
        .code(2)
        .stderr_eq("error: cannot listen on [..]: it exists and is not a socket\n  help: choose another path: only a socket can be replaced\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "data");
    for wrong in [
        &["serve", "--socket", "/nonexistent/card"][..],
        &["serve", "--socket", "card", "--control", "./card"],
        &["man", "/nonexistent"],
        &["ask", "--control", "card", "counters\nhang"],
    ] {
        let refused = vgaudi(wrong).current_dir(folder.path()).assert().code(2);
        let stderr = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        assert!(
            stderr.contains("\n  help: "),
            "{wrong:?} has a next step: {stderr}"
        );
    }
    let trace = ["serve", "--socket", "card", "--trace", "/nonexistent/trace"];
    vgaudi(&trace).current_dir(folder.path()).assert().code(2);
    assert!(!folder.path().join("card").exists(), "no socket is left behind");
}

#[test]
fn closed_pipe_differs_from_full_disk() {
    for asked in [&["--help"][..], &["--version"], &["serve", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let run = |out: Stdio| {
            let mut command = Process::new(snapbox::cmd::cargo_bin!("vgaudi"));
            command.args(asked).stdout(out).output().unwrap()
        };
        let refused = run(full.into());
        assert_eq!(refused.status.code(), Some(1), "{asked:?}");
        assert!(!refused.stderr.is_empty());
        let output = run(closed_pipe());
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    }
}

/// A pipe whose reader is closed.
fn closed_pipe() -> Stdio {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    Stdio::from(OwnedFd::from(theirs))
}

/// A server that listens, ended with the test.
struct Server(Child);

impl Server {
    fn start(arguments: &[&OsStr]) -> Self {
        let mut server = Process::new(snapbox::cmd::cargo_bin!("vgaudi"))
            .arg("serve")
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = String::new();
        BufReader::new(server.stderr.take().unwrap())
            .read_line(&mut stderr)
            .unwrap();
        assert!(stderr.contains("listens"), "it prints the address: {stderr}");
        Self(server)
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn only_stale_sockets_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, control) = (folder.path().join("card"), folder.path().join("control"));
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a server before left it behind");
    let option = OsStr::new;
    let arguments = [
        option("--once"),
        option("--socket"),
        socket.as_os_str(),
        option("--control"),
        control.as_os_str(),
    ];
    let server = Server::start(&arguments);
    for place in [&socket, &control] {
        vgaudi(&["serve", "--socket", place.to_str().unwrap()])
            .assert()
            .code(2)
            .stderr_eq("error: cannot listen on [..]: another server does\n  help: stop the server that uses it, or choose another path\n");
    }
    let asked = |server: &Server| {
        vgaudi(&["ask", "--control", control.to_str().unwrap(), "counters"])
            .assert()
            .success();
        server.0.id()
    };
    asked(&server);
    let out = Process::new(snapbox::cmd::cargo_bin!("vgaudi"))
        .args(["ask", "--control", control.to_str().unwrap(), "counters"])
        .stdout(closed_pipe())
        .output()
        .unwrap();
    assert_eq!((out.status.code(), &out.stderr[..]), (Some(0), &b""[..]));
    assert_eq!(server.end(Signal::SIGINT), Some(0));
}

#[test]
fn interrupted_server_flushes_trace_and_removes_sockets() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (socket, control, trace) = (path("card"), path("control"), path("trace"));
        let option = OsStr::new;
        let server = Server::start(&[
            option("--socket"),
            socket.as_os_str(),
            option("--control"),
            control.as_os_str(),
            option("--trace"),
            trace.as_os_str(),
        ]);
        let mut guest = UnixStream::connect(&socket).unwrap();
        // REGION_READ of 4 bytes of BAR 0, where the sync objects are.
        let mut message = [7u16, 9].map(u16::to_le_bytes).concat();
        message.extend([32u32, 0, 0, 0x810_0000, 0, 0, 4].map(u32::to_le_bytes).concat());
        guest.write_all(&message).unwrap();
        guest.read_exact(&mut [0; 36]).unwrap();
        assert_eq!(server.end(signal), Some(0), "it was to be interrupted");
        let lines = std::fs::read_to_string(&trace).unwrap();
        assert!(lines.ends_with(" 00000000\n"), "the access is logged: {lines:?}");
        assert!(!socket.exists() && !control.exists(), "nothing is left behind");
    }
}

#[test]
fn a_card_answers_on_its_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, control) = (folder.path().join("card"), folder.path().join("control"));
    let option = OsStr::new;
    let _server = Server::start(&[
        option("--socket"),
        socket.as_os_str(),
        option("--control"),
        control.as_os_str(),
    ]);
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
        "there is no listener"
    );
    for wrong in [
        &["read", "0x30000000", "0x20000"][..],
        &["read", "0xffffffffffffffff", "8"],
        &["burn"],
    ] {
        assert_eq!(ask(wrong).0, Some(1), "{wrong:?} is refused");
    }
}

#[test]
fn man_pages_are_written() {
    let folder = tempfile::tempdir().unwrap();
    vgaudi(&["man", folder.path().to_str().unwrap()])
        .assert()
        .success();
    assert!(folder.path().join("vgaudi-serve.1").exists());
}
