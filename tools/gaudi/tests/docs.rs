//! What the documents show is what the program does.

mod program;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use program::settled;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_readme_shows_what_the_demo_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_gaudi"))
        .arg("demo")
        .env_remove("GAUDI_DEVICE")
        .env_remove("GAUDI_MAPPING_TABLE")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let shown = read("README.md");
    let (_, block) = shown
        .split_once("$ cargo run --release -- demo\n")
        .expect("the command stands in the README");
    let (block, _) = block.split_once("```").expect("its output ends");
    assert_eq!(
        settled(block),
        settled(&printed),
        "the README's output is this program's"
    );
}

#[test]
fn documents_show_the_example_verbatim() {
    let example = read("drivers/gaudi/examples/first_copy.rs");
    let (_, body) = example.split_once('\n').expect("more than its first line");
    for document in ["README.md", "docs/src/tutorial/first-copy.md"] {
        assert!(
            read(document).contains(body),
            "{document} shows drivers/gaudi/examples/first_copy.rs word for word"
        );
    }
}

fn markdown_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown_below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

#[test]
fn pages_are_listed_and_links_resolve() {
    let link = regex::Regex::new(r"\]\(([^)#:]+)(#[^):]*)?\)").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    markdown_below(&root.join("docs/src"), &mut pages);
    assert!(pages.len() > 20, "the pages are found: {pages:?}");
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for found in link.captures_iter(&text) {
            let target = page.parent().unwrap().join(&found[1]);
            assert!(
                target.exists(),
                "{} links to {}, which is not there",
                page.display(),
                &found[1]
            );
            links += 1;
        }
    }
    assert!(links > 50, "{links} links were followed");
    let summary = read("docs/src/SUMMARY.md");
    for folder in ["tutorial", "how-to", "reference", "explanation", "decisions"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/src")
            .join(folder);
        for entry in std::fs::read_dir(path).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                // The schemas are no pages.
                name == "schema" || summary.contains(&format!("({folder}/{name})")),
                "docs/src/{folder}/{name} is not in the summary"
            );
        }
    }
}

/// Every test that the page on teardown names as `file::test` exists.
#[test]
fn lab_tests_named_by_pages_exist() {
    let named = regex::Regex::new(r"`(card[a-z_]*)::([a-z_]+)`").unwrap();
    let page = read("docs/src/explanation/teardown.md");
    let mut count = 0;
    for found in named.captures_iter(&page) {
        let file = read(&format!("tests/lab/tests/{}.rs", &found[1]));
        let is_test = file.contains(&format!("fn {}(", &found[2]));
        assert!(is_test, "tests/lab/tests/{}.rs has no {}", &found[1], &found[2]);
        count += 1;
    }
    assert!(count >= 9, "{count} names were looked for");
}

/// The options of a text: `--name`, wherever it stands.
fn options(text: &str) -> BTreeSet<String> {
    let option = regex::Regex::new(r"--[a-z][a-z0-9-]*[a-z0-9]").unwrap();
    option
        .find_iter(text)
        .map(|found| found.as_str().to_owned())
        .collect()
}

/// The man pages are made from the parser's own definitions.
#[test]
fn reference_matches_parser_options() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_gaudi"))
        .arg("man")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let heading = regex::Regex::new(r"(?m)^(?:\\fB|.*, \\fB)(\\-\\-[a-z0-9\\-]+)\\fR").unwrap();
    let (mut parsed, mut pages) = (BTreeSet::new(), 0);
    for page in std::fs::read_dir(folder.path()).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        pages += 1;
        parsed.extend(
            heading
                .captures_iter(&text)
                .map(|found| found[1].replace('\\', "")),
        );
    }
    assert!(pages > 15 && parsed.len() > 40, "{pages} pages with {parsed:?}");
    let reference = read("docs/src/reference/cli.md");
    let mut written = options(&reference);
    for alias in ["--qp", "--tx-depth", "--cq-mod"] {
        assert!(written.remove(alias), "{alias} is written");
        let output = Command::new(env!("CARGO_BIN_EXE_gaudi"))
            .args(["perf", "write", alias, "4", "--help"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{alias} is parsed");
    }
    for everywhere in ["--help", "--version"] {
        parsed.remove(everywhere);
        written.remove(everywhere);
    }
    let missing: Vec<_> = parsed.difference(&written).collect();
    assert!(missing.is_empty(), "docs/src/reference/cli.md lacks {missing:?}");
    let unknown: Vec<_> = written.difference(&parsed).collect();
    assert!(
        unknown.is_empty(),
        "docs/src/reference/cli.md has {unknown:?}, which no command takes"
    );
}

/// The table of `perf`'s options has each of them, with its letter and its default.
#[test]
fn perf_table_has_every_letter_and_default() {
    let output = Command::new(env!("CARGO_BIN_EXE_gaudi"))
        .args(["perf", "write", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (own, _) = help.split_once("Common options:").expect("the others follow");
    let reference = read("docs/src/reference/cli.md");
    let (_, table) = reference
        .split_once("## Options of `perf write`")
        .expect("its section");
    let option = regex::Regex::new(r"(?m)^ +(?:-([A-Za-z]), )?--([a-z-]+)").unwrap();
    let mut count = 0;
    for found in option.captures_iter(own) {
        let name = match found.get(1) {
            Some(letter) => format!("`-{}, --{}", letter.as_str(), &found[2]),
            None => format!("`--{}", &found[2]),
        };
        if &found[2] == "help" {
            continue;
        }
        let is_row = |line: &&str| line.starts_with('|') && line.contains(&name);
        assert!(table.lines().any(|line| is_row(&line)), "no row has {name}");
        count += 1;
    }
    assert!(count >= 20, "{count} options were compared");
}
