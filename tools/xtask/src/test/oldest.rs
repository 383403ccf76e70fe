//! Checks the manifests' `rust-version` with that compiler and cargo, from Debian's packages.
//!
//! They are unpacked in the cache and run with their own loader and libraries, so the machine is
//! not changed; only the linker is the machine's. Test crates and this program are left out:
//! `rust-version` applies to the library and its tools.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::bail;

use crate::files::{self, At as _};
use crate::ledger::Row;
use crate::missing::missing;
use crate::packages::{Cache, Pins};
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

const NAME: &str = "rust-version";
/// Debian's folder of libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The row of a [`check`] that was waited for since `begin`.
pub(super) fn row(checked: Checked, begin: Instant) -> Row {
    let mut row = Row {
        name: NAME.to_owned(),
        seconds: begin.elapsed().as_secs_f64(),
        begin: Some(begin),
        ..Row::default()
    };
    row.settle(NAME, checked);
    row
}

/// The compiler's version.
type Checked = anyhow::Result<String>;

pub(super) fn check(workspace: &Workspace, show: Show) -> Checked {
    if ARCH != "x86_64" {
        return missing("the pinned compiler is for amd64: run on an amd64 machine");
    }
    let claim = claim(workspace)?;
    let tree = Cache::open()?.bundle(&Pins::load(&workspace.root)?.rust)?.tree;
    let target = workspace.root.join("target/oldest");
    files::make_folder(&target)?;
    let compiler = wrapper(&tree, &target)?;
    let version = match run::text(Command::new(&compiler).arg("--version")) {
        Ok(version) => version,
        Err(error) => {
            return missing(format!(
                "{error:#}: set GAUDI_CACHE to a folder that is not mounted noexec"
            ));
        }
    };
    if !is_of(&version, &claim) {
        return missing(format!(
            "Debian's compiler is {version} now, but the manifests have rust-version {claim}: change the pin or the manifests"
        ));
    }
    let mut command = loaded(&tree, "usr/bin/cargo");
    command.args(["check", "--locked", "--target-dir"]).arg(&target);
    for name in production(workspace) {
        command.args(["--package", name]);
    }
    command.current_dir(&workspace.root).env("RUSTC", &compiler);
    // Set by the cargo that runs this program.
    for name in [
        "CARGO",
        "RUSTC_WRAPPER",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "LD_LIBRARY_PATH",
    ] {
        command.env_remove(name);
    }
    let outcome = run::run(&command, &workspace.logs.join("oldest.log"), LIMIT, show)?;
    outcome.check("cargo check by Rust of the claim")?;
    Ok(version)
}

/// The rust-version that all manifests have.
fn claim(workspace: &Workspace) -> anyhow::Result<String> {
    let mut claims: Vec<_> = workspace
        .crates
        .iter()
        .map(|member| member.rust_version.clone())
        .collect();
    claims.sort();
    claims.dedup();
    match &claims[..] {
        [Some(claim)] => Ok(claim.clone()),
        _ => bail!("the crates have different rust-version values: {claims:?}"),
    }
}

fn production(workspace: &Workspace) -> impl Iterator<Item = &str> {
    let all = workspace.crates.iter();
    let chosen = all.filter(|member| !member.folder.starts_with("tests/") && member.folder != "tools/xtask");
    chosen.map(|member| member.name.as_str())
}

/// Whether what `rustc --version` printed is of a series such as 1.85.
fn is_of(version: &str, claim: &str) -> bool {
    let number = version.split_whitespace().nth(1).unwrap_or_default();
    number
        .strip_prefix(claim)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A program of the tree, run by the loader and the libraries of the tree.
fn loaded(tree: &Path, program: &str) -> Command {
    let libraries = tree.join(LIBRARIES);
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .arg(libraries)
        .arg(tree.join(program));
    command
}

/// rustc as one program, as cargo expects it.
fn wrapper(tree: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let libraries = tree.join(LIBRARIES);
    let text = format!(
        "#!/bin/sh\nexec {} --library-path {} {} --sysroot {} \"$@\"\n",
        quoted(&libraries.join("ld-linux-x86-64.so.2")),
        quoted(&libraries),
        quoted(&tree.join("usr/bin/rustc")),
        quoted(&tree.join("usr"))
    );
    let path = folder.join("rustc");
    // cargo treats a compiler with a newer time as another one and rebuilds everything.
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        fs::write(&path, text).at("write", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Crate;

    fn member(name: &str, folder: &str, claim: Option<&str>) -> Crate {
        Crate {
            name: name.to_owned(),
            folder: folder.to_owned(),
            rust_version: claim.map(str::to_owned),
            ..Crate::default()
        }
    }

    fn workspace(crates: Vec<Crate>) -> Workspace {
        Workspace {
            root: PathBuf::new(),
            logs: PathBuf::new(),
            crates,
            arrows: crate::workspace::Arrows::new(),
        }
    }

    #[test]
    fn version_is_compared_by_its_numbers() {
        assert!(is_of(
            "rustc 1.85.0 (4d91de4e4 2025-02-17) (built from a source tarball)",
            "1.85"
        ));
        assert!(is_of("rustc 1.85.0", "1.85.0"));
        for other in ["rustc 1.86.0", "rustc 1.850.0", "rustc", ""] {
            assert!(!is_of(other, "1.85"), "{other:?}");
        }
    }

    #[test]
    fn tests_and_tasks_are_left_out() {
        let all = workspace(vec![
            member("gaudi-sys", "hal/sys", Some("1.85")),
            member("gaudi-lab", "tests/lab", Some("1.85")),
            member("xtask", "tools/xtask", Some("1.85")),
            member("gaudi-cli", "tools/gaudi", Some("1.85")),
        ]);
        assert_eq!(production(&all).collect::<Vec<_>>(), ["gaudi-sys", "gaudi-cli"]);
        assert_eq!(claim(&all).expect("one claim"), "1.85");
    }

    #[test]
    fn crates_must_claim_one_version() {
        for other in [Some("1.80"), None] {
            let all = workspace(vec![member("a", "a", Some("1.85")), member("b", "b", other)]);
            assert!(claim(&all).is_err(), "{other:?}");
        }
    }
}
