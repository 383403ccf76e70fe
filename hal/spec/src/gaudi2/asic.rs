//! The row of the table.

use super::packet::Packets;
use super::{block, driver, map, queue, sync};
use crate::addr::DeviceVa;
use crate::asic::{
    Asic, BlockTable, Components, DebugRow, EnabledRow, EngineTable, EventTable, PrintPacket, SyncRow,
    SyncStreamRow,
};

/// Gaudi2 in the table of chips.
pub static ASIC: Asic = Asic {
    name: "gaudi2",
    vendor: map::VENDOR,
    device: map::DEVICE,
    revisions: map::REVISIONS,
    card_name: map::CARD_NAME,
    cfg_base: map::CFG_BASE,
    cfg_size: map::CFG_SIZE,
    sram_base: map::SRAM_BASE,
    sram_size: map::SRAM_SIZE,
    dram_base: map::DRAM_PHYS_BASE,
    dram_size: map::DRAM_SIZE,
    dram_reserved: map::DRAM_RESERVED,
    dram_page: map::DRAM_PAGE,
    dram_va: map::DRAM_VA,
    dram_va_reserved: map::DRAM_VA_RESERVED,
    dram_fault_range: DeviceVa(map::DRAM_PHYS_BASE.0)..map::VA_HBM_SPACE_END,
    dram_fault_mask: driver::DRAM_FAULT_MASK,
    host_va: map::HOST_VA,
    host_va_reserved: map::HOST_VA_RESERVED,
    host_huge_va: map::HOST_HUGE_VA,
    host_huge_va_reserved: map::HOST_HUGE_VA_RESERVED,
    queue_count: queue::COUNT,
    queue_streams: queue::STREAMS,
    queue: queue::row,
    queue_depth: map::QUEUE_DEPTH,
    max_pending_cs: map::MAX_PENDING_CS,
    max_dma: map::MAX_DMA,
    cache_line: map::CACHE_LINE,
    plls: driver::PLLS,
    sync: SyncRow {
        dcores: sync::DCORES,
        sobs: sync::SOBS,
        monitors: sync::MONITORS,
        cqs: sync::CQS,
        first_user_sob: sync::FIRST_USER_SOB,
        first_user_monitor: sync::FIRST_USER_MONITOR,
        first_user_cq: sync::FIRST_USER_CQ,
    },
    sync_stream: SyncStreamRow {
        queues: driver::SYNC_STREAMS,
        stream: driver::sync_stream,
        first_sob: sync::FIRST_USER_SOB - driver::SYNC_STREAMS * driver::STREAM_SOBS,
        signal: driver::signal_commands,
        wait: driver::wait_commands,
    },
    interrupts: map::INTERRUPTS,
    user_interrupts: map::USER_INTERRUPTS,
    decoders: driver::DECODERS,
    tpc_assert_interrupt: driver::TPC_ASSERT,
    eq_error_interrupt: driver::EQ_ERROR,
    enabled: EnabledRow {
        decoders: 0x3ff,
        tpcs: 0x1ff_ffff,
        edmas: 0xff,
        rotators: 0b11,
    },
    engines: EngineTable {
        count: driver::ENGINES,
        cores: block::ARCS,
        id: driver::engine_id,
        stallable: driver::stallable_engine,
    },
    events: EventTable {
        count: driver::EVENTS,
        queue_error: driver::queue_error_event,
        razwi: driver::razwi_event,
        dram_page_fault: super::firmware::event::HMMU0_PAGE_FAULT,
        host_page_fault: super::firmware::event::PMMU_PAGE_FAULT,
        sync_error: super::firmware::event::SM0_AXI_ERROR,
        corrected_error: super::firmware::event::TPC0_ECC_SERR,
        uncorrected_error: super::firmware::event::TPC0_ECC_DERR,
        thermal_start: super::firmware::event::FIX_THERMAL_ENV_S,
        thermal_end: super::firmware::event::FIX_THERMAL_ENV_E,
    },
    blocks: BlockTable {
        at: block::at,
        block: block::block,
    },
    debug: DebugRow {
        stms: Components(139, 91..93),
        etfs: Components(141, 91..93),
        funnels: Components(141, 90..92),
        bmons: Components(385, 276..280),
        spmus: Components(137, 90..92),
        spmu_counters: 6,
    },
    packets: print_packets,
};

fn print_packets(bytes: &[u8], print: &mut PrintPacket<'_>) -> usize {
    let mut packets = Packets::new(bytes);
    let mut end = 0;
    while let Some(Ok((_, packet))) = packets.next() {
        if !print(&format_args!("{packet:?}")) {
            break;
        }
        end = packets.offset();
    }
    end
}

#[cfg(test)]
mod tests {
    use super::super::map::*;
    use super::ASIC;
    use crate::addr::{DevicePa, DeviceVa};

    const MIB: u64 = 1 << 20;

    #[test]
    fn derived_numbers_match_a_running_driver() {
        assert_eq!(
            DRAM_VA.start,
            DeviceVa(0x1001_0018_0000_0000),
            "user DRAM VA starts after 96 GiB"
        );
        assert_eq!(ASIC.dram_user_size(), 97_536 * MIB, "user memory is 97 536 MiB");
        assert_eq!(
            ASIC.dram_user_base(),
            DevicePa(0x1001_0000_3000_0000),
            "user memory starts 768 MiB in"
        );
        assert_eq!(ASIC.dram_user_size() % DRAM_PAGE, 0, "user memory is whole pages");
        assert!(DRAM_VA.end.0 <= VA_HBM_SPACE_END.0 && DRAM_VA.len() % DRAM_PAGE == 0);
        assert!(
            HOST_VA.contains(DOORBELL_VA, DOORBELL_SIZE),
            "the doorbell lies among host addresses"
        );
    }

    #[test]
    fn a_range_takes_no_wrapping_length() {
        assert!(HOST_VA.contains(HOST_VA.start, HOST_VA.len()));
        assert!(!HOST_VA.contains(HOST_VA.start, HOST_VA.len() + 1));
        assert!(
            !HOST_VA.contains(DeviceVa(u64::MAX), 2),
            "a wrapping length is outside"
        );
    }
}
