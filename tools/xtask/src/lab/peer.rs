//! The user's own perftest in a guest, and the installed libraries that it runs on.
//!
//! `PEER_PERFTEST=DIR` names a folder with the programs of a perftest that was configured with
//! `--enable-hl`. This project neither builds nor fetches it.

use std::path::PathBuf;

use anyhow::bail;

use super::bench::folder;
use super::image::{Added, Entry};
use crate::files;
use crate::install;
use crate::workspace::Workspace;

/// The test program (CRATE/FILE) that runs it.
pub(super) const TESTS: &str = "gaudi-lab/cards_perftest";
const VARIABLE: &str = "PEER_PERFTEST";
const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_read_bw", "ib_send_bw"];
/// The folder of the programs in the guest. Its `lib` has the libraries.
const FOLDER: &str = "opt/perftest";

/// Returns the programs, and the libraries of a prefix that is installed for them. Empty without
/// the variable: the tests then count as skipped.
pub(super) fn perftest(workspace: &Workspace) -> anyhow::Result<Vec<Added>> {
    let Some(peer) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        return Ok(Vec::new());
    };
    let added = |name: String, host: PathBuf| Added {
        guest: format!("{FOLDER}/{name}"),
        entry: Entry::Peer(host),
    };
    let mut all = Vec::new();
    for name in PROGRAMS {
        let host = peer.join(name);
        if !host.is_file() {
            bail!("{VARIABLE}={}: it has no {name}", peer.display());
        }
        all.push(added(name.to_owned(), host));
    }
    let prefix = folder(workspace)?.join("prefix");
    install::to(workspace, &prefix)?;
    let libraries = files::children(&prefix.join("lib"))?.into_iter();
    let libraries = libraries.filter(|path| path.is_file() && path.extension() == Some("so".as_ref()));
    all.extend(libraries.map(|path| added(format!("lib/{}", files::name(&path)), path)));
    Ok(all)
}
