//! The lab's own build of `rdma_rxe`: Debian's source and our patch, built by [`kmod`].
//!
//! A patch that does not apply to a newer kernel does not fail the run: its tests are skipped, and
//! the reason names the remedy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::kernels::Kernel;
use super::kmod::{self, Recipe};
use crate::missing::missing;
use crate::packages::Cache;

/// Relative to the workspace's root: the patch, and the files that it needs beside it.
const FOLDER: &str = "tests/lab/rxe-dmabuf";
const PATCH: &str = "hooks.patch";
const FILES: [&str; 3] = [PATCH, "rxe_dmabuf.c", "rxe_dmabuf.h"];

/// The module for a kernel's release.
pub(super) fn build(
    cache: &Cache,
    root: &Path,
    row: &Kernel,
    release: &str,
    busybox: &Path,
) -> anyhow::Result<PathBuf> {
    let (source, folder) = row.source();
    let source = cache.bundle_with(&source, busybox)?.tree;
    let recipe = Recipe {
        module: "rdma_rxe.ko",
        folder: FOLDER,
        files: &FILES,
        source: Some(&source),
        variables: &["CONFIG_RDMA_RXE=m"],
    };
    kmod::build(cache, root, row, release, busybox, &recipe, |build| {
        copy_files(&source.join(folder), build)?;
        for name in &FILES[1..] {
            fs::copy(root.join(FOLDER).join(name), build.join(name))?;
        }
        apply(&root.join(FOLDER).join(PATCH), build)
    })
}

/// The files of a folder, without those below it.
fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// git applies it, since it is there where patch(1) may not be.
fn apply(patch: &Path, build: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("git");
    command.arg("apply").arg(patch).current_dir(build);
    // In a repository around the cache, git would take the paths for that repository's.
    command.env("GIT_CEILING_DIRECTORIES", build.parent().unwrap_or(build));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return missing(format!("git does not run ({error}): install git")),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().last().unwrap_or("no message");
    missing(format!(
        "{FOLDER}/{PATCH} does not apply to this kernel ({line}): move the patch, or pin a kernel that it knows"
    ))
}
