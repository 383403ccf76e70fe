//! `HL_MEM_OP_EXPORT_DMABUF_FD`.

use std::os::fd::{AsFd, OwnedFd};

use gaudi_seam::{DeviceVa, Errno, ErrorKind, ExportRequest, RawMapping, RegisterDmabuf, SharedIo};
use gaudi_spec::gaudi2::{DRAM_PAGE, DRAM_VA, queue};
use gaudi_sys::fd::duplicate;
use gaudi_sys::{PAGE, standin};

use crate::bench::Bench;
use crate::case::{Case, Failure, Verdict, equal, refused, same_bytes};
use crate::rig::{Allocation, Dram, Host, PAGE_LEN, Program, offset, pattern, run};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2("export.size-zero", "common/memory.c:1907", size_zero),
    Case::gaudi2("export.unaligned-size", "common/memory.c:1907", unaligned_size),
    Case::gaudi2(
        "export.unaligned-offset",
        "common/memory.c:1914",
        unaligned_offset,
    ),
    Case::gaudi2(
        "export.unaligned-address",
        "common/memory.c:1900",
        unaligned_address,
    ),
    Case::gaudi2("export.past-the-end", "common/memory.c:1967", past_end),
    Case::gaudi2("export.whole-mapping", "common/memory.c:1967", whole),
    Case::gaudi2("export.interior-address", "common/memory.c:1800", interior),
    Case::gaudi2("export.unknown-address", "common/memory.c:1800", unknown),
    Case::gaudi2("export.host-memory", "common/memory.c:1803", host_memory),
    Case::gaudi2(
        "export.refused-one-holds-nothing",
        "common/memory.c:2087",
        refused_holds_nothing,
    ),
    Case::gaudi2(
        "export.unmap-while-exported",
        "common/memory.c:1297",
        unmap_while_exported,
    ),
    Case::gaudi2(
        "export.free-while-exported",
        "common/memory.c:368",
        free_while_exported,
    ),
    Case::gaudi2("export.two-of-one-mapping", "common/memory.c:1814", two_of_one),
    Case::gaudi2(
        "export.duplicate-holds-mapping",
        "common/memory.c:1835",
        duplicate_holds,
    ),
    Case::gaudi2(
        "export.other-mapping-of-same-memory",
        "common/memory.c:1297",
        other_mapping,
    ),
    Case::gaudi2("export.of-both-mappings", "common/memory.c:1297", both_mappings),
    Case::gaudi2(
        "export.other-memory-is-free",
        "common/memory.c:1297",
        other_memory,
    ),
    Case::gaudi2("export.shows-device-memory", "common/memory.c:1876", shows_memory),
    Case::gaudi2(
        "export.shows-the-window-asked-for",
        "common/memory.c:1743",
        shows_window,
    ),
    Case::gaudi2(
        "export.writes-reach-the-engine",
        "common/memory.c:1876",
        writes_reach,
    ),
    Case::gaudi2("export.not-mapped-back", "common/memory.c:2307", mapped_back),
];

fn request(address: DeviceVa, size: u64, at: u64) -> ExportRequest {
    // O_RDWR | O_CLOEXEC, as every user asks.
    let flags = 0o2_000_002;
    ExportRequest {
        address,
        size,
        offset: at,
        flags,
    }
}

fn export(io: &SharedIo, memory: &Dram, size: u64, at: u64) -> gaudi_seam::Result<OwnedFd> {
    io.export_dmabuf(request(memory.va(), size, at))
}

fn size_zero(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    refused("exporting 0 bytes", export(&io, &memory, 0, 0), Errno::EINVAL)
}

fn unaligned_size(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for size in [1, 4095, 4097, DRAM_PAGE - 1] {
        refused(
            &format!("exporting {size} bytes"),
            export(&io, &memory, size, 0),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unaligned_offset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for at in [1, 2048, 4097] {
        refused(
            &format!("exporting from {at}"),
            export(&io, &memory, PAGE, at),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unaligned_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for inside in [1, 2048, PAGE - 1, PAGE + 1] {
        let address = offset(memory.va(), inside);
        refused(
            &format!("exporting {address}, no page's start"),
            io.export_dmabuf(request(address, PAGE, 0)),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn past_end(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for (size, at) in [
        (DRAM_PAGE + PAGE, 0),
        (DRAM_PAGE, PAGE),
        (PAGE, DRAM_PAGE),
        (PAGE, 1 << 40),
    ] {
        refused(
            &format!("exporting {size} bytes from {at} of {DRAM_PAGE}"),
            export(&io, &memory, size, at),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn whole(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for pages in [1, 3] {
        let memory = Dram::new(&io, pages * DRAM_PAGE)?;
        export(&io, &memory, pages * DRAM_PAGE, 0)?;
        export(&io, &memory, PAGE, pages * DRAM_PAGE - PAGE)?;
    }
    Ok(())
}

fn interior(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for inside in [1, PAGE, DRAM_PAGE - PAGE] {
        let address = offset(memory.va(), inside);
        refused(
            "exporting from an address inside a mapping",
            io.export_dmabuf(request(address, PAGE, 0)),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Allocated is not mapped.
    let _memory = Allocation::new(&io, 1)?;
    for address in [DeviceVa(0), DRAM_VA.start] {
        refused(
            &format!("exporting {address}, where nothing is mapped"),
            io.export_dmabuf(request(address, PAGE, 0)),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn host_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let host = Host::new(&io, PAGE_LEN)?;
    refused(
        "exporting host memory",
        io.export_dmabuf(request(host.va, PAGE, 0)),
        Errno::EINVAL,
    )
}

fn refused_holds_nothing(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    refused("exporting 1 byte", export(&io, &memory, 1, 0), Errno::EINVAL)?;
    Ok(memory.mapping.unmap()?)
}

fn unmap_while_exported(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let fd = export(&io, &memory, PAGE, 8 * PAGE)?;
    let answer = memory.mapping.unmap();
    let kind = answer.as_ref().err().map(gaudi_seam::Error::kind);
    refused("unmapping memory that is exported", answer, Errno::EINVAL)?;
    if bench.is_mock() {
        // The errno alone cannot tell it from an address that is not mapped; a backend that knows says more.
        equal("the kind of that error", kind, Some(ErrorKind::InUse))?;
    }
    drop(fd);
    Ok(memory.mapping.unmap()?)
}

fn free_while_exported(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let _fd = export(&io, &memory, PAGE, 0)?;
    refused(
        "freeing memory that is exported",
        memory.allocation.free(),
        Errno::EINVAL,
    )
}

fn two_of_one(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let a = export(&io, &memory, 2 * PAGE, 0)?;
    let b = export(&io, &memory, 2 * PAGE, PAGE)?;
    drop(a);
    refused(
        "unmapping while the second export lives",
        memory.mapping.unmap(),
        Errno::EINVAL,
    )?;
    drop(b);
    Ok(memory.mapping.unmap()?)
}

fn duplicate_holds(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let fd = export(&io, &memory, PAGE, 0)?;
    let twin = duplicate(&fd)?;
    drop(fd);
    refused(
        "unmapping while a duplicate lives",
        memory.mapping.unmap(),
        Errno::EINVAL,
    )?;
    drop(twin);
    Ok(memory.mapping.unmap()?)
}

fn other_mapping(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let mut other = memory.allocation.map()?;
    let fd = export(&io, &memory, PAGE, 0)?;
    // The export holds the mapping that it was made from, not the memory.
    other.unmap()?;
    refused(
        "unmapping the one that is exported",
        memory.mapping.unmap(),
        Errno::EINVAL,
    )?;
    drop(fd);
    Ok(memory.mapping.unmap()?)
}

fn both_mappings(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let mut other = memory.allocation.map()?;
    let a = export(&io, &memory, PAGE, 0)?;
    let b = io.export_dmabuf(request(other.va, PAGE, 16 * PAGE))?;
    drop(a);
    memory.mapping.unmap()?;
    refused(
        "unmapping the one whose export lives",
        other.unmap(),
        Errno::EINVAL,
    )?;
    drop(b);
    Ok(other.unmap()?)
}

fn other_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let mut other = Dram::new(&io, 1)?;
    let _fd = export(&io, &memory, DRAM_PAGE, 0)?;
    other.mapping.unmap()?;
    Ok(other.allocation.free()?)
}

/// The bytes of an export, as another process would see them: of a real dma-buf, or of the stand-in's window.
fn window_of(fd: impl AsFd) -> Result<RawMapping, Failure> {
    let (start, len) = match standin::window(fd.as_fd())? {
        Some(window) => (window.offset, window.len),
        None => (0, gaudi_sys::fd::size(fd.as_fd())?),
    };
    let len = usize::try_from(len).unwrap_or(0);
    Ok(RawMapping::of_fd(fd, start, len)?)
}

fn shows_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let host = Host::new(&io, 4 * PAGE_LEN)?;
    let bytes = pattern(4 * PAGE_LEN, 21);
    host.memory.write(0, &bytes)?;
    let fd = export(&io, &memory, 4 * PAGE, 16 * PAGE)?;
    let copy = Program::new().copy(offset(memory.va(), 16 * PAGE), host.va, 4 * PAGE as u32);
    run(&io, queue::PDMA_0_0, copy)?;
    let mut seen = vec![0; 4 * PAGE_LEN];
    window_of(&fd)?.read(0, &mut seen)?;
    same_bytes("what the engine wrote, through the export", &seen, &bytes)
}

fn shows_window(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 2 * DRAM_PAGE)?;
    for (size, at) in [
        (PAGE, 0),
        (3 * PAGE, PAGE),
        (PAGE, 2 * DRAM_PAGE - PAGE),
        (2 * PAGE, DRAM_PAGE - PAGE),
    ] {
        let fd = export(&io, &memory, size, at)?;
        let map = window_of(&fd)?;
        equal("bytes in the window", map.len() as u64, size)?;
        map.write(0, &at.to_le_bytes())?;
        let host = Host::new(&io, PAGE_LEN)?;
        run(
            &io,
            queue::PDMA_0_0,
            Program::new().copy(host.va, offset(memory.va(), at), 8),
        )?;
        same_bytes(
            &format!("device memory at {at}"),
            &host.bytes(0, 8)?,
            &at.to_le_bytes(),
        )?;
    }
    Ok(())
}

fn writes_reach(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let host = Host::new(&io, PAGE_LEN)?;
    let bytes = pattern(PAGE_LEN, 22);
    let fd = export(&io, &memory, PAGE, 5 * PAGE)?;
    window_of(&fd)?.write(0, &bytes)?;
    drop(fd);
    let copy = Program::new().copy(host.va, offset(memory.va(), 5 * PAGE), PAGE as u32);
    run(&io, queue::PDMA_0_0, copy)?;
    same_bytes(
        "what was written through the export",
        &host.bytes(0, PAGE_LEN)?,
        &bytes,
    )
}

/// The mainline driver has no such operation; what a driver of the Gaudi3 header maps, it unmaps once.
fn mapped_back(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    let fd = export(&io, &memory, PAGE, 0)?;
    let registration = RegisterDmabuf {
        dmabuf: fd.as_fd(),
        len: PAGE,
    };
    match io.register_dmabuf(registration) {
        Err(error) => equal("the refusal", error.kind(), ErrorKind::Unsupported),
        Ok(va) => {
            io.mem_unmap(va)?;
            refused("unmapping it twice", io.mem_unmap(va), Errno::EINVAL)
        }
    }
}
