//! From the layers of a [`DeviceSpec`](gaudi_seam::DeviceSpec) to the stack.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gaudi_seam::{Errno, Error, ErrorKind, KernelIo, LayerSpec, Result, SharedIo};

use crate::fault::{FaultLayer, Plan};
use crate::time::Time;
use crate::trace::TraceLayer;
use crate::validate::{Policy, ValidateLayer};

/// The longest plan.
const LONGEST_PLAN: u64 = 1 << 20;

/// Layers whose arguments were read and whose files are open, ready to stand over a node.
///
/// What can be wrong with a layer is found here, before a device is opened: opening one in vain costs a reset.
#[derive(Debug, Default)]
pub struct Stack(Vec<Prepared>);

enum Prepared {
    Trace(File),
    Fault(Plan),
    Validate(Policy),
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(_) => f.write_str("trace"),
            Self::Fault(plan) => write!(f, "fault={plan}"),
            Self::Validate(policy) => write!(f, "validate ({policy:?})"),
        }
    }
}

impl Stack {
    /// Reads plans and makes trace files. What a trace file held before this process is dropped; nodes that this process opens with one
    /// file one after another, or at a time, all go into it.
    ///
    /// - `trace=FILE`
    /// - `fault=PLAN`: the file of that name if there is one, else the plan itself
    /// - `validate`, or `validate=refuse` to keep from the driver what it would refuse
    pub fn prepare(layers: &[LayerSpec]) -> Result<Self> {
        layers.iter().map(prepare).collect::<Result<_>>().map(Self)
    }

    /// Puts the layers over a node, the first innermost. With no layers this is the node itself.
    pub fn over(self, io: SharedIo, time: &Arc<dyn Time>) -> SharedIo {
        self.0
            .into_iter()
            .fold(io, |io, layer| layer.over(io, |io| io, time))
    }

    /// As [`over`](Self::over), of a node whose type is known: the innermost layer then needs no call through a table to reach it.
    pub fn over_known<K: KernelIo>(self, io: Arc<K>, time: &Arc<dyn Time>) -> SharedIo {
        let mut layers = self.0.into_iter();
        match layers.next() {
            Some(first) => Self(layers.collect()).over(first.over(io, |io| io, time), time),
            None => io,
        }
    }
}

impl Prepared {
    /// The layer over a node of any type; `shared` forgets which.
    fn over<K: KernelIo + ?Sized>(
        self,
        io: Arc<K>,
        shared: impl FnOnce(Arc<K>) -> SharedIo,
        time: &Arc<dyn Time>,
    ) -> SharedIo {
        match self {
            Self::Fault(plan) => Arc::new(FaultLayer::new(io, &plan, Arc::clone(time))),
            Self::Trace(file) => Arc::new(TraceLayer::new(shared(io), Box::new(file), Arc::clone(time))),
            Self::Validate(policy) => Arc::new(ValidateLayer::new(shared(io), policy)),
        }
    }
}

fn prepare(layer: &LayerSpec) -> Result<Prepared> {
    match (layer.name.as_str(), layer.argument.as_deref()) {
        ("trace", Some(file)) if !file.is_empty() => trace(Path::new(file)),
        ("trace", _) => Err(wrong("trace needs a file", "write +trace=FILE")),
        ("fault", Some(plan)) if !plan.is_empty() => fault(plan),
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

fn wrong(cause: impl Into<String>, help: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "open")
        .because(cause)
        .helped_by(help)
}

/// Trace files that this process has begun: a second node of one spec goes on behind the first. By path, not by inode, since the number of
/// a file that was removed is given to the next.
static BEGUN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn trace(path: &Path) -> Result<Prepared> {
    let open = || -> std::io::Result<File> {
        // Appended, so that lines of several nodes stand behind one another.
        let file = File::options().append(true).create(true).open(path)?;
        let (is_file, whole) = (file.metadata()?.is_file(), fs::canonicalize(path)?);
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        if is_file && begun.insert(whole) {
            file.set_len(0)?;
        }
        Ok(file)
    };
    open().map(Prepared::Trace).map_err(|error| {
        failed(
            &error,
            format!("the trace file {} cannot be made", path.display()),
        )
        .helped_by("name a file that this user may write, in a folder that is there")
    })
}

fn fault(argument: &str) -> Result<Prepared> {
    let (text, is_file) = match read(Path::new(argument)) {
        Ok(text) => (text, true),
        Err(error) if names_no_file(&error) => (argument.to_owned(), false),
        Err(error) => {
            return Err(failed(
                &error,
                format!("the fault plan {argument} cannot be read"),
            ));
        }
    };
    text.parse().map(Prepared::Fault).map_err(|error| {
        let whence = match is_file {
            true => format!("in the file {}", shortened(argument)),
            false => format!("and {:?} is no file", shortened(argument)),
        };
        wrong(
            format!("{error} ({whence})"),
            "OP[:when=FIRST[..LAST][+STEP]]:error=ERRNO|delay=TIME|lose|reset[:p=PERCENT][:seed=N]",
        )
    })
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn read(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.is_dir() {
        return Err(IoKind::IsADirectory.into());
    }
    let mut text = String::new();
    let read = File::open(path)?
        .take(LONGEST_PLAN + 1)
        .read_to_string(&mut text)?;
    match read as u64 > LONGEST_PLAN {
        true => Err(IoKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

/// Whether an argument is no path of a file, rather than one that cannot be read.
fn names_no_file(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        IoKind::NotFound | IoKind::NotADirectory | IoKind::InvalidInput
    ) || error.raw_os_error() == Some(Errno::ENAMETOOLONG as i32)
}

fn failed(error: &std::io::Error, cause: String) -> Error {
    match error.raw_os_error() {
        // It is the spec that is wrong: no device is missing.
        Some(raw) if error.kind() == IoKind::NotFound => Error::from_errno("open", Errno::from_raw(raw))
            .with_kind(ErrorKind::InvalidInput)
            .because(cause),
        Some(raw) => Error::from_errno("open", Errno::from_raw(raw)).because(cause),
        None => Error::new(ErrorKind::InvalidInput, "open").because(format!("{cause}: {error}")),
    }
}
