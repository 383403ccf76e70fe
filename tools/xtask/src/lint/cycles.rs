//! The files inside a crate use one another without large cycles.
//!
//! File A uses file B if a `use` declaration of A, or a path of A that begins with `crate` or
//! `super`, names an item that B defines. `mod` lines, the root's `pub use` and modules for tests
//! do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, Modules, Origin};
use super::{Finding, Text};
use crate::workspace::Crate;

/// The most files that one cycle may hold.
const LONGEST: usize = 3;

/// Which files each file uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// One finding for each cycle that is too long, in any target of a crate.
pub(super) fn check(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let mut cycles = BTreeSet::new();
    let mut findings = Vec::new();
    let roots = crates
        .iter()
        .flat_map(|member| member.roots.iter().map(move |root| (member, root)));
    for (member, root) in roots {
        let folder = format!("{}/", member.folder);
        let uses = uses(root, &source::modules(root, texts));
        let too_long = too_long(&uses).into_iter();
        for cycle in too_long.filter(|cycle| cycles.insert(cycle.clone())) {
            let short = |file: &str| file.strip_prefix(&folder).unwrap_or(file).to_owned();
            let arrows = cycle.iter().map(|file| {
                let inside: Vec<_> = uses[file].intersection(&cycle).map(|file| short(file)).collect();
                format!("\n    {} uses {}", short(file), inside.join(", "))
            });
            let arrows: String = arrows.collect();
            let first = cycle.first().map_or(root.as_str(), String::as_str);
            let message = format!("{} files form a cycle (at most {LONGEST}):{arrows}", cycle.len());
            findings.push(Finding::new(first, 1, message));
        }
    }
    findings
}

fn uses(root: &str, modules: &Modules) -> Uses {
    let mut uses = Uses::new();
    for (path, module) in modules {
        let from = uses.entry(module.file.clone()).or_default();
        for named in &module.paths {
            let is_facade = module.file == root && matches!(named.origin, Origin::Use { public: true, .. });
            let file = source::definition(modules, path, named);
            if let Some(file) = file.filter(|file| !is_facade && *file != module.file) {
                from.insert(file.to_owned());
            }
        }
    }
    uses
}

fn too_long(uses: &Uses) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|file| (file, reached(uses, file))).collect();
    let cycle = |file| {
        let back = |other: &&&String| reached[**other].contains(file);
        reached[file]
            .iter()
            .filter(back)
            .map(|other| (*other).clone())
            .collect()
    };
    let cycles = uses.keys().map(cycle);
    cycles
        .filter(|cycle: &BTreeSet<_>| cycle.len() > LONGEST)
        .collect()
}

/// All that `file` uses, itself or through others.
pub(super) fn reached<'a>(uses: &'a Uses, file: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![file];
    while let Some(file) = next.pop() {
        let used = uses.get(file).into_iter().flatten();
        next.extend(used.filter(|other| reached.insert(*other)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let text = |(path, text): &(&str, &str)| Text::new(&format!("hal/a/src/{path}"), *text);
        let texts: Vec<_> = files.iter().map(text).collect();
        let root = "hal/a/src/lib.rs";
        let uses = uses(root, &source::modules(root, &texts));
        let short = |path: &str| path.replace("hal/a/src/", "").replace(".rs", "");
        let arrows = uses
            .iter()
            .flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        arrows
            .map(|(from, to)| format!("{} {}", short(from), short(to)))
            .collect()
    }

    #[test]
    fn paths_lead_to_the_defining_file() {
        let facade = (
            "lib.rs",
            "mod a; mod b; mod c; pub use a::{A, deep::Deep as D}; use b::*;",
        );
        let a = (
            "a.rs",
            "pub mod deep; pub struct A; impl A { fn f() { super::b::g() } }",
        );
        let deep = ("a/deep.rs", "pub struct Deep;");
        let b = ("b.rs", "use std::fmt; pub fn g() {} pub struct B;");
        let c = (
            "c.rs",
            "fn f(_: crate::D) { use crate::{B, A}; let x = self::h(); }",
        );
        let expected = ["a b", "c a", "c a/deep", "c b", "lib b"];
        assert_eq!(arrows(&[facade, a, deep, b, c]), expected);
    }

    #[test]
    fn test_modules_and_facade_do_not_count() {
        let facade = ("lib.rs", "mod a; mod b; pub use b::B; pub(crate) use a::A;");
        let a = (
            "a.rs",
            "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        );
        let b = (
            "b/mod.rs",
            "pub struct B; #[cfg(test)] use crate::a::A; // crate::a::A",
        );
        assert_eq!(arrows(&[facade, a, b]), [""; 0]);
    }

    #[test]
    fn macros_and_named_files_are_followed() {
        let root = ("lib.rs", "#[path = \"x/y.rs\"] mod a; mod b { mod c; }");
        let a = ("x/y.rs", "macro_rules! call { () => { $crate::b::c::f() } }");
        let c = (
            "b/c.rs",
            "use super::super::a; pub fn f() {} fn g() { crate::call!() }",
        );
        assert_eq!(arrows(&[root, a, c]), ["b/c x/y", "x/y b/c"]);
    }

    #[test]
    fn only_cycles_above_three_files_are_found() {
        let uses = |names: &[&str]| {
            let next = names.iter().cycle().skip(1);
            let arrow = |(from, to): (&&str, &&str)| ((*from).to_owned(), BTreeSet::from([(*to).to_owned()]));
            names.iter().zip(next).map(arrow).collect::<Uses>()
        };
        assert_eq!(too_long(&uses(&["a", "b", "c", "d"])).len(), 1);
        assert_eq!(too_long(&uses(&["a", "b", "c"])).len(), 0);
    }
}
