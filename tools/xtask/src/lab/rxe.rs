//! The lab's own build of `rdma_rxe`: Debian's source, our patch, Debian's headers and compiler.
//!
//! - Everything comes from Debian's packages and is unpacked in the cache: the machine needs git, and a user namespace
//!   to change its root in.
//! - The module lies under a digest of all that it is made of, so that a later run needs neither.
//! - What is missing, or a patch that does not apply to a newer kernel, is no failure of the run: its tests are skipped,
//!   and the words say what would help.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::kernels::Kernel;
use crate::packages::Cache;
use crate::run;

/// Relative to the workspace's root: the patch, and the files that it needs beside it.
const FOLDER: &str = "tests/lab/rxe-dmabuf";
const PATCH: &str = "hooks.patch";
const FILES: [&str; 2] = ["rxe_dmabuf.c", "rxe_dmabuf.h"];
const MODULE: &str = "rdma_rxe.ko";
/// Ten times what it takes on two busy cores.
const LIMIT: Duration = Duration::from_secs(1200);

/// Runs in a user and mount namespace of its own: `$1` is the tree of tools, `$2` the folder to build, `$3` the kernel's
/// release. objtool reads /proc; types for BPF (BTF) would need the kernel's own file, and nobody reads them here.
const SCRIPT: &str = r#"set -e
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmp "$1/tmp"
mount --bind "$2" "$1/build"
tree=$1 release=$3
set -- chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
"$@" make -j2 -C "/usr/src/linux-headers-$release" M=/build CONFIG_RDMA_RXE=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
"$@" strip --strip-debug /build/rdma_rxe.ko
"#;

/// The module for a kernel's release. The inner error says what is missing.
pub(super) fn build(
    cache: &Cache,
    root: &Path,
    row: &Kernel,
    release: &str,
    busybox: &Path,
) -> anyhow::Result<Result<PathBuf, String>> {
    let tools = match cache.bundle_with(&row.tools(release), busybox)? {
        Ok(tools) => tools.tree,
        Err(need) => return Ok(Err(need)),
    };
    let (source, folder) = row.source();
    let source = match cache.bundle_with(&source, busybox)? {
        Ok(source) => source.tree,
        Err(need) => return Ok(Err(need)),
    };
    let mut digest = Sha256::new();
    for tree in [&tools, &source] {
        digest.update(tree.file_name().unwrap_or_default().as_encoded_bytes());
    }
    digest.update(SCRIPT);
    for name in [PATCH].iter().chain(&FILES) {
        let file = root.join(FOLDER).join(name);
        digest.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    cache.made(&digest.finalize(), MODULE, |part| {
        let build = part.join("build");
        copy_files(&source.join(folder), &build)?;
        for name in FILES {
            fs::copy(root.join(FOLDER).join(name), build.join(name))?;
        }
        if let Err(need) = apply(&root.join(FOLDER).join(PATCH), &build)? {
            return Ok(Err(need));
        }
        if let Err(need) = make(&tools, &build, release)? {
            return Ok(Err(need));
        }
        fs::rename(build.join(MODULE), part.join(MODULE)).context("the build left no module")?;
        fs::remove_dir_all(build)?;
        Ok(Ok(()))
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
fn apply(patch: &Path, build: &Path) -> anyhow::Result<Result<(), String>> {
    let mut command = Command::new("git");
    command.arg("apply").arg(patch).current_dir(build);
    // In a repository around the cache, git would take the paths for that repository's.
    command.env("GIT_CEILING_DIRECTORIES", build.parent().unwrap_or(build));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Ok(Err(format!("git does not run ({error}): install git"))),
    };
    if output.status.success() {
        return Ok(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().last().unwrap_or("no message");
    Ok(Err(format!(
        "{FOLDER}/{PATCH} does not apply to this kernel ({line}): move the patch, or pin a kernel that it knows"
    )))
}

fn make(tools: &Path, build: &Path, release: &str) -> anyhow::Result<Result<(), String>> {
    prepare(tools)?;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    match command.arg("true").output() {
        Ok(output) if output.status.success() => {}
        _ => {
            return Ok(Err(
                "this machine gives no user namespace to build in: set kernel.unprivileged_userns_clone=1, or run \
                 as a user who may"
                    .to_owned(),
            ));
        }
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "lab"]);
    command.arg(tools).arg(build).arg(release);
    let log = build.join("build.log");
    let file = File::create(&log)?;
    let status = run::limited(&command, LIMIT)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .context("cannot run timeout")?;
    if status.success() {
        return Ok(Ok(()));
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
    Ok(Err(format!(
        "{MODULE} cannot be built for {release} ({line}): pin headers and sources of one version, or mend {FOLDER}"
    )))
}

/// What installing the packages would have done: folders that are mounted over, and the names of a merged /usr.
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
