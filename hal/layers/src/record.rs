//! The record layer: writes each operation as the ioctl that a program would make, to a `.gcap`
//! file. A replay answers from that file (docs/src/reference/gcap.md).

mod file;
mod memory;
mod ring;

use std::sync::Mutex;

use gaudi_capture::record::{
    DeviceNumber, Event, FdSource, IoctlRecord, MarkKind, MarkRecord, Memory, MmapRecord, Moment, OpenRecord,
};
use gaudi_codec::{argument, errno_of};
use gaudi_seam::{
    Answer as _, AnyAnswer, AnyRequest, CsArgument, DeviceId, Error, KernelIo, Layer, MmapRequest, NodeKind,
    Request, Result, SharedIo,
};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::{lock, process_memory};
use gaudi_uapi::cs::CsFlags;
use zerocopy::IntoBytes as _;

use crate::Below;
use crate::fault::FaultHandle;
use memory::Mapped;

pub(crate) use file::RecordFile;
pub(crate) use ring::RingFile;

/// The major number of DRM's accelerator nodes (`ACCEL_MAJOR`, include/drm/drm_accel.h), which the
/// records of a mock have too.
const ACCEL_MAJOR: u32 = 261;
/// The minor number of the first control node in records. The driver allocates both ranges.
const CONTROL_MINOR: u32 = 128;

/// Records each operation that has ended.
///
/// - Recording does not change the result of an operation: records that could not be written are
///   counted.
/// - With `data`, a record also has the mapped host memory and the mapped buffers that changed
///   before the operation ended. That costs a comparison of all of them at each submission, wait
///   and unmap.
/// - A fork child records nothing: the file belongs to the parent.
#[derive(Debug)]
pub(crate) struct RecordLayer {
    inner: Below,
    file: RecordFile,
    fd: i32,
    device: DeviceNumber,
    mapped: Option<Mutex<Mapped>>,
    /// The fault layers below, and the number of their faults that are marked.
    faults: Mutex<Vec<(FaultHandle, u64)>>,
    owner: OwnerProcess,
}

/// The path of a node in records: the driver's, also for a mock.
fn path_of(device: DeviceId, kind: NodeKind) -> String {
    let index = device.index;
    match kind {
        NodeKind::Compute => format!("/dev/accel/accel{index}"),
        NodeKind::Control => format!("/dev/accel/accel_controlD{index}"),
    }
}

fn device_of(device: DeviceId, kind: NodeKind) -> DeviceNumber {
    let first = match kind {
        NodeKind::Compute => 0,
        NodeKind::Control => CONTROL_MINOR,
    };
    DeviceNumber {
        major: ACCEL_MAJOR,
        // A recording can have any index.
        minor: first.wrapping_add(device.index),
    }
}

fn open_record(file: &RecordFile, device: DeviceId, kind: NodeKind, result: i64) -> Event {
    let at = file.stamp();
    Event::Open(OpenRecord {
        time_ns: at.time_ns,
        duration_ns: 0,
        pid: at.pid,
        tid: at.tid,
        source: FdSource::Open,
        path: path_of(device, kind).into_bytes(),
        flags: (nix::libc::O_RDWR | nix::libc::O_CLOEXEC) as u32,
        device: (result >= 0).then(|| device_of(device, kind)),
        result,
    })
}

/// Records an open that failed.
pub(crate) fn failed_open(file: &RecordFile, kind: NodeKind, error: &Error) {
    // An error without a device has no node that a program could open.
    if let Some(device) = error.device() {
        let result = -i64::from(errno_of(error) as i32);
        file.write(&open_record(file, device, kind, result));
        note_error(file, error);
    }
}

/// Records the kind and the cause of an error after its operation: several kinds share an errno.
fn note_error(file: &RecordFile, error: &Error) {
    let text = format!(
        "error {} {}",
        error.kind().name(),
        error.cause().unwrap_or_default()
    );
    file.write(&mark(file, MarkKind::Note, text));
}

fn mark(file: &RecordFile, kind: MarkKind, text: String) -> Event {
    let at = file.stamp();
    Event::Mark(MarkRecord {
        time_ns: at.time_ns,
        pid: at.pid,
        tid: at.tid,
        kind,
        text: text.into_bytes(),
    })
}

impl RecordLayer {
    /// A layer over `inner`. `faults` are the handles of the fault layers in `inner`.
    pub(crate) fn new(inner: SharedIo, file: RecordFile, faults: &[FaultHandle]) -> Self {
        let node = inner.node();
        let fd = file.next_fd();
        file.name_device(node);
        file.write(&open_record(&file, node.device, node.kind, fd.into()));
        Self {
            device: device_of(node.device, node.kind),
            mapped: file.has_data().then(Mutex::default),
            faults: Mutex::new(faults.iter().map(|handle| (handle.clone(), 0)).collect()),
            owner: OwnerProcess::current(),
            inner: Below(inner),
            file,
            fd,
        }
    }

    /// Records the faults that were injected since the last call.
    fn mark_faults(&self) {
        for (handle, marked) in lock(&self.faults).iter_mut() {
            for event in handle.since(*marked) {
                *marked = event.number;
                self.file
                    .write(&mark(&self.file, MarkKind::Fault, event.to_string()));
            }
        }
    }

    fn mmap_record(
        &self,
        at: file::Stamp,
        request: MmapRequest,
        result: Result<AnyAnswer<'_>, &Error>,
    ) -> Event {
        let result = match result {
            Ok(AnyAnswer::Mapping(mapping)) => mapping.as_ptr().as_ptr().expose_provenance() as i64,
            Ok(_) => 0,
            Err(error) => -i64::from(errno_of(error) as i32),
        };
        Event::Mmap(MmapRecord {
            time_ns: at.time_ns,
            duration_ns: self.file.now().saturating_sub(at.time_ns),
            pid: at.pid,
            tid: at.tid,
            address: 0,
            length: request.len as u64,
            protection: (nix::libc::PROT_READ | nix::libc::PROT_WRITE) as u32,
            flags: nix::libc::MAP_SHARED as u32,
            fd: self.fd,
            device: Some(self.device),
            offset: request.offset,
            result,
        })
    }
}

/// The memory that the driver reads for a request.
fn read_by_driver(request: AnyRequest<'_>) -> Vec<Memory> {
    match request {
        AnyRequest::Submit(cs) => {
            let mut memory = vec![piece(cs.execute.as_bytes()), piece(cs.restore.as_bytes())];
            match cs.argument {
                CsArgument::EngineCores { cores: ids, .. } | CsArgument::Engines { engines: ids, .. } => {
                    memory.push(piece(ids.as_bytes()));
                }
                _ => {}
            }
            if cs.cs_flags().0 & (CsFlags::WAIT.0 | CsFlags::COLLECTIVE_WAIT.0) != 0 {
                memory.extend(cs.execute.iter().filter_map(|chunk| {
                    let len = (chunk.cb_size as usize).saturating_mul(8).min(MOST_NUMBERS);
                    of_process(chunk.cb_handle, len)
                }));
            }
            memory
        }
        AnyRequest::WaitMultiCs(wait) => {
            let numbers: Vec<u64> = wait.seqs.iter().map(|seq| seq.0).collect();
            vec![Memory {
                address: gaudi_codec::address(wait.seqs),
                ..piece(numbers.as_bytes())
            }]
        }
        AnyRequest::Debug(debug) => vec![piece(debug.input)],
        AnyRequest::Nic(nic) => vec![piece(nic.input)],
        _ => Vec::new(),
    }
}

/// The most bytes of a list of sequence numbers that is recorded.
const MOST_NUMBERS: usize = 4096;

fn piece(bytes: &[u8]) -> Memory {
    Memory {
        address: gaudi_codec::address(bytes),
        at: Moment::Entry,
        bytes: bytes.to_vec(),
        whole: bytes.len() as u64,
    }
}

fn of_process(address: u64, len: usize) -> Option<Memory> {
    let mut bytes = vec![0; len];
    process_memory::read(address, &mut bytes).ok()?;
    Some(Memory {
        address,
        ..piece(&bytes)
    })
}

/// The memory that the driver wrote for a request.
fn written_by_driver(request: AnyRequest<'_>) -> Option<Memory> {
    let bytes: &[u8] = match request {
        AnyRequest::Info(info) => info.answer,
        AnyRequest::Debug(debug) => debug.output,
        AnyRequest::Nic(nic) => nic.output,
        _ => return None,
    };
    Some(Memory {
        at: Moment::Exit,
        ..piece(bytes)
    })
}

impl Drop for RecordLayer {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            return;
        }
        let at = self.file.stamp();
        self.file.write(&Event::Close {
            time_ns: at.time_ns,
            pid: at.pid,
            tid: at.tid,
            fd: self.fd,
            result: 0,
        });
    }
}

impl Layer for RecordLayer {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner.0
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        if self.owner.is_foreign() {
            return next(request);
        }
        let at = self.file.stamp();
        let encoded = argument::encode(request.view());
        let mut memory = read_by_driver(request.view());
        let mut cut = 0;
        if let Some(mapped) = &self.mapped {
            // What the program changed since the last operation: otherwise a device that writes the
            // older bytes again would change nothing.
            cut = lock(mapped).before(request.view(), &mut memory);
        }
        let result = next(request);
        let view = request.view();
        let answer = result.as_ref().map(|answer| answer.view());
        let Some((ioctl, input)) = encoded else {
            if let AnyRequest::Mmap(&mmap) = view {
                self.file.write(&self.mmap_record(at, mmap, answer));
                if let (Some(mapped), Ok(AnyAnswer::Mapping(mapping))) = (&self.mapped, answer) {
                    lock(mapped).add_mmap(
                        mapping.as_ptr().as_ptr().expose_provenance() as u64,
                        mapping.len(),
                    );
                }
            }
            if let Err(error) = &result {
                note_error(&self.file, error);
            }
            self.mark_faults();
            return result;
        };
        let mut output = input.clone();
        let ended = argument::set_result(view, answer.map_err(errno_of), &mut output);
        memory.retain(|piece| !piece.bytes.is_empty());
        if result.is_ok() {
            memory.extend(written_by_driver(view).filter(|piece| !piece.bytes.is_empty()));
        }
        if let Some(mapped) = &self.mapped {
            cut += lock(mapped).observe(view, answer.ok(), &mut memory);
            self.file.count_cut(cut);
        }
        // An interface without the ioctl has no number for it, and the request has failed.
        let number = self.inner.0.node().era.request(ioctl).unwrap_or(0);
        self.file.write(&Event::Ioctl(IoctlRecord {
            time_ns: at.time_ns,
            duration_ns: self.file.now().saturating_sub(at.time_ns),
            pid: at.pid,
            tid: at.tid,
            fd: self.fd,
            device: Some(self.device),
            request: number,
            argument: gaudi_codec::address(&input),
            compat: false,
            result: ended.err().map_or(0, |errno| -i64::from(errno as i32)),
            input,
            output,
            memory,
        }));
        if let Err(error) = &result {
            note_error(&self.file, error);
        }
        self.mark_faults();
        result
    }
}
