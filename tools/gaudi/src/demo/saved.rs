//! The file that node B leaves: whole under its name, or not at all.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A file in the making. It gets its name when it is whole; dropped before, it leaves nothing, and what had the name before stays.
pub(crate) struct Saved {
    file: File,
    name: PathBuf,
    /// Where the bytes are until then; `None` where the name is a device or a pipe, which takes them as they come.
    making: Option<PathBuf>,
}

impl Saved {
    pub(crate) fn create(name: &Path) -> Result<Self> {
        let cannot = || format!("cannot write to {}", name.display());
        let special = fs::metadata(name).is_ok_and(|there| !there.is_file());
        if special {
            let file = File::options().write(true).open(name).with_context(cannot)?;
            return Ok(Self {
                file,
                name: name.to_owned(),
                making: None,
            });
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name.file_name().with_context(cannot)?);
        hidden.push(format!(".{}", std::process::id()));
        let making = name.with_file_name(hidden);
        let file = File::create(&making).with_context(cannot)?;
        Ok(Self {
            file,
            name: name.to_owned(),
            making: Some(making),
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("cannot write to {}", self.name.display()))
    }

    /// The file is whole: it takes its name.
    pub(crate) fn keep(mut self) -> Result<()> {
        let Some(making) = &self.making else { return Ok(()) };
        let cannot = || format!("cannot write to {}", self.name.display());
        self.file.sync_all().with_context(cannot)?;
        fs::rename(making, &self.name).with_context(cannot)?;
        self.making = None;
        Ok(())
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        if let Some(making) = &self.making {
            if let Err(error) = fs::remove_file(making) {
                tracing::warn!("{} stays behind: {error}", making.display());
            }
        }
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
        saved.write(b"after").unwrap();
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
        saved.write(b"after").unwrap();
        saved.keep().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_device_takes_bytes_as_they_come_and_stays_a_device() {
        let mut saved = Saved::create(Path::new("/dev/null")).unwrap();
        saved.write(b"gone").unwrap();
        saved.keep().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
