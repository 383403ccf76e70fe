//! Builds the guest's root: a shell, our programs with their libraries, the kernel's modules, and
//! the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::card;
use super::cpio::Cpio;
use super::modules::{self, Module};
use super::verbs::Verbs;

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
    /// With its target.
    Link(String),
}

/// All that goes into a root.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    /// The workspace, for the init script.
    pub(crate) workspace: &'a Path,
    pub(crate) busybox: &'a Path,
    pub(crate) release: &'a str,
    pub(crate) modules: &'a [Module],
    /// The kernel's list of what it has built in, where its package has one.
    pub(crate) builtin: Vec<u8>,
    /// Modules that the lab builds (the name and the file), or why each is missing: tests that need
    /// it skip with this reason.
    pub(crate) built: [(&'static str, &'a Result<PathBuf, String>); 2],
    /// libibverbs, or what keeps it away: tests that need it skip with these words.
    pub(crate) verbs: &'a Result<Verbs, String>,
    pub(crate) programs: &'a [Program],
    pub(crate) added: &'a [Added],
    /// Whether cards are plugged in, which want firmware.
    pub(crate) cards: bool,
    /// Empty for an interactive shell.
    pub(crate) plan: &'a [Job],
}

impl Root<'_> {
    /// Writes the archive. Not compressed: unpacking under TCG costs more than reading.
    pub(crate) fn write(&self, to: &Path) -> anyhow::Result<()> {
        let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
        let mut cpio = Cpio::new(BufWriter::new(file));
        for folder in [
            "proc", "sys", "tmp", "run", "root", "var", "etc", "usr/bin", "lab/plan",
        ] {
            cpio.folder(folder)?;
        }
        // The kernel opens it for init before anything can be mounted.
        cpio.character_device("dev/console", 5, 1)?;
        let init = self.workspace.join(INIT);
        cpio.file("init", true, &read(&init)?)?;
        cpio.file("bin/busybox", true, &read(self.busybox)?)?;
        cpio.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/sh\n")?;
        cpio.file("etc/group", false, b"root:x:0:\n")?;
        self.modules(&mut cpio)?;
        for program in self.programs {
            cpio.file(
                &program.guest,
                true,
                &stripped(&program.host, &to.with_extension("stripped"))?,
            )?;
        }
        for added in self.added {
            match &added.entry {
                Entry::Folder => cpio.folder(&added.guest)?,
                Entry::File(host) => cpio.file(&added.guest, is_executable(host)?, &read(host)?)?,
                Entry::Link(target) => cpio.link(&added.guest, target)?,
            }
        }
        self.libraries(&mut cpio)?;
        if self.cards {
            let (loader, place) = card::LOADER;
            cpio.file(place, true, &read(&self.workspace.join(loader))?)?;
            for file in card::FIRMWARE {
                cpio.file(file, false, &card::DUMMY)?;
            }
        }
        if self.plan.is_empty() {
            cpio.file("lab/shell", false, b"")?;
        }
        for (index, job) in self.plan.iter().enumerate() {
            cpio.file(&format!("lab/plan/{index:04}"), false, job.script().as_bytes())?;
        }
        cpio.finish()?.flush()?;
        Ok(())
    }

    /// Those of our programs and of added ones, and libibverbs. What both bring is taken from
    /// there.
    fn libraries(&self, cpio: &mut Cpio<BufWriter<File>>) -> anyhow::Result<()> {
        let mut files = match self.verbs {
            Ok(verbs) => verbs.files()?,
            Err(need) => {
                cpio.file("lab/verbs.need", false, need.as_bytes())?;
                BTreeMap::new()
            }
        };
        let mut programs: Vec<&Path> = self
            .programs
            .iter()
            .map(|program| program.host.as_path())
            .collect();
        for added in self.added {
            if let Entry::File(host) = &added.entry {
                programs.extend(is_executable(host)?.then_some(host.as_path()));
            }
        }
        for library in libraries(&programs)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let newer = self.verbs.as_ref().ok().and_then(|verbs| verbs.library(&name));
            let guest = library.display().to_string();
            files.insert(
                guest.trim_start_matches('/').to_owned(),
                newer.unwrap_or(library.clone()),
            );
        }
        for (guest, host) in files {
            cpio.file(&guest, true, &read(&host)?)?;
        }
        Ok(())
    }

    fn modules(&self, cpio: &mut Cpio<BufWriter<File>>) -> anyhow::Result<()> {
        let folder = format!("lib/modules/{}", self.release);
        for module in self.modules {
            cpio.file(&format!("{folder}/{}", module.path), false, &module.content)?;
        }
        let dep = modules::modules_dep(self.modules);
        cpio.file(&format!("{folder}/modules.dep"), false, dep.as_bytes())?;
        let alias = modules::modules_alias(self.modules);
        cpio.file(&format!("{folder}/modules.alias"), false, alias.as_bytes())?;
        cpio.file(&format!("{folder}/modules.symbols"), false, b"")?;
        cpio.file(&format!("{folder}/modules.builtin"), false, &self.builtin)?;
        cpio.link("sbin", "bin")?; // the kernel calls /sbin/modprobe
        // Beside the stock module, not in its place: `lab-rxe` loads the one or the other.
        for (name, module) in self.built {
            match module {
                Ok(module) => cpio.file(&format!("lab/modules/{name}.ko"), false, &read(module)?)?,
                Err(need) => cpio.file(&format!("lab/modules/{name}.need"), false, need.as_bytes())?,
            }
        }
        Ok(())
    }
}

impl Job {
    /// The shell that reads it: a name for the channel, then the command with every word quoted.
    fn script(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| quoted(word)).collect();
        format!(
            "# {}\nexec {}\n",
            self.name.replace(['\n', '\r'], " "),
            words.join(" ")
        )
    }
}

/// A word that a shell reads back as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn is_executable(path: &Path) -> anyhow::Result<bool> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o111 != 0)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The program without debug information, which is most of it; symbols stay, for backtraces.
fn stripped(program: &Path, scratch: &Path) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new("strip");
    command.args(["--strip-debug", "-o"]).arg(scratch).arg(program);
    // Where binutils are missing, or the program is a script, it goes in as it is.
    let done = command.output().is_ok_and(|output| output.status.success());
    let bytes = read(if done { scratch } else { program });
    let _ = fs::remove_file(scratch);
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

/// Paths in what ldd prints: `name => /path (address)` and `/path (address)`.
pub(super) fn listed(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        if let Some((name, _)) = line.split_once(" => not found") {
            bail!("this machine has no {}", name.trim());
        }
        paths.extend(
            line.split_whitespace()
                .find(|word| word.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n\tstatically linked\n";
        let seen = listed(text).expect("all are there");
        assert_eq!(
            seen,
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from),
            "the vdso is no file"
        );
        let error = listed("\tlibx.so.1 => not found\n").expect_err("it is missing");
        assert!(error.to_string().contains("libx.so.1"), "it is named: {error}");
    }

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
