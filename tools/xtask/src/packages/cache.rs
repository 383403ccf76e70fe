//! The cache of unpacked packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apt::Apt;
use super::bundle::{Bundle, Chosen};
use super::unpack::{hex, move_in, sha256, unpack};
use crate::files;
use crate::missing::OrSkip as _;

/// The cache folder.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// A bundle's files, and what a finished fetch records for later runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unpacked {
    /// Digest of the requested row: a changed row is fetched again.
    wanted: String,
    /// Its name alone in a record.
    pub(crate) tree: PathBuf,
    /// The kernel's release, where the bundle has one.
    pub(crate) release: String,
    /// For the reader: what was taken, from where.
    pub(crate) note: String,
}

impl Cache {
    /// The cache of the environment.
    pub(crate) fn open() -> anyhow::Result<Cache> {
        let folder = Cache::locate(|name| env::var_os(name).map(PathBuf::from))
            .or_skip("no cache folder: set GAUDI_CACHE to an absolute path (HOME is not set)")?;
        for part in ["sha256", "stand-in"] {
            let made = files::make_folder(&folder.join(part));
            made.or_skip("set GAUDI_CACHE to a folder that is writable")?;
        }
        Ok(Cache { folder })
    }

    /// The folder that holds it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// An empty or relative XDG_CACHE_HOME is ignored, as its specification asks.
    fn locate(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let absolute = |name: &str| var(name).filter(|path| path.is_absolute());
        absolute("GAUDI_CACHE")
            .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("gaudi-hal")))
            .or_else(|| absolute("HOME").map(|path| path.join(".cache/gaudi-hal")))
    }

    /// The bundle's tree: from the cache, otherwise from Debian.
    pub(crate) fn bundle(&self, bundle: &Bundle) -> anyhow::Result<Unpacked> {
        if let Some(record) = self.record(bundle) {
            return Ok(self.unpacked(record, ", cached"));
        }
        let folder = self.folder.display();
        eprintln!("fetching {} from Debian into {folder}, once", bundle.id);
        // apt's folder holds the archives until `apt` is dropped.
        let apt = Apt::prepare(&self.folder, &bundle.id, &bundle.suites)?;
        apt.update()?;
        let chosen = bundle.choose(&apt)?;
        let archives = bundle.download(&apt, &chosen)?;
        let record = Unpacked {
            wanted: bundle.digest()?,
            tree: self.add(bundle, &chosen, &archives)?.into(),
            release: chosen.release.clone(),
            note: bundle.note(&chosen),
        };
        fs::write(self.record_file(bundle), serde_json::to_vec_pretty(&record)?)?;
        Ok(self.unpacked(record, ", fetched"))
    }

    /// Removes the trees of all bundles, those of former pins too, and the folders of interrupted
    /// runs. Returns the removed folders.
    pub(crate) fn clear(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut removed = files::children(&self.folder.join("sha256"))?;
        for left in files::children(&self.folder)? {
            let name = files::name(&left);
            let begun = ["part-", "apt-"].iter().any(|begin| name.starts_with(begin));
            let process = name.rsplit('-').next().unwrap_or(&name);
            if begun && !Path::new("/proc").join(process).exists() {
                removed.push(left);
            }
        }
        for record in files::children(&self.folder.join("stand-in"))? {
            if files::name(&record).starts_with("bundle-") {
                fs::remove_file(record)?;
            }
        }
        for folder in &removed {
            files::remove_folder(folder)?;
        }
        Ok(removed)
    }

    /// The folder of a digest. If it is missing, `make` fills a folder, which is moved to its place
    /// when it is whole.
    fn place(
        &self,
        digest: &str,
        name: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let place = self.folder.join("sha256").join(digest);
        if !place.exists() {
            let part = self.folder.join(format!("part-{name}-{}", std::process::id()));
            files::make_folder(&part)?;
            if let Err(error) = make(&part) {
                let _ = fs::remove_dir_all(&part); // the error is the answer
                return Err(error);
            }
            move_in(&part, &place)?;
        }
        Ok(place)
    }

    /// A file that is made from other files of the cache, once, under their digest.
    pub(crate) fn made(
        &self,
        digest: &[u8],
        file: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        Ok(self.place(&hex(digest), file, make)?.join(file))
    }

    fn unpacked(&self, mut record: Unpacked, how: &str) -> Unpacked {
        record.tree = self.folder.join("sha256").join(record.tree);
        record.note += how;
        record
    }

    fn record_file(&self, bundle: &Bundle) -> PathBuf {
        let name = format!("bundle-{}.json", bundle.id);
        self.folder.join("stand-in").join(name)
    }

    fn record(&self, bundle: &Bundle) -> Option<Unpacked> {
        let text = fs::read(self.record_file(bundle)).ok()?;
        let record: Unpacked = serde_json::from_slice(&text).ok()?;
        let name = record.tree.to_str()?;
        let plain = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = plain && record.wanted == bundle.digest().ok()?;
        (fits && self.folder.join("sha256").join(&record.tree).is_dir()).then_some(record)
    }

    /// Verifies the pinned archives and unpacks all of them. Returns the tree's digest.
    fn add(&self, bundle: &Bundle, chosen: &Chosen, archives: &[PathBuf]) -> anyhow::Result<String> {
        let mut all = Sha256::new();
        let is_of = |archive: &Path, package: &str| files::name(archive).starts_with(&format!("{package}_"));
        for (package, _) in &chosen.packages {
            if !archives.iter().any(|archive| is_of(archive, package)) {
                bail!("apt fetched no archive of {package}");
            }
        }
        for archive in archives {
            let (digest, name) = (sha256(archive)?, files::name(archive));
            for (pin, (package, version)) in bundle.packages.iter().zip(&chosen.packages) {
                let pinned = *version == pin.version && chosen.is_pinned(bundle) && is_of_pins(&name);
                if is_of(archive, package) && pinned && digest != pin.sha256 {
                    let pinned = &pin.sha256;
                    bail!("{package} {version} has SHA-256 {digest}, pinned is {pinned}");
                }
            }
            all.update(format!("{digest}  {name}\n"));
        }
        if let Some(slice) = &bundle.slice {
            all.update(format!("{}\n", slice.folder));
        }
        let digest = hex(&all.finalize());
        self.place(&digest, &bundle.id, |part| {
            let is_left_out = |archive: &&PathBuf| {
                let name = files::name(archive);
                bundle.without.iter().any(|begin| name.starts_with(begin))
            };
            let (_, wanted): (Vec<_>, Vec<&PathBuf>) = archives.iter().partition(is_left_out);
            unpack(&wanted, part)?;
            bundle.slice.as_ref().map_or(Ok(()), |slice| slice.cut(part))
        })?;
        Ok(digest)
    }
}

/// Whether an archive is of the architecture whose digests are pinned, or of all.
fn is_of_pins(archive: &str) -> bool {
    archive.ends_with("_amd64.deb") || archive.ends_with("_all.deb")
}

#[cfg(test)]
mod tests {
    use super::super::bundle::sample as bundle;
    use super::*;

    #[test]
    fn the_cache_is_where_the_environment_says() {
        let place = |vars: &[(&str, &str)]| {
            let var = |name: &str| {
                vars.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            };
            Cache::locate(var).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/h");
        for (vars, wanted, why) in [
            (&[home][..], Some("/h/.cache/gaudi-hal"), "HOME alone"),
            (
                &[home, ("XDG_CACHE_HOME", "/x")],
                Some("/x/gaudi-hal"),
                "XDG before HOME",
            ),
            (
                &[home, ("XDG_CACHE_HOME", "x")],
                Some("/h/.cache/gaudi-hal"),
                "relative XDG",
            ),
            (
                &[home, ("GAUDI_CACHE", "/g")],
                Some("/g"),
                "GAUDI_CACHE before all",
            ),
            (&[], None, "no home, no cache"),
        ] {
            assert_eq!(place(vars).as_deref(), wanted, "{why}");
        }
    }

    #[test]
    fn archive_with_wrong_digest_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let add = |architecture: &str| {
            let packages: Vec<_> = ["binary", "modules"]
                .map(|kind| (format!("linux-{kind}-7.3.4+deb13-amd64"), "7.3.4-1".to_owned()))
                .to_vec();
            let archive = |(name, _): &(String, String)| {
                let archive = folder.path().join(format!("{name}_7.3.4-1_{architecture}.deb"));
                fs::write(&archive, "not the pinned bytes").expect("an archive");
                archive
            };
            let archives: Vec<_> = packages.iter().map(archive).collect();
            let chosen = Chosen {
                release: "7.3.4+deb13-amd64".into(),
                packages,
            };
            let error = cache.add(&bundle(), &chosen, &archives);
            format!("{:#}", error.expect_err("these are no archives"))
        };
        assert!(add("amd64").contains("pinned is aa"), "both digests are named");
        assert!(
            !add("arm64").contains("pinned"),
            "another architecture has no pin"
        );
    }

    #[test]
    fn record_serves_only_its_own_bundle() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let tree = "a".repeat(64);
        fs::create_dir_all(folder.path().join("sha256").join(&tree)).expect("a tree");
        fs::create_dir_all(folder.path().join("stand-in")).expect("a folder");
        let write = |tree: &str| {
            let record = Unpacked {
                wanted: bundle().digest().expect("a digest"),
                tree: tree.into(),
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
            "a missing tree is fetched again"
        );
    }

    #[test]
    fn clear_removes_all_but_running_fetches() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache {
            folder: folder.path().to_owned(),
        };
        let make = |name: &str| fs::create_dir_all(folder.path().join(name)).expect("a folder");
        let running = format!("part-qemu-{}", std::process::id());
        for name in ["sha256/aa", "sha256/bb", "stand-in", "part-qemu-0", &running] {
            make(name);
        }
        fs::write(cache.record_file(&bundle()), "{}").expect("a record");
        let removed = cache.clear().expect("all of it can be removed");
        let names: Vec<_> = removed.iter().map(|path| files::name(path)).collect();
        assert_eq!(
            names,
            ["aa", "bb", "part-qemu-0"],
            "trees of former pins too; a running process keeps its own"
        );
        assert!(!folder.path().join("sha256/aa").exists(), "the tree is removed");
        assert!(
            !cache.record_file(&bundle()).exists(),
            "a record is removed with its tree"
        );
    }
}
