//! libibverbs in the guest: soft-RoCE's provider, perftest, and the C library that they want.
//!
//! A program that this machine built runs on an older C library and on every newer one, so the
//! guest has one, that of the bundle.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Where Debian keeps libraries, in the tree and in the guest.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Without the other drivers' lines libibverbs would look for each of them and say that it did in
/// vain.
const DRIVER: &str = "etc/libibverbs.d/rxe.driver";
/// Plugins of a private interface, whose number is in their names.
const PROVIDERS: &str = "libibverbs";
const PROVIDER: &str = "librxe-rdmav";

/// The bundle, and what of it the guest gets.
#[derive(Clone, Debug)]
pub(crate) struct Verbs {
    pub(crate) tree: PathBuf,
    pub(crate) programs: Vec<String>,
}

impl Verbs {
    /// The bundle's own library of this name.
    pub(crate) fn library(&self, name: &str) -> Option<PathBuf> {
        let path = self.tree.join(LIBRARIES).join(name);
        path.is_file().then_some(path)
    }

    /// Sockets in the guest, each with its file.
    pub(crate) fn files(&self) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::from([(DRIVER.to_owned(), self.tree.join(DRIVER))]);
        let folder = self.tree.join(LIBRARIES).join(PROVIDERS);
        let mut roots = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PROVIDER) {
                files.insert(format!("{LIBRARIES}/{PROVIDERS}/{name}"), entry.path());
                roots.push(entry.path());
            }
        }
        if roots.is_empty() {
            bail!("{} has no {PROVIDER}*.so", folder.display());
        }
        for program in &self.programs {
            let path = self.tree.join("usr/bin").join(program);
            files.insert(format!("usr/bin/{program}"), path.clone());
            roots.push(path);
        }
        for root in &roots {
            for library in self.closure(root)? {
                let name = library
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                files.insert(format!("{LIBRARIES}/{}", name.unwrap_or_default()), library);
            }
        }
        Ok(files)
    }

    /// What the tree's own loader would load; nothing of the program runs.
    fn closure(&self, program: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let libraries = self.tree.join(LIBRARIES);
        let output = Command::new(libraries.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(&libraries)
            .arg("--list")
            .arg(program)
            .output()
            .with_context(|| format!("cannot run the loader of {}", libraries.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} cannot be loaded: {}", program.display(), said.trim());
        }
        super::image::listed(&String::from_utf8_lossy(&output.stdout))
    }
}
