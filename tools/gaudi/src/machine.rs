//! The files of a machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine's `/proc`, `/sys` and `/dev`, under a root of its own in tests.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) root: PathBuf,
}

impl Machine {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the machine that the program runs on. Other machines have only files.
    pub(crate) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Returns a file's text without the white space around it. `None` if it cannot be read.
    pub(crate) fn read(&self, absolute: &str) -> Option<String> {
        tracing::debug!("read {absolute}");
        let text = fs::read_to_string(self.path(absolute)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns the number in a file.
    pub(crate) fn number(&self, absolute: &str) -> Option<i64> {
        self.read(absolute)?.parse().ok()
    }

    /// Returns the names in a folder, sorted. A folder that cannot be read has none.
    pub(crate) fn names(&self, absolute: &str) -> Vec<String> {
        tracing::debug!("read {absolute}/");
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Returns the name of the file that a link points to.
    pub(crate) fn link_name(&self, absolute: &str) -> Option<String> {
        let target = fs::read_link(self.path(absolute)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
