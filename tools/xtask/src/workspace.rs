//! The workspace as `cargo metadata` and `git ls-files` show it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use serde::Deserialize;

use crate::run;

/// Where everything is, and which crates there are.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// `<target>/xtask`, where logs go.
    pub(crate) logs: PathBuf,
    pub(crate) crates: Vec<Crate>,
    pub(crate) arrows: Arrows,
}

/// `[workspace.metadata.arrows]`: a row for each crate. A new crate or arrow changes a row, in the
/// same commit.
pub(crate) type Arrows = BTreeMap<String, Room>;

/// What one crate may name of the workspace.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Room {
    /// Arrows that it must have: the diagram is drawn with them.
    pub(crate) needs: Vec<String>,
    /// Arrows that it may have besides.
    pub(crate) may: Vec<String>,
    /// Arrows that its tests, examples and benches may have besides.
    pub(crate) dev: Vec<String>,
    /// It may name any crate, and only crates like it may name it.
    pub(crate) on_top: bool,
}

/// A workspace member with its arrows to other members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its folder, relative to the root.
    pub(crate) folder: String,
    /// Members that it depends on when built: normal and build dependencies, optional ones too.
    pub(crate) normal: BTreeSet<String>,
    /// Members that only its tests, examples and benches depend on.
    pub(crate) dev: BTreeSet<String>,
    /// First file of every target, relative to the root.
    pub(crate) roots: Vec<String>,
    /// The oldest compiler that its manifest claims.
    pub(crate) rust_version: Option<String>,
    pub(crate) lint: Exemptions,
}

/// `[package.metadata.lint]` of a manifest: how often its crate breaks a rule for now.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Exemptions {
    /// How many times the crate names a chip outside of a chip's modules.
    pub(crate) chip_names: usize,
    /// How many times the crate names an era of the kernel's interface.
    pub(crate) eras: usize,
}

/// `[package.metadata]` of a member's manifest, and `[workspace.metadata]` of the root's.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Custom {
    lint: Exemptions,
    arrows: Arrows,
}

impl Custom {
    fn read(metadata: &serde_json::Value, manifest: &Utf8Path) -> anyhow::Result<Custom> {
        let custom: Option<Custom> = serde_json::from_value(metadata.clone())
            .with_context(|| format!("{manifest}: invalid `metadata`"))?;
        Ok(custom.unwrap_or_default()) // without such a table
    }
}

impl Workspace {
    pub(crate) fn load() -> anyhow::Result<Workspace> {
        // `cargo run` sets the variable to this checkout; the compiled-in path serves a binary
        // started by hand.
        let home =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
        Workspace::read(&Path::new(&home).join("Cargo.toml"))
    }

    fn read(manifest: &Path) -> anyhow::Result<Workspace> {
        let data = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
        let members: BTreeSet<_> = data.packages.iter().map(|package| package.name.clone()).collect();
        let root = data.workspace_root;
        let relative = |path: &Utf8Path| path.strip_prefix(&root).unwrap_or(path).to_string();
        let member = |package: &Package| {
            let all = package.dependencies.iter();
            let arrows = |dev: bool| {
                let of_kind = all
                    .clone()
                    .filter(|d| (d.kind == DependencyKind::Development) == dev);
                let names = of_kind.map(|d| d.name.clone());
                names.filter(|name| members.contains(name)).collect()
            };
            let roots = package.targets.iter().map(|target| relative(&target.src_path));
            let version = package.rust_version.as_ref();
            Ok(Crate {
                name: package.name.clone(),
                folder: package.manifest_path.parent().map(relative).unwrap_or_default(),
                normal: arrows(false),
                dev: arrows(true),
                roots: roots.collect(),
                rust_version: version.map(|version| format!("{}.{}", version.major, version.minor)),
                lint: Custom::read(&package.metadata, &package.manifest_path)?.lint,
            })
        };
        Ok(Workspace {
            arrows: Custom::read(&data.workspace_metadata, &root)?.arrows,
            crates: data.packages.iter().map(member).collect::<anyhow::Result<_>>()?,
            root: root.into(),
            logs: data.target_directory.join("xtask").into(),
        })
    }

    /// The cargo that runs this program, in the workspace's root. It does not see the variables by
    /// which `cargo run` describes this program's package.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command.current_dir(&self.root);
        command
    }

    /// Files that git tracks or would track, relative to the root: a rule must report before
    /// the commit.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<String>> {
        let mut git = Command::new("git");
        git.arg("-c")
            .arg(format!("safe.directory={}", self.root.display()));
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = run::output(git.current_dir(&self.root))?;
        let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
        // A file removed but not yet committed is still listed.
        Ok(names.filter(|name| self.root.join(name).is_file()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn members_are_read_with_their_arrows() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().canonicalize().expect("its path");
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        write(
            "Cargo.toml",
            "[workspace]\nresolver = \"2\"\nmembers = [\"hal/a\", \"hal/b\", \"hal/c\"]\n\
             [workspace.metadata.arrows]\ngaudi-a = { needs = [\"gaudi-b\"] }\n",
        );
        let rows = [
            (
                "a",
                "[dependencies]\ngaudi-b = { path = \"../b\" }\nserde = \"1\"\n\
                 [dev-dependencies]\ngaudi-c = { path = \"../c\" }\n\
                 [package.metadata.lint]\nchip-names = 3\neras = 1\n",
            ),
            ("b", ""),
            ("c", "[build-dependencies]\ngaudi-b = { path = \"../b\" }\n"),
        ];
        for (name, more) in rows {
            let head = format!("[package]\nname = \"gaudi-{name}\"\nrust-version = \"1.85\"\n");
            write(&format!("hal/{name}/Cargo.toml"), &(head + more));
            write(&format!("hal/{name}/src/lib.rs"), "");
        }
        write("hal/a/tests/t.rs", "");
        let workspace = Workspace::read(&root.join("Cargo.toml")).expect("cargo reads it");
        let [a, _, c] = &workspace.crates[..] else {
            panic!("three members, saw {:?}", workspace.crates)
        };
        assert_eq!(
            a.normal,
            BTreeSet::from(["gaudi-b".to_owned()]),
            "serde is not a member; gaudi-c is dev only"
        );
        assert_eq!(
            a.dev,
            BTreeSet::from(["gaudi-c".to_owned()]),
            "a dev arrow is kept apart"
        );
        assert_eq!(
            c.normal,
            BTreeSet::from(["gaudi-b".to_owned()]),
            "a build arrow counts as normal"
        );
        assert_eq!(a.folder, "hal/a", "folders are relative to the root");
        assert_eq!(
            a.roots,
            ["hal/a/src/lib.rs", "hal/a/tests/t.rs"],
            "every target has a root"
        );
        assert_eq!(a.rust_version.as_deref(), Some("1.85"));
        assert_eq!(
            workspace.arrows["gaudi-a"].needs,
            ["gaudi-b"],
            "the table of arrows"
        );
        assert_eq!((a.lint.eras, a.lint.chip_names), (1, 3), "its exemptions");
    }
}
