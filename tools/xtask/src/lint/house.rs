//! Rules about Rust files that neither rustc nor clippy proves.

use super::{Finding, Text};

/// The most lines of a file before it is asked for its second subject.
const LONGEST: usize = 700;
/// Folders whose files are rows, not prose.
const ROWS: [&str; 3] = ["tables", "fixtures", "generated"];

/// Names each Rust file that is longer than [`LONGEST`] lines: advice, not a rule.
pub(super) fn file_length(texts: &[Text]) -> Vec<Finding> {
    let is_rows = |text: &Text| text.path.split('/').any(|folder| ROWS.contains(&folder));
    let advice = |text: &Text| {
        let lines = text.text.lines().count();
        let message = format!("{lines} lines, more than {LONGEST}: what is its second subject?");
        (lines > LONGEST).then(|| Finding::new(&text.path, LONGEST + 1, message))
    };
    let prose = texts.iter().filter(|text| text.is_rust() && !is_rows(text));
    prose.filter_map(advice).collect()
}

/// Nothing is left for later without an `Unsupported`; clippy reports the macros that leave it.
pub(super) fn unfinished(texts: &[Text]) -> Vec<Finding> {
    // In pieces, so that this file passes its own rule.
    let mark = ["FIX", "ME"].concat();
    let rust = texts.iter().filter(|text| text.is_rust());
    let marks = rust.flat_map(|text| text.text.match_indices(&mark).map(move |(at, _)| (text, at)));
    let finding = |(text, at): (&Text, usize)| text.finding(at, format!("`{mark}` is left"));
    marks.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_are_named() {
        for (path, lines, wanted, why) in [
            ("hal/sys/src/fd.rs", 700, 0, "700 lines are allowed"),
            ("hal/sys/src/fd.rs", 701, 1, "701 are not"),
            ("hal/spec/src/gaudi2/tables/regs.rs", 9000, 0, "rows may be many"),
            ("hal/spec/src/tables.rs", 701, 1, "a file's name is not a folder"),
            ("README.md", 9000, 0, "only Rust files are asked"),
        ] {
            let seen = file_length(&[Text::new(path, "\n".repeat(lines))]);
            assert_eq!(seen.len(), wanted, "{path}: {why}");
        }
    }

    #[test]
    fn unfinished_work_is_found_with_its_line() {
        let lines = |text: String| {
            let findings = unfinished(&[Text::new("hal/sys/src/fd.rs", text)]);
            findings.iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(["fn f() {\n// FIX", "ME later\n}\n"].concat()), [2]);
        assert_eq!(lines("// a method todo with nothing\n".to_owned()), [0; 0]);
    }
}
