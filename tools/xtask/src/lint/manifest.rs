//! Rules about a crate as a whole: its folder, its manifest, the first line of its roots.

use super::arrows::manifest_of;
use super::{Finding, Text, text_of};
use crate::workspace::Crate;

/// Crates that hold only data: they must be usable from a kernel, a firmware or a fuzzer.
const PURE_DATA: [&str; 2] = ["gaudi-uapi", "gaudi-spec"];
/// `std` may come back for the crate's own unit tests.
const NO_STD: [&str; 2] = ["#![no_std]", "#![cfg_attr(not(test), no_std)]"];
const FORBID: &str = "#![forbid(unsafe_code)]";

/// A folder's name is its crate's name less `gaudi-`, or its name after those of folders around it
/// (`verbs/sys` of `gaudi-verbs-sys`).
pub(super) fn folders(crates: &[Crate]) -> Vec<Finding> {
    let wrong = |member: &Crate| {
        let folder = member.folder.rsplit('/').next().unwrap_or_default();
        let wanted = match member.name.as_str() {
            // The folder has the name of its program; the library crate has the package's.
            "gaudi-cli" => "gaudi",
            name => name.strip_prefix("gaudi-").unwrap_or(name),
        };
        let name = &member.name;
        let message = format!("crate {name} lives in a folder named {folder}, wanted {wanted}");
        // The end of the path from some folder on.
        let path = format!("-{}", member.folder.replace('/', "-"));
        let is_right = path.ends_with(&format!("-{wanted}"));
        (!is_right).then(|| Finding::new(&manifest_of(member), 1, message))
    };
    crates.iter().filter_map(wrong).collect()
}

/// Every crate takes the lints of the workspace.
pub(super) fn inherit_lints(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let wrong = |member: &Crate| {
        let manifest = manifest_of(member);
        let inherits = text_of(texts, &manifest).is_some_and(takes_workspace_lints);
        (!inherits).then(|| Finding::new(&manifest, 1, "`[lints] workspace = true` is missing"))
    };
    crates.iter().filter_map(wrong).collect()
}

fn takes_workspace_lints(manifest: &str) -> bool {
    // cargo reports the errors of a manifest.
    let table: toml::Table = toml::from_str(manifest).unwrap_or_default();
    let lints = table.get("lints").and_then(|lints| lints.get("workspace"));
    lints.and_then(toml::Value::as_bool) == Some(true)
}

/// The crates of pure data are `no_std` and forbid unsafe code, so that nothing inside can allow
/// it.
pub(super) fn pure_data(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in crates
        .iter()
        .filter(|member| PURE_DATA.contains(&member.name.as_str()))
    {
        let root = &format!("{}/src/lib.rs", member.folder);
        let text = text_of(texts, root).unwrap_or_default(); // nothing is in a missing file
        for wanted in [&NO_STD[..], &[FORBID]] {
            if !text.lines().any(|line| wanted.contains(&line.trim())) {
                findings.push(Finding::new(root, 1, format!("`{}` is missing", wanted[0])));
            }
        }
    }
    findings
}

/// Every crate root, of tests and examples too, begins with what it is.
pub(super) fn crate_words(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let roots = crates.iter().flat_map(|member| &member.roots);
    let wrong = |root: &String| {
        let begins = text_of(texts, root).is_some_and(|text| text.starts_with("//! "));
        (!begins).then(|| Finding::new(root, 1, "a crate root begins with `//!` and what it is"))
    };
    roots.filter_map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Crate {
        Crate {
            name: "gaudi-spec".to_owned(),
            folder: "hal/spec".to_owned(),
            roots: vec!["hal/spec/src/lib.rs".to_owned()],
            ..Crate::default()
        }
    }

    #[test]
    fn a_folder_carries_its_crates_name() {
        assert_eq!(folders(&[spec()]), [], "hal/spec holds gaudi-spec");
        let moved = Crate {
            folder: "hal/silicon".to_owned(),
            ..spec()
        };
        assert_eq!(folders(&[moved]).len(), 1, "hal/silicon must not hold gaudi-spec");
        for (folder, findings) in [("hal/a/b", 0), ("x/b", 1), ("hal/xa/b", 1)] {
            let nested = Crate {
                name: "gaudi-a-b".to_owned(),
                folder: folder.to_owned(),
                ..spec()
            };
            assert_eq!(folders(&[nested]).len(), findings, "{folder} holds gaudi-a-b");
        }
    }

    #[test]
    fn the_workspaces_lints_must_be_taken() {
        for (manifest, wanted) in [
            ("[package]\n\n[lints]\nworkspace = true\n", 0),
            ("lints.workspace = true\n", 0),
            ("[package]\n", 1),
            ("[lints]\n#workspace = true\n", 1),
            ("[lints.rust]\nworkspace = true\n", 1),
            ("[dependencies.x]\nworkspace = true\n", 1),
        ] {
            let seen = inherit_lints(&[spec()], &[Text::new("hal/spec/Cargo.toml", manifest)]);
            assert_eq!(
                seen.len(),
                wanted,
                "findings for the manifest {manifest:?}: {seen:?}"
            );
        }
        assert_eq!(
            inherit_lints(&[spec()], &[]).len(),
            1,
            "a manifest that cannot be read is a finding"
        );
    }

    #[test]
    fn pure_data_forbids_std_and_unsafe() {
        let check = |words: &str| pure_data(&[spec()], &[Text::new("hal/spec/src/lib.rs", words)]).len();
        for (words, wanted, why) in [
            ("#![no_std]\n#![forbid(unsafe_code)]\n", 0, "both are there"),
            (
                "#![cfg_attr(not(test), no_std)]\n#![forbid(unsafe_code)]\n",
                0,
                "std in tests",
            ),
            ("#![no_std]\n", 1, "forbid is missing"),
            ("// #![no_std]\n", 2, "a comment is not an attribute"),
        ] {
            assert_eq!(check(&format!("//! S.\n{words}")), wanted, "{why}");
        }
        let other = Crate {
            name: "gaudi-sys".to_owned(),
            ..spec()
        };
        assert_eq!(pure_data(&[other], &[]), [], "other crates are free to use std");
    }

    #[test]
    fn crate_root_begins_with_its_description() {
        let check = |words: &str| crate_words(&[spec()], &[Text::new("hal/spec/src/lib.rs", words)]).len();
        for (words, wanted, why) in [
            ("//! Silicon as data.\n", 0, "it begins with what it is"),
            (
                "#![no_std]\n//! Silicon as data.\n",
                1,
                "the description comes first",
            ),
            ("//!\n", 1, "an empty line describes nothing"),
        ] {
            assert_eq!(check(words), wanted, "{why}");
        }
    }
}
