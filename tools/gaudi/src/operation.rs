//! The name and the queues of a decoded operation.

use gaudi_capture::decode::Decoded;
use gaudi_capture::value::{Fields, Value};

/// Stands for the operations that exceed a table.
pub(crate) const OTHERS: &str = "(others)";

/// Returns the name of an operation: the ioctl's, and its operation if it has several.
pub(crate) fn name_of(decoded: &Decoded) -> String {
    match decoded.request.get("op") {
        Some(op) => format!("{} {op}", decoded.call),
        None => decoded.call.clone(),
    }
}

/// Appends the numbers of the queues in a request.
pub(crate) fn queues(fields: &Fields, into: &mut Vec<u64>) {
    for field in &fields.0 {
        match (field.name, &field.value) {
            ("queue_index", Value::Unsigned(number)) => into.push(*number),
            (_, value) => queues_of(value, into),
        }
    }
}

fn queues_of(value: &Value, into: &mut Vec<u64>) {
    match value {
        Value::Struct(fields) => queues(fields, into),
        Value::List { items, .. } => items.iter().for_each(|item| queues_of(item, into)),
        Value::Pointer { to: Some(to), .. } => queues_of(to, into),
        _ => {}
    }
}
