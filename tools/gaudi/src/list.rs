//! `gaudi list`, and `gaudi` alone: one row a device.

use anyhow::Result;
use clap::Args;
use gaudi::{DeviceSpec, Environment, Error, ErrorKind, Info, Listed, PciAddress};
use gaudi_hal::{TABLE_VARIABLE, control};
use serde::Serialize;

use crate::common::Common;
use crate::exit;
use crate::info::{backend_of, chosen};
use crate::layers::around;
use crate::output::{Again, Output};
use crate::report::{Column, columns, object, records};

/// List the devices, by PCI address.
#[derive(Debug, Default, Args)]
#[command(
    after_help = "Examples:\n  gaudi list -d mock:gaudi2 -d 'mock:gaudi2?index=1' --json\n  \
                        export GAUDI_MAPPING_TABLE=\"$(gaudi list --mapping-table)\""
)]
pub(crate) struct List {
    #[command(flatten)]
    again: Again,
    /// Print the GAUDI_MAPPING_TABLE in force; if none is set, the table of this machine's
    /// devices.
    #[arg(long, conflicts_with_all = ["every", "devices"])]
    mapping_table: bool,
    /// Print the device specs of this machine alone, one a line, for scripts; no device is opened.
    #[arg(long, conflicts_with_all = ["every", "devices", "mapping_table", "json"])]
    names: bool,
}

/// A device. If it cannot be queried, its row has the reason.
struct Row {
    spec: DeviceSpec,
    bus: Option<PciAddress>,
    answer: gaudi_seam::Result<Info>,
}

impl Row {
    fn new((spec, bus): (DeviceSpec, Option<PciAddress>)) -> Self {
        let answer = control(&spec).and_then(|io| Info::query(&*io));
        Self { spec, bus, answer }
    }

    fn info(&self) -> Option<&Info> {
        self.answer.as_ref().ok()
    }

    fn status(&self) -> Option<String> {
        Some(self.info()?.status.to_string().to_lowercase())
    }

    fn error(&self) -> Option<String> {
        self.answer.as_ref().err().map(Error::to_string)
    }
}

// Chip, module, backend and name follow from the device.
const COLUMNS: &[Column<Row>] = &columns! { Row:
    text "spec" "device" |row| row.spec.to_string();
    text "backend" "backend" [3] |row| backend_of(&row.spec);
    text "pci_bus_id" "bus id" |row| row.bus?.to_string();
    number "module_id" "module" [2] |row| row.info()?.module_id;
    text "name" "name" [4] |row| row.info()?.card_name;
    text "asic" "chip" [1] |row| row.info()?.asic;
    text "" "status" |row| row.status().or_else(|| Some(format!("< {} >", row.error()?)));
    text "status" "" |row| row.status();
    text "in_use" "in use" |row| row.info()?.in_use;
    mib "dram_size_bytes" "memory[MiB]" |row| row.info()?.dram_bytes;
    mib "dram_free_bytes" "free[MiB]" |row| row.info()?.dram_free_bytes;
    text "error" "" |row| row.error();
};

pub(crate) fn run(common: &Common, list: &List, output: &mut Output) -> Result<u8> {
    if list.mapping_table {
        return mapping_table(output);
    }
    if list.names {
        for device in by_address() {
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
    let named = !common.devices.is_empty() || Environment::of_process().device.is_some();
    let devices: Vec<(DeviceSpec, Option<PciAddress>)> = if named {
        chosen(common)?.into_iter().map(|spec| (spec, None)).collect()
    } else {
        let listed = by_address().into_iter();
        listed
            .map(|listed| Ok((around(common, listed.spec)?, listed.bus)))
            .collect::<Result<_>>()?
    };
    let rows: Vec<Row> = devices.into_iter().map(Row::new).collect();
    if output.is_json() {
        output.document("gaudi.list", &object! { devices: records(COLUMNS, &rows) })?;
    } else if rows.is_empty() {
        output.note("no device found on this machine");
        output.note("  help: to look at a mock instead: gaudi list -d mock:gaudi2");
    } else {
        output.rows(COLUMNS, &rows)?;
    }
    Ok(exit::DONE)
}

/// Returns the devices of this machine, by PCI address.
fn by_address() -> Vec<Listed> {
    let mut devices = gaudi::list();
    devices.sort_by_key(|device| device.bus);
    devices
}

/// An entry of the table, in the form that the variable has.
#[derive(Serialize)]
struct Entry {
    index: u32,
    module_id: u32,
    bus_id: String,
}

/// Prints the table in force, in the form of the variable.
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
                "{TABLE_VARIABLE} is not set, and this machine has no device to make a table of"
            ))
            .into());
    }
    if output.is_json() {
        output.document(
            "gaudi.mapping_table",
            &object! { source: source, entries: entries },
        )?;
    } else {
        output.line(serde_json::to_string(&entries)?)?;
    }
    Ok(exit::DONE)
}

/// Returns the entries of this machine's devices, by PCI address.
fn of_machine() -> Result<Vec<Entry>> {
    let devices = by_address().into_iter();
    let devices = devices.filter_map(|device| Some((device.bus?, device.spec)));
    let entries = (0..).zip(devices).map(|(index, (bus, spec))| {
        Ok(Entry {
            index,
            module_id: Info::query(&*control(&spec)?)?.module_id,
            bus_id: bus.to_string(),
        })
    });
    entries.collect()
}
