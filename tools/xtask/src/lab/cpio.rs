//! Writes a cpio archive in the "newc" form, which the kernel unpacks as its first root
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};

use cpio::newc::{self, Builder, ModeFileType};

/// An archive being written. Folders on the way to an entry are made as they are needed.
#[derive(Debug)]
pub(crate) struct Cpio<W> {
    out: W,
    names: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Cpio<W> {
        let names = BTreeSet::new();
        Cpio { out, names }
    }

    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.names.contains(path) {
            return Ok(());
        }
        self.entry(path, ModeFileType::Directory, 0o755, (0, 0), &[])
    }

    /// A file; `executable` is all of its mode that matters to a guest whose only user is root.
    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) -> io::Result<()> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(path, ModeFileType::Regular, mode, (0, 0), content)
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let target = target.as_bytes();
        self.entry(path, ModeFileType::Symlink, 0o777, (0, 0), target)
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, ModeFileType::Char, 0o600, (major, minor), &[])
    }

    /// Ends the archive; the kernel reads no further.
    pub(crate) fn finish(self) -> io::Result<W> {
        let mut out = newc::trailer(self.out)?;
        out.flush()?;
        Ok(out)
    }

    fn entry(
        &mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        (major, minor): (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent)?;
        }
        if !self.names.insert(path.to_owned()) {
            let message = format!("{path} is in the archive already");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let size = u32::try_from(content.len());
        let size = size.map_err(|_| io::Error::other(format!("{path} is larger than newc allows")))?;
        let inode = u32::try_from(self.names.len()).map_err(io::Error::other)?;
        let entry = Builder::new(path).ino(inode).mode(mode).set_mode_file_type(kind);
        let entry = entry.rdev_major(major).rdev_minor(minor);
        let mut writer = entry.write(&mut self.out, size);
        writer.write_all(content)?;
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Name, mode, device and content.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    fn read(mut archive: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        loop {
            let mut reader = newc::Reader::new(archive).expect("an entry");
            let entry = reader.entry();
            if entry.is_trailer() {
                return entries;
            }
            let device = (entry.rdev_major(), entry.rdev_minor());
            let (name, mode) = (entry.name().to_owned(), entry.mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).expect("its content");
            entries.push((name, mode, device, content));
            archive = reader.finish().expect("the next entry");
        }
    }

    #[test]
    fn entries_read_back_with_their_parents() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("/usr/bin/tool", true, b"12345").expect("a file");
        cpio.link("lib64", "usr/lib64").expect("a link");
        cpio.character_device("dev/console", 5, 1).expect("a node");
        cpio.folder("usr/bin")
            .expect("a folder that exists is not an error");
        let seen = read(&cpio.finish().expect("an archive"));
        let wanted = [
            ("usr", 0o040_755, (0, 0), ""),
            ("usr/bin", 0o040_755, (0, 0), ""),
            ("usr/bin/tool", 0o100_755, (0, 0), "12345"),
            ("lib64", 0o120_777, (0, 0), "usr/lib64"),
            ("dev", 0o040_755, (0, 0), ""),
            ("dev/console", 0o020_600, (5, 1), ""),
        ];
        let wanted = wanted.map(|(name, mode, device, content)| {
            (name.to_owned(), mode, device, content.as_bytes().to_vec())
        });
        assert_eq!(seen, wanted, "parents come before their children, each once");
    }

    #[test]
    fn one_name_is_one_entry() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("init", true, b"a").expect("a file");
        let error = cpio
            .file("/init", true, b"b")
            .expect_err("the later one would silently win");
        assert!(error.to_string().contains("init"), "it is named: {error}");
    }
}
