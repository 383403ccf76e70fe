//! The backends behind their cargo features: one function each, so that `open.rs` reads the same with and without them.

/// The real driver.
pub(crate) mod kernel {
    use gaudi_seam::{Error, KernelSelector, Result, SharedIo};

    use crate::open::Listed;

    fn absent(operation: &'static str) -> Error {
        Error::unsupported(operation, "kernel backend: not part of this build")
    }

    pub(crate) fn open(_selector: &KernelSelector) -> Result<SharedIo> {
        Err(absent("open"))
    }

    pub(crate) fn control(_selector: &KernelSelector) -> Result<SharedIo> {
        Err(absent("open (control node)"))
    }

    pub(crate) fn list() -> Result<Vec<Listed>> {
        Ok(Vec::new())
    }
}

/// The driver as a model.
#[cfg(feature = "mock")]
pub(crate) mod mock {
    pub(crate) use gaudi_mock::{control, open};
}

/// The driver as a model: not built in.
#[cfg(not(feature = "mock"))]
pub(crate) mod mock {
    use gaudi_seam::{Error, MockSpec, Result, SharedIo};

    pub(crate) fn open(_spec: &MockSpec) -> Result<SharedIo> {
        Err(Error::unsupported("open", "mock backend: not part of this build")
            .helped_by("build with the feature mock"))
    }

    pub(crate) fn control(spec: &MockSpec) -> Result<SharedIo> {
        open(spec)
    }
}
