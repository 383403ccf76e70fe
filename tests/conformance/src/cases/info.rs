//! `HL_IOCTL_INFO`.

use gaudi_seam::{Errno, InfoRequest, KernelIoExt as _};
use gaudi_spec::gaudi2::{self, queue, sync};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::engine::Gaudi2EngineId;
use gaudi_uapi::info::{
    DeviceStatus, HlInfoCsCounters, HlInfoDevMemallocPageSizes, HlInfoDeviceStatus, HlInfoDeviceUtilization,
    HlInfoDramUsage, HlInfoHwIdle, HlInfoHwIpInfo, HlInfoLastErrOpenDevTime, HlInfoSecAttest, HlInfoSigned,
    HlInfoSyncManager, HlInfoTimeSync, HlOpenStatsInfo, InfoOp,
};

use crate::bench::Bench;
use crate::case::{Case, Failure, Verdict, equal, holds, refused, same_bytes};
use crate::rig::{Allocation, Gate, submit};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("info.identity", "common/habanalabs_ioctl.c:65", identity),
    Case::gaudi2("info.memory-map", "common/habanalabs_ioctl.c:67", memory_map),
    Case::gaudi2(
        "info.unknown-operation",
        "common/habanalabs_ioctl.c:1150",
        unknown_operation,
    ),
    Case::gaudi2(
        "info.answer-without-room",
        "common/habanalabs_ioctl.c:57",
        answer_without_room,
    ),
    Case::gaudi2("info.rooms", "common/habanalabs_ioctl.c:621", rooms),
    Case::gaudi2("info.short-answer", "common/habanalabs_ioctl.c:116", short_answer),
    Case::gaudi2("info.long-answer", "common/habanalabs_ioctl.c:116", long_answer),
    Case::gaudi2(
        "info.sync-manager.first-free",
        "common/habanalabs_ioctl.c:455",
        sync_first_free,
    ),
    Case::gaudi2(
        "info.sync-manager.spare-dcores",
        "common/habanalabs_ioctl.c:452",
        sync_spare_dcores,
    ),
    Case::gaudi2(
        "info.sync-manager.no-such-dcore",
        "common/habanalabs_ioctl.c:452",
        sync_no_such_dcore,
    ),
    Case::gaudi2("info.open-stats", "common/habanalabs_ioctl.c:538", open_stats),
    Case::gaudi2("info.dram-usage", "common/habanalabs_ioctl.c:169", dram_usage),
    Case::gaudi2(
        "info.device-status",
        "common/habanalabs_ioctl.c:43",
        device_status,
    ),
    Case::gaudi2("info.page-sizes", "common/habanalabs_ioctl.c:669", page_sizes),
    Case::gaudi2(
        "info.idle.while-a-stream-waits",
        "common/habanalabs_ioctl.c:188",
        idle_while_waiting,
    ),
    Case::gaudi2(
        "info.counters.of-refused-submissions",
        "common/habanalabs_ioctl.c:416",
        counters,
    ),
    Case::gaudi2(
        "info.counters.of-control-node",
        "common/habanalabs_ioctl.c:416",
        counters_of_control,
    ),
    Case::gaudi2(
        "info.time-goes-forward",
        "common/habanalabs_ioctl.c:315",
        time_goes_forward,
    ),
    Case::gaudi2("info.time-of-open", "common/habanalabs_ioctl.c:592", time_of_open),
    Case::gaudi2("info.hw-events", "common/habanalabs_ioctl.c:129", hw_events),
    Case::gaudi2("info.busy-engine-by-number", "gaudi2/gaudi2.c:7850", busy_engine),
    Case::gaudi2(
        "info.engine-status",
        "common/habanalabs_ioctl.c:832",
        engine_status,
    ),
    Case::gaudi2(
        "info.engine-status.size-of-answer",
        "common/habanalabs_ioctl.c:815",
        engine_status_sizes,
    ),
    Case::gaudi2("info.of-firmware", "gaudi2/gaudi2.c:7095", of_firmware),
    Case::gaudi2("info.attestation", "common/habanalabs_ioctl.c:675", attestation),
    Case::gaudi2("info.signed", "common/habanalabs_ioctl.c:753", signed),
    Case::gaudi2(
        "info.records-of-errors",
        "common/habanalabs_ioctl.c:890",
        records_of_errors,
    ),
    Case::gaudi2(
        "info.firmware-request.unknown",
        "common/habanalabs_ioctl.c:970",
        firmware_unknown,
    ),
    Case::gaudi2(
        "info.firmware-request.too-large",
        "common/habanalabs_ioctl.c:974",
        firmware_too_large,
    ),
];

fn identity(bench: &mut Bench) -> Verdict {
    let info: HlInfoHwIpInfo = bench.io()?.query()?;
    equal("the device's id", info.device_id, 0x1020)?;
    holds(
        "the revision is one of Gaudi2's",
        gaudi2::REVISIONS.contains(&info.revision_id),
        info.revision_id,
    )?;
    equal("the card's name", info.card_name_text(), gaudi2::CARD_NAME)?;
    equal("interrupts for users", info.number_of_user_interrupts, 64)?;
    equal(
        "the first of them",
        info.first_available_interrupt_id,
        gaudi2::USER_INTERRUPTS.start,
    )
}

fn memory_map(bench: &mut Bench) -> Verdict {
    let info: HlInfoHwIpInfo = bench.io()?.query()?;
    equal(
        "where device memory is mapped",
        info.dram_base_address,
        0x1001_0018_0000_0000,
    )?;
    equal("MiB of device memory", info.dram_size >> 20, 97_536)?;
    equal(
        "bytes of device memory that the driver keeps",
        info.reserved_dram_size,
        768 << 20,
    )?;
    equal("bytes in a page of it", info.dram_page_size, 768 << 20)?;
    equal(
        "bytes in the page of an allocation",
        info.device_mem_alloc_default_page_size,
        768 << 20,
    )?;
    equal("device memory is there", info.dram_enabled, 1)?;
    equal("where the SRAM is", info.sram_base_address, 0x1000_ffff_fd00_0000)?;
    equal("MiB of SRAM", info.sram_size >> 20, 48)
}

fn unknown_operation(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [5, 54, 200, u32::MAX] {
        refused(
            &format!("INFO operation {op}, which there is not"),
            io.info(InfoRequest::new(InfoOp(op)), &mut [0; 64]),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn answer_without_room(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [
        InfoOp::HW_IP_INFO,
        InfoOp::DRAM_USAGE,
        InfoOp::HW_IDLE,
        InfoOp::DEVICE_STATUS,
        InfoOp::RESET_COUNT,
        InfoOp::TIME_SYNC,
        InfoOp::CS_COUNTERS,
        InfoOp::SYNC_MANAGER,
        InfoOp::OPEN_STATS,
        InfoOp::DEV_MEM_ALLOC_PAGE_SIZES,
        InfoOp::CS_TIMEOUT_EVENT,
    ] {
        refused(
            &format!("{op} with an answer of 0 bytes"),
            io.info(InfoRequest::new(op), &mut []),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn rooms(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [
        InfoOp::HW_EVENTS,
        InfoOp::HW_EVENTS_AGGREGATE,
        InfoOp::LAST_ERR_OPEN_DEV_TIME,
        InfoOp::RAZWI_EVENT,
        InfoOp::UNDEFINED_OPCODE_EVENT,
        InfoOp::PAGE_FAULT_EVENT,
    ] {
        refused(
            &format!("{op} with an answer of 0 bytes"),
            io.info(InfoRequest::new(op), &mut []),
            Errno::EINVAL,
        )?;
        io.info(InfoRequest::new(op), &mut [0; 8]).map(drop)?;
    }
    Ok(())
}

fn short_answer(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut whole = [0; size_of::<HlInfoHwIpInfo>()];
    io.info(InfoRequest::new(InfoOp::HW_IP_INFO), &mut whole)?;
    // 256 bytes are the struct of Linux 6.1.
    for len in [1, 7, 8, 36, 256, whole.len() - 1] {
        let mut part = vec![0; len];
        io.info(InfoRequest::new(InfoOp::HW_IP_INFO), &mut part)?;
        same_bytes(&format!("an answer cut to {len} bytes"), &part, &whole[..len])?;
    }
    Ok(())
}

fn long_answer(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut answer = [0xff; size_of::<HlInfoDramUsage>() + 64];
    io.info(InfoRequest::new(InfoOp::DRAM_USAGE), &mut answer)?;
    let (known, rest) = answer.split_at(size_of::<HlInfoDramUsage>());
    holds(
        "the struct is filled",
        known.iter().any(|&byte| byte != 0xff),
        known,
    )?;
    same_bytes("what the driver does not know of", rest, &[0; 64])
}

fn sync_first_free(bench: &mut Bench) -> Verdict {
    let info: HlInfoSyncManager = bench.io()?.query_with(0)?;
    equal(
        "the first sync object for users of die core 0",
        info.first_available_sync_object,
        sync::FIRST_USER_SOB,
    )?;
    equal(
        "the first monitor",
        info.first_available_monitor,
        sync::FIRST_USER_MONITOR,
    )?;
    equal(
        "the first completion queue",
        info.first_available_cq,
        sync::FIRST_USER_CQ,
    )
}

fn sync_spare_dcores(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // The driver's table has room for eight die cores; Gaudi2 has four, and of 1 to 3 all is the user's.
    for dcore in 1..8 {
        let info: HlInfoSyncManager = io.query_with(dcore)?;
        let first = (info.first_available_sync_object, info.first_available_monitor);
        equal(
            &format!("the first objects for users of die core {dcore}"),
            first,
            (0, 0),
        )?;
    }
    Ok(())
}

fn sync_no_such_dcore(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for dcore in [8, 9, u32::MAX] {
        refused(
            &format!("the sync manager of die core {dcore}"),
            io.query_with::<HlInfoSyncManager>(dcore),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn open_stats(bench: &mut Bench) -> Verdict {
    let stats: HlOpenStatsInfo = bench.io()?.query()?;
    holds("this user was counted", stats.open_counter >= 1, stats)?;
    equal("a user is active", stats.is_compute_ctx_active, 1)?;
    equal("a user is being released", stats.compute_ctx_in_release, 0)
}

fn dram_usage(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let before: HlInfoDramUsage = io.query()?;
    let one = Allocation::new(&io, 1)?;
    let two = Allocation::new(&io, 2 * gaudi2::DRAM_PAGE)?;
    let during: HlInfoDramUsage = io.query()?;
    equal("memory of the user", during.ctx_dram_mem, 3 * gaudi2::DRAM_PAGE)?;
    equal(
        "free memory",
        during.dram_free_mem,
        before.dram_free_mem - 3 * gaudi2::DRAM_PAGE,
    )?;
    drop((one, two));
    equal(
        "memory after both were freed",
        io.query::<HlInfoDramUsage>()?,
        before,
    )
}

fn device_status(bench: &mut Bench) -> Verdict {
    let status = bench.io()?.query::<HlInfoDeviceStatus>()?.status;
    equal(
        "the status of a device at work",
        status,
        DeviceStatus::OPERATIONAL,
    )
}

fn page_sizes(bench: &mut Bench) -> Verdict {
    let sizes: HlInfoDevMemallocPageSizes = bench.io()?.query()?;
    equal(
        "the mask of page sizes of a chip that has one size",
        sizes.page_order_bitmask,
        0,
    )
}

fn idle_while_waiting(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let idle =
        |when: &str, wanted: u32| -> Verdict { equal(when, io.query::<HlInfoHwIdle>()?.is_idle, wanted) };
    idle("idle before", 1)?;
    let gate = Gate::shut(&io, queue::PDMA_0_0)?;
    idle("idle while a stream waits", 0)?;
    gate.open()?;
    idle("idle after", 1)
}

fn counters(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let read = || io.query::<HlInfoCsCounters>();
    let before = read()?;
    let good = HlCsChunk::user(queue::PDMA_0_0.0, gaudi2::HOST_VA.start.0, 8);
    let no_such_queue = HlCsChunk {
        queue_index: queue::COUNT,
        ..good
    };
    let no_such_address = HlCsChunk { cb_handle: 8, ..good };
    refused(
        "a queue that there is not",
        submit(&*io, &[no_such_queue]),
        Errno::EINVAL,
    )?;
    let after = read()?;
    equal(
        "refusals by validation, the user's",
        after.ctx_validation_drop_cnt,
        before.ctx_validation_drop_cnt + 1,
    )?;
    equal(
        "refusals by validation, of all",
        after.total_validation_drop_cnt,
        before.total_validation_drop_cnt + 1,
    )?;
    refused(
        "an address that is none",
        submit(&*io, &[no_such_address]),
        Errno::EFAULT,
    )?;
    let after = read()?;
    equal(
        "refusals by parsing, the user's",
        after.ctx_parsing_drop_cnt,
        before.ctx_parsing_drop_cnt + 1,
    )?;
    equal(
        "refusals by parsing, of all",
        after.total_parsing_drop_cnt,
        before.total_parsing_drop_cnt + 1,
    )
}

fn counters_of_control(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let chunk = HlCsChunk::user(queue::COUNT, gaudi2::HOST_VA.start.0, 8);
    refused("a queue that there is not", submit(&*io, &[chunk]), Errno::EINVAL)?;
    let (own, other): (HlInfoCsCounters, HlInfoCsCounters) = (io.query()?, bench.control().query()?);
    equal(
        "the user's refusals as a control node tells them",
        other.ctx_validation_drop_cnt,
        0,
    )?;
    equal(
        "all refusals as both nodes tell them",
        other.total_validation_drop_cnt,
        own.total_validation_drop_cnt,
    )
}

fn time_goes_forward(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let first: HlInfoTimeSync = io.query()?;
    let second: HlInfoTimeSync = io.query()?;
    holds(
        "neither clock goes back",
        second.device_time >= first.device_time && second.host_time >= first.host_time,
        (first, second),
    )
}

fn time_of_open(bench: &mut Bench) -> Verdict {
    let time: HlInfoLastErrOpenDevTime = bench.io()?.query()?;
    holds("the time of the last open is known", time.timestamp > 0, time)
}

fn hw_events(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let events = io.query::<HlInfoHwIpInfo>()?.num_of_events as usize;
    let mut counts = vec![0xff; events.min(1 << 16) * 4];
    io.info(InfoRequest::new(InfoOp::HW_EVENTS), &mut counts)?;
    holds(
        "counters of events are filled in",
        counts.iter().any(|&byte| byte != 0xff),
        "not one",
    )
}

fn busy_engine(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let bit = |id: Gaudi2EngineId| 1_u64 << id.0;
    for (queue, engine) in [
        (queue::PDMA_0_0, Gaudi2EngineId::ENGINE_ID_PDMA_0),
        (edma(3)?, Gaudi2EngineId::DCORE1_ENGINE_ID_EDMA_1),
    ] {
        let gate = Gate::shut(&io, queue)?;
        let idle: HlInfoHwIdle = io.query()?;
        gate.open()?;
        equal(
            "the busy engine's bit",
            idle.busy_engines_mask_ext[0],
            bit(engine),
        )?;
        equal(
            "the same in the word of 32 bits",
            u64::from(idle.busy_engines_mask),
            bit(engine) & 0xffff_ffff,
        )?;
    }
    Ok(())
}

fn edma(instance: u8) -> Result<gaudi_seam::QueueId, Failure> {
    queue::edma(instance, 0).ok_or_else(|| Failure::new("an internal DMA engine's queue", "one", "none"))
}

fn engine_status(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut text = vec![0; 64 << 10];
    let size = io.info(InfoRequest::new(InfoOp::ENGINE_STATUS), &mut text)? as usize;
    holds("the text's size is told", size > 0 && size <= text.len(), size)?;
    let said = String::from_utf8_lossy(text.get(..size).unwrap_or_default());
    holds(
        "it speaks of engines",
        said.contains("TPC") && said.contains("idle"),
        &said,
    )?;
    holds(
        "nothing follows it",
        text.iter().skip(size).all(|&byte| byte == 0),
        size,
    )
}

fn engine_status_sizes(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for room in [0, 1, 1023, (1 << 20) + 1] {
        refused(
            &format!("engines' status in {room} bytes"),
            io.info(InfoRequest::new(InfoOp::ENGINE_STATUS), &mut vec![0; room]),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn of_firmware(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [
        InfoOp::TOTAL_ENERGY,
        InfoOp::POWER,
        InfoOp::PCI_COUNTERS,
        InfoOp::PLL_FREQUENCY,
        InfoOp::CLK_RATE,
        InfoOp::CLK_THROTTLE_REASON,
        InfoOp::DEVICE_UTILIZATION,
        InfoOp::DRAM_REPLACED_ROWS,
        InfoOp::DRAM_PENDING_ROWS,
    ] {
        io.info(InfoRequest::new(op), &mut [0; 256])?;
        refused(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
            Errno::EINVAL,
        )?;
    }
    let busy = io.query::<HlInfoDeviceUtilization>()?.utilization;
    holds("a device's utilization is per cent", busy <= 100, busy)
}

fn attestation(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let attest: HlInfoSecAttest = io.query_with(77)?;
    holds(
        "the lengths are those of the fields",
        usize::from(attest.pcr_quote_len) <= attest.pcr_quote.len()
            && usize::from(attest.certificate_len) <= attest.certificate.len(),
        (attest.pcr_quote_len, attest.certificate_len),
    )?;
    for op in [InfoOp::SECURED_ATTESTATION, InfoOp::DEV_SIGNED] {
        refused(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn signed(bench: &mut Bench) -> Verdict {
    let signed: HlInfoSigned = bench.io()?.query_with(78)?;
    equal("bytes of what is signed", signed.dev_info_len, 1768)
}

fn records_of_errors(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for op in [InfoOp::HW_ERR_EVENT, InfoOp::FW_ERR_EVENT] {
        let mut answer = [0xff; 64];
        io.info(InfoRequest::new(op), &mut answer)?;
        equal(
            &format!("{op} of a device without an error"),
            answer == [0; 64],
            true,
        )?;
    }
    Ok(())
}

fn firmware_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for arg in [3, 255, u32::MAX] {
        let request = InfoRequest {
            op: InfoOp::FW_GENERIC_REQ,
            arg,
        };
        refused(
            &format!("request {arg} to firmware"),
            io.info(request, &mut [0; 64]),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn firmware_too_large(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    refused(
        "a request of more than 1 MiB",
        io.info(
            InfoRequest::new(InfoOp::FW_GENERIC_REQ),
            &mut vec![0; (1 << 20) + 1],
        ),
        Errno::EINVAL,
    )
}
