//! A file that a command leaves: whole under its name, or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempPath;

/// A file in the making. It gets its name when it is whole; dropped before, it leaves nothing, and what had the name before stays.
pub(crate) struct Saved {
    file: File,
    name: PathBuf,
    /// Where the bytes are until then; `None` where the name is a device or a pipe, which takes them as they come.
    making: Option<TempPath>,
}

impl Saved {
    pub(crate) fn create(name: &Path) -> Result<Self> {
        let cannot = || format!("cannot write to {}", name.display());
        let there = fs::metadata(name).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let file = File::options().write(true).open(name).with_context(cannot)?;
            return Ok(Self {
                file,
                name: name.to_owned(),
                making: None,
            });
        }
        // A link keeps being one: what it leads to is replaced, and keeps its mode. A new file has the caller's.
        let name = match &there {
            Some(_) => fs::canonicalize(name).with_context(cannot)?,
            None => name.to_owned(),
        };
        let mode = there.map_or(0o666, |there| there.permissions().mode() & 0o777);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name.file_name().with_context(cannot)?);
        let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
        let (file, making) = tempfile::Builder::new()
            .prefix(&hidden)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .with_context(cannot)?
            .into_parts();
        Ok(Self {
            file,
            name,
            making: Some(making),
        })
    }

    /// The file is whole: it takes its name. What is written from now on goes on behind it.
    pub(crate) fn keep(&mut self) -> Result<()> {
        let Some(making) = self.making.take() else {
            return Ok(());
        };
        let cannot = || format!("cannot write to {}", self.name.display());
        self.file.sync_all().with_context(cannot)?;
        making
            .persist(&self.name)
            .map_err(|error| error.error)
            .with_context(cannot)
    }
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
    fn a_file_has_its_name_when_it_is_whole_and_else_leaves_nothing() {
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
    fn a_device_takes_bytes_as_they_come_and_stays_a_device() {
        let mut saved = Saved::create(Path::new("/dev/null")).unwrap();
        saved.write_all(b"gone").unwrap();
        saved.keep().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_link_and_a_mode_stay_as_they_are() {
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
