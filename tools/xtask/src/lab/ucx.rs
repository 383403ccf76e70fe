//! Packaged UCX, Open MPI and libfabric in a guest, with the plugin, libgaudi_copy and the programs
//! that check data.
//!
//! They run on the C library and the libibverbs of their own Debian, in a folder of their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::image::{Added, Entry};
use super::verbs::listed;
use crate::files;
use crate::missing::or_missing;
use crate::packages::{Cache, Pins};
use crate::run;
use crate::test::c_library;
use crate::test::ucx::{LIBRARIES, build};
use crate::workspace::Workspace;

/// The test program (CRATE/FILE) that runs them.
pub(super) const TESTS: &str = "gaudi-lab/cards_ucx";
/// Their folder in the guest.
const FOLDER: &str = "opt/ucx";
const PROGRAMS: [&str; 3] = ["ucx_info", "prterun", "prted"];
/// Libraries that no program is linked with, below the tree's folder of libraries.
const ROOTS: [&str; 5] = [
    "libucp.so.0",
    "ucx/libuct_ib.so.0",
    "libmpi.so.40",
    "libfabric.so.1",
    "libgcc_s.so.1",
];
/// The provider for soft-RoCE; the number of the private interface is in its name.
const PROVIDER: &str = "librxe-rdmav";

/// Returns programs and libraries for the guest. Empty if the packages cannot be had: the guest
/// then has the reason, and the tests count as skipped.
pub(super) fn files(workspace: &Workspace) -> anyhow::Result<Vec<Added>> {
    let judge = Pins::load(&workspace.root)?
        .ucx_judges
        .into_iter()
        .find(|judge| judge.mpi);
    let judge = judge.context("packages.toml has a UCX with MPI")?;
    let tree = match or_missing(Cache::open().and_then(|cache| cache.bundle(&judge.bundle)))? {
        Ok(unpacked) => unpacked.tree,
        Err(need) => {
            println!("skip  ucx in the lab  {need}");
            return Ok(Vec::new());
        }
    };
    let built = build(workspace)?;
    let mut all = BTreeMap::new();
    match or_missing(c_library::examples(workspace))? {
        Ok((library, examples)) => {
            all.insert(format!("lib/{}", files::name(&library)), library);
            let program = |(name, path)| (format!("bin/{name}"), path);
            all.extend(examples.into_iter().map(program));
        }
        Err(need) => println!("skip  libfabric in the lab  {need}"),
    }
    for name in PROGRAMS {
        all.insert(format!("bin/{name}"), tree.join("usr/bin").join(name));
    }
    all.insert("bin/ucp-check".to_owned(), built.check);
    all.insert("bin/mpi-check".to_owned(), built.mpi_check);
    all.insert(
        "gaudi/libuct_gaudi.so.0".to_owned(),
        built.plugins.join("libuct_gaudi.so.0"),
    );
    let libraries = tree.join(LIBRARIES);
    let mut roots: Vec<_> = ROOTS.iter().map(|name| libraries.join(name)).collect();
    let mut providers = files::children(&libraries.join("libibverbs"))?;
    providers.retain(|path| files::name(path).starts_with(PROVIDER));
    if providers.is_empty() {
        bail!("{} has no {PROVIDER}*.so", libraries.display());
    }
    for root in &roots {
        let name = root
            .strip_prefix(&libraries)
            .context("a root is below the libraries")?;
        all.insert(format!("lib/{}", name.display()), root.clone());
    }
    roots.extend(providers.iter().cloned());
    roots.extend(PROGRAMS.map(|name| tree.join("usr/bin").join(name)));
    for provider in providers {
        all.insert(format!("lib/{}", files::name(&provider)), provider);
    }
    for root in roots {
        for library in closure(&libraries, &root)? {
            all.insert(format!("lib/{}", files::name(&library)), library);
        }
    }
    let loader = "ld-linux-x86-64.so.2";
    all.insert(format!("lib/{loader}"), libraries.join(loader));
    let added = |(name, host): (String, PathBuf)| Added {
        guest: format!("{FOLDER}/{name}"),
        entry: Entry::Peer(host),
    };
    Ok(all.into_iter().map(added).collect())
}

/// What the tree's own loader would load; nothing of the program runs.
fn closure(libraries: &Path, program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut loader = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    loader
        .arg("--library-path")
        .arg(libraries)
        .arg("--list")
        .arg(program);
    let text = run::text(&mut loader);
    let mut paths = listed(&text.with_context(|| format!("{} cannot be loaded", program.display()))?)?;
    // The loader of the machine, where a program names it by its absolute path.
    paths.retain(|path| path.starts_with(libraries));
    Ok(paths)
}
