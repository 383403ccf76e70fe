//! Which device is meant: explicit spec, then `GAUDI_DEVICE`, then `GAUDI_MAPPING_TABLE`, then the
//! first free one.

use std::ffi::{OsStr, OsString};

use gaudi_seam::{BackendSpec, DeviceSpec, Error, ErrorKind, KernelSelector, Result};

use crate::secure::is_secure;
use crate::table::MappingTable;

/// The variable that holds a device spec.
pub const DEVICE_VARIABLE: &str = "GAUDI_DEVICE";
/// The variable that holds a [`MappingTable`].
pub const TABLE_VARIABLE: &str = "GAUDI_MAPPING_TABLE";

/// The environment variables that select devices. An empty variable counts as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `GAUDI_DEVICE`.
    pub device: Option<OsString>,
    /// `GAUDI_MAPPING_TABLE`.
    pub mapping_table: Option<OsString>,
}

impl Environment {
    /// Reads the environment of this process. Empty if the process has more rights than its parent
    /// (`AT_SECURE`, getauxval(3)): the parent sets the environment, and must not choose the
    /// device.
    pub fn of_process() -> Self {
        Self::read(is_secure(), |name| std::env::var_os(name))
    }

    fn read(secure: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        if secure {
            return Self::default();
        }
        let set = |name| variable(name).filter(|value| !value.is_empty());
        Self {
            device: set(DEVICE_VARIABLE),
            mapping_table: set(TABLE_VARIABLE),
        }
    }

    /// Parses `GAUDI_MAPPING_TABLE`; `None` if it is not set.
    ///
    /// # Errors
    /// `InvalidInput`: the text is not UTF-8, or [`MappingTable::parse`] rejects it.
    pub fn table(&self) -> Result<Option<MappingTable>> {
        match &self.mapping_table {
            Some(text) => MappingTable::parse(readable(TABLE_VARIABLE, text)?).map(Some),
            None => Ok(None),
        }
    }
}

/// The variable by which a tracer outside of this process asks for records of its devices.
const RING_VARIABLE: &str = "GAUDI_TRACE_RING";

/// Returns the value of `GAUDI_TRACE_RING`; `None` if it is not set, or under `AT_SECURE`.
pub(crate) fn ring_variable() -> Option<String> {
    of_tracer(is_secure(), |name| std::env::var(name).ok())
}

fn of_tracer(secure: bool, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let value = if secure { None } else { variable(RING_VARIABLE) };
    value.filter(|value| !value.is_empty())
}

fn readable<'a>(source: &str, text: &'a OsStr) -> Result<&'a str> {
    text.to_str()
        .ok_or_else(|| refused().because(format!("{source} is not UTF-8")))
}

/// The operation that errors of [`choose`] name.
pub const CHOOSE: &str = "choose a device";

fn refused() -> Error {
    Error::new(ErrorKind::InvalidInput, CHOOSE)
}

/// Chooses the device spec of a program, without opening a device.
///
/// The first source that is set decides:
/// 1. `explicit`, the program's argument (`-d`);
/// 2. `GAUDI_DEVICE`, a spec;
/// 3. `GAUDI_MAPPING_TABLE`: `map:N`, N the table's lowest index;
/// 4. `kernel`: the first device that no other process has open.
///
/// # Errors
/// `InvalidInput`: the source that decides is invalid. The error names it; later sources are not
/// read.
pub fn choose(explicit: Option<&str>, environment: &Environment) -> Result<DeviceSpec> {
    if let Some(text) = explicit {
        return parse("", text);
    }
    if let Some(text) = &environment.device {
        return parse("GAUDI_DEVICE: ", readable(DEVICE_VARIABLE, text)?);
    }
    if let Some(table) = environment.table()? {
        if let Some(first) = table.entries().first() {
            return Ok(DeviceSpec::bare(BackendSpec::Map(first.index)));
        }
    }
    Ok(DeviceSpec::bare(BackendSpec::Kernel(KernelSelector::FirstFree)))
}

fn parse(source: &'static str, text: &str) -> Result<DeviceSpec> {
    text.parse().map_err(|error: gaudi_seam::SpecError| {
        refused()
            .because(format!(
                "{source}{} in {:?}; {}",
                error.problem, error.part, error.wanted
            ))
            .helped_by("mock:gaudi2 works on any machine")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"[{"index":5,"module_id":1,"bus_id":"0000:19:00.0"},{"index":4,"module_id":2,"bus_id":"0000:1a:00.0"}]"#;

    fn environment(device: Option<&str>, table: Option<&str>) -> Environment {
        Environment {
            device: device.map(Into::into),
            mapping_table: table.map(Into::into),
        }
    }

    #[test]
    fn the_first_source_that_is_there_decides() {
        let cases = [
            (
                Some("mock:gaudi2?seed=1"),
                Some("kernel:1"),
                Some(TABLE),
                "mock:gaudi2?seed=1",
            ),
            (None, Some("kernel:1"), Some(TABLE), "kernel:1"),
            (None, None, Some(TABLE), "map:4"),
            (None, None, None, "kernel"),
        ];
        for (explicit, device, table, wanted) in cases {
            let chosen = choose(explicit, &environment(device, table)).expect("a choice");
            assert_eq!(
                chosen.to_string(),
                wanted,
                "explicit {explicit:?}, GAUDI_DEVICE {device:?}, table {}",
                table.is_some()
            );
        }
    }

    #[test]
    fn invalid_source_is_reported() {
        let wrong = |explicit, device, table| {
            choose(explicit, &environment(device, table))
                .expect_err("a wrong source")
                .to_string()
        };
        let seen = wrong(Some("mook"), Some("kernel:1"), None);
        assert!(
            seen.starts_with("choose a device: unknown backend"),
            "the argument is blamed: {seen}"
        );
        let seen = wrong(None, Some("mook"), Some(TABLE));
        assert!(
            seen.contains("GAUDI_DEVICE: unknown backend"),
            "the variable is blamed: {seen}"
        );
        let seen = wrong(None, None, Some("[]"));
        assert!(
            seen.starts_with("GAUDI_MAPPING_TABLE: the array is empty"),
            "the table is blamed: {seen}"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        use std::os::unix::ffi::OsStringExt as _;
        let environment = Environment {
            device: Some(OsString::from_vec(vec![0xff])),
            mapping_table: None,
        };
        let error = choose(None, &environment).expect_err("not UTF-8");
        assert!(
            error.to_string().contains("GAUDI_DEVICE is not UTF-8"),
            "the variable is blamed: {error}"
        );
    }

    #[test]
    fn setuid_process_ignores_environment() {
        let set = |_: &str| Some(OsString::from("mock:gaudi2"));
        assert_eq!(
            Environment::read(true, set),
            Environment::default(),
            "AT_SECURE hides every variable"
        );
        assert!(
            Environment::read(false, set).device.is_some(),
            "otherwise it is read"
        );
        assert_eq!(
            Environment::read(false, |_| Some(OsString::new())),
            Environment::default(),
            "set to nothing counts as not set"
        );
        assert_eq!(of_tracer(true, |_| Some("1:2:3".to_owned())), None, "AT_SECURE");
        assert!(of_tracer(false, |_| Some("1:2:3".to_owned())).is_some());
    }
}
