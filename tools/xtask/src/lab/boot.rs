//! `cargo xtask lab run` and `lab shell`: one guest, with a command or a terminal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::bench::{Which, one};
use super::build::{self, SERVER};
use super::channel::Message;
use super::guest::{Machine, Qemu, Variant};
use super::image::{self, Added, Entry, Job, Program};
use super::kernels::{Kernels, Shape};
use super::lock::Lock;
use super::stall::Limits;
use crate::files::{self, At as _};
use crate::run::tail;
use crate::workspace::Workspace;

/// The default folder in the guest for added files: the home of its user.
const HOME: &str = "/root";

/// The guest that `run` and `shell` boot.
#[derive(Args)]
pub(crate) struct Boot {
    #[command(flatten)]
    pub(super) which: Which,
    /// A machine of tests/lab/kernels.toml, such as gaudi2, which has a modelled card; otherwise
    /// the default machine
    #[arg(long, value_name = "ID")]
    pub(super) machine: Option<String>,
    /// Memory of the guest, such as 4G; by default 1G, or 2G with cards
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(super) memory: Option<String>,
    /// Build the programs of the workspace optimized
    #[arg(long)]
    pub(super) release: bool,
    /// Copy a file or a folder into the guest, to an absolute path there, or into /root
    /// (repeatable); the libraries of programs are copied too
    #[arg(long = "add", value_name = "PATH[:DEST]", value_parser = Add::parse)]
    pub(super) adds: Vec<Add>,
}

/// `run` and its command.
#[derive(Args)]
#[command(after_long_help = "\
Your own program against a modelled card (the driver is loaded before the command starts):
  cargo xtask lab run --machine gaudi2 -- target/debug/my-program /dev/accel/accel0

A folder of scripts and data, more memory, an older kernel:
  cargo xtask lab run --machine gaudi2 --kernel 6.12 --memory 4G --add data:/opt/data -- sh /opt/data/run

A card that vfio-pci may have, without the kernel's driver:
  cargo xtask lab run --machine gaudi2-vfio -- gaudi doctor")]
pub(crate) struct Run {
    #[command(flatten)]
    boot: Boot,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// A program of the guest (`gaudi`, busybox), or a path of this machine: it is copied with its
    /// libraries, and so are programs that its arguments name by a relative path
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// A size as QEMU takes it.
fn memory(text: &str) -> Result<String, String> {
    let digits = text.strip_suffix(['M', 'G']).unwrap_or_default();
    match digits.parse::<u32>() {
        Ok(1..) => Ok(text.to_owned()),
        _ => Err("a number of MiB or GiB, such as 512M or 4G".to_owned()),
    }
}

/// What `--add` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Add {
    host: PathBuf,
    /// Absolute, without `..`.
    guest: String,
}

impl Add {
    fn parse(text: &str) -> Result<Add, String> {
        // A path of this machine may have a colon in it; one of the guest begins with a slash.
        let (host, guest) = match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') => (host, guest),
            _ => (text, ""),
        };
        let found = Path::new(host).canonicalize();
        let host = found.map_err(|error| format!("{host}: {error}"))?;
        let name = host.file_name().map(|name| name.to_string_lossy());
        let guest = match (guest, name) {
            ("", Some(name)) => format!("{HOME}/{name}"),
            (folder, Some(name)) if folder.ends_with('/') => format!("{folder}{name}"),
            ("" | "/", None) => return Err("it has no name: give its path in the guest".to_owned()),
            (guest, _) => guest.to_owned(),
        };
        if guest.split('/').any(|part| part == "..") {
            return Err(format!("{guest} has .. in it"));
        }
        Ok(Add { host, guest })
    }

    /// The file, or the folder and all below it. Links inside a folder stay links.
    fn entries(&self, all: &mut Vec<Added>) -> anyhow::Result<()> {
        let mut left = vec![(self.host.clone(), self.guest.clone())];
        while let Some((host, guest)) = left.pop() {
            let metadata = fs::symlink_metadata(&host).at("read", &host)?;
            let entry = if metadata.is_symlink() {
                Entry::Link(fs::read_link(&host)?.to_string_lossy().into_owned())
            } else if metadata.is_dir() {
                for child in files::children(&host)? {
                    let place = format!("{guest}/{}", files::name(&child));
                    left.push((child, place));
                }
                Entry::Folder
            } else if metadata.is_file() {
                Entry::File(host)
            } else {
                bail!("{} is neither a file, a folder nor a link", host.display());
            };
            all.push(Added { guest, entry });
        }
        Ok(())
    }
}

/// A guest that is ready to boot.
pub(super) struct Ready {
    qemu: Qemu,
    release: String,
    machine: Machine,
    _lock: Lock,
}

impl Boot {
    /// Builds the named programs, or those of every guest if none is named. Writes the guest's root
    /// and starts its cards. `plan` can add to the programs; without a job the guest has a shell.
    pub(super) fn ready(
        &self,
        workspace: &Workspace,
        names: &[&str],
        plan: impl FnOnce(&mut Vec<Program>, &Variant) -> anyhow::Result<Vec<Job>>,
    ) -> anyhow::Result<Ready> {
        let kernels = Kernels::load(&workspace.root)?;
        let shape = self.machine.as_deref().map(|id| kernels.shape(id)).transpose()?;
        let mut variant = Variant {
            memory: self.memory.clone(),
            ..Variant::of(shape.cloned())
        };
        for add in &self.adds {
            add.entries(&mut variant.added)?;
        }
        let mut names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        if names.is_empty() {
            names.clone_from(&kernels.guest.programs);
        }
        let cards = variant.cards() > 0;
        names.extend(cards.then(|| SERVER.to_owned()));
        let mut programs = build::programs(workspace, &names, self.release)?;
        let server = if cards { programs.pop() } else { None };
        let plan = plan(&mut programs, &variant)?;
        let (kernel, lock) = one(workspace, &kernels, &self.which)?;
        if let Err(need) = &kernel.open_flag {
            eprintln!("without hl_open_flag: {need}");
        }
        let server = server.as_ref().map(|server| server.host.as_path());
        Ok(Ready {
            qemu: kernel.tools.qemu.clone(),
            machine: kernel.machine(workspace, &programs, &plan, variant, server)?,
            release: kernel.release,
            _lock: lock,
        })
    }
}

impl Ready {
    /// Boots a guest with one job. Passes on the job's output and exit code.
    pub(super) fn run(&self, seconds: u64) -> anyhow::Result<ExitCode> {
        let mut ended = None;
        let limits = Limits::of(Duration::from_secs(seconds));
        let verdict = self.qemu.boot(&self.machine, limits, |message| match message {
            // A closed stdout is not an error, and the guest must still be waited for.
            Message::Out(line) => drop(writeln!(io::stdout(), "{line}")),
            Message::Err(line) | Message::Noise(line) | Message::Skip(line) => {
                drop(writeln!(io::stderr(), "{line}"));
            }
            Message::End { status, .. } => ended = Some(*status),
            Message::Boot(_) | Message::Begin(_) | Message::Done(_) => {}
        })?;
        let _ = io::stdout().flush(); // a closed stdout is not an error
        let boot = verdict.boot.unwrap_or_default(); // a guest that never came up
        eprintln!(
            "{} booted in {boot:.1} s, ended after {:.1} s",
            self.release, verdict.wall
        );
        if !verdict.findings.is_empty() {
            eprintln!("{}", tail(&self.machine.console));
            let stalled = verdict.stalled.iter();
            stalled.for_each(|stalled| eprintln!("{}", stalled.report));
            bail!("{}", verdict.findings.join("; "));
        }
        let status = ended.context("the guest did not report how the command ended")?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))) // 255: out of range
    }
}

/// The command as the guest runs it. Programs of this machine that it names are added to
/// `programs`.
fn words(command: &[String], programs: &mut Vec<Program>) -> anyhow::Result<Vec<String>> {
    let mut words = command.to_vec();
    for (at, word) in words.iter_mut().enumerate() {
        let path = Path::new(word.as_str());
        // Without a slash it is a program of the guest; an absolute path may be the guest's.
        if !word.contains('/') || !path.is_file() || (at > 0 && path.is_absolute()) {
            continue;
        }
        let host = path.canonicalize().at("find", path)?;
        let guest = format!("{}/{}", image::PROGRAMS, files::name(path));
        *word = format!("/{guest}");
        // A release build replaces the guest's program of that name.
        programs.retain(|other| other.guest != guest);
        programs.push(Program { host, guest });
    }
    Ok(words)
}

fn job(command: Vec<String>, driver: bool) -> Job {
    let load = ["sh", "-c", "lab-card && exec \"$@\"", "sh"].map(str::to_owned);
    let words = load.into_iter().filter(|_| driver).chain(command).collect();
    Job {
        name: "run".to_owned(),
        words,
    }
}

/// Runs one command in a guest. Passes on its output and exit code.
pub(super) fn run(workspace: &Workspace, run: &Run) -> anyhow::Result<ExitCode> {
    let plan = |programs: &mut Vec<Program>, variant: &Variant| {
        let words = words(&run.command, programs)?;
        let driver = variant.shape.as_ref().is_some_and(Shape::has_driver);
        Ok(vec![job(words, driver)])
    };
    run.boot.ready(workspace, &[], plan)?.run(run.limit)
}

/// Boots a guest with its console on this terminal.
pub(super) fn shell(workspace: &Workspace, boot: &Boot) -> anyhow::Result<ExitCode> {
    let ready = boot.ready(workspace, &[], |_, _| Ok(Vec::new()))?;
    match ready.qemu.shell(&ready.machine)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn added_path_names_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a:b");
        fs::write(&file, "").expect("a file");
        let parse = |dest: &str| Add::parse(&format!("{}{dest}", file.display())).map(|add| add.guest);
        assert_eq!(parse(""), Ok(format!("{HOME}/a:b")));
        assert_eq!(parse(":/opt/x").as_deref(), Ok("/opt/x"));
        assert_eq!(parse(":/opt/").as_deref(), Ok("/opt/a:b"));
        assert!(parse(":/opt/../init").is_err(), "it stays below its folder");
        assert!(Add::parse("/nonexistent").is_err(), "a missing file");
    }

    #[test]
    fn added_folder_keeps_its_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("data/inner");
        fs::create_dir_all(&inner).expect("folders");
        fs::write(inner.join("x"), "1").expect("a file");
        symlink("inner/x", folder.path().join("data/link")).expect("a link");
        let add = Add::parse(&format!("{}:/opt/data", folder.path().join("data").display()));
        let mut all = Vec::new();
        add.expect("it is there").entries(&mut all).expect("it is read");
        all.sort_by(|a, b| a.guest.cmp(&b.guest));
        let names: Vec<_> = all.iter().map(|added| added.guest.as_str()).collect();
        assert_eq!(
            names,
            [
                "/opt/data",
                "/opt/data/inner",
                "/opt/data/inner/x",
                "/opt/data/link"
            ]
        );
        assert_eq!(all[3].entry, Entry::Link("inner/x".to_owned()));
    }

    #[test]
    fn memory_is_a_number_with_a_unit() {
        for good in ["512M", "4G"] {
            assert_eq!(memory(good).as_deref(), Ok(good));
        }
        for bad in ["", "G", "0G", "4", "4g", "-1G", "1G,share=off"] {
            assert!(memory(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn driver_loads_before_the_command() {
        let command = || vec!["x".to_owned(), "y z".to_owned()];
        assert_eq!(job(command(), false).words, ["x", "y z"]);
        let words = job(command(), true).words;
        assert_eq!(words[2..], ["lab-card && exec \"$@\"", "sh", "x", "y z"]);
    }
}
