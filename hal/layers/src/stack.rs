//! [`Stack`]: the layers of a [`DeviceSpec`](gaudi_seam::DeviceSpec).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gaudi_seam::{Error, ErrorKind, KernelIo, LayerSpec, NodeKind, Result, SharedIo};

use crate::fault::{ChipEvent, FaultHandle, FaultLayer, Plan, Rule, Target, load_plan, record_handles};
use crate::file::LayerFile;
use crate::record::{RecordFile, RecordLayer, RingFile, failed_open};
use crate::span;
use crate::time::Time;
use crate::trace::{self, TraceLayer, log_over};
use crate::validate::{Policy, ValidateLayer};

/// Layers with parsed arguments and open files, ready to wrap a node.
///
/// Errors of a layer are found before the device is opened: a needless open costs a reset.
#[derive(Debug, Default)]
pub struct Stack(Vec<Prepared>);

enum Prepared {
    Trace(LayerFile),
    Record(RecordFile),
    Fault(Plan),
    Validate(Policy),
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(_) => f.write_str("trace"),
            Self::Record(_) => f.write_str("record"),
            Self::Fault(plan) => write!(f, "fault={plan}"),
            Self::Validate(policy) => write!(f, "validate ({policy:?})"),
        }
    }
}

impl Stack {
    /// Reads plans and creates trace files.
    ///
    /// - `trace=FILE`: a regular file. An old trace in it is truncated; other content is an error
    ///   and is not changed. All nodes that this process opens with the file write to it. Another
    ///   process cannot write to it until they are closed.
    /// - `record=FILE`: as `trace`, in the form `.gcap`. `record=FILE,data` also records the mapped
    ///   memory that operations changed, so that a replay returns it.
    /// - `fault=PLAN`: the file of that name if there is one, otherwise the plan itself; see
    ///   [`load_plan`].
    /// - `validate`, or `validate=refuse` to reject certain misuse before the driver sees it.
    ///
    /// # Errors
    /// `InvalidInput`: an invalid argument or file. `Unsupported`: an unknown layer.
    pub fn prepare(layers: &[LayerSpec]) -> Result<Self> {
        layers.iter().map(prepare).collect::<Result<_>>().map(Self)
    }

    /// Adds, outermost, a layer that records to a tracer outside of this process: `value` is that
    /// of [`VARIABLE`](gaudi_ring::VARIABLE). Adds nothing if its memory cannot be mapped, or if
    /// the tracer sees the node's ioctls, which a `driver` serves.
    #[must_use]
    pub fn watched(mut self, value: Option<&str>, driver: bool) -> Self {
        let ring = value.and_then(|value| RingFile::open(value, driver));
        self.0
            .extend(ring.map(|ring| Prepared::Record(RecordFile::Ring(ring))));
        self
    }

    /// Records that the device below could not be opened. Layers other than `record` have no place
    /// for it.
    pub fn record_failed_open(&self, kind: NodeKind, error: &Error) {
        for layer in &self.0 {
            if let Prepared::Record(file) = layer {
                failed_open(file, kind, error);
            }
        }
    }

    /// Wraps a node in the layers, the first innermost. Without layers this returns the node
    /// itself, unless the program's log enables operations (target `gaudi::operation`, level
    /// `INFO`): then a layer logs them. If the process has a subscriber of `tracing`, the outermost
    /// layer gives each operation a span (target `gaudi::span`).
    pub fn over(self, io: SharedIo, time: &Arc<dyn Time>) -> SharedIo {
        self.fold(io, Vec::new(), time)
    }

    /// Wraps `io`, and records the result with the handles of its fault layers.
    fn fold(self, io: SharedIo, mut handles: Vec<FaultHandle>, time: &Arc<dyn Time>) -> SharedIo {
        let layers = self.0.into_iter();
        let io = layers.fold(io, |io, layer| layer.over(io, |io| io, &mut handles, time));
        let io = span::over(log_over(io, time));
        record_handles(&io, &handles);
        io
    }

    /// As [`over`](Self::over), for a node of a known type: the innermost layer calls it directly.
    pub fn over_known<K: KernelIo>(self, io: Arc<K>, time: &Arc<dyn Time>) -> SharedIo {
        let mut layers = self.0.into_iter();
        let mut handles = Vec::new();
        match layers.next() {
            Some(first) => {
                let io = first.over(io, |io| io, &mut handles, time);
                Self(layers.collect()).fold(io, handles, time)
            }
            None => span::over(log_over(io, time)),
        }
    }
}

impl Prepared {
    /// The layer over a node of any type; `shared` converts it to a shared node.
    fn over<K: KernelIo + ?Sized>(
        self,
        io: Arc<K>,
        shared: impl FnOnce(Arc<K>) -> SharedIo,
        handles: &mut Vec<FaultHandle>,
        time: &Arc<dyn Time>,
    ) -> SharedIo {
        match self {
            Self::Fault(plan) => {
                let layer = FaultLayer::new(io, &plan, Arc::clone(time));
                handles.push(layer.handle());
                Arc::new(layer)
            }
            Self::Trace(file) => Arc::new(TraceLayer::new(shared(io), Box::new(file), Arc::clone(time))),
            Self::Record(file) => Arc::new(RecordLayer::new(shared(io), file, handles)),
            Self::Validate(policy) => Arc::new(ValidateLayer::new(shared(io), policy)),
        }
    }
}

fn prepare(layer: &LayerSpec) -> Result<Prepared> {
    match (layer.name.as_str(), layer.argument.as_deref()) {
        ("trace", Some(file)) if !file.is_empty() => {
            LayerFile::open(Path::new(file), &trace::FORM).map(Prepared::Trace)
        }
        ("trace", _) => Err(wrong("trace needs a file", "write +trace=FILE")),
        ("record", Some(file)) if !file.is_empty() => RecordFile::open(file).map(Prepared::Record),
        ("record", _) => Err(wrong(
            "record needs a file",
            "write +record=FILE, or +record=FILE,data",
        )),
        ("fault", Some(plan)) if !plan.is_empty() => {
            load_plan(plan, 0).and_then(|(plan, _)| of_device(plan).map(Prepared::Fault))
        }
        ("fault", _) => Err(wrong(
            "fault needs a plan",
            "write +fault=FILE, or a rule such as +fault=submit:when=3:error=EAGAIN",
        )),
        ("validate", None) => Ok(Prepared::Validate(Policy::Explain)),
        ("validate", Some("refuse")) => Ok(Prepared::Validate(Policy::Refuse)),
        ("validate", Some(_)) => Err(wrong(
            "validate takes no such argument",
            "write +validate or +validate=refuse",
        )),
        (name, _) => Err(
            Error::unsupported("open", format!("the layer {name:?} is not part of this build"))
                .helped_by(format!("leave +{name} out of the device spec")),
        ),
    }
}

/// The plan, if a device executes all its rules.
fn of_device(plan: Plan) -> Result<Plan> {
    let is_other = |rule: &&Rule| rule.target.is_nic() || rule.target == Target::Chip(ChipEvent::Firmware);
    let Some(rule) = plan.rules.iter().find(is_other) else {
        return Ok(plan);
    };
    Err(match rule.target.is_nic() {
        true => wrong(
            format!("the fault rule {rule} is for a NIC, not for a device"),
            "give it to the software NIC: --nic softnic+fault=PLAN",
        ),
        false => wrong(
            format!("the fault rule {rule} needs a firmware, which no mock has"),
            "write it for the virtual card: vgaudi serve --fault PLAN",
        ),
    })
}

fn wrong(cause: impl Into<String>, help: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "open")
        .because(cause)
        .helped_by(help)
}
