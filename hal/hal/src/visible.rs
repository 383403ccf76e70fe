//! `HABANA_VISIBLE_DEVICES` and `HABANA_VISIBLE_MODULES`: the devices that a program may get
//! without naming one. The vendor's container runtime sets both.

use std::collections::BTreeSet;

use gaudi_seam::{Error, ErrorKind, Result};

use crate::choose::{CHOOSE, readable};

/// The variable that holds numbers N of `accelN`.
pub const VISIBLE_DEVICES_VARIABLE: &str = "HABANA_VISIBLE_DEVICES";
/// The variable that holds module ids.
pub const VISIBLE_MODULES_VARIABLE: &str = "HABANA_VISIBLE_MODULES";

/// Bytes that a variable may have: 256 numbers of three digits, with room for white space.
const MAX_BYTES: usize = 4096;

/// The devices that the first free one and the lowest entry of `GAUDI_MAPPING_TABLE` are chosen
/// from. A spec that names a device is not restricted.
///
/// Each variable is a list of numbers separated by commas, or `all`. A device must be in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visible {
    /// `None`: all.
    devices: Option<BTreeSet<u32>>,
    modules: Option<BTreeSet<u32>>,
}

impl Visible {
    /// Parses the two variables; `None` stands for one that is not set.
    ///
    /// # Errors
    /// `InvalidInput`: a variable is not UTF-8, is too long, or has a part that is no number. The
    /// error names the variable and the part.
    pub(crate) fn read(devices: Option<&std::ffi::OsStr>, modules: Option<&std::ffi::OsStr>) -> Result<Self> {
        let numbers = |name, value: Option<&std::ffi::OsStr>| match value {
            Some(text) => numbers(name, readable(name, text)?),
            None => Ok(None),
        };
        Ok(Self {
            devices: numbers(VISIBLE_DEVICES_VARIABLE, devices)?,
            modules: numbers(VISIBLE_MODULES_VARIABLE, modules)?,
        })
    }

    /// Whether neither variable hides a device.
    pub fn is_all(&self) -> bool {
        self.devices.is_none() && self.modules.is_none()
    }

    /// Whether the program may get the device. Calls `module_id` only if the answer depends on it.
    ///
    /// # Errors
    /// That of `module_id`.
    pub fn shows(&self, index: u32, module_id: impl FnOnce() -> Result<u32>) -> Result<bool> {
        if self
            .devices
            .as_ref()
            .is_some_and(|devices| !devices.contains(&index))
        {
            return Ok(false);
        }
        match &self.modules {
            Some(modules) => Ok(modules.contains(&module_id()?)),
            None => Ok(true),
        }
    }

    /// Returns the visible ones of the devices of `all`, which are numbers N of `accelN`.
    ///
    /// # Errors
    /// - `NotFound`: the variables hide every device.
    /// - The error of `module_id` for a device, if no other device is visible.
    pub fn among(&self, all: &[u32], mut module_id: impl FnMut(u32) -> Result<u32>) -> Result<Vec<u32>> {
        let (mut visible, mut failed) = (Vec::new(), None);
        for &index in all {
            match self.shows(index, || module_id(index)) {
                Ok(true) => visible.push(index),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            _ if !visible.is_empty() || all.is_empty() => Ok(visible),
            Some(error) => Err(error),
            None => Err(self.hides(all.iter().map(|index| format!("accel{index}")))),
        }
    }

    /// The error for variables that hide everything.
    pub(crate) fn hides(&self, all: impl Iterator<Item = String>) -> Error {
        let names = match (&self.devices, &self.modules) {
            (Some(_), Some(_)) => "HABANA_VISIBLE_DEVICES and HABANA_VISIBLE_MODULES hide",
            (None, Some(_)) => "HABANA_VISIBLE_MODULES hides",
            _ => "HABANA_VISIBLE_DEVICES hides",
        };
        let all: Vec<_> = all.collect();
        Error::new(ErrorKind::NotFound, CHOOSE)
            .because(format!("{names} every device: {}", all.join(", ")))
            .helped_by("name a device, for example kernel:0, or change the variable")
    }
}

fn numbers(name: &str, text: &str) -> Result<Option<BTreeSet<u32>>> {
    let wrong = |cause: String| {
        Error::new(ErrorKind::InvalidInput, CHOOSE)
            .because(format!("{name}: {cause}"))
            .helped_by("write numbers separated by commas, for example 0,1, or all")
    };
    if text.len() > MAX_BYTES {
        return Err(wrong(format!("{} bytes; at most {MAX_BYTES}", text.len())));
    }
    if text.trim() == "all" {
        return Ok(None);
    }
    let number = |part: &str| {
        let digits = part.trim();
        let digits_only = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u32>().ok().filter(|_| digits_only);
        number.ok_or_else(|| wrong(format!("{digits:?} is not a number")))
    };
    text.split(',').map(number).collect::<Result<_>>().map(Some)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn visible(devices: Option<&str>, modules: Option<&str>) -> Result<Visible> {
        Visible::read(devices.map(OsStr::new), modules.map(OsStr::new))
    }

    /// Devices 0, 1 and 2 with modules 7, 6 and 5.
    fn seen(devices: Option<&str>, modules: Option<&str>) -> Result<Vec<u32>> {
        visible(devices, modules)?.among(&[0, 1, 2], |index| Ok(7 - index))
    }

    #[test]
    fn device_must_be_in_both_lists() {
        let cases: [(Option<&str>, Option<&str>, &[u32]); 7] = [
            (None, None, &[0, 1, 2]),
            (Some("all"), Some(" all "), &[0, 1, 2]),
            (Some("2, 1"), None, &[1, 2]),
            (Some("1,1,9"), None, &[1]),
            (None, Some("5,7"), &[0, 2]),
            (Some("0,1"), Some("5,6"), &[1]),
            (Some("0,1"), Some("all"), &[0, 1]),
        ];
        for (devices, modules, wanted) in cases {
            let found = seen(devices, modules).expect("valid lists");
            assert_eq!(found, wanted, "devices {devices:?}, modules {modules:?}");
        }
    }

    #[test]
    fn hidden_devices_are_named() {
        let error = seen(Some("9"), Some("7")).expect_err("no device is in both");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        assert!(
            text.contains("HABANA_VISIBLE_DEVICES and HABANA_VISIBLE_MODULES hide"),
            "{text}"
        );
        assert!(text.contains("accel0, accel1, accel2"), "{text}");
        let empty = visible(Some("9"), None)
            .expect("a valid list")
            .among(&[], |_| Ok(0));
        assert_eq!(empty, Ok(Vec::new()), "no device is there to hide");
    }

    #[test]
    fn malformed_list_names_variable_and_part() {
        let long = "1,".repeat(MAX_BYTES);
        for (value, part) in [
            ("0,,1", "\"\""),
            ("0,one", "\"one\""),
            ("+1", "\"+1\""),
            ("-1", "\"-1\""),
            ("4294967296", "\"4294967296\""),
            ("0;1", "\"0;1\""),
            (long.as_str(), "8192 bytes"),
        ] {
            for (devices, modules, name) in [
                (Some(value), None, VISIBLE_DEVICES_VARIABLE),
                (None, Some(value), VISIBLE_MODULES_VARIABLE),
            ] {
                let error = visible(devices, modules).expect_err(value);
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                let text = error.to_string();
                assert!(text.contains(name) && text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn unanswered_module_hides_its_device_only() {
        let refused = || Error::new(ErrorKind::PermissionDenied, "open");
        let lists = visible(None, Some("6")).expect("a valid list");
        let answer = |index| if index == 0 { Err(refused()) } else { Ok(7 - index) };
        assert_eq!(lists.among(&[0, 1], answer), Ok(vec![1]));
        let error = lists.among(&[0, 2], answer).expect_err("device 0 may be the one");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
