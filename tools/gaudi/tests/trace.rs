//! `gaudi trace`, `record` and `decode` as a user runs them.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use gaudi_harness::skip_named;

const TEXT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../hal/capture/tests/fixtures/session.txt"
);
const LINES: &str = include_str!("../../../hal/capture/tests/fixtures/session.lines");

fn gaudi(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    let output = command.args(arguments).env_remove("GAUDI_DEVICE").output();
    output.expect("gaudi starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn traced_program_keeps_output_and_status() {
    for backend in ["auto", "ptrace"] {
        let output = gaudi(&[
            "trace",
            "--backend",
            backend,
            "--",
            "sh",
            "-c",
            "echo out; exit 7",
        ]);
        assert_eq!(output.status.code(), Some(7), "{backend}: {output:?}");
        assert_eq!(text(&output.stdout), "out\n", "{backend}: the program's alone");
        let lines = text(&output.stderr);
        assert!(lines.contains("exit{status=7}"), "{backend}: {lines}");
        assert!(
            lines.contains(" 0 lost"),
            "{backend}: the summary is printed: {lines}"
        );
    }
}

#[test]
fn traced_program_keeps_its_signal() {
    let output = gaudi(&["trace", "--backend", "ptrace", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
}

#[test]
fn missing_program_is_an_error() {
    let output = gaudi(&["trace", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(
        error.starts_with("error: cannot trace /nonexistent/program"),
        "{error}"
    );
}

#[test]
fn record_needs_a_file() {
    let output = gaudi(&["record", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("--output FILE"), "{output:?}");
}

#[test]
fn recorded_capture_is_decoded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let file = file.to_str().expect("a path in UTF-8");
    for compress in [&["--quiet"][..], &["--quiet", "--compress"]] {
        let record = [
            &["record", "--output", file][..],
            compress,
            &["--", "sh", "-c", "exit 3"],
        ]
        .concat();
        let output = gaudi(&record);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stderr), "", "quiet");
        let lines = text(&gaudi(&["decode", file]).stdout);
        assert!(lines.contains("exec{path="), "{lines}");
        assert!(lines.ends_with("exit{status=3}\n"), "{lines}");
    }
}

#[test]
fn text_and_binary_decode_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session.gcap");
    let binary = file.to_str().expect("a path in UTF-8");
    let output = gaudi(&["decode", TEXT, "--as", "gcap", "--output", binary]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(&gaudi(&["decode", TEXT]).stdout),
        text(&gaudi(&["decode", binary]).stdout)
    );
    let back = gaudi(&["decode", binary, "--as", "text"]);
    assert_eq!(
        text(&back.stdout),
        std::fs::read_to_string(TEXT).expect("the fixture")
    );
}

#[test]
fn filters_choose_events() {
    let all = LINES.lines().count();
    let count = |filter: &[&str]| {
        let output = gaudi(&[&["decode", TEXT][..], filter].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().count()
    };
    assert_eq!(count(&[]), all);
    let failures = count(&["--errno", "any"]);
    assert!(failures > 0 && failures < all, "{failures} of {all}");
    assert_eq!(count(&["--errno", "ENOTBLK"]), 0, "no event has it");
    let memory = count(&["--op", "HL_IOCTL_MEMORY"]);
    assert!(memory > 0 && memory < all, "{memory} of {all}");
    assert_eq!(count(&["--thread", "1"]), 0);
    assert_eq!(count(&["--slower-than", "1e9"]), 0);
}

#[test]
fn device_filter_chooses_a_file() {
    let count = |device: &str| {
        let output = gaudi(&["decode", TEXT, "--device", device]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().count()
    };
    let by_path = count("/dev/accel/accel0");
    assert!(by_path > 0 && by_path < LINES.lines().count(), "{by_path}");
    assert_eq!((count("accel0"), count("0")), (by_path, by_path));
    assert_eq!(count("accel7"), 0);
}

#[test]
fn pictures_are_files_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (page, trace) = (folder.path().join("run.html"), folder.path().join("run.json"));
    let of = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let output = gaudi(&["decode", TEXT, "--html", &of(&page), "--perfetto", &of(&trace)]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let page = std::fs::read_to_string(&page).expect("the page");
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("HL_IOCTL_CS"),
        "{page:.200}"
    );
    let trace = std::fs::read(&trace).expect("the trace");
    let trace: serde_json::Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(
        trace["traceEvents"].as_array().is_some_and(|all| all.len() > 10),
        "{trace}"
    );
}

#[test]
fn conversions_keep_facts() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, binary, again] = ["a.txt", "a.gcap", "b.txt"].map(|name| folder.path().join(name));
    let of = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let convert = |from: &std::path::Path, form: &str, to: &std::path::Path| {
        let output = gaudi(&["decode", &of(from), "--as", form, "-o", &of(to)]);
        assert!(output.status.success(), "{output:?}");
    };
    let events = std::fs::read_to_string(TEXT).expect("a capture");
    // Before the first and the third event, and at the end.
    let mut lines: Vec<&str> = events.lines().collect();
    let starts = lines
        .iter()
        .enumerate()
        .skip(1)
        .filter(|row| !row.1.starts_with(' '));
    let starts: Vec<usize> = starts.map(|row| row.0).collect();
    lines.push("fact \"lost\" \"0\"");
    lines.insert(starts[2], "fact \"by\" \"a tool\"");
    lines.insert(starts[0], "fact \"tier\" \"ptrace\"");
    let events = lines.join("\n") + "\n";
    std::fs::write(&first, &events).expect("a file");
    convert(&first, "gcap", &binary);
    convert(&binary, "text", &again);
    assert_eq!(std::fs::read_to_string(again).expect("the text"), events);
}

#[test]
fn running_program_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("run.html");
    let page = page.to_str().expect("UTF-8");
    let words = ["trace", "--backend", "ptrace", "--html", page, "--", "sh", "-c"];
    let output = gaudi(&[&words[..], &["exit 7"]].concat());
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let lines = text(&output.stderr);
    assert!(!lines.contains("exit{status=7}"), "drawn, not printed: {lines}");
    let drawn = std::fs::read_to_string(page).expect("the page");
    assert!(drawn.starts_with("<!DOCTYPE html>"), "{drawn:.200}");
    // A page that cannot be written is an error before the program starts.
    let missing = [
        "trace",
        "--html",
        "/missing/run.html",
        "--",
        "sh",
        "-c",
        "echo started",
    ];
    let output = gaudi(&missing);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("/missing/run.html"), "{output:?}");
}

/// A capture that cannot be written ends the recording, not the program.
#[test]
fn full_disk_leaves_the_program_alone() {
    for backend in ["ptrace", "preload"] {
        // /dev/full fails each write with ENOSPC.
        let words = [
            "record",
            "--backend",
            backend,
            "-o",
            "/dev/full",
            "--",
            "sh",
            "-c",
        ];
        let output = gaudi(&[&words[..], &["sleep 0.3; echo ended"]].concat());
        let error = text(&output.stderr);
        if error.contains("libgaudi_trace.so") {
            skip_named("full_disk_leaves_the_program_alone", "the preload library");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{backend}: {output:?}");
        assert!(error.contains("No space left"), "{backend}: {error}");
        assert_eq!(text(&output.stdout), "ended\n", "{backend}");
    }
}

/// A capture of 100 000 records in text form: eight threads of a process with a hostile name, with
/// submissions that complete, memory that is mapped and released, and a device that is lost.
fn large_capture() -> String {
    let mut session = String::from(
        "gcap-text 1\nstart time=0 pid=42 tid=42 parent=0 name=\"</script><script>throw 1</script>\"\n",
    );
    let bytes = |words: &[u64]| -> String {
        let words = words.iter();
        words.map(|word| format!("{:016x}", word.swap_bytes())).collect()
    };
    let mut ioctl = |call: u64, request: u32, result: i64, pieces: [&str; 3]| {
        let [input, output, memory] = pieces;
        session += &format!(
            "ioctl time={} pid=42 tid={} took=900 fd=3 device=261:0 request={request:#x} argument=0x1000 \
             result={result}\n  input\n    {input}\n  output\n    {output}\n{memory}",
            call * 1000,
            42 + call % 8
        );
    };
    for call in 0..25_000_u64 {
        let at = call * 4;
        let chunk = bytes(&[0x1000, (32 << 32) | (4 * (call % 8)), 1, 0, 0, 0, 0, 0]);
        let chunk = format!("  memory at=entry address=0x2000 whole=64\n    {chunk}\n");
        let submission = bytes(&[0, 0x2000, 0, 1 << 32, 0, 0]);
        ioctl(
            at,
            0xc030_6442,
            0,
            [&submission, &bytes(&[call, 0, 0, 0, 0, 0]), &chunk],
        );
        let wait = bytes(&[call, 1000, 0, 0, 0, 0, 0]);
        ioctl(at + 1, 0xc038_6443, 0, [&wait, &bytes(&[0; 7]), ""]);
        // Allocates memory, and frees it.
        let made = bytes(&[call + 1, 0, 0, 0, 0]);
        ioctl(at + 2, 0xc028_6444, 0, [&bytes(&[4096, 0, 0, 0, 0]), &made, ""]);
        let result = if call > 24_000 { -19 } else { 0 };
        let free = bytes(&[call + 1, 0, 0, 1, 0]);
        ioctl(at + 3, 0xc028_6444, result, [&free, &bytes(&[0; 5]), ""]);
    }
    session
}

/// Opens a page of 100 000 records in headless Chromium, named by `GAUDI_CHROMIUM`.
#[test]
fn browser_draws_a_large_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, page) = (folder.path().join("large.txt"), folder.path().join("large.html"));
    std::fs::write(&capture, large_capture()).expect("it is written");
    let [capture, page] = [&capture, &page].map(|path| path.to_str().expect("UTF-8"));
    let output = gaudi(&["decode", capture, "--html", page]);
    assert!(output.status.success(), "{output:?}");
    let Some(browser) = std::env::var_os("GAUDI_CHROMIUM") else {
        skip_named(
            "browser_draws_a_large_capture",
            "GAUDI_CHROMIUM, the path of a Chromium, which `cargo xtask test` sets",
        );
        return;
    };
    let took_ms = draw(&browser, page);
    println!("drawn {took_ms} ms after the begin of its load");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if took_ms >= 3000.0 && load > 2.0 * processors as f64 {
        skip_named(
            "browser_draws_a_large_capture",
            "a load below two programs a processor, to judge the 3 s",
        );
        return;
    }
    assert!(took_ms < 3000.0, "{took_ms} ms at load {load}");
}

/// Opens a page and checks what is drawn. Returns the milliseconds from the begin of its load.
fn draw(browser: &std::ffi::OsStr, page: &str) -> f64 {
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--dump-dom",
            "--enable-logging=stderr",
        ])
        .arg(format!("file://{page}"))
        .output()
        .expect("the browser starts");
    let dom = text(&output.stdout);
    let number = |name: &str| -> f64 {
        let at = dom.find(name).map(|at| at + name.len());
        let value = at.and_then(|at| dom[at..].split('"').nth(1));
        let value = value.and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name}: {}", text(&output.stderr)))
    };
    // Threads, queues, their engines, and one lane of memory.
    assert!(
        number("data-lanes=") >= 8.0 + 8.0 + 1.0,
        "{}",
        number("data-lanes=")
    );
    assert!(number("data-drawn=") > 100.0, "{}", number("data-drawn="));
    assert!(
        number("data-kinds=") >= 4.0,
        "done, failed, wait and life are drawn"
    );
    assert!(dom.contains("data-lost="), "the loss is marked");
    assert!(
        !text(&output.stderr).contains("CONSOLE"),
        "{}",
        text(&output.stderr)
    );
    number("data-ready=")
}

#[test]
fn stat_counts_every_ioctl() {
    let output = gaudi(&["stat", TEXT, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = document["operations"].as_array().expect("rows");
    let sum = |name: &str| {
        rows.iter()
            .map(|row| row[name].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    let shown = |prefix: &str| LINES.lines().filter(|line| line.contains(prefix)).count() as u64;
    let calls = shown("HL_IOCTL_");
    assert!(sum("calls") >= calls && calls > 0, "{} of {calls}", sum("calls"));
    assert!(sum("errors") > 0 && sum("bytes") > 0, "{document}");
    for row in rows {
        let at = |name: &str| row[name].as_u64().expect("a number");
        assert!(
            at("p50_ns") <= at("p99_ns") && at("p99_ns") <= at("max_ns"),
            "{row}"
        );
    }
    let output = gaudi(&["stat", TEXT, "--by", "thread"]);
    assert!(text(&output.stdout).starts_with("group"), "{output:?}");
}

#[test]
fn stat_of_a_program_keeps_its_status() {
    let output = gaudi(&["stat", "--backend", "ptrace", "--", "sh", "-c", "exit 9"]);
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    let output = gaudi(&["stat"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = gaudi(&["stat", "--loop", TEXT]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn stat_prints_while_the_program_runs() {
    let script = "for n in 1 2 3 4; do sh -c 'test -t 0'; sleep 0.3; done";
    let output = gaudi(&[
        "stat",
        "--json",
        "--loop=0.2",
        "--backend",
        "ptrace",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout);
    let documents = lines.lines().map(serde_json::from_str::<serde_json::Value>);
    let documents: Vec<_> = documents.map(|one| one.expect("a document")).collect();
    assert!(documents.len() >= 3, "{lines}");
    assert!(
        documents.iter().all(|one| one["schema"] == "gaudi.stat"),
        "{lines}"
    );
}

#[test]
fn diff_finds_the_first_difference() {
    let same = gaudi(&["diff", TEXT, TEXT]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(text(&same.stdout).starts_with("no difference\n"), "{same:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("other.txt");
    let session = std::fs::read_to_string(TEXT).expect("the fixture");
    // Another result of the last ioctl.
    let at = session.rfind("\nioctl ").expect("an ioctl");
    let result = at + session[at..].find("result=").expect("a result");
    let end = result + session[result..].find([' ', '\n']).expect("its end");
    let other = format!("{}result=-12{}", &session[..result], &session[end..]);
    std::fs::write(&file, other).expect("it is written");
    let output = gaudi(&["diff", TEXT, file.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = text(&output.stdout);
    assert!(shown.starts_with("first difference, in thread "), "{shown}");
    assert!(shown.contains("- A ") && shown.contains("ENOMEM"), "{shown}");
}

#[test]
fn program_dies_with_gaudi_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaudi"));
    command.args(["run", "-d", "mock:gaudi2", "--", "sh", "-c"]);
    command.arg("exec 3<>/dev/accel/accel0; echo $$; exec sleep 600");
    let mut run = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("gaudi starts");
    let mut line = String::new();
    let pipe = run.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(pipe), &mut line).expect("the pid");
    let program = format!("/proc/{}/stat", line.trim());
    assert!(std::fs::read(&program).is_ok(), "{line:?}: the program runs");
    run.kill().expect("SIGKILL");
    run.wait().expect("it ends");
    let is_alive = || {
        let stat = std::fs::read_to_string(&program).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    };
    let begin = std::time::Instant::now();
    while is_alive() {
        assert!(begin.elapsed().as_secs() < 20, "the program outlives gaudi");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn run_and_replay_answer_an_unmodified_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let file = file.to_str().expect("UTF-8");
    let script = "ls /dev/accel && exec 3<>/dev/accel/accel0 && exit 5";
    let spec = format!("mock:gaudi2?name=answered+record={file}");
    let run = gaudi(&["run", "-d", &spec, "--", "sh", "-c", script]);
    assert_eq!(run.status.code(), Some(5), "{run:?}");
    assert_eq!(text(&run.stdout), "accel0\naccel_controlD0\n");
    let replay = gaudi(&["replay", file, "--", "sh", "-c", script]);
    assert_eq!(replay.status.code(), Some(5), "{replay:?}");
    assert_eq!(text(&replay.stdout), text(&run.stdout));
    let signalled = gaudi(&["run", "-d", "mock:gaudi2", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(signalled.status.signal(), Some(15), "{signalled:?}");
}

/// Runs a command on a mock that records, and again on the recording.
fn replays_alike(name: &str, command: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.gcap");
    let file = file.to_str().expect("UTF-8");
    let run = |spec: &str| {
        let output = gaudi(&[command, &["-d", spec]].concat());
        assert!(output.status.success(), "{spec}: {output:?}");
        // Devices have their own names, and times differ.
        let lines = text(&output.stdout);
        lines.lines().filter(|line| line.contains("verified")).count()
    };
    let recorded = run(&format!("mock:gaudi2?name={name}+record={file},data"));
    assert_eq!(run(&format!("replay:{file}")), recorded);
    let info = gaudi(&["info", "--from", file]);
    assert!(info.status.success(), "{info:?}");
    assert!(text(&info.stdout).contains("replay"), "{info:?}");
    let stat = gaudi(&["stat", file]);
    assert!(text(&stat.stdout).contains("HL_IOCTL_CS"), "{stat:?}");
}

#[test]
fn copy_replays_its_bytes() {
    replays_alike("copied", &["copy", "--size", "300KiB"]);
}

#[test]
fn damaged_capture_names_its_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("damaged.gcap");
    let path = file.to_str().expect("a path in UTF-8");
    gaudi(&["decode", TEXT, "--as", "gcap", "--output", path]);
    let whole = std::fs::read(&file).expect("the capture");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("half of it");
    let output = gaudi(&["decode", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stdout.is_empty(), "what is whole is printed");
    let error = text(&output.stderr);
    assert!(
        error.contains("capture, byte ") && error.contains("ends inside a frame"),
        "{error}"
    );
}

/// Compiles the program for the driver's ioctls of the supervisor's tests. `None` without a
/// compiler.
fn driver_program(folder: &std::path::Path) -> Option<String> {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../hal/supervisor/tests/program.c"
    );
    let program = folder.join("program");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()));
    compiler.args(["-O1", "-pthread", source, "-o"]).arg(&program);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        skip_named("record_data", "a C compiler");
        return None;
    }
    Some(program.to_str().expect("UTF-8").to_owned())
}

/// The control word of Gaudi2's LIN_DMA packet without flags.
const LIN_DMA: &str = "0x09000000";

#[test]
fn recorded_data_is_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = driver_program(folder.path()) else {
        return;
    };
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let on_mock = [
        "--",
        env!("CARGO_BIN_EXE_gaudi"),
        "run",
        "-d",
        "mock:gaudi2",
        "--",
        &program,
        LIN_DMA,
    ];
    let record = |options: &[&str], file: &str| {
        let output = gaudi(&[&["record", "--output", file], options, &on_mock[..]].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stderr).contains(" 0 lost"), "{output:?}");
        text(&output.stdout)
    };
    let (whole, bare) = (path("whole.gcap"), path("bare.gcap"));
    let recorded = record(&["--data"], &whole);
    assert!(recorded.ends_with("all\n"), "{recorded}");
    let replayed = gaudi(&["replay", &whole, "--", &program, LIN_DMA]);
    assert_eq!(text(&replayed.stdout), recorded, "{replayed:?}");
    assert_eq!(replayed.status.code(), Some(0));

    record(&["--backend", "preload"], &bare);
    let zeros = gaudi(&["replay", &bare, "--", &program, LIN_DMA]);
    assert_eq!(zeros.status.code(), Some(1), "{zeros:?}");
    let last = text(&zeros.stdout);
    assert!(
        last.lines()
            .last()
            .is_some_and(|line| line.starts_with("bytes from the device")),
        "{last}"
    );
    assert!(text(&zeros.stderr).contains("zeros"), "{zeros:?}");

    let lines = text(&gaudi(&["decode", &whole]).stdout);
    let data: Vec<&str> = lines
        .lines()
        .filter(|line| line.contains("data{at=exit, address=0x"))
        .collect();
    assert!(!data.is_empty(), "{lines}");
    assert!(data.iter().all(|line| line.len() < 200), "in short: {data:?}");
    let (as_text, again) = (path("whole.txt"), path("again.gcap"));
    gaudi(&["decode", &whole, "--as", "text", "--output", &as_text]);
    gaudi(&["decode", &as_text, "--as", "gcap", "--output", &again]);
    assert_eq!(text(&gaudi(&["decode", &again]).stdout), lines);
    let replayed = gaudi(&["replay", &again, "--", &program, LIN_DMA]);
    assert_eq!(text(&replayed.stdout), recorded, "{replayed:?}");
}

#[test]
fn embedded_library_records_its_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("copy.gcap");
    let file = file.to_str().expect("UTF-8");
    // More than a record of a ring has room for.
    let copy = ["copy", "--size", "4MiB", "-d"];
    let recorder = [
        "record",
        "--data",
        "--output",
        file,
        "--",
        env!("CARGO_BIN_EXE_gaudi"),
    ];
    let recorded = gaudi(&[&recorder[..], &copy, &["mock:gaudi2"]].concat());
    assert!(recorded.status.success(), "{recorded:?}");
    assert!(text(&recorded.stderr).contains(" 0 lost"), "{recorded:?}");
    let replay = format!("replay:{file}");
    let replayed = gaudi(&[&copy[..], &[&replay]].concat());
    assert!(replayed.status.success(), "{replayed:?}");
    let verified = |output: &Output| text(&output.stdout).matches("verified").count();
    assert_eq!(verified(&replayed), verified(&recorded), "{replayed:?}");
    assert!(!text(&replayed.stderr).contains("zeros"), "{replayed:?}");
}

#[test]
fn data_needs_the_preload_library() {
    let output = gaudi(&[
        "record",
        "--data",
        "--backend",
        "bpf",
        "--output",
        "/dev/null",
        "--",
        "true",
    ]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("--backend preload"), "{output:?}");
}

#[test]
fn stat_groups_by_queue_and_device() {
    let groups = |by: &str| {
        let output = gaudi(&["stat", TEXT, "--by", by, "--json"]);
        assert!(output.status.success(), "{output:?}");
        let lines: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
        let rows = lines["operations"].as_array().expect("rows").clone();
        rows.into_iter()
            .map(|row| {
                let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                (
                    text("group"),
                    text("operation"),
                    row["calls"].as_u64().expect("a number"),
                )
            })
            .collect::<Vec<_>>()
    };
    let queues = groups("queue");
    let submissions: Vec<_> = queues
        .iter()
        .filter(|row| row.1 == "HL_IOCTL_CS")
        .map(|row| (row.0.as_str(), row.2))
        .collect();
    // The first failed, and its chunks could not be read.
    assert_eq!(submissions, [("-", 1), ("0", 1), ("0,1", 1)], "{queues:?}");
    let devices = groups("device");
    let versions: Vec<_> = devices
        .iter()
        .filter(|row| row.1 == "DRM_IOCTL_VERSION")
        .map(|row| (row.0.as_str(), row.2))
        .collect();
    assert_eq!(versions, [("/dev/accel/accel0", 1), ("/dev/accel/accel1", 1)]);
    let sum = |rows: &[(String, String, u64)]| rows.iter().map(|row| row.2).sum::<u64>();
    assert_eq!(sum(&queues), sum(&devices), "each call is in one group");
}

/// A program under ptrace(2) cannot trace its children, and user nobody cannot load bpf programs.
#[test]
fn auto_falls_back_to_preload() {
    let program = env!("CARGO_BIN_EXE_gaudi");
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        program,
    ];
    let outer = [
        "trace",
        "--quiet",
        "--backend",
        "ptrace",
        "--output",
        "/dev/null",
        "--",
    ];
    let output = gaudi(&[&outer[..], &nobody, &["trace", "--", "true"]].concat());
    let error = text(&output.stderr);
    if error.contains("setpriv") || error.contains("Permission denied") || error.contains("libgaudi_trace.so")
    {
        let need = "root, setpriv, libgaudi_trace.so, and a folder that user nobody can read";
        return skip_named("auto_falls_back_to_preload", need);
    }
    assert!(error.contains("note: tracing by preload\n"), "{error}");
    assert!(error.contains("exec{path=\"/usr/bin/true\"}"), "{error}");
    let notes = error
        .lines()
        .filter(|line| line.starts_with("note: ") || line.starts_with("      "));
    for line in notes {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
