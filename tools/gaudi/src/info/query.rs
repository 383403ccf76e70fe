//! `gaudi info --query`: selected fields as CSV, with the names of hl-smi.

use anyhow::Result;

use super::Described;
use crate::output::Output;

/// A field that can be selected.
struct Field {
    name: &'static str,
    unit: &'static str,
    /// From the device and the time of the reading.
    value: fn(&Described, &str) -> Option<String>,
}

fn shown<T: ToString>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn mib(bytes: Option<u64>) -> Option<String> {
    shown(bytes.map(|bytes| bytes >> 20))
}

/// The generation of a PCI Express link of so many megatransfers a second.
fn generation(speed: Option<u32>) -> Option<String> {
    let number = match speed? {
        2_500 => 1,
        5_000 => 2,
        8_000 => 3,
        16_000 => 4,
        32_000 => 5,
        64_000 => 6,
        _ => return None,
    };
    Some(number.to_string())
}

macro_rules! fields {
    ($($name:literal $unit:literal $value:expr;)*) => {
        const FIELDS: &[Field] = &[$(Field { name: $name, unit: $unit, value: $value }),*];
    };
}

// The names of `hl-smi -Q`; fields that it does not have are last.
fields! {
    "timestamp" "" |_, time| Some(time.to_owned());
    "name" "" |device, _| device.card_name.clone();
    "bus_id" "" |device, _| device.pci_bus_id.clone();
    "driver_version" "" |device, _| device.readings.driver_version.clone();
    "temperature.aip" "C" |device, _| shown(device.readings.temperature_celsius.map(f64::round));
    "module_id" "" |device, _| shown(device.module_id);
    "utilization.aip" "%" |device, _| shown(device.utilization_percent);
    "memory.total" "MiB" |device, _| mib(device.dram_size_bytes);
    "memory.free" "MiB" |device, _| mib(device.dram_free_bytes);
    "memory.used" "MiB" |device, _| mib(device.dram_size_bytes.zip(device.dram_free_bytes)
        .and_then(|(all, free)| all.checked_sub(free)));
    "index" "" |device, _| shown(device.index);
    "power.draw" "W" |device, _| shown(device.readings.power_watts.map(f64::round));
    "power.max" "W" |device, _| shown(device.readings.power_max_watts.map(f64::round));
    "clocks.current.soc" "MHz" |device, _| shown(device.clock_mhz);
    "clocks.max.soc" "MHz" |device, _| shown(device.clock_max_mhz);
    "stats.violation.power" "" |device, _| shown(device.throttled_by_power.map(u8::from));
    "stats.violation.thermal" "" |device, _| shown(device.throttled_by_heat.map(u8::from));
    "pcie.link.gen.current" "" |device, _| generation(device.readings.pci_link_speed_mtps);
    "pcie.link.gen.max" "" |device, _| generation(device.readings.pci_link_max_speed_mtps);
    "pcie.link.width.current" "" |device, _| shown(device.readings.pci_link_width);
    "pcie.link.width.max" "" |device, _| shown(device.readings.pci_link_max_width);
    "spec" "" |device, _| Some(device.spec.clone());
    "backend" "" |device, _| Some(device.backend.to_owned());
    "status" "" |device, _| device.status.clone();
    "firmware" "" |device, _| device.firmware.clone();
    "in_use" "" |device, _| shown(device.in_use);
    "users" "" |device, _| Some(device.users.iter().map(|user| user.pid.to_string()).collect::<Vec<_>>().join(" "));
    "rows.replaced" "" |device, _| shown(device.dram_rows_replaced);
    "rows.pending" "" |device, _| shown(device.dram_rows_pending);
    "pcie.replays" "" |device, _| shown(device.pci_replays);
    "resets" "" |device, _| shown(device.hard_resets);
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

    pub(super) fn print(&self, device: &Described, time: &str, output: &mut Output) -> Result<()> {
        let values = self.fields.iter().map(|field| {
            let value = (field.value)(device, time).filter(|value| !value.is_empty());
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
