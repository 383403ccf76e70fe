//! `HL_MEM_OP_EXPORT_DMABUF_FD`.

use std::os::fd::{AsFd, OwnedFd};

use gaudi_seam::{DeviceVa, ErrorKind, ExportRequest, RawMapping, RegisterDmabuf, SharedIo};
use gaudi_spec::gaudi2::{DRAM_PAGE, DRAM_VA, queue};
use gaudi_sys::fd::duplicate;
use gaudi_sys::{PAGE, standin};

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Allocation, Dram, Host, PAGE_LEN, Program, offset, pattern, run};
use crate::verdict::{Failure, Verdict, equal, invalid, same_bytes};

cases! {
    "export.size-zero", "common/memory.c:validate_export_params_common" => size_zero;
    "export.unaligned-size", "common/memory.c:validate_export_params_common" => unaligned_size;
    "export.unaligned-offset", "common/memory.c:validate_export_params_common" => unaligned_offset;
    "export.unaligned-address", "common/memory.c:validate_export_params_common" => unaligned_address;
    "export.past-the-end", "common/memory.c:validate_export_params" => past_end;
    "export.whole-mapping", "common/memory.c:validate_export_params" => whole;
    "export.interior-address", "common/memory.c:memhash_node_export_get" => interior;
    "export.unknown-address", "common/memory.c:memhash_node_export_get" => unknown;
    "export.host-memory", "common/memory.c:memhash_node_export_get" => host_memory;
    "export.refused-one-holds-nothing", "common/memory.c:export_dmabuf_from_addr" => refused_holds_nothing;
    "export.unmap-while-exported", "common/memory.c:unmap_device_va" => unmap_while_exported;
    "export.free-while-exported", "common/memory.c:free_device_memory" => free_while_exported;
    "export.two-of-one-mapping", "common/memory.c:memhash_node_export_get" => two_of_one;
    "export.duplicate-holds-mapping", "common/memory.c:hl_release_dmabuf" => duplicate_holds;
    "export.other-mapping-of-same-memory", "common/memory.c:unmap_device_va" => other_mapping;
    "export.of-both-mappings", "common/memory.c:unmap_device_va" => both_mappings;
    "export.other-memory-is-free", "common/memory.c:unmap_device_va" => other_memory;
    "export.shows-device-memory", "common/memory.c:export_dmabuf" => shows_memory;
    "export.shows-the-window-asked-for", "common/memory.c:hl_map_dmabuf" => shows_window;
    "export.writes-reach-the-engine", "common/memory.c:export_dmabuf" => writes_reach;
    "export.not-mapped-back", "common/memory.c:hl_mem_ioctl" => mapped_back;
}

fn request(address: DeviceVa, size: u64, at: u64) -> ExportRequest {
    // O_RDWR | O_CLOEXEC, the usual flags.
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
    invalid("exporting 0 bytes", export(&io, &memory, 0, 0))
}

fn unaligned_size(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for size in [1, 4095, 4097, DRAM_PAGE - 1] {
        invalid(&format!("exporting {size} bytes"), export(&io, &memory, size, 0))?;
    }
    Ok(())
}

fn unaligned_offset(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for at in [1, 2048, 4097] {
        invalid(&format!("exporting from {at}"), export(&io, &memory, PAGE, at))?;
    }
    Ok(())
}

fn unaligned_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let memory = Dram::new(&io, 1)?;
    for inside in [1, 2048, PAGE - 1, PAGE + 1] {
        let address = offset(memory.va(), inside);
        invalid(
            &format!("exporting {address}, which is not page-aligned"),
            io.export_dmabuf(request(address, PAGE, 0)),
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
        invalid(
            &format!("exporting {size} bytes from {at} of {DRAM_PAGE}"),
            export(&io, &memory, size, at),
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
        invalid(
            "exporting from an address inside a mapping",
            io.export_dmabuf(request(address, PAGE, 0)),
        )?;
    }
    Ok(())
}

fn unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // An allocation without a mapping.
    let _memory = Allocation::new(&io, 1)?;
    for address in [DeviceVa(0), DRAM_VA.start] {
        invalid(
            &format!("exporting {address}, where nothing is mapped"),
            io.export_dmabuf(request(address, PAGE, 0)),
        )?;
    }
    Ok(())
}

fn host_memory(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let host = Host::new(&io, PAGE_LEN)?;
    invalid(
        "exporting host memory",
        io.export_dmabuf(request(host.va, PAGE, 0)),
    )
}

fn refused_holds_nothing(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    invalid("exporting 1 byte", export(&io, &memory, 1, 0))?;
    Ok(memory.mapping.unmap()?)
}

fn unmap_while_exported(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let fd = export(&io, &memory, PAGE, 8 * PAGE)?;
    let answer = memory.mapping.unmap();
    let kind = answer.as_ref().err().map(gaudi_seam::Error::kind);
    invalid("unmapping memory that is exported", answer)?;
    if bench.knows_causes() {
        // The errno is the same as for an unmapped address; the mock's kind is more precise.
        equal("the kind of that error", kind, Some(ErrorKind::InUse))?;
    }
    drop(fd);
    Ok(memory.mapping.unmap()?)
}

fn free_while_exported(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let _fd = export(&io, &memory, PAGE, 0)?;
    invalid("freeing memory that is exported", memory.allocation.free())
}

fn two_of_one(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let a = export(&io, &memory, 2 * PAGE, 0)?;
    let b = export(&io, &memory, 2 * PAGE, PAGE)?;
    drop(a);
    invalid(
        "unmapping while the second export is alive",
        memory.mapping.unmap(),
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
    invalid("unmapping while a duplicate is alive", memory.mapping.unmap())?;
    drop(twin);
    Ok(memory.mapping.unmap()?)
}

fn other_mapping(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let mut memory = Dram::new(&io, 1)?;
    let mut other = memory.allocation.map()?;
    let fd = export(&io, &memory, PAGE, 0)?;
    // The export holds a reference to its own mapping, not to the memory.
    other.unmap()?;
    invalid("unmapping the exported mapping", memory.mapping.unmap())?;
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
    invalid("unmapping the mapping with a live export", other.unmap())?;
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

/// Maps the bytes of an export as an importing process does: of a dma-buf, or of the stand-in's
/// window.
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
    same_bytes("the engine's write, read through the export", &seen, &bytes)
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
        "the bytes written through the export",
        &host.bytes(0, PAGE_LEN)?,
        &bytes,
    )
}

/// The mainline driver does not have this operation. With the Gaudi3 header, the mapping can be
/// unmapped once.
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
            invalid("unmapping it twice", io.mem_unmap(va))
        }
    }
}
