//! Differences that `cargo xtask lab diff` found between the mock and the driver: one case each.

use std::os::fd::AsFd as _;
use std::time::Duration;

use gaudi_seam::{
    CbCreate, CqCounter, CsRequest, CsSeq, DeviceVa, Errno, Error, ExportRequest, HostVa, InfoRequest,
    InterruptId, InterruptWait, InterruptWord, KernelIoExt as _, MapHost, MmapRequest, RawMapping,
    WaitStatus,
};
use gaudi_spec::gaudi2::{DOORBELL_VA, queue};
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::memory::MemFlags;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Dram, PAGE_LEN, Program, finish, try_map_host};
use crate::verdict::{Verdict, equal, invalid, refused};

cases! {
    "memory.map-host.hint.doorbell", "common/mmu/mmu_v2_hr.c:_hl_mmu_v2_hr_map" => hint_at_doorbell;
    "wait.counter.of-an-odd-size", "common/command_submission.c:_hl_interrupt_wait_ioctl" => odd_size;
    "wait.timestamp-of-what-was-refused", "common/command_submission.c:cs_do_release" => refused_timestamp;
    "buffer.mmap.past-the-last-offset", "common/device.c:__hl_mmap" => last_offset;
    "export.close-on-exec", "common/memory.c:export_dmabuf" => close_on_exec;
    "info.no-such-pll", "gaudi2/gaudi2.c:gaudi2_map_pll_idx_to_fw_idx" => no_such_pll;
    "info.firmware-request.not-known", "common/firmware_if.c:hl_fw_send_cpu_message" => firmware_refuses;
    "info.tpc-interrupt", "common/habanalabs_ioctl.c:hw_ip_info" => tpc_interrupt;
}

/// The driver maps the doorbell's page, but its list of free addresses contains it.
fn hint_at_doorbell(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = RawMapping::anonymous(PAGE_LEN, true)?;
    let request = |hint| MapHost {
        address: HostVa(memory.as_ptr().as_ptr().expose_provenance() as u64),
        size: PAGE_LEN as u64,
        hint: Some(hint),
        flags: MemFlags::FORCE_HINT,
    };
    invalid(
        "host memory where the doorbell is",
        try_map_host(&*io, request(DOORBELL_VA)),
    )?;
    try_map_host(&*io, request(DeviceVa(DOORBELL_VA.0 - PAGE_LEN as u64)))?;
    Ok(())
}

/// The requested bytes, not the pages, limit the number of counters of a buffer.
fn odd_size(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let handle = io.cb_create(CbCreate {
        size: PAGE_LEN as u32 + 1,
        map_to_device: false,
    })?;
    let wait = |offset| {
        io.wait_interrupt(&InterruptWait {
            interrupt: InterruptId(48),
            word: InterruptWord::KernelCq(CqCounter { handle, offset }),
            target: 0,
            timeout: Duration::ZERO,
        })
    };
    let (last, next) = (wait(PAGE_LEN as u64 / 8 - 1), wait(PAGE_LEN as u64 / 8));
    io.cb_destroy(handle)?;
    last.map(drop)?;
    invalid("a counter in the rest of the last page", next)
}

/// A refused submission has consumed its number, and has no completion time.
fn refused_timestamp(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let before = buffer.submit(queue::PDMA_0_0)?;
    finish(&*io, before)?;
    let chunk = [buffer.chunk(queue::CPU)];
    let request = CsRequest::jobs(&chunk).with_flags(CsFlags::TIMESTAMP);
    invalid("a submission to the driver's own queue", io.submit(&request))?;
    let number = CsSeq(before.0 + 1);
    let answer = io.wait_cs(number, Duration::ZERO)?;
    equal(
        "a wait for its number",
        (answer.status, answer.timestamp_ns),
        (WaitStatus::Completed, None),
    )
}

fn last_offset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let map = |pages: usize| {
        io.mmap(MmapRequest {
            offset: u64::MAX - 4095,
            len: pages * PAGE_LEN,
        })
    };
    invalid("the last page that an offset can name", map(1))?;
    refused("the one behind it", map(2), Errno::EOVERFLOW)
}

fn close_on_exec(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    // O_RDWR with and without O_CLOEXEC
    for (flags, closes) in [(0o2_000_002, true), (0o2, false)] {
        let export = io.export_dmabuf(ExportRequest {
            address: memory.va(),
            size: PAGE_LEN as u64,
            offset: 0,
            flags,
        })?;
        let seen = FdFlag::from_bits_truncate(fcntl(export.as_fd(), FcntlArg::F_GETFD)?);
        equal(
            &format!("whether an export with flags {flags:o} closes on exec"),
            seen.contains(FdFlag::FD_CLOEXEC),
            closes,
        )?;
    }
    Ok(())
}

fn no_such_pll(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let ask = |arg| {
        let request = InfoRequest {
            op: InfoOp::PLL_FREQUENCY,
            arg,
        };
        io.info(request, &mut [0; 8])
    };
    ask(11).map(drop)?;
    for pll in [12, u32::MAX] {
        invalid(&format!("PLL {pll}"), ask(pll))?;
    }
    Ok(())
}

/// No model's firmware performs these requests.
fn firmware_refuses(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for arg in 0..3 {
        let request = InfoRequest {
            op: InfoOp::FW_GENERIC_REQ,
            arg,
        };
        let answer = io.info(request, &mut [0; 64]);
        // Linux 6.12 rejects the request without asking the firmware.
        let older = |error: &Error| !bench.is_mock() && error.errno() == Some(Errno::EINVAL);
        if !answer.as_ref().is_err_and(older) {
            refused(
                &format!("request {arg}, which firmware does not know"),
                answer,
                Errno::EIO,
            )?;
        }
    }
    Ok(())
}

fn tpc_interrupt(bench: &mut Bench) -> Verdict {
    let info: HlInfoHwIpInfo = bench.io()?.query()?;
    equal("the interrupt of a TPC's assertion", info.tpc_interrupt_id, 46)
}
