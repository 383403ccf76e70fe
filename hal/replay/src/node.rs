//! [`Replay`]: an open node that a recording answers.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use gaudi_capture::Limits;
use gaudi_capture::decode::Decoder;
use gaudi_capture::record::{Event, IoctlRecord, MmapRecord, Moment};
use gaudi_codec::argument;
use gaudi_seam::{
    AnyRequest, Backend, DeviceId, Era, Errno, Error, ErrorKind, KernelIo, Layer, Node, NodeKind, RawMapping,
    ReplaySpec, Request, Result,
};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::standin::{self, MEMFD_NAME, Window};
use gaudi_sys::{Event as EventFile, Memfd, SysResult, lock};
use gaudi_uapi::info::HlInfoArgs;
use gaudi_uapi::memory::HlMemIn;
use zerocopy::FromZeros as _;
use zerocopy::IntoBytes as _;

use crate::context::{Context, Found};
use crate::key::{FILE_LEN, Key, as_record, place};
use crate::memory::HostMemory;
use crate::recording::{Call, CallRecord, Recording};

/// The node below: its name, and no operation.
struct Bare(Node);

impl KernelIo for Bare {
    fn node(&self) -> &Node {
        &self.0
    }
}

/// An open node that a recording answers.
pub(crate) struct Replay {
    below: Bare,
    recording: Arc<Recording>,
    /// The session that it replays. `None` for a control node that was not recorded: it answers
    /// queries of every session.
    session: Option<usize>,
    state: Mutex<State>,
    file: Arc<Memfd>,
    /// Handles are offsets in the file, for a program that maps the file itself.
    offsets: bool,
    owner: OwnerProcess,
}

#[derive(Debug)]
struct State {
    context: Context,
    memory: HostMemory,
    /// The eventfd that the program registered, and the query of events that it was last signalled
    /// for.
    eventfd: Option<(EventFile, Option<usize>)>,
}

/// The node that was opened, and the recorded session that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) kind: NodeKind,
    pub(crate) index: u32,
    pub(crate) session: Option<usize>,
    pub(crate) offsets: bool,
}

impl Replay {
    pub(crate) fn new(spec: &ReplaySpec, recording: Arc<Recording>, opened: Opened) -> SysResult<Self> {
        let node = Node {
            kind: opened.kind,
            device: DeviceId::new(Backend::Replay, opened.index),
            era: Era::AccelDrm,
            name: spec.to_string(),
        };
        let calls = opened
            .session
            .map_or(&[][..], |session| &recording.sessions[session].calls);
        let context = Context::new(spec.how, opened.offsets, calls);
        Ok(Self {
            below: Bare(node),
            session: opened.session,
            state: Mutex::new(State {
                context,
                memory: HostMemory::default(),
                eventfd: None,
            }),
            file: Arc::new(Memfd::sparse(MEMFD_NAME, FILE_LEN)?),
            offsets: opened.offsets,
            owner: OwnerProcess::current(),
            recording,
        })
    }

    /// The file with the buffers of the node.
    pub(crate) fn file(&self) -> Arc<Memfd> {
        Arc::clone(&self.file)
    }

    fn calls(&self) -> &[Call] {
        self.session
            .map_or(&[], |session| &self.recording.sessions[session].calls)
    }

    /// Returns the recorded call that answers a request.
    fn find(&self, state: &mut State, request: AnyRequest<'_>, key: &Key) -> Result<&Call> {
        let calls = self.calls();
        let had_ended = state.context.has_ended();
        let expected = match state.context.find(key, calls) {
            Found::New(number) | Found::Again(number) => return Ok(&calls[number]),
            Found::Missing(expected) => expected.map(|number| &calls[number]),
        };
        // A query of another node of the recording has the same answer.
        let may_borrow = key.is_info() && !state.context.is_strict();
        let elsewhere = self.recording.queries.get(key).filter(|_| may_borrow);
        if let Some(&(session, number)) = elsewhere {
            return Ok(&self.recording.sessions[session].calls[number]);
        }
        let error = self.missing(request, expected);
        // A program gets only the errno.
        if self.offsets && !had_ended && state.context.has_ended() {
            tracing::warn!("the replay of {} ends: {error}", self.below.0.name);
        }
        Err(error)
    }

    /// The error of a request that was not recorded. Shows both sides.
    #[cold]
    fn missing(&self, request: AnyRequest<'_>, expected: Option<&Call>) -> Error {
        let wanted = match expected {
            Some(call) => describe(&call.of),
            None => "no further call".to_owned(),
        };
        let seen = match request {
            AnyRequest::Mmap(mmap) => format!("mmap{{offset={:#x}, length={:#x}}}", mmap.offset, mmap.len),
            request => as_record(request).map_or_else(String::new, |record| line(&Event::Ioctl(record))),
        };
        let mut error = Error::unsupported(
            request.operation().kernel_name(),
            "the recording does not have this call",
        )
        .on(self.below.0.device)
        .saw(seen, wanted)
        .helped_by("record the program again, or compare two recordings with gaudi diff");
        if self.recording.lost > 0 {
            let lost = self.recording.lost;
            error = error.because(format!(
                "the recording does not have this call; its recorder lost {lost} events"
            ));
        }
        error
    }

    /// The error of a recorded call.
    fn failed<R: Request>(&self, call: &Call, errno: Errno) -> Error {
        let name = R::OPERATION.kernel_name();
        if errno == Errno::EAGAIN {
            return Error::would_block(name).on(self.below.0.device);
        }
        let error = match call.of.errno() {
            Some(errno) => Error::from_errno(name, errno),
            // The ioctl succeeded, and its status reports the end of the wait.
            None => Error::new(ErrorKind::of_operation(R::OPERATION, errno), name),
        };
        let error = error.on(self.below.0.device);
        match &call.error {
            Some((kind, cause)) if !cause.is_empty() => error.with_kind(*kind).because(cause.clone()),
            Some((kind, _)) => error.with_kind(*kind),
            None => error.with_kind(ErrorKind::of_operation(R::OPERATION, errno)),
        }
    }

    /// Clears a new buffer, whose number an old one may have had.
    fn clear(&self, record: &IoctlRecord, size: u64) {
        let handle = record
            .output
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        let cleared = self
            .file
            .punch_hole(place(handle), size.next_multiple_of(gaudi_sys::PAGE));
        debug_assert!(cleared.is_ok(), "{cleared:?}");
    }

    /// Signals the program's eventfd before the recorded program asked which events have occurred.
    fn signal(&self, state: &mut State) {
        let next = state.context.next();
        let Some((file, signalled)) = &mut state.eventfd else {
            return;
        };
        let Some(call) = self.calls().get(next).filter(|call| call.key.is_events()) else {
            return;
        };
        let CallRecord::Ioctl(record) = &call.of else {
            return;
        };
        let written = record.memory.iter().filter(|piece| piece.at == Moment::Exit);
        let has_events = written.flat_map(|piece| &piece.bytes).any(|&byte| byte != 0);
        if has_events && *signalled != Some(next) {
            *signalled = Some(next);
            // A full eventfd is readable.
            let _ = file.signal();
        }
    }

    fn not_made<R: Request>(&self, errno: Errno) -> Error {
        Error::from_errno(R::OPERATION.kernel_name(), errno).on(self.below.0.device)
    }

    fn answer_mmap<R: Request>(
        &self,
        state: &mut State,
        request: &R,
        record: &MmapRecord,
    ) -> Result<R::Answer> {
        let AnyRequest::Mmap(mmap) = request.view() else {
            unreachable!("a record of mmap(2) has the key of mmap(2)");
        };
        let at = place(mmap.offset);
        // An access behind the end of the file is a SIGBUS.
        if mmap.len as u64 > FILE_LEN - at {
            return Err(self.not_made::<R>(Errno::ENOMEM));
        }
        let mapping = RawMapping::of_fd(&*self.file, at, mmap.len);
        let mapping = mapping.map_err(|errno| self.not_made::<R>(errno))?;
        if let Ok(recorded) = u64::try_from(record.result) {
            state.memory.map_file(recorded, at, record.length);
        }
        Ok(R::reply(mapping))
    }

    /// Writes what the driver and the device wrote. A call that failed can have been waiting, for
    /// example.
    fn write_memory<R: Request>(&self, state: &mut State, request: &mut R, record: &IoctlRecord) {
        let out = out_pointer(request.view(), record);
        for piece in record.memory.iter().filter(|piece| piece.at == Moment::Exit) {
            if Some(piece.address) == out {
                let buffer = request.output();
                buffer.fill(0);
                buffer
                    .iter_mut()
                    .zip(&piece.bytes)
                    .for_each(|(to, from)| *to = *from);
            } else {
                state.memory.write(&self.file, piece.address, &piece.bytes);
            }
        }
    }

    fn answer_ioctl<R: Request>(
        &self,
        state: &mut State,
        request: &mut R,
        call: &Call,
        record: &IoctlRecord,
    ) -> Result<R::Answer> {
        self.write_memory(state, request, record);
        if let AnyRequest::ExportDmabuf(export) = request.view() {
            let dmabuf = stand_in(export.size, export.flags).map_err(|errno| self.not_made::<R>(errno))?;
            return Ok(R::reply(dmabuf));
        }
        let mut output = std::borrow::Cow::from(&record.output);
        if self.offsets {
            as_offset(request.view(), output.to_mut());
        }
        let answer = argument::answer::<R::Answer>(request.view(), &output);
        let answer = answer.map_err(|errno| self.failed::<R>(call, errno))?;
        let answer = answer.ok_or_else(|| self.not_made::<R>(Errno::EBADMSG))?;
        match request.view() {
            AnyRequest::MemMapHost(map) => {
                let mut recorded = HlMemIn::new_zeroed();
                let bytes = recorded.as_mut_bytes().iter_mut();
                bytes.zip(&record.input).for_each(|(to, from)| *to = *from);
                let va = record
                    .output
                    .first_chunk()
                    .map_or(0, |word| u64::from_le_bytes(*word));
                state
                    .memory
                    .map_host(va, recorded.arg[0], map.address.0, map.size);
            }
            AnyRequest::CbCreate(create) => self.clear(record, create.size.into()),
            AnyRequest::TsAlloc(alloc) => self.clear(record, u64::from(alloc.0) * 8),
            AnyRequest::MemUnmap(unmap) => state.memory.unmap(unmap.0.0),
            AnyRequest::RegisterEvents(events) => {
                let own = gaudi_sys::fd::duplicate(events.0).and_then(EventFile::of);
                state.eventfd = own.ok().map(|file| (file, None));
            }
            AnyRequest::UnregisterEvents(_) => state.eventfd = None,
            _ => {}
        }
        Ok(answer)
    }
}

/// The address of the buffer that the driver fills, in the recorded program.
fn out_pointer(request: AnyRequest<'_>, record: &IoctlRecord) -> Option<u64> {
    let word = |at: usize| {
        let bytes = record.input.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    match request {
        AnyRequest::Info(_) => word(std::mem::offset_of!(HlInfoArgs, return_pointer)),
        AnyRequest::Debug(_) => word(std::mem::offset_of!(gaudi_uapi::debug::HlDebugArgs, output_ptr)),
        AnyRequest::Nic(_) => word(std::mem::offset_of!(gaudi_uapi::nic::HlNicArgs, output_ptr)),
        _ => None,
    }
}

/// Replaces a new handle by its offset in the replay's file.
fn as_offset(request: AnyRequest<'_>, output: &mut [u8]) {
    if !matches!(
        request,
        AnyRequest::CbCreate(_) | AnyRequest::TsAlloc(_) | AnyRequest::MapBlock(_)
    ) {
        return;
    }
    if let Some(word) = output.first_chunk_mut::<8>() {
        *word = place(u64::from_le_bytes(*word)).to_le_bytes();
    }
}

/// A descriptor in place of a dma-buf. It reads as zeros.
fn stand_in(size: u64, flags: u32) -> SysResult<OwnedFd> {
    let memory = Memfd::sparse(MEMFD_NAME, size)?;
    let fd = standin::export(&memory, Window { offset: 0, len: size })?;
    if flags & nix::libc::O_CLOEXEC as u32 == 0 {
        gaudi_sys::fd::keep_on_exec(&fd)?;
    }
    Ok(fd)
}

fn describe(call: &CallRecord) -> String {
    line(&match call {
        CallRecord::Ioctl(ioctl) => Event::Ioctl(ioctl.clone()),
        CallRecord::Mmap(mmap) => Event::Mmap(mmap.clone()),
    })
}

/// The longest line of a call in an error, in characters.
const LONGEST_LINE: usize = 400;

fn line(event: &Event) -> String {
    let mut line = Decoder::new(Limits::LINE).decode(event).to_string();
    if let Some((end, _)) = line.char_indices().nth(LONGEST_LINE) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

impl Layer for Replay {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &self.below
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        _next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        let device = self.below.0.device;
        if self.owner.is_foreign() {
            return Err(Error::new(ErrorKind::Forked, R::OPERATION.kernel_name())
                .on(device)
                .because("the device was opened by the parent of this process"));
        }
        let key = Key::of(request.view());
        let mut state = lock(&self.state);
        let state = &mut *state;
        let call = self.find(state, request.view(), &key)?;
        if let Some(errno) = call.of.errno() {
            if let CallRecord::Ioctl(record) = &call.of {
                self.write_memory(state, request, record);
            }
            self.signal(state);
            return Err(self.failed::<R>(call, errno));
        }
        let answer = match &call.of {
            CallRecord::Ioctl(record) => self.answer_ioctl(state, request, call, record),
            CallRecord::Mmap(record) => self.answer_mmap(state, request, record),
        };
        self.signal(state);
        answer
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("node", &self.below.0)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
