//! Files from Debian packages, unpacked into a cache without root and without touching the machine's apt.
//!
//! - The cache is `${GAUDI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gaudi-hal}`, not `target/`: CI starts from a
//!   fresh clone. A package's tree lies under the SHA-256 of its archive, so a pinned one needs no network.
//! - apt checks signatures and digests; it runs with its own state, lists and configuration inside the cache.
//! - A version that Debian no longer carries falls to the nearest newer one, and the run says so.

pub(crate) mod apt;
pub(crate) mod bundle;
pub(crate) mod sources;
pub(crate) mod table;

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::apt::{Apt, Fetched};
use self::table::Package;

/// Where a package's files are, or what keeps them away.
#[derive(Debug)]
pub(crate) enum Found {
    /// The folder that holds the package's `usr`; the note is for the reader.
    At { tree: PathBuf, note: String },
    /// Not a defect of this project: no network, no apt, no keys. The words say what would help.
    Unavailable(String),
}

/// The cache folder.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// Remembers which archive stood in for a version that had vanished.
#[derive(Debug, Serialize, Deserialize)]
struct StandIn {
    wanted: String,
    version: String,
    sha256: String,
}

impl Cache {
    /// The cache of the environment.
    pub(crate) fn open() -> Result<Cache, String> {
        let folder = Cache::place(|name| env::var_os(name).map(PathBuf::from))
            .ok_or("no cache folder: set GAUDI_CACHE to an absolute path (HOME is not set)")?;
        let make = || {
            fs::create_dir_all(folder.join("sha256"))?;
            fs::create_dir_all(folder.join("stand-in"))
        };
        make().map_err(|error| {
            format!(
                "cannot write the cache {} ({error}): set GAUDI_CACHE to a folder that is writable",
                folder.display()
            )
        })?;
        Ok(Cache { folder })
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// An empty or relative XDG_CACHE_HOME is ignored, as its specification asks.
    fn place(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let absolute = |name: &str| var(name).filter(|path| path.is_absolute());
        absolute("GAUDI_CACHE")
            .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("gaudi-hal")))
            .or_else(|| absolute("HOME").map(|path| path.join(".cache/gaudi-hal")))
    }

    /// The package's tree: from the cache if it is there, else from Debian. An error is a broken promise (a digest
    /// that differs), not a machine that lacks something.
    pub(crate) fn get(&self, package: &Package, architecture: &str) -> anyhow::Result<Found> {
        let cached = package.digest(architecture).and_then(|digest| {
            let version = fs::read_to_string(self.version_file(digest)).ok()?;
            Some((self.tree(package, digest)?, version))
        });
        match cached {
            // A row whose version moved without its digest would go on reading the old files.
            Some((_, version)) if version != package.version => {
                bail!(
                    "the row of {} pins {} but the digest of {version}",
                    package.id,
                    package.version
                );
            }
            Some((tree, version)) => {
                return Ok(Found::At {
                    tree,
                    note: format!("{} {version}, cached", package.name),
                });
            }
            None => {}
        }
        if let Some(stand_in) = self.stand_in(package, architecture) {
            if let Some(tree) = self.tree(package, &stand_in.sha256) {
                return Ok(Found::At {
                    tree,
                    note: format!("{}, cached", stands_in(package, &stand_in.version)),
                });
            }
        }
        let apt = match Apt::prepare(&self.folder, package.id, &[package.suite]) {
            Ok(apt) => apt,
            Err(need) => return Ok(Found::Unavailable(need)),
        };
        match apt.fetch(package) {
            Ok(fetched) => self.keep(package, architecture, &fetched),
            Err(need) => Ok(Found::Unavailable(need)),
        }
    }

    /// A cached tree that holds what the package is fetched for.
    fn tree(&self, package: &Package, digest: &str) -> Option<PathBuf> {
        let tree = self.folder.join("sha256").join(digest);
        tree.join(package.holds).is_file().then_some(tree)
    }

    fn version_file(&self, digest: &str) -> PathBuf {
        self.folder.join("sha256").join(format!("{digest}.version"))
    }

    fn stand_in(&self, package: &Package, architecture: &str) -> Option<StandIn> {
        let text = fs::read(self.stand_in_file(package, architecture)).ok()?;
        let stand_in: StandIn = serde_json::from_slice(&text).ok()?;
        let plain =
            stand_in.sha256.len() == 64 && stand_in.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        (stand_in.wanted == package.version && plain).then_some(stand_in)
    }

    fn stand_in_file(&self, package: &Package, architecture: &str) -> PathBuf {
        self.folder
            .join("stand-in")
            .join(format!("{}_{architecture}.json", package.id))
    }

    /// Unpacks an archive beside the cache and moves it in whole, so that a run cut short leaves nothing half done.
    fn keep(&self, package: &Package, architecture: &str, fetched: &Fetched) -> anyhow::Result<Found> {
        let digest = sha256(&fetched.archive)?;
        let pinned = fetched.version == package.version;
        if let Some(wanted) = package
            .digest(architecture)
            .filter(|wanted| pinned && *wanted != digest)
        {
            bail!(
                "{} {} has SHA-256 {digest}, pinned is {wanted}",
                package.name,
                package.version
            );
        }
        if !pinned && package.digest(architecture) == Some(&digest) {
            bail!(
                "the row of {} pins {} but the digest of {}",
                package.id,
                package.version,
                fetched.version
            );
        }
        let tree = self.folder.join("sha256").join(&digest);
        fs::write(self.version_file(&digest), &fetched.version)?;
        let part = self
            .folder
            .join(format!("part-{}-{}", package.id, std::process::id()));
        if !tree.exists() {
            if let Err(need) = unpack(&[fetched.archive.as_path()], &part)? {
                return Ok(Found::Unavailable(need));
            }
            move_in(&part, &tree)?;
        }
        if !tree.join(package.holds).is_file() {
            bail!("{} {} holds no {}", package.name, fetched.version, package.holds);
        }
        if pinned && package.digest(architecture).is_some() {
            return Ok(Found::At {
                tree,
                note: format!("{} {}, fetched", package.name, fetched.version),
            });
        }
        let stand_in = StandIn {
            wanted: package.version.to_owned(),
            version: fetched.version.clone(),
            sha256: digest,
        };
        fs::write(
            self.stand_in_file(package, architecture),
            serde_json::to_vec_pretty(&stand_in)?,
        )?;
        Ok(Found::At {
            tree,
            note: format!("{}, fetched", stands_in(package, &fetched.version)),
        })
    }
}

/// Unpacks archives over one another, each into its own folder first, so that a link of one cannot redirect the next out of the tree. The inner
/// error names what the machine lacks.
fn unpack(archives: &[&Path], into: &Path) -> anyhow::Result<Result<(), String>> {
    let one = into.with_file_name(format!("part-one-{}", std::process::id()));
    let unpacked = unpack_each(archives, into, &one);
    let _ = fs::remove_dir_all(&one); // it may not be there
    if !matches!(unpacked, Ok(Ok(()))) {
        let _ = fs::remove_dir_all(into); // the error is the answer
    }
    unpacked
}

fn unpack_each(archives: &[&Path], into: &Path, one: &Path) -> anyhow::Result<Result<(), String>> {
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let root = into.canonicalize()?;
    for archive in archives {
        match Command::new("dpkg-deb").arg("-x").arg(archive).arg(one).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => bail!(
                "dpkg-deb -x failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) => return Ok(Err(format!("dpkg-deb does not run ({error}): install dpkg"))),
        }
        merge(one, &root, &root).with_context(|| format!("cannot unpack {}", archive.display()))?;
        fs::remove_dir_all(one)?;
    }
    Ok(Ok(()))
}

/// Moves all that is below `from` to `to`, a folder of the tree at `root`, as dpkg does: a file or link replaces an older one, a
/// folder is merged with an older one, or with the target of an older link.
fn merge(from: &Path, root: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        let old = fs::symlink_metadata(&place)
            .ok()
            .map(|metadata| metadata.file_type());
        let is_folder = entry.file_type()?.is_dir();
        match old {
            Some(old) if is_folder => {
                let folder = place
                    .canonicalize()
                    .ok()
                    .filter(|folder| folder.starts_with(root));
                let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
                    let what = if old.is_symlink() {
                        "a link out of the tree"
                    } else {
                        "a file"
                    };
                    bail!(
                        "{} is {what} in an earlier package, a folder in this one",
                        place.display()
                    );
                };
                merge(&entry.path(), root, &folder)?;
            }
            // dpkg keeps a folder if a later package has a link of that name.
            Some(old) if old.is_dir() => {}
            // Removes the link itself, not its target.
            Some(_) => {
                fs::remove_file(&place)?;
                fs::rename(entry.path(), place)?;
            }
            None => fs::rename(entry.path(), place)?,
        }
    }
    Ok(())
}

/// Moves a tree to its place. Another run may have been faster; its tree has the same name and so the same content.
fn move_in(part: &Path, tree: &Path) -> anyhow::Result<()> {
    if let Err(error) = fs::rename(part, tree) {
        let _ = fs::remove_dir_all(part);
        if !tree.exists() {
            return Err(error).with_context(|| format!("cannot move into {}", tree.display()));
        }
    }
    Ok(())
}

fn stands_in(package: &Package, version: &str) -> String {
    if version == package.version {
        format!("{} {version}, not pinned for this architecture", package.name)
    } else {
        format!(
            "{} {version} stands in for {}, which has vanished",
            package.name, package.version
        )
    }
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Package = Package {
        id: "sample",
        name: "linux-libc-dev",
        suite: "trixie",
        version: "6.12.1-1",
        sha256: &[("all", "aaaa")],
        holds: "usr/include/drm/x.h",
    };

    #[test]
    fn the_cache_is_where_the_environment_says() {
        let place = |vars: &[(&str, &str)]| {
            let var = |name: &str| {
                vars.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            };
            Cache::place(var).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/h");
        assert_eq!(
            place(&[home]).as_deref(),
            Some("/h/.cache/gaudi-hal"),
            "HOME alone"
        );
        assert_eq!(
            place(&[home, ("XDG_CACHE_HOME", "/x")]).as_deref(),
            Some("/x/gaudi-hal"),
            "XDG before HOME"
        );
        assert_eq!(
            place(&[home, ("XDG_CACHE_HOME", "x")]).as_deref(),
            Some("/h/.cache/gaudi-hal"),
            "relative XDG"
        );
        assert_eq!(
            place(&[home, ("GAUDI_CACHE", "/g")]).as_deref(),
            Some("/g"),
            "GAUDI_CACHE before all"
        );
        assert_eq!(place(&[]), None, "no home, no cache");
    }

    #[test]
    fn a_pinned_tree_in_the_cache_needs_no_network() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        assert_eq!(cache.tree(&SAMPLE, "aaaa"), None, "nothing is cached yet");
        fs::create_dir_all(folder.path().join("sha256/aaaa/usr/include/drm")).expect("folders");
        assert_eq!(
            cache.tree(&SAMPLE, "aaaa"),
            None,
            "a tree without its header is not the package"
        );
        fs::write(folder.path().join("sha256/aaaa/usr/include/drm/x.h"), "").expect("a header");
        fs::write(folder.path().join("sha256/aaaa.version"), "6.12.0-1").expect("a version");
        let error = cache
            .get(&SAMPLE, "amd64")
            .expect_err("a version moved without its digest is an error");
        assert!(
            error.to_string().contains("the digest of 6.12.0-1"),
            "the older version is named: {error}"
        );
        fs::write(folder.path().join("sha256/aaaa.version"), SAMPLE.version).expect("a version");
        let found = cache.get(&SAMPLE, "amd64").expect("the cache answers");
        assert!(
            matches!(found, Found::At { ref note, .. } if note.ends_with("cached")),
            "saw {found:?}"
        );
    }

    #[test]
    fn a_stand_in_is_forgotten_when_the_pin_moves_and_is_no_way_out_of_the_cache() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        fs::create_dir_all(folder.path().join("stand-in")).expect("a folder");
        let write = |wanted: &str, sha256: &str| {
            let stand_in = StandIn {
                wanted: wanted.into(),
                version: "6.12.2-1".into(),
                sha256: sha256.into(),
            };
            let json = serde_json::to_vec(&stand_in).expect("json");
            fs::write(cache.stand_in_file(&SAMPLE, "amd64"), json).expect("a file");
            cache.stand_in(&SAMPLE, "amd64").is_some()
        };
        assert!(
            write("6.12.1-1", &"a".repeat(64)),
            "the stand-in of this pin counts"
        );
        assert!(
            !write("6.12.0-1", &"a".repeat(64)),
            "the stand-in of an older pin does not"
        );
        assert!(
            !write("6.12.1-1", "../../etc"),
            "a digest is a digest, not a path"
        );
    }

    #[test]
    fn an_archive_with_another_digest_than_its_pin_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let archive = folder.path().join("x.deb");
        fs::write(&archive, "not the pinned bytes").expect("an archive");
        let fetched = Fetched {
            archive,
            version: SAMPLE.version.to_owned(),
        };
        let error = cache
            .keep(&SAMPLE, "amd64", &fetched)
            .expect_err("a wrong digest must not be unpacked");
        assert!(
            error.to_string().contains("pinned is aaaa"),
            "both digests are named: {error}"
        );
    }

    /// Builds a package of these paths. `None` if the machine has no dpkg-deb, which is counted as a skip.
    fn package(folder: &Path, name: &str, fill: impl FnOnce(&Path)) -> Option<PathBuf> {
        let tree = folder.join(name);
        fs::create_dir_all(tree.join("DEBIAN")).expect("a folder");
        let control =
            format!("Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n");
        fs::write(tree.join("DEBIAN/control"), control).expect("a file");
        fill(&tree);
        let archive = folder.join(format!("{name}.deb"));
        let mut command = Command::new("dpkg-deb");
        match command
            .args(["--root-owner-group", "-b"])
            .arg(&tree)
            .arg(&archive)
            .output()
        {
            Ok(output) => {
                assert!(output.status.success(), "{output:?}");
                Some(archive)
            }
            Err(error) => {
                if let Some(log) = env::var_os("GAUDI_SKIP_LOG") {
                    let line = format!("SKIP packages: dpkg-deb does not run ({error}): install dpkg\n");
                    let file = fs::OpenOptions::new().append(true).create(true).open(log);
                    io::Write::write_all(&mut file.expect("the log of skips"), line.as_bytes())
                        .expect("a line");
                }
                None
            }
        }
    }

    #[test]
    fn unpacking_never_writes_through_a_link_out_of_the_tree() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).expect("a folder");
        fs::write(outside.join("file"), "mine").expect("a file");
        let symlink =
            |target: &Path, link: PathBuf| std::os::unix::fs::symlink(target, link).expect("a link");
        let links = package(folder.path(), "links", |tree| {
            symlink(&outside, tree.join("lib"));
            symlink(&outside.join("file"), tree.join("file"));
        });
        let over = |name: &str, path: &str| {
            package(folder.path(), name, |tree| {
                let path = tree.join(path);
                fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
                fs::write(path, "theirs").expect("a file");
            })
        };
        let (Some(links), Some(below), Some(file)) = (links, over("below", "lib/new"), over("file", "file"))
        else {
            return;
        };
        let tree = folder.path().join("tree-1");
        let error = unpack(&[&links, &below], &tree).expect_err("the folder is a link out of the tree");
        assert!(
            format!("{error:#}").contains("tree-1/lib"),
            "the link is named: {error:#}"
        );
        assert!(!outside.join("new").exists(), "nothing is written outside");
        assert!(!tree.exists(), "nothing of the tree is left");
        let tree = folder.path().join("tree-2");
        unpack(&[&links, &file], &tree)
            .expect("unpacked")
            .expect("dpkg-deb runs");
        assert_eq!(
            fs::read_to_string(outside.join("file")).expect("it is there"),
            "mine"
        );
        assert_eq!(fs::read_to_string(tree.join("file")).expect("a file"), "theirs");
    }

    #[test]
    fn packages_share_folders_and_links_inside_the_tree() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let make = |name: &str, path: &str, link: Option<(&str, &str)>| {
            package(folder.path(), name, |tree| {
                let path = tree.join(path);
                fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
                fs::write(path, name).expect("a file");
                if let Some((target, link)) = link {
                    std::os::unix::fs::symlink(target, tree.join(link)).expect("a link");
                }
            })
        };
        let one = make("one", "usr/lib/one", Some(("usr/lib", "lib")));
        let (Some(one), Some(two), Some(three)) = (
            one,
            make("two", "lib/two", None),
            make("three", "usr/lib/d/x", None),
        ) else {
            return;
        };
        let tree = folder.path().join("tree");
        unpack(&[&one, &two, &three], &tree)
            .expect("unpacked")
            .expect("dpkg-deb runs");
        for file in ["usr/lib/one", "usr/lib/two", "usr/lib/d/x"] {
            assert!(tree.join(file).is_file(), "{file}");
        }
        assert!(tree.join("lib").is_symlink(), "the link stays");
    }
}
