//! Compiles `c/client.c` against this tree's headers, for guests without a compiler.
//!
//! Links a stub library with the real one's name and empty functions, because cargo builds the real
//! one after this script. Without cc(1) the output is an empty file; after an error the messages
//! are stored next to it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

const SOURCE: &str = "c/client.c";
const HEADERS: &str = "../../drivers/hlthunk/include";

/// Returns the functions of the library that a source file calls.
fn functions(source: &str) -> BTreeSet<&str> {
    source
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("hlthunk_"))
        .collect()
}

/// Runs cc(1). Returns its messages on failure.
fn cc(words: &[&str]) -> io::Result<Result<(), String>> {
    let output = Command::new("cc").args(words).output()?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() {
        Ok(())
    } else {
        Err(messages)
    })
}

fn compile(folder: &Path) -> io::Result<Result<(), String>> {
    let text = fs::read_to_string(SOURCE)?;
    let stubs: String = functions(&text)
        .iter()
        .map(|name| format!("void {name}(void) {{}}\n"))
        .collect();
    let (stub, library) = (folder.join("stub.c"), folder.join("libhl-thunk.so"));
    fs::write(&stub, stubs)?;
    let (stub, library) = (stub.display().to_string(), library.display().to_string());
    let soname = "-Wl,-soname,libhl-thunk.so";
    if let Err(messages) = cc(&["-shared", "-w", soname, "-o", &library, &stub])? {
        return Ok(Err(messages));
    }
    let client = folder.join("client").display().to_string();
    let strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", HEADERS];
    cc(&[&strict[..], &["-o", &client, SOURCE, &library]].concat())
}

fn main() -> io::Result<()> {
    for path in ["build.rs", SOURCE, HEADERS] {
        println!("cargo::rerun-if-changed={path}");
    }
    let variable = |name| env::var_os(name).expect("cargo sets it");
    let folder = variable("OUT_DIR");
    let folder = Path::new(&folder);
    for name in ["client", "messages"] {
        fs::write(folder.join(name), "")?;
    }
    // cc(1) compiles for the host only.
    if variable("HOST") != variable("TARGET") {
        return Ok(());
    }
    match compile(folder) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(messages)) => fs::write(folder.join("messages"), messages),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
