//! `GAUDI_DEVICE`, `GAUDI_TRACE` and `GAUDI_FAULT`. All are ignored under `AT_SECURE`.

use gaudi_hal::{Environment, Error, ErrorKind};
use gaudi_seam::{DeviceSpec, LayerSpec};
use gaudi_sys::Errno;

/// A file that the trace is written to.
const TRACE_VARIABLE: &str = "GAUDI_TRACE";
/// A plan of faults, or the file of one.
const FAULT_VARIABLE: &str = "GAUDI_FAULT";

/// What the environment selects.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// `None`: the devices of the machine.
    pub(crate) device: Option<DeviceSpec>,
    /// Layers around every node, the outermost last.
    pub(crate) layers: Vec<LayerSpec>,
}

/// Reads the environment.
///
/// # Errors
/// `EINVAL`: a value is not valid. The cause is printed on standard error, because errno has no
/// room for it.
pub(crate) fn selection() -> Result<Selection, Errno> {
    if gaudi_hal::is_secure() {
        return Ok(Selection::default());
    }
    let environment = Environment::of_process();
    let device = match environment.device {
        Some(_) => {
            // The table chooses a device only for programs that ask for a whole default.
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

/// The errno of an open that failed. Causes that no errno names are printed.
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
