//! Opens nodes of a recording: each open takes the next recorded one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gaudi_seam::{
    Backend, DeviceId, Errno, Error, ErrorKind, NodeKind, ReplayMatch, ReplaySpec, Result, SharedIo,
};
use gaudi_sys::{Memfd, lock};

use crate::node::{Opened, Replay};
use crate::recording::{LoadError, Recording};

/// A recording, and which of its sessions this process has replayed.
#[derive(Debug)]
struct Tape {
    recording: Arc<Recording>,
    used: Vec<bool>,
}

/// The recordings of this process. They stay until it ends, so that a later open continues.
static TAPES: Mutex<Option<HashMap<(PathBuf, ReplaySpec), Tape>>> = Mutex::new(None);

/// Opens a compute node.
///
/// # Errors
/// - `InvalidInput`: the file is not a capture. The message has the offset of the error.
/// - `NotFound`: the recording has no further open of a compute node.
/// - The error of the recorded open.
pub fn open(spec: &ReplaySpec) -> Result<SharedIo> {
    next(spec, NodeKind::Compute, false).map(|node| node as SharedIo)
}

/// Opens a control node. One that was not recorded answers the queries of every node of the
/// recording.
///
/// # Errors
/// As [`open`], except `NotFound`.
pub fn control(spec: &ReplaySpec) -> Result<SharedIo> {
    next(spec, NodeKind::Control, false).map(|node| node as SharedIo)
}

/// Opens a control node that answers the queries of every node of the recording. It takes no
/// recorded open, so that the program gets them all.
///
/// # Errors
/// `InvalidInput`, as [`open`].
pub fn queries(spec: &ReplaySpec) -> Result<SharedIo> {
    let mut tapes = lock(&TAPES);
    let recording = Arc::clone(&tape(tapes.get_or_insert_default(), spec)?.recording);
    // In any order.
    let spec = ReplaySpec {
        how: ReplayMatch::Best,
        ..spec.clone()
    };
    let opened = Opened {
        kind: NodeKind::Control,
        index: 0,
        session: None,
        offsets: false,
    };
    new_node(&spec, recording, opened).map(|node| node as SharedIo)
}

/// Opens a compute node for a program that maps the returned file itself: handles are offsets in
/// it.
///
/// # Errors
/// As [`open`].
pub fn open_for_program(spec: &ReplaySpec) -> Result<(SharedIo, Arc<Memfd>)> {
    let node = next(spec, NodeKind::Compute, true)?;
    let file = node.file();
    Ok((node, file))
}

fn failed(spec: &ReplaySpec, error: LoadError) -> Error {
    let file = &spec.file;
    match error {
        LoadError::Open(error) => {
            let invalid = Error::new(ErrorKind::InvalidInput, "open");
            match error.raw_os_error() {
                Some(raw) => invalid.with_errno(Errno::from_raw(raw)),
                None => invalid,
            }
            .because(format!("the recording {file} cannot be opened"))
        }
        LoadError::Read(error) => invalid_recording(file, &error),
        LoadError::Text(error) => invalid_recording(file, &error),
    }
}

fn invalid_recording(file: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, "open")
        .because(format!("the recording {file}: {error}"))
        .helped_by("gaudi record and +record=FILE write recordings")
}

/// Returns the tape of a recording, which is loaded once.
fn tape<'a>(tapes: &'a mut HashMap<(PathBuf, ReplaySpec), Tape>, spec: &ReplaySpec) -> Result<&'a mut Tape> {
    let path = PathBuf::from(&spec.file);
    // A file that does not exist is reported by the open below.
    let path = path.canonicalize().unwrap_or(path);
    let at = (path, spec.clone());
    if !tapes.contains_key(&at) {
        let recording = Recording::load(&at.0).map_err(|error| failed(spec, error))?;
        report(spec, &recording);
        let used = vec![false; recording.sessions.len()];
        tapes.insert(at.clone(), Tape { recording, used });
    }
    let Some(tape) = tapes.get_mut(&at) else {
        unreachable!("the recording was just inserted");
    };
    Ok(tape)
}

fn new_node(spec: &ReplaySpec, recording: Arc<Recording>, opened: Opened) -> Result<Arc<Replay>> {
    let node = Replay::new(spec, recording, opened);
    let device = DeviceId::new(Backend::Replay, opened.index);
    node.map(Arc::new)
        .map_err(|errno| Error::from_errno("open", errno).on(device))
}

fn next(spec: &ReplaySpec, kind: NodeKind, offsets: bool) -> Result<Arc<Replay>> {
    let mut tapes = lock(&TAPES);
    let tape = tape(tapes.get_or_insert_default(), spec)?;
    let mut sessions = tape.recording.sessions.iter().enumerate();
    let found = sessions.find(|(number, session)| session.kind == kind && !tape.used[*number]);
    let device = |index| DeviceId::new(Backend::Replay, index);
    let (session, index) = match found {
        Some((number, session)) => {
            tape.used[number] = true;
            if let Some((errno, noted)) = &session.failed {
                let error = Error::from_errno("open", *errno).on(device(session.index));
                return Err(match noted {
                    Some((kind, cause)) => error.with_kind(*kind).because(cause.clone()),
                    None => error.with_kind(kind_of_open(*errno)),
                });
            }
            (Some(number), session.index)
        }
        None if kind == NodeKind::Control => (None, 0),
        None => {
            let count = tape
                .recording
                .sessions
                .iter()
                .filter(|one| one.kind == kind)
                .count();
            return Err(Error::new(ErrorKind::NotFound, "open")
                .with_errno(Errno::ENOENT)
                .on(device(0))
                .because("the recording has no further open of a compute node")
                .saw(count, "one more")
                .helped_by("record the program again"));
        }
    };
    let opened = Opened {
        kind,
        index,
        session,
        offsets,
    };
    new_node(spec, Arc::clone(&tape.recording), opened)
}

/// The kind of the driver's errno of an open (habanalabs_drv.c:hl_device_open).
fn kind_of_open(errno: Errno) -> ErrorKind {
    match errno {
        Errno::EAGAIN => ErrorKind::InReset,
        Errno::EPERM => ErrorKind::DeviceLost,
        errno => ErrorKind::of_errno(errno),
    }
}

/// Reports once what the recording lacks.
fn report(spec: &ReplaySpec, recording: &Recording) {
    if !recording.has_data {
        tracing::warn!(
            "the recording {} has no data: memory that the device wrote reads as zeros or keeps its content",
            spec.file
        );
    }
    if recording.lost > 0 {
        tracing::warn!("the recording {} lacks {} lost events", spec.file, recording.lost);
    }
}
