//! Files without a name (open(2), `O_TMPFILE`): the kernel frees them when their last descriptor
//! closes, also after SIGKILL.

use std::fs::File;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

use crate::{Errno, SysResult};

/// Creates a file without a name on the file system of `folder`, open for reading and writing. The
/// umask applies to `mode`.
///
/// # Errors
/// `EOPNOTSUPP`: this file system, or this machine (no `/proc`, which [`link`] needs), has no such
/// files.
pub fn create(folder: &Path, mode: u32) -> SysResult<File> {
    if !Path::new("/proc/self/fd").is_dir() {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    match nix::fcntl::open(folder, flags, Mode::from_bits_truncate(mode)) {
        Ok(fd) => Ok(fd.into()),
        // A file system without the flag opens the folder for writing.
        Err(Errno::EISDIR) => Err(Errno::EOPNOTSUPP),
        Err(errno) => Err(errno),
    }
}

/// Gives a file of [`create`] its first name (linkat(2)).
///
/// # Errors
/// `EEXIST`: the name exists; linkat(2) never replaces a file.
pub fn link(file: &File, name: &Path) -> SysResult<()> {
    let flags = AtFlags::AT_SYMLINK_FOLLOW;
    linkat(AT_FDCWD, &crate::fd::path(file), AT_FDCWD, name, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn unnamed_file_appears_with_its_name_only() {
        let folder = std::env::temp_dir().join(format!("gaudi-unnamed-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let count = || std::fs::read_dir(&folder).unwrap().count();
        match create(&folder, 0o600) {
            Ok(mut file) => {
                file.write_all(b"bytes").unwrap();
                assert_eq!(count(), 0, "it has no name yet");
                link(&file, &folder.join("name")).unwrap();
                assert_eq!(std::fs::read(folder.join("name")).unwrap(), b"bytes");
                assert_eq!(link(&file, &folder.join("name")), Err(Errno::EEXIST));
            }
            Err(errno) => assert_eq!(errno, Errno::EOPNOTSUPP, "the only excuse"),
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
