//! What is refused before it reaches the driver.

mod recorder;

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CqCounter, CsRequest, CsSeq, ErrorKind, HostVa, InterruptId, InterruptWait,
    InterruptWord, KernelIo, MapDevice, MemAlloc, MemHandle, MmapRequest, NicRequest, NodeKind,
    TimestampRegistration, TsHandle,
};
use gaudi_sys::Errno;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::memory::MemFlags;
use recorder::{Reply, open};

#[test]
fn misread_requests_are_not_sent() {
    let (kernel, recorder) = open(NodeKind::Compute);
    for flags in [CsFlags::ENGINES_COMMAND, CsFlags::ENGINE_CORE_COMMAND] {
        let error = kernel
            .submit(&CsRequest {
                flags,
                ..CsRequest::default()
            })
            .unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidInput,
            "{flags} makes the chunks' address one of engine ids"
        );
    }
    let chunks = vec![HlCsChunk::default(); 513];
    let error = kernel
        .submit(&CsRequest {
            execute: &chunks,
            ..CsRequest::default()
        })
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InvalidInput, Some(Errno::EINVAL)),
        "513 chunks"
    );
    let map = MapDevice {
        handle: MemHandle(1),
        hint: None,
        flags: MemFlags::USERPTR,
    };
    let error = kernel.mem_map_device(map).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidInput,
        "USERPTR would make a handle an address of this process"
    );
    let error = kernel.wait_multi_cs(&[CsSeq(1); 33], Duration::ZERO).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidInput,
        "33 submissions in one wait"
    );
    let wait = InterruptWait {
        interrupt: InterruptId(0x1000),
        word: InterruptWord::User(HostVa(8)),
        target: 1,
        timeout: Duration::ZERO,
    };
    assert_eq!(
        kernel.wait_interrupt(&wait).unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "interrupt 4096"
    );
    assert_eq!(recorder.take(), [], "none of these reached the driver");
}

#[test]
fn unsupported_operations_are_named() {
    let (kernel, recorder) = open(NodeKind::Compute);
    let error = kernel
        .nic(NicRequest {
            op: 0,
            input: &[],
            output: &mut [],
        })
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::Unsupported, "HL_IOCTL_NIC")
    );
    assert_eq!(recorder.take(), [], "nothing was sent");
}

#[test]
fn a_control_node_serves_info_only() {
    let (kernel, recorder) = open(NodeKind::Control);
    let chunk = [HlCsChunk::default()];
    let errors = [
        kernel
            .cb_create(CbCreate {
                size: 1,
                map_to_device: false,
            })
            .map(drop),
        kernel
            .submit(&CsRequest {
                execute: &chunk,
                ..CsRequest::default()
            })
            .map(drop),
        kernel.wait_cs(CsSeq(1), Duration::ZERO).map(drop),
        kernel
            .mem_alloc(MemAlloc {
                size: 1,
                page_size: 0,
                flags: MemFlags::NONE,
            })
            .map(drop),
        kernel.map_block(0).map(drop),
        kernel.mmap(MmapRequest { offset: 0, len: 1 }).map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::Unsupported, Some(Errno::ENOTTY)),
            "{error}"
        );
    }
    assert_eq!(recorder.take(), [], "nothing was sent");
}

#[test]
fn timestamp_offsets_that_wrap_are_refused() {
    const MOST: u64 = 1 << 32;
    let (kernel, recorder) = open(NodeKind::Compute);
    let register = |offset, index| {
        kernel.register_timestamp(&TimestampRegistration {
            interrupt: InterruptId(49),
            counter: CqCounter {
                handle: CbHandle(0x2000),
                offset,
            },
            target: 1,
            buffer: TsHandle(0x3000),
            index,
        })
    };
    for (offset, index) in [
        (0, MOST + 1),
        (0, u64::MAX),
        (0, 1 << 61),
        (MOST + 1, 0),
        (u64::MAX, 0),
    ] {
        let error = register(offset, index).expect_err("the driver's arithmetic would wrap");
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL)),
            "{offset:#x}, {index:#x}: {error}"
        );
    }
    assert!(recorder.take().is_empty(), "the driver is not asked");
    recorder.reply([Reply::Args(vec![0; 24])]);
    register(MOST, MOST).expect("the driver compares it with the buffer's size");
    assert_eq!(recorder.take().len(), 1);
}
