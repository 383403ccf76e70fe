//! `GAUDI_MAPPING_TABLE`: which card is number N, as a set-up script of the vendor's UCX port
//! exports it.

use std::fmt;

use gaudi_seam::{Error, ErrorKind, InvalidPciAddress, PciAddress, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes that a table may have: 256 entries of the longest form, with room for white space.
const MAX_BYTES: usize = 64 * 1024;
/// Entries that a table may have: the driver numbers at most 256 devices.
const MAX_ENTRIES: usize = 256;
const OPERATION: &str = "GAUDI_MAPPING_TABLE";

/// One card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// N of `map:N`.
    pub index: u32,
    /// The place on the server's board. An open compares it with the device's
    /// `hl_info_hw_ip_info.module_id`.
    pub module_id: u32,
    /// The PCI address.
    pub bus: PciAddress,
}

/// The table: a JSON array of `{"index": 0, "module_id": 3, "bus_id": "0000:19:00.0"}`, nothing
/// more and nothing less.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingTable {
    entries: Vec<MappingEntry>,
}

/// The fields as they stand, so that each is read by itself and an error names it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow)]
    index: &'a RawValue,
    #[serde(borrow)]
    module_id: &'a RawValue,
    #[serde(borrow)]
    bus_id: &'a RawValue,
}

impl Row<'_> {
    fn entry(text: &str) -> std::result::Result<MappingEntry, String> {
        let row: Row<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let number = |name: &str, value: &RawValue| {
            serde_json::from_str::<u32>(value.get()).map_err(|error| format!("{name}: {error}"))
        };
        let bus: String =
            serde_json::from_str(row.bus_id.get()).map_err(|error| format!("bus_id: {error}"))?;
        Ok(MappingEntry {
            index: number("index", row.index)?,
            module_id: number("module_id", row.module_id)?,
            bus: bus
                .parse()
                .map_err(|error: InvalidPciAddress| format!("bus_id: {error}"))?,
        })
    }
}

fn wrong(cause: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, OPERATION)
        .because(cause)
        .helped_by(r#"write [{"index":0,"module_id":3,"bus_id":"0000:19:00.0"}, ...]"#)
}

impl MappingTable {
    /// Parses the text of `GAUDI_MAPPING_TABLE`.
    ///
    /// # Errors
    /// `InvalidInput`: the text is too long, not a JSON array, or has an invalid entry. The message
    /// names the entry's number, counted from 0, and the field.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(wrong("the text is too long")
                .saw(format!("{} bytes", text.len()), format!("at most {MAX_BYTES}")));
        }
        let rows: Vec<&RawValue> =
            serde_json::from_str(text).map_err(|error| wrong(format!("not a JSON array: {error}")))?;
        if rows.len() > MAX_ENTRIES {
            return Err(wrong("too many entries").saw(rows.len(), format!("at most {MAX_ENTRIES}")));
        }
        let entry = |(number, row): (usize, &&RawValue)| {
            Row::entry(row.get()).map_err(|cause| wrong(format!("entry {number}: {cause}")))
        };
        Self::new(rows.iter().enumerate().map(entry).collect::<Result<_>>()?)
    }

    /// Makes a table of these entries.
    ///
    /// # Errors
    /// `InvalidInput`: no entry, too many, or two with the same index, module id or address.
    pub fn new(mut entries: Vec<MappingEntry>) -> Result<Self> {
        if entries.is_empty() {
            return Err(wrong("the array is empty"));
        }
        if entries.len() > MAX_ENTRIES {
            return Err(wrong("too many entries").saw(entries.len(), format!("at most {MAX_ENTRIES}")));
        }
        for (number, entry) in entries.iter().enumerate() {
            let twin = |what: &str, same: fn(&MappingEntry, &MappingEntry) -> bool| match entries[..number]
                .iter()
                .position(|earlier| same(earlier, entry))
            {
                Some(twin) => Err(wrong(format!(
                    "entry {number}: its {what} is that of entry {twin}"
                ))),
                None => Ok(()),
            };
            twin("index", |a, b| a.index == b.index)?;
            twin("bus_id", |a, b| a.bus == b.bus)?;
            twin("module_id", |a, b| a.module_id == b.module_id)?;
        }
        entries.sort_by_key(|entry| entry.index);
        Ok(Self { entries })
    }

    /// Returns the entries in the order of their indices.
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// Returns the entry that `map:index` selects.
    ///
    /// # Errors
    /// `NotFound`: the table has no such index.
    pub fn entry(&self, index: u32) -> Result<MappingEntry> {
        self.entries
            .iter()
            .copied()
            .find(|entry| entry.index == index)
            .ok_or_else(|| {
                let known: Vec<_> = self.entries.iter().map(|entry| entry.index.to_string()).collect();
                Error::new(ErrorKind::NotFound, OPERATION)
                    .because("the table has no entry of that index")
                    .saw(index, known.join(", "))
            })
    }
}

/// The text that [`MappingTable::parse`] reads: JSON on one line, by index, as the vendor's set-up
/// script exports it.
impl fmt::Display for MappingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (
            number,
            MappingEntry {
                index,
                module_id,
                bus,
            },
        ) in self.entries.iter().enumerate()
        {
            let comma = if number == 0 { "" } else { "," };
            write!(
                f,
                r#"{comma}{{"index":{index},"module_id":{module_id},"bus_id":"{bus}"}}"#
            )?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        MappingTable::parse(text)
            .expect_err("the table is wrong")
            .to_string()
    }

    #[test]
    fn table_of_setup_script_parses_in_order() {
        let table = MappingTable::parse(
            r#"[{"index":1,"module_id":3,"bus_id":"0000:b3:00.0"}, {"bus_id":"19:00.0","index":0,"module_id":7}]"#,
        )
        .expect("a right table");
        let seen: Vec<_> = table
            .entries()
            .iter()
            .map(|entry| (entry.index, entry.module_id, entry.bus.to_string()))
            .collect();
        assert_eq!(
            seen,
            [
                (0, 7, "0000:19:00.0".to_owned()),
                (1, 3, "0000:b3:00.0".to_owned())
            ]
        );
        assert_eq!(
            table.to_string(),
            r#"[{"index":0,"module_id":7,"bus_id":"0000:19:00.0"},{"index":1,"module_id":3,"bus_id":"0000:b3:00.0"}]"#,
            "it prints as it is read, ordered and with whole addresses"
        );
        let missing = table.entry(2).expect_err("there is no entry 2");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(
            missing.to_string().contains("saw 2, wanted 0, 1"),
            "the known entries are named: {missing}"
        );
    }

    #[test]
    fn invalid_entry_is_named_by_index() {
        let good = r#"{"index":0,"module_id":0,"bus_id":"0000:19:00.0"}"#;
        let cases = [
            (r#"{"index":1,"module_id":1}"#, "entry 1: missing field `bus_id`"),
            (
                r#"{"index":1,"module_id":1,"bus_id":"0000:1a:00.0","x":1}"#,
                "entry 1: unknown field `x`",
            ),
            (
                r#"{"index":1,"index":2,"module_id":1,"bus_id":"0000:1a:00.0"}"#,
                "entry 1: duplicate field `index`",
            ),
            (
                r#"{"index":"1","module_id":1,"bus_id":"0000:1a:00.0"}"#,
                "entry 1: index: invalid type",
            ),
            (
                r#"{"index":-1,"module_id":1,"bus_id":"0000:1a:00.0"}"#,
                "entry 1: index: invalid value",
            ),
            (
                r#"{"index":1,"module_id":1,"bus_id":"0000:1a:20.0"}"#,
                "entry 1: bus_id: not a PCI address",
            ),
            (
                r#"{"index":0,"module_id":1,"bus_id":"0000:1a:00.0"}"#,
                "entry 1: its index is that of entry 0",
            ),
            (
                r#"{"index":1,"module_id":1,"bus_id":"0000:19:00.0"}"#,
                "entry 1: its bus_id is that of entry 0",
            ),
            (
                r#"{"index":1,"module_id":0,"bus_id":"0000:1a:00.0"}"#,
                "entry 1: its module_id is that of entry 0",
            ),
        ];
        for (entry, cause) in cases {
            let seen = fault(&format!("[{good},{entry}]"));
            assert!(seen.contains(cause), "{entry}: wanted {cause:?} in {seen:?}");
        }
    }

    #[test]
    fn non_table_is_rejected_and_bounded() {
        assert!(fault("").contains("not a JSON array"));
        assert!(fault("{}").contains("not a JSON array"));
        assert!(fault("[] trailing").contains("not a JSON array"));
        assert!(fault("[]").contains("the array is empty"));
        assert!(fault(&" ".repeat(MAX_BYTES + 1)).contains("the text is too long"));
        let many = format!("[{}]", vec!["0"; MAX_ENTRIES + 1].join(","));
        assert!(fault(&many).contains("too many entries"));
        assert!(
            fault(&"[".repeat(60_000)).contains("not a JSON array"),
            "deep nesting ends in an error"
        );
    }
}
