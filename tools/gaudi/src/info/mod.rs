//! `gaudi info`: a device's properties and state, through its control node.

mod query;
mod readings;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use gaudi::{
    Backend, BackendSpec, DeviceSpec, Environment, Error, Info, KernelSelector, PciAddress, Telemetry,
};
use gaudi_seam::{ReplayMatch, ReplaySpec};

use crate::common::Common;
use crate::exit::{self, Judged, Usage};
use crate::layers::around;
use crate::machine::Machine;
use crate::output::{Again, Output, grouped};
use crate::report::{Column, columns, object, records, shown};
use query::Query;
use readings::{Readings, User};

/// Show a device's properties and state, through its control node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gaudi info -d mock:gaudi2\n  \
                  gaudi info -d mock:gaudi2 -Q name,temperature.aip,memory.used")]
pub(crate) struct Arguments {
    #[command(flatten)]
    again: Again,
    /// Show what the answers in a .gcap file report, in place of a device.
    #[arg(long, value_name = "FILE")]
    from: Option<String>,
    /// Print these facts only, as CSV; the names are those of `hl-smi -Q`. A wrong name lists all.
    #[arg(short = 'Q', long, value_name = "FIELD", value_delimiter = ',', hide_possible_values = true,
          value_parser = clap::builder::PossibleValuesParser::new(Query::names()))]
    query: Vec<String>,
    /// Form of the CSV: csv, and with commas between them noheader and nounits.
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', default_value = "csv", hide_possible_values = true,
          value_parser = ["csv", "noheader", "nounits"], requires = "query")]
    format: Vec<String>,
}

/// A card as it was at one time.
struct Card {
    /// RFC 3339, UTC.
    time: String,
    spec: DeviceSpec,
    seen: Result<Seen, Error>,
}

/// What a card and the files of its machine report.
struct Seen {
    info: Info,
    telemetry: Telemetry,
    bus: Option<PciAddress>,
    readings: Readings,
    users: Vec<User>,
}

/// Returns the chosen devices: each `-d`, or otherwise the one of the environment or the machine.
pub(crate) fn chosen(common: &Common) -> Result<Vec<DeviceSpec>> {
    let environment = Environment::of_process();
    if common.devices.is_empty() {
        return Ok(vec![around(common, gaudi::choose(None, &environment)?)?]);
    }
    let each = common
        .devices
        .iter()
        .map(|spec| around(common, gaudi::choose(Some(spec), &environment)?));
    each.collect()
}

/// Returns the backend of a spec, in one word.
pub(crate) fn backend_of(spec: &DeviceSpec) -> &'static str {
    match spec.backend {
        BackendSpec::Mock(_) => "mock",
        BackendSpec::Vfio(_) => "vfio",
        BackendSpec::Replay(_) => "replay",
        _ => "kernel",
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments, output: &mut Output) -> Result<u8> {
    let query = match arguments.query.as_slice() {
        [] => None,
        fields => Some(Query::new(fields, &arguments.format)),
    };
    if query.is_some() && output.is_json() {
        return Err(Usage("--query prints CSV: leave out --json".to_owned()).into());
    }
    let specs = match &arguments.from {
        Some(_) if !common.devices.is_empty() => {
            return Err(Usage("--from and --device exclude each other".to_owned()).into());
        }
        Some(file) => {
            let replay = ReplaySpec {
                file: file.clone(),
                how: ReplayMatch::Best,
            };
            vec![around(common, DeviceSpec::bare(BackendSpec::Replay(replay)))?]
        }
        None => chosen(common)?,
    };
    if let Some(query) = &query {
        query.print_header(output)?;
    }
    for round in 0u64.. {
        let time = timestamp(SystemTime::now());
        let cards: Vec<Card> = specs.iter().map(|spec| Card::query(spec, &time)).collect();
        // With one device the failure is the result.
        if let [Card { seen: Err(error), .. }] = cards.as_slice() {
            return Err(error.clone().into());
        }
        if let Some(query) = &query {
            for card in &cards {
                query.print(card, output)?;
            }
        } else if output.is_json() {
            let report = object! { timestamp: time, devices: records(FACTS, &cards) };
            output.document("gaudi.info", &report)?;
        } else {
            if arguments.again.every.is_some() {
                if round > 0 {
                    output.line("")?;
                }
                output.line(&time)?;
            }
            for (number, card) in cards.iter().enumerate() {
                if number > 0 {
                    output.line("")?;
                }
                card.print(output)?;
            }
        }
        if !arguments.again.pause(output)? {
            // The result shows it in place; the exit code has its kind.
            if let Some(error) = cards.into_iter().find_map(|card| card.seen.err()) {
                return Err(Judged(error).into());
            }
            break;
        }
    }
    Ok(exit::DONE)
}

/// Formats a time as RFC 3339, in UTC and whole seconds.
fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days from 1 March of the year 0, so that a leap day ends a year; 400 years are 146 097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = era * 400 + year + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Returns the PCI address of a card: its spec's, or otherwise that of its number in the machine's
/// list.
fn bus_of(spec: &DeviceSpec, info: &Info) -> Option<PciAddress> {
    match &spec.backend {
        BackendSpec::Mock(_) | BackendSpec::Replay(_) => None,
        BackendSpec::Vfio(bus) | BackendSpec::Kernel(KernelSelector::Bus(bus)) => Some(*bus),
        _ => {
            let own = BackendSpec::Kernel(KernelSelector::Index(info.device.index));
            let listed = gaudi::list()
                .into_iter()
                .find(|listed| listed.spec.backend == own)?;
            listed.bus
        }
    }
}

impl Card {
    fn query(spec: &DeviceSpec, time: &str) -> Self {
        let seen = || {
            let io = gaudi_hal::control(spec)?;
            let info = Info::query(&*io)?;
            let machine = Machine::new("/");
            let bus = bus_of(spec, &info);
            Ok(Seen {
                telemetry: Telemetry::query(&*io),
                readings: bus.map_or_else(Readings::default, |bus| machine.readings(bus)),
                users: match info.device.backend {
                    Backend::Kernel => machine.users(info.device.index),
                    _ => Vec::new(),
                },
                bus,
                info,
            })
        };
        Self {
            time: time.to_owned(),
            spec: spec.clone(),
            seen: seen(),
        }
    }

    fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref().ok()
    }

    fn info(&self) -> Option<&Info> {
        Some(&self.seen()?.info)
    }

    fn readings(&self) -> Option<&Readings> {
        Some(&self.seen()?.readings)
    }

    fn telemetry(&self) -> Option<&Telemetry> {
        Some(&self.seen()?.telemetry)
    }

    fn backend(&self) -> &'static str {
        self.info()
            .map_or(backend_of(&self.spec), |info| info.device.backend.name())
    }

    fn status(&self) -> Option<String> {
        Some(self.info()?.status.to_string().to_lowercase())
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        output.line(format!("{}:", self.spec))?;
        if let Err(error) = &self.seen {
            return output.hanging("  ", &format!("< {error} >"));
        }
        for fact in shown(FACTS) {
            let value = fact.text(self);
            let value = value.as_deref().unwrap_or("not reported");
            output.hanging(&format!("  {:<22} ", fact.head), value)?;
        }
        Ok(())
    }
}

/// The facts of a card, for documents and text. If there is an error, only the first few have a
/// value.
const FACTS: &[Column<Card>] = &columns! { Card:
    text "spec" "" |card| card.spec.to_string();
    text "backend" "backend" |card| card.backend();
    text "index" "" |card| card.info()?.device.index;
    text "error" "" |card| card.seen.as_ref().err()?.to_string();
    text "node" "node" |card| card.info()?.node;
    text "asic" "" |card| card.info()?.asic;
    text "" "chip" |card| card.info()?.asic.unwrap_or("unknown");
    text "card_name" "card" |card| card.info()?.card_name;
    text "pci_bus_id" "PCI address" |card| card.seen()?.bus?.to_string();
    text "pci_device_id" "" |card| hex(card.info()?.device_id, 6);
    text "pci_revision" "" |card| card.info()?.revision;
    text "" "PCI device, revision" |card| format!("{:#06x}, {}", card.info()?.device_id, card.info()?.revision);
    text "pci_link_speed_mtps" "" |card| card.readings()?.pci_link_speed_mtps;
    text "pci_link_width" "" |card| card.readings()?.pci_link_width;
    text "pci_link_max_speed_mtps" "" |card| card.readings()?.pci_link_max_speed_mtps;
    text "pci_link_max_width" "" |card| card.readings()?.pci_link_max_width;
    text "" "PCI link" |card| {
        let links = card.readings()?;
        of(
            link(links.pci_link_speed_mtps, links.pci_link_width),
            link(links.pci_link_max_speed_mtps, links.pci_link_max_width),
        )
    };
    number "pci_replays" "PCI replays" |card| card.telemetry()?.pci_replays;
    number "module_id" "module" |card| card.info()?.module_id;
    text "status" "status" |card| card.status();
    text "in_use" "in use" |card| card.info()?.in_use;
    text "users" "" |card| card.seen().map_or(&[][..], |seen| &seen.users);
    text "" "users" |card| match card.seen()?.users.as_slice() {
        [] => "none seen".to_owned(),
        users => joined(users, ", ", |user| format!("{} {}", user.pid, user.name)),
    };
    number "opens" "opens" |card| card.info()?.opens;
    number "hard_resets" "hard resets" |card| card.telemetry()?.hard_resets;
    text "temperature_celsius" "" |card| card.readings()?.temperature_celsius;
    text "temperature_sensors" "" |card| card.readings()?.temperature_sensors;
    text "" "temperature" |card| {
        let (degrees, sensors) = (card.readings()?.temperature_celsius?, card.readings()?.temperature_sensors?);
        match sensors {
            1 => format!("{degrees:.0} °C"),
            _ => format!("{degrees:.0} °C (the hottest of {sensors} sensors)"),
        }
    };
    text "power_watts" "" |card| card.readings()?.power_watts;
    text "power_max_watts" "" |card| card.readings()?.power_max_watts;
    text "" "power" |card| of(card.readings()?.power_watts.map(watts), card.readings()?.power_max_watts.map(watts));
    text "clock_mhz" "" |card| card.telemetry()?.clock_mhz;
    text "clock_max_mhz" "" |card| card.telemetry()?.clock_max_mhz;
    text "" "clock" |card| of(card.telemetry()?.clock_mhz.map(mhz), card.telemetry()?.clock_max_mhz.map(mhz));
    text "throttled_by_power" "" |card| card.telemetry()?.throttled_by_power;
    text "throttled_by_heat" "" |card| card.telemetry()?.throttled_by_heat;
    text "" "throttled" |card| match (card.telemetry()?.throttled_by_power, card.telemetry()?.throttled_by_heat) {
        (None, None) => None,
        (Some(true), Some(true)) => Some("by power and by heat"),
        (Some(true), _) => Some("by power"),
        (_, Some(true)) => Some("by heat"),
        _ => Some("no"),
    };
    text "utilization_percent" "" |card| card.telemetry()?.utilization_percent;
    text "" "utilization" |card| format!("{} %", card.telemetry()?.utilization_percent?);
    text "dram_base" "" |card| card.info()?.dram_base.to_string();
    text "dram_size_bytes" "" |card| card.info()?.dram_bytes;
    text "" "device memory" |card| format!("{} from {}", mib(card.info()?.dram_bytes), card.info()?.dram_base);
    text "dram_free_bytes" "" |card| card.info()?.dram_free_bytes;
    text "" "free" |card| mib(card.info()?.dram_free_bytes?);
    text "dram_page_size_bytes" "" |card| card.info()?.dram_page_bytes;
    text "" "page" |card| mib(card.info()?.dram_page_bytes);
    text "dram_rows_replaced" "" |card| card.telemetry()?.rows_replaced;
    text "dram_rows_pending" "" |card| card.telemetry()?.rows_pending;
    text "" "rows replaced, pending" |card| {
        let (replaced, pending) = (card.telemetry()?.rows_replaced?, card.telemetry()?.rows_pending?);
        format!("{replaced}, {pending} (after ECC errors)")
    };
    text "sram_base" "" |card| card.info()?.sram_base.to_string();
    text "sram_size_bytes" "" |card| card.info()?.sram_bytes;
    text "" "SRAM" |card| format!("{} from {}", mib(card.info()?.sram_bytes), card.info()?.sram_base);
    text "firmware" "firmware" |card| card.info()?.firmware;
    text "driver_version" "driver" |card| card.readings()?.driver_version;
    text "cpld_version" "CPLD" |card| hex(card.info()?.cpld_version, 0);
    text "secured" "secured" |card| card.info()?.secured;
    text "tpc_enabled_mask" "" |card| hex(card.info()?.tpc_mask, 0);
    text "edma_enabled_mask" "" |card| hex(card.info()?.edma_mask, 0);
    text "" "TPCs, EDMAs enabled" |card| format!("{:#x}, {:#x}", card.info()?.tpc_mask, card.info()?.edma_mask);
};

fn hex(number: impl Into<u64>, width: usize) -> String {
    format!("{:#0width$x}", number.into())
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", grouped(bytes >> 20))
}

fn mhz(mhz: u32) -> String {
    format!("{} MHz", grouped(mhz.into()))
}

fn watts(watts: f64) -> String {
    format!("{watts:.0} W")
}

/// Joins the texts of all `items` with `separator`.
fn joined<T>(items: &[T], separator: &str, text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(separator)
}

/// Formats two values as `226 W of 600 W`; the second only if it is known.
fn of(value: Option<String>, most: Option<String>) -> Option<String> {
    Some(match most {
        Some(most) => format!("{} of {most}", value?),
        None => value?,
    })
}

fn link(speed: Option<u32>, width: Option<u32>) -> Option<String> {
    Some(format!("{} GT/s x{}", f64::from(speed?) / 1000.0, width?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_are_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
