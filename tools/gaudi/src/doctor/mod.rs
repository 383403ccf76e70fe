//! `gaudi doctor`: what prevents a card from working, each line with the command that fixes it.
//!
//! It reads `/proc`, `/sys` and `/dev` and opens control nodes; it changes nothing and opens no
//! compute node. With a NIC it tries what a transfer between that NIC and a card needs, and that
//! opens the compute node ([`pair`]).

mod errors;
mod machine;
mod open_flag;
mod pair;
#[cfg(test)]
mod tests;
mod ucx;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use gaudi::{DeviceSpec, DeviceStatus, Info, PciAddress};
use gaudi_sys::limits::Limit;
use serde::Serialize;

use crate::common::{Common, Takes};
use crate::exit::{self, Usage};
use crate::info::chosen;
use crate::machine::Machine;
use crate::output::{Output, Style};
use crate::report::object;

/// Check what prevents a card from working, and print the command that fixes it.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 where a line fails. With --nic it opens the device for use: it must be free.\n\n\
                  Examples:\n  gaudi doctor --nic softnic --device mock:gaudi2\n  gaudi doctor --explain EPERM"
)]
pub(crate) struct Doctor {
    /// Try what a transfer between this NIC and a device (--device) needs, and explain failures;
    /// `softnic` is the software NIC.
    #[arg(long, value_name = "NAME", conflicts_with = "root")]
    nic: Option<String>,
    /// Explain an errno of an export or a registration, given by name or number.
    #[arg(long, value_name = "ERRNO", conflicts_with_all = ["nic", "root"], allow_hyphen_values = true)]
    explain: Option<String>,
    /// Check which UCX is installed, what it loads, and why not.
    #[arg(long, conflicts_with_all = ["nic", "explain", "root"])]
    ucx: bool,
    /// Look at another root than `/`: a copy of a machine's /proc, /sys, /dev and /boot.
    #[arg(long, value_name = "FOLDER", hide = true)]
    root: Option<PathBuf>,
}

/// Pinned memory that a program with one card needs at least: less than this and registrations fail
/// early.
const MEMLOCK_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// The command or the change that removes the cause.
    remedy: Option<String>,
}

impl Check {
    fn new(verdict: Verdict, found: impl Into<String>, remedy: Option<String>) -> Self {
        Self {
            name: "",
            verdict,
            found: found.into(),
            remedy,
        }
    }

    fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

fn ok(found: impl Into<String>) -> Check {
    Check::new(Verdict::Ok, found, None)
}

fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check::new(Verdict::Warn, found, Some(remedy.into()))
}

fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check::new(Verdict::Fail, found, Some(remedy.into()))
}

pub(crate) fn run(common: &Common, doctor: &Doctor, output: &mut Output) -> Result<u8> {
    if let Some(errno) = &doctor.explain {
        common.check("doctor --explain", Takes::Nothing)?;
        return print_meanings(errno, output);
    }
    let checks = match &doctor.nic {
        _ if doctor.ucx => {
            common.check("doctor --ucx", Takes::Nothing)?;
            ucx::checks()
        }
        Some(nic) => {
            let [spec] = chosen(common)?
                .try_into()
                .map_err(|_| Usage("a pair is one NIC and one device".to_owned()))?;
            pair::checks(nic, &spec)
        }
        None => {
            let machine = Machine::new(doctor.root.as_deref().unwrap_or(Path::new("/")));
            if common.devices.is_empty() {
                common.check("doctor", Takes::Devices)?;
            }
            let mut checks = machine.checks();
            if !common.devices.is_empty() {
                checks.extend(chosen(common)?.iter().map(|spec| judge(spec, None)));
            }
            checks
        }
    };
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (failed, warned) = (count(Verdict::Fail), count(Verdict::Warn));
    if output.is_json() {
        output.document(
            "gaudi.doctor",
            &object! { checks: checks, failed: failed, warned: warned },
        )?;
    } else {
        let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        for check in &checks {
            let (word, style) = match check.verdict {
                Verdict::Ok => ("ok", Style::Good),
                Verdict::Warn => ("warn", Style::Doubtful),
                Verdict::Fail => ("FAIL", Style::Bad),
            };
            let first = format!("{word:<4}  {:<width$}  ", check.name);
            output.hanging_after(style, word, &first, &check.found)?;
            if let Some(remedy) = &check.remedy {
                output.hanging(&format!("      {:<width$}  remedy: ", ""), remedy)?;
            }
        }
        output.line(format!("{failed} failed, {warned} warned"))?;
    }
    Ok(if failed > 0 { exit::FAILED } else { exit::DONE })
}

/// Prints the causes of an errno, at every step that returns it.
fn print_meanings(errno: &str, output: &mut Output) -> Result<u8> {
    let meanings = errors::named(errno)?;
    if output.is_json() {
        output.document("gaudi.doctor.explain", &object! { meanings: meanings })?;
        return Ok(exit::DONE);
    }
    for (at, meaning) in meanings.iter().enumerate() {
        if at > 0 {
            output.line("")?;
        }
        let step = meaning.step.name();
        output.line(format!("{} ({}) of: {step}", meaning.errno, meaning.number))?;
        output.hanging("  cause:  ", meaning.cause)?;
        if let Some(remedy) = meaning.remedy {
            output.hanging("  remedy: ", remedy)?;
        }
        output.hanging("  decided in ", meaning.source)?;
    }
    Ok(exit::DONE)
}

/// Checks the status that each card reports.
fn devices() -> Vec<Check> {
    let listed = gaudi::list().into_iter();
    listed.map(|device| judge(&device.spec, device.bus)).collect()
}

fn judge(spec: &DeviceSpec, bus: Option<PciAddress>) -> Check {
    let place = bus.map_or_else(|| spec.to_string(), |bus| format!("{spec} ({bus})"));
    let check = match query(spec) {
        Ok(info) => {
            let found = format!(
                "{place}: {}, firmware {}, {}",
                info.card_name, info.firmware, info.status
            );
            match info.status {
                DeviceStatus::OPERATIONAL => ok(found),
                _ => fail(found, "the kernel's log has the cause; a reset may help"),
            }
        }
        Err(error) => fail(
            format!("{place}: {error}"),
            error.help().unwrap_or("the kernel's log may have more"),
        ),
    };
    check.named("device")
}

fn query(spec: &DeviceSpec) -> gaudi::Result<Info> {
    Info::query(&*gaudi_hal::control(spec)?)
}

/// Checks how much memory may be pinned. The limit does not hold for a process with the capability
/// that lifts it.
fn memlock(limit: gaudi_sys::SysResult<Limit>, is_lifted: bool) -> Check {
    match limit {
        _ if is_lifted => ok("no limit: this process has CAP_IPC_LOCK"),
        Ok(Limit::Unlimited) => ok("unlimited"),
        Ok(Limit::Bytes(bytes)) if bytes >= MEMLOCK_BYTES => ok(format!("{} MiB", bytes >> 20)),
        Ok(Limit::Bytes(bytes)) => warn(
            format!(
                "{} KiB may be pinned: registrations with a NIC fail with ENOMEM beyond",
                bytes >> 10
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        ),
        Err(errno) => warn(format!("the limit cannot be read: {errno:?}"), "ulimit -l"),
    }
}

fn mock() -> Check {
    match query(&DeviceSpec::mock()) {
        Ok(_) => ok("mock:gaudi2 works here"),
        Err(error) => fail(
            error.to_string(),
            "it needs sparse memory files: check ulimit -v and memory cgroups",
        ),
    }
}
