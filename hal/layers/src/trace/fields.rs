//! Decoded requests and answers: names and values in the order of the kernel's structs.
//!
//! The feature `preserve_order` of serde_json keeps the order.

use std::fmt;

use gaudi_uapi::{CField, CStruct, CType, Print};
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

/// The fields of a struct, without padding. Missing bytes at its end are zero, as in the driver's
/// shorter answers.
pub(super) fn decoded(layout: &CStruct, bytes: &[u8]) -> Fields {
    let mut whole = vec![0; layout.size];
    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let of = |field: &CField| &whole[field.offset..][..field.size];
    let count = |name| {
        layout
            .fields
            .iter()
            .find(|field| field.name == name)
            .map(|field| number(of(field)))
    };
    let printed = layout.fields.iter().filter(|field| field.print != Print::Hidden);
    let named = printed.map(|field| {
        let most = field.counted_by.and_then(count).unwrap_or(u64::MAX);
        (
            field.name.to_owned(),
            value(&field.kind, field.print, of(field), most),
        )
    });
    named.collect()
}

/// A field's value; of an array at most `most` elements.
fn value(kind: &CType, print: Print, bytes: &[u8], most: u64) -> Value {
    match kind {
        CType::Array { .. } if print == Print::Text => {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or(bytes);
            String::from_utf8_lossy(text).into()
        }
        CType::Array { of, len } => {
            let items = bytes.chunks_exact(bytes.len() / len).zip(0..most);
            items.map(|(item, _)| value(of, print, item, u64::MAX)).collect()
        }
        CType::Named(names) => shown(names.text(number(bytes))),
        CType::Unsigned | CType::Signed if print == Print::Hex => hex(number(bytes)),
        CType::Unsigned => number(bytes).into(),
        CType::Signed => {
            let unused = u64::BITS - 8 * bytes.len() as u32;
            ((number(bytes) << unused) as i64 >> unused).into()
        }
    }
}

/// At most eight bytes as a number. Hosts are little-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
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

#[cfg(test)]
mod tests {
    use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoRazwiEvent, HlInfoUndefinedOpcodeEvent, RazwiFlags};
    use zerocopy::IntoBytes as _;

    use super::*;

    fn text(layout: &CStruct, bytes: &[u8]) -> String {
        Value::from(decoded(layout, bytes)).to_string()
    }

    #[test]
    fn fields_print_in_their_style() {
        let mut event = HlInfoRazwiEvent {
            timestamp: -5,
            addr: 0x1000,
            num_of_possible_engines: 2,
            flags: RazwiFlags(0x41),
            pad: [0xff; 5],
            ..HlInfoRazwiEvent::default()
        };
        event.engine_id[..2].copy_from_slice(&[7, 8]);
        assert_eq!(
            text(&HlInfoRazwiEvent::LAYOUT, event.as_bytes()),
            r#"{"timestamp":-5,"addr":"0x1000","engine_id":[7,8],"num_of_possible_engines":2,"flags":"READ|0x40"}"#
        );
        event.num_of_possible_engines = u16::MAX;
        let fields = decoded(&HlInfoRazwiEvent::LAYOUT, event.as_bytes());
        let engines = fields["engine_id"].as_array().map(Vec::len);
        assert_eq!(engines, Some(128), "a count beyond the array is cut");
    }

    #[test]
    fn missing_bytes_are_zero() {
        let zero = [r#""0x0""#; 8].join(",");
        let first = zero.replacen("0x0", "0x102", 1);
        assert_eq!(
            text(
                &HlInfoUndefinedOpcodeEvent::LAYOUT,
                &[9, 0, 0, 0, 0, 0, 0, 0, 2, 1]
            ),
            format!(
                r#"{{"timestamp":9,"cb_addr_streams":[[{first}],[{zero}],[{zero}],[{zero}]],"cq_addr":"0x0","cq_size":0,"cb_addr_streams_len":0,"engine_id":0,"stream_id":0}}"#
            )
        );
    }

    #[test]
    fn text_ends_at_its_first_zero() {
        let mut info = HlInfoHwIpInfo::default();
        info.card_name[..6].copy_from_slice(b"HL\xff\0xx");
        let fields = decoded(&HlInfoHwIpInfo::LAYOUT, info.as_bytes());
        assert_eq!(fields["card_name"], "HL\u{fffd}");
        assert!(fields.contains_key("reserved_dram_size") && !fields.contains_key("reserved1"));
    }
}
