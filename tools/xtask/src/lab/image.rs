//! Builds the guest's root: a shell, our programs with their libraries, the kernel's modules, and
//! the plan.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::bench::GuestKernel;
use super::card;
use super::cpio::Cpio;
use super::guest::Variant;
use super::modules;
use super::verbs::listed;
use crate::files::{self, At as _, create, read};
use crate::run;

/// Relative to the workspace's root.
const INIT: &str = "tests/lab/init";
/// Where programs of the plan lie in the guest.
pub(crate) const PROGRAMS: &str = "lab/bin";

/// Something to run in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// What the channel calls it: one line.
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
}

/// A dynamically linked program of this machine, and its place in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) host: PathBuf,
    pub(crate) guest: String,
}

/// A file, folder or link of this machine that the user adds to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// Its place in the guest.
    pub(crate) guest: String,
    pub(crate) entry: Entry,
}

/// What an [`Added`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Folder,
    /// With its place on this machine.
    File(PathBuf),
    /// A program or a library that finds its own libraries in the guest.
    Peer(PathBuf),
    /// With its target.
    Link(String),
}

/// Writes the archive of a guest's root, not compressed: unpacking under TCG costs more than
/// reading. Without a plan the guest has an interactive shell.
pub(super) fn write_root(
    workspace: &Path,
    kernel: &GuestKernel,
    programs: &[Program],
    variant: &Variant,
    plan: &[Job],
    to: &Path,
) -> anyhow::Result<()> {
    let mut cpio = Cpio::new(BufWriter::new(create(to)?));
    for folder in [
        "proc", "sys", "tmp", "run", "root", "var", "etc", "usr/bin", "lab/plan",
    ] {
        cpio.folder(folder)?;
    }
    // The kernel opens it for init before anything can be mounted.
    cpio.character_device("dev/console", 5, 1)?;
    cpio.file("init", true, &read(&workspace.join(INIT))?)?;
    cpio.file("bin/busybox", true, &read(&kernel.tools.busybox)?)?;
    cpio.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/sh\n")?;
    cpio.file("etc/group", false, b"root:x:0:\n")?;
    add_modules(&mut cpio, kernel)?;
    for program in programs {
        let bytes = stripped(&program.host, &to.with_extension("stripped"))?;
        cpio.file(&program.guest, true, &bytes)?;
    }
    for added in &variant.added {
        match &added.entry {
            Entry::Folder => cpio.folder(&added.guest)?,
            Entry::File(host) => cpio.file(&added.guest, is_executable(host)?, &read(host)?)?,
            Entry::Peer(host) => cpio.file(&added.guest, true, &read(host)?)?,
            Entry::Link(target) => cpio.link(&added.guest, target)?,
        }
    }
    add_libraries(&mut cpio, kernel, programs, &variant.added)?;
    if variant.cards() > 0 {
        let (loader, place) = card::LOADER;
        cpio.file(place, true, &read(&workspace.join(loader))?)?;
        for file in card::FIRMWARE {
            cpio.file(file, false, &card::DUMMY)?;
        }
    }
    if plan.is_empty() {
        cpio.file("lab/shell", false, b"")?;
    }
    for (index, job) in plan.iter().enumerate() {
        cpio.file(&format!("lab/plan/{index:04}"), false, job.script().as_bytes())?;
    }
    cpio.finish()?.flush()?;
    Ok(())
}

/// Adds the libraries of our programs and of added ones, and libibverbs. A library of both comes
/// from the bundle of libibverbs.
fn add_libraries(
    cpio: &mut Cpio<BufWriter<File>>,
    kernel: &GuestKernel,
    programs: &[Program],
    added: &[Added],
) -> anyhow::Result<()> {
    let verbs = match &kernel.tools.verbs {
        Ok((verbs, _)) => Some(verbs),
        Err(need) => {
            cpio.file("lab/verbs.need", false, need.as_bytes())?;
            None
        }
    };
    let mut files = verbs.map(|verbs| verbs.files()).transpose()?.unwrap_or_default();
    let mut programs: Vec<&Path> = programs.iter().map(|program| &*program.host).collect();
    for added in added {
        if let Entry::File(host) = &added.entry {
            programs.extend(is_executable(host)?.then_some(host.as_path()));
        }
    }
    for library in libraries(&programs)? {
        let newer = verbs.and_then(|verbs| verbs.library(&files::name(&library)));
        let guest = library.display().to_string();
        let guest = guest.trim_start_matches('/').to_owned();
        files.insert(guest, newer.unwrap_or(library));
    }
    for (guest, host) in files {
        cpio.file(&guest, true, &read(&host)?)?;
    }
    Ok(())
}

fn add_modules(cpio: &mut Cpio<BufWriter<File>>, kernel: &GuestKernel) -> anyhow::Result<()> {
    let folder = format!("lib/modules/{}", kernel.release);
    for module in &kernel.modules {
        cpio.file(&format!("{folder}/{}", module.path), false, &module.content)?;
    }
    for (name, content) in [
        ("dep", modules::modules_dep(&kernel.modules).as_bytes()),
        ("alias", modules::modules_alias(&kernel.modules).as_bytes()),
        ("symbols", b""),
        ("builtin", &kernel.builtin),
    ] {
        cpio.file(&format!("{folder}/modules.{name}"), false, content)?;
    }
    cpio.link("sbin", "bin")?; // the kernel calls /sbin/modprobe
    // Beside the stock module, not in its place: `lab-rxe` loads the one or the other. Tests
    // that need a missing one skip with the reason.
    for (name, module) in [("rdma_rxe", &kernel.rxe), ("hl_open_flag", &kernel.open_flag)] {
        match module {
            Ok(module) => cpio.file(&format!("lab/modules/{name}.ko"), false, &read(module)?)?,
            Err(need) => cpio.file(&format!("lab/modules/{name}.need"), false, need.as_bytes())?,
        }
    }
    Ok(())
}

impl Job {
    /// The shell that reads it: a name for the channel, then the command with every word quoted.
    fn script(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| quoted(word)).collect();
        let name = self.name.replace(['\n', '\r'], " ");
        format!("# {name}\nexec {}\n", words.join(" "))
    }
}

/// A word that a shell reads back as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn is_executable(path: &Path) -> anyhow::Result<bool> {
    let metadata = fs::metadata(path).at("read", path)?;
    Ok(metadata.permissions().mode() & 0o111 != 0)
}

/// The program without debug information, which is most of it; symbols stay, for backtraces.
fn stripped(program: &Path, scratch: &Path) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new("strip");
    command.args(["--strip-debug", "-o"]).arg(scratch).arg(program);
    // Where binutils are missing, or the program is a script, it goes in as it is.
    let done = run::output(&mut command).is_ok();
    let bytes = read(if done { scratch } else { program });
    let _ = fs::remove_file(scratch); // strip may not have made it
    bytes
}

/// The libraries of all programs and their loader, by ldd(1), which is part of glibc.
fn libraries(programs: &[&Path]) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::new();
    for program in programs {
        let output = Command::new("ldd")
            .arg(program)
            .output()
            .context("cannot run ldd")?;
        if output.status.success() {
            all.extend(listed(&String::from_utf8_lossy(&output.stdout))?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_guest_as_they_are() {
        let job = Job {
            name: "run\nx".into(),
            words: ["sh", "-c", "echo 'a b' $HOME; exit 3"]
                .map(str::to_owned)
                .to_vec(),
        };
        assert!(
            job.script().starts_with("# run x\nexec "),
            "a name is one line: {}",
            job.script()
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("job");
        fs::write(&file, job.script()).expect("a file");
        let output = Command::new("sh")
            .arg(&file)
            .env("HOME", "/h")
            .output()
            .expect("sh runs");
        assert_eq!(
            (
                String::from_utf8_lossy(&output.stdout).trim(),
                output.status.code()
            ),
            ("a b /h", Some(3)),
            "the inner shell sees its own quotes"
        );
    }
}
