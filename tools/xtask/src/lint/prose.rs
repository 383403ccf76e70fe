//! Comments and documents stay within their columns.

use super::{Finding, Text};

/// The longest line of a comment or of a document's text.
const COLUMNS: usize = 100;
/// The longest cell of a table.
const CELL: usize = 120;

/// Every line of `text` that is too long, or holds a table's cell that is.
pub(super) fn columns(text: &Text) -> Vec<Finding> {
    let is_document = text.path.ends_with(".md");
    let mut in_code = false;
    let finding = |(index, line): (usize, &str)| {
        in_code ^= is_document && line.trim_start().starts_with("```");
        let prose = match text.path.rsplit('.').next() {
            Some("md") if !in_code => Some(line),
            Some("rs") => comment(line, "//"),
            Some("toml" | "sh") => comment(line, "#"),
            _ => None,
        };
        let message = too_long(prose?)?;
        Some(Finding::new(&text.path, index + 1, message))
    };
    text.text.lines().enumerate().filter_map(finding).collect()
}

/// The line, if it ends with a comment.
fn comment<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let begins = line.trim_start().starts_with(mark);
    // An even number of quotes before the mark: it is not inside a string.
    let follows = line
        .find(&format!(" {mark} "))
        .is_some_and(|at| line[..at].matches('"').count() % 2 == 0);
    (begins || follows).then_some(line)
}

fn too_long(line: &str) -> Option<String> {
    let words = line
        .trim_start()
        .trim_start_matches(['/', '!', '#', '>', '-', ' ']);
    if words.starts_with('|') {
        let widest = words.split('|').map(|cell| cell.trim().chars().count()).max();
        let widest = widest.filter(|cell| *cell > CELL)?;
        return Some(format!("a table's cell has {widest} characters, at most {CELL}"));
    }
    let width = line.chars().count();
    // A word that is longer than the line, such as an address, cannot be broken.
    let is_one_word = !words.trim_end().contains(' ');
    (width > COLUMNS && !is_one_word).then(|| format!("{width} columns of text, at most {COLUMNS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[(&str, String, usize, &str)]) {
        for (path, text, wanted, why) in rows {
            let seen = columns(&Text::new(path, text.as_str()));
            assert_eq!(seen.len(), *wanted, "{path}: {why}: {text:?}");
        }
    }

    #[test]
    fn long_comments_are_found() {
        let words = "word ".repeat(20);
        check(&[
            ("a.rs", format!("// {words}"), 1, "103 columns"),
            ("a.rs", format!("/// {}", &words[..96]), 0, "100 columns"),
            ("a.rs", format!("let {words}= 1;"), 0, "code is rustfmt's"),
            ("a.rs", format!("f(); // {words}"), 1, "a comment after code"),
            ("a.rs", format!("f(\"a // {words}\");"), 0, "a string"),
            (
                "a.rs",
                format!("// {}", "x".repeat(200)),
                0,
                "one word cannot be broken",
            ),
            ("Cargo.toml", format!("# {words}"), 1, "a manifest's comment"),
        ]);
    }

    #[test]
    fn long_text_and_wide_cells_are_found() {
        let words = "word ".repeat(30);
        let fitting = format!("| {} | {} |", "x".repeat(119), "y".repeat(119));
        check(&[
            ("a.md", words.clone(), 1, "text"),
            ("a.md", format!("```text\n{words}\n```\n"), 0, "code"),
            ("a.md", fitting, 0, "cells fit"),
            ("a.md", format!("| a | {words} |"), 1, "a cell of 149"),
            ("a.rs", format!("/// | a | {words} |"), 1, "a table in a comment"),
        ]);
    }
}
