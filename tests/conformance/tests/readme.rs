//! The README states the number of cases: `SNAPSHOTS=overwrite` updates it.

#[test]
fn readme_states_the_number_of_cases() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(path).expect("the README is read");
    let claim = " conformance cases, each";
    let (before, after) = readme.split_once(claim).expect("the row of the mock");
    let text = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let count = gaudi_conformance::cases::all().count();
    let current = format!("{text}{count}{claim}{after}");
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        std::fs::write(path, &current).expect("the README is written");
        return;
    }
    let stated = &before[text.len()..];
    assert!(
        readme == current,
        "the README states {stated} conformance cases, of {count}; SNAPSHOTS=overwrite updates it"
    );
}
