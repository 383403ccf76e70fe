//! The backends behind their cargo features: one function each, so that `open.rs` reads the same
//! with and without them.

/// The real driver.
#[cfg(feature = "kernel")]
pub(crate) mod kernel {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use gaudi_kernel::Driver;
    pub(crate) use gaudi_kernel::Kernel;
    use gaudi_seam::{BackendSpec, DeviceSpec, Error, KernelIo as _, KernelSelector, NodeKind, Result};

    use crate::open::Listed;
    use crate::visible::Visible;

    /// Opens a device. `visible` restricts the first free one.
    pub(crate) fn open(selector: KernelSelector, kind: NodeKind, visible: &Visible) -> Result<Arc<Kernel>> {
        let driver = Driver::new();
        let opened = match selector {
            KernelSelector::FirstFree if !visible.is_all() => {
                driver.open_first_of(&indices(&driver, visible)?, kind)
            }
            _ => driver.open(selector, kind),
        };
        opened.map(Arc::new)
    }

    fn indices(driver: &Driver, visible: &Visible) -> Result<Vec<u32>> {
        visible.among(&driver.indices(), |index| driver.module_id(index))
    }

    /// A duplicate of the descriptor of an open node.
    pub(crate) fn duplicate(io: &Kernel) -> Result<OwnedFd> {
        let failed = |errno| Error::from_errno("open", errno).on(io.node().device);
        gaudi_sys::fd::duplicate(io).map_err(failed)
    }

    pub(crate) fn list(visible: &Visible) -> Result<Vec<Listed>> {
        let driver = Driver::new();
        let listed = |index| Listed {
            spec: DeviceSpec::bare(BackendSpec::Kernel(KernelSelector::Index(index))),
            bus: driver.pci_address(index),
        };
        Ok(indices(&driver, visible)?.into_iter().map(listed).collect())
    }
}

/// The real driver: not built in.
#[cfg(not(feature = "kernel"))]
pub(crate) mod kernel {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use gaudi_seam::{Error, KernelIo, KernelSelector, Node, NodeKind, Result};

    use crate::open::Listed;
    use crate::visible::Visible;

    /// An open node of a driver that is not built in: there is none.
    pub(crate) enum Kernel {}

    impl KernelIo for Kernel {
        fn node(&self) -> &Node {
            match *self {}
        }
    }

    pub(crate) fn open(_: KernelSelector, _: NodeKind, _: &Visible) -> Result<Arc<Kernel>> {
        Err(
            Error::unsupported("open", "kernel backend: not part of this build")
                .helped_by("build with the feature kernel"),
        )
    }

    pub(crate) fn duplicate(io: &Kernel) -> Result<OwnedFd> {
        match *io {}
    }

    pub(crate) fn list(_: &Visible) -> Result<Vec<Listed>> {
        Ok(Vec::new())
    }
}

/// The driver as a model.
#[cfg(feature = "mock")]
pub(crate) mod mock {
    use gaudi_seam::{MockSpec, NodeKind, Result, SharedIo};

    use crate::program::{ProgramFile, User};

    pub(crate) fn open(spec: &MockSpec, kind: NodeKind, user: User) -> Result<(SharedIo, ProgramFile)> {
        match (kind, user) {
            (NodeKind::Control, _) => Ok((gaudi_mock::control(spec)?, ProgramFile::None)),
            (NodeKind::Compute, User::Hal | User::Describer) => {
                Ok((gaudi_mock::open(spec)?, ProgramFile::None))
            }
            (NodeKind::Compute, User::Program) => {
                gaudi_mock::open_for_program(spec).map(|(io, buffers)| (io, ProgramFile::Buffers(buffers)))
            }
        }
    }
}

/// The driver as a model: not built in.
#[cfg(not(feature = "mock"))]
pub(crate) mod mock {
    use gaudi_seam::{Error, MockSpec, NodeKind, Result, SharedIo};

    use crate::program::{ProgramFile, User};

    pub(crate) fn open(_: &MockSpec, _: NodeKind, _: User) -> Result<(SharedIo, ProgramFile)> {
        Err(Error::unsupported("open", "mock backend: not part of this build")
            .helped_by("build with the feature mock"))
    }
}

/// A recording.
#[cfg(feature = "replay")]
pub(crate) mod replay {
    use gaudi_seam::{NodeKind, ReplaySpec, Result, SharedIo};

    use crate::program::{ProgramFile, User};

    pub(crate) fn open(spec: &ReplaySpec, kind: NodeKind, user: User) -> Result<(SharedIo, ProgramFile)> {
        match (kind, user) {
            (NodeKind::Control, User::Describer) => Ok((gaudi_replay::queries(spec)?, ProgramFile::None)),
            (NodeKind::Control, _) => Ok((gaudi_replay::control(spec)?, ProgramFile::None)),
            (NodeKind::Compute, User::Hal | User::Describer) => {
                Ok((gaudi_replay::open(spec)?, ProgramFile::None))
            }
            (NodeKind::Compute, User::Program) => {
                let opened = gaudi_replay::open_for_program(spec);
                opened.map(|(io, buffers)| (io, ProgramFile::Buffers(buffers)))
            }
        }
    }
}

/// A recording: not built in.
#[cfg(not(feature = "replay"))]
pub(crate) mod replay {
    use gaudi_seam::{Error, NodeKind, ReplaySpec, Result, SharedIo};

    use crate::program::{ProgramFile, User};

    pub(crate) fn open(_: &ReplaySpec, _: NodeKind, _: User) -> Result<(SharedIo, ProgramFile)> {
        Err(
            Error::unsupported("open", "replay backend: not part of this build")
                .helped_by("build with the feature replay"),
        )
    }
}

/// The layers around a node.
#[cfg(feature = "layers")]
pub(crate) mod layers {
    use std::sync::Arc;

    pub(crate) use gaudi_layers::Stack;
    use gaudi_layers::time::{Monotonic, Time, VirtualClock};
    use gaudi_seam::{BackendSpec, Clock};

    /// The layers' time: that of the machine, or, where a mock's time stands still, one that
    /// stands still too and passes in its own sleeps.
    pub(crate) fn time_of(backend: &BackendSpec) -> Arc<dyn Time> {
        match backend {
            BackendSpec::Mock(mock) if mock.clock == Clock::Virtual => Arc::new(VirtualClock::default()),
            _ => Arc::new(Monotonic::new()),
        }
    }
}

/// The layers around a node: not built in. A spec that names one is refused.
#[cfg(not(feature = "layers"))]
pub(crate) mod layers {
    use std::sync::Arc;

    use gaudi_seam::{BackendSpec, Error, KernelIo, LayerSpec, NodeKind, Result, SharedIo};

    pub(crate) struct Stack;

    impl Stack {
        pub(crate) fn prepare(layers: &[LayerSpec]) -> Result<Self> {
            layers.first().map_or(Ok(Self), |layer| {
                let name = &layer.name;
                let why = format!("the layer {name:?} is not part of this build");
                Err(Error::unsupported("open", why).helped_by("build with the feature layers"))
            })
        }

        pub(crate) fn watched(self, _: Option<&str>, _: bool) -> Self {
            self
        }

        pub(crate) fn record_failed_open(&self, _: NodeKind, _: &Error) {}

        pub(crate) fn over(self, io: SharedIo, (): &()) -> SharedIo {
            io
        }

        pub(crate) fn over_known<K: KernelIo>(self, io: Arc<K>, (): &()) -> SharedIo {
            io
        }
    }

    pub(crate) fn time_of(_: &BackendSpec) {}
}
