//! libgaudi_copy.so.0, linked from the static library that cargo builds: rustc links a shared
//! library with a version script of its own, which leaves no place for symbol versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::run;
use crate::workspace::Workspace;

/// The crate.
pub(crate) const CRATE: &str = "gaudi-copy-c";
/// Its folder in the tree, with `include/gaudi_copy.h` and the version script.
pub(crate) const FOLDER: &str = "drivers/copy/c";
/// The library's name, and its file's.
pub(crate) const SONAME: &str = "libgaudi_copy.so.0";
/// What a linker looks for.
pub(crate) const LINK: &str = "libgaudi_copy.so";
/// Libraries of the system that Rust's standard library needs.
pub(crate) const SYSTEM: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// Links the library in a folder of cargo's, such as `target/release`, and returns its path.
pub(crate) fn link(workspace: &Workspace, folder: &Path) -> anyhow::Result<PathBuf> {
    let library = folder.join(SONAME);
    let script = workspace.root.join(FOLDER).join("gaudi_copy.map");
    // `nodelete`: threads of the library may run when a program calls dlclose(3).
    let mut link = Command::new("cc");
    link.arg("-shared").arg("-o").arg(&library).args([
        &format!("-Wl,-soname,{SONAME}"),
        &format!("-Wl,--version-script={}", script.display()),
        "-Wl,--gc-sections",
        "-Wl,-z,nodelete,-z,defs,-z,relro,-z,now",
        "-Wl,--whole-archive",
    ]);
    link.arg(folder.join("libgaudi_copy_c.a"))
        .arg("-Wl,--no-whole-archive")
        .args(SYSTEM.split(' '));
    run::output(&mut link).with_context(|| format!("cannot link {}", library.display()))?;
    exports(&library)?;
    Ok(library)
}

/// Fails unless every symbol that the library exports is one of ours, with a version. Returns their
/// number.
pub(crate) fn exports(library: &Path) -> anyhow::Result<usize> {
    let table = run::text(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let mut count = 0;
    for line in table.lines() {
        let symbol = line.split_whitespace().last().unwrap_or_default();
        if line.contains(" A GAUDI_COPY_") {
            continue; // a version itself
        }
        let (name, version) = symbol.split_once("@@").unwrap_or((symbol, ""));
        if !name.starts_with("gaudi_copy_") || !version.starts_with("GAUDI_COPY_") {
            bail!("{} exports {symbol:?}", library.display());
        }
        count += 1;
    }
    ensure!(count > 0, "{} exports nothing", library.display());
    Ok(count)
}
