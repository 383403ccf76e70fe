//! Puts the commit that the program is built from into its version, where that is known.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=GAUDI_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // A package that is built from an archive names its commit itself.
    let given = std::env::var("GAUDI_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let text = match given.or_else(commit) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo:rustc-env=GAUDI_VERSION={text}");
}

/// The commit of the repository that this crate lies in; nothing without git, or in an archive of
/// the sources.
fn commit() -> Option<String> {
    let workspace = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(&workspace)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Sources that are copied into another repository do not have that one's commit.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    (Path::new(&top).canonicalize().ok()? == workspace.canonicalize().ok()?).then_some(())?;
    // Each commit and checkout writes a line to this log.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}
