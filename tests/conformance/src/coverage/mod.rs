//! The coverage of the driver's interface by the cases, as a page: every name of the headers and
//! every rule.
//!
//! The rows are observed: the cases run on a mock that records every operation. Three things are
//! problems: a name of the headers or a rule without a case and without a reason, a refusal that
//! names no rule, and a reason for a row that a case shows.

mod unmet;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gaudi_seam::{DeviceSpec, Rule};
use gaudi_uapi::Named;
use gaudi_uapi::Since;
use gaudi_uapi::cb::{CbFlags, CbOp};
use gaudi_uapi::cs::{CsChunkFlags, CsFlags, EngineCommand};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::{MemFlags, MemOp};
use gaudi_uapi::wait::WaitCsFlags;

pub use unmet::{UNMET, Why};

use crate::case::Failure;
use crate::observe::Observation;

/// Names that no case uses, and why.
const UNUSED: &[(&str, &str)] = &[
    (
        "HL_MEM_SHARED",
        "it lets another context map the memory; a mock's device has one process at a time",
    ),
    (
        "HL_MEM_PREFETCH",
        "it changes no answer: translations are loaded ahead of their use",
    ),
];

/// What each case was seen to do.
#[derive(Debug, Default)]
pub struct Coverage {
    seen: BTreeMap<&'static str, Observation>,
    /// Cases that failed: nothing that they show counts.
    pub failed: Vec<(&'static str, Failure)>,
}

/// What a request can be made of: operations and flags of the mainline headers, in groups.
fn names() -> Vec<(&'static str, Vec<&'static str>)> {
    fn of(table: &'static [Named]) -> Vec<&'static str> {
        let mainline = |one: &&Named| !matches!(one.since, Since::Gaudi3);
        table.iter().filter(mainline).map(|one| one.c_name).collect()
    }
    let mut wait = of(WaitCsFlags::NAMES);
    wait.extend([
        "HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT",
        "HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT",
    ]);
    vec![
        ("System calls", vec!["open", "open(control)", "mmap"]),
        ("HL_IOCTL_INFO", of(InfoOp::NAMES)),
        ("HL_IOCTL_CB", [of(CbOp::NAMES), of(CbFlags::NAMES)].concat()),
        (
            "HL_IOCTL_CS",
            [
                of(CsFlags::NAMES),
                of(CsChunkFlags::NAMES),
                of(EngineCommand::NAMES),
            ]
            .concat(),
        ),
        ("HL_IOCTL_WAIT_CS", [vec!["HL_IOCTL_WAIT_CS"], wait].concat()),
        (
            "HL_IOCTL_MEMORY",
            [
                of(MemOp::NAMES),
                // Of the Gaudi3 header: the seam has it, mainline has not.
                vec!["HL_MEM_OP_REG_DMABUF_FD"],
                of(MemFlags::NAMES),
            ]
            .concat(),
        ),
        ("HL_IOCTL_DEBUG", of(DebugOp::NAMES)),
    ]
}

impl Coverage {
    /// Runs every case on a mock of its own with virtual time, and records its operations.
    ///
    /// # Errors
    /// The error of opening the mock.
    pub fn observe() -> gaudi_seam::Result<Self> {
        let spec = "mock:gaudi2?clock=virtual&name=coverage"
            .parse::<DeviceSpec>()
            .map_err(|error| {
                gaudi_seam::Error::new(gaudi_seam::ErrorKind::InvalidInput, "open").because(error.to_string())
            })?;
        let mut coverage = Self::default();
        crate::runner::observe(&spec, crate::cases::all(), |case, verdict, seen| {
            if let Err(failure) = verdict {
                coverage.failed.push((case.id, failure));
            }
            coverage.seen.insert(case.id, seen);
        })?;
        Ok(coverage)
    }

    /// The cases that use a name, with any answer.
    fn users(&self, name: &str) -> Vec<&'static str> {
        self.seen
            .iter()
            .filter(|(_, observed)| observed.seen.iter().any(|(one, _)| one == name))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The cases that meet a rule.
    fn cases_of(&self, rule: &Rule) -> Vec<&'static str> {
        let meets = |observed: &Observation| observed.rules.contains(rule.id);
        let cases = self.seen.iter().filter(|(_, observed)| meets(observed));
        cases.map(|(id, _)| *id).collect()
    }

    /// Everything that is wrong with the table, a sentence each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .failed
            .iter()
            .map(|(id, failure)| format!("the case {id} fails: {failure}"))
            .collect();
        let mut known = BTreeSet::new();
        for name in names().into_iter().flat_map(|(_, names)| names) {
            known.insert(name);
            let reason = UNUSED.iter().find(|row| row.0 == name);
            match (self.users(name).is_empty(), reason) {
                (true, None) => problems.push(format!("{name}: no case uses it, and no reason is given")),
                (false, Some(_)) => problems.push(format!(
                    "{name}: cases use it, and a reason is given why none does"
                )),
                _ => {}
            }
        }
        for (name, _) in UNUSED.iter().filter(|row| !known.contains(row.0)) {
            problems.push(format!("{name}: a reason is given for what no header names"));
        }
        for rule in Rule::all() {
            let reason = reason(rule);
            match (&*self.cases_of(rule), reason) {
                ([], None) => problems.push(format!("{}: no case meets it, and no reason is given", rule.id)),
                ([case, ..], Some(_)) => problems.push(format!(
                    "{}: {case} meets it, and a reason is given why none does",
                    rule.id
                )),
                _ => {}
            }
        }
        for (id, _) in UNMET.iter().filter(|row| Rule::of_id(row.0).is_none()) {
            problems.push(format!("{id}: a reason is given for what is not a rule"));
        }
        for (case, observed) in &self.seen {
            for refusal in &observed.unexplained {
                problems.push(format!("{refusal}: {case} meets it, and it names no rule"));
            }
        }
        problems
    }

    /// The page, as docs/src/reference/coverage.md.
    pub fn page(&self) -> String {
        let mut page = String::from(HEAD);
        let met = Rule::all().filter(|rule| !self.cases_of(rule).is_empty()).count();
        let names = names();
        let used: Vec<&str> = names
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let covered = used.iter().filter(|name| !self.users(name).is_empty()).count();
        let _ = writeln!(
            page,
            "Cases use {covered} of {} operations and flags, and meet {met} of {} rules; the others have a \
             reason.\n\n## Operations and flags",
            used.len(),
            Rule::all().count(),
        );
        for (group, names) in names {
            let _ = writeln!(
                page,
                "\n### {group}\n\n| name | cases | among them |\n|---|---|---|"
            );
            for name in names {
                let users = self.users(name);
                let among = users
                    .iter()
                    .take(2)
                    .map(|id| format!("`{id}`"))
                    .collect::<Vec<_>>();
                let reason = UNUSED.iter().find(|row| row.0 == name).map_or("", |row| row.1);
                let among = if among.is_empty() {
                    reason.to_owned()
                } else {
                    among.join(", ")
                };
                let _ = writeln!(page, "| `{name}` | {} | {among} |", users.len());
            }
        }
        let _ = writeln!(
            page,
            "\n## Rules\n\n| rule | operation | errno | condition | decided in | met by |\n|---|---|---|---|---|---|"
        );
        for rule in Rule::all() {
            let operation = rule
                .request
                .map_or_else(|| rule.subject.to_string(), str::to_owned);
            let met = match (&*self.cases_of(rule), reason(rule)) {
                ([], reason) => format!("— {}", reason.map_or("no case", Why::text)),
                ([first], _) => format!("`{first}`"),
                ([first, second], _) => format!("`{first}`, `{second}`"),
                ([first, rest @ ..], _) => format!("`{first}` and {} more", rest.len()),
            };
            let Rule {
                id,
                errno,
                condition,
                source,
                ..
            } = rule;
            let _ = writeln!(
                page,
                "| `{id}` | `{operation}` | `{errno:?}` | {condition} | {source} | {met} |"
            );
        }
        page
    }
}

/// Why no case meets a rule.
fn reason(rule: &Rule) -> Option<Why> {
    UNMET.iter().find(|(id, _)| *id == rule.id).map(|(_, why)| *why)
}

const HEAD: &str = "\
# What the conformance cases show

<!-- Generated: cargo run -p gaudi-conformance -- --coverage > docs/src/reference/coverage.md -->

This page lists which operations, flags and rules of the driver the conformance cases use. Its rows
come from data: the names of the kernel headers, the rules that a user of Gaudi2 can meet in the
driver of Linux 7.3.4 (file and function below `drivers/accel/habanalabs`), and a run of every case
on the mock. A row names a case only if that run observed the case there. A test compares this page
with the data.

";
