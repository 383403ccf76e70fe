//! Several packages that make one tree, with or without all that they depend on.
//!
//! - A tree lies under a digest of its archives' digests. A record for each bundle has its pins and
//!   the name of its tree, so that a later run needs no network.
//! - Kernel packages have the kernel's release in their names (`{release}` in a pin). If Debian no
//!   longer has the pinned release, the nearest newer one of the series replaces it, and the note
//!   has both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apt::{self, Apt};
use super::unpack::hex;
use crate::files::At as _;
use crate::missing::OrSkip as _;
use crate::run;

/// Stands for the kernel's release in names and paths.
pub(crate) const RELEASE: &str = "{release}";

/// One package of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pin {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Of the archive of that version.
    pub(crate) sha256: String,
}

impl Pin {
    /// Whether the digest is a SHA-256.
    pub(crate) fn is_whole(&self) -> bool {
        let is_hex = |byte| b"0123456789abcdef".contains(&byte);
        self.sha256.len() == 64 && self.sha256.bytes().all(is_hex)
    }
}

/// The kernel's release in package names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Release {
    pub(crate) pinned: String,
    /// What a stand-in must begin with.
    pub(crate) series: String,
}

/// Packages that make one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bundle {
    #[serde(default)]
    pub(crate) id: String,
    /// The first one is preferred.
    pub(crate) suites: Vec<String>,
    pub(crate) packages: Vec<Pin>,
    /// Whether all that the packages depend on is part of the tree.
    #[serde(default)]
    pub(crate) closure: bool,
    /// Beginnings of the names of packages that come with the closure and are not unpacked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) without: Vec<String>,
    #[serde(skip_deserializing)]
    pub(crate) release: Option<Release>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(crate) slice: Option<Slice>,
}

/// One folder of an archive in a package, such as one driver of a kernel's sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Slice {
    /// A `.tar.xz`, its place below the package's root. It is removed afterwards.
    pub(crate) archive: String,
    /// What of it is kept, at the tree's root.
    pub(crate) folder: String,
    /// The program that unpacks it, since the machine need not have xz.
    #[serde(skip)]
    pub(crate) busybox: PathBuf,
}

impl Slice {
    /// Leaves the wanted folder in the place of the archive.
    pub(super) fn cut(&self, part: &Path) -> anyhow::Result<()> {
        let archive = part.join(&self.archive);
        let mut command = Command::new(&self.busybox);
        command.args(["tar", "-xJf"]).arg(&archive);
        command.arg("-C").arg(part).arg(&self.folder);
        run::output(&mut command).with_context(|| format!("cannot unpack {}", self.archive))?;
        if !part.join(&self.folder).is_dir() {
            bail!("{} holds no {}", self.archive, self.folder);
        }
        fs::remove_file(&archive).at("remove", &archive)
    }
}

/// What will be fetched: names and versions, in the order of the bundle's packages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) release: String,
    pub(super) packages: Vec<(String, String)>,
}

impl Chosen {
    pub(super) fn is_pinned(&self, bundle: &Bundle) -> bool {
        let release = bundle.release.as_ref();
        release.is_none_or(|release| release.pinned == self.release)
    }
}

impl Bundle {
    pub(super) fn digest(&self) -> anyhow::Result<String> {
        Ok(hex(&Sha256::digest(serde_json::to_vec(self)?)))
    }

    /// The release that Debian has of this bundle's; empty without one.
    fn release(&self, apt: &Apt) -> anyhow::Result<String> {
        let Some(release) = &self.release else {
            return Ok(String::new());
        };
        let list = |pin: &Pin| apt.names(&pattern(&pin.name, release));
        let listed = self
            .packages
            .iter()
            .map(list)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let releases = releases(&self.packages, &listed);
        let found = apt::choose(&release.pinned, &releases, apt::newer_by_dpkg);
        let (suites, Release { pinned, series }) = (self.suites.join(" "), release);
        let need = format!("{suites} lists no kernel {pinned} or a newer one of {series}: move the pin");
        found.or_skip(need)
    }

    /// Names and versions that Debian has.
    pub(super) fn choose(&self, apt: &Apt) -> anyhow::Result<Chosen> {
        let release = self.release(apt)?;
        let named = |pin: &Pin| pin.name.replace(RELEASE, &release);
        let names: Vec<_> = self.packages.iter().map(named).collect();
        let wanted: Vec<_> = self.packages.iter().map(|pin| &pin.version).collect();
        let versions = apt.versions(&names, &wanted)?;
        let packages = names.into_iter().zip(versions).collect();
        Ok(Chosen { release, packages })
    }

    pub(super) fn download(&self, apt: &Apt, chosen: &Chosen) -> anyhow::Result<Vec<PathBuf>> {
        if self.closure {
            let package = |(name, version): &(String, String)| format!("{name}={version}");
            let packages: Vec<_> = chosen.packages.iter().map(package).collect();
            return apt.closure(&packages, &self.suites[0]);
        }
        let download = |(name, version): &(String, String)| apt.download(name, version);
        chosen.packages.iter().map(download).collect()
    }

    pub(super) fn note(&self, chosen: &Chosen) -> String {
        let pinned = self.release.as_ref().map_or("", |release| &release.pinned);
        let note = |(pin, (name, version)): (&Pin, &(String, String))| {
            let wanted = pin.name.replace(RELEASE, pinned);
            if *version == pin.version && *name == wanted {
                return format!("{name} {version}");
            }
            format!(
                "{name} {version} (stands in for {wanted} {}, which has vanished)",
                pin.version
            )
        };
        let notes: Vec<_> = self.packages.iter().zip(&chosen.packages).map(note).collect();
        notes.join(", ")
    }
}

/// A regular expression for the pin's name with any release of the series and of the same flavour.
fn pattern(name: &str, release: &Release) -> String {
    let quote = |text: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let quoted = |c: char| match is_plain(c) {
            true => c.to_string(),
            false => format!("\\{c}"),
        };
        text.chars().map(quoted).collect::<String>()
    };
    let plus = release.pinned.find('+').unwrap_or(release.pinned.len());
    let flavour = &release.pinned[plus..];
    let any = format!("{}[0-9.]+{}", quote(&release.series), quote(flavour));
    let (before, after) = name.split_once(RELEASE).unwrap_or((name, ""));
    format!("^{}{any}{}$", quote(before), quote(after))
}

/// Releases for which every package of the bundle is listed.
fn releases(pins: &[Pin], listed: &[Vec<String>]) -> Vec<String> {
    let of = |pin: &Pin, names: &[String]| -> Vec<String> {
        let (before, after) = pin.name.split_once(RELEASE).unwrap_or((&pin.name, ""));
        let release = |name: &String| Some(name.strip_prefix(before)?.strip_suffix(after)?.to_owned());
        names.iter().filter_map(release).collect()
    };
    let mut all = pins.iter().zip(listed).map(|(pin, names)| of(pin, names));
    let first = all.next().unwrap_or_default(); // no packages, no releases
    all.fold(first, |mut both, next| {
        both.retain(|release| next.contains(release));
        both
    })
}

/// A kernel's bundle.
#[cfg(test)]
pub(super) fn sample() -> Bundle {
    let pin = |name: &str| Pin {
        name: name.into(),
        version: "7.3.4-1".into(),
        sha256: "aa".into(),
    };
    Bundle {
        id: "kernel-7".into(),
        suites: vec!["trixie-backports".into()],
        packages: vec![pin("linux-binary-{release}"), pin("linux-modules-{release}")],
        release: Some(Release {
            pinned: "7.3.4+deb13-amd64".into(),
            series: "7.".into(),
        }),
        ..Bundle::default()
    }
}

#[cfg(test)]
mod tests {
    use super::sample as bundle;
    use super::*;

    #[test]
    fn pattern_matches_series_and_flavour() {
        let bundle = bundle();
        let release = bundle.release.as_ref().expect("a kernel");
        assert_eq!(
            pattern("linux-modules-{release}", release),
            r"^linux-modules-7\.[0-9.]+\+deb13-amd64$",
            "dots and plus are quoted, other flavours end differently"
        );
    }

    #[test]
    fn only_complete_releases_can_replace() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let listed = [
            names(&["linux-binary-7.3.5+deb13-amd64", "linux-binary-7.4.1+deb13-amd64"]),
            names(&["linux-modules-7.4.1+deb13-amd64", "other"]),
        ];
        assert_eq!(
            releases(&bundle().packages, &listed),
            ["7.4.1+deb13-amd64"],
            "7.3.5 has no modules"
        );
    }

    #[test]
    fn note_names_the_replaced_release() {
        let chosen = |release: &str, version: &str| Chosen {
            release: release.into(),
            packages: ["binary", "modules"]
                .map(|kind| (format!("linux-{kind}-{release}"), version.to_owned()))
                .to_vec(),
        };
        let pinned = bundle().note(&chosen("7.3.4+deb13-amd64", "7.3.4-1"));
        assert!(
            !pinned.contains("vanished"),
            "the pin itself stands for nothing: {pinned}"
        );
        let newer = bundle().note(&chosen("7.4.1+deb13-amd64", "7.4.1-1"));
        assert!(
            newer.contains(
                "linux-binary-7.4.1+deb13-amd64 7.4.1-1 (stands in for linux-binary-7.3.4+deb13-amd64"
            ),
            "both releases are named: {newer}"
        );
    }

    #[test]
    fn slice_keeps_only_its_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let slice = Slice {
            archive: "usr/src/all.tar.xz".into(),
            folder: "all/driver".into(),
            busybox: folder.path().join("program"),
        };
        fs::create_dir_all(folder.path().join("usr/src")).expect("a folder");
        fs::write(folder.path().join("usr/src/all.tar.xz"), "").expect("an archive");
        // A stand-in for busybox: it makes what was asked for.
        let program = &slice.busybox;
        let script = "#!/bin/sh\n[ \"$1 $2 $4\" = 'tar -xJf -C' ] && mkdir -p \"$5/$6\"\n";
        fs::write(program, script).expect("a script");
        let mut mode = fs::metadata(program).expect("it is there").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        fs::set_permissions(program, mode).expect("it may run");
        slice.cut(folder.path()).expect("it is cut");
        assert!(folder.path().join("all/driver").is_dir(), "the folder is kept");
        assert!(
            !folder.path().join("usr/src/all.tar.xz").exists(),
            "the archive is not"
        );
        let slice = Slice {
            busybox: "/bin/false".into(),
            ..slice
        };
        let error = slice.cut(folder.path()).expect_err("no archive, no folder");
        assert!(error.to_string().contains("all.tar.xz"), "it is named: {error}");
    }
}
