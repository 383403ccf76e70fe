//! A tree of files: a machine's, a copy's, or one in memory.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use nix::libc::{ELOOP, ENAMETOOLONG, O_NOFOLLOW, O_NONBLOCK};

/// The most links that one path may go through, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;
/// The most bytes in a path (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;
/// The most entries of one folder that are looked at.
const MOST_NAMES: usize = 1 << 16;
/// The most bytes of a file in which a text is looked for: /proc/kallsyms has about 15 MB.
const LONGEST_SEARCH: u64 = 64 << 20;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A file that reports this size; a read may return fewer bytes.
    File(u64),
    /// A folder.
    Folder,
    /// A symbolic link, with what it holds.
    Link(String),
}

/// A tree of files whose paths begin with `/`.
///
/// No method follows links; [`resolve`] does, and never leaves the tree.
pub trait Tree {
    /// What a path names.
    ///
    /// # Errors
    /// As `lstat(2)`; what is neither file, folder nor link is `InvalidInput`.
    fn node(&self, path: &str) -> io::Result<Node>;

    /// At most `most` bytes of a file.
    ///
    /// # Errors
    /// As `open(2)` with `O_NOFOLLOW` and `read(2)`.
    fn read(&self, path: &str, most: usize) -> io::Result<Vec<u8>>;

    /// The names in a folder, sorted; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// As `opendir(3)`.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;

    /// Whether a file contains a text. The file may be large; a gzip file (`.gz`) is decompressed.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn contains(&self, path: &str, text: &str) -> io::Result<bool>;
}

/// Returns `path` with all links resolved. `..` above the root is the root, and a link's absolute
/// target begins at the tree's root.
///
/// # Errors
/// `ELOOP` past 40 links, `ENAMETOOLONG` past 4096 bytes, and those of [`Tree::node`].
pub fn resolve(tree: &dyn Tree, path: &str) -> io::Result<String> {
    let mut ahead: VecDeque<String> = parts(path).collect();
    let mut done = String::new();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            done.truncate(done.rfind('/').unwrap_or(0));
            continue;
        }
        let before = done.len();
        done.push('/');
        done.push_str(&part);
        if done.len() > LONGEST_PATH {
            return Err(io::Error::from_raw_os_error(ENAMETOOLONG));
        }
        if let Node::Link(target) = tree.node(&done)? {
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::from_raw_os_error(ELOOP));
            }
            done.truncate(if target.starts_with('/') { 0 } else { before });
            for part in parts(&target).rev() {
                ahead.push_front(part);
            }
            if ahead.len() > LONGEST_PATH {
                return Err(io::Error::from_raw_os_error(ENAMETOOLONG));
            }
        }
    }
    if done.is_empty() {
        done.push('/');
    }
    Ok(done)
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = String> {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.map(str::to_owned)
}

/// The tree below a folder of this machine: `/`, or a copy of another machine's `/sys` and `/proc`.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder in which `sys` lies.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A plain file. A pipe in a copied tree must not make us wait, and a link must not lead out of
    /// it.
    fn open(&self, path: &str) -> io::Result<fs::File> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK)
            .open(self.path(path))?;
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"))
        }
    }
}

impl Tree for Folder {
    fn node(&self, path: &str) -> io::Result<Node> {
        tracing::trace!("lstat {path}");
        let path = self.path(path);
        let found = fs::symlink_metadata(&path)?;
        let kind = found.file_type();
        if kind.is_dir() {
            Ok(Node::Folder)
        } else if kind.is_file() {
            Ok(Node::File(found.len()))
        } else if kind.is_symlink() {
            let target = fs::read_link(path)?.into_os_string().into_string();
            target
                .map(Node::Link)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the link's target is not UTF-8"))
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither file, folder nor link",
            ))
        }
    }

    fn read(&self, path: &str, most: usize) -> io::Result<Vec<u8>> {
        let read = || {
            let mut bytes = Vec::new();
            self.open(path)?.take(most as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let answer: io::Result<Vec<u8>> = read();
        match &answer {
            Ok(bytes) => tracing::debug!("read {path} = {} bytes", bytes.len()),
            Err(error) => tracing::debug!("read {path} = {error}"),
        }
        answer
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.path(path))?.take(MOST_NAMES).flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    fn contains(&self, path: &str, text: &str) -> io::Result<bool> {
        let file = self.open(path)?.take(LONGEST_SEARCH);
        tracing::debug!("search {path} for {text:?}");
        let mut file: Box<dyn Read> = if path.ends_with(".gz") {
            Box::new(GzDecoder::new(file).take(LONGEST_SEARCH))
        } else {
            Box::new(file)
        };
        let (mut window, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let got = match file.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            window.extend_from_slice(&piece[..got]);
            if finds(&window, text.as_bytes()) {
                return Ok(true);
            }
            // What may be the text's beginning stays for the next round.
            let keep = window.len().min(text.len().saturating_sub(1));
            window.drain(..window.len() - keep);
        }
    }
}

/// Whether `text` stands in `bytes`. Sought by its first byte: the files are large and the builds
/// that tests use are slow.
pub(super) fn finds(bytes: &[u8], text: &[u8]) -> bool {
    let Some((&first, _)) = text.split_first() else {
        return true;
    };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| byte == first) {
        if rest[at..].starts_with(text) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_wherever_it_stands() {
        for (bytes, text, is) in [
            ("abcabd", "abd", true),
            ("abcab", "abd", false),
            ("aab", "ab", true),
            ("", "a", false),
            ("", "", true),
        ] {
            assert_eq!(
                finds(bytes.as_bytes(), text.as_bytes()),
                is,
                "{text:?} in {bytes:?}"
            );
        }
    }
}
