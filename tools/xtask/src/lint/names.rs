//! A chip's name and the eras of the kernel's interface stay in their modules; the exceptions are
//! counted.

use proc_macro2::TokenTree;

use super::arrows::manifest_of;
use super::{Finding, Text, source};
use crate::workspace::Crate;

/// In file and folder names: modules of one chip. In code: that chip.
const CHIP: &str = "gaudi2";
const ERA: &str = "Era";
/// The crates below the kernel seam, whose subject the eras are.
const BELOW_SEAM: [&str; 2] = ["gaudi-uapi", "gaudi-kernel"];

/// The chip is named in its own modules alone. A manifest's `chip-names` counts the exceptions of
/// its crate; the number may only fall.
pub(super) fn chip(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let count = |text: &Text| match text.path.contains(CHIP) {
        true => 0,
        false => words(text, &|word| word.to_ascii_lowercase().contains(CHIP)),
    };
    let wrong = |member: &Crate| differs(member, "chip-names", member.lint.chip_names, count, texts);
    production(crates).filter_map(wrong).collect()
}

/// The eras are named below the kernel seam alone; a manifest's `eras` counts the exceptions.
pub(super) fn era(crates: &[Crate], texts: &[Text]) -> Vec<Finding> {
    let count = |text: &Text| words(text, &|word| word == ERA);
    let wrong = |member: &Crate| differs(member, "eras", member.lint.eras, count, texts);
    let above = production(crates).filter(|member| !BELOW_SEAM.contains(&member.name.as_str()));
    above.filter_map(wrong).collect()
}

fn production(crates: &[Crate]) -> impl Iterator<Item = &Crate> {
    let is_it = |member: &&Crate| !member.folder.starts_with("tests/") && member.name != "xtask";
    crates.iter().filter(is_it)
}

fn differs(
    member: &Crate,
    key: &str,
    allowed: usize,
    count: impl Fn(&Text) -> usize,
    texts: &[Text],
) -> Option<Finding> {
    let sources = format!("{}/src/", member.folder);
    let is_source = |text: &&Text| text.is_rust() && text.path.starts_with(&sources);
    let counts = texts
        .iter()
        .filter(is_source)
        .map(|text| (&text.path, count(text)));
    let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    let files: Vec<_> = counts
        .iter()
        .map(|(path, count)| format!("{path} {count}"))
        .collect();
    let message = match total {
        _ if total > allowed => format!("{key}: {total}, at most {allowed} ({})", files.join(", ")),
        _ if total < allowed => format!("{key}: {total} is left of {allowed}; write {key} = {total}"),
        _ => return None,
    };
    Some(Finding::new(&manifest_of(member), 1, message))
}

/// How many words and strings of the code, attributes and documentation left out, `is_counted`.
fn words(text: &Text, is_counted: &dyn Fn(&str) -> bool) -> usize {
    count(source::tokens(text), is_counted)
}

fn count(tokens: Vec<TokenTree>, is_counted: &dyn Fn(&str) -> bool) -> usize {
    let mut sum = 0;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        sum += match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                tokens.next_if(|token| token.to_string() == "!");
                tokens.next();
                0
            }
            TokenTree::Group(group) => count(source::code(group.stream()), is_counted),
            token => usize::from(is_counted(&token.to_string())),
        };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! About gaudi2.\n#![doc = \"gaudi2\"]\nuse spec::gaudi2;\n/// gaudi2\nfn f() { Gaudi2::new(\"gaudi2\") }\n\
         #[cfg(test)]\nmod tests { use super::gaudi2; }";

    fn sample(allowed: usize, path: &str) -> Vec<Finding> {
        let mut member = Crate {
            name: "gaudi-mock".to_owned(),
            folder: "hal/mock".to_owned(),
            ..Crate::default()
        };
        member.lint.chip_names = allowed;
        chip(&[member], &[Text::new(path, CODE)])
    }

    #[test]
    fn chip_names_outside_chip_modules_are_counted() {
        let place = "hal/mock/src/open.rs";
        assert_eq!(sample(3, place), [], "a use, a type and a string");
        assert_eq!(sample(0, "hal/mock/src/gaudi2/queue.rs"), [], "a chip's module");
        for (allowed, part) in [(2, "3, at most 2"), (4, "write chip-names = 3")] {
            let findings = sample(allowed, place);
            assert!(findings[0].message.contains(part), "saw {findings:?}");
        }
    }
}
