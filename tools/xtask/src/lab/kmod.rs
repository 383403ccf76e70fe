//! Builds modules for a guest's kernel, with Debian's headers and compiler: the lab's `rdma_rxe`,
//! and `hl_open_flag`.
//!
//! - Everything comes from Debian's packages and is unpacked in the cache. The machine needs a user
//!   namespace to change its root in.
//! - A module is cached under a digest of its inputs, so that a later run needs neither.
//! - A missing module does not fail the run: tests that need it are skipped, and the reason names
//!   the remedy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::kernels::Kernel;
use crate::missing::missing;
use crate::packages::Cache;
use crate::run;

/// Ten times the build time of the largest module on two busy cores.
const LIMIT: Duration = Duration::from_secs(1200);

/// Runs in a user and mount namespace of its own: `$1` is the tree of tools, `$2` the folder to
/// build, `$3` the kernel's release, `$4` the module's file; variables for make(1) follow. objtool
/// reads /proc. Types for BPF (BTF) would need the kernel's own file.
const SCRIPT: &str = r#"set -e
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmp "$1/tmp"
mount --bind "$2" "$1/build"
tree=$1 release=$3 module=$4
shift 4
in_tree() { chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
in_tree make -j2 -C "/usr/src/linux-headers-$release" M=/build CONFIG_DEBUG_INFO_BTF_MODULES= "$@" modules
in_tree strip --strip-debug "/build/$module"
"#;

/// The inputs of a module.
pub(super) struct Recipe<'a> {
    /// The file that the build leaves, such as `rdma_rxe.ko`.
    pub(super) module: &'a str,
    /// The folder of its sources, relative to the workspace's root.
    pub(super) folder: &'a str,
    /// The files of that folder that it is built from.
    pub(super) files: &'a [&'a str],
    /// A folder of the kernel's sources that the module also needs; it is part of the digest.
    pub(super) source: Option<&'a Path>,
    /// Variables for make(1).
    pub(super) variables: &'a [&'a str],
}

/// Builds the module for a kernel's release. `fill` copies the sources into the folder to build.
pub(super) fn build(
    cache: &Cache,
    root: &Path,
    row: &Kernel,
    release: &str,
    busybox: &Path,
    recipe: &Recipe<'_>,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let tools = cache.bundle_with(&row.tools(release), busybox)?.tree;
    let mut digest = Sha256::new();
    for tree in [Some(tools.as_path()), recipe.source].into_iter().flatten() {
        digest.update(tree.file_name().unwrap_or_default().as_encoded_bytes());
    }
    digest.update(SCRIPT);
    for variable in recipe.variables {
        digest.update(variable);
    }
    for name in recipe.files {
        let file = root.join(recipe.folder).join(name);
        digest.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    cache.made(&digest.finalize(), recipe.module, |part| {
        eprintln!(
            "building {} for {release}: up to two minutes, once",
            recipe.module
        );
        let build = part.join("build");
        fs::create_dir_all(&build)?;
        fill(&build)?;
        make(&tools, &build, release, recipe)?;
        fs::rename(build.join(recipe.module), part.join(recipe.module))
            .context("the build left no module")?;
        fs::remove_dir_all(build)?;
        Ok(())
    })
}

/// The open flag's module, for guests with cards (`tools/hl-open-flag`).
pub(super) fn open_flag(
    cache: &Cache,
    root: &Path,
    row: &Kernel,
    release: &str,
    busybox: &Path,
) -> anyhow::Result<PathBuf> {
    const FOLDER: &str = "tools/hl-open-flag";
    const FILES: [&str; 2] = ["hl_open_flag.c", "Makefile"];
    let recipe = Recipe {
        module: "hl_open_flag.ko",
        folder: FOLDER,
        files: &FILES,
        source: None,
        variables: &[],
    };
    build(cache, root, row, release, busybox, &recipe, |build| {
        for name in FILES {
            fs::copy(root.join(FOLDER).join(name), build.join(name))?;
        }
        Ok(())
    })
}

fn make(tools: &Path, build: &Path, release: &str, recipe: &Recipe<'_>) -> anyhow::Result<()> {
    prepare(tools)?;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    if !command
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return missing(
            "this machine gives no user namespace to build in: set kernel.unprivileged_userns_clone=1, or run as a \
             user who may",
        );
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "lab"]);
    command.arg(tools).arg(build).arg(release);
    command.arg(recipe.module).args(recipe.variables);
    let log = build.join("build.log");
    let file = File::create(&log)?;
    let status = run::limited(&command, LIMIT)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .context("cannot run timeout")?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let is_error = |line: &&str| {
        ["error", "Error", "rror:", "not found"]
            .iter()
            .any(|word| line.contains(word))
    };
    let line = said
        .lines()
        .find(is_error)
        .or(said.lines().last())
        .unwrap_or("no message");
    missing(format!(
        "{} cannot be built for {release} ({line}): pin headers and sources of one version, or fix {}",
        recipe.module, recipe.folder
    ))
}

/// Steps of installing the packages: folders that are mounted over, and the names of a merged /usr.
fn prepare(tools: &Path) -> anyhow::Result<()> {
    for folder in ["proc", "dev", "tmp", "build"] {
        fs::create_dir_all(tools.join(folder))?;
    }
    let links = [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("usr/bin/awk", "mawk"),
    ];
    for (name, target) in links {
        let name = tools.join(name);
        if fs::symlink_metadata(&name).is_err() {
            std::os::unix::fs::symlink(target, &name)
                .with_context(|| format!("cannot make {}", name.display()))?;
        }
    }
    if !tools.join("bin/sh").exists() {
        bail!("{} has no shell", tools.display());
    }
    Ok(())
}
