//! [`Attributes`]: readers of a folder's attributes. They return `None` if the file is missing,
//! unreadable or has another form.

use gaudi_sys::parse::hexadecimal;

use super::tree::{Node, Tree, resolve};

/// The most bytes of an attribute: sysfs gives a page.
const LONGEST: usize = 4096;

/// A folder without links in its path, and how its files are read.
pub(super) struct Attributes<'a> {
    tree: &'a dyn Tree,
    folder: &'a str,
}

impl<'a> Attributes<'a> {
    pub(super) fn of(tree: &'a dyn Tree, folder: &'a str) -> Self {
        Self { tree, folder }
    }

    /// A file's text without white space, and without the zeros that archivers append, at its ends.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let bytes = self.tree.read(&format!("{}/{name}", self.folder), LONGEST).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        // Printed text must not control a terminal.
        (!text.is_empty() && !text.contains(|c: char| c.is_control() && c != '\n')).then(|| text.to_owned())
    }

    /// `0x1b36`.
    pub(super) fn hex(&self, name: &str, most: u32) -> Option<u32> {
        let value = hexadecimal(self.text(name)?.strip_prefix("0x")?)?;
        u32::try_from(value).ok().filter(|&value| value <= most)
    }

    /// `0`; sysfs writes -1 for "none".
    pub(super) fn decimal(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }

    /// The last part of what a link holds.
    pub(super) fn link_name(&self, name: &str) -> Option<String> {
        match self.tree.node(&format!("{}/{name}", self.folder)).ok()? {
            Node::Link(target) => printable(target.rsplit('/').next()?),
            _ => None,
        }
    }
}

/// Returns a name that may be printed and is a plain part of a path.
pub(super) fn printable(name: &str) -> Option<String> {
    let good =
        !matches!(name, "" | "." | "..") && !name.contains(|c: char| c.is_control() || c.is_whitespace());
    good.then(|| name.to_owned())
}

/// The members of a class, each with its path without links; at most `most`.
pub(super) fn class(tree: &dyn Tree, class: &str, most: usize) -> Vec<(String, String)> {
    let folder = format!("/sys/class/{class}");
    let names = resolve(tree, &folder).and_then(|folder| tree.names(&folder));
    // A kernel without the class has no members of it.
    let names = names.unwrap_or_default().into_iter();
    names
        .filter_map(|name| {
            let path = resolve(tree, &format!("{folder}/{}", printable(&name)?)).ok()?;
            Some((name, path))
        })
        .take(most)
        .collect()
}
