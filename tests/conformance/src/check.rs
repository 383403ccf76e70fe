//! Compares a device with the mock: the same cases run on both, and every answer is compared.

use std::collections::BTreeSet;
use std::time::Instant;

use gaudi_seam::{DeviceSpec, Error, ErrorKind, Result};
use serde::Serialize;

use crate::bench::Bench;
use crate::case::Case;
use crate::cases::all;
pub use crate::expect::is_gentle;
use crate::observe::{Log, Seen};
use crate::runner::{Outcome, Row, row};

/// The mock that a device is compared with, without its chip's name.
const MOCK: &str = "?name=check&clock=virtual";

/// Answers of Linux 6.12 that its case accepts of any device, and the mock, which models 7.3, does
/// not give: case, operation, errno.
const OLDER: &[(&str, &str, &str)] = &[(
    "info.firmware-request.not-known",
    "HL_INFO_FW_GENERIC_REQ",
    "EINVAL",
)];

/// A case that ran on a device and on the mock.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// The outcome on the device.
    #[serde(flatten)]
    pub row: Row,
    /// Answers that only one of the two gave. Empty if the case did not run.
    pub differences: Vec<Difference>,
}

/// An answer that only the device or only the mock gave in a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The operation or flag, as the driver's header names it.
    pub operation: String,
    /// The errno's name; `None` is success.
    pub errno: Option<String>,
    /// Which of the two gave it.
    pub answered_by: Side,
}

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The device under test.
    Device,
    /// The mock.
    Mock,
}

/// Returns the cases of a chip that neither reset a card, close it, nor take gigabytes of memory.
pub fn gentle(chip: &str) -> impl Iterator<Item = &'static Case> {
    all().filter(move |case| case.group == chip && is_gentle(case))
}

/// Runs the [`gentle`] cases of a chip on a device and on the mock. Calls `report` after each case.
///
/// Cases that would start after `end` are skipped. Opens the device's compute node once, and closes
/// it at the end.
///
/// # Errors
/// Those of opening the device: `Busy` if another process has it open, `NotFound`, `AccessDenied`.
pub fn compare(
    spec: &DeviceSpec,
    chip: &str,
    end: Instant,
    mut report: impl FnMut(&Compared),
) -> Result<Vec<Compared>> {
    let mock_spec: DeviceSpec = format!("mock:{chip}{MOCK}")
        .parse()
        .map_err(|error| Error::new(ErrorKind::Unsupported, "open the mock").because(format!("{error}")))?;
    let (device_log, mock_log) = (Log::default(), Log::default());
    let mut device = Bench::observed(spec, &device_log)?;
    let mut mock = Bench::observed(&mock_spec, &mock_log)?;
    device.hold()?;
    mock.hold()?;
    let mut compared = Vec::new();
    for case in gentle(chip) {
        let (_, _) = (device_log.take(), mock_log.take()); // drop the operations of opening
        let row = if Instant::now() < end {
            row(&mut device, spec, case)
        } else {
            Row {
                id: case.id,
                group: case.group,
                source: case.source,
                outcome: Outcome::Skipped {
                    need: "more time: --timeout".into(),
                },
                took_us: 0,
            }
        };
        let ran = matches!(row.outcome, Outcome::Passed | Outcome::Failed(_));
        let differences = if ran {
            // Only its answers are compared: the test suite checks its outcome.
            let _ = crate::runner::row(&mut mock, &mock_spec, case);
            let mut seen = device_log.take().seen;
            seen.retain(|(operation, errno)| {
                let answer = (case.id, operation.as_str(), errno.as_deref().unwrap_or_default());
                !OLDER.contains(&answer)
            });
            differences(&seen, &mock_log.take().seen)
        } else {
            Vec::new()
        };
        let one = Compared { row, differences };
        report(&one);
        compared.push(one);
    }
    Ok(compared)
}

fn differences(device: &BTreeSet<Seen>, mock: &BTreeSet<Seen>) -> Vec<Difference> {
    let only = |here: &BTreeSet<Seen>, there: &BTreeSet<Seen>, answered_by| {
        here.difference(there)
            .map(|(operation, errno)| Difference {
                operation: operation.clone(),
                errno: errno.clone(),
                answered_by,
            })
            .collect::<Vec<_>>()
    };
    [only(device, mock, Side::Device), only(mock, device, Side::Mock)].concat()
}
