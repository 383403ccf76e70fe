//! The committed coverage page is the generated one: `SNAPSHOTS=overwrite` updates it.

use gaudi_conformance::coverage::Coverage;

#[test]
fn coverage_is_complete_and_page_is_current() {
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
        "the coverage page is out of date: {differs:?}; SNAPSHOTS=overwrite updates it"
    );
}
