//! `gaudi list`, and `gaudi` alone: one row a device.

use anyhow::Result;
use gaudi_device::Info;
use gaudi_hal::Environment;
use gaudi_seam::{DeviceSpec, Error, ErrorKind, PciAddress};
use serde::Serialize;

use crate::args;
use crate::common::Common;
use crate::exit;
use crate::info::{backend_of, chosen};
use crate::layers::around;
use crate::output::{Output, grouped};
use crate::table::Layout;

#[derive(Serialize)]
struct Listing {
    devices: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    spec: String,
    backend: &'static str,
    pci_bus_id: Option<String>,
    module_id: Option<u32>,
    name: Option<String>,
    asic: Option<&'static str>,
    status: Option<String>,
    in_use: Option<bool>,
    dram_size_bytes: Option<u64>,
    dram_free_bytes: Option<u64>,
    /// Why the other fields are missing.
    error: Option<String>,
}

pub(crate) fn run(common: &Common, list: &args::List, output: &mut Output) -> Result<u8> {
    if list.mapping_table {
        return mapping_table(output);
    }
    if list.names {
        let mut devices = gaudi_hal::list();
        devices.sort_by_key(|device| device.bus);
        for device in devices {
            output.line(device.spec.to_string())?;
        }
        return Ok(exit::DONE);
    }
    loop {
        let code = show(common, output)?;
        if !list.again.pause(output)? {
            return Ok(code);
        }
    }
}

fn show(common: &Common, output: &mut Output) -> Result<u8> {
    let environment = Environment::of_process();
    let named = !common.devices.is_empty() || environment.device.is_some();
    let mut devices: Vec<(DeviceSpec, Option<PciAddress>)> = if named {
        chosen(common)?.into_iter().map(|spec| (spec, None)).collect()
    } else {
        gaudi_hal::list()
            .into_iter()
            .map(|listed| Ok((around(common, listed.spec)?, listed.bus)))
            .collect::<Result<_>>()?
    };
    if !named {
        devices.sort_by_key(|(_, bus)| *bus);
    }
    let rows: Vec<Row> = devices.iter().map(|(spec, bus)| row(spec, *bus)).collect();
    if output.is_json() {
        output.document("gaudi.list", &Listing { devices: rows })?;
        return Ok(exit::DONE);
    }
    if rows.is_empty() {
        output.note("no device found on this machine");
        output.note("  help: to look at a mock instead: gaudi list -d mock:gaudi2");
        return Ok(exit::DONE);
    }
    let dash = || "-".to_owned();
    let mib = |bytes: Option<u64>| bytes.map_or_else(dash, |bytes| grouped(bytes >> 20));
    let header = [
        "device",
        "backend",
        "bus id",
        "module",
        "name",
        "chip",
        "status",
        "in use",
        "memory[MiB]",
        "free[MiB]",
    ];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.spec.clone(),
                row.backend.to_owned(),
                row.pci_bus_id.clone().unwrap_or_else(dash),
                row.module_id.map_or_else(dash, |id| id.to_string()),
                row.name.clone().unwrap_or_else(dash),
                row.asic.unwrap_or("-").to_owned(),
                row.status
                    .clone()
                    .unwrap_or_else(|| format!("< {} >", row.error.as_deref().unwrap_or("unknown"))),
                row.in_use
                    .map_or_else(dash, |used| if used { "yes" } else { "no" }.to_owned()),
                mib(row.dram_size_bytes),
                mib(row.dram_free_bytes),
            ]
        })
        .collect();
    let layout = Layout {
        numbers: &[3, 8, 9],
        // Chip, module, backend and name follow from the device.
        optional: &[5, 3, 1, 4],
        ..Layout::default()
    };
    output.table_in(&header, &cells, layout)?;
    Ok(exit::DONE)
}

/// The table in force, in the form that the variable has, so that it can be exported as it is
/// printed.
#[derive(Serialize)]
struct Table {
    /// `environment`, or `machine` where the variable is not set.
    source: &'static str,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    index: u32,
    module_id: u32,
    bus_id: String,
}

fn mapping_table(output: &mut Output) -> Result<u8> {
    let (source, entries) = match Environment::of_process().table()? {
        Some(table) => {
            let entries = table.entries().iter();
            let entries = entries.map(|entry| Entry {
                index: entry.index,
                module_id: entry.module_id,
                bus_id: entry.bus.to_string(),
            });
            ("environment", entries.collect::<Vec<_>>())
        }
        None => ("machine", of_machine()?),
    };
    if entries.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "list --mapping-table")
            .because(format!(
                "{} is not set, and this machine has no device to make a table of",
                gaudi_hal::TABLE_VARIABLE
            ))
            .into());
    }
    if output.is_json() {
        output.document("gaudi.mapping_table", &Table { source, entries })?;
    } else {
        output.line(serde_json::to_string(&entries)?)?;
    }
    Ok(exit::DONE)
}

/// The devices of this machine that say which module they are, by PCI address.
fn of_machine() -> Result<Vec<Entry>> {
    let mut devices: Vec<_> = gaudi_hal::list()
        .into_iter()
        .filter_map(|listed| Some((listed.bus?, listed.spec)))
        .collect();
    devices.sort_by_key(|&(bus, _)| bus);
    let each = (0..).zip(devices).map(|(index, (bus, spec))| {
        let info = gaudi_hal::control(&spec).and_then(|io| Info::query(&*io))?;
        Ok(Entry {
            index,
            module_id: info.module_id,
            bus_id: bus.to_string(),
        })
    });
    each.collect()
}

/// A device that cannot be asked keeps its row, with the reason in place.
fn row(spec: &DeviceSpec, bus: Option<PciAddress>) -> Row {
    let answer = gaudi_hal::control(spec).and_then(|io| Info::query(&*io));
    let backend = backend_of(spec);
    let (spec, pci_bus_id) = (spec.to_string(), bus.map(|bus| bus.to_string()));
    match answer {
        Ok(info) => Row {
            spec,
            backend: info.device.backend.name(),
            pci_bus_id,
            module_id: Some(info.module_id),
            name: Some(info.card_name),
            asic: info.asic,
            status: Some(info.status.to_string().to_lowercase()),
            in_use: info.in_use,
            dram_size_bytes: Some(info.dram_bytes),
            dram_free_bytes: info.dram_free_bytes,
            error: None,
        },
        Err(error) => Row {
            spec,
            backend,
            pci_bus_id,
            module_id: None,
            name: None,
            asic: None,
            status: None,
            in_use: None,
            dram_size_bytes: None,
            dram_free_bytes: None,
            error: Some(error.to_string()),
        },
    }
}
