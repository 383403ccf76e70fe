//! `gaudi check`: runs conformance cases on a device and compares its answers with the mock's.
//!
//! The report is meant to be attached to a bug report. The cases neither reset the card nor close
//! it; `--identify` adds what identifies the card.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use gaudi_conformance::check::{Compared, Side, compare, gentle};
use gaudi_conformance::{Failure, Outcome};
use gaudi_device::Info;
use gaudi_seam::{BackendSpec, DeviceSpec, Error, ErrorKind, KernelSelector, PciAddress};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args;
use crate::common::Common;
use crate::exit::{self, Usage};
use crate::info::{backend_of, chosen};
use crate::output::{Output, Style};
use crate::progress::Progress;

#[derive(Serialize)]
struct Report {
    program: Value,
    machine: Machine,
    device: Described,
    identity: Option<Identity>,
    summary: Summary,
    cases: Vec<Case>,
}

#[derive(Serialize)]
struct Machine {
    kernel: String,
    architecture: String,
    /// The driver's own version, or `in-tree` for one without; `None` if no driver is loaded.
    driver: Option<String>,
}

#[derive(Serialize)]
struct Described {
    backend: &'static str,
    asic: &'static str,
    card_name: String,
    pci_device_id: String,
    pci_revision: u8,
    firmware: String,
    secured: bool,
    dram_size_bytes: u64,
}

/// What identifies this card and machine.
#[derive(Serialize)]
struct Identity {
    host: String,
    node: String,
    pci_address: Option<String>,
    /// The PCI Express device serial number, if configuration space has the capability and this
    /// process may read it.
    pci_serial_number: Option<String>,
}

#[derive(Serialize)]
struct Summary {
    seconds: f64,
    #[serde(flatten)]
    counts: BTreeMap<Verdict, usize>,
}

/// The verdict on a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Passed,
    Failed,
    /// The case's assertions hold, but an operation's answer differs from the mock's.
    Differed,
    Skipped,
    Unsupported,
}

/// Each verdict as a case has it, with its style, and as the summary counts it.
const VERDICTS: [(Verdict, &str, Style, &str); 5] = [
    (Verdict::Passed, "passed", Style::Good, "passed"),
    (Verdict::Failed, "FAILED", Style::Bad, "failed"),
    (
        Verdict::Differed,
        "differed",
        Style::Bad,
        "differed from the mock",
    ),
    (Verdict::Skipped, "skipped", Style::Doubtful, "skipped"),
    (Verdict::Unsupported, "unsupported", Style::Plain, "unsupported"),
];

#[derive(Serialize)]
struct Case {
    id: &'static str,
    source: &'static str,
    verdict: Verdict,
    /// Why the case was skipped or is unsupported.
    reason: Option<Cow<'static, str>>,
    failure: Option<Failure>,
    differences: Vec<Difference>,
    took_us: u64,
}

#[derive(Serialize)]
struct Difference {
    operation: String,
    /// The errno's name, or `success`.
    answer: String,
    answered_by: Side,
}

impl Case {
    fn of(compared: &Compared) -> Self {
        let row = &compared.row;
        let (verdict, reason, failure) = match &row.outcome {
            Outcome::Failed(failure) => (Verdict::Failed, None, Some(failure.clone())),
            Outcome::Skipped { need } => (Verdict::Skipped, Some(need.clone()), None),
            Outcome::Unsupported { why } => (Verdict::Unsupported, Some(why.clone()), None),
            Outcome::ExpectedFailure { gap } => (Verdict::Unsupported, Some(gap.clone()), None),
            Outcome::Passed if compared.differences.is_empty() => (Verdict::Passed, None, None),
            Outcome::Passed => (Verdict::Differed, None, None),
        };
        let differences = compared.differences.iter().map(|difference| Difference {
            operation: difference.operation.clone(),
            answer: difference.errno.clone().unwrap_or_else(|| "success".to_owned()),
            answered_by: difference.answered_by,
        });
        Self {
            id: row.id,
            source: row.source,
            verdict,
            reason,
            failure,
            differences: differences.collect(),
            took_us: u64::try_from(row.took_us).unwrap_or(u64::MAX), // half a million years
        }
    }
}

pub(crate) fn run(common: &Common, check: &args::Check, output: &mut Output) -> Result<u8> {
    let [spec]: [DeviceSpec; 1] = chosen(common)?
        .try_into()
        .map_err(|_| Usage("check takes one device".to_owned()))?;
    let info = Info::query(&*gaudi_hal::control(&spec)?)?;
    let asic = info
        .asic
        .filter(|asic| gentle(asic).next().is_some())
        .ok_or_else(|| {
            let chip = info.asic.unwrap_or("this chip");
            Error::new(ErrorKind::Unsupported, "check").because(format!("no case is written for {chip}"))
        })?;
    // A report that cannot be written must not cost a run.
    let report_file = check.report.as_ref().map(|path| {
        Output::new(&Common {
            json: true,
            output: Some(path.clone()),
            ..common.clone()
        })
    });
    let mut report_file = report_file.transpose()?;
    let total = gentle(asic).count();
    output.note(format!(
        "{total} cases on {spec}: the device is in use meanwhile; its engines are reset when it is closed"
    ));
    let mut progress = Progress::new("cases", total as u64, output.is_quiet());
    let mut cases = Vec::with_capacity(total);
    let mut unwritten = Ok(());
    let begin = Instant::now();
    compare(&spec, asic, begin + check.timeout, |compared| {
        let case = Case::of(compared);
        // Printed at once, so that a killed run leaves its results.
        if !output.is_json() && unwritten.is_ok() {
            unwritten = print_case(&case, check.cases || common.verbose > 0, output);
        }
        cases.push(case);
        progress.advance(1);
    })?;
    drop(progress);
    unwritten?;
    let mut counts = BTreeMap::from(VERDICTS.map(|(verdict, ..)| (verdict, 0)));
    for case in &cases {
        *counts.entry(case.verdict).or_default() += 1;
    }
    let is_good = counts[&Verdict::Failed] + counts[&Verdict::Differed] == 0 && counts[&Verdict::Passed] > 0;
    let report = Report {
        program: json!({ "version": env!("CARGO_PKG_VERSION") }),
        machine: machine(),
        identity: check.identify.then(|| identity(&spec, &info)),
        device: Described {
            backend: backend_of(&spec),
            asic,
            card_name: info.card_name,
            pci_device_id: format!("{:#06x}", info.device_id),
            pci_revision: info.revision,
            firmware: info.firmware,
            secured: info.secured,
            dram_size_bytes: info.dram_bytes,
        },
        summary: Summary {
            seconds: (begin.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            counts,
        },
        cases,
    };
    if let Some(file) = &mut report_file {
        file.document("gaudi.check", &report)?;
        file.finish()?;
    }
    if output.is_json() {
        output.document("gaudi.check", &report)?;
    } else {
        print_summary(&report, output)?;
    }
    Ok(if is_good { exit::DONE } else { exit::FAILED })
}

fn print_case(case: &Case, all: bool, output: &mut Output) -> Result<()> {
    let Some((verdict, word, style, _)) = VERDICTS.into_iter().find(|row| row.0 == case.verdict) else {
        unreachable!("the table has every verdict");
    };
    if verdict == Verdict::Passed && !all {
        return Ok(());
    }
    let word = output.styled(style, &format!("{word:<11}"));
    output.line(format!("{word} {}", case.id))?;
    if let Some(failure) = &case.failure {
        output.hanging("            ", &failure.what)?;
        output.hanging("            expected ", &failure.expected)?;
        output.hanging("            seen     ", &failure.seen)?;
        output.hanging("            source   ", case.source)?;
    }
    for difference in &case.differences {
        let side = match difference.answered_by {
            Side::Device => "device",
            Side::Mock => "mock",
        };
        let what = format!(
            "only the {side} answered {} with {}",
            difference.operation, difference.answer
        );
        output.hanging("            ", &what)?;
    }
    if let Some(reason) = &case.reason {
        output.hanging("            ", reason)?;
    }
    Ok(())
}

fn print_summary(report: &Report, output: &mut Output) -> Result<()> {
    let (device, machine, summary) = (&report.device, &report.machine, &report.summary);
    let mut rows = vec![
        ("device", format!("{} ({})", device.asic, device.backend)),
        ("card", device.card_name.clone()),
        (
            "PCI device",
            format!("{}, revision {}", device.pci_device_id, device.pci_revision),
        ),
        ("firmware", device.firmware.clone()),
        (
            "driver",
            machine.driver.clone().unwrap_or_else(|| "not loaded".to_owned()),
        ),
        ("kernel", format!("{}, {}", machine.kernel, machine.architecture)),
        ("gaudi", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    if let Some(identity) = &report.identity {
        let unknown = || "unknown".to_owned();
        rows.extend([
            ("host", identity.host.clone()),
            ("node", identity.node.clone()),
            (
                "PCI address",
                identity.pci_address.clone().unwrap_or_else(unknown),
            ),
            (
                "PCI serial",
                identity.pci_serial_number.clone().unwrap_or_else(unknown),
            ),
        ]);
    }
    for (key, value) in rows {
        output.hanging(&format!("{key:<11} "), &value)?;
    }
    let counts = VERDICTS.map(|(verdict, .., what)| format!("{} {what}, ", summary.counts[&verdict]));
    let counts = format!("{}{:.1} s", counts.concat(), summary.seconds);
    output.hanging("", &counts)
}

fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    // Mainline's module has no version of its own.
    let in_tree = Path::new("/sys/module/habanalabs")
        .exists()
        .then(|| "in-tree".to_owned());
    Machine {
        kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned()),
        architecture: std::env::consts::ARCH.to_owned(),
        driver: read("/sys/module/habanalabs/version").ok().or(in_tree),
    }
}

fn identity(spec: &DeviceSpec, info: &Info) -> Identity {
    // Without a readable name the report has an empty one.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let address = match spec.backend {
        BackendSpec::Kernel(KernelSelector::Bus(address)) => Some(address),
        BackendSpec::Kernel(_) => gaudi_hal::list()
            .into_iter()
            .find(|listed| listed.spec.backend == spec.backend)
            .and_then(|listed| listed.bus),
        _ => None,
    };
    Identity {
        host: host.trim().to_owned(),
        node: info.node.clone(),
        pci_serial_number: address.and_then(serial_number),
        pci_address: address.map(|address| address.to_string()),
    }
}

/// Returns the function's PCI Express device serial number (`PCI_EXT_CAP_ID_DSN`, pci_regs.h).
fn serial_number(address: PciAddress) -> Option<String> {
    let path = format!("/sys/bus/pci/devices/{address}/config");
    serial_in(&fs::read(Path::new(&path)).ok()?)
}

fn serial_in(config: &[u8]) -> Option<String> {
    const FIRST: usize = 0x100;
    const DSN: u32 = 3;
    let word = |at: usize| {
        let bytes = config.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut at = FIRST;
    // Each capability takes 4 bytes at least: a list that is longer is a circle.
    for _ in 0..(4096 - FIRST) / 4 {
        let head = word(at)?;
        if head & 0xffff == DSN {
            return Some(format!("{:08x}{:08x}", word(at + 8)?, word(at + 4)?));
        }
        at = usize::try_from(head >> 20).ok().filter(|&next| next >= FIRST)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_number_is_read_from_capabilities() {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x1402_0001u32).to_le_bytes());
        config[0x140..0x144].copy_from_slice(&(0x0001_0003u32).to_le_bytes());
        config[0x144..0x148].copy_from_slice(&0x89ab_cdefu32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0123_4567u32.to_le_bytes());
        assert_eq!(serial_in(&config).as_deref(), Some("0123456789abcdef"));
        assert_eq!(serial_in(&config[..64]), None, "what an ordinary user reads");
        // A list that ends in itself.
        config[0x140..0x144].copy_from_slice(&(0x1401_0002u32).to_le_bytes());
        assert_eq!(serial_in(&config), None);
    }
}
