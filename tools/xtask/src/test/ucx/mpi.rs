//! Open MPI and MPICH as Debian packages them, on the plugin: `mpi-check` in 2 and 4 processes.
//!
//! Open MPI loads the plugin as its accelerator component, which is why it needs no preload. MPICH
//! has no such component, so the plugin is preloaded, and derived datatypes of device memory crash.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::{Built, LIBRARIES, LIMIT, NAMES, complains};
use crate::files;
use crate::ledger::Row;
use crate::run::{self, Show};

/// Processes of a run.
const PROCESSES: [usize; 2] = [2, 4];
/// The file that Open MPI loads, a name of the plugin.
pub(super) const COMPONENT: &str = "mca_accelerator_gaudi.so";
/// Programs of the tree that others start by name.
const PROGRAMS: [&str; 5] = [
    "ompi_info",
    "prted",
    "prterun",
    "hydra_pmi_proxy",
    "mpiexec.hydra",
];

/// An MPI of the tree.
struct Implementation {
    name: &'static str,
    library: &'static str,
    check: &'static str,
    launcher: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    operations: &'static [&'static str],
}

const IMPLEMENTATIONS: [Implementation; 2] = [
    Implementation {
        name: "openmpi",
        library: "libmpi.so.40",
        check: "mpi-check",
        launcher: &[
            "prterun",
            "--personality",
            "ompi",
            "--allow-run-as-root",
            "--oversubscribe",
        ],
        environment: &[
            ("OMPI_MCA_pml", "ucx"),
            ("OMPI_MCA_osc", "ucx"),
            // Open MPI takes its UCX components only with an InfiniBand device otherwise.
            ("OMPI_MCA_opal_common_ucx_tls", "any"),
            ("OMPI_MCA_opal_common_ucx_devices", "any"),
            ("PMIX_MCA_pcompress_base_silence_warning", "1"),
        ],
        operations: &["send", "isend", "bcast", "put", "get", "vector"],
    },
    Implementation {
        name: "mpich",
        library: "libmpich.so.12",
        check: "mpi-check-preloaded",
        launcher: &["mpiexec.hydra", "-launcher", "fork"],
        environment: &[],
        operations: &["send", "isend", "bcast", "put", "get"],
    },
];

/// The programs of one tree, as scripts that run them on the tree's loader: a launcher starts its
/// helpers by name.
pub(super) struct Mpi<'a> {
    tree: &'a Path,
    built: &'a Built,
    logs: &'a Path,
    programs: PathBuf,
}

impl<'a> Mpi<'a> {
    pub(super) fn prepare(tree: &'a Path, built: &'a Built, logs: &'a Path) -> anyhow::Result<Self> {
        let programs = logs.join("mpi-programs");
        files::make_folder(&programs)?;
        let mpi = Self {
            tree,
            built,
            logs,
            programs,
        };
        for name in PROGRAMS {
            mpi.script(name, None, &tree.join("usr/bin").join(name))?;
        }
        let libraries = tree.join(LIBRARIES);
        let plugin = built.plugins.join(NAMES[0]);
        let preload = format!("{}:{}", libraries.join("libucp.so.0").display(), plugin.display());
        for implementation in &IMPLEMENTATIONS {
            let preload = (implementation.name == "mpich").then_some(preload.as_str());
            mpi.script(implementation.check, preload, &built.mpi_check)?;
        }
        Ok(mpi)
    }

    /// Writes a script that runs a program on the tree's loader.
    fn script(&self, name: &str, preload: Option<&str>, program: &Path) -> anyhow::Result<()> {
        let libraries = self.tree.join(LIBRARIES);
        let loader = libraries.join("ld-linux-x86-64.so.2");
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let file = self.programs.join(name);
        let mut text = format!(
            "#!/bin/sh\nexec {} --library-path {} --argv0 {}",
            quoted(&loader),
            quoted(&libraries),
            quoted(&file)
        );
        if let Some(preload) = preload {
            write!(text, " --preload {}", quoted(Path::new(preload)))?;
        }
        writeln!(text, " {} \"$@\"", quoted(program))?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&file, mode).with_context(|| format!("cannot change {}", file.display()))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        let path = std::env::var("PATH").unwrap_or_default(); // none: the scripts are enough
        let prefix = self.tree.join("usr");
        command
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("OMPI_MCA_mca_base_component_path", &self.built.components)
            .env("GAUDI_DEVICE", "mock:gaudi2")
            .env_remove("GAUDI_MAPPING_TABLE")
            .env_remove("UCX_TLS")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        for variable in ["OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"] {
            command.env(variable, &prefix);
        }
        command
    }

    pub(super) fn run(&self, row: &mut Row) {
        row.settle("openmpi ompi_info", self.lists_component());
        for implementation in &IMPLEMENTATIONS {
            for processes in PROCESSES {
                self.check(row, implementation, processes);
            }
        }
    }

    /// `ompi_info` lists the component.
    fn lists_component(&self) -> anyhow::Result<String> {
        let mut command = self.program("ompi_info");
        command.arg("--parsable");
        let outcome = run::run(&command, &self.logs.join("ompi_info.log"), LIMIT, Show::Quiet)?;
        ensure!(outcome.ok(), "{}", outcome.why("ompi_info"));
        let begin = "mca:accelerator:gaudi:version:\"component:";
        let line = outcome.lines().find(|line| line.starts_with(begin));
        line.with_context(|| format!("ompi_info lists no {begin}"))
    }

    /// Every operation between the processes of one run, data compared.
    fn check(&self, row: &mut Row, mpi: &Implementation, processes: usize) {
        let name = format!("{}-{processes}", mpi.name);
        let answer = self.outcome(mpi, processes, &name);
        for operation in mpi.operations {
            let settled = match &answer {
                Ok((ok, text, why)) => judge(text, operation, processes).and_then(|said| match ok {
                    true => Ok(said),
                    false => bail!("{why}"),
                }),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            row.settle(&format!("{} -np {processes} {operation}", mpi.name), settled);
        }
    }

    fn outcome(
        &self,
        mpi: &Implementation,
        processes: usize,
        name: &str,
    ) -> anyhow::Result<(bool, String, String)> {
        let mut command = self.program(mpi.launcher[0]);
        command
            .args(&mpi.launcher[1..])
            .args(["-np", &processes.to_string()]);
        command.envs(mpi.environment.iter().copied());
        command.arg(self.programs.join(mpi.check)).arg(mpi.library);
        command.args(mpi.operations);
        let outcome = run::run(
            &command,
            &self.logs.join(format!("{name}.log")),
            LIMIT,
            Show::Quiet,
        )?;
        let text = outcome.lines().collect::<Vec<_>>().join("\n");
        complains(&text)?;
        Ok((outcome.ok(), text, outcome.why(name)))
    }
}

/// What every process reports about an operation.
fn judge(text: &str, operation: &str, processes: usize) -> anyhow::Result<String> {
    let failed = format!("FAIL {operation} rank ");
    if let Some(line) = text.lines().find(|line| line.contains(&failed)) {
        bail!("{line}");
    }
    let mut said = String::new();
    for rank in 0..processes {
        let begin = format!("ok {operation} rank {rank}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        said = line
            .with_context(|| format!("rank {rank} reports nothing"))?
            .to_owned();
    }
    Ok(format!("{said}, data compared"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_or_failed_rank_is_a_failure() {
        let both = "ok put rank 0: 6 sizes\nok put rank 1: 6 sizes";
        assert_eq!(
            judge(both, "put", 2).expect("both reported"),
            "6 sizes, data compared"
        );
        assert!(judge(both, "put", 4).is_err(), "two ranks are silent");
        assert!(judge(both, "get", 2).is_err(), "another operation");
        let bad = "ok put rank 0: 6 sizes\nFAIL put rank 1: byte 3";
        let error = judge(bad, "put", 2).expect_err("one rank failed");
        assert!(
            error.to_string().contains("byte 3"),
            "the reason is kept: {error}"
        );
    }
}
