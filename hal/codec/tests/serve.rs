//! `serve` over the mock: request numbers, errnos, and the argument's bytes after the call.
#![expect(unsafe_code, reason = "an ioctl's argument carries addresses")]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use gaudi_codec::{OwnMemory, serve};
use gaudi_seam::{Era, Errno, InfoRequest, KernelIo, Node, SharedIo};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::cs::{CsFlags, CsStatus, HlCsArgs, HlCsChunk, HlCsIn, HlCsInChunks};
use gaudi_uapi::debug::{DebugOp, HlDebugArgs};
use gaudi_uapi::drm::{DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::info::{DeviceStatus, HlInfoArgs, HlInfoDramUsage, HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::ioctl::{iow, iowr};
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, MemFlags, MemOp};
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, WaitCsStatus};
use zerocopy::{FromZeros as _, IntoBytes};

fn open(name: &str) -> SharedIo {
    gaudi_hal::open(&format!("mock:gaudi2?clock=virtual&name={name}").parse().unwrap()).unwrap()
}

fn control(name: &str) -> SharedIo {
    gaudi_hal::control(&format!("mock:gaudi2?clock=virtual&name={name}").parse().unwrap()).unwrap()
}

fn number(io: &SharedIo, request: u32, arg: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: no argument in these tests maps host memory that is not mapped in this process.
    unsafe { serve(&**io, request, arg, &OwnMemory) }
}

fn ioctl<A: IntoBytes + zerocopy::FromBytes>(io: &SharedIo, ioctl: Ioctl, args: &mut A) -> Result<(), Errno> {
    number(io, Era::AccelDrm.request(ioctl).unwrap(), args.as_mut_bytes())
}

fn at<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).expose_provenance() as u64
}

fn at_mut<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}

/// An address where nothing is mapped.
const HOLE: u64 = 8;

fn info(io: &SharedIo, op: InfoOp, address: u64, size: u32, arg: u32) -> (Result<(), Errno>, u32) {
    let mut args = HlInfoArgs::new(op, address, size, arg);
    let result = ioctl(io, Ioctl::Info, &mut args);
    (result, args.arg)
}

fn memory(io: &SharedIo, request: HlMemIn) -> (Result<(), Errno>, HlMemArgs) {
    let mut args = HlMemArgs::from(request);
    let result = ioctl(io, Ioctl::Memory, &mut args);
    (result, args)
}

#[test]
fn every_era_reaches_info() {
    let (io, control) = (open("eras"), control("eras"));
    for era in Era::ALL {
        for io in [&io, &control] {
            let mut hw = HlInfoHwIpInfo::new_zeroed();
            let mut args = HlInfoArgs::new(InfoOp::HW_IP_INFO, at_mut(&mut hw), 304, 0);
            let request = era.request(Ioctl::Info).unwrap();
            assert_eq!(number(io, request, args.as_mut_bytes()), Ok(()), "{era}");
            assert_eq!(hw.device_id, 0x1020, "{era}");
        }
    }
}

#[test]
fn unknown_drm_numbers_are_einval() {
    let io = open("drm");
    // Of the core: the number after the version, the last and one that no kernel has. Of the
    // driver: the network's, which mainline lacks, the next and the last.
    for nr in [1, 0xcf, 0xff, 0x46, 0x47, 0x9f] {
        for size in [0, 24, 64] {
            let request = iowr(b'd', nr, size);
            let mut arg = vec![0xff; size];
            assert_eq!(number(&io, request, &mut arg), Err(Errno::EINVAL), "{request:#x}");
            assert_eq!(arg, vec![0xff; size], "{request:#x}");
        }
    }
}

#[test]
fn other_request_numbers_are_enotty() {
    let (io, control) = (open("numbers"), control("numbers"));
    let unknown = [
        0,
        u32::MAX,
        0x5401,
        iowr(b'H', 0, 24),
        iowr(b'H', 7, 32),
        iowr(b'e', 0x40, 24),
    ];
    for request in unknown {
        assert_eq!(
            number(&io, request, &mut [0; 64]),
            Err(Errno::ENOTTY),
            "{request:#x}"
        );
    }
    for other in &Ioctl::ALL[1..] {
        let request = Era::AccelDrm.request(*other).unwrap();
        assert_eq!(
            number(&control, request, &mut [0; 64]),
            Err(Errno::ENOTTY),
            "{other}"
        );
    }
    assert_eq!(
        number(&control, DRM_IOCTL_VERSION, &mut [0; 64]),
        Err(Errno::ENOTTY)
    );
    // The control node compares only the `nr` field.
    assert_eq!(
        number(&control, iowr(b'?', 0x40, 24), &mut [0; 24]),
        Err(Errno::EINVAL),
        "the buffer is null"
    );
}

#[test]
fn version_names_the_driver() {
    let io = open("version");
    let mut name = [0u8; 32];
    let mut version = DrmVersion {
        name_len: 5,
        name: at_mut(&mut name),
        ..DrmVersion::default()
    };
    assert_eq!(number(&io, DRM_IOCTL_VERSION, version.as_mut_bytes()), Ok(()));
    assert_eq!(
        (&name[..6], version.name_len),
        (&b"haban\0"[..], 10),
        "truncated, with the full length"
    );
    version.name = HOLE;
    assert_eq!(
        number(&io, DRM_IOCTL_VERSION, version.as_mut_bytes()),
        Err(Errno::EFAULT)
    );
}

#[test]
fn short_and_long_arguments_are_padded_and_cut() {
    let io = open("sizes");
    // CREATE of one page in 16 bytes: flags and context are zero.
    let mut short = HlCbArgs::from(HlCbIn::create(4096, CbFlags::MAP));
    let request = iowr(b'd', 0x41, 16);
    assert_eq!(number(&io, request, &mut short.as_mut_bytes()[..16]), Ok(()));
    assert_eq!(
        short.0[2],
        u64::from(CbFlags::MAP.0) << 32,
        "bytes past the size are neither read nor written"
    );
    let mut long = [0xaa; 100];
    long[..24].copy_from_slice(HlCbArgs::from(HlCbIn::usage(short.0[0])).as_bytes());
    assert_eq!(number(&io, iowr(b'd', 0x41, 100), &mut long), Ok(()));
    assert_eq!(&long[24..], &[0xaa; 76]);
    // `arg` may be shorter than the size in the request number.
    assert_eq!(
        number(&io, iowr(b'd', 0x41, 100), &mut [0; 4]),
        Ok(()),
        "creates one page"
    );
    // The driver copies no answer to an argument that it only reads.
    let mut create = HlCbArgs::from(HlCbIn::create(4096, CbFlags::NONE));
    assert_eq!(number(&io, iow(b'd', 0x41, 24), create.as_mut_bytes()), Ok(()));
    assert_eq!(create.request().cb_size, 4096);
}

#[test]
fn info_writes_only_its_struct() {
    let io = open("tail");
    let mut answer = [0xaa; size_of::<HlInfoDramUsage>() + 8];
    let (result, _) = info(&io, InfoOp::DRAM_USAGE, at_mut(&mut answer), u32::MAX, 0);
    assert_eq!(result, Ok(()), "a size of 4 GiB");
    assert_eq!(answer[size_of::<HlInfoDramUsage>()..], [0xaa; 8]);
    assert_ne!(answer[..8], [0xaa; 8]);
    let mut status = [0xaa_u8; 4096];
    let (result, word) = info(&io, InfoOp::ENGINE_STATUS, at_mut(&mut status), 4096, 0);
    assert_eq!(
        (result, status[word as usize]),
        (Ok(()), 0xaa),
        "the text has {word} bytes"
    );
    let mut mappings = [0xaa_u8; 64];
    assert_eq!(
        info(&io, InfoOp::USER_MAPPINGS, at_mut(&mut mappings), 64, 3),
        (Ok(()), 3)
    );
    assert_eq!(mappings, [0xaa; 64], "no page fault was recorded");
}

#[test]
fn info_rejects_invalid_buffers() {
    let io = open("buffers");
    let ask = |op, address, size| info(&io, op, address, size, 0).0;
    assert_eq!(ask(InfoOp::HW_IP_INFO, HOLE, 304), Err(Errno::EFAULT));
    assert_eq!(
        ask(InfoOp::HW_IP_INFO, 0, 304),
        Err(Errno::EINVAL),
        "the buffer is null"
    );
    assert_eq!(
        ask(InfoOp::HW_IP_INFO, HOLE, 0),
        Err(Errno::EINVAL),
        "the size is 0"
    );
    assert_eq!(ask(InfoOp(9999), HOLE, 8), Err(Errno::EINVAL), "unknown");
    assert_eq!(
        ask(InfoOp::ENGINE_STATUS, HOLE, u32::MAX),
        Err(Errno::EINVAL),
        "above 1 MiB"
    );
    let mut args = HlInfoArgs {
        pad: 1,
        ..HlInfoArgs::new(InfoOp::HW_IP_INFO, HOLE, 304, 0)
    };
    assert_eq!(ioctl(&io, Ioctl::Info, &mut args), Err(Errno::EINVAL), "padding");
}

#[test]
fn eventfd_registers_by_number() {
    let (io, control) = (open("events"), control("events"));
    let register = |io, number| info(io, InfoOp::REGISTER_EVENTFD, 0, 0, number).0;
    let event = gaudi_sys::Event::new().unwrap();
    let fd = std::os::fd::AsFd::as_fd(&event).as_raw_fd() as u32;
    assert_eq!(register(&io, 1 << 20), Err(Errno::EBADF));
    assert_eq!(register(&io, u32::MAX), Err(Errno::EBADF));
    assert_eq!(register(&io, fd), Ok(()));
    assert_eq!(register(&io, fd), Err(Errno::EINVAL), "twice");
    for number in [fd, u32::MAX] {
        assert_eq!(register(&control, number), Err(Errno::EOPNOTSUPP), "control");
    }
    let unregister = || info(&io, InfoOp::UNREGISTER_EVENTFD, 0, 0, 0).0;
    assert_eq!((unregister(), unregister()), (Ok(()), Err(Errno::EINVAL)));
}

#[test]
fn memory_answers_and_failures_replace_the_request() {
    let io = open("memory");
    let (result, args) = memory(&io, HlMemIn::alloc(4 << 20, 0, MemFlags::NONE));
    let handle = args.0[0];
    assert_eq!((result, &args.0[1..]), (Ok(()), &[0; 4][..]));
    let (result, args) = memory(&io, HlMemIn::map_device(handle, 0, MemFlags::NONE));
    let va = args.0[0];
    assert_eq!((result, &args.0[1..]), (Ok(()), &[0; 4][..]));
    let (result, args) = memory(&io, HlMemIn::map_device(99, 7, MemFlags::NONE));
    assert_eq!((result, args.0), (Err(Errno::EINVAL), [0; 5]));
    let (result, args) = memory(&io, HlMemIn::free(handle));
    assert_eq!(
        (result, args.0[0]),
        (Err(Errno::EINVAL), handle),
        "the memory is still mapped; FREE keeps the request"
    );
    let (result, args) = memory(&io, HlMemIn::export_dmabuf_fd(va, 3, 0, 0));
    assert_eq!((result, args.answer().fd()), (Err(Errno::EINVAL), -9));
    let (result, args) = memory(&io, HlMemIn::export_dmabuf_fd(va, 4096, 0, 0o2_000_000));
    assert_eq!(result, Ok(()));
    // SAFETY: the answer's descriptor is new.
    let export = unsafe { OwnedFd::from_raw_fd(args.answer().fd()) };
    assert_eq!(memory(&io, HlMemIn::unmap(va)).0, Err(Errno::EINVAL), "exported");
    drop(export);
    assert_eq!(memory(&io, HlMemIn::unmap(va)).0, Ok(()));
    assert_eq!(
        memory(
            &io,
            HlMemIn {
                op: MemOp(77),
                ..HlMemIn::default()
            }
        )
        .0,
        Err(Errno::EINVAL)
    );
    let import = HlMemIn {
        arg: [u64::MAX, 1, 0],
        op: MemOp::REG_DMABUF_FD,
        ..HlMemIn::default()
    };
    assert_eq!(memory(&io, import).0, Err(Errno::EBADF));
}

#[test]
fn submission_reads_chunks_of_the_caller() {
    let io = open("chunks");
    let chunk = HlCsChunk::user(0, 0x1000, 8);
    let submit = |address: u64, count, flags| {
        let mut input = HlCsIn {
            num_chunks_execute: count,
            cs_flags: flags,
            ..HlCsIn::default()
        };
        input.set_chunks(HlCsInChunks {
            chunks_restore: HOLE,
            chunks_execute: address,
        });
        input.num_chunks_restore = 1;
        let mut args = HlCsArgs::from(input);
        let result = ioctl(&io, Ioctl::Cs, &mut args);
        (result, args.answer())
    };
    let plain = CsFlags::NONE;
    let (result, answer) = submit(at(&chunk), 1, plain);
    assert_eq!(
        result,
        Err(Errno::EFAULT),
        "the chunk's address is outside command buffers"
    );
    assert_eq!(answer.seq(), u64::MAX);
    assert_eq!(answer.status, CsStatus(-14_i32 as u32));
    assert_eq!(submit(HOLE, 1, plain).0, Err(Errno::EFAULT));
    assert_eq!(submit(HOLE, 1, plain).1.seq(), u64::MAX);
    assert_eq!(submit(HOLE, 0, plain).0, Err(Errno::EINVAL), "no chunks");
    assert_eq!(submit(HOLE, 513, plain).0, Err(Errno::EINVAL), "513 chunks");
    assert_eq!(submit(HOLE, u32::MAX, plain).0, Err(Errno::EINVAL), "4 G chunks");
    assert_eq!(
        submit(at(&chunk), 1, CsFlags::FORCE_RESTORE).0,
        Err(Errno::EFAULT),
        "the restore phase reads its chunks"
    );
    assert_eq!(
        submit(HOLE, 2, CsFlags::SIGNAL).0,
        Err(Errno::EINVAL),
        "two chunks"
    );
    assert_eq!(
        submit(HOLE, u32::MAX, CsFlags::SIGNAL | CsFlags::WAIT).0,
        Err(Errno::EINVAL),
        "two types"
    );
    assert_eq!(
        submit(HOLE, 9, CsFlags::FLUSH_PCI_HBW_WRITES).0,
        Ok(()),
        "the chunks are not read"
    );
    assert_eq!(
        submit(HOLE, 1, CsFlags::ENGINES_COMMAND).0,
        Err(Errno::EFAULT),
        "eight ids"
    );
    assert_eq!(
        submit(1 << 31, 1, CsFlags::ENGINES_COMMAND).0,
        Err(Errno::EINVAL),
        "2 G ids"
    );
    let mut padded = HlCsArgs::from(HlCsIn {
        pad: [0, 0, 1, 0],
        ..HlCsIn::default()
    });
    assert_eq!(ioctl(&io, Ioctl::Cs, &mut padded), Err(Errno::EINVAL));
    assert_eq!(padded.answer().seq(), u64::MAX);
}

#[test]
fn failed_waits_match_the_driver() {
    let io = open("waits");
    let wait = |request: HlWaitCsIn| {
        let mut args = HlWaitCsArgs::from(request);
        (ioctl(&io, Ioctl::WaitCs, &mut args), args)
    };
    let (result, args) = wait(HlWaitCsIn::cs(7, 5));
    assert_eq!(
        (result, args.0),
        (Err(Errno::EINVAL), [0; 7]),
        "a sequence number not yet submitted"
    );
    let (result, args) = wait(HlWaitCsIn::multi_cs(HOLE, 3, 5));
    assert_eq!(
        (result, args.0[0]),
        (Err(Errno::EPERM), HOLE),
        "rejected before the list is read"
    );
    assert_eq!(wait(HlWaitCsIn::multi_cs(HOLE, 200, 5)).0, Err(Errno::EINVAL));
    let (result, args) = wait(HlWaitCsIn::interrupt(0xfff, HOLE, 1, 0));
    assert_eq!((result, args.0[0]), (Err(Errno::EFAULT), HOLE));
    let word = 5_u64;
    let (result, args) = wait(HlWaitCsIn::interrupt(0xfff, at(&word), 5, 0));
    assert_eq!((result, args.answer().status), (Ok(()), WaitCsStatus::COMPLETED));
    let (result, args) = wait(HlWaitCsIn::interrupt(0xfff, at(&word), 6, u64::MAX));
    assert_eq!(
        (result, args.answer().status),
        (Ok(()), WaitCsStatus::BUSY),
        "virtual time passes at once"
    );
    assert_eq!(
        wait(HlWaitCsIn::register_timestamp(0xfff, 1, 0, 6, (2, 0))).0,
        Err(Errno::EINVAL)
    );
}

#[test]
fn debug_reads_and_writes_its_structs() {
    let io = open("debug");
    let debug = |op, input: u64, output: u64, size| {
        let mut args = HlDebugArgs {
            input_ptr: input,
            output_ptr: output,
            input_size: size,
            output_size: size,
            op,
            enable: 1,
            ..HlDebugArgs::default()
        };
        ioctl(&io, Ioctl::Debug, &mut args)
    };
    assert_eq!(
        debug(DebugOp::FUNNEL, HOLE, 0, 8),
        Err(Errno::EFAULT),
        "outside debug mode"
    );
    assert_eq!(
        debug(DebugOp::SET_MODE, HOLE, HOLE, u32::MAX),
        Ok(()),
        "the input is not read"
    );
    assert_eq!(debug(DebugOp::FUNNEL, HOLE, 0, 8), Ok(()), "FUNNEL has no input");
    assert_eq!(debug(DebugOp::STM, HOLE, 0, 24), Err(Errno::EFAULT));
    assert_eq!(
        debug(DebugOp::STM, 0, 0, 24),
        Err(Errno::EINVAL),
        "the input is null"
    );
    let input = [0_u8; 24];
    assert_eq!(
        debug(DebugOp::STM, at(&input), 0, u32::MAX),
        Ok(()),
        "only the struct's bytes are read"
    );
    assert_eq!(
        debug(DebugOp::FUNNEL, 0, HOLE, u32::MAX),
        Err(Errno::ENOMEM),
        "larger than the driver can allocate"
    );
    let mut output = [0xaa_u8; 16];
    assert_eq!(debug(DebugOp::FUNNEL, 0, at_mut(&mut output), 8), Ok(()));
    assert_eq!((&output[..8], &output[8..]), (&[0; 8][..], &[0xaa; 8][..]));
    assert_eq!(
        debug(DebugOp::FUNNEL, 0, HOLE, 8),
        Err(Errno::EFAULT),
        "the output cannot be written"
    );
    assert_eq!(debug(DebugOp(9), HOLE, HOLE, 8), Err(Errno::EINVAL));
}

#[test]
fn cb_arguments_match_the_driver() {
    let io = open("cb");
    let cb = |request: HlCbIn| {
        let mut args = HlCbArgs::from(request);
        (ioctl(&io, Ioctl::Cb, &mut args), args)
    };
    let (result, args) = cb(HlCbIn::create(u32::MAX, CbFlags::NONE));
    assert_eq!(
        (result, args.0),
        (Err(Errno::EINVAL), [0; 3]),
        "a failed CREATE clears the argument"
    );
    let (result, args) = cb(HlCbIn::create(4096, CbFlags::MAP));
    let handle = args.answer().cb_handle();
    assert_eq!((result, args.0[1..].to_vec()), (Ok(()), vec![0; 2]));
    assert_eq!(cb(HlCbIn::usage(handle)).1.answer().usage_cnt(), 0);
    let (result, args) = cb(HlCbIn::device_va(handle));
    assert!(result.is_ok() && args.answer().device_va() != 0);
    assert_eq!(cb(HlCbIn::destroy(handle)).0, Ok(()));
    let (result, args) = cb(HlCbIn::destroy(handle));
    assert_eq!(
        (result, args.0[0]),
        (Err(Errno::EINVAL), handle),
        "the request is kept"
    );
}

/// A node of a device in reset.
struct InReset(Node);

impl KernelIo for InReset {
    fn node(&self) -> &Node {
        &self.0
    }

    fn info(&self, request: InfoRequest, answer: &mut [u8]) -> gaudi_seam::Result<u32> {
        assert_eq!(request.op, InfoOp::DEVICE_STATUS);
        answer[..4].copy_from_slice(&DeviceStatus::IN_RESET.0.to_le_bytes());
        Ok(0)
    }
}

#[test]
fn reset_is_reported_before_invalid_arguments() {
    let io: SharedIo = Arc::new(InReset(open("reset").node().clone()));
    let unknown = HlMemIn {
        op: MemOp(77),
        ..HlMemIn::default()
    };
    assert_eq!(memory(&io, unknown).0, Err(Errno::EBUSY));
    let mut padded = HlCsArgs::from(HlCsIn {
        pad: [1; 4],
        ..HlCsIn::default()
    });
    assert_eq!(ioctl(&io, Ioctl::Cs, &mut padded), Err(Errno::EBUSY));
    assert_eq!(padded.answer().seq(), u64::MAX);
    let (result, _) = info(&io, InfoOp::REGISTER_EVENTFD, 0, 0, u32::MAX);
    assert_eq!(result, Err(Errno::EBUSY), "checked before the descriptor");
}
