//! A tree of files as a text: for fixtures, and for looking at a machine from another one.
//!
//! ```text
//! # a comment
//! /sys/devices/pci0000:00/0000:00:01.0/             a folder; the lines below stand in it
//!   vendor = 0x1b36                                 a text file, with a newline at its end
//!   driver -> ../../../bus/pci/drivers/pcieport     a link
//!   accel/accel0/                                   an empty folder
//!   config : 4096/64 @00 36 1b 0c 00 @34 40         a file of 4096 bytes of which 64 can be read:
//!                                                   hexadecimal bytes from each @offset on, zeros
//!                                                   between; without `/64` all can be read
//! ```
//! Names and texts have no white space at their ends; in a text `\n` is a line's end and `\\` a
//! backslash.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::io;
use std::str::FromStr;
use std::sync::Mutex;

use gaudi_sys::{IgnorePoison as _, lock};

use super::tree::{Node, Tree, finds};

/// The most bytes that a file of a manifest may say it has.
const LARGEST: u64 = 1 << 20;
/// The most bytes that a text may make a manifest take, for files and paths together. A machine of
/// a hundred cards takes a tenth.
const LARGEST_SUM: u64 = 64 << 20;
/// What ends a name in a line: of a link, a text file, a dump.
const LINK: &str = " -> ";
const TEXT: &str = " = ";
const SEPARATORS: [&str; 3] = [LINK, TEXT, " : "];
/// The deepest folder.
const DEEPEST: usize = 256;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    /// The names in it.
    Folder(BTreeSet<String>),
    File {
        size: u64,
        bytes: Vec<u8>,
    },
    Link(String),
}

/// A tree in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    entries: BTreeMap<String, Entry>,
}

/// A line that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong, and what was wanted.
    pub problem: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for ManifestError {}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            entries: BTreeMap::from([("/".to_owned(), Entry::Folder(BTreeSet::new()))]),
        }
    }
}

impl Manifest {
    /// Puts a text file.
    ///
    /// # Errors
    /// Where the path is none, or leads through a file or a link.
    pub fn put_text(&mut self, path: &str, text: &str) -> Result<(), String> {
        let bytes = text.as_bytes().to_vec();
        let size = bytes.len() as u64;
        self.put(path, Entry::File { size, bytes })
    }

    /// Puts a file that reports `size` bytes and returns `bytes`.
    ///
    /// # Errors
    /// As [`put_text`](Self::put_text).
    pub fn put_bytes(&mut self, path: &str, size: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.put(path, Entry::File { size, bytes })
    }

    /// Puts a link.
    ///
    /// # Errors
    /// As [`put_text`](Self::put_text).
    pub fn put_link(&mut self, path: &str, target: &str) -> Result<(), String> {
        self.put(path, Entry::Link(target.to_owned()))
    }

    /// Puts a folder, which may be there.
    ///
    /// # Errors
    /// As [`put_text`](Self::put_text).
    pub fn put_folder(&mut self, path: &str) -> Result<(), String> {
        match self.entries.get(path.trim_end_matches('/')) {
            Some(Entry::Folder(_)) => Ok(()),
            _ => self.put(path.trim_end_matches('/'), Entry::Folder(BTreeSet::new())),
        }
    }

    /// Takes a path out, with all below it.
    pub fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.entries
            .retain(|name, _| name != path && !name.starts_with(&below));
        if let Some((folder, name)) = path.rsplit_once('/') {
            let folder = if folder.is_empty() { "/" } else { folder };
            if let Some(Entry::Folder(names)) = self.entries.get_mut(folder) {
                names.remove(name);
            }
        }
    }

    fn put(&mut self, path: &str, entry: Entry) -> Result<(), String> {
        let below_root = path.strip_prefix('/').ok_or("a path begins with /")?;
        let parts: Vec<&str> = below_root.split('/').collect();
        if parts.len() > DEEPEST {
            return Err(format!("deeper than {DEEPEST} folders"));
        }
        // A line of the text would begin another name, or a comment.
        let ambiguous = |part: &str| {
            let separated = SEPARATORS.iter().any(|mark| part.contains(mark));
            part.trim() != part || part.starts_with('#') || separated
        };
        let bad = |part: &&str| {
            matches!(*part, "" | "." | "..") || part.contains(char::is_control) || ambiguous(part)
        };
        if parts.iter().any(bad) {
            return Err(format!(
                "{path:?} has a part that is empty, relative or unprintable, or that a text cannot name"
            ));
        }
        let mut folder = "/".to_owned();
        for (at, part) in parts.iter().enumerate() {
            match self.entries.get_mut(&folder) {
                Some(Entry::Folder(names)) => names.insert((*part).to_owned()),
                Some(_) => return Err(format!("{folder} is no folder")),
                None => return Err(format!("{folder} is not there")),
            };
            if at > 0 {
                folder.push('/');
            }
            folder.push_str(part);
            if at + 1 < parts.len() {
                let empty = || Entry::Folder(BTreeSet::new());
                self.entries.entry(folder.clone()).or_insert_with(empty);
            }
        }
        match self.entries.get(&folder) {
            Some(Entry::Folder(names)) if !names.is_empty() => Err(format!("{folder} is a folder already")),
            _ => {
                self.entries.insert(folder, entry);
                Ok(())
            }
        }
    }

    fn get(&self, path: &str) -> io::Result<&Entry> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.entries.get(path).ok_or_else(missing)
    }

    fn bytes(&self, path: &str) -> io::Result<&[u8]> {
        match self.get(path)? {
            Entry::File { bytes, .. } => Ok(bytes),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file")),
        }
    }
}

impl Tree for Manifest {
    fn node(&self, path: &str) -> io::Result<Node> {
        Ok(match self.get(path)? {
            Entry::Folder(_) => Node::Folder,
            Entry::File { size, .. } => Node::File(*size),
            Entry::Link(target) => Node::Link(target.clone()),
        })
    }

    fn read(&self, path: &str, most: usize) -> io::Result<Vec<u8>> {
        let bytes = self.bytes(path)?;
        Ok(bytes[..bytes.len().min(most)].to_vec())
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        match self.get(path)? {
            Entry::Folder(names) => Ok(names.iter().cloned().collect()),
            _ => Err(io::Error::from(io::ErrorKind::NotADirectory)),
        }
    }

    fn contains(&self, path: &str, text: &str) -> io::Result<bool> {
        Ok(finds(self.bytes(path)?, text.as_bytes()))
    }
}

impl FromStr for Manifest {
    type Err = ManifestError;

    fn from_str(text: &str) -> Result<Self, ManifestError> {
        let mut manifest = Self::default();
        let mut folder = String::new();
        let mut left = LARGEST_SUM;
        let mut spend = move |bytes: u64| {
            let rest = left.checked_sub(bytes);
            left = rest.ok_or_else(|| format!("more than {LARGEST_SUM} bytes in all"))?;
            Ok::<(), String>(())
        };
        // Every folder of the path is stored with its whole path.
        let cost = |path: &str| (path.len() * path.split('/').count()) as u64;
        for (number, line) in text.lines().enumerate() {
            let wrong = |problem| ManifestError {
                line: number + 1,
                problem,
            };
            let indented = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !indented {
                let path = line.strip_suffix('/').filter(|path| path.starts_with('/'));
                let path = path.ok_or_else(|| wrong("wanted /a/folder/ or an indented line".to_owned()))?;
                spend(cost(path)).map_err(wrong)?;
                manifest.put_folder(path).map_err(wrong)?;
                path.clone_into(&mut folder);
                continue;
            }
            if folder.is_empty() {
                return Err(wrong("wanted a folder before the first indented line".to_owned()));
            }
            let put = || -> Result<(), String> {
                spend(cost(&folder) + line.len() as u64)?;
                let at = |name: &str| format!("{folder}/{}", name.trim());
                // A name has no separator, so the first one ends it.
                let found = SEPARATORS
                    .iter()
                    .filter_map(|mark| Some((line.find(mark)?, *mark)));
                if let Some((end, mark)) = found.min() {
                    let (name, value) = (&line[..end], &line[end + mark.len()..]);
                    return match mark {
                        LINK => manifest.put_link(&at(name), value.trim()),
                        TEXT => manifest.put_text(&at(name), &format!("{}\n", unescaped(value.trim())?)),
                        _ => {
                            let (size, bytes) = undumped(value, &mut spend)?;
                            manifest.put_bytes(&at(name), size, bytes)
                        }
                    };
                }
                match line.strip_suffix('/') {
                    Some(name) => manifest.put_folder(&at(name)),
                    None => Err(
                        "wanted `name = text`, `name -> target`, `name : size @offset bytes` or `name/`"
                            .to_owned(),
                    ),
                }
            };
            let mut put = put;
            put().map_err(wrong)?;
        }
        Ok(manifest)
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, entry) in &self.entries {
            let Entry::Folder(names) = entry else { continue };
            let at = |name: &str| {
                self.entries
                    .get(&format!("{}/{name}", path.trim_end_matches('/')))
            };
            let own = names
                .iter()
                .filter(|name| !matches!(at(name), Some(Entry::Folder(_)) | None));
            let own: Vec<&String> = own.collect();
            if own.is_empty() && !names.is_empty() || path == "/" {
                continue;
            }
            writeln!(f, "{path}/")?;
            for name in own {
                match at(name) {
                    Some(Entry::Link(target)) => writeln!(f, "  {name} -> {target}")?,
                    Some(Entry::File { size, bytes }) => match as_text(*size, bytes) {
                        Some(text) => writeln!(f, "  {name} = {text}")?,
                        None => writeln!(f, "  {name} : {}", dumped(*size, bytes))?,
                    },
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// A file's text where a line can hold it and gives it back.
fn as_text(size: u64, bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes.strip_suffix(b"\n")?).ok()?;
    let plain =
        !text.is_empty() && text.trim() == text && !text.contains(|c: char| c.is_control() && c != '\n');
    // sysfs reports a size of 4096 for every attribute.
    let whole = size == bytes.len() as u64 || size == 4096 || size == 0;
    (plain && whole).then(|| text.replace('\\', "\\\\").replace('\n', "\\n"))
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => out.push('\n'),
                Some('\\') => out.push('\\'),
                _ => return Err("wanted \\n or \\\\ behind a backslash".to_owned()),
            },
            other => out.push(other),
        }
    }
    Ok(out)
}

fn undumped(dump: &str, spend: &mut impl FnMut(u64) -> Result<(), String>) -> Result<(u64, Vec<u8>), String> {
    let mut words = dump.split_whitespace();
    let sizes = words.next().ok_or("wanted a size")?;
    let (size, given) = sizes.split_once('/').unwrap_or((sizes, sizes));
    let number = |text: &str| text.parse::<u64>().ok().filter(|&size| size <= LARGEST);
    let (Some(size), Some(given)) = (number(size), number(given)) else {
        return Err(format!("{sizes:?} is no size up to {LARGEST}"));
    };
    spend(given)?;
    let mut bytes = vec![0; given as usize];
    let mut at = 0_usize;
    for word in words {
        let hex = |text| usize::from_str_radix(text, 16).map_err(|_| format!("{word:?} is not hexadecimal"));
        if let Some(offset) = word.strip_prefix('@') {
            at = hex(offset)?;
        } else {
            let value = u8::try_from(hex(word)?).map_err(|_| format!("{word:?} is no byte"))?;
            let place = bytes
                .get_mut(at)
                .ok_or_else(|| format!("byte {at:#x} is beyond the file's end"))?;
            *place = value;
            at += 1;
        }
    }
    Ok((size, bytes))
}

fn dumped(size: u64, bytes: &[u8]) -> String {
    let mut out = size.to_string();
    if size != bytes.len() as u64 {
        // Writing to a string cannot fail, here and below.
        let _ = write!(out, "/{}", bytes.len());
    }
    let mut at = 0;
    while let Some(skip) = bytes[at..].iter().position(|&byte| byte != 0) {
        at += skip;
        // A short gap costs less than an offset.
        let end = (at..bytes.len())
            .find(|&end| bytes[end..].iter().take(4).all(|&byte| byte == 0))
            .unwrap_or(bytes.len());
        let _ = write!(out, " @{at:02x}");
        for byte in &bytes[at..end] {
            let _ = write!(out, " {byte:02x}");
        }
        at = end;
    }
    out
}

/// Records what is read through it as a manifest, which another machine can read.
pub struct Recorder<'a> {
    tree: &'a dyn Tree,
    seen: Mutex<Manifest>,
}

impl fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// Over a tree.
    pub fn new(tree: &'a dyn Tree) -> Self {
        Self {
            tree,
            seen: Mutex::default(),
        }
    }

    /// What was read.
    pub fn manifest(self) -> Manifest {
        self.seen.into_inner().ignore_poison()
    }

    /// A path that a manifest cannot hold is not recorded: sysfs has no such name.
    fn keep(&self, put: impl FnOnce(&mut Manifest) -> Result<(), String>) {
        let mut seen = lock(&self.seen);
        if let Err(why) = put(&mut seen) {
            tracing::debug!("not recorded: {why}");
        }
    }
}

impl Tree for Recorder<'_> {
    fn node(&self, path: &str) -> io::Result<Node> {
        let node = self.tree.node(path)?;
        match &node {
            Node::Link(target) => self.keep(|seen| seen.put_link(path, target)),
            Node::Folder => self.keep(|seen| seen.put_folder(path)),
            Node::File(_) => {}
        }
        Ok(node)
    }

    fn read(&self, path: &str, most: usize) -> io::Result<Vec<u8>> {
        let bytes = self.tree.read(path, most)?;
        let size = match self.tree.node(path)? {
            Node::File(size) => size,
            _ => bytes.len() as u64,
        };
        self.keep(|seen| seen.put_bytes(path, size, bytes.clone()));
        Ok(bytes)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let names = self.tree.names(path)?;
        self.keep(|seen| seen.put_folder(path));
        Ok(names)
    }

    /// Only the text that was searched for is recorded of a large file.
    fn contains(&self, path: &str, text: &str) -> io::Result<bool> {
        let is = self.tree.contains(path, text)?;
        let kept = if is { text.trim() } else { "-" };
        self.keep(|seen| seen.put_text(path, &format!("{kept}\n")));
        Ok(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
/sys/devices/pci0000:00/0000:00:01.0/
  config : 4096/64 @00 36 1b 0c 00 01 @34 40
  driver -> ../../../bus/pci/drivers/pcieport
  resource = 0x0 0x0 0x0\\n0x1 0x2 0x3
  vendor = 0x1b36
/sys/devices/pci0000:00/0000:00:01.0/accel/accel0/
";

    #[test]
    fn a_manifest_prints_as_it_was_read() {
        let manifest: Manifest = TEXT.parse().unwrap();
        assert_eq!(manifest.to_string(), TEXT);
        let folder = "/sys/devices/pci0000:00/0000:00:01.0";
        assert_eq!(
            manifest.node(&format!("{folder}/config")).unwrap(),
            Node::File(4096)
        );
        assert_eq!(
            manifest.read(&format!("{folder}/config"), 4096).unwrap().len(),
            64
        );
        assert_eq!(manifest.read(&format!("{folder}/vendor"), 4).unwrap(), b"0x1b");
        assert_eq!(manifest.names(&format!("{folder}/accel")).unwrap(), ["accel0"]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line) in [
            ("vendor = 1", 1),
            ("/a/\n  b", 2),
            ("/a/\n  b : 9999999999 @0 1", 2),
            ("/a/\n  b : 1 @1 00", 2),
            ("/a/\n  b : 1 @zz", 2),
            ("/a/\n  b : 2 100", 2),
            ("/a/\n  b : 2 @ffffffffffffffff 1 1", 2),
            ("/a/\n\n  ../b = x", 3),
            ("/a/\n  b = x\\t", 2),
            ("/a/\n  b/ c = x", 2),
            ("/a/\n  b/#c = x", 2),
            ("/a = b/", 1),
            ("/a/\n  b = x\n  b/c = x", 3),
            ("/a/\n  b/c = x\n  b = x", 3),
            ("a/", 1),
            ("  a/", 1),
        ] {
            let error = text.parse::<Manifest>().unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
        }
    }
}
