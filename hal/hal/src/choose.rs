//! Which device is meant: explicit spec, then `GAUDI_DEVICE`, then `GAUDI_MAPPING_TABLE`, then the
//! first free one.

use std::ffi::{OsStr, OsString};

use gaudi_seam::{BackendSpec, DeviceSpec, Error, ErrorKind, KernelSelector, Result};

use crate::secure::is_secure;
use crate::table::{MappingEntry, MappingTable};
use crate::visible::{VISIBLE_DEVICES_VARIABLE, VISIBLE_MODULES_VARIABLE, Visible};

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
    /// `HABANA_VISIBLE_DEVICES`.
    pub visible_devices: Option<OsString>,
    /// `HABANA_VISIBLE_MODULES`.
    pub visible_modules: Option<OsString>,
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
            visible_devices: set(VISIBLE_DEVICES_VARIABLE),
            visible_modules: set(VISIBLE_MODULES_VARIABLE),
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

    /// Parses `HABANA_VISIBLE_DEVICES` and `HABANA_VISIBLE_MODULES`.
    ///
    /// # Errors
    /// `InvalidInput`: one is not a list of numbers or `all`.
    pub fn visible(&self) -> Result<Visible> {
        Visible::read(self.visible_devices.as_deref(), self.visible_modules.as_deref())
    }

    /// Returns the visible entries of `GAUDI_MAPPING_TABLE`, at least one; `None` if the table is
    /// not set.
    ///
    /// # Errors
    /// - `InvalidInput`: a variable is invalid.
    /// - `NotFound`: every entry is hidden.
    pub fn visible_entries(&self) -> Result<Option<Vec<MappingEntry>>> {
        let Some(table) = self.table()? else {
            return Ok(None);
        };
        let (visible, all) = (self.visible()?, table.entries().iter());
        let mut entries = Vec::new();
        for entry in all.clone() {
            if visible.shows(entry.index, || Ok(entry.module_id))? {
                entries.push(*entry);
            }
        }
        match entries.is_empty() {
            true => Err(visible.hides(all.map(|entry| format!("map:{}", entry.index)))),
            false => Ok(Some(entries)),
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

pub(crate) fn readable<'a>(source: &str, text: &'a OsStr) -> Result<&'a str> {
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
/// 3. `GAUDI_MAPPING_TABLE`: `map:N`, N the table's lowest index that is [`Visible`];
/// 4. `kernel`: the first visible device that no other process has open.
///
/// # Errors
/// - `InvalidInput`: the source that decides is invalid. The error names it; later sources are not
///   read.
/// - `NotFound`: no entry of the table is visible.
pub fn choose(explicit: Option<&str>, environment: &Environment) -> Result<DeviceSpec> {
    if let Some(text) = explicit {
        return parse("", text);
    }
    if let Some(text) = &environment.device {
        return parse("GAUDI_DEVICE: ", readable(DEVICE_VARIABLE, text)?);
    }
    if let Some([first, ..]) = environment.visible_entries()?.as_deref() {
        return Ok(DeviceSpec::bare(BackendSpec::Map(first.index)));
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
            ..Environment::default()
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
            ..Environment::default()
        };
        let error = choose(None, &environment).expect_err("not UTF-8");
        assert!(
            error.to_string().contains("GAUDI_DEVICE is not UTF-8"),
            "the variable is blamed: {error}"
        );
    }

    #[test]
    fn hidden_entries_are_not_chosen() {
        let with = |devices: Option<&str>, modules: Option<&str>, explicit: Option<&str>| {
            let environment = Environment {
                visible_devices: devices.map(Into::into),
                visible_modules: modules.map(Into::into),
                ..environment(None, Some(TABLE))
            };
            choose(explicit, &environment).map(|spec| spec.to_string())
        };
        assert_eq!(with(Some("5"), None, None).as_deref(), Ok("map:5"));
        assert_eq!(with(None, Some("1"), None).as_deref(), Ok("map:5"));
        assert_eq!(with(Some("5"), None, Some("map:4")).as_deref(), Ok("map:4"));
        let error = with(Some("5"), Some("2"), None).expect_err("no entry is in both");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("map:4, map:5"), "{error}");
        let error = with(Some("five"), None, None).expect_err("not a number");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
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
