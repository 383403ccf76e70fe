//! What the documents show is what the program does.

mod program;

use std::path::Path;
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

#[test]
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() {
    let link = regex::Regex::new(r"\]\(([^)#:]+)\)").unwrap();
    let pages = [
        "README.md",
        "docs/src/SUMMARY.md",
        "docs/src/introduction.md",
        "docs/src/tutorial/first-copy.md",
    ];
    for page in pages
        .into_iter()
        .chain(["docs/src/reference/cli.md", "docs/src/reference/device-spec.md"])
    {
        let folder = Path::new(page).parent().unwrap();
        for found in link.captures_iter(&read(page)) {
            let target = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../..")
                .join(folder)
                .join(&found[1]);
            assert!(
                target.exists(),
                "{page} links to {}, which is not there",
                &found[1]
            );
        }
    }
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
