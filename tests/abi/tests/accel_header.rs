//! The installed header for systems without one, checked like the kernel's headers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gaudi_abi::{
    ACCEL_HEADER, Found, Header, accel_header, c_file, constants, facts, layouts, names, requests, skip,
    structs,
};

const GAUDI3: &str = include_str!("../facts/gaudi3.tsv");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ours() -> Found {
    Found {
        header: Header::Accel7,
        dir: root()
            .join(ACCEL_HEADER)
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .to_path_buf(),
    }
}

/// Compiles a C file that includes the header, and returns the compiler's messages.
fn compile(text: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abi.c");
    std::fs::write(&path, text).unwrap();
    ours().compile(&path)
}

#[test]
fn committed_header_is_the_generated_one() {
    let path = root().join(ACCEL_HEADER);
    let text = accel_header();
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let differs = committed.lines().zip(text.lines()).find(|(a, b)| a != b);
    assert!(
        committed == text,
        "{ACCEL_HEADER} is out of date: {differs:?}; SNAPSHOTS=overwrite updates it"
    );
}

#[test]
fn header_agrees_with_gaudi_uapi() {
    // The driver of the Gaudi3 release has one more ioctl.
    let mut constants = constants();
    constants.retain(|(_, named)| named.c_name != "HL_COMMAND_END");
    let text = c_file(Header::Accel7, &layouts(), &constants, &requests());
    assert!(
        text.matches("_Static_assert").count() >= 1050,
        "the tables are complete"
    );
    compile(&text).unwrap();
}

#[test]
fn header_agrees_with_gaudi3_facts() {
    let mut c = Header::Accel7.prologue().to_owned();
    for fact in facts(GAUDI3) {
        let words: Vec<&str> = fact.words.iter().map(String::as_str).collect();
        let conditions = match (fact.kind.as_str(), words.as_slice()) {
            ("size", [c_type, bytes]) => vec![format!("sizeof({c_type}) == {bytes}")],
            ("field", [c_type, field, offset, bytes]) => vec![
                format!("offsetof({c_type}, {field}) == {offset}"),
                format!("sizeof((({c_type} *)0)->{field}) == {bytes}"),
            ],
            ("value", [name, value]) => vec![format!("{name} == {value}")],
            other => panic!("invalid line {other:?}"),
        };
        for condition in conditions {
            c.push_str(&format!(
                "_Static_assert({condition}, \"{}\");\n",
                words.join(" ")
            ));
        }
    }
    compile(&c).unwrap();
}

#[test]
fn wrong_claims_are_rejected() {
    let claim = "_Static_assert(sizeof(struct hl_cs_chunk) == 60, \"wrong size\");\n";
    let errors = compile(&format!("{}{claim}", Header::Accel7.prologue())).unwrap_err();
    assert!(errors.contains("wrong size"), "{errors}");
}

/// Names in a kernel header that the generated header omits.
fn left_out(header: Header, case: &str) {
    let Some(found) = header.find() else {
        return skip(case, header);
    };
    let not_ours = [
        "DRM_COMMAND_BASE",
        "DRM_IOWR",
        "SZ_1M",
        "U16_MAX",
        "PAGE_SIZE_4KB",
    ];
    let (theirs, here) = (names(&found).unwrap(), names(&ours()).unwrap());
    let missing: Vec<_> = theirs
        .difference(&here)
        .filter(|name| !not_ours.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{ACCEL_HEADER} lacks {missing:?}");
    let (theirs, here) = (structs(&found).unwrap(), structs(&ours()).unwrap());
    let missing: BTreeSet<_> = theirs.difference(&here).collect();
    assert!(missing.is_empty(), "{ACCEL_HEADER} lacks {missing:?}");
}

/// The names of these tests are also the names of their skips.
mod generated {
    use super::{Header, left_out};

    #[test]
    fn complete_for_linux_6_12() {
        left_out(Header::Accel6, "generated::complete_for_linux_6_12");
    }

    #[test]
    fn complete_for_linux_7() {
        left_out(Header::Accel7, "generated::complete_for_linux_7");
    }
}

/// `misc/habanalabs.h`: the current layouts with the request numbers of drivers before DRM.
#[test]
fn misc_header_has_requests_before_drm() {
    let constants = constants().into_iter().filter(|(header, named)| {
        // Both constants grew; the header follows the newer version.
        *header == Header::Misc
            && !["HL_BUSY_ENGINES_MASK_EXT_SIZE", "GAUDI2_ENGINE_ID_SIZE"].contains(&named.c_name)
    });
    let text = c_file(Header::Misc, &[], &constants.collect::<Vec<_>>(), &requests());
    assert!(
        text.matches("_Static_assert").count() >= 400,
        "the tables are complete"
    );
    compile(&text).unwrap();
}
