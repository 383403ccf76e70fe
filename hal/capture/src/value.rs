//! Decoded values: the tree that is printed as a line or as JSON.

use std::fmt;

use serde_json::{Map, json};

use crate::text::escaped;

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// An address, a handle or a mask.
    Hex(u64),
    /// A value of an open enum, or flags, with the names from the headers.
    Name(String),
    /// Text from a program, the firmware or the driver.
    Text {
        /// The bytes before the first zero byte.
        bytes: Vec<u8>,
        /// Number of further bytes: not recorded, or beyond a limit.
        more: u64,
    },
    /// Uninterpreted bytes.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
        /// Number of further bytes.
        more: u64,
    },
    /// Elements of the same type.
    List {
        /// The elements.
        items: Vec<Value>,
        /// Number of further elements.
        more: u64,
    },
    /// A struct.
    Struct(Fields),
    /// An address, and the value at that address.
    Pointer {
        /// The address.
        address: u64,
        /// The value at the address; `None` if the tracer did not record it.
        to: Option<Box<Value>>,
    },
    /// The rest of a struct: not recorded, or beyond a limit.
    Cut,
}

/// A field of a struct or an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name in C.
    pub name: &'static str,
    /// The value.
    pub value: Value,
    /// A description of the object that the value refers to: `768 MiB, mapped at
    /// 0x1001001800000000`.
    pub is: Option<String>,
}

/// Fields in printing order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<Field>);

impl Fields {
    pub(crate) fn push(&mut self, name: &'static str, value: Value) {
        self.0.push(Field {
            name,
            value,
            is: None,
        });
    }

    /// Returns whether the last field is truncated, so that later fields are unknown.
    pub(crate) fn ends_cut(&self) -> bool {
        matches!(
            self.0.last(),
            Some(Field {
                value: Value::Cut,
                ..
            })
        )
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let field = self.0.iter().find(|field| field.name == name);
        field.map(|field| &field.value)
    }

    /// Returns the fields as a JSON object. The description of a field's object is the member
    /// `NAME_is`.
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = Map::new();
        for Field { name, value, is } in &self.0 {
            object.insert((*name).to_owned(), value.to_json());
            if let Some(is) = is {
                object.insert(format!("{name}_is"), is.as_str().into());
            }
        }
        object.into()
    }
}

/// The largest integer that every JSON reader represents exactly.
const MAX_JSON: u64 = (1 << 53) - 1;

impl Value {
    /// Returns the value as JSON (docs/src/reference/gcap.md).
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Unsigned(number) if *number > MAX_JSON => number.to_string().into(),
            Self::Unsigned(number) => (*number).into(),
            Self::Signed(number) if number.unsigned_abs() > MAX_JSON => number.to_string().into(),
            Self::Signed(number) => (*number).into(),
            Self::Hex(number) => format!("{number:#x}").into(),
            Self::Name(name) => name.as_str().into(),
            Self::Text { bytes, more: 0 } => String::from_utf8_lossy(bytes).into(),
            Self::Text { bytes, more } => json!({"text": String::from_utf8_lossy(bytes), "more": more}),
            Self::Bytes { bytes, more: 0 } => hex(bytes).into(),
            Self::Bytes { bytes, more } => json!({"bytes": hex(bytes), "more": more}),
            Self::List { items, more: 0 } => items.iter().map(Self::to_json).collect(),
            Self::List { items, more } => {
                let items: serde_json::Value = items.iter().map(Self::to_json).collect();
                json!({"items": items, "more": more})
            }
            Self::Struct(fields) => fields.to_json(),
            Self::Pointer { address, to } => match to {
                Some(to) => json!({"address": format!("{address:#x}"), "value": to.to_json()}),
                None => json!({"address": format!("{address:#x}"), "recorded": *address == 0}),
            },
            Self::Cut => serde_json::Value::Null,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the number of further elements at the end of a list.
fn write_more(f: &mut fmt::Formatter<'_>, more: u64) -> fmt::Result {
    match more {
        0 => Ok(()),
        more => write!(f, "...{more} more"),
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Hex(number) => write!(f, "{number:#x}"),
            Self::Name(name) => f.write_str(name),
            Self::Text { bytes, more } => {
                f.write_str(&escaped(bytes))?;
                write_more(f, *more)
            }
            Self::Bytes { bytes, more } => {
                write!(f, "<{}>", hex(bytes))?;
                write_more(f, *more)
            }
            Self::List { items, more } => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}{item}")?;
                }
                if *more > 0 && !items.is_empty() {
                    f.write_str(", ")?;
                }
                write_more(f, *more)?;
                f.write_str("]")
            }
            Self::Struct(fields) => write!(f, "{{{fields}}}"),
            Self::Pointer { address: 0, .. } => f.write_str("NULL"),
            Self::Pointer { to: Some(to), .. } => write!(f, "{to}"),
            Self::Pointer { address, to: None } => write!(f, "{address:#x} (not recorded)"),
            Self::Cut => f.write_str("..."),
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Field { name, value, is }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{name}={value}")?;
            if let Some(is) = is {
                write!(f, " ({is})")?;
            }
        }
        Ok(())
    }
}
