//! The page of what the cases show is the one that a run gives: `SNAPSHOTS=overwrite` writes it anew.

use gaudi_conformance::coverage::Coverage;

#[test]
fn every_name_and_every_errno_has_a_case_or_a_reason() {
    let coverage = Coverage::observe().expect("the mock opens");
    let problems = coverage.problems();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/reference/coverage.md"
    );
    let page = coverage.page();
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        std::fs::write(path, &page).expect("the page is written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let differs = committed.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(
        committed == page,
        "the page has rotted: {differs:?}; SNAPSHOTS=overwrite writes it anew"
    );
}
