//! Builds modules for a guest's kernel, with Debian's headers and compiler: the lab's `rdma_rxe`,
//! and `hl_open_flag`.
//!
//! - Everything comes from Debian's packages and is unpacked in the cache. The machine needs a user
//!   namespace to change its root in.
//! - A module is cached under a digest of its inputs, so that a later run needs no build.
//! - A missing module, or a patch that does not apply, does not fail the run: tests that need it
//!   are skipped, and the reason names the remedy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::kernels::Kernel;
use crate::files::{self, At as _};
use crate::missing::{OrSkip as _, missing};
use crate::packages::Cache;
use crate::run::{self, Show};

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

/// A module that the lab builds.
pub(super) struct Recipe {
    /// The file that the build leaves, such as `rdma_rxe.ko`.
    module: &'static str,
    /// The folder of its sources, relative to the workspace's root.
    folder: &'static str,
    /// The files of that folder that it is built from.
    files: &'static [&'static str],
    /// If the module is built from the kernel's own driver, a patch for it in that folder.
    patch: Option<&'static str>,
    /// Variables for make(1).
    variables: &'static [&'static str],
}

/// The lab's `rdma_rxe`.
pub(super) const RXE: Recipe = Recipe {
    module: "rdma_rxe.ko",
    folder: "tests/lab/rxe-dmabuf",
    files: &["rxe_dmabuf.c", "rxe_dmabuf.h"],
    patch: Some("hooks.patch"),
    variables: &["CONFIG_RDMA_RXE=m"],
};

/// The open flag, for guests with cards.
pub(super) const OPEN_FLAG: Recipe = Recipe {
    module: "hl_open_flag.ko",
    folder: "tools/hl-open-flag",
    files: &["hl_open_flag.c", "Makefile"],
    patch: None,
    variables: &[],
};

/// Builds the module for a kernel's release.
pub(super) fn build(
    cache: &Cache,
    root: &Path,
    row: &Kernel,
    release: &str,
    busybox: &Path,
    recipe: &Recipe,
) -> anyhow::Result<PathBuf> {
    let own = |name: &&str| root.join(recipe.folder).join(name);
    let mut source = None;
    if let Some(patch) = recipe.patch {
        let (bundle, folder) = row.source(busybox);
        source = Some((own(&patch), cache.bundle(&bundle)?.tree, folder));
    }
    let tools = cache.bundle(&row.tools(release))?.tree;
    let mut digest = Sha256::new();
    for tree in [&tools].into_iter().chain(source.iter().map(|(_, tree, _)| tree)) {
        digest.update(files::name(tree));
    }
    digest.update(SCRIPT);
    recipe
        .variables
        .iter()
        .for_each(|variable| digest.update(variable));
    for name in recipe.patch.iter().chain(recipe.files) {
        digest.update(files::read(&own(name))?);
    }
    cache.made(&digest.finalize(), recipe.module, |part| {
        eprintln!(
            "building {} for {release}: up to two minutes, once",
            recipe.module
        );
        let build = part.join("build");
        files::make_folder(&build)?;
        if let Some((_, tree, folder)) = &source {
            copy(files::children(&tree.join(folder))?, &build)?;
        }
        copy(recipe.files.iter().map(own), &build)?;
        if let Some((patch, _, _)) = &source {
            apply(patch, &build)?;
        }
        make(&tools, &build, release, recipe)?;
        fs::rename(build.join(recipe.module), part.join(recipe.module))
            .context("the build left no module")?;
        files::remove_folder(&build)
    })
}

/// Copies files, and leaves out folders.
fn copy(from: impl IntoIterator<Item = PathBuf>, to: &Path) -> anyhow::Result<()> {
    for file in from.into_iter().filter(|path| !path.is_dir()) {
        fs::copy(&file, to.join(files::name(&file))).at("copy", &file)?;
    }
    Ok(())
}

/// Applies a patch with git: patch(1) may be missing.
fn apply(patch: &Path, build: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("git");
    command.arg("apply").arg(patch).current_dir(build);
    // In a repository around the cache, git would take the paths for that repository's.
    command.env("GIT_CEILING_DIRECTORIES", build.parent().unwrap_or(build));
    let applied = run::output(&mut command).map(drop);
    applied
        .with_context(|| format!("{} does not apply to this kernel", patch.display()))
        .or_skip("install git, move the patch, or pin a kernel that it knows")
}

fn make(tools: &Path, build: &Path, release: &str, recipe: &Recipe) -> anyhow::Result<()> {
    prepare(tools)?;
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    run::output(unshare().arg("true")).or_skip(
        "a module is built in a user namespace: set kernel.unprivileged_userns_clone=1, or run as root; in a \
         chroot(2) there is none",
    )?;
    let mut command = unshare();
    command.args(["sh", "-c", SCRIPT, "lab"]).arg(tools).arg(build);
    command.args([release, recipe.module]).args(recipe.variables);
    let outcome = run::run(&command, &build.join("build.log"), LIMIT, Show::Quiet)?;
    if outcome.ok() {
        return Ok(());
    }
    let words = ["error", "Error", "rror:", "not found"];
    let is_error = |line: &String| words.iter().any(|word| line.contains(word));
    let line = outcome.lines().find(is_error).or_else(|| outcome.lines().last());
    missing(format!(
        "{} cannot be built for {release} ({}): pin headers and sources of one version, or fix {}",
        recipe.module,
        line.as_deref().unwrap_or("no message"),
        recipe.folder
    ))
}

/// Steps of installing the packages: folders that are mounted over, and the names of a merged /usr.
fn prepare(tools: &Path) -> anyhow::Result<()> {
    for folder in ["proc", "dev", "tmp", "build"] {
        files::make_folder(&tools.join(folder))?;
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
            std::os::unix::fs::symlink(target, &name).at("make", &name)?;
        }
    }
    if !tools.join("bin/sh").exists() {
        bail!("{} has no shell", tools.display());
    }
    Ok(())
}
