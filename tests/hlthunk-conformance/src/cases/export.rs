//! dma-bufs, as perftest, UCX and libfabric use them.

use std::ffi::c_int;
use std::os::fd::{AsRawFd as _, OwnedFd};

use gaudi_conformance::{Failure, Verdict, equal, holds};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

use crate::answer::{ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Card, DRAM_PAGE, Dram, Host, Memory, PAGE, own};
use crate::case::cases;

cases! { "export":
    "whole-mapping", "client:perftest/hl_memory.c:hl_memory_get_dmabuf_fd" => whole;
    "part-from-offset", "client:ucx/gaudi_base.c:uct_gaudi_base_get_dmabuf" => part;
    "by-address-function", "hlthunk.h:hlthunk_device_memory_export_dmabuf_fd" => by_address;
    "by-address-ignores-flags", "hlthunk.h:hlthunk_device_memory_export_dmabuf_fd" => by_address_flags;
    "is-closed-on-exec", "common/memory.c:export_dmabuf" => close_on_exec;
    "is-readable-and-writable", "common/memory.c:export_dmabuf" => read_write;
    "other-flags-are-invalid", "hlthunk.h:hlthunk_device_mapped_memory_export_dmabuf_fd" => flags_invalid;
    "size-zero-is-invalid", "common/memory.c:validate_export_params_common" => size_zero;
    "unaligned-size-is-invalid", "common/memory.c:validate_export_params_common" => unaligned_size;
    "unaligned-offset-is-invalid", "common/memory.c:validate_export_params_common" => unaligned_offset;
    "unaligned-address-is-invalid", "common/memory.c:validate_export_params_common" => unaligned_address;
    "past-the-end-is-invalid", "common/memory.c:validate_export_params" => past_end;
    "interior-address-is-invalid", "common/memory.c:memhash_node_export_get" => interior;
    "unknown-address-is-invalid", "common/memory.c:memhash_node_export_get" => unknown;
    "handle-in-place-of-address-is-invalid", "common/memory.c:memhash_node_export_get" => handle_as_address;
    "host-memory-is-invalid", "common/memory.c:memhash_node_export_get" => host_memory;
    "refused-export-holds-nothing", "common/memory.c:export_dmabuf_from_addr" => refused_holds_nothing;
    "unmap-while-exported-is-invalid", "common/memory.c:unmap_device_va" => unmap_exported;
    "free-while-exported-is-invalid", "common/memory.c:free_device_memory" => free_exported;
    "two-of-one-mapping-both-hold", "common/memory.c:memhash_node_export_get" => two_of_one;
    "duplicate-holds-mapping", "common/memory.c:hl_release_dmabuf" => duplicate_holds;
    "other-mapping-can-be-unmapped", "common/memory.c:unmap_device_va" => other_mapping;
    "closed-export-frees-mapping", "client:perftest/hl_memory.c:hl_memory_free_buffer" => closed_frees;
    "many-exports-of-one-page", "client:nixl/libfabric_rail.cpp:registerMemory" => many;
    "device-stays-busy-after-close", "common/memory.c:export_dmabuf" => keeps_device;
    "last-export-releases-closed-device", "common/memory.c:hl_release_dmabuf" => releases_device;
    "export-has-a-size", "common/memory.c:export_dmabuf" => has_size;
}

/// `O_RDWR | O_CLOEXEC`: the flags that perftest and UCX pass, and the only valid ones.
pub(crate) const FLAGS: u32 = (OFlag::O_RDWR.bits() | OFlag::O_CLOEXEC.bits()) as u32;

fn try_export(card: Card, address: u64, size: u64, offset: u64) -> c_int {
    card.hl
        .device_mapped_memory_export_dmabuf_fd(card.fd, address, size, offset, FLAGS)
}

fn export(card: Card, dram: &Dram, size: u64, offset: u64) -> Result<OwnedFd, Failure> {
    let code = try_export(card, dram.address(), size, offset);
    own("hlthunk_device_mapped_memory_export_dmabuf_fd", code)
}

/// Allocates and maps one page.
fn page(bench: &mut Bench) -> Result<(Card, Dram), Failure> {
    let card = bench.card()?;
    Ok((card, Dram::new(card, 1)?))
}

const P: u64 = PAGE as u64;

fn whole(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for pages in [1, 3] {
        let dram = Dram::new(card, pages * DRAM_PAGE)?;
        export(card, &dram, pages * DRAM_PAGE, 0)?;
    }
    Ok(())
}

fn part(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for (size, offset) in [(P, 0), (P, P), (P, DRAM_PAGE - P), (DRAM_PAGE - 16 * P, 16 * P)] {
        export(card, &dram, size, offset)?;
    }
    Ok(())
}

fn by_address(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    let code = card
        .hl
        .device_memory_export_dmabuf_fd(card.fd, dram.address(), DRAM_PAGE, FLAGS);
    own("hlthunk_device_memory_export_dmabuf_fd", code).map(drop)
}

fn by_address_flags(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for flags in [0, 1, u32::MAX] {
        let code = card
            .hl
            .device_memory_export_dmabuf_fd(card.fd, dram.address(), P, flags);
        own(&format!("the export with flags {flags:#x}"), code)?;
    }
    Ok(())
}

fn close_on_exec(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    let fd = export(card, &dram, P, 0)?;
    equal(
        "the descriptor's flags",
        fcntl(&fd, FcntlArg::F_GETFD)?,
        FdFlag::FD_CLOEXEC.bits(),
    )
}

fn read_write(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    let fd = export(card, &dram, P, 0)?;
    let mode = fcntl(&fd, FcntlArg::F_GETFL)? & OFlag::O_ACCMODE.bits();
    equal("the file's mode", mode, OFlag::O_RDWR.bits())
}

fn flags_invalid(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for flags in [
        0,
        OFlag::O_RDWR.bits() as u32,
        OFlag::O_CLOEXEC.bits() as u32,
        FLAGS | 1 << 30,
        u32::MAX,
    ] {
        let code = card
            .hl
            .device_mapped_memory_export_dmabuf_fd(card.fd, dram.address(), P, 0, flags);
        rejected(&format!("flags {flags:#x}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn size_zero(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    refused(
        "exporting 0 bytes",
        try_export(card, dram.address(), 0, 0),
        Errno::EINVAL,
    )
}

fn unaligned_size(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for size in [1, 4095, 4097, DRAM_PAGE - 1, u64::MAX] {
        refused(
            &format!("exporting {size} bytes"),
            try_export(card, dram.address(), size, 0),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unaligned_offset(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for offset in [1, 2048, 4097] {
        refused(
            &format!("exporting from {offset}"),
            try_export(card, dram.address(), P, offset),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn unaligned_address(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for inside in [1, 2048, P - 1] {
        let code = try_export(card, dram.address() + inside, P, 0);
        refused(&format!("exporting from address + {inside}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn past_end(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for (size, offset) in [(DRAM_PAGE + P, 0), (DRAM_PAGE, P), (P, DRAM_PAGE), (P, 1 << 40)] {
        let code = try_export(card, dram.address(), size, offset);
        refused(&format!("{size} bytes from {offset}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn interior(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    for inside in [P, DRAM_PAGE - P] {
        let code = try_export(card, dram.address() + inside, P, 0);
        refused("an address inside a mapping", code, Errno::EINVAL)?;
    }
    Ok(())
}

fn unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _memory = Memory::new(card, 1)?;
    for address in [0, gaudi_spec::gaudi2::DRAM_VA.start.0, !4095] {
        refused(
            &format!("exporting {address:#x}"),
            try_export(card, address, P, 0),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn handle_as_address(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    // Programs for kernels before 6.3 pass the handle.
    let handle = dram.memory.handle;
    refused(
        "exporting a handle",
        try_export(card, handle, P, 0),
        Errno::EINVAL,
    )?;
    let code = card.hl.device_memory_export_dmabuf_fd(card.fd, handle, P, FLAGS);
    refused("exporting a handle with the offset function", code, Errno::EINVAL)
}

fn host_memory(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let host = Host::new(card, PAGE)?;
    refused(
        "exporting host memory",
        try_export(card, host.va.0, P, 0),
        Errno::EINVAL,
    )
}

fn refused_holds_nothing(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    refused(
        "exporting 1 byte",
        try_export(card, dram.address(), 1, 0),
        Errno::EINVAL,
    )?;
    ok("the unmap", dram.mapping.unmap())
}

fn unmap_exported(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    let fd = export(card, &dram, P, 8 * P)?;
    refused("unmapping exported memory", dram.mapping.unmap(), Errno::EINVAL)?;
    drop(fd);
    ok("the unmap after the close", dram.mapping.unmap())
}

fn free_exported(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    let _fd = export(card, &dram, P, 0)?;
    refused("freeing exported memory", dram.memory.free(), Errno::EINVAL)
}

fn two_of_one(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    let (a, b) = (export(card, &dram, 2 * P, 0)?, export(card, &dram, 2 * P, P)?);
    drop(a);
    refused(
        "unmapping while the second export is open",
        dram.mapping.unmap(),
        Errno::EINVAL,
    )?;
    drop(b);
    ok("the unmap", dram.mapping.unmap())
}

fn duplicate_holds(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    let fd = export(card, &dram, P, 0)?;
    let twin = gaudi_sys::fd::duplicate(&fd)?;
    drop(fd);
    refused(
        "unmapping while a duplicate is open",
        dram.mapping.unmap(),
        Errno::EINVAL,
    )?;
    drop(twin);
    ok("the unmap", dram.mapping.unmap())
}

fn other_mapping(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    let mut other = dram.memory.map(0)?;
    let _fd = export(card, &dram, P, 0)?;
    ok("unmapping the other mapping", other.unmap())
}

fn closed_frees(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    // perftest closes the descriptor as soon as it has registered the memory.
    drop(export(card, &dram, DRAM_PAGE, 0)?);
    ok("the unmap", dram.mapping.unmap())?;
    ok("the free", dram.memory.free())
}

fn many(bench: &mut Bench) -> Verdict {
    let (card, mut dram) = page(bench)?;
    let all: Result<Vec<_>, _> = (0..100).map(|nth| export(card, &dram, P, nth * P)).collect();
    drop(all?);
    ok("the unmap", dram.mapping.unmap())
}

/// Exports memory, closes the device, and returns the export.
fn left_over(bench: &mut Bench) -> Result<OwnedFd, Failure> {
    let card = bench.take()?;
    let dram = Dram::new(card, 1)?;
    let fd = export(card, &dram, P, 0)?;
    // The close of the device unmaps it.
    std::mem::forget(dram);
    ok("hlthunk_close", card.hl.close(card.fd))?;
    Ok(fd)
}

fn keeps_device(bench: &mut Bench) -> Verdict {
    let export = left_over(bench)?;
    let code = bench.hl.open(crate::types::name::DONT_CARE, std::ptr::null());
    let errno = Errno::last();
    drop(export);
    holds("an open fails while an export exists", code == -1, code)?;
    equal("errno of that open", errno, Errno::EBUSY)
}

fn releases_device(bench: &mut Bench) -> Verdict {
    let export = left_over(bench)?;
    drop(export);
    bench.card()?.usage().map(drop)
}

fn has_size(bench: &mut Bench) -> Verdict {
    let (card, dram) = page(bench)?;
    let fd = export(card, &dram, 4 * P, 2 * P)?;
    holds("the descriptor is open", fd.as_raw_fd() >= 0, &fd)?;
    let window = gaudi_sys::standin::window(&fd)?;
    let size = match window {
        Some(window) => window.len,
        None => gaudi_sys::fd::size(&fd)?,
    };
    equal("the size of the export", size, 4 * P)
}
