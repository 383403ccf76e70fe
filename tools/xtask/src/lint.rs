//! `cargo xtask lint`: tool checks (fmt, clippy, doc) and rules of the house, one ledger row each.

pub(crate) mod arrows;
mod cycles;
pub(crate) mod graph;
pub(crate) mod house;
mod manifest;
mod names;
mod paths;
mod places;
mod prose;
mod source;

use std::fmt;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use self::arrows::manifest_of;
use crate::ledger::Row;
use crate::run::{self, Show};
use crate::workspace::{self, Crate, Workspace};

/// A broken rule and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, message: impl Into<String>) -> Finding {
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
pub(crate) struct Text {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Text {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// A cargo subcommand that must succeed.
struct Tool {
    name: &'static str,
    args: &'static [&'static str],
    /// The rustup component that brings it, if the machine can lack it.
    component: Option<&'static str>,
    env: Option<(&'static str, &'static str)>,
    limit: Duration,
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "fmt",
        args: &["fmt", "--all", "--check"],
        component: Some("rustfmt"),
        env: None,
        limit: Duration::from_secs(120),
    },
    Tool {
        name: "clippy",
        args: &[
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        component: Some("clippy"),
        env: None,
        limit: Duration::from_secs(1200),
    },
    Tool {
        name: "doc",
        args: &["doc", "--locked", "--workspace", "--no-deps"],
        component: None,
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
        limit: Duration::from_secs(1200),
    },
];

/// Runs every check; the cheap ones first, and without `tools` only these.
pub(crate) fn run(workspace: &Workspace, tools: bool) -> anyhow::Result<Vec<Row>> {
    let texts = texts(workspace)?;
    let crates = &workspace.crates;
    let mut rows = vec![
        rule("lint arrows", || arrows::check(crates, &texts)),
        rule("lint graph", || graph::check(crates, &texts)),
        rule("lint folders", || manifest::folders(crates)),
        rule("lint manifests", || manifest::inherit_lints(crates, &texts)),
        rule("lint no_std", || manifest::pure_data(crates, &texts)),
        rule("lint crate-words", || manifest::crate_words(crates, &texts)),
        advice("lint file-length", house::file_length(&texts)),
        rule("lint cycles", || {
            by_crate("cycles", crates, |member| cycles::check(member, &texts))
        }),
        rule("lint columns", || columns(crates, &texts)),
        rule("lint chip-names", || names::chip(crates, &texts)),
        rule("lint eras", || names::era(crates, &texts)),
        rule("lint unfinished", || house::unfinished(&texts)),
        rule("lint ignore-reason", || house::ignore_reason(&texts)),
        rule("lint unsafe-reason", || house::unsafe_reason(&texts)),
        rule("lint paths", || paths::check(&texts)),
        rule("lint places", || places::check(&texts)),
    ];
    for tool in TOOLS.iter().filter(|_| tools) {
        rows.push(Row::time(&format!("lint {}", tool.name), |row| {
            tool.run(workspace, row);
        }));
    }
    Ok(rows)
}

/// Prints what a reader may think about. It fails nothing.
fn advice(name: &str, findings: Vec<Finding>) -> Row {
    for finding in findings {
        println!("note  {name}  {finding}");
    }
    rule(name, Vec::new)
}

/// Findings of `check` in the crates that pass it so far, and of each crate that is exempt though
/// it passes.
fn by_crate(name: &str, crates: &[Crate], check: impl Fn(&Crate) -> Vec<Finding>) -> Vec<Finding> {
    let findings = crates.iter().map(|member| {
        let findings = check(member);
        if !member.lint.exempt.contains(name) {
            return findings;
        }
        if findings.is_empty() {
            let message = format!("passes {name}: remove {name:?} from `exempt`");
            return vec![Finding::new(&manifest_of(member), 1, message)];
        }
        println!(
            "note  lint {name}  {} is exempt, with {} findings; remove {name:?} from its manifest to see them",
            member.folder,
            findings.len()
        );
        Vec::new()
    });
    findings.flatten().collect()
}

/// [`prose::columns`] by crate; a file outside of the crates has no exemption.
fn columns(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let is_of = |text: &Text, member: &Crate| text.path.starts_with(&format!("{}/", member.folder));
    let mut findings = by_crate("columns", crates, |member| {
        let of_crate = texts.iter().filter(|text| is_of(text, member));
        of_crate.flat_map(prose::columns).collect()
    });
    let others = texts
        .iter()
        .filter(|text| !crates.iter().any(|member| is_of(text, member)));
    findings.extend(others.flat_map(prose::columns));
    findings
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
    })
}

impl Tool {
    fn run(&self, workspace: &Workspace, row: &mut Row) {
        let name = &format!("lint {}", self.name);
        if let Some(component) = self.component {
            if !answers(self.args[0]) {
                row.skip(
                    name,
                    format!(
                        "cargo {} is not installed: rustup component add {component}",
                        self.args[0]
                    ),
                );
                return println!("skip  {name}");
            }
        }
        let mut command = workspace::cargo();
        command
            .args(self.args)
            .current_dir(&workspace.root)
            .envs(self.env);
        let log = workspace.logs.join(format!("lint-{}.log", self.name));
        match run::run(&command, &log, self.limit, Show::Quiet) {
            Ok(outcome) if outcome.ok() => {
                println!("ok    {name}");
                row.pass();
            }
            Ok(outcome) => {
                // The compilers' own messages carry file:line.
                println!("{}\nFAIL  {name}", outcome.tail(120));
                row.fail(outcome.why(&format!("cargo {}", self.args.join(" "))));
            }
            Err(error) => {
                println!("FAIL  {name}  {error:#}");
                row.fail(format!("{error:#}"));
            }
        }
    }
}

fn answers(subcommand: &str) -> bool {
    let mut command: Command = workspace::cargo();
    command
        .args([subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Every tracked file that is text. Binary fixtures are not ours to read.
fn texts(workspace: &Workspace) -> anyhow::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for path in workspace.files()? {
        let bytes = fs::read(workspace.root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            texts.push(Text { path, text });
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_fails_the_row() {
        let row = rule("lint sample", || {
            vec![Finding::new("hal/spec/src/lib.rs", 7, "broken")]
        });
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
