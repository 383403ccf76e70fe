//! Compiles each program and runs it with the libraries of this build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The SONAME of each library, and the name of cargo's file.
const LIBRARIES: [(&str, &str); 5] = [
    ("libhl-thunk.so", "libhl_thunk.so"),
    ("libhl-thunk-err_injection.so", "libhl_thunk_err_injection.so"),
    ("libscal.so", "libscal.so"),
    ("libSynapse.so", "libSynapse.so"),
    ("libSynapseMme.so", "libSynapseMme.so"),
];
const ALL: [&str; 4] = ["hl-thunk", "scal", "Synapse", "SynapseMme"];

/// A directory with libraries under their SONAMEs, and a program.
struct Place(TempDir);

impl Place {
    /// Creates a directory with all libraries except `without`.
    fn new(without: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let test = std::env::current_exe().expect("the test's own path");
        let built = test.parent().expect("the test's path has a directory");
        for (name, file) in LIBRARIES.iter().filter(|row| Some(row.0) != without) {
            let library = built.join(file);
            assert!(library.is_file(), "cargo did not build {}", library.display());
            symlink(library, dir.path().join(name)).expect("a link in the temporary directory");
        }
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles a program and links it with libraries.
    fn compile(&self, name: &str, libraries: &[&str]) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.path().join(name);
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
        let mut command = Command::new(compiler);
        command
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
            .arg(root.join("../../drivers/hlthunk/include"))
            .arg(root.join(format!("programs/{name}.c")))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.path())
            // UCX's build links all libraries, and keeps those that a program does not call.
            .arg("-Wl,--no-as-needed")
            .args(libraries.iter().map(|library| format!("-l{library}")));
        let output = command.output().expect("a C compiler ($CC, or gcc)");
        assert!(output.status.success(), "{name}: {}", text(&output));
        program
    }

    fn command(&self, program: &Path, device: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_remove("GAUDI_TRACE")
            .env_remove("GAUDI_FAULT")
            .env("LD_LIBRARY_PATH", self.path())
            .env("GAUDI_DEVICE", device);
        command
    }

    fn run(&self, program: &Path, device: &str) -> Output {
        self.command(program, device)
            .output()
            .expect("the program starts")
    }
}

fn text(output: &Output) -> String {
    let bytes = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A mock with four pages of device memory.
const MOCK: &str = "mock:gaudi2?dram=3GiB";

/// Compiles and runs a program on the mock.
#[track_caller]
fn passes(name: &str, libraries: &[&str]) {
    let place = Place::new(None);
    let program = place.compile(name, libraries);
    let output = place.run(&program, MOCK);
    assert!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        text(&output)
    );
}

#[test]
fn perftest_exports_and_frees_buffers() {
    passes("perftest", &["hl-thunk", "Synapse"]);
}

#[test]
fn libfabric_finds_dma_bufs() {
    passes("libfabric", &["hl-thunk"]);
}

#[test]
fn fabtests_copies_and_fills() {
    passes("fabtests", &[]);
}

#[test]
fn all_mappings_are_unmapped() {
    let place = Place::new(None);
    let program = place.compile("fabtests", &[]);
    let trace = place.path().join("trace");
    let mut command = place.command(&program, MOCK);
    let output = command
        .env("GAUDI_TRACE", &trace)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
    let trace = fs::read_to_string(trace).expect("the trace");
    let succeeded = |call: &str| {
        let call = format!(r#""call":"{call}""#);
        let lines = trace.lines().filter(|line| line.contains(&call));
        lines.filter(|line| !line.contains(r#""error":"#)).count()
    };
    let [host, device, unmapped] = ["mem_map_host", "mem_map_device", "mem_unmap"].map(succeeded);
    assert_eq!(device, 2, "a pool in each of two sessions");
    assert!(host > 100, "copies map the program's memory: {host}");
    assert_eq!(host + device, unmapped);
}

#[test]
fn threads_and_fork_children_are_separate() {
    passes("threads", &["Synapse"]);
}

#[test]
fn cancelled_threads_end_without_abort() {
    passes("cancel", &["hl-thunk"]);
}

#[test]
fn ucx_exports_the_pool() {
    passes("ucx", &ALL);
}

#[test]
fn injected_errors_are_reported() {
    passes("err_injection", &["hl-thunk", "hl-thunk-err_injection"]);
}

#[test]
fn missing_device_is_reported() {
    let place = Place::new(None);
    let program = place.compile("no_device", &["Synapse"]);
    let output = place.run(&program, "kernel:255");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn missing_library_is_reported() {
    let place = Place::new(Some("libhl-thunk.so"));
    let program = place.compile("no_library", &["Synapse", "scal", "hl-thunk-err_injection"]);
    let output = place.run(&program, "mock:gaudi2");
    assert!(output.status.success(), "{}", text(&output));
    // Shims print their names.
    let printed = text(&output);
    for name in [
        "libSynapse.so (shim",
        "libscal.so (shim",
        "libhl-thunk-err_injection.so (",
    ] {
        assert!(printed.contains(name), "{name}: {printed}");
    }
    assert!(printed.contains("libhl-thunk.so: cannot open"), "{printed}");
}

/// Returns the dynamic symbols that a library defines.
fn exports(library: &str) -> Vec<String> {
    let place = Place::new(None);
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(place.path().join(library))
        .output()
        .expect("nm starts");
    assert!(output.status.success(), "{}", text(&output));
    let text = text(&output);
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.map(str::to_owned).collect()
}

/// Returns the functions that a header of `drivers/hlthunk/include` declares, sorted.
fn declared(header: &str, prefixes: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../../drivers/hlthunk/include").join(header);
    let text = fs::read_to_string(path).expect("the header");
    // A prototype is a line that starts with a type; its name precedes the first parenthesis.
    let lines = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let names = lines.filter_map(|line| line.split_once('(')?.0.split_whitespace().last());
    let mut names: Vec<String> = names
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

#[test]
fn exports_are_what_headers_declare() {
    for (library, header, prefixes, count) in [
        ("libSynapse.so", "synapse_api.h", &["syn", "hccl"][..], 15),
        ("libscal.so", "scal.h", &["scal_"], 5),
        (
            "libhl-thunk-err_injection.so",
            "hlthunk_err_inject.h",
            &["hlthunk_"],
            6,
        ),
    ] {
        let declared = declared(header, prefixes);
        assert_eq!(declared.len(), count, "{header}: {declared:?}");
        assert_eq!(exports(library), declared, "{library}");
    }
    assert_eq!(exports("libSynapseMme.so"), [""; 0]);
}

#[test]
fn sonames_are_unversioned() {
    let place = Place::new(None);
    for (name, _) in &LIBRARIES[1..] {
        let output = Command::new("readelf")
            .arg("-d")
            .arg(place.path().join(name))
            .output()
            .expect("readelf starts");
        let text = text(&output);
        assert!(text.contains(&format!("soname: [{name}]")), "{name}: {text}");
        let of_system = |line: &str| {
            let known = ["libc.so", "libgcc_s.so", "ld-linux"];
            known.iter().any(|known| line.contains(known))
        };
        for needed in text.lines().filter(|line| line.contains("(NEEDED)")) {
            assert!(of_system(needed), "{name}: {needed}");
        }
    }
}
