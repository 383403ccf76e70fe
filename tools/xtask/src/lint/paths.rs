//! Documents name only files and folders that exist.

use super::{Finding, Text};

/// The document whose quoted paths are checked too, not only its links.
const GUIDE: &str = "CONTRIBUTING.md";

/// Relative links of documents, and quoted paths of [`GUIDE`], lead to files or folders that exist.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let exists = |path: &str| {
        let inside = format!("{path}/");
        path.is_empty()
            || texts
                .iter()
                .any(|text| text.path == path || text.path.starts_with(&inside))
    };
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.path.ends_with(".md")) {
        let folder = text.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut in_code = false;
        for (index, line) in text.text.lines().enumerate() {
            in_code ^= line.trim_start().starts_with("```");
            if in_code {
                continue;
            }
            let linked = links(line).map(|target| resolve(folder, target));
            let quoted = quoted_paths(line)
                .map(str::to_owned)
                .filter(|_| text.path == GUIDE);
            for path in linked.chain(quoted).filter(|path| !exists(path)) {
                findings.push(Finding::new(
                    &text.path,
                    index + 1,
                    format!("{path} does not exist"),
                ));
            }
        }
    }
    findings
}

/// Targets of the links in a line, without those to other hosts and without anchors.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let target = |rest: &&str| {
        rest.split_once(')')
            .is_some_and(|(target, _)| !target.contains(' '))
    };
    let targets = line
        .split("](")
        .skip(1)
        .filter(target)
        .map(|rest| rest.split(')').next().unwrap_or(rest));
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target))
}

/// Words in backquotes that look like a path of this repository.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |word: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        word.contains('/') && word.chars().all(plain)
    };
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter(is_path)
        .map(|path| path.trim_end_matches('/'))
}

/// `target` as seen from `folder`, relative to the workspace's root.
fn resolve(folder: &str, target: &str) -> String {
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

    fn missing(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| Text {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let texts = [file(path, text), file("hal/seam/src/io.rs", "")];
        check(&texts).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        let none: [&str; 0] = [];
        assert_eq!(
            missing(GUIDE, "`hal/seam/src/io.rs`, `hal/seam` and `cargo xtask`"),
            none
        );
        assert_eq!(
            missing(GUIDE, "`hal/seam/src/no.rs`"),
            ["hal/seam/src/no.rs does not exist"]
        );
        assert_eq!(missing("docs/a.md", "`hal/no.rs` is not checked here"), none);
        assert_eq!(
            missing(
                "docs/a.md",
                "[io](../hal/seam/src/io.rs#top), [web](https://e.org/x)"
            ),
            none
        );
        assert_eq!(
            missing("docs/a.md", "[io](hal/seam)"),
            ["docs/hal/seam does not exist"]
        );
        assert_eq!(missing(GUIDE, "```\n[io](no)\n```"), none);
    }
}
