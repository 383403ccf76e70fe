//! The arrows between the crates, as data, and the proof that the workspace has these and no
//! others.

use std::collections::BTreeSet;

use super::{Finding, Text};
use crate::workspace::Crate;

/// What one crate may name of the workspace.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) name: &'static str,
    /// Arrows that it must have: the diagram is drawn with them.
    needs: &'static [&'static str],
    /// Arrows that it may have besides.
    may: &'static [&'static str],
    /// Arrows that its tests, examples and benches may have besides.
    dev: &'static [&'static str],
    /// Stands on top of everything: may name any crate. Nothing outside `on_top` may name it.
    on_top: bool,
}

/// A crate in a lower layer: everything that it names is a row here.
const fn room(
    name: &'static str,
    needs: &'static [&'static str],
    may: &'static [&'static str],
    dev: &'static [&'static str],
) -> Room {
    Room {
        name,
        needs,
        may,
        dev,
        on_top: false,
    }
}

const fn on_top(name: &'static str) -> Room {
    Room {
        name,
        needs: &[],
        may: &[],
        dev: &[],
        on_top: true,
    }
}

/// One row a crate. A new crate or arrow is a row changed here, in the same commit.
pub(crate) const ROOMS: &[Room] = &[
    //   crate            must name                                  may name   tests may also name
    room("gaudi-uapi", &[], &[], &[]),
    room("gaudi-spec", &[], &[], &[]),
    room("gaudi-sys", &["gaudi-uapi"], &[], &[]),
    room("gaudi-ranges", &["gaudi-sys"], &[], &[]),
    room("gaudi-verbs-sys", &[], &[], &[]),
    room("gaudi-seam", &["gaudi-uapi", "gaudi-spec", "gaudi-sys"], &[], &[]),
    room(
        "gaudi-kernel",
        &["gaudi-uapi", "gaudi-spec", "gaudi-sys", "gaudi-seam"],
        &[],
        &[],
    ),
    room(
        "gaudi-model",
        &["gaudi-spec", "gaudi-sys", "gaudi-seam"],
        &[],
        &[],
    ),
    room(
        "gaudi-mock",
        &[
            "gaudi-uapi",
            "gaudi-spec",
            "gaudi-sys",
            "gaudi-seam",
            "gaudi-model",
        ],
        &[],
        &[],
    ),
    room(
        "gaudi-layers",
        &["gaudi-uapi", "gaudi-spec", "gaudi-sys", "gaudi-seam"],
        &[],
        &[],
    ),
    room(
        "gaudi-hal",
        &["gaudi-seam", "gaudi-kernel", "gaudi-mock", "gaudi-layers"],
        &["gaudi-uapi", "gaudi-spec", "gaudi-sys"],
        &[],
    ),
    room("gaudi-vfio", &["gaudi-sys", "gaudi-seam"], &[], &[]),
    room(
        "gaudi-dmabuf",
        &["gaudi-uapi", "gaudi-sys", "gaudi-seam"],
        &[],
        &["gaudi-spec", "gaudi-hal"],
    ),
    room(
        "gaudi-verbs",
        &["gaudi-ranges", "gaudi-dmabuf", "gaudi-sys", "gaudi-seam"],
        &[],
        &["gaudi-uapi", "gaudi-hal"],
    ),
    room(
        "gaudi-softnic",
        &["gaudi-verbs", "gaudi-dmabuf", "gaudi-sys", "gaudi-seam"],
        &[],
        &["gaudi-uapi", "gaudi-hal", "gaudi-device"],
    ),
    room(
        "gaudi-ibverbs",
        &[
            "gaudi-verbs",
            "gaudi-verbs-sys",
            "gaudi-dmabuf",
            "gaudi-sys",
            "gaudi-seam",
        ],
        &[],
        &[],
    ),
    room(
        "gaudi-device",
        &[
            "gaudi-ranges",
            "gaudi-spec",
            "gaudi-uapi",
            "gaudi-sys",
            "gaudi-seam",
            "gaudi-hal",
            "gaudi-dmabuf",
        ],
        &[],
        &["gaudi-verbs", "gaudi-softnic"],
    ),
    room(
        "gaudi-remote",
        &["gaudi-device", "gaudi-verbs", "gaudi-sys", "gaudi-seam"],
        &[],
        &["gaudi-softnic", "gaudi-hal"],
    ),
    room(
        "gaudi",
        &[
            "gaudi-seam",
            "gaudi-device",
            "gaudi-hal",
            "gaudi-dmabuf",
            "gaudi-verbs",
            "gaudi-softnic",
            "gaudi-ibverbs",
            "gaudi-remote",
        ],
        &[],
        &[],
    ),
    on_top("gaudi-cli"),
    on_top("gaudi-abi"),
    on_top("gaudi-bench"),
    on_top("gaudi-conformance"),
    on_top("gaudi-device-conformance"),
    on_top("gaudi-diff"),
    on_top("gaudi-lab"),
    room("gaudi-harness", &[], &[], &[]),
    room(EVERY_TEST_S, &[], &[], &[]),
    on_top("gaudi-sim"),
    on_top("vgaudi"),
    on_top("gaudi-verbs-conformance"),
    // It must build and speak when a crate of the workspace does not, so it names none.
    room("xtask", &[], &[], &[]),
];

/// Wrappers and backends that stand side by side; listed before they exist, so that the rule is
/// there first.
const SIBLINGS: [&str; 4] = ["gaudi-kernel", "gaudi-mock", "gaudi-layers", "gaudi-vfio"];
/// The crates that reach a device, real or modelled.
const BACKENDS: [&str; 3] = ["gaudi-kernel", "gaudi-mock", "gaudi-vfio"];
const OPENER: &str = "gaudi-hal";
/// Any crate's tests may name it: cases and seeds of random tests.
const EVERY_TEST_S: &str = "gaudi-random";

/// Findings of the real table against the real workspace.
pub(crate) fn check(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    check_against(ROOMS, crates, texts)
}

fn check_against(rooms: &[Room], crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in crates {
        let manifest = manifest_of(member);
        let mut say = |dependency: Option<&str>, message: String| {
            findings.push(Finding::new(
                &manifest,
                line_of(texts, &manifest, dependency),
                message,
            ));
        };
        let Some(room) = rooms.iter().find(|room| room.name == member.name) else {
            say(
                None,
                format!(
                    "{} has no row in the table of arrows (tools/xtask/src/lint/arrows.rs)",
                    member.name
                ),
            );
            continue;
        };
        for missing in room.needs.iter().filter(|need| !member.normal.contains(**need)) {
            say(
                None,
                format!(
                    "{} -> {missing} is missing: the diagram is drawn with this arrow",
                    member.name
                ),
            );
        }
        for (kind, arrows) in [("normal", &member.normal), ("dev", &member.dev)] {
            for arrow in arrows {
                if let Some(rule) = breaks(rooms, room, kind, arrow) {
                    say(
                        Some(arrow),
                        format!("{} -> {arrow} ({kind}): {rule}", member.name),
                    );
                }
            }
        }
        let named: BTreeSet<_> = member.normal.union(&member.dev).map(String::as_str).collect();
        let mut present = BACKENDS
            .iter()
            .filter(|backend| crates.iter().any(|member| member.name == **backend))
            .peekable();
        if member.name != OPENER && present.peek().is_some() && present.all(|backend| named.contains(backend))
        {
            say(
                None,
                format!("{} names every backend: only {OPENER} does", member.name),
            );
        }
    }
    for room in rooms
        .iter()
        .filter(|room| !crates.iter().any(|member| member.name == room.name))
    {
        let message = format!(
            "{} is in the table of arrows but no member of the workspace",
            room.name
        );
        findings.push(Finding::new("Cargo.toml", 1, message));
    }
    findings
}

/// The rule that an arrow breaks, if it breaks one.
fn breaks(rooms: &[Room], room: &Room, kind: &str, arrow: &str) -> Option<String> {
    if SIBLINGS.contains(&room.name) && SIBLINGS.contains(&arrow) {
        return Some("siblings kernel, mock, layers and vfio do not name one another".to_owned());
    }
    if room.on_top || (kind == "dev" && arrow == EVERY_TEST_S) {
        return None;
    }
    if rooms.iter().any(|other| other.name == arrow && other.on_top) {
        return Some("tools and tests stand on top: nothing below names them".to_owned());
    }
    let lists: &[&[&str]] = if kind == "dev" {
        &[room.needs, room.may, room.dev]
    } else {
        &[room.needs, room.may]
    };
    let mut allowed = lists.iter().flat_map(|list| list.iter().copied()).peekable();
    if allowed.peek().is_none() {
        return Some(format!("{} names no crate of the workspace", room.name));
    }
    let allowed: Vec<_> = allowed.collect();
    let rule = || format!("not an arrow of the diagram; it may name {}", allowed.join(", "));
    (!allowed.contains(&arrow)).then(rule)
}

pub(crate) fn manifest_of(member: &Crate) -> String {
    format!("{}/Cargo.toml", member.folder)
}

/// The manifest's line that starts with the dependency's name; 1 when there is none to point at.
fn line_of(texts: &[Text], manifest: &str, dependency: Option<&str>) -> usize {
    let text = texts.iter().find(|text| text.path == manifest);
    let (Some(text), Some(dependency)) = (text, dependency) else {
        return 1;
    };
    let names = |line: &str| {
        let rest = line.trim_start().strip_prefix(dependency);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    text.text.lines().position(names).map_or(1, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workspace that the table describes, with nothing optional.
    fn good() -> Vec<Crate> {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let member = |room: &Room| Crate {
            name: room.name.to_owned(),
            folder: room.name.to_owned(),
            normal: strings(room.needs),
            ..Crate::default()
        };
        ROOMS.iter().map(member).collect()
    }

    /// Findings after one arrow is added.
    fn with(from: &str, to: &str, dev: bool) -> Vec<Finding> {
        let mut crates = good();
        let member = crates
            .iter_mut()
            .find(|member| member.name == from)
            .expect("the table has this crate");
        let arrows = if dev { &mut member.dev } else { &mut member.normal };
        arrows.insert(to.to_owned());
        check(&crates, &[])
    }

    fn the_one(findings: &[Finding]) -> &str {
        let [finding] = findings else {
            panic!("exactly one finding was expected, saw {findings:?}")
        };
        &finding.message
    }

    #[test]
    fn the_table_agrees_with_itself() {
        assert_eq!(
            check(&good(), &[]),
            [],
            "the workspace of the table breaks no rule"
        );
        for room in ROOMS {
            for name in [room.needs, room.may, room.dev].concat() {
                assert!(
                    ROOMS.iter().any(|other| other.name == name),
                    "{} names {name}, which has no row",
                    room.name
                );
            }
        }
    }

    #[test]
    fn table_has_no_cycle() {
        // Peel off crates whose arrows all lead to peeled ones; a cycle is what stays.
        let mut done: BTreeSet<&str> = BTreeSet::new();
        while let Some(room) = ROOMS.iter().find(|room| {
            !done.contains(room.name)
                && [room.needs, room.may]
                    .concat()
                    .iter()
                    .all(|name| done.contains(name))
        }) {
            done.insert(room.name);
        }
        assert_eq!(
            done.len(),
            ROOMS.len(),
            "every crate must be reachable from the bottom; peeled {done:?}"
        );
    }

    #[test]
    fn extra_dependency_is_a_finding() {
        let findings = with("gaudi-sys", "gaudi-seam", false);
        let message = the_one(&findings);
        assert!(
            message.contains("gaudi-sys -> gaudi-seam (normal)"),
            "the arrow is named: {message}"
        );
        assert!(
            message.contains("it may name gaudi-uapi"),
            "the rule is named: {message}"
        );
    }

    #[test]
    fn a_missing_arrow_is_named() {
        let mut crates = good();
        let model = crates
            .iter_mut()
            .find(|member| member.name == "gaudi-model")
            .expect("a row");
        model.normal.remove("gaudi-spec");
        let findings = check(&crates, &[]);
        assert!(
            the_one(&findings).contains("gaudi-model -> gaudi-spec is missing"),
            "saw {findings:?}"
        );
    }

    #[test]
    fn siblings_are_independent_even_in_tests() {
        for dev in [false, true] {
            let findings = with("gaudi-mock", "gaudi-kernel", dev);
            assert!(
                the_one(&findings).contains("siblings"),
                "mock -> kernel, dev={dev}: saw {findings:?}"
            );
        }
    }

    #[test]
    fn layers_have_a_bottom_and_a_top() {
        let findings = with("gaudi-spec", "gaudi-uapi", true);
        assert!(
            the_one(&findings).contains("gaudi-spec names no crate"),
            "saw {findings:?}"
        );
        let findings = with("gaudi-device", "gaudi-conformance", true);
        assert!(
            the_one(&findings).contains("tools and tests stand on top"),
            "saw {findings:?}"
        );
    }

    #[test]
    fn dev_dependency_permits_no_normal_one() {
        assert_eq!(
            with("gaudi-dmabuf", "gaudi-hal", true),
            [],
            "dmabuf's tests may open a device"
        );
        let findings = with("gaudi-dmabuf", "gaudi-hal", false);
        assert!(
            the_one(&findings).contains("gaudi-dmabuf -> gaudi-hal (normal)"),
            "saw {findings:?}"
        );
    }

    #[test]
    fn only_the_opener_names_every_backend() {
        assert_eq!(
            with("gaudi-cli", "gaudi-mock", false),
            [],
            "a tool may name one backend"
        );
        let mut crates = good();
        let tool = crates
            .iter_mut()
            .find(|member| member.name == "gaudi-cli")
            .expect("a row");
        tool.normal.extend(BACKENDS.map(str::to_owned));
        let findings = check(&crates, &[]);
        assert!(the_one(&findings).contains("only gaudi-hal"), "saw {findings:?}");
    }

    #[test]
    fn table_and_workspace_list_the_same_crates() {
        let mut crates = good();
        crates.push(Crate {
            name: "gaudi-common".to_owned(),
            folder: "hal/common".to_owned(),
            ..Crate::default()
        });
        let findings = check(&crates, &[]);
        assert!(
            the_one(&findings).contains("gaudi-common has no row"),
            "saw {findings:?}"
        );
        assert_eq!(
            findings[0].file, "hal/common/Cargo.toml",
            "its manifest is the place"
        );
        let crates: Vec<_> = good()
            .into_iter()
            .filter(|member| member.name != "gaudi-abi")
            .collect();
        let findings = check(&crates, &[]);
        assert!(
            the_one(&findings).contains("gaudi-abi is in the table"),
            "saw {findings:?}"
        );
    }

    #[test]
    fn finding_names_the_line_of_the_dependency() {
        let text = "[dependencies]\ngaudi-uapi-x = 1\ngaudi-uapi.workspace = true\n".to_owned();
        let texts = [Text {
            path: "hal/spec/Cargo.toml".to_owned(),
            text,
        }];
        assert_eq!(
            line_of(&texts, "hal/spec/Cargo.toml", Some("gaudi-uapi")),
            3,
            "a longer name is another crate"
        );
    }
}
