//! Packets from end to end: what a program in a command buffer does to memory, sync objects and other streams.

use gaudi_seam::{DeviceVa, Errno, QueueId, SharedIo};
use gaudi_spec::gaudi2::packet::{LinDma, MsgLong, Nop};
use gaudi_spec::gaudi2::sync::{Compare, FIRST_USER_MONITOR, FIRST_USER_SOB, SobUpdate};
use gaudi_spec::gaudi2::{DRAM_PAGE, DRAM_VA, SRAM_BASE, queue};
use gaudi_uapi::cs::CsFlags;

use crate::bench::Bench;
use crate::case::{Case, Failure, Tag, Verdict, equal, refused, same_bytes};
use crate::rig::{
    Buffer, Dram, Gate, Host, LONG, PAGE_LEN, Program, fence_address, finish, offset, pattern, run,
    submit_with,
};

const RESET: &[Tag] = &[Tag::Lifecycle, Tag::Reset, Tag::Clock];

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2(
        "dma.host-to-device-and-back",
        "include/gaudi2/gaudi2_packets.h:156",
        there_and_back,
    ),
    Case::gaudi2(
        "dma.device-to-device",
        "include/gaudi2/gaudi2_packets.h:156",
        device_to_device,
    ),
    Case::gaudi2("dma.unaligned", "include/gaudi2/gaudi2_packets.h:159", unaligned),
    Case::gaudi2("dma.size-zero", "include/gaudi2/gaudi2_packets.h:157", size_zero),
    Case::gaudi2(
        "dma.across-pages-of-device-memory",
        "gaudi2/gaudi2.c:11532",
        across_pages,
    ),
    Case::gaudi2(
        "dma.across-pages-of-host-memory",
        "common/memory.c:951",
        across_host_pages,
    ),
    Case::gaudi2(
        "dma.overlap-downwards",
        "include/gaudi2/gaudi2_packets.h:156",
        overlap_downwards,
    ),
    Case::gaudi2("dma.memset", "include/gaudi2/gaudi2_packets.h:150", memset),
    Case::gaudi2(
        "dma.memset.unaligned",
        "include/gaudi2/gaudi2_packets.h:150",
        memset_unaligned,
    ),
    Case::gaudi2("dma.sram", "gaudi2/gaudi2.c:7145", sram),
    Case::gaudi2("dma.every-engine", "gaudi2/gaudi2.c:6880", every_engine),
    Case::gaudi2(
        "dma.two-mappings-of-one-memory",
        "common/memory.c:1128",
        two_mappings,
    ),
    Case::gaudi2(
        "dma.packets-of-a-buffer-in-order",
        "include/gaudi2/gaudi2_packets.h:43",
        packets_in_order,
    ),
    Case::gaudi2(
        "dma.buffers-of-a-stream-in-order",
        "common/hw_queue.c:211",
        buffers_in_order,
    ),
    Case::gaudi2(
        "dma.to-unmapped-address",
        "common/command_submission.c:816",
        to_unmapped,
    )
    .tagged(RESET),
    Case::gaudi2(
        "dma.from-unmapped-address",
        "common/command_submission.c:816",
        from_unmapped,
    )
    .tagged(RESET),
    Case::gaudi2("nop.does-nothing", "include/gaudi2/gaudi2_packets.h:65", nop),
    Case::gaudi2(
        "msg-long.host-memory",
        "include/gaudi2/gaudi2_packets.h:86",
        long_host,
    ),
    Case::gaudi2(
        "msg-long.device-memory",
        "include/gaudi2/gaudi2_packets.h:86",
        long_device,
    ),
    Case::gaudi2(
        "msg-long.releases-a-fence",
        "include/gaudi2/gaudi2_packets.h:86",
        long_fence,
    ),
    Case::gaudi2("sync.signal-before-wait", "gaudi2/gaudi2.c:11446", signal_first),
    Case::gaudi2("sync.wait-before-signal", "gaudi2/gaudi2.c:11446", wait_first),
    Case::gaudi2("sync.chain-of-three-streams", "gaudi2/gaudi2.c:11446", chain),
    Case::gaudi2(
        "sync.counts-up-to-its-target",
        "include/gaudi2/gaudi2_packets.h:107",
        counts_up,
    ),
    Case::gaudi2(
        "sync.compares-for-equality",
        "include/gaudi2/gaudi2_packets.h:104",
        equality,
    ),
    Case::gaudi2(
        "sync.monitor-writes-host-memory",
        "gaudi2/gaudi2.c:11446",
        monitor_to_host,
    ),
    Case::gaudi2("sync.monitor-fires-once", "gaudi2/gaudi2.c:11446", monitor_once),
    Case::gaudi2(
        "fence.holds-its-stream-only",
        "include/gaudi2/gaudi2_packets.h:139",
        fence_holds,
    ),
    Case::gaudi2(
        "fence.takes-off-what-it-says",
        "include/gaudi2/gaudi2_packets.h:127",
        fence_decrement,
    ),
    Case::gaudi2(
        "packet.unknown-opcode",
        "common/command_submission.c:816",
        unknown_opcode,
    )
    .tagged(RESET),
    Case::gaudi2("packet.cut-short", "common/command_submission.c:816", cut_short).tagged(RESET),
];

const Q: QueueId = queue::PDMA_0_0;
const DOWN: QueueId = queue::PDMA_1_0;
/// Sync objects and monitors of this file; gates have the first of each.
const SOB: u32 = FIRST_USER_SOB + 8;
const MONITOR: u32 = FIRST_USER_MONITOR + 8;

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

/// Puts bytes into device memory, and reads them, by DMA.
struct Window<'a> {
    io: &'a SharedIo,
    memory: Dram,
    host: Host,
}

impl<'a> Window<'a> {
    fn new(io: &'a SharedIo, size: u64) -> Result<Self, Failure> {
        Ok(Self {
            io,
            memory: Dram::new(io, size)?,
            host: Host::new(io, 4 * PAGE_LEN)?,
        })
    }

    fn at(&self, at: u64) -> DeviceVa {
        offset(self.memory.va(), at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Verdict {
        self.host.memory.write(0, bytes)?;
        run(
            self.io,
            Q,
            Program::new().copy(self.at(at), self.host.va, bytes.len() as u32),
        )
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        self.host.memory.fill(0, len, 0xdd)?;
        run(
            self.io,
            Q,
            Program::new().copy(self.host.va, self.at(at), len as u32),
        )?;
        self.host.bytes(0, len)
    }
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
    // The two pages need not lie in a row on the chip, but do where they are mapped.
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
    // To a lower address: right for any engine that goes upwards. What the chip does the other way is in no public text.
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
    // The engine barrier has the message wait for the copies.
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

/// Runs a program that must never end, until the driver gives it up; then closes.
fn hangs(bench: &mut Bench, io: SharedIo, what: &str, bytes: &[u8]) -> Verdict {
    let buffer = Buffer::of_bytes(&io, bytes)?;
    let seq = submit_with(&*io, &[buffer.chunk(Q)], CsFlags::NONE, Some(1))?;
    refused(what, io.wait_cs(seq, LONG), Errno::ETIMEDOUT)?;
    drop((buffer, io));
    bench.reopen().map(drop)
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
    // The device is reset before the memory can be unmapped: the close does it.
    mapping.leave();
    hangs(
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
    hangs(
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

fn nop(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let program = Program::new().nop().nop().long(MsgLong::new(target.va, 1)).nop();
    run(&io, Q, program)?;
    same_bytes("a store among NOPs", &target.bytes(0, 4)?, &1_u32.to_le_bytes())
}

fn long_host(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    target.memory.fill(0, 16, 0xcc)?;
    run(
        &io,
        Q,
        Program::new().long(MsgLong::new(offset(target.va, 4), 0x0102_0304)),
    )?;
    let expected = [[0xcc; 4], 0x0102_0304_u32.to_le_bytes(), [0xcc; 4]].concat();
    same_bytes("a word among others", &target.bytes(0, 12)?, &expected)
}

fn long_device(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.write(0, &[0xcc; 12])?;
    run(
        &io,
        Q,
        Program::new().long(MsgLong::new(window.at(4), 0x0102_0304)),
    )?;
    let expected = [[0xcc; 4], 0x0102_0304_u32.to_le_bytes(), [0xcc; 4]].concat();
    same_bytes("a word among others", &window.read(0, 12)?, &expected)
}

fn long_fence(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let held = Buffer::new(&io, Program::new().fence(1, 2, 2)?)?;
    let seq = held.submit(Q)?;
    let release = MsgLong::new(fence_address(Q, 1)?, 1);
    run(&io, DOWN, Program::new().long(release).long(release))?;
    finish(&*io, seq)
}

/// A stream that stores a word when a sync object has been set, and the one that sets it.
fn signaller_and_waiter(io: &SharedIo, word: DeviceVa) -> Result<(Buffer, Buffer), Failure> {
    let signal = Program::new().sob(SOB, SobUpdate::add_signed(1))?;
    let wait = Program::new()
        .wait_for(DOWN, MONITOR, SOB, 1)?
        .sob(SOB, SobUpdate::set(0))?
        .long(MsgLong::new(word, 0x600d));
    Ok((Buffer::new(io, signal)?, Buffer::new(io, wait)?))
}

fn in_this_order(bench: &mut Bench, signal_first: bool) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let (signal, wait) = signaller_and_waiter(&io, target.va)?;
    let seqs = if signal_first {
        [signal.submit(Q)?, wait.submit(DOWN)?]
    } else {
        [wait.submit(DOWN)?, signal.submit(Q)?]
    };
    for seq in seqs.into_iter().rev() {
        finish(&*io, seq)?;
    }
    finish(&*io, seqs[0])?;
    same_bytes(
        "what the waiting stream stored",
        &target.bytes(0, 4)?,
        &0x600d_u32.to_le_bytes(),
    )
}

fn signal_first(bench: &mut Bench) -> Verdict {
    in_this_order(bench, true)
}

fn wait_first(bench: &mut Bench) -> Verdict {
    in_this_order(bench, false)
}

fn chain(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let window = Window::new(&io, 1)?;
    window.host.memory.write(0, &pattern(256, 18))?;
    let back = offset(window.host.va, 4096);
    let edma = queue::edma(0, 0).unwrap_or(Q);
    let add = SobUpdate::add_signed(1);
    // Barriers: a signal must not pass the copy before it.
    let up = Program::new()
        .copy(window.at(0), window.host.va, 256)
        .barrier()
        .sob(SOB, add)?;
    let across = Program::new()
        .wait_for(edma, MONITOR, SOB, 1)?
        .copy(window.at(4096), window.at(0), 256)
        .barrier()
        .sob(SOB + 8, add)?;
    let down = Program::new()
        .wait_for(DOWN, MONITOR + 1, SOB + 8, 1)?
        .copy(back, window.at(4096), 256)
        .sob(SOB, SobUpdate::set(0))?
        .sob(SOB + 8, SobUpdate::set(0))?;
    let buffers = [
        Buffer::new(&io, down)?,
        Buffer::new(&io, across)?,
        Buffer::new(&io, up)?,
    ];
    let seqs = [
        buffers[0].submit(DOWN)?,
        buffers[1].submit(edma)?,
        buffers[2].submit(Q)?,
    ];
    seqs.into_iter().rev().try_for_each(|seq| finish(&*io, seq))?;
    same_bytes(
        "bytes through three streams",
        &window.host.bytes(PAGE_LEN, 256)?,
        &pattern(256, 18),
    )
}

fn counts_up(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let wait = Program::new()
        .wait_for(DOWN, MONITOR, SOB, 3)?
        .sob(SOB, SobUpdate::set(0))?;
    let wait = Buffer::new(&io, wait)?;
    let held = wait.submit(DOWN)?;
    for number in 1..=3 {
        let answer = io.wait_cs(held, std::time::Duration::ZERO)?;
        equal(
            &format!("a wait for 3 before signal {number}"),
            answer.status,
            gaudi_seam::WaitStatus::Busy,
        )?;
        run(&io, Q, Program::new().sob(SOB, SobUpdate::add_signed(1))?)?;
    }
    finish(&*io, held)
}

fn equality(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::Equal, 2);
    run(&io, Q, Program::new().monitor(MONITOR, watch, target.va, 0x600d)?)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(3))?)?;
    let above = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(2))?)?;
    let at = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what a monitor for == 2 writes at 3", &above, &[0; 4])?;
    same_bytes("what it writes at 2", &at, &0x600d_u32.to_le_bytes())
}

fn monitor_to_host(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::AtLeast, 5);
    let program = Program::new()
        .monitor(MONITOR, watch, offset(target.va, 8), 0xfeed)?
        .sob(SOB, SobUpdate::set(4))?;
    run(&io, Q, program)?;
    let before = target.bytes(8, 4)?;
    run(&io, DOWN, Program::new().sob(SOB, SobUpdate::add_signed(7))?)?;
    let after = target.bytes(8, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what a monitor for 5 writes at 4", &before, &[0; 4])?;
    same_bytes("what it writes at 11", &after, &0xfeed_u32.to_le_bytes())
}

fn monitor_once(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let watch = (SOB, Compare::AtLeast, 1);
    run(&io, Q, Program::new().monitor(MONITOR, watch, target.va, 7)?)?;
    let add = || Program::new().sob(SOB, SobUpdate::add_signed(1));
    run(&io, Q, add()?)?;
    let first = target.bytes(0, 4)?;
    target.memory.fill(0, 4, 0)?;
    run(&io, Q, add()?)?;
    let second = target.bytes(0, 4)?;
    run(&io, Q, Program::new().sob(SOB, SobUpdate::set(0))?)?;
    same_bytes("what an armed monitor writes", &first, &7_u32.to_le_bytes())?;
    same_bytes(
        "what it writes when it has fired and is not armed again",
        &second,
        &[0; 4],
    )
}

fn fence_holds(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let target = Host::new(&io, PAGE_LEN)?;
    let gate = Gate::shut(&io, Q)?;
    let store = |at: u64| Program::new().long(MsgLong::new(offset(target.va, at), 1));
    let behind = Buffer::new(&io, store(0))?;
    let seq = behind.submit(Q)?;
    // The other stream of the same engine goes on.
    let beside = run(&io, queue::PDMA_0_1, store(4));
    let seen = target.bytes(0, 8);
    gate.open()?;
    finish(&*io, seq)?;
    beside?;
    same_bytes(
        "stores behind and beside a closed fence",
        &seen?,
        &[0, 0, 0, 0, 1, 0, 0, 0],
    )?;
    same_bytes("the store behind it when it is open", &target.bytes(0, 1)?, &[1])
}

fn fence_decrement(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let add = |by| fence_address(Q, 1).map(|at| Program::new().long(MsgLong::new(at, by)));
    run(&io, DOWN, add(5)?)?;
    // 5 are there: 3 of them are taken, then the other 2; each fence would wait for ever if the one before took more.
    run(&io, Q, Program::new().fence(1, 5, 3)?.fence(1, 2, 2)?)?;
    let last = Buffer::new(&io, Program::new().fence(1, 1, 1)?)?;
    let seq = last.submit(Q)?;
    let answer = io.wait_cs(seq, std::time::Duration::from_millis(20));
    run(&io, DOWN, add(1)?)?;
    finish(&*io, seq)?;
    equal(
        "a fence of which nothing is left",
        answer?.status,
        gaudi_seam::WaitStatus::Busy,
    )
}

fn unknown_opcode(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Opcode 0 and 0x1f are none of the header's.
    hangs(bench, io, "a buffer of zeros, which is opcode 0", &[0; 16])?;
    let io = bench.io()?;
    let bytes = [0, 0, 0, 0, 0, 0, 0, 0x1f];
    hangs(bench, io, "opcode 0x1f", &bytes)
}

fn cut_short(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let copy = LinDma::copy(DRAM_VA.start, DRAM_VA.start, 64).to_bytes();
    let mut bytes = Nop::new().to_bytes().to_vec();
    bytes.extend_from_slice(&copy[..16]);
    hangs(bench, io, "a buffer that ends inside a packet", &bytes)
}
