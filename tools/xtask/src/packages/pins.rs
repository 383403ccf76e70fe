//! `packages.toml`: which packages, from which suites, in which version.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::bundle::Bundle;
use crate::files;

/// The file, relative to the workspace's root.
const FILE: &str = "tools/xtask/packages.toml";

/// All rows of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pins {
    pub(crate) headers: Vec<Headers>,
    /// A benchmark's peer.
    pub(crate) ucx: Bundle,
    /// What examples in C are compiled against and run on.
    pub(crate) libfabric: Bundle,
    /// Releases that run the UCX plugin.
    pub(crate) ucx_judges: Vec<Judge>,
    /// The compiler and the cargo of the manifests' `rust-version`.
    pub(crate) rust: Bundle,
    /// The browser that opens pages.
    pub(crate) chromium: Bundle,
}

/// C headers, and the variable that names their `usr/include` to tests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Headers {
    pub(crate) bundle: Bundle,
    pub(crate) variable: String,
    /// `major.minor` of a machine's own headers that serve as well.
    pub(crate) series: Option<String>,
    /// A file that the package is fetched for, below its root.
    pub(crate) holds: String,
}

/// A release of UCX with its tools.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Judge {
    /// `major.minor`.
    pub(crate) version: String,
    /// The name of the plugin's memory type in this release.
    pub(crate) memory_type: String,
    /// Whether the release has no `UCX_PLUGIN_PATH`, so the plugin is preloaded.
    pub(crate) preload: bool,
    /// Whether the bundle has Open MPI and MPICH, which run on this release.
    #[serde(default)]
    pub(crate) mpi: bool,
    pub(crate) bundle: Bundle,
}

impl Pins {
    pub(crate) fn load(root: &Path) -> anyhow::Result<Pins> {
        let text = files::read_text(&root.join(FILE))?;
        toml::from_str(&text).with_context(|| format!("{FILE} is wrong"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_ids_are_valid() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pins = Pins::load(&root).expect("the file is part of the workspace");
        let bundles = pins.headers.iter().map(|row| &row.bundle);
        for pin in bundles
            .chain([&pins.ucx, &pins.libfabric, &pins.rust, &pins.chromium])
            .chain(pins.ucx_judges.iter().map(|judge| &judge.bundle))
            .flat_map(|bundle| &bundle.packages)
        {
            assert!(pin.is_whole(), "{}: {:?} is not a SHA-256", pin.name, pin.sha256);
        }
        for (index, row) in pins.headers.iter().enumerate() {
            let twin = pins.headers[..index]
                .iter()
                .find(|other| other.bundle.id == row.bundle.id || other.variable == row.variable);
            assert!(twin.is_none(), "{row:?} and {twin:?} share an id or a variable");
        }
    }
}
