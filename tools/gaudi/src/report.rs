//! One description of rows for documents and tables: each column has its key in the document, its
//! head in the table, and its value.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// A column of rows of `T`; [`columns`] makes them.
pub(crate) struct Column<T> {
    /// Its key in documents; empty if only tables have it.
    pub(crate) key: &'static str,
    /// Its head in tables; empty if only documents have it.
    pub(crate) head: &'static str,
    pub(crate) value: fn(&T) -> Option<Value>,
    /// How a table prints a number; `None` for text, which is aligned to the left.
    pub(crate) number: Option<fn(u64) -> String>,
    /// Its rank among the columns that a narrow table hides, the first one first; 0 if it stays.
    pub(crate) hidden: u8,
}

/// Makes an array of columns of a row each: `text`, `number`, `grouped` (digits in threes) or `mib`
/// (bytes, in MiB in tables), key, head, in brackets the rank of a column that may be hidden, and
/// the value.
macro_rules! columns {
    (@number text) => { None };
    (@number number) => { Some(|number| number.to_string()) };
    (@number grouped) => { Some(crate::report::grouped) };
    (@number mib) => { Some(|bytes| crate::report::grouped(bytes >> 20)) };
    (@hidden) => { 0 };
    (@hidden $rank:literal) => { $rank };
    ($row:ty: $($form:ident $key:literal $head:literal $([$rank:literal])? |$name:pat_param| $value:expr;)*) => {
        [$(crate::report::Column::<$row> {
            key: $key,
            head: $head,
            value: |$name| Some(serde_json::json!($value)),
            number: crate::report::columns!(@number $form),
            hidden: crate::report::columns!(@hidden $($rank)?),
        }),*]
    };
}

impl<T> Column<T> {
    fn value(&self, row: &T) -> Value {
        (self.value)(row).unwrap_or(Value::Null)
    }

    /// Returns the value as tables print it. `None` if it is missing.
    pub(crate) fn text(&self, row: &T) -> Option<String> {
        Some(match (self.value(row), self.number) {
            (Value::Null, _) => return None,
            (Value::Bool(is), _) => if is { "yes" } else { "no" }.to_owned(),
            (Value::String(text), _) => text,
            (Value::Number(number), Some(form)) => number.as_u64().map_or_else(|| number.to_string(), form),
            (Value::Array(all), _) if all.is_empty() => return None,
            (Value::Array(all), _) => {
                let texts: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                texts.join(", ")
            }
            (other, _) => other.to_string(),
        })
    }

    /// Returns the table's cell: a dash for a missing value.
    pub(crate) fn cell(&self, row: &T) -> String {
        self.text(row).unwrap_or_else(|| "-".to_owned())
    }
}

/// Returns the columns that tables have.
pub(crate) fn shown<T>(columns: &[Column<T>]) -> Vec<&Column<T>> {
    columns.iter().filter(|column| !column.head.is_empty()).collect()
}

/// A row as an object of a document.
pub(crate) struct Record<'a, T>(pub(crate) &'a [Column<T>], pub(crate) &'a T);

impl<T> Serialize for Record<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.0.iter().filter(|column| !column.key.is_empty());
        serializer.collect_map(fields.map(|column| (column.key, column.value(self.1))))
    }
}

/// Returns rows as objects of a document.
pub(crate) fn records<'a, T>(columns: &'a [Column<T>], rows: &'a [T]) -> Vec<Record<'a, T>> {
    rows.iter().map(|row| Record(columns, row)).collect()
}

/// Makes an object of a document: a key and its value on each line.
macro_rules! object {
    ($($(#[$meta:meta])* $key:ident: $value:expr),* $(,)?) => {{
        #[allow(non_camel_case_types, reason = "the type parameters have the names of the fields")]
        let object = {
            #[derive(serde::Serialize)]
            struct Object<$($key),*> {
                $($(#[$meta])* $key: $key),*
            }
            Object { $($key: $value),* }
        };
        object
    }};
}
pub(crate) use {columns, object};

/// Formats `1234567` as `1 234 567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(
            (grouped(0), grouped(999), grouped(1000)),
            ("0".into(), "999".into(), "1 000".into())
        );
        assert_eq!(grouped(97_536_123), "97 536 123");
    }
}
