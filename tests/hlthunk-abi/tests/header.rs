//! Compares the headers with the table, in C and C++ and in both directions.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use gaudi_harness::skip_named;
use gaudi_hlthunk_abi::{Claim, Contract, PROLOGUE, c_file, check};

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../drivers/hlthunk/include")
}

fn header() -> String {
    std::fs::read_to_string(include().join("hlthunk.h")).unwrap()
}

/// Compiles a file without linking and returns the compiler's messages; `None` if the compiler is
/// missing.
fn compile(compiler: &OsString, arguments: &[&str], text: &str) -> Option<Result<(), String>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("contract.c");
    std::fs::write(&path, text).unwrap();
    let output = Command::new(compiler)
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        .args(arguments)
        .arg("-I")
        .arg(include())
        .arg(&path)
        .output()
        .ok()?;
    Some(match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}

fn in_c(arguments: &[&str], text: &str) -> Result<(), String> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    compile(&compiler, arguments, text).expect("a C compiler, which the workspace needs for linking")
}

/// Compiles as C++, or records a skip if there is no C++ compiler.
fn in_cxx(test: &str, arguments: &[&str], text: &str) {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    match compile(&compiler, arguments, text) {
        Some(result) => result.unwrap(),
        None => skip_named(test, "a C++ compiler (apt install g++, or CXX)"),
    }
}

#[test]
fn contract_holds_in_c() {
    let text = c_file(&Contract::read());
    let checks = text.matches("CHECK(").count();
    assert!(checks > 700, "the table is complete: {checks} assertions");
    in_c(&["-std=gnu11"], &text).unwrap();
}

#[test]
fn contract_holds_in_cxx() {
    let text = c_file(&Contract::read());
    in_cxx("contract_holds_in_cxx", &["-std=gnu++11", "-x", "c++"], &text);
}

/// Includes each header of the directory separately, and all headers in turn.
fn headers() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![include()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(include()).unwrap().display().to_string();
            found.push(format!("#include \"{name}\"\n"));
        }
    }
    found.sort();
    let all: String = found.concat();
    found.extend([all.repeat(2), found.iter().rev().cloned().collect()]);
    found
}

#[test]
fn headers_are_valid_c99() {
    let headers = headers();
    assert!(headers.len() >= 5, "the directory was read: {headers:?}");
    for text in headers {
        in_c(&["-std=c99"], &text).unwrap_or_else(|errors| panic!("{text}{errors}"));
    }
}

#[test]
fn headers_are_valid_cxx() {
    // Use one file, so that a missing compiler is one skip.
    let all = headers().pop().unwrap_or_default();
    in_cxx("headers_are_valid_cxx", &["-std=c++11", "-x", "c++"], &all);
}

/// The kernel's header lacks names of the Gaudi3 release.
#[test]
fn header_works_with_the_kernels() {
    let named = std::env::var_os("GAUDI_HEADERS_7").map(PathBuf::from);
    let dirs = named.into_iter().chain([PathBuf::from("/usr/include")]);
    let Some(dir) = dirs
        .into_iter()
        .find(|dir| dir.join("drm/habanalabs_accel.h").is_file())
    else {
        let need = "drm/habanalabs_accel.h (linux-libc-dev >= 6.12); cargo xtask test fetches it";
        return skip_named("header_works_with_the_kernels", need);
    };
    let text = format!(
        "#include \"{}\"\n#ifdef HL_IOCTL_NIC\n#error \"not the kernel's\"\n#endif\n{}",
        dir.join("drm/habanalabs_accel.h").display(),
        c_file(&Contract::read())
    );
    // The header uses macros that only the kernel defines.
    let dir = dir.to_str().expect("a path in UTF-8");
    in_c(
        &[
            "-std=gnu11",
            "-DU16_MAX=0xffff",
            "-DSZ_1M=0x100000",
            "-idirafter",
            dir,
        ],
        &text,
    )
    .unwrap();
}

#[test]
fn older_kernel_header_is_rejected() {
    let text = "#define HABANALABS_H_\n#include \"hlthunk.h\"\n";
    let errors = in_c(&["-std=gnu11"], text).unwrap_err();
    assert!(errors.contains("misc/habanalabs.h of Linux 6.1"), "{errors}");
}

/// Each kind of false claim is rejected, so a check that passes is meaningful.
#[test]
fn wrong_claims_are_rejected() {
    let function = |name: &str, result: &str, parameters: &str| Claim::Function {
        name: name.into(),
        result: result.into(),
        parameters: parameters.into(),
    };
    let flags = |of_type: &str, offset, bytes| Claim::Field {
        c_type: "struct hlthunk_cs_in".into(),
        name: "flags".into(),
        of_type: of_type.into(),
        offset,
        bytes,
    };
    let right = [function("hlthunk_close", "int", "int"), flags("uint32_t", 24, 4)];
    let wrong = [
        function("hlthunk_close", "int", "long"),
        function("hlthunk_close", "long", "int"),
        function("hlthunk_no_such_function", "int", "int"),
        flags("int", 24, 4),
        flags("uint32_t", 20, 4),
        flags("uint32_t", 24, 8),
        Claim::Size {
            c_type: "struct hlthunk_cs_in".into(),
            bytes: 24,
        },
        Claim::Value {
            of_enum: "enum hlthunk_device_name".into(),
            name: "HLTHUNK_DEVICE_GAUDI2".into(),
            value: 4,
        },
        Claim::Text {
            name: "HLTHUNK_DEV_NAME_CONTROL".into(),
            text: "/dev/accel/accel_controlD%i".into(),
        },
    ];
    let accepts = |claim: &Claim| {
        let mut text = PROLOGUE.to_owned();
        check(&mut text, claim, 0);
        in_c(&["-std=gnu11"], &text).is_ok()
    };
    for claim in right {
        assert!(accepts(&claim), "{claim:?} was rejected");
    }
    for claim in wrong {
        assert!(!accepts(&claim), "{claim:?} was accepted");
    }
}

/// Returns the words that follow `before` in the header.
fn words_after(before: &str) -> BTreeSet<String> {
    let text = header();
    let word = |rest: &str| -> String {
        rest.chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect()
    };
    text.match_indices(before)
        .map(|(at, _)| word(&text[at + before.len()..]))
        .collect()
}

#[test]
fn header_declares_nothing_else() {
    let contract = Contract::read();
    // A prototype starts with the attribute; its name precedes the first parenthesis.
    let name = |line: &str| -> String {
        let (front, _) = line.split_once('(').expect(line);
        front.rsplit([' ', '*']).next().expect(line).to_owned()
    };
    let text = header();
    let prototypes = text.lines().filter(|line| line.starts_with("hlthunk_public "));
    let exported: BTreeSet<String> = contract.exported().map(str::to_owned).collect();
    assert_eq!(prototypes.map(name).collect::<BTreeSet<_>>(), exported);
    assert_eq!(exported.len(), 143, "100 of 2023 and 43 of the Gaudi3 release");

    let known = contract.newest().filter_map(|claim| match claim {
        Claim::Size { c_type, .. } => Some(c_type.trim_start_matches("struct ").to_owned()),
        _ => None,
    });
    assert_eq!(words_after("\nstruct "), known.collect());
}

#[test]
fn header_declares_no_missing_function() {
    for fact in Contract::read().facts {
        if let Claim::Unexported(name) = fact.claim {
            assert!(
                !header().contains(&name),
                "{name} is declared, but no library exports it"
            );
        }
    }
}
