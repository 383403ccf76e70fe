//! `gaudi list`, and `gaudi` alone: one row a device.

use anyhow::Result;
use gaudi_device::Info;
use gaudi_hal::Environment;
use gaudi_seam::{DeviceSpec, PciAddress};
use serde::Serialize;

use crate::args::Common;
use crate::exit;
use crate::info::{backend_of, chosen};
use crate::output::{Output, grouped};

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

pub(crate) fn run(common: &Common, output: &mut Output) -> Result<u8> {
    let environment = Environment::of_process();
    let named = !common.devices.is_empty() || environment.device.is_some();
    let mut devices: Vec<(DeviceSpec, Option<PciAddress>)> = if named {
        chosen(common)?.into_iter().map(|spec| (spec, None)).collect()
    } else {
        gaudi_hal::list()
            .into_iter()
            .map(|listed| (listed.spec, listed.bus))
            .collect()
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
    output.table(&header, &[3, 8, 9], &cells)?;
    Ok(exit::DONE)
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
