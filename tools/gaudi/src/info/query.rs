//! `gaudi info --query`: selected fields as CSV, with the names of hl-smi.

use anyhow::Result;

use super::{Card, joined};
use crate::output::Output;

/// A field that can be selected.
struct Field {
    name: &'static str,
    unit: &'static str,
    /// From the card and the time of the reading.
    value: fn(&Card, &str) -> Option<String>,
}

fn shown(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn mib(bytes: u64) -> Option<String> {
    shown(bytes >> 20)
}

/// The generation of a PCI Express link of so many megatransfers a second.
fn generation(megatransfers: u32) -> Option<String> {
    shown(match megatransfers {
        2_500 => 1,
        5_000 => 2,
        8_000 => 3,
        16_000 => 4,
        32_000 => 5,
        64_000 => 6,
        _ => return None,
    })
}

macro_rules! fields {
    ($($name:literal $unit:literal $value:expr;)*) => {
        const FIELDS: &[Field] = &[$(Field { name: $name, unit: $unit, value: $value }),*];
    };
}

// The names of `hl-smi -Q`; fields that it does not have are last.
fields! {
    "timestamp" "" |_, time| shown(time);
    "name" "" |card, _| shown(&card.info()?.card_name);
    "bus_id" "" |card, _| shown(card.seen()?.bus?);
    "driver_version" "" |card, _| card.seen()?.readings.driver_version.clone();
    "temperature.aip" "C" |card, _| shown(card.seen()?.readings.temperature_celsius?.round());
    "module_id" "" |card, _| shown(card.info()?.module_id);
    "utilization.aip" "%" |card, _| shown(card.seen()?.telemetry.utilization_percent?);
    "memory.total" "MiB" |card, _| mib(card.info()?.dram_bytes);
    "memory.free" "MiB" |card, _| mib(card.info()?.dram_free_bytes?);
    "memory.used" "MiB" |card, _| mib(card.info()?.dram_bytes.checked_sub(card.info()?.dram_free_bytes?)?);
    "index" "" |card, _| shown(card.info()?.device.index);
    "power.draw" "W" |card, _| shown(card.seen()?.readings.power_watts?.round());
    "power.max" "W" |card, _| shown(card.seen()?.readings.power_max_watts?.round());
    "clocks.current.soc" "MHz" |card, _| shown(card.seen()?.telemetry.clock_mhz?);
    "clocks.max.soc" "MHz" |card, _| shown(card.seen()?.telemetry.clock_max_mhz?);
    "stats.violation.power" "" |card, _| shown(u8::from(card.seen()?.telemetry.throttled_by_power?));
    "stats.violation.thermal" "" |card, _| shown(u8::from(card.seen()?.telemetry.throttled_by_heat?));
    "pcie.link.gen.current" "" |card, _| generation(card.seen()?.readings.pci_link_speed_mtps?);
    "pcie.link.gen.max" "" |card, _| generation(card.seen()?.readings.pci_link_max_speed_mtps?);
    "pcie.link.width.current" "" |card, _| shown(card.seen()?.readings.pci_link_width?);
    "pcie.link.width.max" "" |card, _| shown(card.seen()?.readings.pci_link_max_width?);
    "spec" "" |card, _| shown(&card.spec);
    "backend" "" |card, _| shown(card.backend());
    "status" "" |card, _| card.status();
    "firmware" "" |card, _| shown(&card.info()?.firmware);
    "in_use" "" |card, _| shown(card.info()?.in_use?);
    "users" "" |card, _| shown(joined(&card.seen()?.users, " ", |user| user.pid.to_string()));
    "rows.replaced" "" |card, _| shown(card.seen()?.telemetry.rows_replaced?);
    "rows.pending" "" |card, _| shown(card.seen()?.telemetry.rows_pending?);
    "pcie.replays" "" |card, _| shown(card.seen()?.telemetry.pci_replays?);
    "resets" "" |card, _| shown(card.seen()?.telemetry.hard_resets?);
}

/// The selected fields, and their format.
pub(super) struct Query {
    fields: Vec<&'static Field>,
    header: bool,
    units: bool,
}

impl Query {
    /// Takes fields and parts of a format that the command line's parser has validated.
    pub(super) fn new(names: &[String], format: &[String]) -> Self {
        let known = |name: &String| FIELDS.iter().find(|field| field.name == name);
        let without = |part: &str| !format.iter().any(|own| own == part);
        Self {
            fields: names.iter().filter_map(known).collect(),
            header: without("noheader"),
            units: without("nounits"),
        }
    }

    /// The names of every field.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|field| field.name)
    }

    pub(super) fn print_header(&self, output: &mut Output) -> Result<()> {
        if !self.header {
            return Ok(());
        }
        let names = self.fields.iter().map(|field| match field.unit {
            "" => field.name.to_owned(),
            unit => format!("{} [{unit}]", field.name),
        });
        output.line(names.collect::<Vec<_>>().join(", "))
    }

    pub(super) fn print(&self, card: &Card, time: &str, output: &mut Output) -> Result<()> {
        let values = self.fields.iter().map(|field| {
            let value = (field.value)(card, time).filter(|value| !value.is_empty());
            match value {
                None => "N/A".to_owned(),
                Some(value) if self.units && !field.unit.is_empty() => format!("{value} {}", field.unit),
                Some(value) => quoted(&value),
            }
        });
        output.line(values.collect::<Vec<_>>().join(", "))
    }
}

/// A value as RFC 4180 writes it where it has a comma, a quote or a line end in it.
fn quoted(value: &str) -> String {
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value.to_owned(),
    }
}
