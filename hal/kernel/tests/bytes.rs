//! Which request number and which bytes go to the driver for each operation, and how its answers
//! come back.
//!
//! The expected bytes are written out in words; nothing of gaudi-uapi makes them.
#![expect(
    unsafe_code,
    reason = "mapping host memory is the seam's one unsafe operation"
)]

mod recorder;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsArgument, CsRequest, CsSeq, DebugRequest, DeviceVa, ErrorKind, ExportRequest,
    HostVa, InfoRequest, InterruptId, InterruptWait, InterruptWord, KernelIo, KernelIoExt, MapDevice,
    MapHost, MemAlloc, MemHandle, MmapRequest, NodeKind, WaitStatus,
};
use gaudi_sys::Errno;
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsChunk};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::memory::MemFlags;
use recorder::{Asked, Recorder, Reply, open, words};

const INFO: u32 = 0xc018_6440;
const CB: u32 = 0xc018_6441;
const CS: u32 = 0xc030_6442;
const WAIT: u32 = 0xc038_6443;
const MEMORY: u32 = 0xc028_6444;
const DEBUG: u32 = 0xc028_6445;

/// The one ioctl that was made since the last call.
fn only(recorder: &Recorder) -> (u32, Vec<u8>) {
    let asked = recorder.take();
    match asked.as_slice() {
        [Asked::Ioctl { request, args }] => (*request, args.clone()),
        other => panic!("one ioctl was expected, there were {other:?}"),
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

const NONE: [u32; 2] = [0, 0];

fn join(parts: &[&[u32]]) -> Vec<u8> {
    words(&parts.concat())
}

#[test]
fn info_accepts_short_answers() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let mut old = vec![0xaa; 256];
    old[0..8].copy_from_slice(&0x1234_5678_9abc_def0u64.to_le_bytes());
    recorder.reply([Reply::Info(old, 0)]);
    let info: HlInfoHwIpInfo = kernel.query().unwrap();
    assert_eq!(
        info.sram_base_address, 0x1234_5678_9abc_def0,
        "the driver's bytes are the struct's"
    );
    assert_eq!(
        info.reserved_dram_size, 0,
        "what an older driver does not know is zero"
    );
    let (request, args) = only(&recorder);
    assert_eq!(request, INFO);
    assert_ne!(&args[..8], &[0; 8], "the answer has an address");
    assert_eq!(
        &args[8..],
        &words(&[304, 0, 0, 0]),
        "our struct's size, op HW_IP_INFO, no argument, no padding"
    );
}

#[test]
fn info_clears_the_buffer_and_returns_argument() {
    let (kernel, recorder) = open(NodeKind::Control);
    recorder.reply([Reply::Info(vec![1, 2, 3], 7)]);
    let mut answer = [0xff; 8];
    let word = kernel
        .info(
            InfoRequest {
                op: InfoOp::ENGINE_STATUS,
                arg: 9,
            },
            &mut answer,
        )
        .unwrap();
    assert_eq!(
        (word, answer),
        (7, [1, 2, 3, 0, 0, 0, 0, 0]),
        "the driver's word, its bytes, and zeros behind"
    );
    let (_, args) = only(&recorder);
    assert_eq!(
        &args[..8],
        &(answer.as_ptr() as u64).to_le_bytes(),
        "the answer goes straight to the caller's buffer"
    );
    assert_eq!(&args[8..], &words(&[8, 32, 9, 0]));
}

#[test]
fn short_mapping_buffer_reports_wanted_size() {
    let (kernel, recorder) = open(NodeKind::Control);
    recorder.reply([Reply::Fails(Errno::ENOMEM)]);
    let error = kernel
        .info(InfoRequest::new(InfoOp::USER_MAPPINGS), &mut [0; 16])
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InvalidInput, Some(Errno::ENOMEM))
    );
    let wanted = format!("{} bytes", u64::from(0xeeee_eeeeu32) * 16);
    assert!(
        error.to_string().contains(&wanted),
        "the driver's count comes through: {error}"
    );
}

#[test]
fn command_buffers_are_made_asked_and_destroyed() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let handle = 0x1000_0000_0000_1000u64;

    recorder.reply([Reply::Args(handle.to_le_bytes().to_vec())]);
    let made = kernel
        .cb_create(CbCreate {
            size: 0x4000,
            map_to_device: true,
        })
        .unwrap();
    assert_eq!(made, CbHandle(handle));
    assert_eq!(
        only(&recorder),
        (CB, words(&[0, 0, 0, 0x4000, 0, 1])),
        "CREATE with MAP"
    );

    recorder.reply([Reply::Args(words(&[3, 0]))]);
    assert_eq!(kernel.cb_info(made, false).unwrap().usage_count, 3);
    assert_eq!(
        only(&recorder),
        (CB, join(&[&halves(handle), &[2, 0, 0, 0]])),
        "INFO"
    );

    recorder.reply([Reply::Args(0xabcd_0000_1000u64.to_le_bytes().to_vec())]);
    assert_eq!(
        kernel.cb_info(made, true).unwrap().device_va,
        Some(DeviceVa(0xabcd_0000_1000))
    );
    assert_eq!(
        only(&recorder),
        (CB, join(&[&halves(handle), &[2, 0, 0, 2]])),
        "INFO with GET_DEVICE_VA"
    );

    recorder.reply([Reply::Args(vec![])]);
    kernel.cb_destroy(made).unwrap();
    assert_eq!(
        only(&recorder),
        (CB, join(&[&halves(handle), &[1, 0, 0, 0]])),
        "DESTROY"
    );
}

#[test]
fn submissions_pass_the_callers_chunks() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let execute = [HlCsChunk::user(0, 0x1000, 64), HlCsChunk::user(4, 0x2000, 32)];
    let restore = [HlCsChunk::user(1, 0x3000, 16)];
    let address = |chunks: &[HlCsChunk]| halves(chunks.as_ptr() as u64);
    recorder.reply([Reply::Args(words(&[0x21, 1, 0, 0x4000, 0x0005, 0]))]);
    let flags = CsFlags::TIMESTAMP | CsFlags::CUSTOM_TIMEOUT;
    let flags = flags | CsFlags::STAGED_SUBMISSION_LAST;
    let seq = 0x1122_3344_5566_7788;
    let request = CsRequest {
        execute: &execute,
        restore: &restore,
        flags,
        timeout_s: 30,
        argument: CsArgument::Stage { seq: CsSeq(seq) },
    };
    let answer = kernel.submit(&request).unwrap();
    assert_eq!(
        (answer.seq, answer.status),
        (CsSeq(0x1_0000_0021), CsStatus::SUCCESS)
    );
    assert_eq!(
        (answer.sob_base_addr_offset, answer.sob_count_before_submission),
        (0x4000, 5)
    );
    let rest = [1, 2, 30, 0x360, 0, 0];
    let expected = join(&[&address(&restore), &address(&execute), &halves(seq), &rest]);
    assert_eq!(
        only(&recorder),
        (CS, expected),
        "addresses, the stage, counts, timeout, flags, no padding"
    );
}

#[test]
fn an_absent_phase_has_no_address() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(words(&[1, 0, 0, 0, 0, 0]))]);
    kernel
        .submit(&CsRequest {
            flags: CsFlags::FLUSH_PCI_HBW_WRITES,
            ..CsRequest::default()
        })
        .unwrap();
    assert_eq!(
        only(&recorder),
        (CS, words(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x8000, 0, 0]))
    );
}

#[test]
fn full_queue_would_block_after_one_ioctl() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Fails(Errno::EAGAIN)]);
    let chunk = [HlCsChunk::user(0, 0x1000, 8)];
    let error = kernel
        .submit(&CsRequest {
            execute: &chunk,
            ..CsRequest::default()
        })
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::WouldBlock, Some(Errno::EAGAIN))
    );
    assert!(error.evidence().is_none(), "would-block carries no box");
    assert_eq!(recorder.take().len(), 1, "the backend does not spin on EAGAIN");
}

#[test]
fn waits_pass_microseconds_and_bring_timestamps() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(join(&[&[0, 3], &halves(123_456_789_012), &[0, 0]]))]);
    let answer = kernel
        .wait_cs(CsSeq(0x1_0000_0021), Duration::from_millis(5))
        .unwrap();
    assert_eq!(
        (answer.status, answer.gone, answer.timestamp_ns),
        (WaitStatus::Completed, true, Some(123_456_789_012))
    );
    let expected = join(&[&[0x21, 1], &halves(5000), &NONE, &NONE, &NONE, &NONE, &NONE]);
    assert_eq!(only(&recorder), (WAIT, expected));

    recorder.reply([Reply::Args(words(&[1, 0, 9, 9, 0, 0]))]);
    let answer = kernel.wait_cs(CsSeq(5), Duration::ZERO).unwrap();
    assert_eq!(
        (answer.status, answer.timestamp_ns),
        (WaitStatus::Busy, None),
        "no flag, no timestamp"
    );
    assert_eq!(recorder.take().len(), 1, "busy after the whole time is final");
}

#[test]
fn multi_cs_wait_passes_list_and_map() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(words(&[0, 2, 77, 0, 0b101, 0]))]);
    let seqs = [CsSeq(7), CsSeq(8), CsSeq(9)];
    let answer = kernel.wait_multi_cs(&seqs, Duration::from_micros(3)).unwrap();
    assert_eq!((answer.completion_map, answer.timestamp_ns), (0b101, Some(77)));
    let (request, args) = only(&recorder);
    assert_eq!(request, WAIT);
    assert_ne!(&args[..8], &[0; 8], "the list has an address");
    let expected = join(&[&halves(3), &[0, 4], &[3, 0], &NONE, &NONE, &NONE]);
    assert_eq!(&args[8..], &expected, "time, MULTI_CS, and a length of 3");
}

#[test]
fn interrupt_waits_pass_address_and_target() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([
        Reply::Args(words(&[0, 0, 0, 0, 0, 0])),
        Reply::Args(words(&[3, 0, 0, 0, 0, 0])),
    ]);
    let address = HostVa(0x7f00_1122_3344);
    let mut wait = InterruptWait {
        interrupt: InterruptId(48),
        word: InterruptWord::User(address),
        target: 10,
        timeout: Duration::from_nanos(1),
    };
    assert_eq!(
        kernel.wait_interrupt(&wait).unwrap().status,
        WaitStatus::Completed
    );
    let flags = (48 << 20) | 2;
    let expected = join(&[
        &halves(address.0),
        &halves(10),
        &[0, flags],
        &halves(1),
        &NONE,
        &NONE,
        &NONE,
    ]);
    assert_eq!(
        only(&recorder),
        (WAIT, expected),
        "a nanosecond is a microsecond, not a poll"
    );

    wait.interrupt = InterruptId::ANY_CQ;
    let error = kernel.wait_interrupt(&wait).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::DeviceLost,
        "an abort that the driver calls success is an error"
    );
    let (_, args) = only(&recorder);
    assert_eq!(
        &args[20..24],
        &0xfff0_0002u32.to_le_bytes(),
        "ANY_CQ goes as it is"
    );
}

/// What waits asked for, in microseconds; all for submission 5.
fn times(recorder: &Recorder) -> Vec<u64> {
    let time = |asked: &Asked| match asked {
        Asked::Ioctl { args, .. } => {
            assert_eq!(
                &args[..8],
                &5u64.to_le_bytes(),
                "a failed call's bytes are not sent again"
            );
            u64::from_le_bytes(args[8..16].try_into().unwrap())
        }
        other => panic!("a wait is an ioctl, not {other:?}"),
    };
    recorder.take().iter().map(time).collect()
}

#[test]
fn interrupted_wait_resumes_with_remaining_time() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let signal = || Reply::Signal(Duration::from_millis(20));
    recorder.reply([signal(), signal(), Reply::Args(words(&[0, 0, 0, 0, 0, 0]))]);
    kernel.wait_cs(CsSeq(5), Duration::from_secs(10)).unwrap();
    let times = times(&recorder);
    assert_eq!(
        times[..1],
        [100_000],
        "the first asks for a time in which no clock is needed"
    );
    assert!(
        times[1] > 9_000_000 && times[1] <= 10_000_000,
        "the clock starts at the first signal: {times:?}"
    );
    assert!(
        times[2] <= times[1] - 20_000,
        "from then on only what is left is asked for: {times:?}"
    );
    assert_eq!(times.len(), 3);
}

#[test]
fn unfinished_wait_repeats_without_delay() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let busy = Reply::Args(words(&[1, 0, 0, 0, 0, 0]));
    recorder.reply([busy.clone(), busy.clone()]);
    let answer = kernel.wait_cs(CsSeq(5), Duration::from_secs(10)).unwrap();
    assert_eq!(
        answer.status,
        WaitStatus::Busy,
        "busy after all of it is the answer"
    );
    let asked = times(&recorder);
    assert_eq!(asked.len(), 2, "the rest goes in one: {asked:?}");
    assert!(
        asked[0] == 100_000 && asked[1] > 9_000_000 && asked[1] <= 9_900_000,
        "both make up the whole: {asked:?}"
    );
    recorder.reply([busy]);
    let answer = kernel.wait_cs(CsSeq(5), Duration::from_millis(100)).unwrap();
    assert_eq!(answer.status, WaitStatus::Busy);
    assert_eq!(times(&recorder), [100_000], "a short wait is one ioctl");
}

#[test]
fn infinite_wait_runs_in_hour_slices() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let busy = Reply::Args(words(&[1, 0, 0, 0, 0, 0]));
    let done = Reply::Args(words(&[0, 0, 0, 0, 0, 0]));
    recorder.reply([busy.clone(), busy.clone(), busy, done]);
    let answer = kernel.wait_cs(CsSeq(5), Duration::MAX).unwrap();
    assert_eq!(
        answer.status,
        WaitStatus::Completed,
        "busy after a slice is not the end"
    );
    let hour = 3_600_000_000;
    assert_eq!(
        times(&recorder),
        [100_000, hour, hour, hour],
        "no slice is above 2^32 us"
    );
}

#[test]
fn device_memory_alloc_map_unmap_free() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(words(&[1, 0, 0, 0]))]);
    let alloc = MemAlloc {
        size: 0x3000_0000,
        page_size: 0x20_0000,
        flags: MemFlags::CONTIGUOUS,
    };
    assert_eq!(kernel.mem_alloc(alloc).unwrap(), MemHandle(1));
    let expected = join(&[&halves(0x3000_0000), &halves(0x20_0000), &NONE, &[0, 1, 0, 0]]);
    assert_eq!(only(&recorder), (MEMORY, expected), "ALLOC");

    let va = 0x1001_0018_0000_0000u64;
    recorder.reply([Reply::Args(va.to_le_bytes().to_vec())]);
    let map = MapDevice {
        handle: MemHandle(1),
        hint: Some(DeviceVa(va)),
        flags: MemFlags::FORCE_HINT,
    };
    assert_eq!(kernel.mem_map_device(map).unwrap(), DeviceVa(va));
    assert_eq!(
        only(&recorder),
        (MEMORY, join(&[&halves(va), &[1, 0], &NONE, &[2, 8, 0, 0]])),
        "MAP: hint, handle"
    );

    recorder.reply([Reply::Args(vec![]), Reply::Args(vec![])]);
    kernel.mem_unmap(DeviceVa(va)).unwrap();
    assert_eq!(
        only(&recorder),
        (MEMORY, join(&[&halves(va), &NONE, &NONE, &[3, 0, 0, 0]])),
        "UNMAP"
    );
    kernel.mem_free(MemHandle(1)).unwrap();
    assert_eq!(
        only(&recorder),
        (MEMORY, join(&[&[1, 0], &NONE, &NONE, &[1, 0, 0, 0]])),
        "FREE"
    );
}

#[test]
fn host_memory_is_mapped_with_userptr() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let va = 0xfff0_0000_0000_0123u64;
    recorder.reply([Reply::Args(va.to_le_bytes().to_vec())]);
    let map = MapHost {
        address: HostVa(0x7f00_0000_0123),
        size: 5,
        hint: None,
        flags: MemFlags::NONE,
    };
    // SAFETY: the recorder maps nothing: no device writes to the address.
    let mapped = unsafe { kernel.mem_map_host(map) };
    assert_eq!(mapped.unwrap(), DeviceVa(va));
    let expected = join(&[&halves(0x7f00_0000_0123), &NONE, &halves(5), &[2, 4, 0, 0]]);
    assert_eq!(
        only(&recorder),
        (MEMORY, expected),
        "MAP: address, no hint, size, USERPTR"
    );
}

#[test]
fn blocks_and_timestamps_bring_mmap_handles() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(words(&[0x1000, 0x4000_0000, 0x8000, 0]))]);
    let block = kernel.map_block(0x1000_007f_fc00_0000).unwrap();
    assert_eq!((block.handle, block.size), (0x4000_0000_0000_1000, 0x8000));
    let expected = join(&[&halves(0x1000_007f_fc00_0000), &NONE, &NONE, &[4, 0, 0, 0]]);
    assert_eq!(only(&recorder), (MEMORY, expected), "MAP_BLOCK");

    recorder.reply([Reply::Args(words(&[0x1000, 0x8000_0000]))]);
    assert_eq!(kernel.ts_alloc(512).unwrap().0, 0x8000_0000_0000_1000);
    assert_eq!(
        only(&recorder),
        (MEMORY, join(&[&NONE, &NONE, &NONE, &[6, 0, 0, 512]])),
        "TS_ALLOC"
    );
}

#[test]
fn mmap_passes_handle_and_length() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([Reply::Args(vec![]), Reply::Fails(Errno::EINVAL)]);
    let request = MmapRequest {
        offset: 0x8000_0000_0000_1000,
        len: 8192,
    };
    assert_eq!(kernel.mmap(request).unwrap().len(), 8192);
    assert_eq!(
        recorder.take(),
        [Asked::Mmap {
            offset: 0x8000_0000_0000_1000,
            len: 8192
        }]
    );
    let error = kernel.mmap(request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(
        error.to_string().contains("mapped already"),
        "the driver's causes are listed: {error}"
    );
}

#[test]
fn exports_bring_an_owned_descriptor() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let given = File::open("/dev/null").unwrap().into_raw_fd();
    recorder.reply([Reply::Args(given.to_le_bytes().to_vec())]);
    let request = ExportRequest {
        address: DeviceVa(0x1001_0018_0000_0000),
        size: 0x1000,
        offset: 0x2000,
        flags: 0o2_000_002,
    };
    let fd = kernel.export_dmabuf(request).unwrap();
    assert_eq!(fd.as_raw_fd(), given, "the driver's descriptor is the caller's");
    let expected = join(&[
        &halves(0x1001_0018_0000_0000),
        &halves(0x1000),
        &halves(0x2000),
        &[5, 0o2_000_002, 0, 0],
    ]);
    assert_eq!(
        only(&recorder),
        (MEMORY, expected),
        "EXPORT: O_CLOEXEC | O_RDWR in the flags"
    );

    recorder.reply([Reply::Args((-9i32).to_le_bytes().to_vec())]);
    assert_eq!(
        kernel.export_dmabuf(request).unwrap_err().kind(),
        ErrorKind::Io,
        "-9 is no descriptor"
    );
}

#[test]
fn debug_passes_both_structs() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let input = [1u8; 24];
    let mut output = [0u8; 40];
    recorder.reply([Reply::Args(vec![])]);
    let addresses = [halves(input.as_ptr() as u64), halves(output.as_mut_ptr() as u64)].concat();
    kernel
        .debug(DebugRequest {
            op: DebugOp::STM,
            reg_idx: 6,
            enable: true,
            input: &input,
            output: &mut output,
        })
        .unwrap();
    assert_eq!(
        only(&recorder),
        (DEBUG, join(&[&addresses, &[24, 40, 2, 6, 1, 0]]))
    );
    recorder.reply([Reply::Fails(Errno::EFAULT)]);
    let none = DebugRequest {
        op: DebugOp::SET_MODE,
        reg_idx: 0,
        enable: false,
        input: &[],
        output: &mut [],
    };
    let error = kernel.debug(none).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidInput,
        "EFAULT of DEBUG is about the mode: {error}"
    );
    assert_eq!(
        only(&recorder).1,
        words(&[0, 0, 0, 0, 0, 0, 7, 0, 0, 0]),
        "no structs, no addresses"
    );
    // Of the Gaudi3 driver: its struct carries an address that the driver would write to.
    for op in [DebugOp::FETCH_TRACE, DebugOp::READMEM, DebugOp::READBLOCK] {
        let error = kernel
            .debug(DebugRequest {
                op,
                reg_idx: 0,
                enable: true,
                input: &[0xff; 24],
                output: &mut [],
            })
            .unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{op}: {error}");
        assert!(recorder.take().is_empty(), "{op} never reaches the driver");
    }
}

#[test]
fn events_pass_the_eventfd() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let file = File::open("/dev/null").unwrap();
    recorder.reply([Reply::Args(vec![]), Reply::Args(vec![])]);
    kernel.register_events(file.as_fd()).unwrap();
    assert_eq!(
        only(&recorder),
        (INFO, words(&[0, 0, 0, 28, file.as_raw_fd() as u32, 0]))
    );
    kernel.unregister_events().unwrap();
    assert_eq!(only(&recorder), (INFO, words(&[0, 0, 0, 29, 0, 0])));
}

#[test]
fn interrupted_ioctl_is_repeated_unchanged() {
    let (kernel, recorder) = open(NodeKind::Compute);
    recorder.reply([
        Reply::Fails(Errno::EINTR),
        Reply::Fails(Errno::EINTR),
        Reply::Args(words(&[1, 0, 0, 0])),
    ]);
    kernel
        .mem_alloc(MemAlloc {
            size: 1,
            page_size: 0,
            flags: MemFlags::NONE,
        })
        .unwrap();
    let asked = recorder.take();
    assert_eq!(asked.len(), 3, "two signals, three calls");
    assert!(
        asked.iter().all(|a| *a == asked[0]),
        "each call passes the same bytes: {asked:?}"
    );
}

#[test]
fn submit_repeats_the_request_after_signals() {
    let chunks = [HlCsChunk::default()];
    let plain = CsRequest {
        execute: &chunks,
        ..CsRequest::default()
    };
    let engines = [3, 90];
    let special = CsRequest::engine_cores(&engines, gaudi_uapi::cs::EngineCommand::CORE_RUN);
    for (request, signals) in [(&plain, 1), (&plain, 3), (&special, 1), (&special, 3)] {
        let (kernel, recorder) = open(NodeKind::Compute);
        recorder.reply((0..signals).map(|_| Reply::Fails(Errno::EINTR)));
        recorder.reply([Reply::Args(words(&[77, 0, 0, 0, 0, 0]))]);
        let answer = kernel.submit(request).expect("a signal is not an error");
        assert_eq!(answer.seq, CsSeq(77));
        let asked = recorder.take();
        assert_eq!(asked.len(), signals + 1, "{asked:?}");
        assert!(
            asked.iter().all(|call| *call == asked[0]),
            "each call passes the same bytes: {asked:?}"
        );
    }
}

#[test]
fn submit_returns_the_errno_after_a_signal() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let chunks = [HlCsChunk::default()];
    let request = CsRequest {
        execute: &chunks,
        ..CsRequest::default()
    };
    recorder.reply([Reply::Fails(Errno::EINTR), Reply::Fails(Errno::ENODEV)]);
    let error = kernel.submit(&request).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENODEV));
    assert_eq!(recorder.take().len(), 2);
}
