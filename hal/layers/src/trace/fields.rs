//! Decoded requests and answers: names and values in the order of the kernel's structs.
//!
//! The feature `preserve_order` of serde_json keeps the order.

use std::fmt;

pub use serde_json::Value;

/// Names and values, in order.
pub type Fields = serde_json::Map<String, Value>;

/// `fields! { name: value, … }`
macro_rules! fields {
    ($($name:ident: $value:expr),* $(,)?) => {
        Fields::from_iter([$((stringify!($name).to_owned(), Value::from($value))),*])
    };
}
pub(super) use fields;

/// An address or a handle, as `0x...`: readers of JSON preserve 53 bits of a number only.
pub(super) fn hex(number: impl Into<u64>) -> Value {
    format!("{:#x}", number.into()).into()
}

/// A name or flags, as `Display` prints them.
pub(super) fn shown(value: impl fmt::Display) -> Value {
    value.to_string().into()
}

/// The first 4096 bytes, as hexadecimal digits.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    let digits = bytes.iter().take(4096).map(|byte| format!("{byte:02x}"));
    digits.collect::<String>().into()
}

/// At most `most` items. The driver rejects longer lists; their length is a field of its own.
pub(super) fn list<T>(items: &[T], most: usize, show: impl Fn(&T) -> Value) -> Value {
    items.iter().take(most).map(show).collect()
}

/// Fields as the program's log shows them: names and texts without quotes.
pub(super) fn log_line(fields: &Fields) -> String {
    let fields = fields.iter();
    let parts = fields.map(|(name, value)| format!("{name}={}", log_value(value)));
    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
}

fn log_value(value: &Value) -> String {
    match value {
        // A name may come from firmware: it must not move a terminal's cursor.
        Value::String(text) => text.escape_debug().to_string(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(log_value).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => log_line(fields),
        plain => plain.to_string(),
    }
}
