//! Configuration: one table of variables with name, default and text.

use std::ffi::OsString;

use gaudi_device::{Error, ErrorKind, Result};

use crate::attributes::{Cost, Costs};

/// An environment variable of this library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// The name in the environment.
    pub name: &'static str,
    /// The value if it is not set.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub text: &'static str,
}

const fn row(name: &'static str, default: &'static str, text: &'static str) -> Variable {
    Variable { name, default, text }
}

/// The variables that [`Config::from_environment`] reads. An empty variable counts as not set.
pub const VARIABLES: &[Variable] = &[
    row(
        "GAUDI_MEMTYPE_CACHE",
        "y",
        "Finds the type of memory in a lock-free cache (y), or in a table under a lock (n).",
    ),
    row(
        "GAUDI_COPY_SHORT_MAX",
        "2048",
        "The most bytes of a put or get short.",
    ),
    row(
        "GAUDI_COPY_BCOPY_MAX",
        "32768",
        "The most bytes of a put or get bcopy.",
    ),
    row(
        "GAUDI_COPY_OUTSTANDING",
        "16",
        "Submissions in flight for each direction, 1 to 64; an operation beyond them would block.",
    ),
    row(
        "GAUDI_COPY_BATCH",
        "32",
        "Short puts that one submission carries, 1 to 64, unless progress or flush submits it before.",
    ),
    row(
        "GAUDI_COPY_OVERHEAD",
        "1000",
        "Reported cost of starting a copy, in nanoseconds.",
    ),
    row(
        "GAUDI_COPY_LATENCY",
        "8000",
        "Reported latency of a copy, in nanoseconds.",
    ),
    row(
        "GAUDI_COPY_BANDWIDTH",
        "10000",
        "Reported bandwidth of a copy, in MB/s.",
    ),
    row(
        "GAUDI_COPY_REG_OVERHEAD",
        "16000",
        "Reported cost of registering memory, in nanoseconds.",
    ),
    row(
        "GAUDI_COPY_REG_GROWTH",
        "60",
        "Reported growth of that cost, in picoseconds for each byte.",
    ),
];

/// Options of a memory domain and its transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Whether the type of memory is found in the lock-free cache.
    pub memtype_cache: bool,
    /// The most bytes of a short operation.
    pub short_bytes: usize,
    /// The most bytes of a buffered copy.
    pub bcopy_bytes: usize,
    /// Submissions in flight for each direction.
    pub outstanding: usize,
    /// Short puts for each submission.
    pub batch: usize,
    /// Reported costs: configuration, not measurement.
    pub costs: Costs,
}

impl Default for Config {
    fn default() -> Self {
        match Self::read(|_| None) {
            Ok(config) => config,
            Err(error) => unreachable!("the defaults of the table are valid: {error}"),
        }
    }
}

impl Config {
    /// Reads [`VARIABLES`] from the environment of this process. A process with more rights than
    /// its parent (`AT_SECURE`) uses the defaults.
    ///
    /// # Errors
    /// `InvalidInput`: a variable is invalid. The error names it and its range.
    pub fn from_environment() -> Result<Self> {
        if gaudi_hal::is_secure() {
            return Ok(Self::default());
        }
        Self::read(|name| std::env::var_os(name))
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |name: &str| -> Result<String> {
            let Some(row) = VARIABLES.iter().find(|row| row.name == name) else {
                unreachable!("{name} has a row");
            };
            match variable(name).filter(|value| !value.is_empty()) {
                Some(value) => value.into_string().map_err(|value| {
                    invalid(name, "the value is not UTF-8").saw(value.to_string_lossy(), row.text)
                }),
                None => Ok(row.default.to_owned()),
            }
        };
        let number = |name: &'static str, from: u64, to: u64| -> Result<u64> {
            let text = text(name)?;
            gaudi_sys::parse::decimal(&text)
                .filter(|value| (from..=to).contains(value))
                .ok_or_else(|| {
                    invalid(name, "the value is not a number in the range")
                        .saw(format!("{text:?}"), format!("{from} to {to}"))
                })
        };
        let size = |name, from, to| number(name, from, to).map(|value| value as usize);
        let cache = text("GAUDI_MEMTYPE_CACHE")?;
        let memtype_cache = match cache.as_str() {
            "y" | "yes" | "1" | "on" => true,
            "n" | "no" | "0" | "off" => false,
            _ => {
                return Err(invalid("GAUDI_MEMTYPE_CACHE", "the value is not a switch")
                    .saw(format!("{cache:?}"), "y or n"));
            }
        };
        Ok(Self {
            memtype_cache,
            short_bytes: size("GAUDI_COPY_SHORT_MAX", 0, 16 << 10)?,
            bcopy_bytes: size("GAUDI_COPY_BCOPY_MAX", 64, 1 << 20)?,
            outstanding: size("GAUDI_COPY_OUTSTANDING", 1, 64)?,
            batch: size("GAUDI_COPY_BATCH", 1, 64)?,
            costs: Costs {
                overhead_ns: number("GAUDI_COPY_OVERHEAD", 0, 1 << 40)?,
                latency_ns: number("GAUDI_COPY_LATENCY", 0, 1 << 40)?,
                bandwidth_bytes_per_second: number("GAUDI_COPY_BANDWIDTH", 1, 1 << 40)?
                    .saturating_mul(1_000_000),
                registration: Cost {
                    fixed_ns: number("GAUDI_COPY_REG_OVERHEAD", 0, 1 << 40)?,
                    per_byte_ps: number("GAUDI_COPY_REG_GROWTH", 0, 1 << 40)?,
                },
            },
        })
    }
}

fn invalid(name: &str, cause: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "configuration").because(format!("{name}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Config> {
        Config::read(move |asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn every_variable_is_read() {
        let seen = std::cell::RefCell::new(Vec::new());
        Config::read(|name| {
            seen.borrow_mut().push(name.to_owned());
            None
        })
        .expect("the defaults are valid");
        for row in VARIABLES {
            assert!(
                seen.borrow().iter().any(|name| name == row.name),
                "{} is read",
                row.name
            );
        }
    }

    #[test]
    fn invalid_value_names_variable_and_range() {
        for row in VARIABLES {
            let error = with(row.name, "-3x").expect_err(row.name);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(row.name), "{error}");
        }
        let error = with("GAUDI_COPY_OUTSTANDING", "65").expect_err("out of range");
        assert!(error.to_string().contains("1 to 64"), "{error}");
    }

    #[test]
    fn empty_variable_counts_as_unset() {
        assert_eq!(with("GAUDI_COPY_BATCH", ""), Ok(Config::default()));
        assert!(!with("GAUDI_MEMTYPE_CACHE", "n").expect("valid").memtype_cache);
    }
}
