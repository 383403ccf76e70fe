//! The README's number of cases is the suite's.

#[test]
fn the_readme_counts_the_cases() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let count = gaudi_conformance::cases::all().count();
    let claim = format!("{count} conformance cases");
    assert!(
        readme.contains(&claim),
        "the README says {claim:?} in its status table"
    );
}
