//! Every operation of the seam, for tests that are about none in particular.
#![expect(
    unsafe_code,
    reason = "mapping host memory is the seam's one unsafe operation"
)]

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use gaudi_kernel::{Kernel, Syscalls};
use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, CsSeq, DebugRequest, DeviceVa, HostVa, InfoRequest, InterruptId,
    InterruptWait, InterruptWord, KernelIo, MapDevice, MapHost, MemAlloc, MemHandle, Result,
};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::MemFlags;

/// Every operation once, in one order.
pub(crate) fn everything(kernel: &Kernel<dyn Syscalls>) -> Result<()> {
    kernel.info(InfoRequest::new(InfoOp::HW_IP_INFO), &mut [0; 304])?;
    let eventfd = File::open("/dev/null").unwrap();
    kernel.register_events(eventfd.as_fd())?;
    kernel.unregister_events()?;
    kernel.cb_create(CbCreate {
        size: 4096,
        map_to_device: true,
    })?;
    kernel.cb_info(CbHandle(9), true)?;
    kernel.cb_destroy(CbHandle(9))?;
    let chunk = [HlCsChunk::user(0, 0x1000, 8)];
    kernel.submit(&CsRequest {
        execute: &chunk,
        ..CsRequest::default()
    })?;
    kernel.wait_cs(CsSeq(1), Duration::ZERO)?;
    kernel.wait_multi_cs(&[CsSeq(1), CsSeq(2)], Duration::ZERO)?;
    kernel.wait_interrupt(&InterruptWait {
        interrupt: InterruptId(48),
        word: InterruptWord::User(HostVa(0x8000)),
        target: 1,
        timeout: Duration::ZERO,
    })?;
    let flags = MemFlags::NONE;
    kernel.mem_alloc(MemAlloc {
        size: 0x1000,
        page_size: 0,
        flags,
    })?;
    kernel.mem_map_device(MapDevice {
        handle: MemHandle(5),
        hint: None,
        flags,
    })?;
    // SAFETY: the recorder maps nothing.
    unsafe {
        kernel.mem_map_host(MapHost {
            address: HostVa(0x7000),
            size: 1,
            hint: None,
            flags,
        })
    }?;
    kernel.mem_unmap(DeviceVa(0x10))?;
    kernel.mem_free(MemHandle(5))?;
    kernel.ts_alloc(1)?;
    kernel.map_block(0x1000)?;
    kernel.debug(DebugRequest {
        op: DebugOp::SET_MODE,
        reg_idx: 0,
        enable: true,
        input: &[],
        output: &mut [],
    })
}
