//! Cases in C (`c/client.c`), compiled with cc(1) against this tree's headers and linked with
//! `-lhl-thunk`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use gaudi_conformance::{Failure, Verdict};

use crate::bench::Bench;
use crate::case::cases;
use crate::library::{SONAME, path};

cases! { "c":
    "conventions", "hlthunk.h:hlthunk_open" => |bench| run(bench, "conventions");
    "discovery", "hlthunk.h:hlthunk_get_pci_bus_id_from_fd" => |bench| run(bench, "discovery");
    "information", "hlthunk.h:hlthunk_get_hw_ip_info" => |bench| run(bench, "information");
    "buffers", "client:hl-thunk/tests/command_buffer.c:test_cb_mmap" => |bench| run(bench, "buffers");
    "submission", "client:hl-thunk/tests/command_submission.c:test_cs_nop" => |bench| run(bench, "submission");
    "copies", "client:hl-thunk/tests/dma_dram.c:test_dma_dram" => |bench| run(bench, "copies");
    "exports", "client:perftest/hl_memory.c:hl_memory_get_dmabuf_fd" => |bench| run(bench, "exports");
    "duplicates", "client:hl-thunk/tests/debug.c:test_duplicate_file_descriptor" => |bench| run(bench, "duplicates");
    "texts", "hlthunk.h:hlthunk_get_version" => |bench| run(bench, "texts");
    "timeouts", "hlthunk.h:hlthunk_wait_for_interrupt" => |bench| run(bench, "timeouts");
}

/// The program, compiled by this crate's build script. Empty if there was no compiler, or after an
/// error.
const CLIENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/client"));
/// The compiler's messages.
const MESSAGES: &str = include_str!(concat!(env!("OUT_DIR"), "/messages"));

/// Returns whether the machine that built this program had a C compiler.
pub(crate) fn is_compiled() -> bool {
    !CLIENT.is_empty() || !MESSAGES.is_empty()
}

/// Writes the program once. Returns its directory, which contains the library under its SONAME.
fn program() -> Result<&'static Path, Failure> {
    static FOLDER: OnceLock<Result<tempfile::TempDir, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if !MESSAGES.is_empty() {
            return Err(MESSAGES.to_owned());
        }
        write().map_err(|error| error.to_string())
    });
    match folder {
        Ok(folder) => Ok(folder.path()),
        Err(error) => Err(Failure::new("compiling c/client.c", "success", error)),
    }
}

fn write() -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    symlink(path().canonicalize()?, folder.path().join(SONAME))?;
    let client = folder.path().join("client");
    fs::write(&client, CLIENT)?;
    fs::set_permissions(&client, fs::Permissions::from_mode(0o700))?;
    Ok(folder)
}

fn run(bench: &mut Bench, case: &str) -> Verdict {
    let folder = program()?;
    bench.close()?;
    let output = Command::new(folder.join("client"))
        .arg(case)
        .env("LD_LIBRARY_PATH", folder)
        .output();
    let output = output.map_err(|error| Failure::new("c/client", "a run", error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Err(Failure::new(
        format!("c/client {case}"),
        "exit status 0",
        format!("{}: {text}", output.status),
    ))
}
