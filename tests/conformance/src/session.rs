//! A fixed session of a program with a device. The lab records it on the real driver, and tests
//! repeat it on the recording.

use std::fmt::Debug;
use std::os::fd::AsFd as _;
use std::time::Duration;

use gaudi_seam::{
    CsSeq, DeviceVa, ExportRequest, HostVa, InfoRequest, InterruptId, InterruptWait, InterruptWord,
    MemHandle, Result, SharedIo, WaitStatus,
};
use gaudi_spec::gaudi2::{USER_INTERRUPTS, queue};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::InfoOp;
use nix::sys::eventfd::EventFd;

use crate::rig::{Buffer, Dram, Host, PAGE_LEN, Program, offset, pattern, submit};
use crate::verdict::Failure;

/// Bytes of each copy.
const LEN: usize = 1024;
/// The first byte of the pattern.
const SEED: u8 = 0x37;
/// A page of Gaudi2's device memory.
const PAGE: u64 = 768 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// Queries without an argument, which a card always answers.
const QUERIES: [InfoOp; 14] = [
    InfoOp::HW_IP_INFO,
    InfoOp::DRAM_USAGE,
    InfoOp::HW_IDLE,
    InfoOp::DEVICE_STATUS,
    InfoOp::CLK_RATE,
    InfoOp::RESET_COUNT,
    InfoOp::TIME_SYNC,
    InfoOp::CS_COUNTERS,
    InfoOp::CLK_THROTTLE_REASON,
    InfoOp::OPEN_STATS,
    InfoOp::DEV_MEM_ALLOC_PAGE_SIZES,
    InfoOp::LAST_ERR_OPEN_DEV_TIME,
    InfoOp::CS_TIMEOUT_EVENT,
    InfoOp::GET_EVENTS,
];

/// Answers as text, one an operation.
#[derive(Debug, Default)]
struct Answers(Vec<String>);

impl Answers {
    fn add(&mut self, what: &str, answer: impl Debug) {
        self.0.push(format!("{what}: {answer:x?}"));
    }

    /// Adds how an operation ended: success, or the kind of the error and its errno.
    fn ended<T>(&mut self, what: &str, answer: Result<T>) {
        let ended = answer.map(drop).map_err(|error| (error.kind(), error.errno()));
        self.add(what, ended);
    }
}

/// Queries a device, allocates and maps memory, copies a pattern to the device and back with the
/// copy engine, waits in four ways, exports, and makes mistakes that the driver rejects. Returns
/// the answers, one an operation.
///
/// # Errors
/// An operation that a device serves has failed. The bytes that came back are an answer.
pub fn session(io: &SharedIo) -> std::result::Result<Vec<String>, Failure> {
    let mut answers = Answers::default();
    for op in QUERIES {
        let mut answer = vec![0; op.answer().map_or(8, |of| of.size)];
        let word = io.info(InfoRequest::new(op), &mut answer)?;
        answers.add(&op.to_string(), (word, answer));
    }
    let unknown = io.info(InfoRequest::new(InfoOp(0x7f)), &mut [0; 8]);
    answers.ended("unknown query", unknown);
    let eventfd = EventFd::new()?;
    io.register_events(eventfd.as_fd())?;
    answers.ended("register events twice", io.register_events(eventfd.as_fd()));
    io.unregister_events()?;

    let device = Dram::new(io, PAGE)?;
    let handle = device.allocation.handle;
    answers.add("device memory", (handle, device.va()));
    answers.ended("free while mapped", io.mem_free(handle));
    answers.ended("free an unknown handle", io.mem_free(MemHandle(0x7777)));
    answers.ended("unmap an unknown address", io.mem_unmap(DeviceVa(0x1000)));
    let mut host = Host::new(io, 2 * PAGE_LEN)?;
    answers.add("host memory", host.va);
    let sent = pattern(LEN, SEED);
    host.memory.write(0, &sent)?;

    let back = offset(host.va, PAGE_LEN as u64);
    let program = Program::new()
        .copy(device.va(), host.va, LEN as u32)
        .copy(back, device.va(), LEN as u32);
    let buffer = Buffer::new(io, program)?;
    answers.add("command buffer", (buffer.handle, buffer.va));
    answers.add("its usage", io.cb_info(buffer.handle, false)?);
    let seq = buffer.submit(queue::PDMA_1_0)?;
    answers.add("submit", seq);
    let has_ended = |status| status == WaitStatus::Completed;
    answers.add("wait", has_ended(io.wait_cs(seq, LIMIT)?.status));
    answers.add("poll", has_ended(io.wait_cs(seq, Duration::ZERO)?.status));
    answers.ended("wait for one of several", io.wait_multi_cs(&[seq], LIMIT));
    answers.ended(
        "wait for a later submission",
        io.wait_cs(CsSeq(seq.0 + 1000), LIMIT),
    );
    answers.ended("submit nothing", submit(&**io, &[]));
    let chunk = HlCsChunk::user(0xffff, buffer.va.0, buffer.len);
    answers.ended("submit to an unknown queue", submit(&**io, &[chunk]));

    let word = host.memory.at(0, 8)?;
    let wait = InterruptWait {
        interrupt: InterruptId(USER_INTERRUPTS.start),
        word: InterruptWord::User(HostVa(word.as_ptr().expose_provenance() as u64)),
        target: 1,
        timeout: LIMIT,
    };
    answers.add(
        "wait for a reached value",
        has_ended(io.wait_interrupt(&wait)?.status),
    );
    let interrupt = InterruptId(0xff0);
    let unknown = io.wait_interrupt(&InterruptWait { interrupt, ..wait });
    answers.ended("wait for an unknown interrupt", unknown);

    let export = |offset| ExportRequest {
        address: device.va(),
        size: PAGE_LEN as u64,
        offset,
        flags: nix::libc::O_CLOEXEC as u32,
    };
    answers.ended("export", io.export_dmabuf(export(0)));
    answers.ended("export a part of a page", io.export_dmabuf(export(16)));
    host.mapping.unmap()?;
    let came = host.bytes(PAGE_LEN, LEN)?;
    answers.add("bytes are those sent", came == sent);
    answers.ended("destroy", io.cb_destroy(buffer.handle));
    answers.ended("destroy again", io.cb_destroy(buffer.handle));
    Ok(answers.0)
}
