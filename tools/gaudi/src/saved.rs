//! A result file: complete under its name, or missing.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gaudi_sys::{Errno, unnamed};
use tempfile::TempPath;

/// A file that has its name only once it is complete. [`keep`](Self::keep) names it. If it is
/// dropped before, or the process is killed, nothing is left, and an older file of that name stays.
///
/// Until then its bytes are in a file without a name (`O_TMPFILE`), which the kernel frees when the
/// process ends. Two cases are weaker, because linkat(2) cannot replace a file and not every
/// file system has `O_TMPFILE`:
/// - *the name exists*: `keep` links to a hidden name beside it and renames. SIGKILL between the
///   two leaves the hidden file, whole;
/// - *no `O_TMPFILE`* (NFS, FAT, or no `/proc`): the bytes are in a hidden file from the start.
///   SIGKILL leaves it.
pub(crate) struct Saved {
    file: File,
    name: PathBuf,
    making: Making,
}

/// Where the bytes are before the file has its name.
enum Making {
    Unnamed,
    Hidden(TempPath),
    /// The name is a device or a pipe, which is written directly, or the file already has its name.
    InPlace,
}

impl Saved {
    pub(crate) fn create(name: &Path) -> Result<Self> {
        Self::create_by(name, unnamed::create)
    }

    fn create_by(
        name: &Path,
        unnamed: impl FnOnce(&Path, u32) -> gaudi_sys::SysResult<File>,
    ) -> Result<Self> {
        let cannot = || format!("cannot write to {}", name.display());
        let existing = fs::metadata(name).ok();
        if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
            let file = File::options().write(true).open(name).with_context(cannot)?;
            return Ok(Self {
                file,
                name: name.to_owned(),
                making: Making::InPlace,
            });
        }
        // A symbolic link is kept: its target is replaced, and keeps its mode. A new file has the
        // caller's.
        let name = match &existing {
            Some(_) => fs::canonicalize(name).with_context(cannot)?,
            None => name.to_owned(),
        };
        name.file_name().with_context(cannot)?;
        let mode = existing.map_or(0o666, |existing| existing.permissions().mode() & 0o777);
        let (file, making) = match unnamed(folder_of(&name), mode) {
            Ok(file) => (file, Making::Unnamed),
            Err(Errno::EOPNOTSUPP) => {
                let (file, path) = tempfile::Builder::new()
                    .prefix(&hidden(&name))
                    .permissions(Permissions::from_mode(mode))
                    .tempfile_in(folder_of(&name))
                    .with_context(cannot)?
                    .into_parts();
                (file, Making::Hidden(path))
            }
            Err(errno) => return Err(io::Error::from(errno)).with_context(cannot),
        };
        Ok(Self { file, name, making })
    }

    /// Names the file, and replaces an older file of that name. Later writes append to it.
    pub(crate) fn keep(&mut self) -> Result<()> {
        let cannot = || format!("cannot write to {}", self.name.display());
        match std::mem::replace(&mut self.making, Making::InPlace) {
            Making::InPlace => Ok(()),
            Making::Hidden(path) => {
                self.file.sync_all().with_context(cannot)?;
                path.persist(&self.name)
                    .map_err(|error| error.error)
                    .with_context(cannot)
            }
            Making::Unnamed => {
                self.file.sync_all().with_context(cannot)?;
                self.link().with_context(cannot)
            }
        }
    }

    fn link(&self) -> io::Result<()> {
        match unnamed::link(&self.file, &self.name) {
            Err(Errno::EEXIST) => {}
            other => return other.map_err(io::Error::from),
        }
        let link = |hidden: &Path| unnamed::link(&self.file, hidden).map_err(io::Error::from);
        let hidden = tempfile::Builder::new()
            .prefix(&hidden(&self.name))
            .make_in(folder_of(&self.name), link)?;
        let renamed = hidden.into_temp_path().persist(&self.name);
        renamed.map_err(|error| error.error)
    }
}

fn folder_of(name: &Path) -> &Path {
    let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns the start of a hidden name beside `name`.
fn hidden(name: &Path) -> OsString {
    let mut hidden = OsString::from(".");
    // `create` refuses a name without its last part.
    hidden.push(name.file_name().unwrap_or_default());
    hidden
}

impl Write for Saved {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_named_only_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("kept");
        fs::write(&name, "before").unwrap();
        let mut saved = Saved::create(&name).unwrap();
        saved.write_all(b"after").unwrap();
        assert_eq!(
            fs::read(&name).unwrap(),
            b"before",
            "what was there stays until the end"
        );
        drop(saved);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing of it is left"
        );
        let mut saved = Saved::create(&name).unwrap();
        saved.write_all(b"after").unwrap();
        saved.keep().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn unfinished_file_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut saved = Saved::create(&folder.path().join("out")).unwrap();
        saved.write_all(b"half").unwrap();
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let hidden = matches!(saved.making, Making::Hidden(_));
        assert_eq!(count(), usize::from(hidden), "SIGKILL now would leave it");
        saved.keep().unwrap();
        assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"half");
    }

    #[test]
    fn file_systems_without_unnamed_files_work() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("out");
        let create = || Saved::create_by(&name, |_, _| Err(Errno::EOPNOTSUPP)).unwrap();
        create().write_all(b"dropped").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        for text in ["new", "replaced"] {
            let mut saved = create();
            saved.write_all(text.as_bytes()).unwrap();
            saved.keep().unwrap();
            assert_eq!(fs::read_to_string(&name).unwrap(), text);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn character_device_is_written_in_place() {
        let mut saved = Saved::create(Path::new("/dev/null")).unwrap();
        saved.write_all(b"bytes").unwrap();
        saved.keep().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn symlink_and_mode_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (name, link) = (folder.path().join("kept"), folder.path().join("link"));
        fs::write(&name, "before").unwrap();
        fs::set_permissions(&name, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("kept", &link).unwrap();
        let mut saved = Saved::create(&link).unwrap();
        saved.write_all(b"after").unwrap();
        saved.keep().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&name).unwrap(), b"after");
        assert_eq!(fs::metadata(&name).unwrap().permissions().mode() & 0o777, 0o640);
    }
}
