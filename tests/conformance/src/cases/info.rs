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
use crate::case::cases;
use crate::rig::{Allocation, Gate, submit};
use crate::verdict::{Failure, Verdict, equal, holds, invalid, refused, same_bytes};

cases! {
    "info.identity", "common/habanalabs_ioctl.c:hw_ip_info" => identity;
    "info.memory-map", "common/habanalabs_ioctl.c:hw_ip_info" => memory_map;
    "info.unknown-operation", "common/habanalabs_ioctl.c:_hl_info_ioctl" => unknown_operation;
    "info.answer-without-room", "common/habanalabs_ioctl.c:hw_ip_info" => answer_without_room;
    "info.rooms", "common/habanalabs_ioctl.c:razwi_info" => rooms;
    "info.short-answer", "common/habanalabs_ioctl.c:hw_ip_info" => short_answer;
    "info.long-answer", "common/habanalabs_ioctl.c:hw_ip_info" => long_answer;
    "info.sync-manager.first-free", "common/habanalabs_ioctl.c:sync_manager_info" => sync_first_free;
    "info.sync-manager.spare-dcores", "common/habanalabs_ioctl.c:sync_manager_info" => sync_spare_dcores;
    "info.sync-manager.no-such-dcore", "common/habanalabs_ioctl.c:sync_manager_info" => sync_no_such_dcore;
    "info.open-stats", "common/habanalabs_ioctl.c:open_stats_info" => open_stats;
    "info.dram-usage", "common/habanalabs_ioctl.c:dram_usage_info" => dram_usage;
    "info.device-status", "common/habanalabs_ioctl.c:device_status_info" => device_status;
    "info.page-sizes", "common/habanalabs_ioctl.c:dev_mem_alloc_page_sizes_info" => page_sizes;
    "info.idle.while-a-stream-waits", "common/habanalabs_ioctl.c:hw_idle" => idle_while_waiting;
    "info.counters.of-refused-submissions", "common/habanalabs_ioctl.c:cs_counters_info" => counters;
    "info.counters.of-control-node", "common/habanalabs_ioctl.c:cs_counters_info" => counters_of_control;
    "info.time-goes-forward", "common/habanalabs_ioctl.c:time_sync_info" => time_goes_forward;
    "info.time-of-open", "common/habanalabs_ioctl.c:last_err_open_dev_info" => time_of_open;
    "info.hw-events", "common/habanalabs_ioctl.c:hw_events_info" => hw_events;
    "info.busy-engine-by-number", "gaudi2/gaudi2.c:gaudi2_is_device_idle" => busy_engine;
    "info.engine-status", "common/habanalabs_ioctl.c:engine_status_info" => engine_status;
    "info.engine-status.size-of-answer", "common/habanalabs_ioctl.c:engine_status_info" => engine_status_sizes;
    "info.of-firmware", "gaudi2/gaudi2.c:gaudi2_send_cpu_message" => of_firmware;
    "info.attestation", "common/habanalabs_ioctl.c:sec_attest_info" => attestation;
    "info.signed", "common/habanalabs_ioctl.c:dev_info_signed" => signed;
    "info.records-of-errors", "common/habanalabs_ioctl.c:hw_err_info" => records_of_errors;
    "info.firmware-request.unknown", "common/habanalabs_ioctl.c:send_fw_generic_request" => firmware_unknown;
    "info.firmware-request.too-large", "common/habanalabs_ioctl.c:send_fw_generic_request" => firmware_too_large;
}

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
        "bytes of device memory reserved by the driver",
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
        invalid(
            &format!("INFO operation {op}, which there is not"),
            io.info(InfoRequest::new(InfoOp(op)), &mut [0; 64]),
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
        invalid(
            &format!("{op} with an answer of 0 bytes"),
            io.info(InfoRequest::new(op), &mut []),
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
        invalid(
            &format!("{op} with an answer of 0 bytes"),
            io.info(InfoRequest::new(op), &mut []),
        )?;
        io.info(InfoRequest::new(op), &mut [0; 8]).map(drop)?;
    }
    Ok(())
}

fn short_answer(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut whole = [0; size_of::<HlInfoHwIpInfo>()];
    io.info(InfoRequest::new(InfoOp::HW_IP_INFO), &mut whole)?;
    // 256 bytes are the size of the struct in Linux 6.1.
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
    // The driver's table has eight die cores; Gaudi2 has four, and 1 to 3 belong to the user.
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
        invalid(
            &format!("the sync manager of die core {dcore}"),
            io.query_with::<HlInfoSyncManager>(dcore),
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
    invalid("a queue that there is not", submit(&*io, &[no_such_queue]))?;
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
        "a query with an invalid address",
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
    invalid("a queue that there is not", submit(&*io, &[chunk]))?;
    let (own, other): (HlInfoCsCounters, HlInfoCsCounters) = (io.query()?, bench.control().query()?);
    equal(
        "the user's refusals as a control node reports them",
        other.ctx_validation_drop_cnt,
        0,
    )?;
    equal(
        "all refusals as both nodes report them",
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
    let mut answer = vec![0; 64 << 10];
    let size = io.info(InfoRequest::new(InfoOp::ENGINE_STATUS), &mut answer)? as usize;
    holds(
        "the answer has the text's size",
        size > 0 && size <= answer.len(),
        size,
    )?;
    let text = String::from_utf8_lossy(answer.get(..size).unwrap_or_default());
    holds(
        "the text describes engines",
        text.contains("TPC") && text.contains("idle"),
        &text,
    )?;
    holds(
        "the bytes after the text are zero",
        answer.iter().skip(size).all(|&byte| byte == 0),
        size,
    )
}

fn engine_status_sizes(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for room in [0, 1, 1023, (1 << 20) + 1] {
        invalid(
            &format!("engines' status in {room} bytes"),
            io.info(InfoRequest::new(InfoOp::ENGINE_STATUS), &mut vec![0; room]),
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
        invalid(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
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
        invalid(
            &format!("{op} without room for an answer"),
            io.info(InfoRequest::new(op), &mut []),
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
        invalid(
            &format!("request {arg} to firmware"),
            io.info(request, &mut [0; 64]),
        )?;
    }
    Ok(())
}

fn firmware_too_large(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    invalid(
        "a request of more than 1 MiB",
        io.info(
            InfoRequest::new(InfoOp::FW_GENERIC_REQ),
            &mut vec![0; (1 << 20) + 1],
        ),
    )
}
