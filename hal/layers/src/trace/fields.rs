//! Decoded requests and answers: names and values in the order of the kernel's structs.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

/// A value of a trace.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A number of 0 or more.
    Number(u64),
    /// A negative number.
    Negative(i64),
    /// A number with a fraction. The layer writes none; a reader preserves it.
    Real(f64),
    /// A name, flags joined by `|`, or an address or handle as `0x…`.
    Text(Cow<'static, str>),
    /// A list.
    List(Vec<Value>),
    /// A struct.
    Record(Fields),
}

impl Value {
    /// An address or a handle, as `0x...`: readers of JSON preserve 53 bits of a number only.
    pub fn hex(number: u64) -> Self {
        Self::Text(format!("{number:#x}").into())
    }

    /// A name or flags, as `Display` prints them.
    pub fn shown(value: impl fmt::Display) -> Self {
        Self::Text(value.to_string().into())
    }

    /// The first 4096 bytes, as hexadecimal digits.
    pub fn bytes(bytes: &[u8]) -> Self {
        let mut text = String::new();
        for byte in bytes.iter().take(4096) {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(digit), 16));
            }
        }
        Self::Text(text.into())
    }

    /// The number of a number or of a text `0x...`.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => u64::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
            _ => None,
        }
    }

    /// The text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        u64::try_from(number).map_or(Self::Negative(number), Self::Number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u8> for Value {
    fn from(number: u8) -> Self {
        Self::Number(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Self::Bool(yes)
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::Record(fields)
    }
}

impl<T: Into<Value> + Copy, const N: usize> From<[T; N]> for Value {
    fn from(list: [T; N]) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

/// Names and values, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fields(pub Vec<(Cow<'static, str>, Value)>);

impl Fields {
    /// No fields.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a field.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((Cow::Borrowed(name), value.into()));
        self
    }

    /// Appends a field, if there is a value.
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The first value with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// The number with this name, written as a number or as `0x...`.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.number()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(yes) => serializer.serialize_bool(*yes),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Negative(number) => serializer.serialize_i64(*number),
            Self::Real(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(value)?;
                }
                list.end()
            }
            Self::Record(fields) => fields.serialize(serializer),
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<Value, E> {
        Ok(Value::Bool(yes))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Real(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned().into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, value)) = access.next_entry::<String, Value>()? {
            fields.push((Cow::Owned(name), value));
        }
        Ok(Value::Record(Fields(fields)))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Record(fields) => Ok(fields),
            _ => Err(serde::de::Error::custom("not a JSON object")),
        }
    }
}
