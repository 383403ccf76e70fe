//! The backends behind their cargo features: one function each, so that `open.rs` reads the same
//! with and without them.

/// The real driver.
#[cfg(feature = "kernel")]
pub(crate) mod kernel {
    use std::sync::Arc;

    use gaudi_kernel::{Driver, Kernel};
    use gaudi_seam::{BackendSpec, DeviceSpec, KernelSelector, NodeKind, Result};

    use crate::open::Listed;

    pub(crate) fn open(selector: KernelSelector, kind: NodeKind) -> Result<Arc<Kernel>> {
        Driver::new().open(selector, kind).map(Arc::new)
    }

    pub(crate) fn list() -> Vec<Listed> {
        let driver = Driver::new();
        let listed = |index| Listed {
            spec: DeviceSpec::bare(BackendSpec::Kernel(KernelSelector::Index(index))),
            bus: driver.pci_address(index),
        };
        driver.indices().into_iter().map(listed).collect()
    }
}

/// The real driver: not built in.
#[cfg(not(feature = "kernel"))]
pub(crate) mod kernel {
    use std::sync::Arc;

    use gaudi_seam::{Error, KernelIo, KernelSelector, Node, NodeKind, Result};

    use crate::open::Listed;

    /// An open node of a driver that is not built in: there is none.
    pub(crate) enum Kernel {}

    impl KernelIo for Kernel {
        fn node(&self) -> &Node {
            match *self {}
        }
    }

    pub(crate) fn open(_selector: KernelSelector, _kind: NodeKind) -> Result<Arc<Kernel>> {
        Err(
            Error::unsupported("open", "kernel backend: not part of this build")
                .helped_by("build with the feature kernel"),
        )
    }

    pub(crate) fn list() -> Vec<Listed> {
        Vec::new()
    }
}

/// The driver as a model.
#[cfg(feature = "mock")]
pub(crate) mod mock {
    use gaudi_seam::{MockSpec, NodeKind, Result, SharedIo};

    pub(crate) fn open(spec: &MockSpec, kind: NodeKind) -> Result<SharedIo> {
        if kind == NodeKind::Control {
            gaudi_mock::control(spec)
        } else {
            gaudi_mock::open(spec)
        }
    }
}

/// The driver as a model: not built in.
#[cfg(not(feature = "mock"))]
pub(crate) mod mock {
    use gaudi_seam::{Error, MockSpec, NodeKind, Result, SharedIo};

    pub(crate) fn open(_spec: &MockSpec, _kind: NodeKind) -> Result<SharedIo> {
        Err(Error::unsupported("open", "mock backend: not part of this build")
            .helped_by("build with the feature mock"))
    }
}
