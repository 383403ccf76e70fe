//! The file that a layer writes: a regular file, empty or with an older file of the same form. One
//! process writes to it at a time.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::fork::OwnerProcess;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// A form of file.
#[derive(Debug)]
pub(crate) struct Form {
    /// Its noun in messages: `trace`.
    pub(crate) noun: &'static str,
    /// Returns what is wrong with the content of a file that is not empty and not of this form.
    pub(crate) check: fn(&File) -> std::result::Result<(), String>,
}

/// A locked file. The nodes of one process that name it write through the same open file.
#[derive(Debug)]
struct Locked {
    file: File,
    /// The same open file. Dropping it unlocks the file for every holder, in a fork child too.
    lock: Option<Flock<File>>,
    owner: OwnerProcess,
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            // The lock is the parent's: only the descriptor is closed.
            if let Some(lock) = self.lock.take() {
                let descriptor = lock.as_raw_fd();
                std::mem::forget(lock);
                // Also after an error, close(2) has released the descriptor.
                let _ = nix::unistd::close(descriptor);
            }
        }
    }
}

/// A layer's file, locked against other processes while it is open.
#[derive(Debug, Clone)]
pub(crate) struct LayerFile(Arc<Locked>);

/// The files that this process has truncated, by path: later nodes append. Not by inode, because
/// the kernel reuses the number of a removed file.
static BEGUN: Mutex<BTreeMap<PathBuf, Weak<Locked>>> = Mutex::new(BTreeMap::new());

impl LayerFile {
    /// Opens a file and truncates an older one of the same form, unless this process wrote it.
    ///
    /// # Errors
    /// - `InvalidInput`: a symbolic link, not a regular file, or a file with other content. It is
    ///   not changed.
    /// - `Busy`: another process writes to it.
    pub(crate) fn open(path: &Path, form: &Form) -> Result<Self> {
        let shown = path.display();
        let noun = form.noun;
        let wrong = |cause: String| wrong(cause, noun);
        let failed = |error: &io::Error, cause: String| failed(error, cause, noun);
        if path == Path::new("-") {
            return Err(wrong(format!("a {noun} cannot be written to standard output"))
                .helped_by("name a file; a file named - is ./-"));
        }
        let kind = |found: &fs::Metadata| match found.is_symlink() {
            true => Err(wrong(format!("the {noun} file {shown} is a symbolic link"))),
            false if !found.is_file() => Err(wrong(format!("the {noun} file {shown} is not a regular file"))),
            false => Ok(()),
        };
        if let Ok(found) = fs::symlink_metadata(path) {
            kind(&found)?;
        }
        let cannot = |error: io::Error| failed(&error, format!("the {noun} file {shown} cannot be opened"));
        // The flags reject a link created since the check, and keep a pipe from blocking.
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(path)
            .map_err(cannot)?;
        let found = file.metadata().map_err(cannot)?;
        kind(&found)?;
        let whole = fs::canonicalize(path).map_err(cannot)?;
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = |found: &fs::Metadata| (found.dev(), found.ino());
        if let Some(open) = begun.get(&whole).and_then(Weak::upgrade) {
            let same = open
                .file
                .metadata()
                .is_ok_and(|own| identity(&own) == identity(&found));
            if same && !open.owner.is_foreign() {
                return Ok(Self(open));
            }
        }
        let lock = file.try_clone().map_err(cannot)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => Error::from_errno("open", errno)
                .with_kind(ErrorKind::Busy)
                .because(format!("another process writes its {noun} to {shown}"))
                .helped_by(format!("name a {noun} file for each process")),
            other => failed(&other.into(), format!("the {noun} file {shown} cannot be locked")),
        })?;
        (form.check)(&file)
            .map_err(|problem| wrong(format!("{shown} is not a {noun} ({problem}); not changed")))?;
        if !begun.contains_key(&whole) {
            file.set_len(0).map_err(cannot)?;
        }
        let locked = Arc::new(Locked {
            file,
            lock: Some(lock),
            owner: OwnerProcess::current(),
        });
        begun.insert(whole, Arc::downgrade(&locked));
        Ok(Self(locked))
    }
}

impl Write for LayerFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0.file).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn name_another(noun: &str) -> String {
    format!("name a new file or an old {noun}, in a folder that this user may write")
}

fn wrong(cause: String, noun: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "open")
        .because(cause)
        .helped_by(name_another(noun))
}

fn failed(error: &io::Error, cause: String, noun: &str) -> Error {
    crate::file_error::failed(error, cause).helped_by(name_another(noun))
}
