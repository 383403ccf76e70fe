//! What the driver's errnos become, and that no answer of a driver can harm us.
#![expect(
    unsafe_code,
    reason = "mapping host memory is the seam's one unsafe operation"
)]

mod recorder;

use std::time::Duration;

use gaudi_kernel::{Kernel, Syscalls};
use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, CsSeq, DeviceVa, Error, ErrorKind, HostVa, InfoRequest, InterruptId,
    InterruptWait, InterruptWord, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle, NodeKind,
};
use gaudi_sys::Errno;
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::{HlInfoDeviceStatus, InfoOp};
use gaudi_uapi::memory::MemFlags;
use proptest::prelude::*;
use recorder::{Reply, open, words};

const OPERATIONAL: u32 = 0;
const IN_RESET: u32 = 1;
const MALFUNCTION: u32 = 2;

/// The error of one call whose ioctl fails; `status` is the device's answer to a status query, if
/// it is asked.
fn fails(errno: Errno, status: Option<u32>, call: impl Fn(&Kernel<dyn Syscalls>) -> Option<Error>) -> Error {
    fails_on(NodeKind::Compute, errno, status, call)
}

fn fails_on(
    kind: NodeKind,
    errno: Errno,
    status: Option<u32>,
    call: impl Fn(&Kernel<dyn Syscalls>) -> Option<Error>,
) -> Error {
    let (kernel, recorder) = open(kind);
    recorder.reply([Reply::Fails(errno)]);
    recorder.reply(status.map(|status| Reply::Info(words(&[status, 0]), 0)));
    let error = call(&kernel).expect("a failing ioctl is an error");
    assert_eq!(error.errno(), Some(errno), "the errno is kept: {error:?}");
    assert_eq!(
        error.device().map(|d| d.to_string()).as_deref(),
        Some("accel0"),
        "the device is named: {error:?}"
    );
    let asked = recorder.take().len();
    assert_eq!(
        asked,
        1 + usize::from(status.is_some()),
        "the device is asked for its status only where that helps"
    );
    error
}

fn submit(kernel: &Kernel<dyn Syscalls>) -> Option<Error> {
    let chunk = [HlCsChunk::user(0, 0x1000, 8)];
    kernel
        .submit(&CsRequest {
            execute: &chunk,
            ..CsRequest::default()
        })
        .err()
}

fn wait(kernel: &Kernel<dyn Syscalls>) -> Option<Error> {
    kernel.wait_cs(CsSeq(1), Duration::from_secs(1)).err()
}

fn alloc(kernel: &Kernel<dyn Syscalls>) -> Option<Error> {
    kernel
        .mem_alloc(MemAlloc {
            size: 1,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .err()
}

fn unmap(kernel: &Kernel<dyn Syscalls>) -> Option<Error> {
    kernel.mem_unmap(DeviceVa(1)).err()
}

#[test]
fn slow_hung_and_lost_are_three_errors() {
    assert_eq!(fails(Errno::EAGAIN, None, submit).kind(), ErrorKind::WouldBlock);
    assert_eq!(fails(Errno::ETIMEDOUT, None, wait).kind(), ErrorKind::Hung);
    assert_eq!(fails(Errno::EIO, None, wait).kind(), ErrorKind::DeviceLost);
    assert_eq!(fails(Errno::ENODEV, None, submit).kind(), ErrorKind::DeviceLost);
}

#[test]
fn busy_is_explained_by_device_status() {
    let error = fails(Errno::EBUSY, Some(IN_RESET), submit);
    assert_eq!(
        error.kind(),
        ErrorKind::DeviceLost,
        "a context does not live through a reset"
    );
    assert!(
        error.to_string().contains("IN_RESET"),
        "the status is reported: {error}"
    );
    let error = fails(Errno::EBUSY, Some(OPERATIONAL), wait);
    assert_eq!(
        error.kind(),
        ErrorKind::DeviceLost,
        "a wait refused by a working device: it must be released"
    );
    let idle =
        |kernel: &Kernel<dyn Syscalls>| kernel.info(InfoRequest::new(InfoOp::HW_IDLE), &mut [0; 40]).err();
    let on_control = |status| fails_on(NodeKind::Control, Errno::EBUSY, Some(status), idle).kind();
    assert_eq!(
        on_control(IN_RESET),
        ErrorKind::InReset,
        "a control node lives through a reset"
    );
    assert_eq!(on_control(MALFUNCTION), ErrorKind::DeviceLost);
    assert_eq!(
        on_control(99),
        ErrorKind::DeviceLost,
        "a status that we do not know is not a working one"
    );
}

#[test]
fn not_permitted_is_told_from_not_there() {
    assert_eq!(
        fails(Errno::EPERM, Some(IN_RESET), submit).kind(),
        ErrorKind::DeviceLost
    );
    assert_eq!(
        fails(Errno::EPERM, Some(OPERATIONAL), submit).kind(),
        ErrorKind::Unsupported
    );
    let block = fails(Errno::EPERM, Some(OPERATIONAL), |k| k.map_block(0).err());
    assert_eq!(
        block.kind(),
        ErrorKind::Unsupported,
        "a chip without blocks: {block}"
    );
    let map = MapDevice {
        handle: MemHandle(1),
        hint: None,
        flags: MemFlags::NONE,
    };
    let shared = fails(Errno::EPERM, Some(OPERATIONAL), |k| k.mem_map_device(map).err());
    assert_eq!(
        shared.kind(),
        ErrorKind::PermissionDenied,
        "another context's memory: {shared}"
    );
}

#[test]
fn device_and_host_enomem_differ() {
    assert_eq!(
        fails(Errno::ENOMEM, None, alloc).kind(),
        ErrorKind::OutOfDeviceMemory
    );
    let map = MapHost {
        address: HostVa(0x1000),
        size: 1,
        hint: None,
        flags: MemFlags::NONE,
    };
    // SAFETY: the recorder maps nothing.
    let host = fails(Errno::ENOMEM, None, |k| unsafe { k.mem_map_host(map) }.err());
    assert_eq!(host.kind(), ErrorKind::OutOfMemory);
    assert!(
        host.to_string().contains("ulimit -l"),
        "the likely limit is named: {host}"
    );
}

#[test]
fn causes_are_told() {
    let error = fails(Errno::EINVAL, None, unmap);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "HL_MEM_OP_UNMAP on device accel0: no mapping starts at this address; or the memory is exported [EINVAL]"
    );
    assert_eq!(
        error.help(),
        Some("deregister its memory regions and close its dma-bufs, in every process, first")
    );
    let era = fails(Errno::ENOTTY, None, |k| k.cb_destroy(CbHandle(1)).err());
    assert_eq!(
        era.kind(),
        ErrorKind::Unsupported,
        "an older driver does not know our numbers: {era}"
    );
}

#[test]
fn unanswered_status_keeps_the_first_error() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Fails(Errno::EBUSY), Reply::Fails(Errno::ENODEV)]);
    let error = unmap(&kernel).unwrap();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceLost, Some(Errno::EBUSY))
    );
}

#[test]
fn statuses_of_successful_waits_are_believed() {
    for (status, kind) in [
        (2, ErrorKind::Hung),
        (3, ErrorKind::DeviceLost),
        (4, ErrorKind::Io),
    ] {
        let (kernel, recorder) = open(NodeKind::Compute);
        recorder.reply([Reply::Args(words(&[status, 0, 0, 0, 0, 0]))]);
        let error = wait(&kernel).unwrap();
        assert_eq!(error.kind(), kind, "status {status}: {error}");
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn no_answer_panics(bytes in any::<[u8; 56]>(), word: u32) {
        let (kernel, recorder) = open(NodeKind::Compute);
        let reply = |len: usize| recorder.reply([Reply::Args(bytes[..len].to_vec())]);
        reply(24);
        let _ = kernel.cb_create(CbCreate { size: word, map_to_device: true });
        reply(24);
        let _ = kernel.cb_info(CbHandle(1), word % 2 == 0);
        reply(48);
        let _ = submit(&kernel);
        reply(56);
        let _ = wait(&kernel);
        reply(56);
        let _ = kernel.wait_multi_cs(&[CsSeq(1)], Duration::ZERO);
        reply(56);
        let wait = InterruptWait { interrupt: InterruptId((word % 4096) as u16), word: InterruptWord::User(HostVa(8)), target: 1, timeout: Duration::ZERO };
        let _ = kernel.wait_interrupt(&wait);
        reply(40);
        let _ = alloc(&kernel);
        reply(40);
        let _ = kernel.map_block(0);
        recorder.reply([Reply::Info(bytes.to_vec(), word)]);
        let mut status = HlInfoDeviceStatus::default();
        let answer = zerocopy::IntoBytes::as_mut_bytes(&mut status);
        prop_assert_eq!(kernel.info(InfoRequest::new(InfoOp(word)), answer).unwrap(), word);
        prop_assert!(!status.status.to_string().is_empty(), "any status prints");
    }
}
