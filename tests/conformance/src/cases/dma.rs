//! Copies and fills by the DMA engines, from end to end.

use gaudi_seam::{DeviceVa, QueueId};
use gaudi_spec::gaudi2::packet::{EndianSwap, LinDma, MsgLong};
use gaudi_spec::gaudi2::{DRAM_PAGE, DRAM_VA, SRAM_BASE, queue};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, Dram, Host, PAGE_LEN, Program, Window, finish, never_ends, offset, pattern, run};
use crate::verdict::{Verdict, same_bytes};

cases! {
    "dma.host-to-device-and-back", "include/gaudi2/gaudi2_packets.h:packet_lin_dma" => there_and_back;
    "dma.device-to-device", "include/gaudi2/gaudi2_packets.h:packet_lin_dma" => device_to_device;
    "dma.unaligned", "include/gaudi2/gaudi2_packets.h:packet_lin_dma" => unaligned;
    "dma.size-zero", "include/gaudi2/gaudi2_packets.h:packet_lin_dma" => size_zero;
    "dma.across-pages-of-device-memory", "gaudi2/gaudi2.c:gaudi2_mmu_scramble_addr" => across_pages;
    "dma.across-pages-of-host-memory", "common/memory.c:map_phys_pg_pack" => across_host_pages;
    "dma.overlap-downwards", "include/gaudi2/gaudi2_packets.h:packet_lin_dma" => overlap_downwards;
    "dma.memset", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_LIN_DMA_CTL_MEMSET_SHIFT" => memset;
    "dma.memset.unaligned", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_LIN_DMA_CTL_MEMSET_SHIFT" => memset_unaligned;
    "dma.endian-swap", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_LIN_DMA_CTL_ENDIAN_SHIFT" => endian_swap;
    "dma.sram", "gaudi2/gaudi2.c:gaudi2_validate_cb_address" => sram;
    "dma.every-engine", "gaudi2/gaudi2.c:gaudi2_is_queue_enabled" => every_engine;
    "dma.two-mappings-of-one-memory", "common/memory.c:map_device_va" => two_mappings;
    "dma.packets-of-a-buffer-in-order", "include/gaudi2/gaudi2_packets.h:GAUDI2_PKT_CTL_EB_SHIFT" => packets_in_order;
    "dma.buffers-of-a-stream-in-order", "common/hw_queue.c:hl_hw_queue_schedule_cs" => buffers_in_order;
    "dma.to-unmapped-address", "common/command_submission.c:cs_timedout" => to_unmapped [Lifecycle, Reset];
    "dma.from-unmapped-address", "common/command_submission.c:cs_timedout" => from_unmapped [Lifecycle, Reset];
}

const Q: QueueId = queue::PDMA_0_0;
const DOWN: QueueId = queue::PDMA_1_0;

fn there_and_back(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for size in [1, 7, 64, 128, 4096, 4097, 1 << 20] {
        let (up, down) = (Host::new(&io, size)?, Host::new(&io, size)?);
        let bytes = pattern(size, 5);
        up.memory.write(0, &bytes)?;
        run(&io, Q, Program::new().copy(memory.va(), up.va, size as u32))?;
        run(&io, DOWN, Program::new().copy(down.va, memory.va(), size as u32))?;
        same_bytes(
            &format!("{size} bytes, up and down"),
            &down.bytes(0, size)?,
            &bytes,
        )?;
    }
    Ok(())
}

fn device_to_device(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let bytes = pattern(5000, 6);
    window.write(0, &bytes)?;
    let edma = queue::edma(1, 0).unwrap_or(Q);
    run(
        &io,
        edma,
        Program::new().copy(window.at(1 << 20), window.at(0), 5000),
    )?;
    same_bytes(
        "a copy within device memory",
        &window.read(1 << 20, 5000)?,
        &bytes,
    )
}

fn unaligned(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let bytes = pattern(3 * PAGE_LEN, 7);
    let (from, to) = (13_usize, 4093_u64);
    window.write(0, &[0; 12_288])?;
    window.host.memory.write(0, &bytes)?;
    run(
        &io,
        Q,
        Program::new().copy(window.at(to), offset(window.host.va, from as u64), 5001),
    )?;
    let seen = window.read(to - 1, 5003)?;
    same_bytes("the copied bytes", &seen[1..5002], &bytes[from..from + 5001])?;
    same_bytes("the bytes on either side", &[seen[0], seen[5002]], &[0, 0])
}

fn size_zero(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.write(0, &pattern(64, 8))?;
    run(&io, Q, Program::new().copy(window.at(0), window.host.va, 0))?;
    same_bytes(
        "memory after a copy of 0 bytes",
        &window.read(0, 64)?,
        &pattern(64, 8),
    )
}

fn across_pages(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // The two pages may be discontiguous on the chip, but their mapping is contiguous.
    let window = Window::new(&io, 2 * DRAM_PAGE)?;
    let bytes = pattern(PAGE_LEN, 9);
    window.write(DRAM_PAGE - 100, &bytes)?;
    same_bytes(
        "bytes across two pages",
        &window.read(DRAM_PAGE - 100, PAGE_LEN)?,
        &bytes,
    )
}

fn across_host_pages(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let memory = gaudi_seam::RawMapping::anonymous(6 * PAGE_LEN, true)?;
    let bytes = pattern(4 * PAGE_LEN, 10);
    memory.write(1000, &bytes)?;
    let host = Host::of(&io, memory, 1000, 4 * PAGE_LEN, None, false)?;
    run(
        &io,
        Q,
        Program::new().copy(window.at(0), host.va, 4 * PAGE_LEN as u32),
    )?;
    same_bytes(
        "host memory that starts inside a page",
        &window.read(0, 4 * PAGE_LEN)?,
        &bytes,
    )
}

fn overlap_downwards(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let bytes = pattern(8192, 11);
    window.write(0, &bytes)?;
    // To a lower address: correct for an engine that copies upwards. No public text defines an
    // overlapping copy to a higher address.
    run(&io, Q, Program::new().copy(window.at(0), window.at(100), 8092))?;
    same_bytes("a move to a lower address", &window.read(0, 8092)?, &bytes[100..])
}

fn memset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    for (word, size) in [(0, 4096), (0x1234_5678_u32, 4), (0xdead_beef, 8192)] {
        window.write(0, &pattern(8200, 12))?;
        run(
            &io,
            Q,
            Program::new().dma(LinDma::memset(window.at(0), word, size)),
        )?;
        let seen = window.read(0, size as usize + 8)?;
        let mut expected = word.to_le_bytes().repeat(size as usize / 4);
        expected.extend_from_slice(&pattern(8200, 12)[size as usize..size as usize + 8]);
        same_bytes(&format!("{size} bytes filled with {word:#x}"), &seen, &expected)?;
    }
    Ok(())
}

fn memset_unaligned(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.write(0, &[0; 64])?;
    run(
        &io,
        Q,
        Program::new().dma(LinDma::memset(window.at(3), 0x5a5a_5a5a, 21)),
    )?;
    let mut expected = [0; 64];
    expected[3..24].fill(0x5a);
    same_bytes("21 bytes filled from byte 3", &window.read(0, 64)?, &expected)
}

fn endian_swap(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let bytes = pattern(4096, 11);
    for (swap, group) in [
        (EndianSwap::Two, 2),
        (EndianSwap::Four, 4),
        (EndianSwap::Eight, 8),
    ] {
        window.write(0, &bytes)?;
        let copy = LinDma::copy(window.at(8192), window.at(0), 4096).with_swap(swap);
        run(&io, queue::PDMA_0_0, Program::new().dma(copy))?;
        let mut expected = bytes.clone();
        expected.chunks_exact_mut(group).for_each(<[u8]>::reverse);
        same_bytes(
            &format!("bytes turned round in groups of {group}"),
            &window.read(8192, 4096)?,
            &expected,
        )?;
    }
    Ok(())
}

fn sram(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let host = Host::new(&io, 2 * PAGE_LEN)?;
    let bytes = pattern(PAGE_LEN, 13);
    host.memory.write(0, &bytes)?;
    let at = DeviceVa(SRAM_BASE.0 + 77 * 4096);
    run(&io, Q, Program::new().copy(at, host.va, 4096))?;
    run(&io, Q, Program::new().copy(offset(host.va, 4096), at, 4096))?;
    same_bytes("bytes through the SRAM", &host.bytes(PAGE_LEN, PAGE_LEN)?, &bytes)
}

fn every_engine(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let edmas = (0..queue::EDMAS).filter_map(|engine| queue::edma(engine, engine % 4));
    for (seed, queue) in (0..).zip([Q, queue::PDMA_0_1, DOWN].into_iter().chain(edmas)) {
        let bytes = pattern(1000, seed);
        window.write(0, &bytes)?;
        run(
            &io,
            queue,
            Program::new().copy(window.at(8192), window.at(0), 1000),
        )?;
        same_bytes(
            &format!("a copy by queue {queue}"),
            &window.read(8192, 1000)?,
            &bytes,
        )?;
    }
    Ok(())
}

fn two_mappings(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    let other = window.memory.allocation.map()?;
    let bytes = pattern(500, 14);
    window.write(1000, &bytes)?;
    run(
        &io,
        Q,
        Program::new().copy(window.host.va, offset(other.va, 1000), 500),
    )?;
    same_bytes(
        "what one mapping wrote, through the other",
        &window.host.bytes(0, 500)?,
        &bytes,
    )
}

fn packets_in_order(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.host.memory.write(0, &pattern(64, 15))?;
    let back = offset(window.host.va, 4096);
    // The engine barrier makes the message wait for the copies.
    let done = MsgLong::new(offset(back, 64), 0x600d).with_engine_barrier(true);
    let program = Program::new()
        .copy(window.at(0), window.host.va, 64)
        .copy(window.at(64), window.at(0), 64)
        .copy(back, window.at(64), 64)
        .long(done);
    run(&io, Q, program)?;
    let seen = window.host.bytes(PAGE_LEN, 68)?;
    same_bytes(
        "three copies, each of the one before",
        &seen[..64],
        &pattern(64, 15),
    )?;
    same_bytes("the message after them", &seen[64..], &0x600d_u32.to_le_bytes())
}

fn buffers_in_order(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let buffers = (1..=16)
        .map(|value| Buffer::new(&io, Program::new().long(MsgLong::new(target.va, value))))
        .collect::<Result<Vec<_>, _>>()?;
    let seqs = buffers
        .iter()
        .map(|buffer| buffer.submit(Q))
        .collect::<Result<Vec<_>, _>>()?;
    seqs.into_iter().try_for_each(|seq| finish(&*io, seq))?;
    same_bytes(
        "the word that 16 buffers stored",
        &target.bytes(0, 4)?,
        &16_u32.to_le_bytes(),
    )
}

fn to_unmapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let host = Host::new(&io, PAGE_LEN)?;
    host.memory.write(0, &pattern(PAGE_LEN, 16))?;
    let nowhere = offset(DRAM_VA.start, 500 * DRAM_PAGE);
    let program = Program::new()
        .copy(nowhere, host.va, 64)
        .long(MsgLong::new(host.va, 0).with_engine_barrier(true));
    let Host { mapping, memory, .. } = host;
    // The reset prevents an unmap; the close unmaps the memory.
    mapping.leave();
    never_ends(
        bench,
        io,
        "a copy to an address where nothing is mapped",
        &program.bytes(),
    )?;
    let mut seen = vec![0; PAGE_LEN];
    memory.read(0, &mut seen)?;
    same_bytes(
        "memory that the copy and what follows it leave alone",
        &seen,
        &pattern(PAGE_LEN, 16),
    )
}

fn from_unmapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let host = Host::new(&io, PAGE_LEN)?;
    host.memory.write(0, &pattern(PAGE_LEN, 17))?;
    let nowhere = offset(DRAM_VA.start, 500 * DRAM_PAGE);
    let program = Program::new().copy(host.va, nowhere, 64);
    let Host { mapping, memory, .. } = host;
    mapping.leave();
    never_ends(
        bench,
        io,
        "a copy from an address where nothing is mapped",
        &program.bytes(),
    )?;
    let mut seen = vec![0; PAGE_LEN];
    memory.read(0, &mut seen)?;
    same_bytes(
        "the memory that it would have filled",
        &seen,
        &pattern(PAGE_LEN, 17),
    )
}
