//! Several packages unpacked over one another into one tree, with or without all that they depend on.
//!
//! - A tree lies under a digest of its archives' digests; a record per bundle says which tree serves which pins, so
//!   that a later run needs no network.
//! - Kernel packages carry the kernel's release in their names (`{release}` in a pin): where the pinned release has
//!   vanished, the nearest newer one of the series stands in, and the note says so.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
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
    pub(crate) release: Option<Release>,
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
        if let Some(record) = self.record(bundle) {
            return Ok(Ok(self.unpacked(record, "cached")));
        }
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
        let tree = match self.keep_bundle(bundle, &chosen, &archives)? {
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

    /// Removes a bundle's tree and record; says where it was.
    pub(crate) fn forget(&self, bundle: &Bundle) -> anyhow::Result<Option<PathBuf>> {
        let Some(record) = self.record(bundle) else {
            return Ok(None);
        };
        let tree = self.folder.join("sha256").join(&record.tree);
        fs::remove_file(self.record_file(bundle))?;
        fs::remove_dir_all(&tree)?;
        Ok(Some(tree))
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
        let digest = hex(&all.finalize());
        let tree = self.folder.join("sha256").join(&digest);
        if !tree.exists() {
            let part = self
                .folder
                .join(format!("part-{}-{}", bundle.id, std::process::id()));
            let archives: Vec<&Path> = archives.iter().map(PathBuf::as_path).collect();
            if let Err(need) = unpack(&archives, &part)? {
                return Ok(Err(need));
            }
            move_in(&part, &tree)?;
        }
        Ok(Ok(digest))
    }
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
        let mut packages = Vec::new();
        for pin in &self.packages {
            let name = pin.name.replace(RELEASE, &release);
            let version = apt.version(&name, &pin.version)?;
            packages.push((name, version));
        }
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
}
