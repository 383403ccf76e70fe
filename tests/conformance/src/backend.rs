//! From a spec to an open device.

use gaudi_mock::Ledger;
use gaudi_seam::{BackendSpec, DeviceSpec, Error, Result, SharedIo};

pub(crate) fn open(spec: &DeviceSpec) -> Result<SharedIo> {
    match &spec.backend {
        BackendSpec::Mock(mock) => gaudi_mock::open(mock),
        _ => Err(Error::unsupported("open", "the suite reaches the mock only")),
    }
}

pub(crate) fn control(spec: &DeviceSpec) -> Result<SharedIo> {
    match &spec.backend {
        BackendSpec::Mock(mock) => gaudi_mock::control(mock),
        _ => Err(Error::unsupported("open", "the suite reaches the mock only")),
    }
}

pub(crate) fn mock_ledger(spec: &DeviceSpec) -> Option<Ledger> {
    match &spec.backend {
        BackendSpec::Mock(mock) => gaudi_mock::ledger(mock),
        _ => None,
    }
}
