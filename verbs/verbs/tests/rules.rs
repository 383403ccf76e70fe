//! Rules of the API that the compiler keeps: each file's name is the rule.
//!
//! The output of the compiler is compared word for word, so that a case cannot fail for another
//! reason than its rule; the words are one release's. Another release skips, counted:
//! `TRYBUILD=overwrite cargo test -p gaudi-verbs --test rules` writes its own down.

use std::process::Command;

/// The release whose words stand in the files.
const RELEASE: &str = "rustc 1.95.";

#[test]
fn the_compiler_keeps_the_rules() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("a compiler");
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    if !version.starts_with(RELEASE) && std::env::var_os("TRYBUILD").is_none() {
        return gaudi_harness::skip(&format!(
            "the words of {version}: this tree has those of {RELEASE}x"
        ));
    }
    let cases = trybuild::TestCases::new();
    cases.pass("tests/rules/what_is_right_compiles.rs");
    cases.compile_fail("tests/rules/a_*.rs");
}
