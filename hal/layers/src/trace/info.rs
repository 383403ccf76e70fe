//! Answers to INFO and inputs of DEBUG by the kernel's names.

use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{HlInfoSecAttest, HlInfoSigned, InfoOp};
use gaudi_uapi::{CStruct, Since};

use super::fields::{Fields, Value, bytes as raw, decoded, fields};

/// The kernel's name of an INFO operation: `HL_INFO_DRAM_USAGE`.
pub(super) fn name(op: InfoOp) -> String {
    op.c_name().map_or_else(|| format!("HL_INFO_{op}"), str::to_owned)
}

/// The fields of an answer. An answer without named fields is its bytes.
pub(super) fn answer(op: InfoOp, bytes: &[u8]) -> Fields {
    match op.answer().filter(is_decoded) {
        Some(layout) => decoded(layout, bytes),
        None => fields! { return_size: bytes.len(), bytes: raw(bytes) },
    }
}

/// The input of a debug operation.
pub(super) fn debug_input(op: DebugOp, bytes: &[u8]) -> Value {
    match op.input().filter(is_decoded) {
        Some(layout) => decoded(layout, bytes).into(),
        None => raw(bytes),
    }
}

/// Whether version 1 of the schema names a struct's fields. It has those of the Gaudi3 release and
/// attestations as bytes.
fn is_decoded(layout: &&CStruct) -> bool {
    let attestations = [HlInfoSecAttest::LAYOUT, HlInfoSigned::LAYOUT].map(|layout| layout.c_name);
    layout.since != Since::Gaudi3 && !attestations.contains(&layout.c_name)
}
