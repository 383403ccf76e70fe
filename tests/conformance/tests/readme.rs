//! The README states the number of cases.

#[test]
fn readme_states_the_number_of_cases() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let count = gaudi_conformance::cases::all().count();
    let claim = format!("{count} conformance cases");
    assert!(readme.contains(&claim), "the README does not contain {claim:?}");
}
