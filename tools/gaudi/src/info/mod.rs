//! `gaudi info`: a device's properties and state, through its control node.

mod query;
mod readings;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use gaudi::{BackendSpec, DeviceSpec, Environment, Error, Info, Telemetry};
use gaudi_seam::{Backend, KernelSelector, PciAddress};
use serde::Serialize;

use crate::common::Common;
use crate::exit::{self, Judged, Usage};
use crate::layers::around;
use crate::machine::Machine;
use crate::output::{Again, Output, grouped};
use crate::report::object;
use query::Query;
use readings::{Readings, User};

/// Show a device's properties and state, through its control node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gaudi info -d mock:gaudi2\n  \
                  gaudi info -d mock:gaudi2 -Q name,temperature.aip,memory.used")]
pub(crate) struct Arguments {
    #[command(flatten)]
    again: Again,
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
        return Ok(vec![around(common, gaudi_hal::choose(None, &environment)?)?]);
    }
    let each = common
        .devices
        .iter()
        .map(|spec| around(common, gaudi_hal::choose(Some(spec), &environment)?));
    each.collect()
}

/// The backend of a spec, in one word.
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
    let specs = chosen(common)?;
    if let Some(query) = &query {
        query.print_header(output)?;
    }
    for round in 0.. {
        let timestamp = timestamp(SystemTime::now());
        let cards: Vec<Card> = specs.iter().map(Card::query).collect();
        // With one device the failure is the result.
        if let [Card { seen: Err(error), .. }] = cards.as_slice() {
            return Err(error.clone().into());
        }
        if let Some(query) = &query {
            for card in &cards {
                query.print(card, &timestamp, output)?;
            }
        } else if output.is_json() {
            let devices: Vec<_> = cards.iter().map(Card::document).collect();
            // When the devices were queried (RFC 3339, UTC).
            output.document("gaudi.info", &object! { timestamp: timestamp, devices: devices })?;
        } else {
            if arguments.again.every.is_some() {
                if round > 0 {
                    output.line("")?;
                }
                output.line(&timestamp)?;
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

/// A time as RFC 3339 writes it, in UTC and whole seconds.
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

/// The PCI address of a card: that of its spec, or otherwise the one that the machine's list has
/// for its number.
fn bus_of(spec: &DeviceSpec, info: &Info) -> Option<PciAddress> {
    match &spec.backend {
        BackendSpec::Mock(_) | BackendSpec::Replay(_) => None,
        BackendSpec::Vfio(bus) | BackendSpec::Kernel(KernelSelector::Bus(bus)) => Some(*bus),
        _ => {
            let own = BackendSpec::Kernel(KernelSelector::Index(info.device.index));
            let listed = gaudi_hal::list()
                .into_iter()
                .find(|listed| listed.spec.backend == own)?;
            listed.bus
        }
    }
}

impl Card {
    fn query(spec: &DeviceSpec) -> Self {
        let seen = || {
            let io = gaudi_hal::control(spec)?;
            let info = Info::query(&*io)?;
            let machine = Machine::new("/");
            let bus = bus_of(spec, &info);
            let is_kernel = info.device.backend == Backend::Kernel;
            Ok(Seen {
                telemetry: Telemetry::query(&*io),
                readings: bus.map_or_else(Readings::default, |bus| machine.readings(bus)),
                users: is_kernel
                    .then(|| machine.users(info.device.index))
                    .unwrap_or_default(), // only the kernel's cards are shared
                bus,
                info,
            })
        };
        Self {
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

    fn backend(&self) -> &'static str {
        self.info()
            .map_or(backend_of(&self.spec), |info| info.device.backend.name())
    }

    fn status(&self) -> Option<String> {
        Some(self.info()?.status.to_string().to_lowercase())
    }

    /// Every field but the first few is `None` if there is an error.
    fn document(&self) -> impl Serialize + '_ {
        let (seen, info) = (self.seen(), self.info());
        let telemetry = seen.map_or_else(Telemetry::default, |seen| seen.telemetry.clone());
        object! {
            spec: self.spec.to_string(),
            backend: self.backend(),
            index: info.map(|info| info.device.index),
            error: self.seen.as_ref().err().map(Error::to_string),
            node: info.map(|info| &info.node),
            asic: info.and_then(|info| info.asic),
            card_name: info.map(|info| &info.card_name),
            pci_bus_id: seen.and_then(|seen| Some(seen.bus?.to_string())),
            pci_device_id: info.map(|info| format!("{:#06x}", info.device_id)),
            pci_revision: info.map(|info| info.revision),
            module_id: info.map(|info| info.module_id),
            status: self.status(),
            in_use: info.and_then(|info| info.in_use),
            opens: info.and_then(|info| info.opens),
            users: seen.map_or(&[][..], |seen| &seen.users),
            dram_base: info.map(|info| info.dram_base.to_string()),
            dram_size_bytes: info.map(|info| info.dram_bytes),
            dram_free_bytes: info.and_then(|info| info.dram_free_bytes),
            dram_page_size_bytes: info.map(|info| info.dram_page_bytes),
            dram_rows_replaced: telemetry.rows_replaced,
            dram_rows_pending: telemetry.rows_pending,
            sram_base: info.map(|info| info.sram_base.to_string()),
            sram_size_bytes: info.map(|info| info.sram_bytes),
            #[serde(flatten)]
            readings: seen.map_or_else(Readings::default, |seen| seen.readings.clone()),
            clock_mhz: telemetry.clock_mhz,
            clock_max_mhz: telemetry.clock_max_mhz,
            throttled_by_power: telemetry.throttled_by_power,
            throttled_by_heat: telemetry.throttled_by_heat,
            utilization_percent: telemetry.utilization_percent,
            pci_replays: telemetry.pci_replays,
            hard_resets: telemetry.hard_resets,
            firmware: info.map(|info| &info.firmware),
            cpld_version: info.map(|info| format!("{:#x}", info.cpld_version)),
            secured: info.map(|info| info.secured),
            tpc_enabled_mask: info.map(|info| format!("{:#x}", info.tpc_mask)),
            edma_enabled_mask: info.map(|info| format!("{:#x}", info.edma_mask)),
        }
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        output.line(format!("{}:", self.spec))?;
        let seen = match &self.seen {
            Ok(seen) => seen,
            Err(error) => return output.hanging("  ", &format!("< {error} >")),
        };
        let (info, telemetry, readings) = (&seen.info, &seen.telemetry, &seen.readings);
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let mib = |bytes: u64| format!("{} MiB", grouped(bytes >> 20));
        let temperature = readings
            .temperature_celsius
            .map(|degrees| match readings.temperature_sensors {
                None | Some(1) => format!("{degrees:.0} °C"),
                Some(sensors) => format!("{degrees:.0} °C (the hottest of {sensors} sensors)"),
            });
        let watts = |watts: f64| format!("{watts:.0} W");
        let mhz = |mhz: u32| format!("{} MHz", grouped(mhz.into()));
        let throttled = match (telemetry.throttled_by_power, telemetry.throttled_by_heat) {
            (None, None) => None,
            (Some(true), Some(true)) => Some("by power and by heat"),
            (Some(true), _) => Some("by power"),
            (_, Some(true)) => Some("by heat"),
            _ => Some("no"),
        };
        let replaced = telemetry.rows_replaced.zip(telemetry.rows_pending);
        let users = joined(&seen.users, ", ", |user| format!("{} {}", user.pid, user.name));
        let rows: [(&str, Option<String>); 29] = [
            ("backend", Some(self.backend().to_owned())),
            ("node", Some(info.node.clone())),
            ("chip", Some(info.asic.unwrap_or("unknown").to_owned())),
            ("card", Some(info.card_name.clone())),
            ("PCI address", seen.bus.map(|bus| bus.to_string())),
            (
                "PCI device, revision",
                Some(format!("{:#06x}, {}", info.device_id, info.revision)),
            ),
            (
                "PCI link",
                of(
                    link(readings.pci_link_speed_mtps, readings.pci_link_width),
                    link(readings.pci_link_max_speed_mtps, readings.pci_link_max_width),
                ),
            ),
            (
                "PCI replays",
                telemetry.pci_replays.map(|count| count.to_string()),
            ),
            ("module", Some(info.module_id.to_string())),
            ("status", self.status()),
            ("in use", info.in_use.map(yes)),
            (
                "users",
                Some(if users.is_empty() {
                    "none seen".to_owned()
                } else {
                    users
                }),
            ),
            ("opens", info.opens.map(|opens| opens.to_string())),
            (
                "hard resets",
                telemetry.hard_resets.map(|count| count.to_string()),
            ),
            ("temperature", temperature),
            (
                "power",
                of(
                    readings.power_watts.map(watts),
                    readings.power_max_watts.map(watts),
                ),
            ),
            (
                "clock",
                of(telemetry.clock_mhz.map(mhz), telemetry.clock_max_mhz.map(mhz)),
            ),
            ("throttled", throttled.map(str::to_owned)),
            (
                "utilization",
                telemetry
                    .utilization_percent
                    .map(|percent| format!("{percent} %")),
            ),
            (
                "device memory",
                Some(format!("{} from {}", mib(info.dram_bytes), info.dram_base)),
            ),
            ("free", info.dram_free_bytes.map(mib)),
            ("page", Some(mib(info.dram_page_bytes))),
            (
                "rows replaced, pending",
                replaced.map(|(replaced, pending)| format!("{replaced}, {pending} (after ECC errors)")),
            ),
            (
                "SRAM",
                Some(format!("{} from {}", mib(info.sram_bytes), info.sram_base)),
            ),
            ("firmware", Some(info.firmware.clone())),
            ("driver", readings.driver_version.clone()),
            ("CPLD", Some(format!("{:#x}", info.cpld_version))),
            ("secured", Some(yes(info.secured))),
            (
                "TPCs, EDMAs enabled",
                Some(format!("{:#x}, {:#x}", info.tpc_mask, info.edma_mask)),
            ),
        ];
        for (key, value) in rows {
            let value = value.as_deref().unwrap_or("not reported");
            output.hanging(&format!("  {key:<22} "), value)?;
        }
        Ok(())
    }
}

/// Texts of all `items` with `separator` between them.
fn joined<T>(items: &[T], separator: &str, text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(separator)
}

/// Two values as `226 W of 600 W`; the second if it is known.
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
