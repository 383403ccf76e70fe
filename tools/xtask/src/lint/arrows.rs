//! The workspace has the arrows between crates that its manifest lists, and no others.

use std::collections::BTreeSet;

use super::{Finding, Text, text_of};
use crate::workspace::{Arrows, Crate};

/// Wrappers and backends that stand side by side.
const SIBLINGS: [&str; 4] = ["gaudi-kernel", "gaudi-mock", "gaudi-layers", "gaudi-vfio"];
/// The crates that reach a device, real or modelled.
const BACKENDS: [&str; 3] = ["gaudi-kernel", "gaudi-mock", "gaudi-vfio"];
const OPENER: &str = "gaudi-hal";
/// Any crate's tests may name them: counted skips; cases and seeds of random tests.
const EVERY_TEST_S: [&str; 2] = ["gaudi-harness", "gaudi-random"];

/// Compares the crates with their rows.
pub(crate) fn check(arrows: &Arrows, crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in crates {
        let (name, manifest) = (&member.name, manifest_of(member));
        let mut report = |dependency: &str, message: String| {
            let line = line_of(texts, &manifest, dependency);
            findings.push(Finding::new(&manifest, line, message));
        };
        let Some(room) = arrows.get(name) else {
            let table = "[workspace.metadata.arrows] of the workspace's Cargo.toml";
            report("", format!("{name} has no row in {table}"));
            continue;
        };
        for missing in room.needs.iter().filter(|need| !member.normal.contains(*need)) {
            let message = format!("{name} -> {missing} is missing: the diagram is drawn with this arrow");
            report("", message);
        }
        for (kind, named) in [("normal", &member.normal), ("dev", &member.dev)] {
            for arrow in named {
                if let Some(rule) = breaks(arrows, name, kind, arrow) {
                    report(arrow, format!("{name} -> {arrow} ({kind}): {rule}"));
                }
            }
        }
        let names = |backend: &&str| member.normal.contains(*backend) || member.dev.contains(*backend);
        let is_member = |backend: &&str| crates.iter().any(|member| member.name == *backend);
        let mut present = BACKENDS.iter().copied().filter(is_member).peekable();
        if name != OPENER && present.peek().is_some() && present.all(|backend| names(&backend)) {
            report("", format!("{name} names every backend: only {OPENER} does"));
        }
    }
    let members: BTreeSet<_> = crates.iter().map(|member| &member.name).collect();
    for name in arrows.keys().filter(|name| !members.contains(name)) {
        let message = format!("{name} is in the table of arrows but is not a member of the workspace");
        findings.push(Finding::new("Cargo.toml", 1, message));
    }
    findings
}

/// The rule that an arrow breaks, if it breaks one.
fn breaks(arrows: &Arrows, name: &str, kind: &str, arrow: &str) -> Option<String> {
    let room = &arrows[name];
    if SIBLINGS.contains(&name) && SIBLINGS.contains(&arrow) {
        return Some("siblings kernel, mock, layers and vfio do not name one another".to_owned());
    }
    if room.on_top || (kind == "dev" && EVERY_TEST_S.contains(&arrow)) {
        return None;
    }
    if arrows.get(arrow).is_some_and(|other| other.on_top) {
        return Some("tools and tests stand on top: nothing below names them".to_owned());
    }
    let tests_alone = room.dev.iter().filter(|_| kind == "dev");
    let allowed = room.needs.iter().chain(&room.may).chain(tests_alone);
    let allowed: Vec<&str> = allowed.map(String::as_str).collect();
    match allowed[..] {
        [] => Some(format!("{name} names no crate of the workspace")),
        _ if allowed.contains(&arrow) => None,
        _ => Some(format!(
            "not an arrow of the diagram; it may name {}",
            allowed.join(", ")
        )),
    }
}

pub(crate) fn manifest_of(member: &Crate) -> String {
    format!("{}/Cargo.toml", member.folder)
}

/// The manifest's line that starts with the dependency's name; 1 if there is none.
fn line_of(texts: &[Text], manifest: &str, dependency: &str) -> usize {
    let names = |line: &str| {
        let rest = line.trim_start().strip_prefix(dependency);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    let mut lines = text_of(texts, manifest).unwrap_or("").lines();
    lines.position(names).map_or(1, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Room, Workspace};

    fn table() -> Arrows {
        Workspace::load().expect("the workspace is read").arrows
    }

    /// The workspace that the table describes, with nothing optional.
    fn good() -> Vec<Crate> {
        let member = |(name, room): (String, Room)| Crate {
            folder: name.clone(),
            name,
            normal: room.needs.into_iter().collect(),
            ..Crate::default()
        };
        table().into_iter().map(member).collect()
    }

    /// The messages of a workspace that is changed.
    fn messages(change: impl FnOnce(&mut Vec<Crate>)) -> Vec<String> {
        let mut crates = good();
        change(&mut crates);
        let findings = check(&table(), &crates, &[]);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    fn named<'a>(crates: &'a mut [Crate], name: &str) -> &'a mut Crate {
        let found = crates.iter_mut().find(|member| member.name == name);
        found.expect("the table has this crate")
    }

    /// Messages after one arrow is added.
    fn with(from: &str, to: &str, dev: bool) -> Vec<String> {
        messages(|crates| {
            let member = named(crates, from);
            let arrows = if dev { &mut member.dev } else { &mut member.normal };
            arrows.insert(to.to_owned());
        })
    }

    fn has_one(messages: &[String], part: &str) {
        let is_it = matches!(messages, [message] if message.contains(part));
        assert!(is_it, "expected {part:?} and nothing else, saw {messages:?}");
    }

    #[test]
    fn the_table_agrees_with_itself() {
        assert_eq!(
            messages(|_| ()),
            [""; 0],
            "the workspace of the table breaks no rule"
        );
        let table = table();
        for (name, room) in &table {
            for other in [&room.needs[..], &room.may, &room.dev].concat() {
                assert!(
                    table.contains_key(&other),
                    "{name} names {other}, which has no row"
                );
            }
        }
    }

    #[test]
    fn table_has_no_cycle() {
        // Peel off crates whose arrows all lead to peeled ones; a cycle is what stays.
        let table = table();
        let mut done = BTreeSet::new();
        let is_free = |done: &BTreeSet<_>, name: &String, room: &Room| {
            !done.contains(name) && room.needs.iter().chain(&room.may).all(|name| done.contains(name))
        };
        while let Some((name, _)) = table.iter().find(|(name, room)| is_free(&done, name, room)) {
            done.insert(name.clone());
        }
        assert_eq!(
            done.len(),
            table.len(),
            "every crate must be reachable from the bottom; peeled {done:?}"
        );
    }

    #[test]
    fn each_broken_rule_is_named() {
        for (from, to, dev, parts) in [
            (
                "gaudi-sys",
                "gaudi-seam",
                false,
                &["gaudi-sys -> gaudi-seam (normal)", "it may name gaudi-uapi"][..],
            ),
            ("gaudi-mock", "gaudi-kernel", false, &["siblings"]),
            ("gaudi-mock", "gaudi-kernel", true, &["siblings"]),
            ("gaudi-spec", "gaudi-uapi", true, &["gaudi-spec names no crate"]),
            (
                "gaudi-device",
                "gaudi-conformance",
                true,
                &["tools and tests stand on top"],
            ),
            (
                "gaudi-dmabuf",
                "gaudi-hal",
                false,
                &["gaudi-dmabuf -> gaudi-hal (normal)"],
            ),
        ] {
            for part in parts {
                has_one(&with(from, to, dev), part);
            }
        }
    }

    #[test]
    fn allowed_arrows_are_no_findings() {
        for (from, to, dev, why) in [
            (
                "gaudi-dmabuf",
                "gaudi-hal",
                true,
                "dmabuf's tests may open a device",
            ),
            ("gaudi-cli", "gaudi-mock", false, "a tool may name one backend"),
        ] {
            assert_eq!(with(from, to, dev), [""; 0], "{why}");
        }
    }

    #[test]
    fn a_missing_arrow_is_named() {
        let without = |crates: &mut Vec<Crate>| {
            named(crates, "gaudi-model").normal.remove("gaudi-spec");
        };
        has_one(&messages(without), "gaudi-model -> gaudi-spec is missing");
    }

    #[test]
    fn only_the_opener_names_every_backend() {
        let all = |crates: &mut Vec<Crate>| {
            named(crates, "gaudi-cli")
                .normal
                .extend(BACKENDS.map(str::to_owned));
        };
        has_one(&messages(all), "only gaudi-hal");
    }

    #[test]
    fn table_and_workspace_list_the_same_crates() {
        let mut crates = good();
        crates.push(Crate {
            name: "gaudi-common".to_owned(),
            folder: "hal/common".to_owned(),
            ..Crate::default()
        });
        let findings = check(&table(), &crates, &[]);
        assert_eq!(
            findings[0].file, "hal/common/Cargo.toml",
            "its manifest is the place"
        );
        has_one(&[findings[0].message.clone()], "gaudi-common has no row");
        assert_eq!(findings.len(), 1);
        let without = |crates: &mut Vec<Crate>| crates.retain(|member| member.name != "gaudi-abi");
        has_one(&messages(without), "gaudi-abi is in the table");
    }

    #[test]
    fn finding_names_the_line_of_the_dependency() {
        let text = "[dependencies]\ngaudi-uapi-x = 1\ngaudi-uapi.workspace = true\n";
        let texts = [Text::new("hal/spec/Cargo.toml", text)];
        let line = line_of(&texts, "hal/spec/Cargo.toml", "gaudi-uapi");
        assert_eq!(line, 3, "a longer name is another crate");
    }
}
