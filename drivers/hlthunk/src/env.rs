//! `GAUDI_DEVICE`, `GAUDI_TRACE` and `GAUDI_FAULT`. All are ignored if `AT_SECURE` is set.

use gaudi_hal::{Environment, Error, ErrorKind};
use gaudi_seam::{DeviceSpec, LayerSpec};
use gaudi_sys::Errno;

/// The path of the trace file.
const TRACE_VARIABLE: &str = "GAUDI_TRACE";
/// A fault plan, or the path of a file with one.
const FAULT_VARIABLE: &str = "GAUDI_FAULT";

/// The settings from the environment.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// `None` selects the devices of the machine.
    pub(crate) device: Option<DeviceSpec>,
    /// Layers around every node, innermost first.
    pub(crate) layers: Vec<LayerSpec>,
}

/// Reads the environment.
///
/// # Errors
/// `EINVAL`: a value is invalid. The cause is printed to standard error.
pub(crate) fn selection() -> Result<Selection, Errno> {
    if gaudi_hal::is_secure() {
        return Ok(Selection::default());
    }
    let environment = Environment::of_process();
    let device = match environment.device {
        Some(_) => {
            // The mapping table applies only to programs that request the default device.
            let environment = Environment {
                mapping_table: None,
                ..environment
            };
            Some(gaudi_hal::choose(None, &environment).map_err(|error| reported(&error))?)
        }
        None => None,
    };
    let mut layers = Vec::new();
    for (name, variable) in [("fault", FAULT_VARIABLE), ("trace", TRACE_VARIABLE)] {
        let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let argument = value.into_string().map_err(|_| {
            let error =
                Error::new(ErrorKind::InvalidInput, "open").because(format!("{variable} is not UTF-8"));
            reported(&error)
        })?;
        layers.push(LayerSpec {
            name: name.to_owned(),
            argument: Some(argument),
        });
    }
    Ok(Selection { device, layers })
}

/// Returns the errno of a failed open. Prints a cause that an errno cannot express.
pub(crate) fn errno_of(error: &Error) -> Errno {
    match (error.kind(), error.errno()) {
        (ErrorKind::InvalidInput | ErrorKind::Unsupported, _) => reported(error),
        (_, Some(errno)) => errno,
        (ErrorKind::NotFound, None) => Errno::ENOENT,
        (ErrorKind::Busy, None) => Errno::EBUSY,
        (ErrorKind::InReset, None) => Errno::EAGAIN,
        (ErrorKind::PermissionDenied, None) => Errno::EACCES,
        (ErrorKind::OutOfMemory, None) => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}

fn reported(error: &Error) -> Errno {
    eprintln!("libhl-thunk: {error}");
    match (error.kind(), error.errno()) {
        (_, Some(errno)) => errno,
        (ErrorKind::Unsupported, None) => Errno::EOPNOTSUPP,
        _ => Errno::EINVAL,
    }
}
