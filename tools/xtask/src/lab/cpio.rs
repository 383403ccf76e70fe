//! Writes a cpio archive in the "newc" form, which the kernel unpacks as its first root
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Ours rather than cpio(1): the machine may lack it, and it cannot make a device node without root.

use std::collections::BTreeSet;
use std::io::{self, Write};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const END: &str = "TRAILER!!!";

/// An archive being written. Folders on the way to an entry are made as they are needed.
#[derive(Debug)]
pub(crate) struct Cpio<W> {
    out: W,
    written: u64,
    inode: u32,
    names: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Cpio<W> {
        Cpio {
            out,
            written: 0,
            inode: 0,
            names: BTreeSet::new(),
        }
    }

    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.names.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, FOLDER | 0o755, (0, 0), &[])
    }

    /// A file; `executable` is all of its mode that matters to a guest whose only user is root.
    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(path, FILE | mode, (0, 0), content)
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive; the kernel reads no further.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(END, 0, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.trim_matches('/').rsplit_once('/') {
            Some((parent, _)) => self.folder(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        if !self.names.insert(path.to_owned()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{path} is in the archive already"),
            ));
        }
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::other(format!("{path} is larger than newc can say")))?;
        let name_size =
            u32::try_from(path.len() + 1).map_err(|_| io::Error::other("the name is too long"))?;
        self.inode += 1;
        let links = if mode & FOLDER == FOLDER { 2 } else { 1 };
        // inode, mode, user, group, links, time, size, device of the file, device that it is, name's length, check
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        let mut head = String::from("070701");
        for field in fields {
            head += &format!("{field:08X}");
        }
        self.put(head.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.align()?;
        self.put(content)?;
        self.align()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Heads and contents begin at multiples of four.
    fn align(&mut self) -> io::Result<()> {
        let over = usize::try_from(self.written % 4).unwrap_or(0);
        self.put(&[0; 3][..(4 - over) % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, device and content.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Each entry, read by the format's own rules.
    fn read(archive: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701", "a head begins at {at}");
            let field = |index: usize| {
                let begin = at + 6 + 8 * index;
                let text = std::str::from_utf8(&archive[begin..begin + 8]).expect("hexadecimal");
                u32::from_str_radix(text, 16).expect("hexadecimal")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name =
                String::from_utf8(archive[at + 110..at + 110 + name_size - 1].to_vec()).expect("a name");
            let content = (at + 110 + name_size).next_multiple_of(4);
            if name == END {
                assert_eq!(archive.len(), content, "nothing follows the end");
                return entries;
            }
            entries.push((
                name,
                mode,
                (field(9), field(10)),
                archive[content..content + size].to_vec(),
            ));
            at = (content + size).next_multiple_of(4);
        }
    }

    #[test]
    fn what_is_written_can_be_read_by_the_formats_rules() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("/usr/bin/tool", true, b"12345").expect("a file");
        cpio.link("lib64", "usr/lib64").expect("a link");
        cpio.character_device("dev/console", 5, 1).expect("a node");
        cpio.folder("usr/bin")
            .expect("a folder that is there already is no error");
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
