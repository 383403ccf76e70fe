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

use std::path::PathBuf;

use anyhow::Result;
use gaudi_device::Info;
use gaudi_seam::{DeviceSpec, PciAddress};
use gaudi_sys::limits::Limit;
use serde::Serialize;

use crate::args;
use crate::common::Common;
use crate::exit::{self, Usage};
use crate::info::chosen;
use crate::output::{Output, Style};
use machine::Machine;

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

/// One line of the list.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// The command or the change that mends it.
    mend: Option<String>,
}

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
    failed: usize,
    warned: usize,
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Ok,
        found: found.into(),
        mend: None,
    }
}

fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Warn,
        found: found.into(),
        mend: Some(mend.into()),
    }
}

fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check {
        name,
        verdict: Verdict::Fail,
        found: found.into(),
        mend: Some(mend.into()),
    }
}

pub(crate) fn run(common: &Common, doctor: &args::Doctor, output: &mut Output) -> Result<u8> {
    if let Some(errno) = &doctor.explain {
        common.without_layers("doctor --explain", false)?;
        return print_meanings(errno, output);
    }
    let checks = match &doctor.nic {
        Some(nic) => {
            let [spec] = chosen(common)?
                .try_into()
                .map_err(|_| Usage("a pair is one NIC and one device".to_owned()))?;
            pair::checks(nic, &spec)
        }
        None => {
            let machine = Machine {
                root: doctor.root.clone().unwrap_or_else(|| PathBuf::from("/")),
            };
            if common.devices.is_empty() {
                common.without_layers("doctor", true)?;
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
            &Report {
                checks,
                failed,
                warned,
            },
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
            if let Some(mend) = &check.mend {
                output.hanging(&format!("      {:<width$}  mend: ", ""), mend)?;
            }
        }
        output.line(format!("{failed} failed, {warned} warned"))?;
    }
    Ok(if failed > 0 { exit::FAILED } else { exit::DONE })
}

/// What a number means, at every step that answers it.
fn print_meanings(errno: &str, output: &mut Output) -> Result<u8> {
    #[derive(Serialize)]
    struct Meanings {
        meanings: Vec<&'static errors::Meaning>,
    }
    let meanings = pair::meanings(errno)?;
    if output.is_json() {
        output.document("gaudi.doctor.explain", &Meanings { meanings })?;
        return Ok(exit::DONE);
    }
    for (at, meaning) in meanings.iter().enumerate() {
        if at > 0 {
            output.line("")?;
        }
        output.line(format!(
            "{} ({}) of: {}",
            meaning.errno,
            meaning.number,
            meaning.step.name()
        ))?;
        output.hanging("  cause: ", meaning.cause)?;
        output.hanging("  mend:  ", meaning.mend)?;
        output.hanging("  decided in ", meaning.source)?;
    }
    Ok(exit::DONE)
}

/// What each card says of itself.
fn devices() -> Vec<Check> {
    let listed = gaudi_hal::list().into_iter();
    listed.map(|device| judge(&device.spec, device.bus)).collect()
}

fn judge(spec: &DeviceSpec, bus: Option<PciAddress>) -> Check {
    let place = bus.map_or_else(|| spec.to_string(), |bus| format!("{spec} ({bus})"));
    match gaudi_hal::control(spec).and_then(|io| Info::query(&*io)) {
        Ok(info) => {
            let found = format!(
                "{place}: {}, firmware {}, {}",
                info.card_name, info.firmware, info.status
            );
            match info.status {
                gaudi_uapi::info::DeviceStatus::OPERATIONAL => ok("device", found),
                _ => fail("device", found, "the kernel's log says why; a reset may help"),
            }
        }
        Err(error) => {
            let help = error.help().unwrap_or("the kernel's log may say more").to_owned();
            fail("device", format!("{place}: {error}"), help)
        }
    }
}

/// How much memory may be pinned: by the limit, unless the process has the capability that lifts
/// it.
fn memlock(limit: gaudi_sys::SysResult<Limit>, is_lifted: bool) -> Check {
    match limit {
        _ if is_lifted => ok("memlock", "no limit: this process has CAP_IPC_LOCK"),
        Ok(Limit::Unlimited) => ok("memlock", "unlimited"),
        Ok(Limit::Bytes(bytes)) if bytes >= MEMLOCK_BYTES => ok("memlock", format!("{} MiB", bytes >> 20)),
        Ok(Limit::Bytes(bytes)) => warn(
            "memlock",
            format!(
                "{} KiB may be pinned: registrations with a NIC fail with ENOMEM beyond",
                bytes >> 10
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        ),
        Err(errno) => warn(
            "memlock",
            format!("the limit cannot be read: {errno:?}"),
            "ulimit -l",
        ),
    }
}

fn mock() -> Check {
    let answer = gaudi_hal::control(&DeviceSpec::mock()).and_then(|io| Info::query(&*io));
    match answer {
        Ok(_) => ok("mock", "mock:gaudi2 works here"),
        Err(error) => fail(
            "mock",
            error.to_string(),
            "it needs sparse memory files: check ulimit -v and memory cgroups",
        ),
    }
}
