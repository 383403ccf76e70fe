//! Files and folders of this machine, with errors that name the path.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Adds what was done, and to which path, to an error.
pub(crate) trait At<T> {
    /// `cannot VERB PATH`.
    fn at(self, verb: &str, path: &Path) -> anyhow::Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, verb: &str, path: &Path) -> anyhow::Result<T> {
        self.with_context(|| format!("cannot {verb} {}", path.display()))
    }
}

pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).at("read", path)
}

pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).at("read", path)
}

pub(crate) fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).at("write", path)
}

pub(crate) fn make_folder(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).at("make", path)
}

pub(crate) fn remove_folder(path: &Path) -> anyhow::Result<()> {
    fs::remove_dir_all(path).at("remove", path)
}

/// The entries of a folder, by name.
pub(crate) fn children(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()
    });
    let mut paths = entries.at("read", folder)?;
    paths.sort();
    Ok(paths)
}

/// The last part of a path; empty for `/`.
pub(crate) fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
