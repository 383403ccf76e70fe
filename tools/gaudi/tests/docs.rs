//! What the documents show is what the program does.

mod program;

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
fn the_documents_show_the_example_as_it_is() {
    let example = read("drivers/device/examples/first_copy.rs");
    let (_, body) = example.split_once('\n').expect("more than its first line");
    for document in ["README.md", "docs/src/tutorial/first-copy.md"] {
        assert!(
            read(document).contains(body),
            "{document} shows drivers/device/examples/first_copy.rs word for word"
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
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() {
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
