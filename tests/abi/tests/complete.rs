//! Nothing that a mainline header defines is left out of gaudi-uapi.

use std::collections::BTreeSet;

use gaudi_abi::{Found, Header, constants, layouts, names, requests, skip, structs};

/// Names in the headers that say nothing about the driver.
const NOT_OURS: [(&str, &str); 6] = [
    ("HABANALABS_H_", "the include guard"),
    ("DRM_COMMAND_BASE", "DRM's, from drm/drm.h"),
    ("DRM_IOWR", "DRM's, from drm/drm.h"),
    ("SZ_1M", "the kernel's, used and not defined"),
    ("U16_MAX", "the kernel's, used and not defined"),
    ("PAGE_SIZE_4KB", "the kernel's, used and not defined"),
];

/// Fields that are reached by a name of ours with another meaning in C.
const UNIONS: [(&str, &str); 4] = [
    ("union hl_cb_args", "in and out: HlCbArgs has both at its start"),
    ("union hl_cs_args", "in and out: HlCsArgs has both at its start"),
    ("union hl_mem_args", "in and out: HlMemArgs has both at its start"),
    (
        "union hl_wait_cs_args",
        "in and out: HlWaitCsArgs has both at its start",
    ),
];

fn check(header: Header, case: &str) {
    let Some(found) = header.find() else {
        return skip(case, header);
    };
    assert_eq!(
        left_out(&found),
        BTreeSet::new(),
        "gaudi-uapi lacks what {header:?} names"
    );
}

fn left_out(found: &Found) -> BTreeSet<String> {
    let header = found.header;
    let of_constants = constants().into_iter().filter(|(h, _)| *h == header);
    let of_requests = requests().into_iter().filter(|r| r.header == header);
    let known: BTreeSet<&str> = of_constants
        .map(|(_, named)| named.c_name)
        .chain(of_requests.map(|request| request.c_name))
        .chain(NOT_OURS.map(|(name, _)| name))
        .collect();
    let named = names(found).unwrap();
    assert!(named.len() > 500, "the header was read: {} names", named.len());
    let mut missing: BTreeSet<String> = named
        .into_iter()
        .filter(|name| !known.contains(name.as_str()))
        .collect();

    let layouts = layouts();
    let fields: BTreeSet<(&str, &str)> = layouts
        .iter()
        .filter(|layout| layout.home.contains(&header))
        // A field that a newer header gave another meaning has its row, whichever header the row is
        // checked against.
        .flat_map(|layout| {
            let name = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
            layout
                .fields
                .iter()
                .map(move |field| (layout.c_type, name(field.c_path)))
        })
        .collect();
    let defined = structs(found).unwrap();
    assert!(
        defined.len() > 200,
        "the header was read: {} fields",
        defined.len()
    );
    missing.extend(defined.into_iter().filter_map(|(c_type, name)| {
        let has_row = fields.contains(&(c_type.as_str(), name.as_str()));
        let is_union = UNIONS.iter().any(|(union, _)| *union == c_type);
        (!has_row && !is_union).then(|| format!("{c_type}.{name}"))
    }));
    missing
}

/// The names of these tests are the names of their skips.
mod complete {
    use super::{Header, check};

    #[test]
    fn linux_6_1() {
        check(Header::Misc, "complete::linux_6_1");
    }

    #[test]
    fn linux_6_12() {
        check(Header::Accel6, "complete::linux_6_12");
    }

    #[test]
    fn linux_7() {
        check(Header::Accel7, "complete::linux_7");
    }
}

#[test]
fn omitted_names_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let header = Header::Misc;
    std::fs::create_dir(dir.path().join("misc")).unwrap();
    let text = "/* HL_INFO_IN_A_COMMENT */\n#define HL_INFO_HW_IP_INFO 0\n#define HL_INFO_NEW 99\n\
        enum hl_new { HL_NEW_FIRST = 1, HL_NEW_SECOND };\n\
        struct hl_cb_in {\n\t__u64 cb_handle;\n\tunion {\n\t\t__u32 op;\n\t\tstruct {\n\t\t\t__u8 added[HL_NEW_FIRST];\n\t\t} inner;\n\t};\n};\n\
        struct hl_new_one {\n\t__u64 first;\n};\n";
    std::fs::write(dir.path().join(header.file()), text).unwrap();
    let found = Found {
        header,
        dir: dir.path().to_path_buf(),
    };
    let named: Vec<_> = names(&found).unwrap().into_iter().collect();
    assert_eq!(
        named,
        [
            "HL_INFO_HW_IP_INFO",
            "HL_INFO_NEW",
            "HL_NEW_FIRST",
            "HL_NEW_SECOND"
        ]
    );
    let fields: Vec<_> = structs(&found)
        .unwrap()
        .into_iter()
        .map(|(c_type, name)| format!("{c_type}.{name}"))
        .collect();
    assert_eq!(
        fields,
        [
            "struct hl_cb_in.added",
            "struct hl_cb_in.cb_handle",
            "struct hl_cb_in.op",
            "struct hl_new_one.first"
        ]
    );
}
