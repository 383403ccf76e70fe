//! Opening and closing, the control node.

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbHandle, CsRequest, CsSeq, DeviceVa, Errno, ErrorKind, ExportRequest, HostVa, InfoRequest,
    KernelIoExt as _, MapDevice, MapHost, MemAlloc, MemHandle, MmapRequest, NodeKind,
};
use gaudi_spec::gaudi2::queue;
use gaudi_sys::fd::duplicate;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{
    DeviceStatus, HlInfoDeviceStatus, HlInfoDramUsage, HlInfoHwIpInfo, HlInfoResetCount, HlOpenStatsInfo,
    InfoOp,
};
use gaudi_uapi::memory::MemFlags;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Allocation, Buffer, Dram, Host, LONG, PAGE_LEN, Program, submit_with, try_map_host};
use crate::verdict::{Verdict, equal, holds, invalid, refused};

cases! {
    "open.second-user", "common/habanalabs_drv.c:hl_device_open" => second_user;
    "open.refused-open-is-not-counted", "common/habanalabs_drv.c:hl_device_open" => refused_open_is_not_counted;
    "open.control-beside-compute", "common/habanalabs_drv.c:hl_device_open_ctrl" => control_beside_compute;
    "open.many-controls", "common/habanalabs_drv.c:hl_device_open_ctrl" => many_controls;
    "open.control-without-user", "common/habanalabs_drv.c:hl_device_open_ctrl" => control_without_user [Lifecycle];
    "open.again-after-close", "common/device.c:hpriv_release" => again_after_close [Lifecycle];
    "open.counts-openers", "common/habanalabs_drv.c:hl_device_open" => counts_openers [Lifecycle];
    "open.close-is-no-counted-reset", "common/device.c:hl_device_reset" => close_is_no_counted_reset [Lifecycle];
    "open.close-while-running", "common/device.c:hl_device_release" => close_while_running [Lifecycle, Reset];
    "open.close-with-a-reservation", "common/device.c:hl_device_release" => close_with_reservation [Lifecycle, Reset];
    "open.reset-waits-for-an-export", "common/device.c:device_kill_open_processes" => reset_waits_for_export [Lifecycle, Reset];
    "open.sequence-starts-at-one", "common/context.c:hl_ctx_init" => sequence_starts_at_one [Lifecycle];
    "open.close-frees-everything", "common/memory.c:hl_vm_ctx_fini" => close_frees_everything [Lifecycle];
    "open.while-export-holds-device", "common/memory.c:export_dmabuf" => while_export_holds_device [Lifecycle];
    "open.while-duplicate-of-export-lives", "common/memory.c:hl_release_dmabuf" => while_duplicate_of_export_lives [Lifecycle];
    "control.info", "common/habanalabs_ioctl.c:hl_info_ioctl_control" => control_info;
    "control.other-operations", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_other_operations;
    "control.event-operations", "common/habanalabs_ioctl.c:hl_info_ioctl_control" => control_event_operations;
    "control.has-no-context", "common/habanalabs_ioctl.c:dram_usage_info" => control_has_no_context;
}

fn second_user(bench: &mut Bench) -> Verdict {
    let second = bench.try_open();
    let kind = second.as_ref().err().map(gaudi_seam::Error::kind);
    refused(
        "opening a compute node that a user has open",
        second,
        Errno::EBUSY,
    )?;
    equal("the kind of that error", kind, Some(ErrorKind::Busy))
}

fn refused_open_is_not_counted(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let before = io.query::<HlOpenStatsInfo>()?.open_counter;
    refused("a second opener", bench.try_open(), Errno::EBUSY)?;
    let after = io.query::<HlOpenStatsInfo>()?.open_counter;
    equal("the count of openers after a refused one", after, before)
}

fn control_beside_compute(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let control = bench.open_control()?;
    equal("the node that was opened", control.node().kind, NodeKind::Control)?;
    let usage: HlInfoDramUsage = control.query()?;
    equal(
        "free memory as both nodes report it",
        usage.dram_free_mem,
        io.query::<HlInfoDramUsage>()?.dram_free_mem,
    )
}

fn many_controls(bench: &mut Bench) -> Verdict {
    let controls = (0..16)
        .map(|_| bench.open_control())
        .collect::<Result<Vec<_>, _>>()?;
    for control in &controls {
        let stats: HlOpenStatsInfo = control.query()?;
        equal(
            "the control node reports an active user",
            stats.is_compute_ctx_active,
            1,
        )?;
    }
    Ok(())
}

fn control_without_user(bench: &mut Bench) -> Verdict {
    bench.close();
    let control = bench.open_control()?;
    let info: HlInfoHwIpInfo = control.query()?;
    equal("the device's id without a user", info.device_id, 0x1020)?;
    // The driver clears the flag before it accepts the next user.
    drop(bench.io()?);
    bench.close();
    let stats: HlOpenStatsInfo = control.query()?;
    holds(
        "no user is active, or the last is being released",
        stats.is_compute_ctx_active == 0 || stats.compute_ctx_in_release == 1,
        stats,
    )
}

fn again_after_close(bench: &mut Bench) -> Verdict {
    for _ in 0..3 {
        let io = bench.reopen()?;
        let usage: HlInfoDramUsage = io.query()?;
        equal("memory of a fresh user", usage.ctx_dram_mem, 0)?;
    }
    Ok(())
}

fn counts_openers(bench: &mut Bench) -> Verdict {
    let before = bench.control().query::<HlOpenStatsInfo>()?.open_counter;
    bench.reopen()?;
    bench.reopen()?;
    let after = bench.control().query::<HlOpenStatsInfo>()?.open_counter;
    equal("the count of openers after two more", after, before + 2)
}

fn close_is_no_counted_reset(bench: &mut Bench) -> Verdict {
    let count = |bench: &Bench| bench.control().query::<HlInfoResetCount>();
    let before = count(bench)?;
    bench.reopen()?;
    equal(
        "resets counted over an ordinary close and open",
        count(bench)?,
        before,
    )
}

/// Submissions and reservations hold references to the user's context: a close with one pending
/// makes the driver reset the device.
fn close_while_running(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let before = bench.resets()?;
    let buffer = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    buffer.submit(queue::PDMA_0_0)?;
    drop((buffer, io));
    let io = bench.reopen()?;
    equal("hard resets", bench.resets()?, before + 1)?;
    crate::rig::run(&io, queue::PDMA_0_0, Program::new().nop())
}

fn close_with_reservation(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let before = bench.resets()?;
    io.submit(&CsRequest::reserve_signals(3, queue::PDMA_0_0))?;
    drop(io);
    bench.reopen()?;
    equal("hard resets", bench.resets()?, before + 1)
}

/// A reset waits for live exports, even after their user closed the device.
fn reset_waits_for_export(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let dram = Dram::new(&io, 1)?;
    let fd = io.export_dmabuf(export_of(&dram))?;
    let buffer = Buffer::new(&io, Program::new().fence(2, 1, 1)?)?;
    let seq = submit_with(&*io, &[buffer.chunk(queue::PDMA_0_0)], CsFlags::NONE, Some(1))?;
    refused(
        "the wait for an aborted submission",
        io.wait_cs(seq, LONG),
        Errno::ETIMEDOUT,
    )?;
    dram.mapping.leave();
    dram.allocation.leave();
    drop((buffer, io));
    bench.close();
    let status = bench.control().query::<HlInfoDeviceStatus>()?.status;
    equal(
        "the device's status while an export of its last user lives",
        status,
        DeviceStatus::IN_RESET,
    )?;
    let refusal = bench.try_open();
    let kind = refusal.as_ref().err().map(gaudi_seam::Error::kind);
    refused("opening meanwhile", refusal, Errno::EAGAIN)?;
    equal("the kind of that error", kind, Some(ErrorKind::InReset))?;
    drop(fd);
    bench.io().map(drop)
}

fn sequence_starts_at_one(bench: &mut Bench) -> Verdict {
    let io = bench.reopen()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    crate::rig::finish(&*io, seq)?;
    equal("the first sequence number of a user", seq.0, 1)
}

fn close_frees_everything(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let (address, handle) = (memory.va(), memory.allocation.handle);
    let Host {
        mapping,
        memory: pinned,
        ..
    } = Host::new(&io, 2 * PAGE_LEN)?;
    let create = CbCreate {
        size: 4096,
        map_to_device: true,
    };
    let buffer = io.cb_create(create)?;
    mapping.leave();
    memory.mapping.leave();
    memory.allocation.leave();
    drop(io);
    bench.close();
    let io = bench.io()?;
    drop(pinned);
    let usage: HlInfoDramUsage = io.query()?;
    equal("memory that a fresh user starts with", usage.ctx_dram_mem, 0)?;
    let again = Dram::new(&io, 1)?;
    equal(
        "the first handle of a fresh user",
        again.allocation.handle,
        handle,
    )?;
    equal("the first address of a fresh user", again.va(), address)?;
    invalid("a command buffer of the user before", io.cb_info(buffer, false))
}

fn export_of(dram: &Dram) -> ExportRequest {
    ExportRequest {
        address: dram.va(),
        size: 8192,
        offset: 4096,
        flags: 0,
    }
}

fn while_export_holds_device(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let dram = Dram::new(&io, 1)?;
    let fd = io.export_dmabuf(export_of(&dram))?;
    dram.mapping.leave();
    dram.allocation.leave();
    drop(io);
    bench.close();
    refused(
        "opening while an export of the last user lives",
        bench.try_open(),
        Errno::EBUSY,
    )?;
    drop(fd);
    bench.io().map(drop)
}

fn while_duplicate_of_export_lives(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let dram = Dram::new(&io, 1)?;
    let fd = io.export_dmabuf(export_of(&dram))?;
    let twin = duplicate(&fd)?;
    drop(fd);
    dram.mapping.leave();
    dram.allocation.leave();
    drop(io);
    bench.close();
    refused(
        "opening while a duplicate of an export lives",
        bench.try_open(),
        Errno::EBUSY,
    )?;
    drop(twin);
    bench.io().map(drop)
}

fn control_info(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (a, b): (HlInfoHwIpInfo, HlInfoHwIpInfo) = (io.query()?, bench.control().query()?);
    equal("the device as the control node reports it", b, a)
}

fn control_other_operations(bench: &mut Bench) -> Verdict {
    let io = bench.control();
    let no = Errno::ENOTTY;
    let page = RawPage::new()?;
    refused(
        "HL_MEM_OP_ALLOC on a control node",
        io.mem_alloc(MemAlloc {
            size: 1,
            page_size: 0,
            flags: MemFlags::NONE,
        }),
        no,
    )?;
    refused("HL_MEM_OP_FREE on a control node", io.mem_free(MemHandle(1)), no)?;
    let device = MapDevice {
        handle: MemHandle(1),
        hint: None,
        flags: MemFlags::NONE,
    };
    refused("HL_MEM_OP_MAP on a control node", io.mem_map_device(device), no)?;
    let host = MapHost {
        address: page.address(),
        size: 4096,
        hint: None,
        flags: MemFlags::NONE,
    };
    refused(
        "HL_MEM_OP_MAP of host memory on a control node",
        try_map_host(&**io, host),
        no,
    )?;
    refused(
        "HL_MEM_OP_UNMAP on a control node",
        io.mem_unmap(DeviceVa(0x1000)),
        no,
    )?;
    let export = ExportRequest {
        address: DeviceVa(0x1000),
        size: 4096,
        offset: 0,
        flags: 0,
    };
    refused(
        "HL_MEM_OP_EXPORT_DMABUF_FD on a control node",
        io.export_dmabuf(export),
        no,
    )?;
    let create = CbCreate {
        size: 4096,
        map_to_device: false,
    };
    refused("HL_CB_OP_CREATE on a control node", io.cb_create(create), no)?;
    refused(
        "HL_CB_OP_DESTROY on a control node",
        io.cb_destroy(CbHandle(0x1000)),
        no,
    )?;
    refused(
        "HL_CB_OP_INFO on a control node",
        io.cb_info(CbHandle(0x1000), false),
        no,
    )?;
    refused(
        "HL_IOCTL_CS on a control node",
        io.submit(&CsRequest::default()),
        no,
    )?;
    refused(
        "HL_IOCTL_WAIT_CS on a control node",
        io.wait_cs(CsSeq(1), Duration::ZERO),
        no,
    )?;
    // The control device does not implement mmap: the kernel itself answers (mm/mmap.c).
    holds(
        "mmap on a control node is refused",
        io.mmap(MmapRequest {
            offset: 0x1000,
            len: PAGE_LEN,
        })
        .is_err(),
        "a mapping",
    )
}

struct RawPage(gaudi_seam::RawMapping);

impl RawPage {
    fn new() -> Result<Self, Errno> {
        gaudi_seam::RawMapping::anonymous(PAGE_LEN, true).map(Self)
    }

    fn address(&self) -> HostVa {
        HostVa(self.0.as_ptr().as_ptr().expose_provenance() as u64)
    }
}

fn control_event_operations(bench: &mut Bench) -> Verdict {
    for op in [
        InfoOp::GET_EVENTS,
        InfoOp::REGISTER_EVENTFD,
        InfoOp::UNREGISTER_EVENTFD,
    ] {
        let answer = bench.control().info(InfoRequest::new(op), &mut [0; 8]);
        refused(&format!("{op} on a control node"), answer, Errno::EOPNOTSUPP)?;
    }
    Ok(())
}

fn control_has_no_context(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let _memory = Allocation::new(&io, 1)?;
    let (own, other): (HlInfoDramUsage, HlInfoDramUsage) = (io.query()?, bench.control().query()?);
    holds("the user's node reports its memory", own.ctx_dram_mem > 0, own)?;
    equal(
        "the user's memory as a control node reports it",
        other.ctx_dram_mem,
        0,
    )?;
    equal(
        "free memory as both nodes report it",
        other.dram_free_mem,
        own.dram_free_mem,
    )
}
