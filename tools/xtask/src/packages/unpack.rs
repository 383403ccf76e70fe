//! Unpacks Debian's archives into one tree, as dpkg does.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::files::{self, At as _};
use crate::missing::OrSkip as _;

/// Unpacks archives over one another, each into its own folder first, so that a link of one cannot
/// redirect the next out of the tree.
pub(super) fn unpack(archives: &[&PathBuf], into: &Path) -> anyhow::Result<()> {
    // Named after `into`, which ends in the process's number: two threads may unpack at once.
    let one = into.with_file_name(format!("part-one-{}", files::name(into)));
    let unpacked = unpack_each(archives, into, &one);
    let _ = fs::remove_dir_all(&one); // it may not be there
    if unpacked.is_err() {
        let _ = fs::remove_dir_all(into); // the error is the answer
    }
    unpacked
}

fn unpack_each(archives: &[&PathBuf], into: &Path, one: &Path) -> anyhow::Result<()> {
    files::make_folder(into)?;
    let root = into.canonicalize()?;
    for archive in archives {
        let output = Command::new("dpkg-deb").arg("-x").arg(archive).arg(one).output();
        let output = output.context("dpkg-deb does not run").or_skip("install dpkg")?;
        if !output.status.success() {
            bail!(
                "dpkg-deb -x failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        merge(one, &root, &root).with_context(|| format!("cannot unpack {}", archive.display()))?;
        fs::remove_dir_all(one)?;
    }
    Ok(())
}

/// Moves all that is below `from` to `to`, a folder of the tree at `root`, as dpkg does: a file or
/// link replaces an older one, a folder is merged with an older one, or with the target of an older
/// link.
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
                let target = place.canonicalize().ok();
                let Some(folder) = target.filter(|target| target.starts_with(root) && target.is_dir()) else {
                    let what = if old.is_symlink() {
                        "a link out of the tree"
                    } else {
                        "a file"
                    };
                    let place = place.display();
                    bail!("{place} is {what} in an earlier package, a folder in this one");
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

/// Moves a tree to its place. Another run may have been faster; its tree has the same name and so
/// the same content.
pub(super) fn move_in(part: &Path, tree: &Path) -> anyhow::Result<()> {
    if let Err(error) = fs::rename(part, tree) {
        let _ = fs::remove_dir_all(part); // the error is the answer
        if !tree.exists() {
            return Err(error).at("move into", tree);
        }
    }
    Ok(())
}

pub(super) fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path).at("read", path)?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    /// Builds a package of these paths. `None` if the machine has no dpkg-deb, which is counted as
    /// a skip.
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
                crate::test::skip(
                    "packages",
                    &format!("dpkg-deb does not run ({error}): install dpkg"),
                );
                None
            }
        }
    }

    #[test]
    fn unpack_never_follows_links_outside() {
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
        unpack(&[&links, &file], &tree).expect("unpacked");
        assert_eq!(
            fs::read_to_string(outside.join("file")).expect("it is there"),
            "mine"
        );
        assert_eq!(fs::read_to_string(tree.join("file")).expect("a file"), "theirs");
    }

    #[test]
    fn packages_share_folders_and_links() {
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
        unpack(&[&one, &two, &three], &tree).expect("unpacked");
        for file in ["usr/lib/one", "usr/lib/two", "usr/lib/d/x"] {
            assert!(tree.join(file).is_file(), "{file}");
        }
        assert!(tree.join("lib").is_symlink(), "the link stays");
    }
}
