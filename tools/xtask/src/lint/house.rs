//! House rules about Rust files that neither rustc nor clippy proves.

use super::{Finding, Text};

/// Past this a file is asked what its second subject is.
const LONGEST: usize = 700;
/// Folders whose files are rows, not prose.
const ROWS: [&str; 3] = ["tables", "fixtures", "generated"];

/// Names each Rust file that is longer than [`LONGEST`] lines: advice, not a rule.
pub(crate) fn file_length(texts: &[Text]) -> Vec<Finding> {
    let is_rows = |text: &Text| text.path.split('/').any(|folder| ROWS.contains(&folder));
    let advice = |text: &Text| {
        let lines = text.text.lines().count();
        let message = format!("{lines} lines, more than {LONGEST}: what is its second subject?");
        (lines > LONGEST).then(|| Finding::new(&text.path, LONGEST + 1, message))
    };
    let prose = texts.iter().filter(|text| text.is_rust() && !is_rows(text));
    prose.filter_map(advice).collect()
}

/// Nothing is left for later without an `Unsupported` that says so.
pub(crate) fn unfinished(texts: &[Text]) -> Vec<Finding> {
    // In pieces, so that this file passes its own rule.
    let marks = [
        ["to", "do!("].concat(),
        ["unimple", "mented!("].concat(),
        ["FIX", "ME"].concat(),
    ];
    let wrong = |text: &Text| {
        let hits = marks
            .iter()
            .flat_map(|mark| lines_with(&text.text, mark).map(move |line| (line, mark)));
        hits.map(|(line, mark)| Finding::new(&text.path, line, format!("`{mark}` is left")))
            .collect::<Vec<_>>()
    };
    texts
        .iter()
        .filter(|text| text.is_rust())
        .flat_map(wrong)
        .collect()
}

/// An ignored test says why: the harness prints the reason.
pub(crate) fn ignore_reason(texts: &[Text]) -> Vec<Finding> {
    let (bare, conditional) = (["#[ig", "nore"].concat(), [", ig", "nore)]"].concat());
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.is_rust()) {
        let mut say = |offset: usize| {
            let message = "an ignored test needs its reason: `= \"...\"`";
            findings.push(Finding::new(&text.path, line_at(&text.text, offset), message));
        };
        for (offset, mark) in text.text.match_indices(&bare) {
            let rest = text.text[offset + mark.len()..].trim_start();
            let reason = rest
                .strip_prefix('=')
                .and_then(|rest| rest.trim_start().strip_prefix('"'));
            if reason.is_none_or(|reason| reason.starts_with('"')) {
                say(offset);
            }
        }
        text.text
            .match_indices(&conditional)
            .for_each(|(offset, _)| say(offset));
    }
    findings
}

/// A module that opens unsafe code says why, in the attribute.
pub(crate) fn unsafe_reason(texts: &[Text]) -> Vec<Finding> {
    let marks = ["allow", "expect"].map(|level| [level, "(unsafe", "_code"].concat());
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.is_rust()) {
        for (offset, _) in marks
            .iter()
            .flat_map(|mark| text.text.match_indices(mark.as_str()))
        {
            let rest = &text.text[offset..];
            let attribute = &rest[..rest.find(")]").unwrap_or(rest.len())];
            let reason = attribute
                .split_once("reason")
                .map(|(_, reason)| reason.trim_start());
            let given = reason
                .and_then(|reason| reason.strip_prefix('='))
                .map(|reason| reason.trim_start());
            if !given.is_some_and(|given| given.starts_with('"') && !given.starts_with("\"\"")) {
                let message = "unsafe code is opened without `reason = \"...\"`";
                findings.push(Finding::new(&text.path, line_at(&text.text, offset), message));
            }
        }
    }
    findings
}

fn lines_with<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.lines()
        .enumerate()
        .filter(move |(_, line)| line.contains(mark))
        .map(|(line, _)| line + 1)
}

/// The line, counted from 1, of a byte offset.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(pieces: &[&str]) -> Vec<Text> {
        vec![Text {
            path: "hal/sys/src/fd.rs".to_owned(),
            text: pieces.concat(),
        }]
    }

    #[test]
    fn a_long_file_is_named() {
        let of = |path: &str, lines: usize| {
            vec![Text {
                path: path.to_owned(),
                text: "\n".repeat(lines),
            }]
        };
        let path = "hal/sys/src/fd.rs";
        assert_eq!(file_length(&of(path, 700)), [], "700 lines are allowed");
        assert_eq!(file_length(&of(path, 701)).len(), 1, "701 are not");
        assert_eq!(
            file_length(&of("hal/spec/src/gaudi2/tables/regs.rs", 9000)),
            [],
            "rows may be many"
        );
        assert_eq!(
            file_length(&of("hal/spec/src/tables.rs", 701)).len(),
            1,
            "a file's name is no folder"
        );
        assert_eq!(
            file_length(&of("README.md", 9000)),
            [],
            "only Rust files are asked"
        );
    }

    #[test]
    fn unfinished_work_is_found_with_its_line() {
        for mark in [
            &["to", "do!()"][..],
            &["unimple", "mented!(\"x\")"],
            &["// FIX", "ME later"],
        ] {
            let seen = unfinished(&rust(&["fn f() {\n", &mark.concat(), "\n}\n"]));
            assert_eq!(
                seen.iter().map(|finding| finding.line).collect::<Vec<_>>(),
                [2],
                "{mark:?}: saw {seen:?}"
            );
        }
        assert_eq!(
            unfinished(&rust(&["// a method todo with nothing\n"])),
            [],
            "the word alone is no mark"
        );
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        let count = |pieces: &[&str]| ignore_reason(&rust(pieces)).len();
        assert_eq!(count(&["#[ig", "nore]\nfn t() {}"]), 1, "no reason");
        assert_eq!(count(&["#[ig", "nore = \"\"]\nfn t() {}"]), 1, "an empty reason");
        assert_eq!(
            count(&["#[cfg_attr(miri, ig", "nore)]\nfn t() {}"]),
            1,
            "a condition is no reason"
        );
        assert_eq!(
            count(&["#[ig", "nore = \"needs a Gaudi2\"]\nfn t() {}"]),
            0,
            "a reason"
        );
    }

    #[test]
    fn opened_unsafe_needs_a_reason() {
        let count = |pieces: &[&str]| unsafe_reason(&rust(pieces)).len();
        assert_eq!(count(&["#![allow(unsafe", "_code)]"]), 1, "no reason");
        assert_eq!(
            count(&["#![expect(unsafe", "_code, reason = \"\")]"]),
            1,
            "an empty reason"
        );
        assert_eq!(
            count(&["#![expect(unsafe", "_code)]\n// reason = \"x\"\n"]),
            1,
            "a reason past the attribute"
        );
        assert_eq!(
            count(&["#![expect(\n    unsafe", "_code,\n    reason = \"mmap\"\n)]"]),
            0,
            "the mark is split"
        );
        assert_eq!(
            count(&["#![expect(unsafe", "_code, reason = \"mmap is unsafe\")]"]),
            0,
            "a reason"
        );
    }
}
