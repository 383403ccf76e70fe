//! The tables against the headers of this machine, and the check against itself.

use std::path::PathBuf;

use gaudi_abi::{Found, Header, Layout, Request, c_file, constants, layouts, requests, skip};
use gaudi_uapi::{Named, Since};
use tempfile::TempDir;

struct Written {
    _dir: TempDir,
    path: PathBuf,
}

fn write(text: &str) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("abi.c");
    std::fs::write(&path, text).unwrap();
    Written { _dir: dir, path }
}

/// Compiles the tables against a header; prints a skip and returns if this machine lacks it.
fn check(header: Header, at_least: usize) {
    let Some(found) = header.find() else {
        return skip(header.case(), header);
    };
    let text = c_file(header, &layouts(), &constants(), &requests());
    let asserts = text.matches("_Static_assert").count();
    assert!(
        asserts >= at_least,
        "{asserts} assertions about {header:?} are fewer than the tables once had"
    );
    let file = write(&text);
    if let Err(errors) = found.compile(&file.path) {
        panic!(
            "gaudi-uapi and {} in {} differ:\n{errors}",
            header.file(),
            found.dir.display()
        );
    }
    println!(
        "{}: {asserts} assertions hold against {}",
        header.case(),
        found.dir.join(header.file()).display()
    );
}

/// The names of these tests are the names of their skips: [`Header::case`].
mod header {
    use super::{Header, check};

    #[test]
    fn linux_6_1() {
        check(Header::Misc, 900);
    }

    #[test]
    fn linux_6_12() {
        check(Header::Accel6, 1050);
    }

    #[test]
    fn linux_7() {
        check(Header::Accel7, 1050);
    }

    #[test]
    fn dma_buf() {
        check(Header::DmaBuf, 100);
    }

    #[test]
    fn drm() {
        check(Header::Drm, 20);
    }
}

/// Compiles one wrong claim and wants the compiler to name it.
fn refuses(
    found: &Found,
    layouts: &[Layout],
    constants: &[(Header, Named)],
    requests: &[Request],
    what: &str,
) {
    let file = write(&c_file(found.header, layouts, constants, requests));
    let errors = match found.compile(&file.path) {
        Ok(()) => panic!("a wrong {what} went through: the check checks nothing"),
        Err(errors) => errors,
    };
    assert!(
        errors.contains(what),
        "the compiler must name the wrong {what}:\n{errors}"
    );
}

#[test]
fn wrong_rows_are_refused() {
    // Any of the driver's headers will do.
    let Some(found) = [Header::Misc, Header::Accel6, Header::Accel7]
        .into_iter()
        .find_map(Header::find)
    else {
        return skip("wrong_rows_are_refused", Header::Misc);
    };
    let right = |c_type: &str| -> Layout {
        layouts()
            .into_iter()
            .find(|l| l.c_type == c_type && l.size.is_some())
            .unwrap()
    };
    let mut moved = right("struct hl_cb_in");
    moved.fields[2].offset += 4;
    refuses(&found, &[moved], &[], &[], "offset of struct hl_cb_in cb_size");

    let mut narrow = right("struct hl_info_hw_ip_info");
    narrow.fields[0].size = 4;
    refuses(
        &found,
        &[narrow],
        &[],
        &[],
        "size of struct hl_info_hw_ip_info sram_base_address",
    );

    let mut short = right("struct hl_cs_chunk");
    short.size = Some(60);
    refuses(&found, &[short], &[], &[], "sizeof struct hl_cs_chunk");

    let mut grown = right("struct hl_info_hw_ip_info");
    (grown.size, grown.size_6_1) = (Some(305), Some(257));
    refuses(&found, &[grown], &[], &[], "sizeof struct hl_info_hw_ip_info");

    let value = Named {
        c_name: "HL_MEM_OP_UNMAP",
        value: 4,
        since: Since::V6_1,
    };
    refuses(&found, &[], &[(found.header, value)], &[], "HL_MEM_OP_UNMAP");

    let unknown = Named {
        c_name: "HL_INFO_NO_SUCH_OP",
        value: 0,
        since: Since::V6_1,
    };
    refuses(&found, &[], &[(found.header, unknown)], &[], "HL_INFO_NO_SUCH_OP");

    let c_name = if found.header == Header::Misc {
        "HL_IOCTL_CS"
    } else {
        "DRM_IOCTL_HL_CS"
    };
    let request = Request {
        c_name,
        value: 0xc030_0000,
        header: found.header,
    };
    refuses(&found, &[], &[], &[request], c_name);
}
