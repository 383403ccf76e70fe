//! Documents name only files and folders that exist.

use super::{Finding, Text};

/// The document whose quoted paths are checked too, not only its links.
const GUIDE: &str = "CONTRIBUTING.md";

/// Relative links of documents, and quoted paths of [`GUIDE`], lead to files or folders that exist.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let exists = |path: &str| {
        let rest = |text: &Text| text.path.strip_prefix(path).map(|rest| rest.chars().next());
        path.is_empty()
            || texts
                .iter()
                .filter_map(rest)
                .any(|next| matches!(next, None | Some('/')))
    };
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.path.ends_with(".md")) {
        let folder = parent(&text.path);
        let mut in_code = false;
        for (index, line) in text.text.lines().enumerate() {
            in_code ^= line.trim_start().starts_with("```");
            if in_code {
                continue;
            }
            let linked = links(line).map(|target| resolve(folder, target));
            let quoted = quoted_paths(line).filter(|_| text.path == GUIDE);
            let quoted = quoted.map(|path| resolve("", path));
            for path in linked.chain(quoted).filter(|path| !exists(path)) {
                let message = format!("{path} does not exist");
                findings.push(Finding::new(&text.path, index + 1, message));
            }
        }
    }
    findings
}

/// Targets of the links in a line, without those to other hosts and without anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0));
    let inside = targets.filter(|target| !target.contains(' ') && !target.contains("://"));
    inside.map(|target| target.split_once('#').map_or(target, |(path, _)| path))
}

/// Words in backquotes that look like a path of this repository.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |word: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        word.contains('/') && word.chars().all(plain)
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

/// The folder of a file.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `target` as seen from `folder`, relative to the workspace's root.
pub(super) fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_do_not_exist_are_found() {
        for (path, text, missing) in [
            (GUIDE, "`hal/seam/src/io.rs`, `hal/seam/` and `cargo xtask`", None),
            (GUIDE, "`hal/seam/src/no.rs`", Some("hal/seam/src/no.rs")),
            (GUIDE, "`hal/sea`", Some("hal/sea")),
            ("docs/a.md", "`hal/no.rs` is not checked here", None),
            (
                "docs/a.md",
                "[io](../hal/seam/src/io.rs#top), [web](https://e.org/x), [up](#top)",
                None,
            ),
            ("docs/a.md", "[io](hal/seam)", Some("docs/hal/seam")),
            (GUIDE, "```\n[io](no)\n```", None),
        ] {
            let texts = [Text::new(path, text), Text::new("hal/seam/src/io.rs", "")];
            let seen: Vec<_> = check(&texts).into_iter().map(|finding| finding.message).collect();
            let wanted: Vec<_> = missing
                .iter()
                .map(|path| format!("{path} does not exist"))
                .collect();
            assert_eq!(seen, wanted, "{path}: {text}");
        }
    }
}
