//! `cargo xtask lint`: tool checks (fmt, clippy, doc) and rules of the house, one ledger row each.

mod arrows;
mod cycles;
pub(crate) mod graph;
mod house;
mod manifest;
mod names;
mod paths;
mod places;
mod prose;
mod source;

use std::fmt;

use crate::files;
use crate::ledger::Row;
use crate::missing::OrSkip as _;
use crate::run::{self, LIMIT, Show};
use crate::workspace::Workspace;

/// A broken rule and where.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    /// Counted from 1.
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            file: file.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A tracked text file.
#[derive(Clone, Debug)]
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn new(path: &str, text: impl Into<String>) -> Text {
        Text {
            path: path.to_owned(),
            text: text.into(),
        }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// A finding at a byte offset.
    fn finding(&self, offset: usize, message: impl Into<String>) -> Finding {
        let line = self.text[..offset].matches('\n').count() + 1;
        Finding::new(&self.path, line, message)
    }
}

fn text_of<'a>(texts: &'a [Text], path: &str) -> Option<&'a str> {
    let found = texts.iter().find(|text| text.path == path);
    found.map(|text| text.text.as_str())
}

/// Cargo subcommands that must succeed, and the rustup component that a machine can lack.
const TOOLS: [(&str, Option<&str>); 3] = [
    ("fmt --all --check", Some("rustfmt")),
    (
        "clippy --locked --workspace --all-targets -- -D warnings",
        Some("clippy"),
    ),
    ("doc --locked --workspace --no-deps", None),
];

/// Runs every check; the cheap ones first, and without `tools` only these.
pub(crate) fn run(workspace: &Workspace, tools: bool) -> anyhow::Result<Vec<Row>> {
    let texts = &texts(workspace)?;
    let crates = &workspace.crates;
    for finding in house::file_length(texts) {
        println!("note  lint file-length  {finding}"); // advice, not a rule
    }
    let mut rows = vec![
        rule("lint arrows", || arrows::check(&workspace.arrows, crates, texts)),
        rule("lint graph", || graph::check(crates, texts)),
        rule("lint folders", || manifest::folders(crates)),
        rule("lint manifests", || manifest::inherit_lints(crates, texts)),
        rule("lint no_std", || manifest::pure_data(crates, texts)),
        rule("lint crate-words", || manifest::crate_words(crates, texts)),
        rule("lint file-length", Vec::new),
        rule("lint cycles", || cycles::check(crates, texts)),
        rule("lint columns", || texts.iter().flat_map(prose::columns).collect()),
        rule("lint chip-names", || names::chip(crates, texts)),
        rule("lint eras", || names::era(crates, texts)),
        rule("lint unfinished", || house::unfinished(texts)),
        rule("lint paths", || paths::check(texts)),
        rule("lint places", || places::check(texts)),
    ];
    for (words, component) in TOOLS.iter().filter(|_| tools) {
        rows.push(tool(workspace, words, *component));
    }
    Ok(rows)
}

fn rule(name: &str, check: impl FnOnce() -> Vec<Finding>) -> Row {
    Row::time(name, |row| {
        let findings = check();
        if findings.is_empty() {
            println!("ok    {name}");
            row.pass();
        }
        for finding in findings {
            println!("FAIL  {name}  {finding}");
            row.fail(finding.to_string());
        }
        Ok(())
    })
}

fn tool(workspace: &Workspace, words: &str, component: Option<&str>) -> Row {
    let tool = words.split(' ').next().unwrap_or(words);
    let name = &format!("lint {tool}");
    let check = || {
        if let Some(component) = component {
            let version = run::output(workspace.cargo().args([tool, "--version"]));
            version.or_skip(format!("rustup component add {component}"))?;
        }
        let mut command = workspace.cargo();
        command.args(words.split(' ')).env("RUSTDOCFLAGS", "-D warnings");
        let log = workspace.logs.join(format!("lint-{tool}.log"));
        // The compilers' own messages carry file:line.
        run::run(&command, &log, LIMIT, Show::Quiet)?.check(&format!("cargo {words}"))?;
        Ok(format!("cargo {words}"))
    };
    Row::time(name, |row| {
        row.settle(name, check());
        Ok(())
    })
}

/// Every tracked file that is text. Binary fixtures are not ours to read.
fn texts(workspace: &Workspace) -> anyhow::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for path in workspace.files()? {
        let bytes = files::read(&workspace.root.join(&path))?;
        texts.extend(String::from_utf8(bytes).ok().map(|text| Text::new(&path, text)));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_fails_the_row() {
        let broken = || vec![Finding::new("hal/spec/src/lib.rs", 7, "broken")];
        let row = rule("lint sample", broken);
        assert_eq!(row.counts.failed, 1, "a finding fails the row");
        assert_eq!(
            row.failures,
            ["hal/spec/src/lib.rs:7: broken"],
            "file and line are named"
        );
        assert_eq!(
            rule("lint sample", Vec::new).counts.passed,
            1,
            "no finding is a pass"
        );
    }
}
