//! `gaudi info`: a device's properties and state, through its control node.

mod machine;
mod query;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gaudi_device::{Info, Telemetry};
use gaudi_hal::Environment;
use gaudi_seam::{Backend, BackendSpec, DeviceSpec, KernelSelector, PciAddress};
use serde::Serialize;

use crate::args;
use crate::common::Common;
use crate::exit::{self, Judged, Usage};
use crate::layers::around;
use crate::output::{Output, grouped};
use machine::{Machine, Readings, User};
use query::Query;

#[derive(Serialize)]
struct Report {
    /// When the devices were queried (RFC 3339, UTC).
    timestamp: String,
    devices: Vec<Described>,
}

#[derive(Default, Serialize)]
struct Described {
    spec: String,
    backend: &'static str,
    index: Option<u32>,
    /// Why all later fields are `None`.
    error: Option<String>,
    node: Option<String>,
    asic: Option<&'static str>,
    card_name: Option<String>,
    pci_bus_id: Option<String>,
    pci_device_id: Option<String>,
    pci_revision: Option<u8>,
    module_id: Option<u32>,
    status: Option<String>,
    in_use: Option<bool>,
    opens: Option<u64>,
    users: Vec<User>,
    dram_base: Option<String>,
    dram_size_bytes: Option<u64>,
    dram_free_bytes: Option<u64>,
    dram_page_size_bytes: Option<u64>,
    dram_rows_replaced: Option<u32>,
    dram_rows_pending: Option<u32>,
    sram_base: Option<String>,
    sram_size_bytes: Option<u64>,
    #[serde(flatten)]
    readings: Readings,
    clock_mhz: Option<u32>,
    clock_max_mhz: Option<u32>,
    throttled_by_power: Option<bool>,
    throttled_by_heat: Option<bool>,
    utilization_percent: Option<u32>,
    pci_replays: Option<u64>,
    hard_resets: Option<u32>,
    firmware: Option<String>,
    cpld_version: Option<String>,
    secured: Option<bool>,
    tpc_enabled_mask: Option<String>,
    edma_enabled_mask: Option<String>,
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

pub(crate) fn run(common: &Common, info: &args::Info, output: &mut Output) -> Result<u8> {
    let query = match info.query.as_slice() {
        [] => None,
        fields => Some(Query::new(fields, &info.format)),
    };
    if query.is_some() && output.is_json() {
        return Err(Usage("--query prints CSV: leave out --json".to_owned()).into());
    }
    let specs = chosen(common)?;
    if let Some(query) = &query {
        query.print_header(output)?;
    }
    let mut rounds = 0;
    loop {
        let timestamp = timestamp(SystemTime::now());
        let mut failed = None;
        let mut devices = Vec::new();
        for spec in &specs {
            match describe(spec) {
                Ok(device) => devices.push(device),
                // With one device the failure is the result.
                Err(error) if specs.len() == 1 => return Err(error.into()),
                Err(error) => {
                    devices.push(Described {
                        spec: spec.to_string(),
                        backend: backend_of(spec),
                        error: Some(error.to_string()),
                        ..Described::default()
                    });
                    failed.get_or_insert(error);
                }
            }
        }
        if let Some(query) = &query {
            for device in &devices {
                query.print(device, &timestamp, output)?;
            }
        } else if output.is_json() {
            output.document("gaudi.info", &Report { timestamp, devices })?;
        } else {
            if info.again.every.is_some() {
                if rounds > 0 {
                    output.line("")?;
                }
                output.line(&timestamp)?;
            }
            for (number, device) in devices.iter().enumerate() {
                if number > 0 {
                    output.line("")?;
                }
                print(device, output)?;
            }
        }
        rounds += 1;
        if !info.again.pause(output)? {
            return match failed {
                // The result shows it in place; the exit code has its kind.
                Some(error) => Err(Judged(error).into()),
                None => Ok(exit::DONE),
            };
        }
    }
}

/// The fields of `--query`.
pub(crate) fn query_names() -> impl Iterator<Item = &'static str> {
    Query::names()
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

fn describe(spec: &DeviceSpec) -> gaudi_seam::Result<Described> {
    let io = gaudi_hal::control(spec)?;
    let info = Info::query(&*io)?;
    let telemetry = Telemetry::query(&*io);
    let machine = Machine::new("/");
    let bus = bus_of(spec, &info);
    let is_kernel = info.device.backend == Backend::Kernel;
    Ok(Described {
        spec: spec.to_string(),
        backend: info.device.backend.name(),
        index: Some(info.device.index),
        error: None,
        node: Some(info.node),
        asic: info.asic,
        card_name: Some(info.card_name),
        pci_bus_id: bus.map(|bus| bus.to_string()),
        pci_device_id: Some(format!("{:#06x}", info.device_id)),
        pci_revision: Some(info.revision),
        module_id: Some(info.module_id),
        status: Some(info.status.to_string().to_lowercase()),
        in_use: info.in_use,
        opens: info.opens,
        users: if is_kernel {
            machine.users(info.device.index)
        } else {
            Vec::new()
        },
        dram_base: Some(info.dram_base.to_string()),
        dram_size_bytes: Some(info.dram_bytes),
        dram_free_bytes: info.dram_free_bytes,
        dram_page_size_bytes: Some(info.dram_page_bytes),
        dram_rows_replaced: telemetry.rows_replaced,
        dram_rows_pending: telemetry.rows_pending,
        sram_base: Some(info.sram_base.to_string()),
        sram_size_bytes: Some(info.sram_bytes),
        readings: bus.map(|bus| machine.readings(bus)).unwrap_or_default(),
        clock_mhz: telemetry.clock_mhz,
        clock_max_mhz: telemetry.clock_max_mhz,
        throttled_by_power: telemetry.throttled_by_power,
        throttled_by_heat: telemetry.throttled_by_heat,
        utilization_percent: telemetry.utilization_percent,
        pci_replays: telemetry.pci_replays,
        hard_resets: telemetry.hard_resets,
        firmware: Some(info.firmware),
        cpld_version: Some(format!("{:#x}", info.cpld_version)),
        secured: Some(info.secured),
        tpc_enabled_mask: Some(format!("{:#x}", info.tpc_mask)),
        edma_enabled_mask: Some(format!("{:#x}", info.edma_mask)),
    })
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

fn print(device: &Described, output: &mut Output) -> Result<()> {
    output.line(format!("{}:", device.spec))?;
    if let Some(error) = &device.error {
        return output.hanging("  ", &format!("< {error} >"));
    }
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mib = |bytes: u64| format!("{} MiB", grouped(bytes >> 20));
    let text = |number: u32| number.to_string();
    let readings = &device.readings;
    let temperature = readings.temperature_celsius.map(|degrees| {
        let sensors = readings.temperature_sensors.unwrap_or(1);
        match sensors {
            1 => format!("{degrees:.0} °C"),
            _ => format!("{degrees:.0} °C (the hottest of {sensors} sensors)"),
        }
    });
    let watts = |watts: f64| format!("{watts:.0} W");
    let mhz = |mhz: u32| format!("{} MHz", grouped(mhz.into()));
    let users: Vec<String> = device
        .users
        .iter()
        .map(|user| format!("{} {}", user.pid, user.name))
        .collect();
    let at =
        |bytes: Option<u64>, base: &Option<String>| Some(format!("{} from {}", mib(bytes?), base.as_ref()?));
    let throttled = match (device.throttled_by_power, device.throttled_by_heat) {
        (None, None) => None,
        (Some(true), Some(true)) => Some("by power and by heat".to_owned()),
        (Some(true), _) => Some("by power".to_owned()),
        (_, Some(true)) => Some("by heat".to_owned()),
        _ => Some("no".to_owned()),
    };
    let rows: [(&str, Option<String>); 29] = [
        ("backend", Some(device.backend.to_owned())),
        ("node", device.node.clone()),
        ("chip", Some(device.asic.unwrap_or("unknown").to_owned())),
        ("card", device.card_name.clone()),
        ("PCI address", device.pci_bus_id.clone()),
        (
            "PCI device, revision",
            of_two(&device.pci_device_id, device.pci_revision),
        ),
        (
            "PCI link",
            of(
                link(readings.pci_link_speed_mtps, readings.pci_link_width),
                link(readings.pci_link_max_speed_mtps, readings.pci_link_max_width),
            ),
        ),
        ("PCI replays", device.pci_replays.map(|count| count.to_string())),
        ("module", device.module_id.map(text)),
        ("status", device.status.clone()),
        ("in use", device.in_use.map(yes)),
        (
            "users",
            Some(if users.is_empty() {
                "none seen".to_owned()
            } else {
                users.join(", ")
            }),
        ),
        ("opens", device.opens.map(|opens| opens.to_string())),
        ("hard resets", device.hard_resets.map(text)),
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
            of(device.clock_mhz.map(mhz), device.clock_max_mhz.map(mhz)),
        ),
        ("throttled", throttled),
        (
            "utilization",
            device.utilization_percent.map(|percent| format!("{percent} %")),
        ),
        ("device memory", at(device.dram_size_bytes, &device.dram_base)),
        ("free", device.dram_free_bytes.map(mib)),
        ("page", device.dram_page_size_bytes.map(mib)),
        (
            "rows replaced, pending",
            device
                .dram_rows_replaced
                .zip(device.dram_rows_pending)
                .map(|(replaced, pending)| format!("{replaced}, {pending} (after ECC errors)")),
        ),
        ("SRAM", at(device.sram_size_bytes, &device.sram_base)),
        ("firmware", device.firmware.clone()),
        ("driver", readings.driver_version.clone()),
        ("CPLD", device.cpld_version.clone()),
        ("secured", device.secured.map(yes)),
        (
            "TPCs, EDMAs enabled",
            of_two(&device.tpc_enabled_mask, device.edma_enabled_mask.as_ref()),
        ),
    ];
    for (key, value) in rows {
        let value = value.unwrap_or_else(|| "not reported".to_owned());
        output.hanging(&format!("  {key:<22} "), &value)?;
    }
    Ok(())
}

fn of_two(first: &Option<String>, second: Option<impl std::fmt::Display>) -> Option<String> {
    Some(format!("{}, {}", first.as_ref()?, second?))
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
