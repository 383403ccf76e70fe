//! `gaudi info --query`: selected fields as CSV, with the names of hl-smi.

use anyhow::Result;

use super::{Card, joined};
use crate::output::Output;
use crate::report::{Column, columns};

/// Returns the generation of a PCI Express link with this number of megatransfers a second.
fn generation(megatransfers: u32) -> Option<u8> {
    Some(match megatransfers {
        2_500 => 1,
        5_000 => 2,
        8_000 => 3,
        16_000 => 4,
        32_000 => 5,
        64_000 => 6,
        _ => return None,
    })
}

/// The fields by the names of `hl-smi -Q`, each with its unit; fields that it does not have are
/// last.
const FIELDS: &[Column<Card>] = &columns! { Card:
    text "timestamp" "" |card| card.time;
    text "name" "" |card| card.info()?.card_name;
    text "bus_id" "" |card| card.seen()?.bus?.to_string();
    text "driver_version" "" |card| card.readings()?.driver_version;
    text "temperature.aip" "C" |card| card.readings()?.temperature_celsius?.round() as i64;
    text "module_id" "" |card| card.info()?.module_id;
    text "utilization.aip" "%" |card| card.telemetry()?.utilization_percent;
    text "memory.total" "MiB" |card| card.info()?.dram_bytes >> 20;
    text "memory.free" "MiB" |card| card.info()?.dram_free_bytes? >> 20;
    text "memory.used" "MiB" |card| card.info()?.dram_bytes.checked_sub(card.info()?.dram_free_bytes?)? >> 20;
    text "index" "" |card| card.info()?.device.index;
    text "power.draw" "W" |card| card.readings()?.power_watts?.round() as i64;
    text "power.max" "W" |card| card.readings()?.power_max_watts?.round() as i64;
    text "clocks.current.soc" "MHz" |card| card.telemetry()?.clock_mhz;
    text "clocks.max.soc" "MHz" |card| card.telemetry()?.clock_max_mhz;
    text "stats.violation.power" "" |card| u8::from(card.telemetry()?.throttled_by_power?);
    text "stats.violation.thermal" "" |card| u8::from(card.telemetry()?.throttled_by_heat?);
    text "pcie.link.gen.current" "" |card| generation(card.readings()?.pci_link_speed_mtps?);
    text "pcie.link.gen.max" "" |card| generation(card.readings()?.pci_link_max_speed_mtps?);
    text "pcie.link.width.current" "" |card| card.readings()?.pci_link_width;
    text "pcie.link.width.max" "" |card| card.readings()?.pci_link_max_width;
    text "spec" "" |card| card.spec.to_string();
    text "backend" "" |card| card.backend();
    text "status" "" |card| card.status();
    text "firmware" "" |card| card.info()?.firmware;
    text "in_use" "" |card| card.info()?.in_use?.to_string();
    text "users" "" |card| joined(&card.seen()?.users, " ", |user| user.pid.to_string());
    text "rows.replaced" "" |card| card.telemetry()?.rows_replaced;
    text "rows.pending" "" |card| card.telemetry()?.rows_pending;
    text "pcie.replays" "" |card| card.telemetry()?.pci_replays;
    text "resets" "" |card| card.telemetry()?.hard_resets;
};

/// The selected fields, and their format.
pub(super) struct Query {
    fields: Vec<&'static Column<Card>>,
    header: bool,
    units: bool,
}

impl Query {
    /// Takes fields and parts of a format that the command line's parser has validated.
    pub(super) fn new(names: &[String], format: &[String]) -> Self {
        let known = |name: &String| FIELDS.iter().find(|field| field.key == name);
        let without = |part: &str| !format.iter().any(|own| own == part);
        Self {
            fields: names.iter().filter_map(known).collect(),
            header: without("noheader"),
            units: without("nounits"),
        }
    }

    /// Returns the names of every field.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|field| field.key)
    }

    pub(super) fn print_header(&self, output: &mut Output) -> Result<()> {
        if !self.header {
            return Ok(());
        }
        output.line(joined(&self.fields, ", ", |field| match field.head {
            "" => field.key.to_owned(),
            unit => format!("{} [{unit}]", field.key),
        }))
    }

    pub(super) fn print(&self, card: &Card, output: &mut Output) -> Result<()> {
        output.line(joined(&self.fields, ", ", |field| {
            match field.text(card).filter(|value| !value.is_empty()) {
                None => "N/A".to_owned(),
                Some(value) if self.units && !field.head.is_empty() => format!("{value} {}", field.head),
                Some(value) => quoted(&value),
            }
        }))
    }
}

/// Quotes a value that has a comma, a quote or a line end in it, as RFC 4180 does.
fn quoted(value: &str) -> String {
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}
