//! libibverbs in the guest: soft-RoCE's provider, perftest, and the C library that they need.
//!
//! A program that this machine built runs on an older C library and on every newer one, so the
//! guest has one, that of the bundle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::{files, run};

/// Where Debian keeps libraries, in the tree and in the guest.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The only driver that libibverbs looks for: it would print a warning for each other one, since
/// none is in the guest.
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

    /// Places in the guest, each with its file.
    pub(crate) fn files(&self) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut all = BTreeMap::from([(DRIVER.to_owned(), self.tree.join(DRIVER))]);
        let folder = self.tree.join(LIBRARIES).join(PROVIDERS);
        let mut roots = files::children(&folder)?;
        roots.retain(|path| files::name(path).starts_with(PROVIDER));
        if roots.is_empty() {
            bail!("{} has no {PROVIDER}*.so", folder.display());
        }
        let programs = self.programs.iter().map(|name| {
            let [user, system] = ["usr/bin", "usr/sbin"].map(|folder| self.tree.join(folder).join(name));
            if user.is_file() { user } else { system }
        });
        roots.extend(programs);
        for root in roots {
            for library in self.closure(&root)? {
                all.insert(format!("{LIBRARIES}/{}", files::name(&library)), library);
            }
            let place = root.strip_prefix(&self.tree).context("the file is of the tree")?;
            all.insert(place.display().to_string(), root.clone());
        }
        Ok(all)
    }

    /// What the tree's own loader would load; nothing of the program runs.
    fn closure(&self, program: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let libraries = self.tree.join(LIBRARIES);
        let mut loader = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        loader
            .arg("--library-path")
            .arg(&libraries)
            .arg("--list")
            .arg(program);
        let text = run::text(&mut loader);
        listed(&text.with_context(|| format!("{} cannot be loaded", program.display()))?)
    }
}

/// Paths in what ldd prints: `name => /path (address)` and `/path (address)`.
pub(super) fn listed(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        if let Some((name, _)) = line.split_once(" => not found") {
            bail!("this machine has no {}", name.trim());
        }
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        paths.extend(path.map(PathBuf::from));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n\tstatically linked\n";
        let seen = listed(text).expect("all are there");
        assert_eq!(
            seen,
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from),
            "the vdso is not a file"
        );
        let error = listed("\tlibx.so.1 => not found\n").expect_err("it is missing");
        assert!(error.to_string().contains("libx.so.1"), "it is named: {error}");
    }
}
