//! Headless Chromium from Debian's packages, for the tests that open a page.
//!
//! It runs from the cache, on the loader and the libraries of its tree, without any privilege. Its
//! `/proc/self/exe` is the loader, so a copy of the loader lies beside links to its data, and it
//! runs as a single process. It has the fonts of its tree: without any, it ends, and a machine may
//! have none.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::files::{self, At as _};
use crate::missing::missing;
use crate::packages::{Cache, Pins};
use crate::workspace::Workspace;

/// The variable that names the browser to tests.
pub(super) const VARIABLE: &str = "GAUDI_CHROMIUM";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";
const FOLDER: &str = "usr/lib/chromium";
const PROGRAM: &str = "chromium-headless-shell";
const FONTS: &str = "fonts.conf";

/// Returns a program that starts the browser.
pub(super) fn prepare(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let unpacked = Cache::open()?.bundle(&Pins::load(&workspace.root)?.chromium)?;
    println!("-- {}", unpacked.note);
    let data = unpacked.tree.join(FOLDER);
    if !data.join(PROGRAM).is_file() {
        return missing(format!("{} has no {PROGRAM}", data.display()));
    }
    let folder = workspace.logs.join("chromium");
    let _ = fs::remove_dir_all(&folder); // of an earlier run, if there was one
    files::make_folder(&folder)?;
    let loader = folder.join(LOADER);
    fs::copy(unpacked.tree.join(LIBRARIES).join(LOADER), &loader).at("write", &loader)?;
    for entry in fs::read_dir(&data).at("list", &data)? {
        let entry = entry.at("list", &data)?;
        let link = folder.join(entry.file_name());
        symlink(entry.path(), &link).at("create", &link)?;
    }
    let fonts = folder.join(FONTS);
    fs::write(&fonts, fonts_of(&unpacked.tree, &folder)).at("write", &fonts)?;
    let script = folder.join("start");
    fs::write(&script, text(&unpacked.tree, &folder)).at("write", &script)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755)).at("change the mode of", &script)?;
    Ok(script)
}

/// The configuration of fontconfig (fonts-conf(5)).
fn fonts_of(tree: &Path, folder: &Path) -> String {
    let path = |path: PathBuf| {
        let path = path.display().to_string();
        path.replace('&', "&amp;").replace('<', "&lt;")
    };
    format!(
        "<fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>\n",
        path(tree.join("usr/share/fonts")),
        path(folder.join("fonts"))
    )
}

fn text(tree: &Path, folder: &Path) -> String {
    let quoted = |text: String| format!("'{}'", text.replace('\'', r"'\''"));
    let libraries = tree.join(LIBRARIES);
    format!(
        "#!/bin/sh\nexport FONTCONFIG_FILE={}\nexec {} --library-path {} {} --single-process --no-zygote \"$@\"\n",
        quoted(folder.join(FONTS).display().to_string()),
        quoted(folder.join(LOADER).display().to_string()),
        quoted(format!("{0}:{0}/pulseaudio", libraries.display())),
        quoted(folder.join(PROGRAM).display().to_string()),
    )
}
