//! Several packages unpacked over one another into one tree, with or without all that they depend on.
//!
//! - A tree lies under a digest of its archives' digests; a record per bundle says which tree serves which pins, so
//!   that a later run needs no network.
//! - Kernel packages carry the kernel's release in their names (`{release}` in a pin): where the pinned release has
//!   vanished, the nearest newer one of the series stands in, and the note says so.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apt::{self, Apt};
use super::{Cache, hex, move_in, sha256, unpack};

/// Stands for the kernel's release in names and paths.
const RELEASE: &str = "{release}";

/// One package of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pin {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Of the archive of that version.
    pub(crate) sha256: String,
}

/// The kernel's release in package names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Release {
    pub(crate) pinned: String,
    /// What a stand-in must begin with.
    pub(crate) series: String,
}

/// Packages that make one tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bundle {
    pub(crate) id: String,
    /// The first one is preferred.
    pub(crate) suites: Vec<String>,
    pub(crate) packages: Vec<Pin>,
    /// Whether all that the packages depend on is part of the tree.
    pub(crate) closure: bool,
    /// Beginnings of the names of packages that come with the closure and are not unpacked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) without: Vec<String>,
    pub(crate) release: Option<Release>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slice: Option<Slice>,
}

/// One folder of an archive that a package carries: of a kernel's sources a driver is wanted, not all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Slice {
    /// A `.tar.xz`, its place below the package's root. It is removed afterwards.
    pub(crate) archive: String,
    /// What of it is kept, at the tree's root.
    pub(crate) folder: String,
}

/// A bundle's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) tree: PathBuf,
    /// The kernel's release, where the bundle has one.
    pub(crate) release: String,
    /// For the reader: what was taken, from where.
    pub(crate) note: String,
}

/// What a finished fetch leaves for later runs.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Digest of the row that was asked for: a changed row is fetched anew.
    wanted: String,
    tree: String,
    release: String,
    note: String,
}

impl Cache {
    /// The bundle's tree: from the cache, else from Debian. The inner error says what the machine lacks.
    pub(crate) fn bundle(&self, bundle: &Bundle) -> anyhow::Result<Result<Unpacked, String>> {
        self.bundle_with(bundle, Path::new("busybox"))
    }

    /// The same; `busybox` is the program that unpacks a slice, since the machine need not have xz.
    pub(crate) fn bundle_with(
        &self,
        bundle: &Bundle,
        busybox: &Path,
    ) -> anyhow::Result<Result<Unpacked, String>> {
        if let Some(record) = self.record(bundle) {
            return Ok(Ok(self.unpacked(record, "cached")));
        }
        eprintln!(
            "fetching {} from Debian into {}, once",
            bundle.id,
            self.folder.display()
        );
        let suites: Vec<&str> = bundle.suites.iter().map(String::as_str).collect();
        let fetched = Apt::prepare(&self.folder, &bundle.id, &suites).and_then(|apt| {
            apt.update()?;
            let chosen = bundle.choose(&apt)?;
            let archives = bundle.download(&apt, &chosen)?;
            Ok((apt, chosen, archives))
        });
        let (_apt, chosen, archives) = match fetched {
            Ok(fetched) => fetched, // apt's folder holds the archives until its drop
            Err(need) => return Ok(Err(need)),
        };
        let tree = match self.keep_bundle(bundle, &chosen, &archives, busybox)? {
            Ok(tree) => tree,
            Err(need) => return Ok(Err(need)),
        };
        let record = Record {
            wanted: bundle.digest()?,
            tree,
            release: chosen.release.clone(),
            note: bundle.note(&chosen),
        };
        fs::write(self.record_file(bundle), serde_json::to_vec_pretty(&record)?)?;
        Ok(Ok(self.unpacked(record, "fetched")))
    }

    /// Removes the trees of all bundles, those of former pins too, and what runs that were cut short left behind.
    /// Packages of their own (C headers) stay. Says what it removed.
    pub(crate) fn forget_bundles(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for tree in folders(&self.folder.join("sha256"))? {
            if !self.version_file(&apt::file_name(&tree)).exists() {
                removed.push(tree);
            }
        }
        for left in folders(&self.folder)? {
            let name = apt::file_name(&left);
            let begun = ["part-", "apt-"].iter().any(|begin| name.starts_with(begin));
            let process = name.rsplit('-').next().unwrap_or_default();
            if begun && !Path::new("/proc").join(process).exists() {
                removed.push(left);
            }
        }
        for record in fs::read_dir(self.folder.join("stand-in"))? {
            let record = record?.path();
            if apt::file_name(&record).starts_with("bundle-") {
                fs::remove_file(record)?;
            }
        }
        for folder in &removed {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        Ok(removed)
    }

    /// A file that is made of other things of the cache, under their digest: made once. `make` fills a folder that is
    /// moved to its place when it is whole; its inner error says what the machine lacks.
    pub(crate) fn made(
        &self,
        digest: &[u8],
        file: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<Result<(), String>>,
    ) -> anyhow::Result<Result<PathBuf, String>> {
        let place = self.folder.join("sha256").join(hex(digest));
        if place.join(file).is_file() {
            return Ok(Ok(place.join(file)));
        }
        let part = self.folder.join(format!("part-{file}-{}", std::process::id()));
        fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
        let made = make(&part);
        if !matches!(made, Ok(Ok(()))) {
            let _ = fs::remove_dir_all(&part); // the error is the answer
            return Ok(made?.map(|()| PathBuf::new()));
        }
        move_in(&part, &place)?;
        Ok(Ok(place.join(file)))
    }

    fn unpacked(&self, record: Record, how: &str) -> Unpacked {
        Unpacked {
            tree: self.folder.join("sha256").join(record.tree),
            release: record.release,
            note: format!("{}, {how}", record.note),
        }
    }

    fn record_file(&self, bundle: &Bundle) -> PathBuf {
        self.folder
            .join("stand-in")
            .join(format!("bundle-{}.json", bundle.id))
    }

    fn record(&self, bundle: &Bundle) -> Option<Record> {
        let text = fs::read(self.record_file(bundle)).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        let plain = record.tree.len() == 64 && record.tree.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = plain && record.wanted == bundle.digest().ok()?;
        (fits && self.folder.join("sha256").join(&record.tree).is_dir()).then_some(record)
    }

    /// Verifies the pinned archives and unpacks all of them.
    fn keep_bundle(
        &self,
        bundle: &Bundle,
        chosen: &Chosen,
        archives: &[PathBuf],
        busybox: &Path,
    ) -> anyhow::Result<Result<String, String>> {
        let mut all = Sha256::new();
        let holds = |package: &str| {
            let begin = format!("{package}_");
            archives
                .iter()
                .any(|archive| apt::file_name(archive).starts_with(&begin))
        };
        if let Some((package, _)) = chosen.packages.iter().find(|(package, _)| !holds(package)) {
            bail!("apt fetched no archive of {package}");
        }
        for archive in archives {
            let digest = sha256(archive)?;
            let name = apt::file_name(archive);
            for (pin, (package, version)) in bundle.packages.iter().zip(&chosen.packages) {
                let is_it = name.starts_with(&format!("{package}_"));
                let pinned = *version == pin.version && chosen.is_pinned(bundle);
                if is_it && pinned && digest != pin.sha256 {
                    bail!(
                        "{package} {version} has SHA-256 {digest}, pinned is {}",
                        pin.sha256
                    );
                }
            }
            all.update(format!("{digest}  {name}\n"));
        }
        if let Some(slice) = &bundle.slice {
            all.update(format!("{}\n", slice.folder));
        }
        let digest = hex(&all.finalize());
        let tree = self.folder.join("sha256").join(&digest);
        if !tree.exists() {
            let part = self
                .folder
                .join(format!("part-{}-{}", bundle.id, std::process::id()));
            let is_wanted = |archive: &&Path| {
                let name = apt::file_name(archive);
                !bundle.without.iter().any(|begin| name.starts_with(begin))
            };
            let archives = archives.iter().map(PathBuf::as_path);
            let archives: Vec<&Path> = archives.filter(is_wanted).collect();
            if let Err(need) = unpack(&archives, &part)? {
                return Ok(Err(need));
            }
            if let Some(slice) = &bundle.slice {
                if let Err(error) = slice.cut(&part, busybox) {
                    let _ = fs::remove_dir_all(&part); // the error is the answer
                    return Err(error);
                }
            }
            move_in(&part, &tree)?;
        }
        Ok(Ok(digest))
    }
}

impl Slice {
    /// Leaves the wanted folder in the place of the archive.
    fn cut(&self, part: &Path, busybox: &Path) -> anyhow::Result<()> {
        let archive = part.join(&self.archive);
        let mut command = Command::new(busybox);
        command.arg("tar").arg("-xJf").arg(&archive).arg("-C").arg(part);
        let output = command.arg(&self.folder).output().context("cannot run busybox")?;
        if !output.status.success() || !part.join(&self.folder).is_dir() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("{} holds no {}: {said}", self.archive, self.folder);
        }
        fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
    }
}

/// The folders right below one.
fn folders(below: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(below).with_context(|| format!("cannot read {}", below.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.push(entry.path());
        }
    }
    all.sort();
    Ok(all)
}

/// What will be fetched: names and versions, in the order of the bundle's packages.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    release: String,
    packages: Vec<(String, String)>,
}

impl Chosen {
    fn is_pinned(&self, bundle: &Bundle) -> bool {
        bundle
            .release
            .as_ref()
            .is_none_or(|release| release.pinned == self.release)
    }
}

impl Bundle {
    fn digest(&self) -> anyhow::Result<String> {
        Ok(hex(&Sha256::digest(serde_json::to_vec(self)?)))
    }

    /// Names and versions that Debian has. An error says what is missing.
    fn choose(&self, apt: &Apt) -> Result<Chosen, String> {
        let release = match &self.release {
            None => String::new(),
            Some(release) => {
                let mut listed = Vec::new();
                for pin in &self.packages {
                    listed.push(apt.names(&pattern(&pin.name, release))?);
                }
                let releases = releases(&self.packages, &listed);
                apt::choose(&release.pinned, &releases, apt::newer_by_dpkg).ok_or_else(|| {
                    format!(
                        "{} lists no kernel {} or a newer one of {}: move the pin",
                        self.suites.join(" "),
                        release.pinned,
                        release.series
                    )
                })?
            }
        };
        let names: Vec<_> = self
            .packages
            .iter()
            .map(|pin| pin.name.replace(RELEASE, &release))
            .collect();
        let wanted = names.iter().zip(&self.packages);
        let wanted: Vec<_> = wanted
            .map(|(name, pin)| (name.as_str(), pin.version.as_str()))
            .collect();
        let versions = apt.versions(&wanted)?;
        let packages = names.into_iter().zip(versions).collect();
        Ok(Chosen { release, packages })
    }

    fn download(&self, apt: &Apt, chosen: &Chosen) -> Result<Vec<PathBuf>, String> {
        if self.closure {
            let packages: Vec<_> = chosen
                .packages
                .iter()
                .map(|(name, version)| format!("{name}={version}"))
                .collect();
            return apt.closure(&packages, &self.suites[0]);
        }
        let download = |(name, version): &(String, String)| Ok(apt.download(name, version)?.archive);
        chosen.packages.iter().map(download).collect()
    }

    fn note(&self, chosen: &Chosen) -> String {
        let mut note = String::new();
        for (pin, (name, version)) in self.packages.iter().zip(&chosen.packages) {
            let separator = if note.is_empty() { "" } else { ", " };
            let _ = write!(note, "{separator}{name} {version}");
            let wanted = pin
                .name
                .replace(RELEASE, self.release.as_ref().map_or("", |r| &r.pinned));
            if *version != pin.version || *name != wanted {
                let _ = write!(
                    note,
                    " (stands in for {wanted} {}, which has vanished)",
                    pin.version
                );
            }
        }
        note
    }
}

/// A regular expression for the pin's name with any release of the series and of the same flavour.
fn pattern(name: &str, release: &Release) -> String {
    let quote = |text: &str| {
        text.chars().fold(String::new(), |mut quoted, c| {
            if !c.is_ascii_alphanumeric() && c != '-' {
                quoted.push('\\');
            }
            quoted.push(c);
            quoted
        })
    };
    let flavour = release
        .pinned
        .find('+')
        .map_or("", |plus| &release.pinned[plus..]);
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
    let first = all.next().unwrap_or_default();
    all.fold(first, |mut both, next| {
        both.retain(|release| next.contains(release));
        both
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> Bundle {
        let pin = |name: &str| Pin {
            name: name.into(),
            version: "7.3.4-1".into(),
            sha256: "aa".into(),
        };
        Bundle {
            id: "kernel-7".into(),
            suites: vec!["trixie-backports".into()],
            packages: vec![pin("linux-binary-{release}"), pin("linux-modules-{release}")],
            closure: false,
            without: Vec::new(),
            slice: None,
            release: Some(Release {
                pinned: "7.3.4+deb13-amd64".into(),
                series: "7.".into(),
            }),
        }
    }

    #[test]
    fn a_name_is_searched_with_any_release_of_its_series_and_flavour() {
        let bundle = bundle();
        let release = bundle.release.as_ref().expect("a kernel");
        assert_eq!(
            pattern("linux-modules-{release}", release),
            r"^linux-modules-7\.[0-9.]+\+deb13-amd64$",
            "dots and plus are quoted, other flavours end differently"
        );
    }

    #[test]
    fn only_a_release_with_all_packages_can_stand_in() {
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
    fn a_stand_in_says_what_it_stands_for() {
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
    fn a_record_serves_its_own_row_only_and_is_no_way_out_of_the_cache() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let tree = "a".repeat(64);
        fs::create_dir_all(folder.path().join("sha256").join(&tree)).expect("a tree");
        fs::create_dir_all(folder.path().join("stand-in")).expect("a folder");
        let write = |tree: &str| {
            let record = Record {
                wanted: bundle().digest().expect("a digest"),
                tree: tree.to_owned(),
                release: "7.3.4+deb13-amd64".into(),
                note: "kernel".into(),
            };
            let json = serde_json::to_vec(&record).expect("json");
            fs::write(cache.record_file(&bundle()), json).expect("a record");
        };
        write(&tree);
        assert!(cache.record(&bundle()).is_some(), "the row's own record serves");
        let mut moved = bundle();
        moved.packages[0].version = "7.3.5-1".into();
        assert!(cache.record(&moved).is_none(), "a moved pin is fetched anew");
        write("../../etc");
        assert!(
            cache.record(&bundle()).is_none(),
            "a tree is a digest, never a path"
        );
        write(&"b".repeat(64));
        assert!(
            cache.record(&bundle()).is_none(),
            "a tree that is gone is fetched anew"
        );
    }
    #[test]
    fn forgetting_takes_every_bundle_and_leaves_packages_and_runs_under_way() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let make = |name: &str| fs::create_dir_all(folder.path().join(name)).expect("a folder");
        let running = format!("part-qemu-{}", std::process::id());
        for name in [
            "sha256/aa",
            "sha256/bb",
            "sha256/hh",
            "stand-in",
            "part-qemu-0",
            &running,
        ] {
            make(name);
        }
        fs::write(cache.version_file("hh"), "6.1").expect("a package has a version");
        fs::write(cache.record_file(&bundle()), "{}").expect("a record");
        let removed = cache.forget_bundles().expect("all of it can be removed");
        let names: Vec<_> = removed.iter().map(|path| apt::file_name(path)).collect();
        assert_eq!(
            names,
            ["aa", "bb", "part-qemu-0"],
            "trees of former pins too; a package and a running process keep theirs"
        );
        assert!(folder.path().join("sha256/hh").exists(), "the package is there");
        assert!(!folder.path().join("sha256/aa").exists(), "the tree is gone");
        assert!(
            !cache.record_file(&bundle()).exists(),
            "a record without its tree is gone too"
        );
    }

    #[test]
    fn of_an_archive_in_a_package_only_the_wanted_folder_stays() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let slice = Slice {
            archive: "usr/src/all.tar.xz".into(),
            folder: "all/driver".into(),
        };
        fs::create_dir_all(folder.path().join("usr/src")).expect("a folder");
        fs::write(folder.path().join("usr/src/all.tar.xz"), "").expect("an archive");
        // A stand-in for busybox: it makes what was asked for.
        let program = folder.path().join("program");
        let script = "#!/bin/sh\n[ \"$1 $2 $4\" = 'tar -xJf -C' ] && mkdir -p \"$5/$6\"\n";
        fs::write(&program, script).expect("a script");
        let mut mode = fs::metadata(&program).expect("it is there").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        fs::set_permissions(&program, mode).expect("it may run");
        slice.cut(folder.path(), &program).expect("it is cut");
        assert!(folder.path().join("all/driver").is_dir(), "the folder is kept");
        assert!(
            !folder.path().join("usr/src/all.tar.xz").exists(),
            "the archive is not"
        );
        let error = slice
            .cut(folder.path(), Path::new("/bin/false"))
            .expect_err("no archive, no folder");
        assert!(error.to_string().contains("all.tar.xz"), "it is named: {error}");
    }
}
