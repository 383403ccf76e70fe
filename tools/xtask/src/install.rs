//! `cargo xtask install`: builds what users install, and puts it under a prefix.
//!
//! - **One table says what is installed** ([`BUILT`], [`COMPLETIONS`], and every header of
//!   [`HEADERS`]); `cargo xtask deb` packs the same files.
//! - **A file is replaced by rename(2)**, so a program that has the old library mapped keeps it.
//! - **`include/habanalabs` and `lib/habanalabs`** are where UCX's `--with-gaudi=P` looks.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::c_library;
use crate::files::{self, At as _};
use crate::run;
use crate::workspace::Workspace;

#[derive(Args)]
pub(crate) struct Install {
    /// Where everything goes: P/bin, P/lib, P/include, P/share
    #[arg(long, value_name = "P")]
    prefix: PathBuf,
    /// A folder to put before the prefix, for packaging
    #[arg(long, value_name = "FOLDER")]
    destdir: Option<PathBuf>,
}

/// The package that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Program,
    Library,
    /// Libraries with the names of the vendor's that are small shims here.
    Shims,
    /// The plugin of UCX.
    Ucx,
    /// The C library of Gaudi memory.
    Copy,
    /// Its header, and what a linker needs.
    CopyDevelopment,
    /// Headers, the static library and pkg-config files of the vendor's interface.
    Development,
}

/// What cargo builds: crate, file in its target folder, place below the prefix.
#[rustfmt::skip]
const BUILT: [(&str, &str, &str, Part); 9] = [
    ("gaudi-cli", "gaudi", "bin/gaudi", Part::Program),
    ("gaudi-preload", "libgaudi_trace.so", "lib/gaudi/libgaudi_trace.so", Part::Program),
    ("gaudi-hlthunk", "libhl_thunk.so", "lib/libhl-thunk.so", Part::Library),
    ("gaudi-hlthunk", "libhl_thunk.a", "lib/libhl-thunk.a", Part::Development),
    ("gaudi-hlthunk-err-injection", "libhl_thunk_err_injection.so", "lib/libhl-thunk-err_injection.so", Part::Library),
    ("gaudi-shims-synapse", "libSynapse.so", "lib/libSynapse.so", Part::Shims),
    ("gaudi-shims-synapse-mme", "libSynapseMme.so", "lib/libSynapseMme.so", Part::Shims),
    ("gaudi-shims-scal", "libscal.so", "lib/libscal.so", Part::Shims),
    ("gaudi-ucx", "libuct_gaudi.so", "lib/gaudi-ucx/libuct_gaudi.so.0", Part::Ucx),
];

/// Further names of the plugin, in its folder: UCX loads plugins of three kinds by their names.
const PLUGIN_LINKS: [&str; 2] = ["libucm_gaudi.so.0", "libucx_perftest_gaudi.so.0"];
/// The plugin's name for Open MPI, in a folder of its own: Open MPI looks at every file there.
const COMPONENT_LINK: (&str, &str) = (
    "lib/gaudi-openmpi/mca_accelerator_gaudi.so",
    "../gaudi-ucx/libuct_gaudi.so.0",
);

/// Shells whose completion scripts are installed, and where.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/gaudi"),
    ("zsh", "share/zsh/site-functions/_gaudi"),
    ("fish", "share/fish/vendor_completions.d/gaudi.fish"),
];

/// The folder of the C headers.
const HEADERS: &str = "drivers/hlthunk/include";
/// The vendor's folder below `lib` and `include`.
const VENDOR: &str = "habanalabs";
/// The header that Linux's own headers have from 6.12 on.
const KERNEL_HEADER: &str = "drm/habanalabs_accel.h";

/// A file to install.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its place below the prefix.
    pub(crate) path: String,
    pub(crate) part: Part,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File { from: PathBuf, mode: u32 },
    Text(String),
    Link(String),
}

/// Builds and installs.
pub(crate) fn run(workspace: &Workspace, install: &Install) -> anyhow::Result<()> {
    if !install.prefix.is_absolute() {
        bail!("--prefix {}: not an absolute path", install.prefix.display());
    }
    let has_kernel_header = Path::new("/usr/include").join(KERNEL_HEADER).is_file();
    let entries = entries(workspace, &install.prefix, has_kernel_header)?;
    let below = match &install.destdir {
        None => install.prefix.clone(),
        Some(destdir) => destdir.join(install.prefix.strip_prefix("/")?),
    };
    for entry in &entries {
        println!("{}", entry.install(&below)?.display());
    }
    if has_kernel_header {
        println!("note: {KERNEL_HEADER} is this system's own, so ours is not installed");
    }
    let prefix = install.prefix.display();
    println!("note: programs find the library with LD_LIBRARY_PATH={prefix}/lib");
    Ok(())
}

/// Builds and installs under a prefix.
pub(crate) fn to(workspace: &Workspace, prefix: &Path) -> anyhow::Result<()> {
    let prefix = prefix.to_owned();
    run(
        workspace,
        &Install {
            prefix,
            destdir: None,
        },
    )
}

/// Builds everything, and returns what to install.
pub(crate) fn entries(
    workspace: &Workspace,
    prefix: &Path,
    has_kernel_header: bool,
) -> anyhow::Result<Vec<Entry>> {
    let target = workspace.logs.parent().context("the target folder")?;
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--locked"]);
    for package in BUILT.map(|row| row.0).into_iter().chain([c_library::CRATE]) {
        cargo.args(["--package", package]);
    }
    if !cargo.status().context("cannot run cargo")?.success() {
        bail!("the build failed");
    }
    let release = target.join("release");
    let mut entries = libraries(&release);
    entries.extend(copy_library(workspace, &release, prefix)?);
    entries.extend(documents(&release.join("gaudi"), &workspace.logs.join("man"))?);
    entries.extend(headers(&workspace.root.join(HEADERS), has_kernel_header)?);
    let text = pkg_config(
        prefix,
        "hl-thunk",
        "C interface of Gaudi devices",
        &format!("-I${{includedir}}/{VENDOR}"),
        "-lhl-thunk",
        // What Rust's standard library needs of the system.
        c_library::SYSTEM,
    );
    let path = "lib/pkgconfig/hl-thunk.pc";
    entries.push(Entry::new(path, Part::Development, Content::Text(text)));
    Ok(entries)
}

/// What cargo built in a folder, and the further names of its libraries.
fn libraries(release: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (_, from, path, part) in BUILT {
        let mode = if path.starts_with("bin/") { 0o755 } else { 0o644 };
        let from = release.join(from);
        entries.push(Entry::new(path, part, Content::File { from, mode }));
        // A library in a folder of its own is none of the vendor's.
        let name = path.strip_prefix("lib/").filter(|name| !name.contains('/'));
        if let Some(name) = name.filter(|name| name.ends_with(".so")) {
            let link = Content::Link(format!("../{name}"));
            entries.push(Entry::new(&format!("lib/{VENDOR}/{name}"), part, link));
        }
    }
    for name in PLUGIN_LINKS {
        let link = Content::Link("libuct_gaudi.so.0".to_owned());
        entries.push(Entry::new(&format!("lib/gaudi-ucx/{name}"), Part::Ucx, link));
    }
    let (path, target) = COMPONENT_LINK;
    entries.push(Entry::new(path, Part::Ucx, Content::Link(target.to_owned())));
    entries
}

/// The C library of Gaudi memory, its header and its pkg-config file. `built` is a folder of
/// cargo's that has the static library.
pub(crate) fn copy_library(workspace: &Workspace, built: &Path, prefix: &Path) -> anyhow::Result<Vec<Entry>> {
    let file = |from: PathBuf| Content::File { from, mode: 0o644 };
    let header = workspace
        .root
        .join(c_library::FOLDER)
        .join("include/gaudi_copy.h");
    let library = c_library::link(workspace, built)?;
    let link = Content::Link(c_library::SONAME.to_owned());
    let text = Content::Text(pkg_config(
        prefix,
        "gaudi_copy",
        "Gaudi memory for communication libraries",
        "-I${includedir}",
        "-lgaudi_copy",
        "",
    ));
    Ok(vec![
        Entry::new(&format!("lib/{}", c_library::SONAME), Part::Copy, file(library)),
        Entry::new(&format!("lib/{}", c_library::LINK), Part::CopyDevelopment, link),
        Entry::new("include/gaudi_copy.h", Part::CopyDevelopment, file(header)),
        Entry::new("lib/pkgconfig/gaudi_copy.pc", Part::CopyDevelopment, text),
    ])
}

/// Man pages and completions, as the program prints them.
fn documents(program: &Path, folder: &Path) -> anyhow::Result<Vec<Entry>> {
    if folder.exists() {
        files::remove_folder(folder)?;
    }
    files::make_folder(folder)?;
    run::output(Command::new(program).arg("man").arg(folder))?;
    let mut entries = Vec::new();
    for from in files::children(folder)? {
        let path = format!("share/man/man1/{}", files::name(&from));
        let page = Content::File { from, mode: 0o644 };
        entries.push(Entry::new(&path, Part::Program, page));
    }
    for (shell, path) in COMPLETIONS {
        let script = run::output(Command::new(program).args(["completions", shell]))?;
        let script = String::from_utf8(script).context("a completion script")?;
        entries.push(Entry::new(path, Part::Program, Content::Text(script)));
    }
    Ok(entries)
}

/// Every header, in `include` and in the vendor's folder.
fn headers(folder: &Path, has_kernel_header: bool) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for from in files::children(&next)? {
            if from.is_dir() {
                folders.push(from);
                continue;
            }
            let name = from.strip_prefix(folder)?.display().to_string();
            if name == KERNEL_HEADER && has_kernel_header {
                continue;
            }
            for path in [format!("include/{name}"), format!("include/{VENDOR}/{name}")] {
                let from = from.clone();
                let header = Content::File { from, mode: 0o644 };
                entries.push(Entry::new(&path, Part::Development, header));
            }
        }
    }
    Ok(entries)
}

/// A pkg-config file: what `pkg-config NAME` prints.
fn pkg_config(prefix: &Path, name: &str, about: &str, flags: &str, libraries: &str, private: &str) -> String {
    let private = match private.is_empty() {
        true => String::new(),
        false => format!("Libs.private: {private}\n"),
    };
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: {name}\nDescription: {about}\nVersion: {}\n\
         Cflags: {flags}\nLibs: -L${{libdir}} {libraries}\n{private}",
        prefix.display(),
        env!("CARGO_PKG_VERSION"),
    )
}

impl Entry {
    fn new(path: &str, part: Part, content: Content) -> Self {
        Self {
            path: path.to_owned(),
            part,
            content,
        }
    }

    /// Puts the file below `prefix`, and returns its path.
    pub(crate) fn install(&self, prefix: &Path) -> anyhow::Result<PathBuf> {
        let to = prefix.join(&self.path);
        let folder = to.parent().context("a file has a folder")?;
        files::make_folder(folder)?;
        // Of this process, so that two installations do not write one file.
        let new = folder.join(format!(".{}.{}", files::name(&to), std::process::id()));
        let put = self
            .put(&new)
            .and_then(|()| fs::rename(&new, &to).at("replace", &to));
        if put.is_err() && new.symlink_metadata().is_ok() {
            fs::remove_file(&new).at("remove", &new)?;
        }
        put.map(|()| to)
    }

    /// Writes the file at a path where there is none.
    fn put(&self, new: &Path) -> anyhow::Result<()> {
        match &self.content {
            Content::File { from, .. } => drop(fs::copy(from, new).at("copy", from)?),
            Content::Text(text) => fs::write(new, text).at("write", new)?,
            Content::Link(target) => symlink(target, new).at("link", new)?,
        }
        let mode = match self.content {
            Content::File { mode, .. } => Some(mode),
            Content::Text(_) => Some(0o644),
            Content::Link(_) => None,
        };
        if let Some(mode) = mode {
            fs::set_permissions(new, Permissions::from_mode(mode)).at("change", new)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_shared_library_is_installed() {
        let manifest = |folder: &str| files::read_text(&root().join(folder).join("Cargo.toml")).unwrap();
        let workspace = manifest("");
        let members = workspace
            .lines()
            .skip_while(|line| *line != "members = [")
            .skip(1);
        let mut count = 0;
        for member in members.take_while(|line| *line != "]") {
            let folder = member.trim().trim_matches([',', '"']);
            if folder.starts_with("tests/") {
                continue;
            }
            let text = manifest(folder);
            if !text
                .lines()
                .any(|line| line.starts_with("crate-type") && line.contains("cdylib"))
            {
                continue;
            }
            let name = text
                .lines()
                .find_map(|line| line.strip_prefix("name = "))
                .unwrap();
            let name = name.trim_matches('"');
            let is_built = BUILT.iter().any(|row| row.0 == name && row.1.ends_with(".so"));
            assert!(
                is_built,
                "{name} has a shared library, and BUILT has no row of it"
            );
            count += 1;
        }
        assert!(count >= 6, "{count} libraries: the manifests are read");
    }

    #[test]
    fn every_link_leads_to_a_file() {
        let all = libraries(Path::new("/nowhere"));
        let is_file = |path: &Path| {
            let entry = all.iter().find(|entry| Path::new(&entry.path) == path);
            entry.is_some_and(|entry| matches!(entry.content, Content::File { .. }))
        };
        let mut links = 0;
        for entry in &all {
            let Content::Link(target) = &entry.content else {
                continue;
            };
            let folder = Path::new(&entry.path).parent().unwrap();
            let to = match target.strip_prefix("../") {
                Some(name) => folder.parent().unwrap().join(name),
                None => folder.join(target),
            };
            assert!(is_file(&to), "{} leads to {}", entry.path, to.display());
            links += 1;
        }
        assert_eq!(
            links, 8,
            "5 of the vendor's names, 2 of the plugin, 1 of Open MPI"
        );
    }

    #[test]
    fn headers_go_to_both_folders() {
        let all = headers(&root().join(HEADERS), false).unwrap();
        let paths: BTreeSet<_> = all.iter().map(|entry| entry.path.as_str()).collect();
        for path in [
            "include/hlthunk.h",
            "include/drm/habanalabs_accel.h",
            "include/habanalabs/misc/habanalabs.h",
        ] {
            assert!(paths.contains(path), "{path} in {paths:?}");
        }
        let with_kernels = headers(&root().join(HEADERS), true).unwrap();
        assert_eq!(
            all.len() - with_kernels.len(),
            2,
            "the system's own header counts"
        );
    }

    #[test]
    fn file_in_use_keeps_its_bytes() {
        let prefix = tempfile::tempdir().unwrap();
        let install = |text: &str| {
            let entry = Entry::new("lib/a", Part::Library, Content::Text(text.to_owned()));
            entry.install(prefix.path()).unwrap()
        };
        let path = install("old");
        let mut open = fs::File::open(&path).unwrap();
        install("new");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut open, &mut text).unwrap();
        assert_eq!(text, "old", "the old file is replaced, not overwritten");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let left = files::children(path.parent().unwrap()).unwrap();
        assert_eq!(left.len(), 1, "no temporary file is left: {left:?}");
    }

    #[test]
    fn links_and_modes_are_replaced() {
        let prefix = tempfile::tempdir().unwrap();
        let link = |target: &str| {
            let entry = Entry::new(
                "lib/habanalabs/a.so",
                Part::Library,
                Content::Link(target.to_owned()),
            );
            entry.install(prefix.path()).unwrap()
        };
        link("../b.so");
        let path = link("../a.so");
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("../a.so"));

        let from = prefix.path().join("from");
        fs::write(&from, "text").unwrap();
        let program = Content::File { from, mode: 0o755 };
        let path = Entry::new("bin/a", Part::Program, program)
            .install(prefix.path())
            .unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn folder_in_the_way_is_an_error() {
        let prefix = tempfile::tempdir().unwrap();
        fs::create_dir_all(prefix.path().join("lib/a/b")).unwrap();
        let entry = Entry::new("lib/a", Part::Library, Content::Text(String::new()));
        let error = format!("{:#}", entry.install(prefix.path()).unwrap_err());
        assert!(error.starts_with("cannot replace "), "{error}");
        assert_eq!(
            files::children(&prefix.path().join("lib")).unwrap().len(),
            1,
            "no temporary file"
        );
    }
}
