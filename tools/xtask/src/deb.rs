//! `cargo xtask deb`: Debian packages of what `cargo xtask install` installs, and their trial in
//! chroots.
//!
//! - **One package for each [`Part`]**, and a library package that conflicts with the vendor's: the
//!   SONAME has no version, so the two cannot be installed together.
//! - **The vendor's headers in `/usr/include/habanalabs` only**: `/usr/include/misc` and
//!   `/usr/include/drm` belong to `linux-libc-dev`.
//! - **`dpkg-deb` packs**, which every Debian has; a machine without it is a counted skip.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::files::{self, At as _};
use crate::install::{self, Entry, Part};
use crate::ledger::Row;
use crate::missing::{OrSkip as _, missing};
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

#[derive(Args)]
pub(crate) struct Deb {
    /// The folder for the packages [default: deb in cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Install them in chroots of Debian 12 and 13 too; needs root, debootstrap and the network
    #[arg(long = "try")]
    trial: bool,
}

/// A package: its name, the files that it has, and the fields of its control file.
struct Package {
    name: &'static str,
    part: Part,
    section: &'static str,
    fields: &'static str,
    about: &'static str,
}

const PACKAGES: [Package; 7] = [
    Package {
        name: "gaudi-hal",
        part: Part::Program,
        section: "utils",
        fields: "Depends: libc6 (>= {glibc}), libgcc-s1\n",
        about: "command line for Gaudi accelerators",
    },
    Package {
        name: "gaudi-hal-hlthunk",
        part: Part::Library,
        section: "libs",
        fields: "Depends: libc6 (>= {glibc}), libgcc-s1\nProvides: habanalabs-thunk\nConflicts: habanalabs-thunk\n\
                 Replaces: habanalabs-thunk\n",
        about: "libhl-thunk.so for programs that are written for the vendor's",
    },
    Package {
        name: "gaudi-hal-hlthunk-shims",
        part: Part::Shims,
        section: "libs",
        fields: "Depends: gaudi-hal-hlthunk (= {version}), libc6 (>= {glibc}), libgcc-s1\n\
                 Conflicts: habanalabs-graph\n",
        about: "small stand-ins for libSynapse.so, libSynapseMme.so and libscal.so",
    },
    Package {
        name: "gaudi-hal-ucx",
        part: Part::Ucx,
        section: "libs",
        // The plugin finds the UCX that a program has loaded, packaged or not.
        fields: "Depends: libc6 (>= {glibc}), libgcc-s1\nEnhances: libucx0, libopenmpi40\n",
        about: "Gaudi memory for UCX and Open MPI",
    },
    Package {
        name: "libgaudi-copy0",
        part: Part::Copy,
        section: "libs",
        fields: "Depends: libc6 (>= {glibc}), libgcc-s1\n",
        about: "Gaudi memory for communication libraries",
    },
    Package {
        name: "libgaudi-copy-dev",
        part: Part::CopyDevelopment,
        section: "libdevel",
        fields: "Depends: libgaudi-copy0 (= {version})\n",
        about: "header of libgaudi_copy",
    },
    Package {
        name: "gaudi-hal-hlthunk-dev",
        part: Part::Development,
        section: "libdevel",
        // It conflicts with the vendor's as the library does, which provides the name itself.
        fields: "Depends: gaudi-hal-hlthunk (= {version})\n",
        about: "headers and static library of libhl-thunk",
    },
];

/// The releases that `--try` installs on.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Builds the packages, and tries them if asked to.
pub(crate) fn run(workspace: &Workspace, deb: &Deb) -> anyhow::Result<Vec<Row>> {
    let target = workspace.logs.parent().context("the target folder")?;
    let output = deb.output.clone().unwrap_or_else(|| target.join("deb"));
    let mut packages = Vec::new();
    let mut rows = vec![Row::time("packages", |row| {
        let entries = install::entries(workspace, Path::new("/usr"), false)?;
        files::make_folder(&output)?;
        for package in &PACKAGES {
            let built = package.build(&entries, &workspace.logs, &output);
            packages.extend(built.as_ref().ok().cloned());
            row.settle(package.name, built.map(|path| path.display().to_string()));
        }
        Ok(())
    })];
    if deb.trial && packages.len() == PACKAGES.len() {
        rows.push(Row::time("chroots", |row| {
            for suite in SUITES {
                let chroot = workspace.logs.join(format!("chroot-{suite}"));
                row.settle(suite, trial(suite, &chroot, &packages));
            }
            Ok(())
        }));
    }
    Ok(rows)
}

impl Package {
    fn build(&self, entries: &[Entry], logs: &Path, output: &Path) -> anyhow::Result<PathBuf> {
        let stage = logs.join("deb").join(self.name);
        if stage.exists() {
            files::remove_folder(&stage)?;
        }
        let of_system = |entry: &&Entry| {
            entry.part != Part::Development
                || !entry.path.starts_with("include/")
                || entry.path.starts_with("include/habanalabs/")
        };
        let mut glibc = "2.0".to_owned();
        for entry in entries
            .iter()
            .filter(|entry| entry.part == self.part)
            .filter(of_system)
        {
            let path = entry.install(&stage.join("usr"))?;
            // A link in the vendor's folder can point to a file that is not there yet.
            if path.is_file() && !path.is_symlink() {
                glibc = newer(glibc, newest_glibc(&files::read(&path)?));
            }
        }
        let architecture = run::text(Command::new("dpkg").arg("--print-architecture"))
            .or_skip("dpkg of Debian packs the files")?;
        files::make_folder(&stage.join("DEBIAN"))?;
        let control = stage.join("DEBIAN/control");
        fs::write(&control, self.control(&architecture, &glibc)).at("write", &control)?;
        if matches!(self.part, Part::Library | Part::Shims | Part::Copy) {
            // The dynamic linker's cache learns of the libraries.
            let triggers = stage.join("DEBIAN/triggers");
            fs::write(&triggers, "activate-noawait ldconfig\n").at("write", &triggers)?;
        }
        let archive = output.join(format!("{}_{VERSION}_{architecture}.deb", self.name));
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "--build"])
            .arg(&stage)
            .arg(&archive);
        run::output(&mut pack).or_skip("dpkg-deb of Debian packs the files")?;
        Ok(archive)
    }

    fn control(&self, architecture: &str, glibc: &str) -> String {
        let fields = self
            .fields
            .replace("{glibc}", glibc)
            .replace("{version}", VERSION);
        format!(
            "Package: {}\nVersion: {VERSION}\nArchitecture: {architecture}\nSection: {}\nPriority: optional\n\
             Maintainer: the authors of gaudi-hal <gaudi-hal@localhost>\n{fields}Description: {}\n",
            self.name, self.section, self.about
        )
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn numbers(version: &str) -> Vec<u32> {
    version
        .split('.')
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn newer(one: String, other: String) -> String {
    match numbers(&one) < numbers(&other) {
        true => other,
        false => one,
    }
}

/// The newest version of glibc that a library or program names (`GLIBC_2.34`).
fn newest_glibc(file: &[u8]) -> String {
    const NAME: &[u8] = b"GLIBC_";
    let found = file
        .windows(NAME.len())
        .enumerate()
        .filter(|(_, window)| *window == NAME);
    let version = |(at, _): (usize, &[u8])| {
        let rest = file[at + NAME.len()..].iter();
        let version = rest.take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
        version.map(|byte| char::from(*byte)).collect::<String>()
    };
    found.map(version).fold("2.0".to_owned(), newer)
}

/// Installs the packages in a new chroot of a release, runs the program and loads the library
/// there, and removes the packages.
fn trial(suite: &str, chroot: &Path, packages: &[PathBuf]) -> anyhow::Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return missing("root, for chroot(2)");
    }
    if chroot.exists() {
        files::remove_folder(chroot)?;
    }
    let log = chroot.with_extension("log");
    let mut bootstrap = Command::new("debootstrap");
    bootstrap.args(["--variant=minbase", suite]).arg(chroot);
    let made = run::run(&bootstrap, &log, LIMIT, Show::Quiet);
    let made = made.and_then(|outcome| outcome.check("debootstrap"));
    made.or_skip("debootstrap (apt install debootstrap) and the network")?;
    let folder = chroot.join("packages");
    files::make_folder(&folder)?;
    let mut names = Vec::new();
    for package in packages {
        let name = files::name(package);
        fs::copy(package, folder.join(&name)).at("copy", package)?;
        names.push(format!("/packages/{name}"));
    }
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        run::text(command.arg(chroot).args(arguments))
    };
    let install: Vec<&str> = ["dpkg", "--install"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    inside(&install)?;
    let info = inside(&["gaudi", "info", "-d", "mock:gaudi2"])?;
    if !info.contains("mock") {
        bail!("gaudi info in the chroot printed {info:?}");
    }
    let libraries = inside(&["ldconfig", "-p"])?;
    let found = libraries.contains("libhl-thunk.so");
    let needs = inside(&["ldd", "/usr/lib/libhl-thunk.so"])?;
    if !found || needs.contains("not found") {
        bail!("the library is not found in the chroot: {needs}");
    }
    let remove: Vec<&str> = ["dpkg", "--purge"]
        .into_iter()
        .chain(PACKAGES.iter().rev().map(|p| p.name))
        .collect();
    inside(&remove)?;
    let left = chroot.join("usr/lib/habanalabs");
    if left.exists() {
        bail!("{} is left after the packages were removed", left.display());
    }
    files::remove_folder(chroot)?;
    Ok("installed, ran, removed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_glibc_is_found_by_number() {
        let file = b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(newest_glibc(file), "2.34");
        assert_eq!(newest_glibc(b""), "2.0");
    }

    #[test]
    fn each_part_has_a_package() {
        for part in [
            Part::Program,
            Part::Library,
            Part::Shims,
            Part::Ucx,
            Part::Copy,
            Part::CopyDevelopment,
            Part::Development,
        ] {
            assert_eq!(
                PACKAGES.iter().filter(|package| package.part == part).count(),
                1,
                "{part:?}"
            );
        }
    }

    #[test]
    fn control_names_version_and_glibc() {
        for package in &PACKAGES {
            let control = package.control("amd64", "2.34");
            assert!(!control.contains('{'), "{control}");
            assert!(control.lines().all(|line| line.contains(": ")), "{control}");
        }
    }
}
