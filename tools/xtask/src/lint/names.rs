//! A chip's name and the eras of the kernel's interface stay where they belong, and elsewhere are
//! counted.

use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};

use super::arrows::manifest_of;
use super::{Finding, Text};
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
    crates
        .iter()
        .filter(|member| !member.folder.starts_with("tests/") && member.name != "xtask")
}

fn differs(
    member: &Crate,
    key: &str,
    allowed: usize,
    count: impl Fn(&Text) -> usize,
    texts: &[Text],
) -> Option<Finding> {
    let sources = format!("{}/src/", member.folder);
    let of_crate = texts
        .iter()
        .filter(|text| text.is_rust() && text.path.starts_with(&sources));
    let counts: Vec<_> = of_crate
        .map(|text| (text.path.as_str(), count(text)))
        .filter(|(_, count)| *count > 0)
        .collect();
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

/// How many words and strings of the code, comments left out, `is_counted`.
fn words(text: &Text, is_counted: &dyn Fn(&str) -> bool) -> usize {
    // rustc reports what is not Rust.
    let tokens = TokenStream::from_str(&text.text).unwrap_or_default();
    count(tokens, is_counted)
}

fn count(tokens: TokenStream, is_counted: &dyn Fn(&str) -> bool) -> usize {
    let mut sum = 0;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        sum += match token {
            // Documentation, and `cfg(test)` with the module that it stands at.
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let attribute = tokens.next().map(|token| token.to_string()).unwrap_or_default();
                if attribute.split_whitespace().collect::<String>() == "[cfg(test)]" {
                    let is_body = |token: &TokenTree| match token {
                        TokenTree::Group(_) => true,
                        token => token.to_string() == ";",
                    };
                    tokens.by_ref().find(is_body);
                } else if attribute == "!" {
                    tokens.next();
                }
                0
            }
            TokenTree::Group(group) => count(group.stream(), is_counted),
            TokenTree::Ident(word) => usize::from(is_counted(&word.to_string())),
            TokenTree::Literal(word) => usize::from(is_counted(&word.to_string())),
            TokenTree::Punct(_) => 0,
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
        let text = Text {
            path: path.to_owned(),
            text: CODE.to_owned(),
        };
        chip(&[member], &[text])
    }

    #[test]
    fn chip_names_outside_chip_modules_are_counted() {
        assert_eq!(
            sample(3, "hal/mock/src/open.rs"),
            [],
            "a use, a type and a string"
        );
        assert_eq!(sample(0, "hal/mock/src/gaudi2/queue.rs"), [], "a chip's module");
        let findings = sample(2, "hal/mock/src/open.rs");
        assert!(findings[0].message.contains("3, at most 2"), "saw {findings:?}");
    }

    #[test]
    fn count_that_fell_must_be_written_down() {
        let findings = sample(4, "hal/mock/src/open.rs");
        assert!(
            findings[0].message.contains("write chip-names = 3"),
            "saw {findings:?}"
        );
    }
}
