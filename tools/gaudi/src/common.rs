//! The options of every command, and the parsers of values that several options have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, ValueEnum};

use crate::exit::Usage;

/// The heading of the options that put layers around devices.
const LAYERS: &str = "Layers around every device";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Device: kernel:N, kernel:BUS, kernel?module=N, map:N or mock:gaudi2?key=value&…; may be
    /// repeated where a command takes several. Without it GAUDI_DEVICE, then the first entry of
    /// GAUDI_MAPPING_TABLE, then the first free device.
    #[arg(short, long = "device", value_name = "SPEC", global = true)]
    pub(crate) devices: Vec<String>,
    /// Print one JSON document instead of a table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write the result to a file instead of standard output.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(crate) output: Option<PathBuf>,
    /// Write every operation of the devices to a file, decoded, as JSON Lines.
    #[arg(long, value_name = "FILE", global = true, help_heading = LAYERS)]
    pub(crate) trace: Option<PathBuf>,
    /// Inject faults: a plan such as submit:when=3:error=EIO, or a file with one.
    #[arg(long, value_name = "PLAN", global = true, help_heading = LAYERS)]
    pub(crate) fault: Option<String>,
    /// Random seed of a mock, and of the plan's rules without a seed.
    #[arg(long, value_name = "N", global = true, help_heading = LAYERS)]
    pub(crate) seed: Option<u64>,
    /// Allow a fault plan on a real device: it may need a reset afterwards.
    #[arg(long, global = true, help_heading = LAYERS)]
    pub(crate) on_hardware: bool,
    /// Log on standard error: once each operation of a device with its result, twice with its
    /// request, three times with the packets too. GAUDI_LOG takes a filter instead.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// No notes on standard error.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Colour: on a terminal, always or never. NO_COLOR turns it off, CLICOLOR_FORCE on.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN", global = true)]
    pub(crate) color: Color,
}

/// Which of the options around devices a command takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// None: it opens no device.
    Nothing,
    /// `--seed` alone: it makes its own mocks.
    Seed,
    /// `--device`.
    Devices,
    /// All of them.
    Layers,
}

/// The options around devices, what a command takes that accepts them, and whether they are given.
type Given = fn(&Common) -> bool;
const AROUND_DEVICES: [(&str, Takes, Given); 5] = [
    ("trace", Takes::Layers, |common| common.trace.is_some()),
    ("fault", Takes::Layers, |common| common.fault.is_some()),
    ("seed", Takes::Layers, |common| common.seed.is_some()),
    ("on-hardware", Takes::Layers, |common| common.on_hardware),
    ("device", Takes::Devices, |common| !common.devices.is_empty()),
];

impl Takes {
    /// Whether a command that takes this rejects an option.
    pub(crate) fn rejects(self, option: &Arg) -> bool {
        let mut rejected = AROUND_DEVICES
            .iter()
            .filter(|(name, needed, _)| !self.has(name, *needed));
        rejected.any(|(name, ..)| option.get_long() == Some(name))
    }

    /// Whether a command that takes this takes the option `name`, which needs a command that takes
    /// `needed`.
    fn has(self, name: &str, needed: Self) -> bool {
        match self {
            Self::Seed => name == "seed",
            own => needed <= own,
        }
    }
}

impl Common {
    /// Rejects the options that `command` does not take.
    ///
    /// # Errors
    /// [`Usage`]: one of them is given.
    pub(crate) fn check(&self, command: &str, takes: Takes) -> Result<(), Usage> {
        match AROUND_DEVICES
            .iter()
            .find(|(name, needed, is_given)| !takes.has(name, *needed) && is_given(self))
        {
            Some((option, ..)) => Err(Usage(format!(
                "--{option} does nothing here: `gaudi {command}` opens no device for use"
            ))),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Returns the value of `--color` on a command line that was not fully parsed: a request for
    /// help, or an invalid one.
    pub(crate) fn in_words(words: impl Iterator<Item = OsString>) -> Self {
        let mut wanted = Self::Auto;
        let mut is_next = false;
        for word in words {
            let word = word.to_string_lossy();
            let value = word.strip_prefix("--color=").or(is_next.then_some(&*word));
            wanted = value
                .and_then(|value| Self::from_str(value, false).ok())
                .unwrap_or(wanted);
            is_next = word == "--color";
            if word == "--" {
                break;
            }
        }
        wanted
    }
}

/// Parses a pause of a millisecond to a day.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wanted = "wanted seconds from 0.001 to 86400";
    match text.parse() {
        Ok(number @ 0.001..=86_400.0) => Ok(Duration::from_secs_f64(number)),
        _ => Err(wanted.to_owned()),
    }
}

/// Parses a number of bytes, in the form of device specs.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err("wanted a size, such as 4096 or 4KiB".to_owned());
    }
    gaudi_seam::spec::parse_bytes(text).map_err(|error| format!("{}; {}", error.problem, error.wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e30", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong:?} is refused");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4097"), Ok(4097));
        assert_eq!(bytes("16MiB"), Ok(16 << 20));
        for wrong in ["", "MiB", "1MB", "-1", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong:?} is refused");
        }
    }
}
