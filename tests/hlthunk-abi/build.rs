//! Generates Rust checks from the table: prototypes and layouts that the crate must have.

#[path = "src/lib.rs"]
#[allow(dead_code, unreachable_pub, reason = "only the tests use the other items")]
mod contract;

use std::fmt::Write;

use contract::{Claim, Contract};

/// Second names of union members in C. The crate has a field for the first name only.
const SECOND_NAMES: [&str; 2] = ["encaps_signal_seq", "ip_proto"];

/// The function whose frame pthread_cancel(3) may unwind. A C program calls it as any other.
const CANCELLATION_POINT: &str = "hlthunk_notifier_recv";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/lib.rs");
    println!("cargo::rerun-if-changed=facts/hlthunk.tsv");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let path = std::path::Path::new(&out).join("contract.rs");
    std::fs::write(path, rust(&Contract::read())).expect("the output directory is writable");
}

fn rust(contract: &Contract) -> String {
    let (mut functions, mut layouts) = (String::new(), String::new());
    for claim in contract.newest() {
        match claim {
            Claim::Function {
                name,
                result,
                parameters,
            } => {
                let parameters: Vec<_> = parameters
                    .split(", ")
                    .filter(|p| *p != "void")
                    .map(rust_type)
                    .collect();
                let result = match result.as_str() {
                    "void" => String::new(),
                    result => format!(" -> {}", rust_type(result)),
                };
                let parameters = parameters.join(", ");
                let abi = if name == CANCELLATION_POINT {
                    "C-unwind"
                } else {
                    "C"
                };
                writeln!(
                    functions,
                    "let _: unsafe extern \"{abi}\" fn({parameters}){result} = hl_thunk::{name};"
                )
            }
            Claim::Size { c_type, .. } => {
                writeln!(
                    layouts,
                    "(\"{c_type}\", \"\", 0, size_of::<{}>()),",
                    rust_type(c_type)
                )
            }
            Claim::Field { c_type, name, .. } if !SECOND_NAMES.contains(&name.as_str()) => {
                let (rust, field) = (rust_type(c_type), identifier(name));
                writeln!(
                    layouts,
                    "(\"{c_type}\", \"{name}\", std::mem::offset_of!({rust}, {field}), \
                     field_size(|s: &{rust}| &s.{field})),"
                )
            }
            _ => Ok(()),
        }
        .expect("a String takes any text");
    }
    format!(
        "/// Compiles only if each function has the table's prototype.\n#[test]\n\
         fn functions_have_their_prototypes() {{\n{functions}}}\n\n\
         fn layouts() -> Vec<(&'static str, &'static str, usize, usize)> {{\nvec![\n{layouts}]\n}}\n"
    )
}

/// Escapes a field name that is a keyword in Rust.
fn identifier(name: &str) -> String {
    match name {
        "type" => "r#type".to_owned(),
        _ => name.to_owned(),
    }
}

/// Returns the Rust type of a parameter, a result or a struct.
fn rust_type(c_type: &str) -> String {
    if let Some(pointee) = c_type.strip_suffix(" *") {
        return match pointee.strip_prefix("const ") {
            Some(pointee) => format!("*const {}", rust_type(pointee)),
            None => format!("*mut {}", rust_type(pointee)),
        };
    }
    match c_type {
        "void" => "std::ffi::c_void".to_owned(),
        "char" => "std::ffi::c_char".to_owned(),
        "int" => "std::ffi::c_int".to_owned(),
        "bool" => "bool".to_owned(),
        "size_t" => "usize".to_owned(),
        "uint32_t" => "u32".to_owned(),
        "uint64_t" => "u64".to_owned(),
        // Types of the driver, which are open enums in Rust.
        "enum hl_engine_command" => "u32".to_owned(),
        "struct hl_debug_args" => "gaudi_uapi::debug::HlDebugArgs".to_owned(),
        "struct hl_info_args" => "gaudi_uapi::info::HlInfoArgs".to_owned(),
        "struct hl_info_cs_counters" => "gaudi_uapi::info::HlInfoCsCounters".to_owned(),
        _ => {
            let tag = c_type
                .split_once(' ')
                .unwrap_or_else(|| panic!("{c_type} has no Rust type"))
                .1;
            format!("hl_thunk::{}", camel(tag))
        }
    }
}

/// Converts `hlthunk_cs_in` to `HlthunkCsIn`.
fn camel(tag: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    tag.split('_').map(word).collect()
}
