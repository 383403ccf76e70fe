//! `gaudi info`: what a device is and how it is, through its control node.

use anyhow::Result;
use gaudi_device::Info;
use gaudi_hal::Environment;
use gaudi_seam::{BackendSpec, DeviceSpec};
use serde::Serialize;

use crate::args::{self, Common};
use crate::exit;
use crate::layers::around;
use crate::output::{Output, grouped};

#[derive(Serialize)]
struct Report {
    devices: Vec<Described>,
}

#[derive(Serialize)]
struct Described {
    spec: String,
    backend: &'static str,
    node: String,
    asic: Option<&'static str>,
    card_name: String,
    pci_device_id: String,
    pci_revision: u8,
    module_id: u32,
    status: String,
    in_use: Option<bool>,
    opens: Option<u64>,
    dram_base: String,
    dram_size_bytes: u64,
    dram_free_bytes: Option<u64>,
    dram_page_size_bytes: u64,
    sram_base: String,
    sram_size_bytes: u64,
    firmware: String,
    cpld_version: String,
    secured: bool,
    tpc_enabled_mask: String,
    edma_enabled_mask: String,
}

/// The devices that are meant: each `-d`, or the one that the environment or the machine gives.
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

/// What answers behind a spec, in one word.
pub(crate) fn backend_of(spec: &DeviceSpec) -> &'static str {
    match spec.backend {
        BackendSpec::Mock(_) => "mock",
        BackendSpec::Vfio(_) => "vfio",
        BackendSpec::Replay(_) => "replay",
        _ => "kernel",
    }
}

pub(crate) fn run(common: &Common, info: &args::Info, output: &mut Output) -> Result<u8> {
    let specs = chosen(common)?;
    loop {
        let devices: Vec<Described> = specs.iter().map(describe).collect::<Result<_>>()?;
        if output.is_json() {
            output.document("gaudi.info", &Report { devices })?;
        } else {
            for (number, device) in devices.iter().enumerate() {
                if number > 0 {
                    output.line("")?;
                }
                print(device, output)?;
            }
        }
        if !info.again.pause(output)? {
            return Ok(exit::DONE);
        }
    }
}

fn describe(spec: &DeviceSpec) -> Result<Described> {
    let io = gaudi_hal::control(spec)?;
    let info = Info::query(&*io)?;
    Ok(Described {
        spec: spec.to_string(),
        backend: info.device.backend.name(),
        node: info.node,
        asic: info.asic,
        card_name: info.card_name,
        pci_device_id: format!("{:#06x}", info.device_id),
        pci_revision: info.revision,
        module_id: info.module_id,
        status: info.status.to_string().to_lowercase(),
        in_use: info.in_use,
        opens: info.opens,
        dram_base: info.dram_base.to_string(),
        dram_size_bytes: info.dram_bytes,
        dram_free_bytes: info.dram_free_bytes,
        dram_page_size_bytes: info.dram_page_bytes,
        sram_base: info.sram_base.to_string(),
        sram_size_bytes: info.sram_bytes,
        firmware: info.firmware,
        cpld_version: format!("{:#x}", info.cpld_version),
        secured: info.secured,
        tpc_enabled_mask: format!("{:#x}", info.tpc_mask),
        edma_enabled_mask: format!("{:#x}", info.edma_mask),
    })
}

fn print(device: &Described, output: &mut Output) -> Result<()> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let unknown = || "not told".to_owned();
    let mib = |bytes: u64| format!("{} MiB", grouped(bytes >> 20));
    let rows: [(&str, String); 18] = [
        ("backend", device.backend.to_owned()),
        ("node", device.node.clone()),
        ("chip", device.asic.unwrap_or("unknown").to_owned()),
        ("card", device.card_name.clone()),
        (
            "PCI device, revision",
            format!("{}, {}", device.pci_device_id, device.pci_revision),
        ),
        ("module", device.module_id.to_string()),
        ("status", device.status.clone()),
        ("in use", device.in_use.map_or_else(unknown, yes)),
        (
            "opens",
            device.opens.map_or_else(unknown, |opens| opens.to_string()),
        ),
        (
            "device memory",
            format!("{} from {}", mib(device.dram_size_bytes), device.dram_base),
        ),
        ("free", device.dram_free_bytes.map_or_else(unknown, mib)),
        ("page", mib(device.dram_page_size_bytes)),
        (
            "SRAM",
            format!("{} from {}", mib(device.sram_size_bytes), device.sram_base),
        ),
        ("firmware", device.firmware.clone()),
        ("CPLD", device.cpld_version.clone()),
        ("secured", yes(device.secured)),
        ("TPCs enabled", device.tpc_enabled_mask.clone()),
        ("EDMAs enabled", device.edma_enabled_mask.clone()),
    ];
    output.line(format!("{}:", device.spec))?;
    for (key, value) in rows {
        output.hanging(&format!("  {key:<21} "), &value)?;
    }
    Ok(())
}
